"""Spans say the same as the single messages that they stand for."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from txmq.consumer.attempts import Attempts, Span, attempts_of
from txmq.consumer.group import state_of, value_of
from txmq.consumer.group_rules import SHARED, GroupSettings, GroupState, TopicQueue
from txmq.consumer.simple import becomes_retry
from txmq.store.config import Config

QUEUE = TopicQueue("order-paid", 3)
TIMES = st.dictionaries(st.integers(0, 60), st.integers(1, 4), min_size=1, max_size=40)


@given(TIMES, st.integers(61, 99))
def test_spans_stand_for_single_messages(times: dict[int, int], end: int) -> None:
    attempts = attempts_of(times, end)

    assert attempts.times() == times
    assert attempts.offset == min(times)
    assert attempts.acknowledged() == end - min(times) - len(times)
    assert attempts.are_sound(min(times), times_max=4)
    assert [attempts.times_of(at) for at in range(end)] == [times.get(at, 0) for at in range(end)]


@given(TIMES, st.integers(61, 99))
def test_spans_are_as_few_as_there_can_be(times: dict[int, int], end: int) -> None:
    spans = attempts_of(times, end).spans
    assert all(
        (before.end, before.times) != (after.start, after.times)
        for before, after in pairwise(spans)
    )


@given(
    times=TIMES, end=st.integers(61, 99), is_orderly=st.booleans(), is_acknowledged=st.booleans()
)
def test_group_is_read_as_it_was_written(
    *, times: dict[int, int], end: int, is_orderly: bool, is_acknowledged: bool
) -> None:
    settings = GroupSettings(
        subscription={"order-paid": "*"}, is_orderly=is_orderly, is_acknowledged=is_acknowledged
    )
    state = GroupState(
        settings=settings, queues={"order-paid": 4}, offsets={SHARED: {QUEUE: min(times)}},
        attempts={QUEUE: attempts_of(times, end)},
    )  # fmt: skip
    assert state_of(value_of(state)) == state


spans = st.lists(
    st.tuples(st.integers(-2, 9), st.integers(-2, 9), st.integers(-1, 9)).map(lambda t: Span(*t)),
    max_size=3,
)


@given(st.integers(-2, 12), spans, st.integers(-2, 9))
def test_what_is_taken_for_sound_can_be_gone_on_with(
    end: int, own: list[Span], offset: int
) -> None:
    attempts = Attempts(end, tuple(own))
    if attempts.are_sound(offset, times_max=8):
        assert attempts.offset == offset == min(attempts.times())
        assert max(attempts.times()) < end
        assert set(attempts.times().values()) <= set(range(1, 9))
        assert attempts_of(attempts.times(), end).times() == attempts.times()


@given(failures=st.integers(0, 20), earlier=st.integers(0, 20), is_orderly=st.booleans())
def test_message_stays_in_its_place_until_it_came_there_often_enough(
    *, failures: int, earlier: int, is_orderly: bool
) -> None:
    settings = Config(max_reconsume_times=5, redeliver_in_place_max=2).of_consumer_group("g")
    leaves = becomes_retry(failures, failures + earlier, settings, is_orderly=is_orderly)

    if failures == 0:
        assert not leaves
    elif failures + earlier > 5 or (failures > 2 and not is_orderly):
        assert leaves
    else:
        assert not leaves
