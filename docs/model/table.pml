/* What all models share: how a process meets a Delta table, and what may happen to it.
 *
 * A commit is the only atomic step. Each is written as one `atomic` block that begins with the
 * comparison: it goes on top of what its writer has read, or it is refused. A read of one version
 * of one table is one step too. Between two steps anything may happen, for any length of time.
 *
 * A lost answer needs no step of its own where the writer looks for its mark and goes on: the
 * commit is there either way. Models where the difference matters say `answer_is_lost`.
 */

/* A process dies here, or goes on. One that is started again begins at its label `killed`. */
inline may_be_killed() {
    if
    :: true
    :: goto killed
    fi
}

/* Something that may be so or not. */
inline choose(answer) {
    if
    :: answer = true
    :: answer = false
    fi
}
