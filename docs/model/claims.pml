/* Which claims count: signatures and lives (txmq/store/op.py, txmq/message/lifecycle.py).
 *
 * KEYS: the key of a group is changed from old to new. Each process is started again twice, at any
 * moment and in any order: old; then new and old, of which the first one signs; then new alone, once
 * every process knows new and nothing that old signed waits. A producer commits, somebody else rolls
 * back, two brokers settle. FORGER: also a claim that no key of the group has signed, and an operator
 * who says so when no process knows its key.
 *
 * LIVES: a transaction is discarded and resumed, its producer commits when it likes, and somebody
 * without the key copies a signed row. SEEN and LIFE are two ways to mend.
 *
 * run KEYS                       : holds
 * run KEYS FORGER                : holds
 * run KEYS WITHOUT_A2            : violates I10
 * run KEYS WITHOUT_A2_READER     : violates I7
 * run KEYS WITHOUT_A2_REGISTER   : violates I10
 * run LIVES LIFE                 : holds
 * run LIVES SEEN                 : holds
 * run LIVES                      : violates signed
 */
#include "table.pml"

#ifdef KEYS

mtype = { NONE, COMMIT, ROLLBACK, UNKNOWN };
mtype = { OLD, NEW, JUNK };

#define VERSIONS 3        /* of op: version 0 is empty, and two claims */
#define PROCESSES 4       /* 0 a producer, 1 somebody else, 2 and 3 brokers */

mtype kind[VERSIONS], key[VERSIONS];      /* op: the claims about one transaction, and who signed them */
byte op, settled_mark, fact;              /* fact: the version with the claim that took effect; 0 none */
byte aside, settled_count;                /* state/set_aside: the claims that wait; how often settled saw it change */
byte judged[PROCESSES], judged_with[PROCESSES];   /* what a broker could not judge: it tries again when that changes */
bool is_foreign[VERSIONS];                /* an operator's word: nobody's key */
byte settings[PROCESSES];                 /* 0 old, 1 new and old, 2 new */
mtype told[2];

#define SIGNS(at) (at == 0 -> OLD : NEW)
#define KNOWS(at, version) ((key[version] == OLD && at < 2) || (key[version] == NEW && at > 0) || is_foreign[version])
#define COUNTS(version) (key[version] != JUNK)
#define BIT(version) (1 << (version))
#define KNOWN(at) ((KNOWS(at, 1) -> BIT(1) : 0) | (KNOWS(at, 2) -> BIT(2) : 0))
#define NEWER(version) (255 << ((version) + 1))

/* Commit or roll back, and look at what became of it. */
proctype caller(byte me; mtype asked) {
    byte at, version;
    mtype end;
    atomic {                              /* it was started again already, or not yet */
        if
        :: at = 0
        :: at = 1; settings[me] = 1
        fi;
        op++; kind[op] = asked; key[op] = SIGNS(at)
    };
    may_be_killed();
    d_step {                              /* settled, the register, then op */
        end = (fact != 0 -> kind[fact] : NONE);
        version = 1;
        do
        :: end == NONE && version <= op && (version <= settled_mark && (aside & BIT(version)) == 0 || is_foreign[version]) -> version++
        :: end == NONE && version <= op && KNOWS(at, version) && !is_foreign[version] &&
           (version > settled_mark || (aside & BIT(version)) != 0) -> end = kind[version]
        :: end == NONE && version <= op && !KNOWS(at, version) &&
           (version > settled_mark || (aside & BIT(version)) != 0) ->
#if defined(WITHOUT_A2) || defined(WITHOUT_A2_READER)
            version++                     /* what cannot be judged is taken for nothing */
#else
            end = UNKNOWN                 /* an error: signed by a key that this process does not know */
#endif
        :: else -> break
        od;
        version = 0
    };
    told[me] = end;
killed:
    settings[me] = 1
}

proctype broker(byte me) {
    byte mark, through, found, held, count, version;
killed:
end_idle:
    atomic {
        if
        :: settled_mark < op              /* settle the next range */
        :: aside != 0 && (aside != judged[me] || settings[me] != judged_with[me]) -> goto waiting
        fi;
        mark = settled_mark
    };
    d_step {                              /* the register after settled, before which it is written; then op */
        held = aside;
        through = op;
        version = mark + 1;
        do
        :: version <= through && fact == 0 && found == 0 && held != 0 -> held = held | BIT(version); version++
        :: version <= through && fact == 0 && found == 0 && held == 0 ->
            if
            :: KNOWS(settings[me], version) && COUNTS(version) -> found = version
            :: KNOWS(settings[me], version) && !COUNTS(version)
            :: !KNOWS(settings[me], version) ->
#ifndef WITHOUT_A2
                held = BIT(version)       /* set aside: this claim and all that follow it wait */
#else
                skip
#endif
            fi;
            version++
        :: else -> break
        od;
        version = 0
    };
#ifdef WITHOUT_A2_REGISTER
    aside = (aside & KNOWN(settings[me])) | (held & NEWER(mark));     /* drops what it cannot judge */
#else
    aside = aside | (held & NEWER(mark)); /* the register first: one commit */
#endif
    atomic {                              /* facts and mark: a compare-and-swap on settled */
        if
        :: settled_mark == mark && mark < through ->
            fact = (found != 0 -> found : fact);
            settled_count = (held != 0 -> settled_count + 1 : settled_count);
            settled_mark = through
        :: else
        fi;
        mark = 0; through = 0; found = 0; held = 0;
        goto killed
    };

waiting:                                  /* try again what is set aside */
    atomic {
        count = settled_count;
        held = aside;
        version = 1;
        do
        :: version < VERSIONS && ((held & BIT(version)) == 0 || is_foreign[version]) -> version++
        :: else -> break
        od;
        if
        :: version < VERSIONS && KNOWS(settings[me], version) -> found = version
        :: version < VERSIONS && !KNOWS(settings[me], version) -> judged[me] = held; judged_with[me] = settings[me]; held = 0
        :: else
        fi;
        version = 0
    };
    atomic {                              /* the fact: a compare-and-swap on the count of the register */
        if
        :: found != 0 && fact == 0 && settled_count == count -> fact = found; settled_count++
        :: found != 0 && fact == 0 && settled_count != count -> held = 0
        :: else
        fi;
        found = 0; count = 0
    };
    atomic {                              /* taken out of the register, unless it has changed */
        aside = (held != 0 && aside == held -> 0 : aside);
        held = 0;
        goto killed
    }
}

#define NOTHING_OLD_WAITS (settings[0] > 0 && settings[1] > 0 && settings[2] > 0 && settings[3] > 0 && \
                           aside == 0 && settled_mark == op)

/* Starts processes again with the next settings, in any order. */
proctype operator() {
    byte each;
end:
    do
    :: settings[2] == 0 -> settings[2] = 1
    :: settings[3] == 0 -> settings[3] = 1
    :: atomic { NOTHING_OLD_WAITS && settings[2] == 1 -> settings[2] = 2 }
    :: atomic { NOTHING_OLD_WAITS && settings[3] == 1 -> settings[3] = 2 }
#ifdef FORGER
    :: atomic { (aside & BIT(1)) != 0 && key[1] == JUNK && !is_foreign[1] -> is_foreign[1] = true; judged[2] = 0; judged[3] = 0 }
    :: atomic { (aside & BIT(2)) != 0 && key[2] == JUNK && !is_foreign[2] -> is_foreign[2] = true; judged[2] = 0; judged[3] = 0 }
#endif
    od
}

proctype audit() {
    byte first;
    timeout;
    atomic {
        first = 1;
        do
        :: first <= op && !COUNTS(first) -> first++
        :: else -> break
        od;
        assert(fact != 0 || first > op);                          /* I1: what the group has claimed is settled */
        assert(fact == (first > op -> 0 : first));                /* I10: its first claim is the end */
        assert(told[0] != COMMIT || kind[fact] == COMMIT);        /* I7: what commit() returned */
        assert(told[1] != ROLLBACK || kind[fact] == ROLLBACK)     /* I7: what rollback() returned */
    }
}

#ifdef FORGER
proctype forger() {
    atomic { op++; kind[op] = ROLLBACK; key[op] = JUNK }
}
#endif

init {
    atomic {
        run caller(0, COMMIT); run broker(2); run broker(3); run operator();
#ifdef FORGER
        run forger(); settings[1] = 1;
#else
        run caller(1, ROLLBACK);
#endif
        run audit()
    }
}

#else /* LIVES */

mtype = { PENDING, DISCARDED, COMMITTED };

#define ROWS 4

mtype state = PENDING;
byte life;                                /* how often it was resumed */
byte rows;                                /* COMMIT rows in op that the group's key has signed */
byte life_in[ROWS];                       /* the life that each of them names */
mtype told;

/* A COMMIT comes to op: what the fold makes of it. */
#ifdef LIFE
#define FITS(row) (state == PENDING && life_in[row] == life)      /* a signed end names its life */
#else
#define FITS(row) (state == PENDING)                              /* an end fits any life */
#endif

proctype producer() {
    byte known, tries = 2;
    do
    :: tries > 0 ->
        known = life;                     /* from the claims that it saw pass by */
        may_be_killed();
        atomic {
            life_in[rows] = known; rows++;
            if
            :: FITS(rows - 1) -> state = COMMITTED
            :: else
            fi
        };
        told = state;                     /* the look after the claim */
        tries--
    :: told == COMMITTED || tries == 0 -> break
    od;
killed:
    known = 0
}

proctype check() {
    byte known, rounds = 2;
    do
    :: rounds > 0 ->
        known = life;
        atomic {                          /* DISCARD names the life that was asked about */
            if
            :: state == PENDING && life == known -> state = DISCARDED
            :: else
            fi
        };
        rounds--
    :: rounds == 0 -> break
    od
}

proctype operator() {
end:
    if
    :: atomic { state == DISCARDED -> state = PENDING; life++ }   /* RESUME */
    :: atomic { state == COMMITTED -> skip }
    fi
}

proctype forger() {
    byte row;
end:
    atomic { rows > 0 -> skip };
    if
    :: row = 0
    :: atomic { rows > 1 -> row = 1 }
    fi;
#ifdef SEEN
    skip                                  /* a signature that was seen before is no claim */
#else
    atomic {                              /* the copied row is a claim like any other */
        assert(!FITS(row));               /* signed: what no holder of the key has appended has no effect */
        skip
    }
#endif
}

init {
    atomic { run producer(); run check(); run operator(); run forger() }
}
#endif
