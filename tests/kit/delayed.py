"""Stores with delayed messages, written row by row, and what can go wrong with them.

Each bug has a transaction of its own, so that several can be planted in one store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from tests.kit.delay_world import TOPIC, DelayWorld
from tests.kit.stores import LONG_AFTER, START, Half, HandMadeStore, Op, Settled, transaction_id
from txmq.message.message import Message

PAUSE_S = 60
DUE = START + timedelta(seconds=PAUSE_S)
LATE = DUE + timedelta(seconds=5)
SHOWN_LATE = {"store_timestamp": LATE}


def delayed(number: int, *topics: str, first: int = 0, **changes: Any) -> list[Half]:
    """The halves of a transaction; those from `first` on wait for PAUSE_S after the COMMIT."""
    pause = {"delay_s": PAUSE_S, **changes}
    return [
        Half(
            number,
            sequence,
            topic,
            len(topics) if sequence == 0 else None,
            changes=pause if sequence >= first else {},
        )
        for sequence, topic in enumerate(topics)
    ]


def deliver(
    number: int,
    *sequences: int,
    at: datetime = LATE,
    source: str = "delay",
    kind: str = "DELIVER",
    **fields: Any,
) -> Op:
    """A claim of the delay service; without sequences it means all."""
    named = {"sequences": list(sequences) or None, "op_timestamp": at}
    return Op(number, kind, source=source, changes=named, **fields)


def recall(number: int, *sequences: int) -> Op:
    return deliver(number, *sequences, at=START, source="producer", kind="RECALL")


def committed(made: HandMadeStore, *halves: Half, waiting: Sequence[Half] | None = None) -> int:
    """Halves with their COMMIT, settled; `waiting` are in the schedule, all of them if left out."""
    made.prepare(*halves)
    version = made.claim(Op(halves[0].number, "COMMIT"))
    made.settle(Settled(halves[0].number, "COMMITTED", version), mark=version)
    rows = halves if waiting is None else waiting
    if rows:
        made.schedule(*rows, op_version=version, due=DUE)
    return version


def ended(made: HandMadeStore, *claims: Op, state: str = "DELIVERED") -> int:
    """One commit of claims that take effect as they are, settled."""
    version = made.claim(*claims)
    facts = [
        Settled(claim.number, state, version, ordinal, sequences=claim.changes["sequences"])
        for ordinal, claim in enumerate(claims)
    ]
    made.settle(*facts, mark=version)
    return version


def shown(made: HandMadeStore, half: Half, version: int, **changes: Any) -> None:
    made.publish(str(half.topic), half, op_version=version, changes={**SHOWN_LATE, **changes})


def delayed_store(location: str) -> HandMadeStore:
    """Every life of a delayed message, and nothing wrong.

    Transactions: 1 shown at once and delivered, 2 delivered by two claims of one commit, 3 recalled
    and still waiting, 4 due before its COMMIT and delivered at once, 5 rolled back, 6 open,
    7 discarded, 8 ordinary, 9 ordinary and never acknowledged, 13, 10 and 11 of one key, which
    moved to another queue while 13 waited, 12 delivered as a whole, by the second of three claims,
    and too late recalled.
    """
    made = HandMadeStore(location)
    _first_lives(made)
    _without_delay(made)
    _keys(made)
    _claimed_again_and_again(made)
    return made


def _first_lives(made: HandMadeStore) -> None:
    one, two = delayed(1, "orders", "orders", first=1), delayed(2, "orders", "stock")
    three = delayed(3, "orders", "orders")
    past = START - timedelta(days=1)
    four = Half(4, 0, "orders", 1, changes={"deliver_timestamp": past})
    first = committed(made, *one, waiting=one[1:])
    made.publish("orders", one[0], op_version=first)
    committed(made, *two)
    committed(made, *three)
    version = committed(made, four, waiting=())
    made.schedule(four, op_version=version, due=past)
    ended(made, recall(3, 0), state="RECALLED")
    both = ended(made, deliver(2, 1), deliver(2, 0), deliver(4, 0), deliver(1, 1))
    shown(made, two[0], both)
    shown(made, four, both)
    shown(made, one[1], both)
    made.publish("stock", two[1], op_version=both, changes=SHOWN_LATE)


def _without_delay(made: HandMadeStore) -> None:
    others = {number: delayed(number, "orders") for number in (5, 6, 7)}
    for rows in others.values():
        made.prepare(*rows)
    made.prepare(*(Half(n, 0, "orders", 1, changes={"ordinary": True}) for n in (8, 9)))
    unasked = Op(9, "ROLLBACK", source="check", changes={"op_timestamp": LONG_AFTER})
    version = made.claim(
        Op(5, "ROLLBACK"), Op(7, "UNKNOWN", life=0, check_times=1), Op(7, "DISCARD", life=0),
        Op(8, "COMMIT"), unasked,
    )  # fmt: skip
    made.settle(
        Settled(5, "ROLLED_BACK", version), Settled(7, "DISCARDED", version, 2),
        Settled(8, "COMMITTED", version, 3),
        Settled(9, "ROLLED_BACK", version, 4, reason="NOT_ACKNOWLEDGED"), mark=version,
    )  # fmt: skip
    made.publish("orders", Half(8, 0, "orders", 1), op_version=version)
    made.bury(*others[7], op_version=version)


def _keys(made: HandMadeStore) -> None:
    own = {"sharding_key": "key", "delay_s": PAUSE_S}
    first = Half(13, 0, "orders", 1, queue=0, changes=own)
    committed(made, first)
    for number, queue in ((10, 0), (11, 1)):
        half = Half(number, 0, "orders", 1, queue=queue, changes={"sharding_key": "key"})
        version = committed(made, half, waiting=())
        made.publish("orders", half, op_version=version)
    shown(made, first, ended(made, deliver(13, 0)))


def _claimed_again_and_again(made: HandMadeStore) -> None:
    half = delayed(12, "orders")
    made.prepare(*half)
    early = made.claim(deliver(12, 0))
    version = made.claim(Op(12, "COMMIT"))
    made.settle(Settled(12, "COMMITTED", version), mark=version)
    made.schedule(*half, op_version=version, due=DUE)
    last = made.claim(
        deliver(12, group="strangers"), deliver(12, 5), deliver(12), deliver(12, 0), recall(12)
    )
    made.settle(Settled(12, "DELIVERED", last, 2, sequences=[0]), mark=last)
    shown(made, half[0], last)
    assert early < version < last
    made.publisher_state(last, {})


# --- bugs -----------------------------------------------------------------------------------------


def delivered(made: HandMadeStore, number: int) -> tuple[Half, int]:
    """A message that waited for its time and came, and the version of its DELIVER."""
    (half,) = delayed(number, "orders")
    committed(made, half)
    version = ended(made, deliver(number, 0))
    shown(made, half, version)
    return half, version


def waiting(made: HandMadeStore, number: int, **changes: Any) -> Half:
    """A message in the schedule, whose row may be another."""
    (half,) = delayed(number, "orders")
    version = committed(made, half, waiting=())
    made.schedule(half, op_version=version, due=DUE, changes=changes)
    return half


def delivered_twice(made: HandMadeStore, number: int) -> None:
    shown(made, *delivered(made, number))


def delivered_after_recall(made: HandMadeStore, number: int) -> None:
    half = waiting(made, number)
    ended(made, recall(number, 0), state="RECALLED")
    shown(made, half, ended(made, deliver(number, 0)))


def recalled_is_shown(made: HandMadeStore, number: int) -> None:
    half = waiting(made, number)
    shown(made, half, ended(made, recall(number, 0), state="RECALLED"))


def delivered_early(made: HandMadeStore, number: int) -> None:
    half = waiting(made, number)
    moment = DUE - timedelta(microseconds=1)
    version = ended(made, deliver(number, 0, at=moment))
    shown(made, half, version, store_timestamp=moment)


def shown_early(made: HandMadeStore, number: int) -> None:
    half = waiting(made, number)
    version = ended(made, deliver(number, 0))
    shown(made, half, version, store_timestamp=DUE - timedelta(seconds=1))


def shown_without_deliver(made: HandMadeStore, number: int) -> None:
    half = waiting(made, number)
    version = made.claim(Op(number, "UNKNOWN"))
    made.settle(mark=version)
    shown(made, half, version)


def delivered_by_the_producer(made: HandMadeStore, number: int) -> None:
    half = waiting(made, number)
    shown(made, half, ended(made, deliver(number, 0, source="producer")))


def delivered_by_strangers(made: HandMadeStore, number: int) -> None:
    half = waiting(made, number)
    shown(made, half, ended(made, deliver(number, 0, group="strangers")))


def delivered_to_another_topic(made: HandMadeStore, number: int) -> None:
    half = waiting(made, number)
    version = ended(made, deliver(number, 0))
    made.publish("stock", half, op_version=version, changes=SHOWN_LATE)


def delivered_but_not_shown(made: HandMadeStore, number: int) -> None:
    waiting(made, number)
    ended(made, deliver(number, 0))


def row_names_another_deliver(made: HandMadeStore, number: int) -> None:
    half = waiting(made, number)
    shown(made, half, ended(made, deliver(number, 0)) - 1)


def schedule_row_lost(made: HandMadeStore, number: int) -> None:
    committed(made, *delayed(number, "orders"), waiting=())


def schedule_rows_torn(made: HandMadeStore, number: int) -> None:
    both = delayed(number, "orders", "stock")
    committed(made, *both, waiting=both[:1])


def delivered_but_never_scheduled(made: HandMadeStore, number: int) -> None:
    (half,) = delayed(number, "orders")
    committed(made, half, waiting=())
    shown(made, half, ended(made, deliver(number, 0)))


def schedule_row_doubled(made: HandMadeStore, number: int) -> None:
    (half,) = delayed(number, "orders")
    committed(made, half, waiting=[half, half])


def scheduled_under_another_day(made: HandMadeStore, number: int) -> None:
    waiting(made, number, due_date=date(2026, 1, 2))


def scheduled_for_another_time(made: HandMadeStore, number: int) -> None:
    waiting(made, number, deliver_timestamp=DUE + timedelta(seconds=1))


def scheduled_with_another_body(made: HandMadeStore, number: int) -> None:
    waiting(made, number, body=b"another")


def scheduled_under_another_commit(made: HandMadeStore, number: int) -> None:
    waiting(made, number, life=1)


def scheduled_though_rolled_back(made: HandMadeStore, number: int) -> None:
    (half,) = delayed(number, "orders")
    made.prepare(half)
    version = made.claim(Op(number, "ROLLBACK"))
    made.settle(Settled(number, "ROLLED_BACK", version), mark=version)
    made.schedule(half, op_version=version, due=DUE)


def scheduled_without_a_delay(made: HandMadeStore, number: int) -> None:
    half = Half(number, 0, "orders", 1)
    made.publish("orders", half, op_version=committed(made, half))


def deliver_is_not_settled(made: HandMadeStore, number: int) -> None:
    half = waiting(made, number)
    version = made.claim(deliver(number, 0))
    made.settle(mark=version)
    shown(made, half, version)


def recall_is_not_settled(made: HandMadeStore, number: int) -> None:
    waiting(made, number)
    made.claim(recall(number, 0))


def delivery_settled_without_a_claim(made: HandMadeStore, number: int) -> None:
    waiting(made, number)
    version = made.claim(Op(number, "UNKNOWN"))
    made.settle(Settled(number, "DELIVERED", version, sequences=[0]), mark=version)


def delivery_settled_for_too_many(made: HandMadeStore, number: int) -> None:
    both = delayed(number, "orders", "orders")
    committed(made, *both)
    version = made.claim(deliver(number, 0))
    made.settle(Settled(number, "DELIVERED", version, sequences=[0, 1]), mark=version)
    shown(made, both[0], version)


def delivery_settled_twice(made: HandMadeStore, number: int) -> None:
    _, version = delivered(made, number)
    made.settle(Settled(number, "DELIVERED", version, sequences=[0]), mark=version)


def commit_settled_for_single_messages(made: HandMadeStore, number: int) -> None:
    (half,) = delayed(number, "orders")
    made.prepare(half)
    version = made.claim(Op(number, "COMMIT"))
    made.settle(Settled(number, "COMMITTED", version, sequences=[0]), mark=version)
    made.schedule(half, op_version=version, due=DUE)


def key_torn_over_queues(made: HandMadeStore, number: int) -> None:
    """The last of three messages comes back to the first one's queue."""
    keyed = {"sharding_key": f"key of {number}"}
    rows = [
        Half(number, sequence, "orders", 3 if sequence == 0 else None, queue=sequence % 2,
             changes=keyed)
        for sequence in range(3)
    ]  # fmt: skip
    version = committed(made, *rows, waiting=())
    made.publish("orders", *rows, op_version=version)


def waits_long_after_its_time(made: HandMadeStore, number: int) -> None:
    waiting(made, number)
    later = DUE + timedelta(hours=1)
    other = Half(number + 1_000, 0, "orders", 1)
    made.prepare(other)
    version = made.claim(Op(other.number, "COMMIT", changes={"op_timestamp": later}))
    made.settle(Settled(other.number, "COMMITTED", version, settled_timestamp=later), mark=version)
    made.publish("orders", other, op_version=version)


def said_to_be_claimed(made: HandMadeStore, number: int) -> None:
    (half,) = delayed(number, "orders")
    version = committed(made, half)
    made.delay_state(version, DUE)


@dataclass(frozen=True)
class DelayBug:
    """Something wrong, by one of the functions above.

    Attributes:
        breaks: invariants whose violations name the transaction.
        also: those that break beside them.
    """

    plant: Callable[[HandMadeStore, int], None]
    breaks: tuple[str, ...]
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.plant.__name__

    @property
    def number(self) -> int:
        return 100 + BUGS.index(self)

    @property
    def subject(self) -> str:
        return transaction_id(self.number)

    def do(self, made: HandMadeStore) -> None:
        self.plant(made, self.number)


BUGS = (
    DelayBug(delivered_twice, ("I3",), ("I23",)),
    DelayBug(delivered_after_recall, ("I10", "I11"), ("I23",)),
    DelayBug(recalled_is_shown, ("I11",), ("I23",)),
    DelayBug(delivered_early, ("I15",)),
    DelayBug(shown_early, ("I15",)),
    DelayBug(shown_without_deliver, ("I15",), ("I23",)),
    DelayBug(delivered_by_the_producer, ("I15",)),
    DelayBug(delivered_by_strangers, ("I10", "I15"), ("I23",)),
    DelayBug(delivered_to_another_topic, ("I4",), ("I23",)),
    DelayBug(delivered_but_not_shown, ("I1",), ("I23",)),
    DelayBug(row_names_another_deliver, ("I10",)),
    DelayBug(schedule_row_lost, ("I1",)),
    DelayBug(schedule_rows_torn, ("I1", "I13")),
    DelayBug(delivered_but_never_scheduled, ("I15",)),
    DelayBug(schedule_row_doubled, ("I3",)),
    DelayBug(scheduled_under_another_day, ("I15",)),
    DelayBug(scheduled_for_another_time, ("I15",)),
    DelayBug(scheduled_with_another_body, ("I16",)),
    DelayBug(scheduled_under_another_commit, ("I10",)),
    DelayBug(scheduled_though_rolled_back, ("I2",)),
    DelayBug(scheduled_without_a_delay, ("I4",)),
    DelayBug(deliver_is_not_settled, ("I10",)),
    DelayBug(recall_is_not_settled, ("I10",)),
    DelayBug(delivery_settled_without_a_claim, ("I10",)),
    DelayBug(delivery_settled_for_too_many, ("I10",)),
    DelayBug(delivery_settled_twice, ("I10",)),
    DelayBug(commit_settled_for_single_messages, ("I10",)),
    DelayBug(key_torn_over_queues, ("I14",)),
    DelayBug(said_to_be_claimed, ("I27",)),
    DelayBug(waits_long_after_its_time, ("I27",)),
)


def retained(made: HandMadeStore, *logs: str, **said: Any) -> None:
    """Take all rows out of some logs, as retention does, and say what may be gone."""
    made.maintenance_state(**said)
    for log in logs:
        made.remove(log, "true")


def tomorrow() -> Mapping[str, str]:
    """Everything that the stores here hold may be forgotten."""
    return {"forgotten_before_date": (START + timedelta(days=2)).date().isoformat()}


# --- what txmq itself writes ----------------------------------------------------------------------


def send_all_kinds(world: DelayWorld) -> None:
    """At once, by level, by time, recalled, in transactions, of one key; one is due in 3 days."""
    producer, far_s = world.producer, 3 * 86_400
    producer.send([Message(TOPIC, b"%d" % number) for number in range(3)])
    producer.send([Message(TOPIC, b"k", sharding_key="key") for _ in range(3)])
    producer.send(Message(TOPIC, b"level", delay_level=2))
    producer.send(Message(TOPIC, b"past", deliver_timestamp=world.in_s(-far_s)))
    producer.send(Message(TOPIC, b"far", deliver_timestamp=world.in_s(far_s)))
    (recalled,) = producer.send(Message("stock", b"recalled", delay_s=60)).message_ids
    with producer.begin_transaction() as transaction:
        transaction.send(Message(TOPIC, b"at once", sharding_key="key"))
        transaction.send(Message(TOPIC, b"later", delay_s=90))
        transaction.send(Message("stock", b"later too", delay_s=30))
        transaction.prepare()
        transaction.commit()
    with producer.begin_transaction() as transaction:
        transaction.send(Message("stock", b"never", delay_s=30))
        transaction.prepare()
        transaction.rollback()
    producer.recall(recalled)
