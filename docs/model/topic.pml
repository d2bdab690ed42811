/* A topic under the commands of operators (txmq/ops/admin, txmq/maintenance/retention.py,
 * txmq/publish/topic_writer.py).
 *
 * ERASE: one message that is published. It is erased, first in half and then in the topic; meanwhile
 * the topic is rebuilt and its files are merged. A commit that removes files moves the mark
 * txmq-rewrite; it is refused if the mark has moved since the version that its work was computed from.
 *
 * LATE: a transaction of topics 0 and 1 whose half file goes away and comes back. Two publishers write
 * the topics, set the transaction aside where they cannot read it, and write it late. Topic 0 has a
 * retention of its own.
 *
 * run ERASE                      : holds
 * run ERASE WITHOUT_A3           : violates erased
 * run ERASE WITHOUT_LAST_LOOK    : violates erased
 * run LATE                       : holds
 * run LATE WITHOUT_A4            : violates I3
 * run LATE TRIED_A4_BEGIN        : violates I1
 * run LATE TRIED_A4_HOLD         : violates I3
 * run LATE WITHOUT_ORDER         : violates I1
 */
#include "table.pml"

#ifdef WITHOUT_A4
#define WITHOUT_BEGIN
#define WITHOUT_HOLD
#endif
#ifdef TRIED_A4_BEGIN     /* only the look at the begin of the topic */
#define WITHOUT_HOLD
#endif
#ifdef TRIED_A4_HOLD      /* only a retention that holds back */
#define WITHOUT_BEGIN
#endif

#ifdef ERASE

mtype = { MISSING, BODY, EMPTY };         /* a row: not there, with its body, erased */

mtype half = BODY, row;
byte rewrites, mark;                      /* of the topic: txmq-rewrite, and how far it is published */
bool is_erased;                           /* the operator was told: 0 messages */

/* Look for the body in the topic, and write its file anew without it. */
inline erase_in_topic() {
    atomic { base = rewrites; found = row };
    do
    :: found == BODY ->
        atomic {
            if
            :: rewrites == base -> row = EMPTY; rewrites++
            :: else                       /* somebody replaced the file: look again */
            fi
        };
        atomic { base = rewrites; found = row }
    :: else -> break
    od
}

proctype erasure() {
    byte base;
    mtype found;
    if
    :: half == BODY -> half = EMPTY       /* one commit to half; what is copied comes before its copy */
    :: else
    fi;
    may_be_killed();
    erase_in_topic();
    may_be_killed();
#ifdef WITHOUT_LAST_LOOK
    erase_in_topic();
    rewrites++                            /* closed after the last look */;
#else
    rewrites++;                           /* the commit without rows that closes the log: refuses who read before */
    erase_in_topic();                     /* and then the last look */
#endif
    is_erased = true;
killed:
    base = 0
}

/* Writes what the topic should show by half; a row that half has no more is kept as the topic has it. */
proctype rebuild() {
    byte base, published, tries = 2;
    mtype copied;
again:
    if
    :: tries == 0 -> goto killed
    :: else -> tries--
    fi;
    atomic { base = rewrites; published = mark; copied = row };   /* the topic is pinned, then half is read */
    if
    :: half != MISSING -> copied = half
    :: else
    fi;
    may_be_killed();
#ifdef WITHOUT_A3
    base = rewrites;                      /* the topic is refreshed right before the commit */
#endif
    atomic {
        if
        :: rewrites == base && mark == published -> row = copied; rewrites++; mark++
        :: else -> goto again             /* outdated: compared again from the beginning */
        fi
    };
killed:
    base = 0; published = 0; copied = MISSING
}

proctype compaction() {
    byte base;
    mtype copied;
    atomic { base = rewrites; copied = row };
    atomic {
        if
        :: rewrites == base -> row = copied; rewrites++
        :: else                           /* left to the next round */
        fi
    }
}

/* The next message of another transaction. */
proctype publisher() {
    mark++
}

proctype audit() {
    timeout;
    assert(!is_erased || row != BODY)     /* erased: a body that was erased never comes back */
}

init {
    atomic {
        if                                /* the copy is there, or was lost, which is why it is rebuilt */
        :: row = BODY
        :: row = MISSING
        fi;
        if                                /* retention may have taken half */
        :: true
        :: row == BODY -> half = MISSING
        fi;
        run erasure(); run rebuild(); run rebuild(); run compaction(); run publisher(); run audit()
    }
}

#else /* LATE */

/* Three facts: version 1 is the transaction of both topics, 2 and 3 are others in topic 0. */
#define THROUGH 3

bool is_readable = true;                  /* the half file of the transaction */
bool is_aside;                            /* state/set_aside has it */
byte low_water;                           /* up to which version all topics have their messages */
byte topic_mark[2], late_marks[2];        /* marks of the topics */
bool is_there[2];                         /* whether the topic has the row now */
byte shown[2];                            /* how often it came to the topic */
byte topic_begin;                         /* up to which version topic 0 may have lost messages */

inline come_to(topic) {
    is_there[topic] = true;
    shown[topic]++;
    assert(shown[topic] == 1)             /* I3: visible once */
}

/* Write what a topic lacks up to THROUGH: all others, and the transaction if it can be read. */
inline write(topic) {
    base = topic_mark[topic];
    can_read = is_readable;
    if
    :: base < THROUGH && !can_read -> is_aside = true     /* the register first */
    :: else
    fi;
    atomic {
        if
        :: topic_mark[topic] == base && base < THROUGH ->
            topic_mark[topic] = THROUGH;
            if
            :: can_read -> come_to(topic)
            :: else
            fi
        :: else                           /* another publisher was faster */
        fi;
        base = 0; can_read = false
    }
}

/* Write the transaction into a topic that has passed it, unless the topic shows it. */
inline write_late(topic) {
    do
    :: true ->
        atomic { base = late_marks[topic]; has_it = is_there[topic] };    /* the topic is pinned */
        begin = (topic == 0 -> topic_begin : 0);          /* told before rows go, and read after the pin */
        if
        :: has_it -> break
#ifndef WITHOUT_BEGIN
        :: begin >= 1 && !has_it -> break /* retention has taken it, so it was shown */
#endif
        :: else
        fi;
        atomic {
            if
            :: late_marks[topic] == base -> late_marks[topic]++; come_to(topic); break
            :: else
            fi
        }
    od;
    base = 0; has_it = false; begin = 0
}

proctype publisher() {
    byte base, begin;
    bool can_read, has_it;
end_idle:
    do
    :: low_water < THROUGH ->
        write(0);
        write(1);
        low_water = THROUGH
    :: atomic { low_water == THROUGH && is_aside && is_readable -> skip };
        write_late(0);
        write_late(1);
        is_aside = false
    od
}

/* Removes the oldest rows of topic 0: the transaction alone, or the next message with it. */
proctype retention() {
    byte published, begin = 1, rounds = 3;
    bool waits;
end_idle:
    do
    :: begin < THROUGH && rounds > 0 ->
        rounds--;
#ifdef WITHOUT_ORDER
        waits = is_aside;
        published = low_water;
#else
        published = low_water;            /* what is published everywhere, and then what waits */
        waits = is_aside;
#endif
#ifdef WITHOUT_HOLD
        waits = false;
#endif
        if
        :: !waits && published > begin ->
            topic_begin = begin;          /* told before rows go */
            is_there[0] = false;
            begin++
        :: else
        fi
    od
}

/* Somebody moves the file away, and puts it back. */
proctype storage() {
    is_readable = false;
    is_readable = true
}

proctype audit() {
    timeout;
    assert(shown[0] == 1);                /* I1: nothing that was committed is lost */
    assert(shown[1] == 1);                /* I1 */
    assert(topic_begin > 0 || is_there[0])                /* I1: what retention may have taken is told */
}

init {
    atomic { run publisher(); run publisher(); run retention(); run storage(); run audit() }
}
#endif
