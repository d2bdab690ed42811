"""A store of rows that no txmq would write: whatever it holds, two checkers see the same."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random
from typing import Any

from tests.kit.delayed import DUE
from tests.kit.stores import START, Half, HandMadeStore, Op, Settled

TOPICS = ("orders", "stock")
KINDS = ("COMMIT", "COMMIT", "COMMIT", "ROLLBACK", "DELIVER", "DELIVER", "DELIVER", "RECALL",
         "RECALL", "UNKNOWN", "DISCARD", "RESUME", "EXPIRE", "PUBLISH")  # fmt: skip
STATES = ("COMMITTED", "COMMITTED", "ROLLED_BACK", "DELIVERED", "DELIVERED", "RECALLED",
          "DISCARDED", "EXPIRED", "INCOMPLETE", "PENDING", "NONSENSE")  # fmt: skip
SOURCES = ("producer", "delay", "delay", "check", "operator")


def random_store(location: str, random: Random, transactions: int = 40) -> HandMadeStore:
    """Halves, claims, facts and rows of topics that have little to do with one another."""
    made = HandMadeStore(location)
    halves = [half for number in range(transactions) for half in _halves(random, number)]
    made.prepare(*halves)
    numbers = range(transactions + 3)
    for _ in range(4):
        version = made.claim(*(_claim(random, number) for number in numbers))
        facts = [_fact(random, number, version) for number in numbers if random.random() < 0.6]
        made.settle(*facts, mark=version)
        for half in random.sample(halves, len(halves) // 2):
            _show(made, random, half, version)
    return made


def _halves(random: Random, number: int) -> list[Half]:
    count = random.randint(1, 3)
    changes = [_delay(random) for _ in range(count)]
    key = {"sharding_key": random.choice(["a", "b"])} if random.random() < 0.3 else {}
    rows = [
        Half(number, sequence, random.choice(TOPICS), count if sequence == 0 else None,
             queue=random.randint(0, 1), changes={**changes[sequence], **key})
        for sequence in range(count)
    ]  # fmt: skip
    if random.random() < 0.1:
        rows.append(rows[-1])
    return rows


def _delay(random: Random) -> dict[str, Any]:
    return random.choice(
        [{}, {"delay_s": 60}, {"delay_s": 0}, {"deliver_timestamp": DUE},
         {"deliver_timestamp": DUE, "delay_s": 5}]
    )  # fmt: skip


def _claim(random: Random, number: int) -> Op:
    sequences = random.choice([None, [], [0], [1, 0], [0, 0, None], [2, 7], [-1]])
    group = "strangers" if random.random() < 0.1 else "group"
    life = random.choice([None, 0, 0, 1])
    return Op(
        number, random.choice(KINDS), group, life, random.choice(SOURCES), random.choice([None, 1]),
        {"sequences": sequences, "op_timestamp": _moment(random)},
    )  # fmt: skip


def _fact(random: Random, number: int, version: int) -> Settled:
    return Settled(
        number, random.choice(STATES), random.randint(max(0, version - 1), version),
        number if random.random() < 0.8 else random.randint(0, 3), random.choice([0, 0, 0, 1]),
        settled_timestamp=_moment(random),
        op_timestamp=_moment(random) if random.random() < 0.9 else None,
        sequences=random.choice([None, None, [0], [0, 1], [], [9]]),
    )  # fmt: skip


def _show(made: HandMadeStore, random: Random, half: Half, version: int) -> None:
    named = random.randint(max(0, version - 1), version)
    changes: dict[str, Any] = {"store_timestamp": _moment(random)}
    if random.random() < 0.1:
        changes["queue_id"] = None
    match random.randint(0, 3):
        case 0:
            made.bury(half, op_version=named, mark=version, changes=changes)
        case 1:
            made.publish(str(half.topic), half, op_version=named, mark=version, changes=changes)
        case _:
            due = _moment(random)
            told = {**changes, "due_date": due.date()} if random.random() < 0.9 else changes
            if random.random() < 0.1:
                told = {**told, "deliver_timestamp": None}
            made.schedule(half, op_version=named, due=due, mark=version, changes=told)


def _moment(random: Random) -> datetime:
    return START + timedelta(seconds=random.choice([-90_000, 0, 5, 60, 65, 90_000]))
