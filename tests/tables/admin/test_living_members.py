"""Who may live is seen by the storage's time: no machine's clock takes a group from its members."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from txmq import Config, ConsumerGroups, Message, PullConsumer, Store, TransactionProducer
from txmq.consumer.group import group_in
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.errors import ConsumerGroupInUseError
from txmq.testing import WrongClock

BILLING, TOPIC = "billing", "order-paid"
Act = Callable[[ConsumerGroups], object]


def deletes(groups: ConsumerGroups) -> object:
    return groups.delete(BILLING, apply=True)


def resets(groups: ConsumerGroups) -> object:
    return groups.reset_offsets(BILLING, TOPIC, ConsumeFromWhere.FIRST_OFFSET, apply=True)


ACTS = [deletes, resets]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    # So long that no member renews its lease meanwhile.
    made = Store.create(tmp_path / "store", Config(consumer_lease_s=1200.0))
    with TransactionProducer(made, producer_group="orders") as producer:
        producer.send(Message(TOPIC, b"a"))
    return made


@pytest.fixture
def member(store: Store) -> Iterator[PullConsumer]:
    with PullConsumer(store, consumer_group=BILLING, topics=TOPIC) as made:
        yield made


def an_hour_ago(store: Store, group: str = BILLING) -> None:
    """Nobody has changed the group for an hour, by the times of its files."""
    for path in Path(store.location).glob(f"state/group_{group}/_delta_log/*.json"):
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_clock_of_the_operator_takes_no_group_from_a_member_that_lives(
    store: Store, member: PullConsumer, act: Act, ahead_s: float
) -> None:
    groups = ConsumerGroups(store, clock=WrongClock(ahead_s))

    for _ in range(2):
        with pytest.raises(ConsumerGroupInUseError) as refused:
            act(groups)

    assert refused.value.members == (member.member_id,)
    assert len(group_in(store, BILLING).read().members) == 1


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0, 0.0])
@pytest.mark.usefixtures("member")
def test_member_whose_renewal_is_an_hour_old_in_the_storage_is_gone(
    store: Store, act: Act, ahead_s: float
) -> None:
    an_hour_ago(store)

    act(ConsumerGroups(store, clock=WrongClock(ahead_s)))


@pytest.mark.usefixtures("member")
def test_clock_of_the_member_makes_nobody_live(store: Store) -> None:
    with PullConsumer(
        store, consumer_group="audit", topics=TOPIC, clock=WrongClock(86_400.0)
    ) as ahead:
        ahead.poll(1, timeout_s=0)
        an_hour_ago(store, "audit")

        assert ConsumerGroups(store).delete("audit", apply=True).is_written
