/* A commit file: put, look, checkpoint, clean-up (txmq/delta/commit_writer.py).
 *
 * A writer finds the newest commit, puts the next file if nobody has, and looks once more at the
 * commit before it. It may sleep between any two of these steps. Maintenance makes checkpoints and
 * removes commits before them. Readers begin at the newest checkpoint and follow the files after it.
 *
 * run COMMIT                     : holds
 * run COMMIT WITHOUT_B1          : violates writable
 * run COMMIT TRIED_B1            : violates I6
 * run COMMIT WITHOUT_MARK        : violates I3
 * run COMMIT WITHOUT_STAMP       : violates I6
 */
#include "table.pml"

#define WRITERS 2
#define VERSIONS 7        /* files 1 to 6: the table, two commits of each writer, and one of others */
#define OTHERS 2          /* commits of writers that never sleep */

byte file[VERSIONS];      /* who put the commit file of a version: writer + 1; 0 where none is */
#define OTHER 9
#ifdef WITHOUT_STAMP
#define IS_SAME(version) (file[version] != 0)
#else
#define IS_SAME(version) (file[version] == stamp)
#endif
byte checkpoint = 1;      /* the version of the newest checkpoint */
byte in_checkpoint[WRITERS];  /* how many commits of each writer it holds */
bool acknowledged[WRITERS];

/* The newest version that readers find: they follow from the checkpoint up to the first gap. */
inline find_newest(version) {
    d_step {
        version = checkpoint;
        do
        :: version + 1 < VERSIONS && file[version + 1] != 0 -> version++
        :: else -> break
        od
    }
}

/* How many commits of a writer readers count. */
inline count_of(writer, count) {
    d_step {
        at = checkpoint + 1;
        count = in_checkpoint[writer];
        do
        :: at < VERSIONS && file[at] != 0 ->
            if
            :: file[at] == writer + 1 -> count++
            :: else
            fi;
            at++
        :: else -> break
        od;
        at = 0
    }
}

proctype writer(byte me) {
    byte base, stamp, own, count, at;          /* a stamp tells a file from another of its version */
opened:
    atomic {
        find_newest(base);
        stamp = file[base];
        assert(stamp != 0)                    /* writable: a commit can follow the newest one */
    };
    count_of(me, count);
#ifdef WITHOUT_MARK
    count = 0;                                /* what was refused is made again without a look */
#endif
    if
    :: count > 0 -> goto done                 /* an earlier try had landed: found by its mark */
    :: else
    fi;
put:
    own = base + 1;
    if
    :: own >= VERSIONS -> goto killed         /* the bound of this model */
    :: else
    fi;
    atomic {                                  /* put-if-absent: the storage's compare-and-swap */
        if
        :: file[own] == 0 -> file[own] = me + 1; goto look
        :: else
        fi
    };
    if                                        /* somebody was faster: follow, if the base is still there */
    :: atomic { IS_SAME(base) -> base++; stamp = file[base]; goto put }
    :: !IS_SAME(base) -> goto opened
    fi;
look:
    if
    :: IS_SAME(base) -> base = 0; stamp = 0; own = 0; goto done
    :: else
    fi;
    /* The commit before the own one is gone: clean-up has passed it, so a checkpoint is at or above
     * the own version. (Or another sleeper has put its own file there, which the stamp tells.) Nobody can tell whether that checkpoint counts the own commit (put in time)
     * or not (put after the clean-up). So nothing is deleted, and the mark is looked for. */
#ifdef WITHOUT_B1
    if
    :: file[own] == me + 1 -> file[own] = 0
    :: else
    fi;
#endif
#ifdef TRIED_B1
    if
    :: checkpoint >= own && file[own] == me + 1 -> goto done
    :: else
    fi;
#endif
    goto opened;
done:
    count_of(me, count);
    assert(count > 0);                        /* I6: what is acknowledged counts */
    assert(count == 1);                       /* I3: and counts once */
    acknowledged[me] = true;
    count = 0;
killed:
    skip
}

/* Other writers; they never sleep. */
proctype others() {
    byte newest, left = OTHERS;
    do
    :: atomic { left > 0 ->
            find_newest(newest);
            if
            :: newest + 1 < VERSIONS -> file[newest + 1] = OTHER
            :: newest + 1 == VERSIONS
            fi;
            newest = 0; left-- }
    :: left == 0 -> break
    od
}

proctype maintenance() {
    byte newest, counts[WRITERS], at, cleaned = 1;
end:
    do
    :: atomic { checkpoint + 1 < VERSIONS && file[checkpoint + 1] != 0 ->
            find_newest(newest);              /* read a version, write its checkpoint */
            count_of(0, counts[0]);
            count_of(1, counts[1]);
            in_checkpoint[0] = counts[0]; in_checkpoint[1] = counts[1];
            checkpoint = newest; newest = 0; counts[0] = 0; counts[1] = 0 }
    :: atomic { cleaned < checkpoint -> file[cleaned] = 0; cleaned++ }   /* before it, oldest first */
    od
}

init {
    atomic {
        file[1] = OTHER;
        run writer(0); run writer(1); run others(); run maintenance()
    }
}
