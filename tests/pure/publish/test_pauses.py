"""Pauses rest on what one process has seen, never on a time stamp of another."""

from __future__ import annotations

from txmq.publish.progress import RetryPauses


def test_what_was_never_tried_is_due_at_once() -> None:
    assert RetryPauses(30.0).is_due("topic", attempts=5, now_ms=0)


def test_the_pause_doubles_with_each_attempt_up_to_32_intervals() -> None:
    pauses = RetryPauses(1.0)
    pauses.tried("topic", 0)

    for attempts, pause_ms in ((1, 1_000), (2, 2_000), (3, 4_000), (99, 32_000)):
        assert not pauses.is_due("topic", attempts, pause_ms - 1)
        assert pauses.is_due("topic", attempts, pause_ms)


def test_a_clock_that_went_back_ends_a_pause() -> None:
    pauses = RetryPauses(1.0)
    pauses.tried("topic", 10_000)

    assert pauses.is_due("topic", 1, 9_999)


def test_what_has_succeeded_is_due_at_once_when_it_fails_again() -> None:
    pauses = RetryPauses(1.0)
    pauses.tried("topic", 0)
    pauses.forget("topic")

    assert pauses.is_due("topic", 1, 0)
