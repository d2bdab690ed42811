"""How far a queue is done, as a few marks say it, against a set of all that was done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from txmq.user_data.delta_inbox import QueueProgress

OFFSETS = some.integers(0, 12)
# Up to where the queue itself came, and what retries did meanwhile.
STEPS = some.lists(some.tuples(OFFSETS, some.sets(OFFSETS, max_size=3)), max_size=12)


@given(STEPS)
def test_marks_say_what_a_set_of_all_that_was_done_says(steps: list[tuple[int, set[int]]]) -> None:
    progress, passed, done, most_ahead = QueueProgress("q", 0, ()), 0, set[int](), 0
    for next_offset, retried in steps:
        progress = progress.after(next_offset, retried)
        passed, done = max(passed, next_offset), done | retried
        while passed in done:
            passed += 1
        ahead = {offset for offset in done if offset > passed}
        most_ahead = max(most_ahead, len(ahead))

        assert (progress.next_offset, progress.ahead) == (passed, ahead)
        assert len(progress.slots) == most_ahead


@given(STEPS)
def test_what_a_commit_sets_makes_the_progress_of_the_one_before(
    steps: list[tuple[int, set[int]]],
) -> None:
    progress, marks = QueueProgress("q", 0, ()), dict[str, int]()
    for next_offset, retried in steps:
        before, progress = progress, progress.after(next_offset, retried)
        set_now = progress.marks_since(before)
        marks |= set_now

        assert "q" in set_now
        assert all(marks[f"q/{slot}"] == offset for slot, offset in enumerate(progress.slots))
        assert marks == {"q": progress.next_offset} | {
            f"q/{slot}": offset for slot, offset in enumerate(progress.slots)
        }
