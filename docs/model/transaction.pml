/* A transaction: half, local transaction, end, settle, publish (docs/architecture.md, the way 1 to 5).
 *
 * ENDS: a producer with its local transaction, a check that puts a fence into the user's table, two
 * publishers, two topics. ORDINARY: the same with a message that has no local transaction: the check
 * rolls it back without asking anybody. PUBLISH: two transactions, three claims about them in any
 * order, two publishers, one topic. BACK: as ENDS with one publisher, and an operator who copies the whole store
 * and later puts the older copy in its place under the live producer.
 * Whoever appends to op commits on top of its newest version; settled and the topics are
 * compare-and-swaps on their marks.
 *
 * run ENDS                       : holds
 * run ENDS WITHOUT_FENCE         : violates I12
 * run ORDINARY                   : holds
 * run ORDINARY WITHOUT_LOOK      : violates I7
 * run PUBLISH                    : holds
 * run PUBLISH WITHOUT_SWAP       : violates I3
 * run BACK                       : holds
 * run BACK WITHOUT_A5            : violates I6
 * run BACK TRIED_A5              : violates I6
 */
#include "table.pml"

#ifdef PUBLISH
#define TRANSACTIONS 2
#else
#define TRANSACTIONS 1
#endif
#if defined(BACK) || defined(PUBLISH)
#define TOPICS 1
#else
#define TOPICS 2
#endif
#ifdef BACK
#define RESTORES store_restores           /* how often the store went back; services are stopped around it */
byte store_restores;
#else
#define RESTORES 0
#endif
#define VERSIONS 4        /* of op: version 0 is empty, and three claims */

mtype = { NONE, COMMIT, ROLLBACK, FORGOTTEN };

typedef Store {
    bool half[TRANSACTIONS];              /* all messages of a transaction: one commit */
    mtype kind[VERSIONS];                 /* the claim in each version of op */
    byte about[VERSIONS];                 /* its transaction */
    byte op;                              /* the newest version of op */
    byte fact[TRANSACTIONS];              /* settled: the version of op with the claim that took effect; 0 none */
    byte settled_mark;                    /* up to which version of op all facts are there */
    byte topic_mark[TOPICS];              /* up to which version of op a topic is complete */
    byte last[TOPICS];                    /* the version of op of a topic's last message */
    byte rows[4]                          /* how often a topic shows a transaction */
}
#define ROWS(topic, transaction) store.rows[(topic) * TRANSACTIONS + (transaction)]

Store store;
bool marker[TRANSACTIONS], fence[TRANSACTIONS];   /* the user's table, which no copy of the store holds */
mtype told[TRANSACTIONS];                 /* what commit() or rollback() returned */
bool excused[TRANSACTIONS];               /* claimed before the store went back: gone, as docs/backup.md says */

/* Find the first claim about a transaction after a version of op, up to another one; 0 if none. */
inline find_first(transaction, after, through, version) {
    version = after + 1;
    do
    :: version > through -> version = 0; break
    :: version <= through && store.about[version] == transaction -> break
    :: else -> version++
    od
}

/* Append a claim: one commit to op, on top of the newest version. */
inline append(transaction, end) {
    store.op++;
    store.kind[store.op] = end;
    store.about[store.op] = transaction
}

/* Read the end that settled and op give a transaction: its fact, else the first unsettled claim. */
inline read_end(transaction, end) {
    d_step {
        version = store.fact[transaction];
        if
        :: version == 0 && store.half[transaction] ->
            find_first(transaction, store.settled_mark, store.op, version)
        :: else
        fi;
        end = NONE;
        if
        :: version != 0 -> end = store.kind[version]
        :: else
        fi;
        version = 0
    }
}

#ifdef PUBLISH
/* Somebody who claims an end of a transaction whose halves are there. */
proctype claimer(byte transaction; mtype end) {
    store.half[transaction] = true;
    atomic { append(transaction, end) }
}
#else

proctype producer(byte me) {
    mtype asked, end;
    byte version, opened, seen;
    bool is_noticed;
    opened = RESTORES;
    store.half[me] = true;                /* prepare() returns */
    may_be_killed();
    seen = store.op;
#ifdef ORDINARY
    asked = COMMIT;
#else
    atomic {                              /* the local transaction: its marker is in the same commit */
        if
        :: !fence[me] -> marker[me] = true; asked = COMMIT
        :: asked = ROLLBACK               /* it failed, by the fence or by itself */
        fi
    };
#endif
    may_be_killed();
    atomic {
        append(me, asked);
        /* The handle of op sees that the log was replaced: the commit it knew has another stamp. */
        is_noticed = (opened != RESTORES);
#ifdef TRIED_A5
        /* ... unless the copy kept the times of files: then only where op has other commits. */
        is_noticed = (is_noticed && store.op <= seen);
#endif
        seen = 0
    };
    may_be_killed();
#ifdef WITHOUT_LOOK
    end = asked;
#else
    read_end(me, end);
#endif
    if
    :: end == NONE && is_noticed -> end = FORGOTTEN       /* no half, no fact: an error */
    :: else
    fi;
#ifdef WITHOUT_A5
    end = (end == FORGOTTEN -> asked : end);              /* no other claim names another end */
#endif
    if                                    /* the claim itself went back after its commit */
    :: end == NONE -> end = asked
    :: else
    fi;
    atomic {
        assert(end != COMMIT || excused[me] || store.half[me]);   /* I6: what is acknowledged is there */
        told[me] = end
    };
killed:
    opened = 0
}

/* Asks about a transaction without an end; it is started again whenever it dies. */
proctype check(byte me) {
    mtype end;
    byte version, began;
killed:
    end = NONE; began = RESTORES;
end_idle:
    if
    :: store.half[me] && store.fact[me] == 0
#ifdef BACK
    :: began != RESTORES -> goto killed
#endif
    fi;
    read_end(me, end);
    if
    :: end != NONE -> goto waits          /* it is claimed; a publisher settles it */
    :: else
    fi;
    may_be_killed();
#ifdef ORDINARY
    end = ROLLBACK;                       /* without its COMMIT it was never acknowledged */
#else
    if                                    /* the listener looks for the marker, and fences its place */
    :: marker[me] -> end = COMMIT
    :: else ->
#ifdef WITHOUT_FENCE
        end = ROLLBACK
#else
        atomic {
            if
            :: marker[me] -> end = COMMIT
            :: else -> fence[me] = true; end = ROLLBACK
            fi
        }
#endif
    fi;
#endif
    may_be_killed();
    atomic {
        if
        :: began == RESTORES && store.op + 1 < VERSIONS -> append(me, end)
        :: else
        fi
    };
waits:
    atomic { store.fact[me] != 0 || began != RESTORES -> goto killed }
}
#endif

/* Settles and publishes; it is started again whenever it dies. */
proctype publisher() {
    byte mark, through, topic, version, each, began;
    byte facts[TRANSACTIONS];
killed:
    began = RESTORES; topic = 0; mark = 0; through = 0;
    d_step { each = 0; do :: each < TRANSACTIONS -> facts[each] = 0; each++ :: else -> break od; each = 0 };
end_idle:
    if
    :: store.settled_mark < store.op -> goto settle
    :: store.topic_mark[0] < store.settled_mark -> topic = 0; goto publish
    :: store.topic_mark[TOPICS - 1] < store.settled_mark -> topic = TOPICS - 1; goto publish
#ifdef BACK
    :: began != RESTORES -> goto killed
#endif
    fi;

settle:
    mark = store.settled_mark;            /* settled is pinned, and then a version of op is fixed */
    d_step {                              /* what a range of claims says never changes, so one step reads it */
        through = store.op;
        each = 0;
        do
        :: each < TRANSACTIONS && store.half[each] && store.fact[each] == 0 ->
            find_first(each, mark, through, facts[each]);
            each++
        :: each < TRANSACTIONS && !(store.half[each] && store.fact[each] == 0) -> each++
        :: else -> break
        od;
        each = 0
    };
    may_be_killed();
    atomic {                              /* facts and mark: one compare-and-swap on settled */
        if
        :: began != RESTORES || through <= mark || store.settled_mark != mark    /* refused */
        :: else ->
            each = 0;
            do
            :: each < TRANSACTIONS ->
                assert(facts[each] == 0 || store.fact[each] == 0);    /* I10: the first end wins, for good */
                store.fact[each] = store.fact[each] + facts[each];
                each++
            :: else -> break
            od;
            each = 0;
            store.settled_mark = through
        fi
    };
    goto killed;

publish:
    mark = store.topic_mark[topic];       /* the topic is pinned, and then facts are read */
    d_step {
        through = store.settled_mark;
        each = 0;
        do
        :: each < TRANSACTIONS -> facts[each] = store.fact[each]; each++
        :: else -> break
        od;
        each = 0
    };
    may_be_killed();
    atomic {                              /* rows, offsets and mark: one compare-and-swap on the topic */
        if
        :: began != RESTORES || through <= mark
#ifndef WITHOUT_SWAP
        :: store.topic_mark[topic] != mark
#endif
        :: else ->
            version = mark + 1;
            do
            :: version <= through && facts[store.about[version]] == version && store.kind[version] == COMMIT ->
                each = store.about[version];
                ROWS(topic, each) = ROWS(topic, each) + 1;
                assert(store.half[each]);                 /* I4: nothing from nowhere */
                assert(ROWS(topic, each) == 1);           /* I3: visible once */
                assert(version > store.last[topic]);      /* I14: in the order of the claims */
#if !defined(PUBLISH) && !defined(ORDINARY)
                assert(marker[each] && !fence[each]);     /* I12: nothing is visible without its change */
#endif
                store.last[topic] = version;
                version++
            :: version <= through && !(facts[store.about[version]] == version && store.kind[version] == COMMIT) -> version++
            :: else -> break
            od;
            version = 0; each = 0;
            store.topic_mark[topic] = through
        fi
    };
    goto killed
}

#ifdef BACK
Store copy;
#define COPY(to, from) \
    to.half[0] = from.half[0]; to.op = from.op; to.fact[0] = from.fact[0]; \
    to.settled_mark = from.settled_mark; to.topic_mark[0] = from.topic_mark[0]; to.last[0] = from.last[0]; \
    to.rows[0] = from.rows[0]; \
    to.kind[1] = from.kind[1]; to.kind[2] = from.kind[2]; to.kind[3] = from.kind[3]

/* Copies the store at some moment, and puts the copy in its place at a later one. */
proctype operator() {
    d_step { COPY(copy, store) };
    atomic {
        excused[0] = (store.op > 0 || told[0] != 0);
        COPY(store, copy);
        store_restores++
    }
}
#endif

/* When nothing moves any more: what callers were told, what readers see, what the user's table says. */
proctype audit() {
    byte each, version;
    mtype end;
    timeout;
    atomic {
        do
        :: each < TRANSACTIONS && !store.half[each] -> each++     /* it went back with the store */
        :: each < TRANSACTIONS && store.half[each] ->
            read_end(each, end);
            assert(!(marker[each] && fence[each]));               /* I12: never a fence and a change */
            assert(end != NONE);                                  /* I9: every transaction ends */
#ifndef PUBLISH
            assert(told[each] == 0 || excused[each] || told[each] == end);        /* I7: an acknowledged end is the end */
#endif
#if !defined(PUBLISH) && !defined(ORDINARY)
            assert((end == COMMIT) == marker[each]);              /* I12: atomic with the business */
#endif
            assert(ROWS(0, each) == (end == COMMIT -> 1 : 0));    /* I1, I2: shown if committed, and only then */
            assert(ROWS(TOPICS - 1, each) == ROWS(0, each));      /* I13: all topics share the fate */
            each++
        :: else -> break
        od
    }
}

init {
    atomic {
#ifdef PUBLISH
        run claimer(0, COMMIT); run claimer(0, ROLLBACK); run claimer(1, COMMIT); run publisher();
#else
        run producer(0); run check(0);
#endif
#ifdef BACK
        run operator();
#else
        run publisher();
#endif
        run publisher();
        run audit()
    }
}
