/* A consumer group: an inbox with a retry, and a retry that is sent once (txmq/user_data/delta_inbox.py,
 * txmq/consumer/send_back.py, txmq/producer/once.py).
 *
 * INBOX: two messages in one queue, two members. A member polls both, sends some of them back, applies
 * the others in their order, and commits its offset; the retries come to any member, at any time. A
 * member may die or hang between any two steps, and a handler may hang and take effect though its
 * message was sent back. An operator resets the queue once. The table's marks are committed with the effect; a
 * commit is refused if a mark that it sets was set since it was read.
 *
 * RETRY: one message that is older than a window of ids. A member sends it back and dies; another one
 * looks whether it was sent back. Their clocks may differ by two windows; the store's time cannot.
 *
 * run INBOX                      : holds
 * run INBOX WITHOUT_A1           : violates I22
 * run INBOX TRIED_A1_LEAVE       : violates once
 * run INBOX TRIED_A1_OWN         : violates once
 * run RETRY                      : holds
 * run RETRY WITHOUT_A9           : violates H8
 */
#include "table.pml"

#ifdef INBOX

#define MESSAGES 2
#define RETRIES 2

byte effects[MESSAGES];                   /* in the user's table */
bool is_named[MESSAGES];                  /* a commit of the queue names the message: its original took effect */
byte queue_mark;                          /* inbox: all messages before it are done, or were sent back */
byte queue_commits;                       /* how often the mark was set: a commit that sets it is compared with this */
byte retry_mark;                          /* the mark of the retry queue */
bool own_mark[MESSAGES];                  /* inbox: a retry of this message took effect */
byte retry_of[MESSAGES], retries;         /* the retry queue */
bool is_sent_back[MESSAGES];
byte next_offset, next_retry;             /* the group: committed offsets */
bool is_reset;

#if defined(WITHOUT_A1) || defined(TRIED_A1_LEAVE)
#define HAS_OWN_MARK(message) false
#else
#define HAS_OWN_MARK(message) own_mark[message]
#endif
#define IS_NEW(message) (hand[message] && message >= queue_mark && !HAS_OWN_MARK(message))
#define TOOK_EFFECT(message) (HAS_OWN_MARK(message) || queue_mark == message + 1 || \
                              (queue_mark > message && is_named[message]))

inline take_effect(message) {
    effects[message]++;
    assert(effects[message] == 1)         /* once: one effect for each message */
}

/* Hand out what is not committed; what was sent back comes as its retry alone, unless the group was reset. */
inline poll() {
    atomic {
        hand[0] = (next_offset <= 0 && (is_reset || !is_sent_back[0]));
        hand[1] = (next_offset <= 1 && (is_reset || !is_sent_back[1]))
    }
}

/* Apply originals: one commit to the user's table, with the mark of the queue behind the last new one. */
inline apply() {
    do
    :: atomic {
            base = queue_commits; hand[0] = IS_NEW(0); hand[1] = IS_NEW(1);
            if
            :: !hand[0] && !hand[1] -> break
            :: else
            fi
       };
       atomic {
            if
            :: queue_commits != base      /* refused: computed again */
            :: else ->
                if
                :: hand[0] -> take_effect(0); is_named[0] = true; queue_mark = 1
                :: else
                fi;
                if
                :: hand[1] -> take_effect(1); is_named[1] = true; queue_mark = 2
                :: else
                fi;
                queue_commits++; break
            fi
       }
    od;
    base = 0; hand[0] = false; hand[1] = false
}

/* Apply the next retry: one commit, with its place, its own mark, and the mark of its first queue once more. */
inline apply_retry() {
    place = next_retry;
    message = retry_of[place];
    do
    :: atomic {
            base = queue_commits;
            if
            :: place < retry_mark || TOOK_EFFECT(message) -> break
            :: else
            fi
       };
       atomic {
            if
            :: retry_mark > place         /* another member was faster */
#if !defined(TRIED_A1_LEAVE) && !defined(TRIED_A1_OWN)
            :: retry_mark <= place && queue_commits != base      /* another try of the same message may be done */
            :: retry_mark <= place && queue_commits == base ->
                queue_commits++;
#else
            :: retry_mark <= place ->
#endif
                take_effect(message);
                retry_mark = place + 1;
                own_mark[message] = true;
#ifdef WITHOUT_A1
                queue_mark = (queue_mark > message + 1 -> queue_mark : message + 1);
#endif
                break
            fi
       }
    od;
    next_retry = (next_retry > place + 1 -> next_retry : place + 1);
    place = 0; message = 0; base = 0
}

inline send_back(message) {
    atomic {
        if
        :: hand[message] && !is_sent_back[message] ->
            is_sent_back[message] = true; retry_of[retries] = message; retries++;
            choose(hand[message])         /* a handler that hangs goes on with it all the same */
        :: true
        fi
    }
}

proctype member() {
    bool hand[MESSAGES];
    byte base;
    poll();
    send_back(0);
    send_back(1);
    may_be_killed();
    apply();
    may_be_killed();
    next_offset = MESSAGES;
killed:
    hand[0] = false
}

proctype retry_member() {
    byte base, place, message;
end:
    do
    :: next_retry < retries -> apply_retry()
    od
}

proctype operator() {
    if
    :: atomic { next_offset = 0; is_reset = true }
    :: true
    fi
}

/* The member that is left takes all over; then each message has had its effect. */
proctype last() {
    bool hand[MESSAGES];
    byte base;
    timeout;
    poll();
    apply();
    assert(effects[0] == 1);              /* I22: nothing is skipped */
    assert(effects[1] == 1)               /* I22 */
}

init {
    atomic { run member(); run member(); run retry_member(); run operator(); run last() }
}

#else /* RETRY */

#define WINDOWS 8

bool is_sent[WINDOWS];                    /* retries of the message, by the window that their id names */
byte now = 2;                             /* the store's time, in windows */
bool is_over;                             /* the first member has died since */

#ifdef WITHOUT_A9
#define READ_CLOCK now + ahead            /* the clock of the process */
#else
#define READ_CLOCK now                    /* the store's time */
#endif

/* Sends it back, unless a retry is found under an id of the window of now, or of one before or after it. */
inline look() {
    at = READ_CLOCK;
    is_found = (is_sent[at - 1] || is_sent[at] || is_sent[at + 1])
}

proctype member(byte ahead) {
    byte at;
    bool is_found;
    look();
    assert(!is_found);                    /* H8: nobody has sent it back yet */
    is_sent[at] = true;
    is_over = true
}

proctype next_member(byte ahead) {
    byte at;
    bool is_found;
    is_over;
    look();
    assert(is_found)                      /* H8: what was sent back comes again as its retry alone */
}

proctype time() {
    now++                                 /* at most one window passes between the two members */
}

init {
    atomic { run time(); run next_member(0); if :: run member(0) :: run member(2) fi }
}
#endif
