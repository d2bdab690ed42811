/* A transaction with a key, tried by two processes, while its topic becomes typed
 * (txmq/producer/keyed.py, txmq/producer/body_check.py, txmq/ops/admin/topics.py).
 *
 * The body of both tries does not fit the new schema. A producer looks for the halves, appends them
 * by a compare-and-swap that only one of two tries wins, and looks at the schema before and after. An
 * operator looks for open halves before he sets the schema and after it, and takes it back if there
 * are any.
 *
 * run KEYED                      : holds
 * run KEYED WITHOUT_A8           : violates typed
 * run KEYED TRIED_A8             : violates I12
 * run KEYED WITHOUT_SWAP         : violates I3
 */
#include "table.pml"

mtype = { NONE, COMMIT, ROLLBACK };

byte halves;              /* how often the messages were appended */
byte scope;               /* the mark of the keys: it rises with each append */
bool is_typed;            /* the setting of the topic */
bool is_refused;          /* the operator was told that open halves name the topic */
bool is_done;             /* the operator was told that the topic is typed */
bool was_acknowledged;    /* prepare() returned to one of the tries, so that its local transaction runs */
bool marker;              /* and took place */
bool is_late;             /* the halves came after the operator was told that the topic is typed */
mtype outcome = NONE;            /* the first claim in op */

#define IS_OPEN (halves > 0 && outcome == NONE)

proctype producer(byte me) {
    byte base;
    bool looked_typed, is_own, answer_is_lost, is_found;
    looked_typed = is_typed;              /* before */
    if
    :: looked_typed -> goto killed        /* refused: nothing is written */
    :: else
    fi;
again:
    atomic { base = scope; is_found = (halves > 0) };
    if
    :: is_found -> goto joined            /* an earlier try, or the own one whose answer was lost */
    :: else
    fi;
    atomic {                              /* the halves: one compare-and-swap on the scope */
        if
#ifndef WITHOUT_SWAP
        :: scope != base -> goto again
        :: scope == base ->
#else
        :: true ->
#endif
            scope++; halves++; is_late = is_done;
            assert(halves == 1);          /* I3: one key, one set of messages */
            choose(answer_is_lost);
            if
            :: answer_is_lost -> goto again
            :: else -> is_own = true
            fi
        fi
    };
joined:
    may_be_killed();
    if                                    /* after: asked for every try that was not refused */
#ifdef WITHOUT_A8
    :: is_own && is_typed -> goto changed /* only for what this try knows that it appended */
#else
    :: is_typed -> goto changed
#endif
    :: else
    fi;
    may_be_killed();
    if
    :: atomic { outcome == ROLLBACK -> goto killed }      /* told */
    :: atomic { outcome != ROLLBACK -> was_acknowledged = true }
    fi;
    atomic {                              /* the local transaction, once whoever tries, unless it is fenced */
        if
        :: outcome != ROLLBACK -> marker = true
        :: else -> goto killed
        fi
    };
    may_be_killed();
    atomic { outcome = (outcome == NONE -> COMMIT : outcome) };
    goto killed;
changed:                                  /* TopicChangedError; nothing is acknowledged */
#ifdef TRIED_A8
    /* What was appended is rolled back at once. But another try may have joined it, and be told. */
    atomic { outcome = (is_own && outcome == NONE -> ROLLBACK : outcome) };
#endif
    /* The check ends the transaction: it knows whether a local transaction took place. */
killed:
    base = 0
}

/* Asks about open halves: committed if the local transaction took place, else fenced and rolled back. */
proctype check() {
end:
    do
    :: atomic { IS_OPEN && !marker -> outcome = ROLLBACK }
    :: atomic { IS_OPEN && marker -> outcome = COMMIT }
    od
}

proctype operator() {
    if
    :: IS_OPEN -> is_refused = true; goto told
    :: else
    fi;
    is_typed = true;
    if                                    /* a producer was faster */
    :: IS_OPEN -> is_typed = false; is_refused = true
    :: else -> is_done = true
    fi;
told:
    skip
}

proctype audit() {
    timeout;
    assert(!marker || outcome == COMMIT);     /* I12: no change without its message */
    assert(!is_late || outcome != COMMIT)     /* typed: a topic with a schema shows no other body */
}

init {
    atomic { run producer(0); run producer(1); run check(); run operator(); run audit() }
}
