"""State values of another shape: who reads one says so, by an error of txmq."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit.check_world import wall_ms
from tests.kit.dead_world import CONSUMERS, DeadWorld
from txmq.consumer.group import MEMBERS_MAX, GroupValue, group_in, state_of
from txmq.consumer.group_rules import ConsumeMode
from txmq.consumer.pull import PullConsumer
from txmq.errors import ConsumerGroupFullError, StoreFormatError, TxmqError
from txmq.ground.clock import Clock
from txmq.message.message import Message
from txmq.ops.admin.dead_letter_notes import Chosen
from txmq.ops.admin.dead_letters import DeadLetters
from txmq.ops.admin.forms import form_of
from txmq.ops.admin.status import Admin
from txmq.ops.admin.topics import Topics
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.set_aside import SetAsideTransactions
from txmq.store.shapes import problem_of_value
from txmq.store.store import Store
from txmq.testing import ManualClock

TOPIC = "order-paid"
PARKED = {"from_version": 1, "reason": "full", "since_ms": 5, "attempts": 1}
STRANGE: tuple[Any, ...] = (None, "x", -1, 1.5, True, [], {}, [[]], {"a": 1})
# Values that a store has after days or faults; the others are those of a store in use.
EXAMPLES: dict[str, dict[str, Any]] = {
    "brokers": {
        "brokers": {
            "id": {"name": "one", "version": "0.1.0", "services": ["publisher"], "started_ms": 5,
                   "seen_ms": 5, "claim_key_ids": {"orders": ["c7f9fd53fc4a4ed0"]}}
        }
    },
    "check_lease": {"holder": "somebody", "renewed_ms": 5, "asking": {"orders": "somebody/1"}},
    "maintenance": {
        "forgotten_before_date": "2026-01-01",
        "schedule_forgotten_before_date": "2026-01-01",
        "topic_begin": {TOPIC: 0},
    },
    "delay": {"op_table_id": "", "op_version": 0, "due_ms": 5, "rule": "store time"},
    "remote_orders": {
        "round_id": "1", "members": {"client": 5}, "taken": {"id": ["client", 5]},
        "asked": {"id": {"check_times": 0, "client_id": "client"}},
        "answers": {"id": {"state": "COMMIT", "reason": None}},
    },
}  # fmt: skip
OF_A_STORE_IN_USE = (
    f"dead_letters_{CONSUMERS}", f"group_{CONSUMERS}", "publisher", "set_aside", "topics",
)  # fmt: skip


GROUP_VALUE: dict[str, Any] = {
    "mode": "BROADCASTING", "subscription": {}, "queues": {}, "offsets": {}, "members": {},
    "owners": {}, "replays": {}, "epoch": 1,
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.fixture(scope="module")
def used_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """With a dead letter, a consumer group, a parked topic and a transaction that is set aside."""
    world = DeadWorld(tmp_path_factory.mktemp("used"))
    store = world.store
    Topics(store, clock=world.clock).create(TOPIC, queue_nums=2)
    world.bury("1")
    world.letters.purge(Chosen(everything=True), reason="gone", apply=True)
    consume(store, world.clock)
    send(store, world.clock)
    newest = max(
        Path(store.location, "half").rglob("*.parquet"), key=lambda file: file.stat().st_mtime_ns
    )
    newest.write_bytes(b"")
    world.publisher.run_once()
    shutil.rmtree(Path(store.location, "topics", TOPIC))
    send(store, world.clock)
    world.publisher.run_once()
    return store


def fail(message: object) -> None:
    raise ValueError(str(message))


def consume(store: Store, clock: Clock) -> None:
    with PullConsumer(store, consumer_group=CONSUMERS, topics=TOPIC, clock=clock) as consumer:
        consumer.run_once(fail)


def send(store: Store, clock: Clock) -> None:
    with TransactionProducer(store, producer_group="orders", clock=clock) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message(TOPIC, b"more"))
        transaction.prepare()
        transaction.commit()


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each part of a value."""
    if way:
        yield way
    parts: Any = enumerate(value) if isinstance(value, list) else ()
    for key, part in value.items() if isinstance(value, dict) else parts:
        yield from places(part, (*way, key))


def bent(value: Any, way: tuple[Any, ...], strange: Any) -> Any:
    changed = copy.deepcopy(value)
    part = changed
    for key in way[:-1]:
        part = part[key]
    part[way[-1]] = strange
    return changed


def bent_values(
    value: dict[str, Any], strange_parts: Iterable[Any] = STRANGE
) -> Iterator[dict[str, Any]]:
    for way in places(value):
        for strange in strange_parts:
            yield bent(value, way, strange)


def value_of(store: Store, name: str) -> dict[str, Any]:
    return EXAMPLES.get(name) or store.tables.register(name).read().value


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*EXAMPLES, *OF_A_STORE_IN_USE])
def test_value_of_txmq_has_no_problem_and_most_others_have(used_store: Store, name: str) -> None:
    value = value_of(used_store, name)
    form = form_of(name)
    problems = [problem_of_value(form, other) for other in bent_values(value)]

    assert value
    assert problem_of_value(form, value) is None
    assert len([problem for problem in problems if problem]) > len(problems) / 2


def test_time_of_what_is_set_aside_can_be_shown() -> None:
    entry = {"from_version": 1, "problem": "gone", "since_ms": 10**18, "claims": []}
    said = problem_of_value(SetAsideTransactions, {"transactions": {"a": entry}, "late": []})
    assert said == "transactions.a.since_ms must be a time in milliseconds"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"low_water_version": "5"}, "low_water_version must be a whole number"),
        ({"parked": {"a": {"from_version": 1}}}, "parked.a.reason is missing"),
        (
            {"parked": {"a": PARKED | {"since_ms": 10**18}}},
            "parked.a.since_ms must be a time in milliseconds",
        ),
        ({"parked": []}, "parked must be an object"),
        ({"ends": {"a\x1b[2J": [1, 2]}}, r"ends.a\\x1b\[2J must be a list of 3"),
    ],
)
def test_value_of_another_shape_is_told_by_its_place(
    store: Store, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], problem: str
) -> None:
    send(store, ManualClock())
    Publisher(store).run_once()
    register = store.tables.register("publisher")
    seen = register.read()
    with monkeypatch.context() as patched:
        # As another program writes it; txmq would refuse to.
        patched.setattr("txmq.store.register.problem_of_value", lambda *_: None)
        register.swap(seen, {**seen.value, **change}, 0)

    with pytest.raises(StoreFormatError, match=f"state/publisher: {problem}; restore it"):
        Publisher(store).run_once()


# --- what cannot be told by its shape -------------------------------------------------------------

Use = Callable[[Store, Clock], object]


def broker(store: Store, clock: Clock) -> object:
    return Broker(store, clock=clock).run_once()


def publisher(store: Store, clock: Clock) -> object:
    return Publisher(store, clock=clock).run_once()


def status(store: Store, clock: Clock) -> object:
    return Admin(store, clock=clock).status()


def rebuild(store: Store, clock: Clock) -> object:
    return Topics(store, clock=clock).rebuild(TOPIC, apply=True)


def dead_letters(store: Store, clock: Clock) -> object:
    return DeadLetters(store, CONSUMERS, clock=clock).all()


def topics(store: Store, clock: Clock) -> object:
    return Topics(store, clock=clock).describe(TOPIC)


READERS: dict[str, tuple[Use, ...]] = {
    "check_lease": (broker,),
    "delay": (broker,),
    "maintenance": (broker,),
    "publisher": (publisher, status, rebuild),
    "set_aside": (publisher, status),
    "topics": (send, topics),
    f"dead_letters_{CONSUMERS}": (dead_letters,),
    f"group_{CONSUMERS}": (consume,),
}


@pytest.mark.parametrize("name", READERS)
def test_value_of_the_right_shape_that_nobody_would_write_is_no_error_of_python(
    used_store: Store, tmp_path: Path, name: str
) -> None:
    value = value_of(used_store, name)
    others = bent_values(value, ("x", -1, {}))
    allowed = [one for one in others if problem_of_value(form_of(name), one) is None]

    for number, other in enumerate(allowed):
        location = shutil.copytree(used_store.location, tmp_path / str(number))
        store, clock = Store.open(location), ManualClock(wall_ms())
        register = store.tables.register(name, form_of(name), create=True)
        register.swap(register.read(), other, clock.now_ms())
        for read in READERS[name]:
            with suppress(TxmqError):
                read(Store.open(location), clock)
        shutil.rmtree(location)


@pytest.mark.parametrize(
    ("key", "part"), [("members", [1, 1]), ("leases", 1), ("seen", [1, 1, 1])], ids=str
)
def test_group_has_a_largest_number_of_members(key: str, part: Any) -> None:
    full = {f"m{number}": part for number in range(MEMBERS_MAX)}

    assert problem_of_value(GroupValue, {**GROUP_VALUE, key: full}) is None
    assert problem_of_value(GroupValue, {**GROUP_VALUE, key: {**full, "m": part}}) == (
        f"{key} must have 10,000 entries at most, not 10,001"
    )


@pytest.mark.parametrize("key", ["members", "leases", "seen", "offsets", "followed"])
def test_name_of_a_member_is_short(key: str) -> None:
    problem = problem_of_value(GroupValue, {**GROUP_VALUE, key: {"x" * 1_000_000: [1, 1]}})

    assert problem is not None
    assert problem.endswith("must be text of 256 characters at most")
    assert len(problem) < 400


@pytest.mark.parametrize(
    ("mode", "full"),
    [
        (ConsumeMode.CLUSTERING, {"members": {f"m{n}": [1, 1] for n in range(MEMBERS_MAX)}}),
        (ConsumeMode.BROADCASTING, {"offsets": {f"m{n}": {} for n in range(MEMBERS_MAX)}}),
    ],
)
def test_full_group_refuses_a_member_and_stays_as_it_is(
    store: Store, mode: ConsumeMode, full: dict[str, Any]
) -> None:
    group = group_in(store, CONSUMERS, create=True)
    value = {**GROUP_VALUE, "mode": mode.value, "subscription": {TOPIC: "*"}, **full}
    group.change(lambda _: state_of(value), 1)

    with pytest.raises(ConsumerGroupFullError, match=r"has 10,000 members .* which is the limit"):
        PullConsumer(store, consumer_group=CONSUMERS, topics=TOPIC, mode=mode, member_id="new")

    assert group.read().members.keys() == value["members"].keys()
