"""The rules of the register of brokers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txmq.store.brokers import ENTRIES_MAX, GONE_MS, SWEPT_MS, BrokerEntry, Brokers


def entry(seen_ms: int, name: str = "one") -> BrokerEntry:
    return BrokerEntry(name, "0.1.0", ("publisher",), 0, seen_ms)


ENTRIES = st.dictionaries(st.text(max_size=3), st.integers(0, 3 * SWEPT_MS).map(entry), max_size=9)


@given(ENTRIES, st.text(max_size=3), st.integers(0, 3 * SWEPT_MS))
def test_heartbeat_removes_nobody_but_who_is_gone_for_long(
    entries: dict[str, BrokerEntry], broker_id: str, now_ms: int
) -> None:
    after = Brokers(entries).beaten(broker_id, entry(now_ms, "new")).entries

    kept = {
        key
        for key, other in entries.items()
        if now_ms - SWEPT_MS <= other.seen_ms <= now_ms + GONE_MS
    }
    assert set(after) == kept | {broker_id}
    assert after[broker_id].name == "new"
    assert Brokers(after).without(broker_id).entries.keys() == kept - {broker_id}


@given(st.integers(0, 2 * GONE_MS))
def test_broker_is_gone_after_three_missed_minutes(silent_ms: int) -> None:
    assert entry(0).is_gone(silent_ms) == (silent_ms > GONE_MS)


def test_entries_of_the_future_are_gone_and_keep_no_honest_broker_out() -> None:
    ghosts = {str(number): entry(10**13, "ghost") for number in range(ENTRIES_MAX)}
    assert entry(GONE_MS + 1).is_gone(0)
    assert not entry(GONE_MS).is_gone(0)

    brokers = Brokers(ghosts).beaten("a", entry(1)).beaten("b", entry(2))
    assert set(brokers.entries) == {"a", "b"}


def test_brokers_that_die_again_and_again_fill_no_memory() -> None:
    brokers = Brokers({})
    for number in range(2 * ENTRIES_MAX):
        brokers = brokers.beaten(str(number), entry(number))

    assert set(brokers.entries) == {str(number) for number in range(ENTRIES_MAX, 2 * ENTRIES_MAX)}
