"""One file that cannot be read holds up the transactions in it, and nobody else."""

from __future__ import annotations

import json
import logging
import shutil
import time
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit.reading import bodies, topic_rows
from txmq.delta.actions import commit_path
from txmq.errors import ClaimWithoutEffectError, SourceRestoredError, StorageError
from txmq.maintenance.retention import Retention
from txmq.message.lifecycle import ClaimKind, ClaimSource, TransactionState
from txmq.message.message import Message
from txmq.ops.admin.operator import Operator
from txmq.ops.admin.status import Admin
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.claim_writer import ClaimWriter
from txmq.store.logs import EndReader
from txmq.store.op import OpRow
from txmq.store.schemas import OP
from txmq.store.set_aside import SetAsideTransactions, read_set_aside
from txmq.store.store import Store
from txmq.testing import ManualClock, failing_commits
from txmq.verify import verify

pytestmark = pytest.mark.usefixtures("files_read_each_time")
GROUP = "orders"
DAMAGES = ("emptied", "garbage", "gone")


class World:
    """A store of two topics; each transaction has a half file of its own."""

    def __init__(self, store: Store, clock: ManualClock | None = None) -> None:
        self.store, self.clock = store, clock or ManualClock()
        self.publisher = Publisher(store, clock=self.clock)

    def send(self, body: bytes, *topics: str, commit: bool | None = True) -> tuple[str, Path]:
        """One transaction, without an end if `commit` is None: its id, and its half file."""
        half = Path(self.store.location, "half")
        before = set(half.rglob("*.parquet"))
        with TransactionProducer(self.store, producer_group=GROUP, clock=self.clock) as producer:
            transaction = producer.begin_transaction()
            for topic in topics or ("a",):
                transaction.send(Message(topic, body))
            transaction.prepare()
            if commit:
                transaction.commit()
            elif commit is not None:
                transaction.rollback()
        (file,) = set(half.rglob("*.parquet")) - before
        return transaction.id, file

    def later(self, publisher: Publisher | None = None) -> None:
        """After the pause of what is set aside and parked."""
        self.clock.advance(self.store.config.park_retry_interval_s * 40)
        (publisher or self.publisher).run_once()


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def damage(file: Path, how: str) -> bytes:
    content = file.read_bytes()
    if how == "emptied":
        file.write_bytes(b"")
    elif how == "garbage":
        file.write_bytes(b"x" * len(content))
    else:
        file.unlink()
    return content


# --- settle -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_half_file_holds_up_its_own_transaction_only(world: World, how: str) -> None:
    lost, file = world.send(b"lost")
    damage(file, how)
    world.send(b"next")
    world.send(b"other", "b")

    result = world.publisher.run_once()

    assert bodies(world.store, "a") == [b"next"]
    assert bodies(world.store, "b") == [b"other"]
    assert result.set_aside == 1
    (name,) = read_set_aside(world.store.tables).transactions
    assert name == lost


def test_it_is_said_which_file_which_transaction_and_what_to_do(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    lost, file = world.send(b"lost")
    damage(file, "emptied")

    with caplog.at_level(logging.ERROR):
        world.publisher.run_once()

    assert lost in caplog.text
    assert file.name in caplog.text
    assert "txmq resolve" in caplog.text


@pytest.mark.parametrize("publisher_is_new", [False, True])
def test_it_is_published_once_when_the_file_is_back(
    world: World, *, publisher_is_new: bool
) -> None:
    _, file = world.send(b"late", "a", "b")
    content = damage(file, "emptied")
    world.send(b"next")
    world.publisher.run_once()
    file.write_bytes(content)

    again = Publisher(world.store, clock=world.clock) if publisher_is_new else world.publisher
    world.later(again)
    world.later(again)

    assert bodies(world.store, "a") == [b"late", b"next"]
    assert bodies(world.store, "b") == [b"late"]
    assert not read_set_aside(world.store.tables).transactions
    assert verify(world.store.location).is_clean


def test_the_first_end_wins_also_where_it_was_set_aside(world: World) -> None:
    late, file = world.send(b"late")
    content = damage(file, "emptied")
    world.publisher.run_once()
    file.write_bytes(content)
    claim_rollback(world, late)

    world.publisher.run_once()
    world.later()

    assert bodies(world.store) == []
    assert bodies(world.store, "a") == [b"late"]


def test_a_rollback_waits_like_a_commit_and_shows_nothing(world: World) -> None:
    _, file = world.send(b"never", commit=False)
    content = damage(file, "emptied")
    world.publisher.run_once()
    file.write_bytes(content)

    world.later()

    assert topic_rows(world.store, "a") == []
    assert Admin(world.store, clock=world.clock).status().rolled_back == 1


def test_a_second_publisher_does_not_settle_later_claims_about_it_alone(world: World) -> None:
    other = Publisher(world.store, clock=world.clock)
    other.run_once()
    late, file = world.send(b"late")
    content = damage(file, "emptied")
    world.publisher.run_once()
    file.write_bytes(content)
    claim_rollback(world, late)

    # It can read the file, and has never heard of the claim before.
    other.run_once()
    world.later(other)
    world.later()

    assert bodies(world.store, "a") == [b"late"]
    assert Admin(world.store, clock=world.clock).status().rolled_back == 0


def test_a_publisher_that_dies_after_it_set_a_transaction_aside_loses_nothing(
    world: World,
) -> None:
    _, file = world.send(b"late")
    content = damage(file, "emptied")
    broken = failing_commits(1, error=OSError(5, "dies"), table="settled")
    with broken, pytest.raises(StorageError):
        world.publisher.run_once()
    file.write_bytes(content)

    # The claims are in the register and in the op log too.
    fresh = Publisher(world.store, clock=world.clock)
    fresh.run_once()
    world.later(fresh)

    assert bodies(world.store, "a") == [b"late"]
    assert not read_set_aside(world.store.tables).transactions


# --- publish ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", DAMAGES)
def test_a_file_that_is_damaged_after_it_was_settled_holds_up_nobody_else(
    world: World, how: str
) -> None:
    _, file = world.send(b"late", "a", "b")
    rounds = world.publisher._rounds()
    rounds._logs.refresh_claims()
    rounds._settle(rounds._op.table.version)
    content = damage(file, how)
    world.send(b"next")

    world.publisher.run_once()
    assert bodies(world.store, "a") == [b"next"]
    file.write_bytes(content)
    world.later()

    assert bodies(world.store, "a") == [b"late", b"next"]
    assert bodies(world.store, "b") == [b"late"]
    assert not read_set_aside(world.store.tables).transactions


def test_a_caller_who_asks_again_is_told_the_end_that_waits(world: World) -> None:
    late, file = world.send(b"late")
    content = damage(file, "emptied")
    world.publisher.run_once()
    file.write_bytes(content)
    claim_rollback(world, late)

    end = EndReader(world.store.tables.logs()).end_of(late)

    assert end.state is TransactionState.COMMITTED


def test_verify_says_that_it_is_set_aside(world: World) -> None:
    late, file = world.send(b"late")
    content = damage(file, "emptied")
    world.publisher.run_once()
    file.write_bytes(content)

    findings = verify(world.store.location).to_dict()

    assert "it is set aside" in json.dumps(findings)
    assert verify(world.store.location, drained=False).is_clean
    assert late in json.dumps(findings)


def test_retention_keeps_what_is_set_aside(world: World) -> None:
    late, file = world.send(b"late")
    rounds = world.publisher._rounds()
    rounds._logs.refresh_claims()
    rounds._settle(rounds._op.table.version)
    content = damage(file, "emptied")
    world.publisher.run_once()
    file.write_bytes(content)
    world.clock.advance(86_400 * 30)

    retention = Retention(world.store, world.clock)
    half = world.store.tables.table_at("half")

    assert not retention._all_ended(half.files.all(), rounds._op.table.version)
    assert late in read_set_aside(world.store.tables).transactions


def test_retention_goes_on_beside_a_file_that_cannot_be_read(store: Store) -> None:
    world = World(store, ManualClock(now_ms=time.time_ns() // 1_000_000))
    _, file = world.send(b"lost")
    world.clock.advance(2 * 86_400)
    world.send(b"next")
    world.publisher.run_once()
    damage(file, "emptied")
    world.clock.advance(30 * 86_400)

    retained = Retention(store, world.clock).run()

    assert len(retained.half_days) == 1
    assert file.name in {Path(live.path).name for live in store.tables.table_at("half").files.all()}


def test_status_lives_with_it_and_shows_it(world: World) -> None:
    lost, file = world.send(b"lost")
    damage(file, "emptied")
    world.publisher.run_once()

    status = Admin(world.store, clock=world.clock).status()

    assert [waiting.transaction_id for waiting in status.set_aside] == [lost]
    assert file.name in status.set_aside[0].problem
    assert file.name in status.unreadable[0]


# --- give up ------------------------------------------------------------------------------------


def test_what_cannot_be_settled_is_rolled_back_by_an_operator(world: World) -> None:
    lost, file = world.send(b"lost")
    damage(file, "gone")
    world.publisher.run_once()
    operator = Operator(world.store, clock=world.clock)

    planned = operator.give_up(lost, reason="the disk is broken")
    assert (planned.state_after, planned.is_written) == (TransactionState.ROLLED_BACK, False)
    assert file.name in (planned.problem or "")
    assert operator.give_up(lost, reason="the disk is broken", apply=True).is_written
    world.send(b"next")
    world.publisher.run_once()

    status = Admin(world.store, clock=world.clock).status()
    assert (status.set_aside, status.rolled_back, status.committed) == ((), 1, 1)
    assert bodies(world.store, "a") == [b"next"]


def test_of_what_is_committed_the_readable_messages_are_published(world: World) -> None:
    committed, first = world.send(b"kept", "a")
    rounds = world.publisher._rounds()
    rounds._logs.refresh_claims()
    rounds._settle(rounds._op.table.version)
    damage(first, "gone")
    world.publisher.run_once()
    operator = Operator(world.store, clock=world.clock)

    planned = operator.give_up(committed, reason="the disk is broken", apply=True)
    world.publisher.run_once()

    assert planned.state_after is TransactionState.COMMITTED
    assert not read_set_aside(world.store.tables).transactions
    assert Admin(world.store, clock=world.clock).status().committed == 1


def test_nothing_is_given_up_that_can_be_read_again(world: World) -> None:
    late, file = world.send(b"late")
    content = damage(file, "garbage")
    world.publisher.run_once()
    Operator(world.store, clock=world.clock).give_up(late, reason="no copy", apply=True)
    file.write_bytes(content)

    world.publisher.run_once()

    assert bodies(world.store, "a") == [b"late"]


def test_what_has_no_end_is_rolled_back_by_a_give_up_though_it_can_be_read_again(
    world: World,
) -> None:
    asked, file = world.send(b"asked", commit=None)
    claim(world, asked, ClaimKind.RESUME)
    content = damage(file, "garbage")
    world.publisher.run_once()
    planned = Operator(world.store, clock=world.clock).give_up(asked, reason="no copy", apply=True)
    file.write_bytes(content)

    world.publisher.run_once()

    status = Admin(world.store, clock=world.clock).status()
    assert planned.state_after is TransactionState.ROLLED_BACK
    assert (status.set_aside, status.rolled_back, status.open) == ((), 1, 0)


def test_only_what_is_set_aside_can_be_given_up(world: World) -> None:
    shown, _ = world.send(b"shown")
    world.publisher.run_once()

    with pytest.raises(ClaimWithoutEffectError, match="not set aside"):
        Operator(world.store, clock=world.clock).give_up(shown, reason="by mistake", apply=True)


def claim_rollback(world: World, transaction_id: str) -> None:
    claim(world, transaction_id, ClaimKind.ROLLBACK)


def claim(world: World, transaction_id: str, kind: ClaimKind) -> None:
    """What any process of the group may write."""
    row = OpRow(transaction_id, kind, GROUP, ClaimSource.PRODUCER, world.clock.now_ms())
    ClaimWriter(world.store.tables.op_log(), "test", 4).append([row])


# --- commits of half that are lost ----------------------------------------------------------------


def half_commit(world: World, version: int) -> Path:
    return Path(world.store.location, "half", commit_path(version))


def one_published_of_three(store: Store) -> World:
    world = World(store)
    world.send(b"1")
    world.publisher.run_once()
    for body in (b"2", b"3"):
        world.send(body)
    return world


@pytest.mark.parametrize("is_new_publisher", [False, True])
def test_an_emptied_half_commit_holds_up_its_own_transaction_only(
    store: Store, *, is_new_publisher: bool
) -> None:
    world = one_published_of_three(store)
    content = half_commit(world, 2).read_bytes()
    half_commit(world, 2).write_bytes(b"")
    publisher = Publisher(store, clock=world.clock) if is_new_publisher else world.publisher

    publisher.run_once()

    assert bodies(store, "a") == [b"1", b"3"]
    (waiting,) = read_set_aside(store.tables).transactions.values()
    assert waiting.problem == f"{commit_path(2)} is empty"

    half_commit(world, 2).write_bytes(content)
    world.later(publisher)
    assert bodies(store, "a") == [b"1", b"2", b"3"]
    assert not read_set_aside(store.tables).transactions


def test_a_lost_half_commit_before_later_ones_settles_nothing_wrong(store: Store) -> None:
    """A running publisher waits for the next commit by its name: the gap looks like the end."""
    world = one_published_of_three(store)
    content = half_commit(world, 2).read_bytes()
    half_commit(world, 2).unlink()

    with pytest.raises(StorageError, match=f"{commit_path(2)} is not there, but later commits are"):
        world.publisher.run_once()

    half_commit(world, 2).write_bytes(content)
    world.publisher.run_once()
    assert bodies(store, "a") == [b"1", b"2", b"3"]


def test_claim_with_a_gap_in_its_messages_stops_nobody(world: World) -> None:
    waiting, file = world.send(b"waits")
    world.send(b"fine")
    content = damage(file, "gone")
    row = dict.fromkeys(OP.columns.names) | {
        "transaction_id": waiting, "kind": "COMMIT", "source": "producer",
        "producer_group": GROUP, "ordinal": 0, "queue_id": 0, "sequences": [0, None],
        "store_date": date(2026, 1, 1),
    }  # fmt: skip
    write_deltalake(
        f"{world.store.location}/op", pa.Table.from_pylist([row], OP.columns), mode="append"
    )

    world.publisher.run_once()
    world.send(b"later")
    world.later(Publisher(world.store, clock=world.clock))
    assert sorted(bodies(world.store, "a")) == [b"fine", b"later"]
    file.write_bytes(content)
    world.later()

    assert sorted(bodies(world.store, "a")) == [b"fine", b"later", b"waits"]


def test_value_that_nobody_could_read_is_not_written(world: World) -> None:
    _, file = world.send(b"waits")
    damage(file, "gone")
    world.publisher.run_once()
    register = world.store.tables.register("set_aside", SetAsideTransactions)
    seen = register.read()

    with pytest.raises(StorageError, match="nothing was written"):
        register.swap(seen, {"transactions": {"x": 7}}, 0)

    assert register.read() == seen


# --- the register itself ------------------------------------------------------------------------


def two_set_aside(world: World, *, goes: str) -> tuple[str, bytes, Path]:
    """Two transactions wait, then the register goes back to the first one, or is gone."""
    register = Path(world.store.location, "state", "set_aside")
    damage(world.send(b"first")[1], "emptied")
    world.publisher.run_once()
    copy = shutil.copytree(register, register.with_name("older"))
    late, file = world.send(b"late")
    content = damage(file, "emptied")
    world.publisher.run_once()
    shutil.rmtree(register)
    if goes == "back":
        shutil.move(copy, register)
    else:
        shutil.rmtree(copy)
    return late, content, file


@pytest.mark.parametrize("goes", ["back", "away"])
def test_publisher_says_that_what_waits_went_back(world: World, goes: str) -> None:
    _, content, file = two_set_aside(world, goes=goes)
    file.write_bytes(content)
    world.send(b"next")

    for publisher in (Publisher(world.store, clock=world.clock), world.publisher):
        with pytest.raises(SourceRestoredError, match="state/set_aside"):
            world.later(publisher)


def test_retention_removes_nothing_while_what_waits_is_gone(store: Store) -> None:
    world = World(store, ManualClock(now_ms=time.time_ns() // 1_000_000))
    _, file = world.send(b"late")
    rounds = world.publisher._rounds()
    rounds._logs.refresh_claims()
    rounds._settle(rounds._op.table.version)
    content = damage(file, "emptied")
    world.publisher.run_once()
    file.write_bytes(content)
    world.send(b"next")
    world.publisher.run_once()
    shutil.rmtree(Path(world.store.location, "state", "set_aside"))
    world.clock.advance(86_400 * 30)

    with pytest.raises(SourceRestoredError):
        Retention(world.store, world.clock).run()

    assert file.exists()


@pytest.mark.parametrize("goes", ["back", "away"])
def test_end_that_waits_is_not_answered_from_an_older_register(world: World, goes: str) -> None:
    late, _, _ = two_set_aside(world, goes=goes)

    with pytest.raises(SourceRestoredError):
        EndReader(world.store.tables.logs()).end_of(late)


def test_register_of_an_earlier_version_is_taken_as_it_is(world: World) -> None:
    damage(world.send(b"first")[1], "emptied")
    world.publisher.run_once()
    register = world.store.tables.register("set_aside")
    seen = register.read()
    register.swap(seen, {name: seen.value[name] for name in ("transactions", "late")}, 0)
    _, file = world.send(b"second")
    content = damage(file, "emptied")

    again = Publisher(world.store, clock=world.clock)
    again.run_once()
    file.write_bytes(content)
    world.later(again)

    assert bodies(world.store, "a") == [b"second"]
    assert read_set_aside(world.store.tables).count is not None
