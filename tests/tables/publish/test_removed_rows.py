"""Rows of half and settled that another program removed are put back before anybody needs them."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tests.kit.reading import bodies
from tests.kit.sending import GROUP
from txmq.check.open_transactions import open_transactions
from txmq.delta.actions import commit_path
from txmq.delta.file_rows import FileRows
from txmq.errors import ErasureRefusedError, SourceRestoredError, StorageError
from txmq.maintenance.compaction import compact
from txmq.maintenance.retention import Retention
from txmq.maintenance.service import Maintenance
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import Message
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC as DEAD
from txmq.ops.admin.doctor import Doctor
from txmq.ops.admin.erasure import Erasure
from txmq.ops.admin.status import Admin
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.publish.round import PublishRound
from txmq.store.claim_writer import ClaimWriter
from txmq.store.config import Config
from txmq.store.op import OpRow
from txmq.store.set_aside import read_set_aside
from txmq.store.settled import SettledLog
from txmq.store.store import Store
from txmq.testing import ManualClock, before_commit, failing_commits
from txmq.verify import verify

TOPIC = "orders"
Removal = Callable[[DeltaTable], object]


def first_alone(table: DeltaTable) -> None:
    write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="overwrite")


def rename_all(table: DeltaTable) -> None:
    table.update(updates={"transaction_id": "'nobody'"})


def unreadable(*_: object) -> object:
    raise StorageError("half", "not now")


REMOVALS: dict[str, Removal] = {
    "delete": lambda table: table.delete(),
    "restore": lambda table: table.restore(1),
    "overwrite": first_alone,
    "update": rename_all,
}


class World:
    """A store, its publisher, and one clock."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # Retention goes by the times of the store's files.
        self.clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
        self.publisher = self.new_publisher()

    def new_publisher(self) -> Publisher:
        return Publisher(self.store, clock=self.clock)

    def send(self, *texts: bytes, commit: bool = True, keys: str | None = None) -> list[str]:
        """One transaction for each text; the ids."""
        ids = []
        with TransactionProducer(self.store, producer_group=GROUP, clock=self.clock) as producer:
            for body in texts:
                transaction = producer.begin_transaction()
                transaction.send(Message(TOPIC, body, keys=keys))
                transaction.prepare()
                if commit:
                    transaction.commit()
                ids.append(transaction.id)
        return ids

    def claim(self, transaction_id: str, kind: ClaimKind = ClaimKind.COMMIT, life: int = 0) -> None:
        row = OpRow(transaction_id, kind, GROUP, ClaimSource.PRODUCER, self.clock.now_ms(), life)
        ClaimWriter(self.store.tables.op_log(), "producer", 4).append([row])

    def settle(self) -> PublishRound:
        """Settle the claims that are there, and publish nothing; the round of the publisher."""
        rounds = self.publisher._rounds()
        rounds._logs.refresh_claims()
        rounds._settle(rounds._op.table.version)
        return rounds

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(str(Path(self.store.location, name)))

    def bodies(self) -> list[bytes]:
        return bodies(self.store, TOPIC)

    def findings(self) -> dict[str, str]:
        findings = Doctor(self.store, clock=self.clock).examine().findings
        return {finding.where: finding.problem for finding in findings}


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


# --- half -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", REMOVALS)
@pytest.mark.parametrize("is_new_publisher", [False, True])
def test_halves_that_another_program_removed_are_published_all_the_same(
    world: World, how: str, caplog: pytest.LogCaptureFixture, *, is_new_publisher: bool
) -> None:
    world.send(b"1")
    world.publisher.run_once()
    (open_id,) = world.send(b"open", commit=False)
    world.send(b"2")
    REMOVALS[how](world.table("half"))
    assert "another program removed" in world.findings()["half"]
    world.send(b"3")
    if is_new_publisher:
        world.table("half").create_checkpoint()
        world.publisher = world.new_publisher()

    with caplog.at_level(logging.ERROR):
        world.publisher.run_once()
    world.claim(open_id)
    world.publisher.run_once()

    assert world.bodies() == [b"1", b"2", b"3", b"open"]
    assert "half" not in world.findings()
    assert "half: another program removed rows in _delta_log/" in caplog.text


def test_halves_of_what_is_published_are_not_put_back(world: World) -> None:
    world.send(b"1", b"2")
    world.publisher.run_once()
    world.table("half").delete()
    world.send(b"3")

    world.publisher.run_once()

    assert world.table("half").to_pyarrow_table()["body"].to_pylist() == [b"3"]


def test_halves_that_go_between_settling_and_planning_are_published(world: World) -> None:
    world.send(b"1")
    world.settle()
    world.table("half").delete()

    world.publisher.run_once()
    world.clock.advance(world.store.config.park_retry_interval_s * 40)
    world.publisher.run_once()

    assert world.bodies() == [b"1"]
    assert not read_set_aside(world.store.tables).transactions


@pytest.mark.parametrize("kind", [ClaimKind.ROLLBACK, ClaimKind.COMMIT])
def test_first_end_of_a_transaction_whose_halves_are_put_back_wins(
    world: World, kind: ClaimKind
) -> None:
    (transaction_id,) = world.send(b"1", commit=False)
    world.table("half").delete()
    others = {ClaimKind.ROLLBACK: ClaimKind.COMMIT, ClaimKind.COMMIT: ClaimKind.ROLLBACK}

    world.claim(transaction_id, kind)
    world.publisher.run_once()
    world.claim(transaction_id, others[kind])
    world.publisher.run_once()

    assert world.bodies() == ([b"1"] if kind is ClaimKind.COMMIT else [])


def test_commit_of_a_resumed_life_finds_its_halves(world: World) -> None:
    (transaction_id,) = world.send(b"1", commit=False)
    world.claim(transaction_id, ClaimKind.DISCARD)
    world.publisher.run_once()
    world.table("half").delete()
    row = OpRow(transaction_id, ClaimKind.RESUME, GROUP, ClaimSource.OPERATOR, 1, 1)
    ClaimWriter(world.store.tables.op_log(), "operator", 4).append([row])
    world.claim(transaction_id, life=1)

    world.publisher.run_once()

    assert b"1" in world.bodies()


def test_halves_that_retention_took_do_not_come_back(world: World) -> None:
    (old,) = world.send(b"old", commit=False)
    world.claim(old, ClaimKind.ROLLBACK)
    world.publisher.run_once()
    whole = world.table("half").to_pyarrow_table()
    world.clock.advance(86_400 * 30)
    world.send(b"new")
    world.publisher.run_once()
    Retention(world.store, world.clock).run()
    write_deltalake(world.table("half"), whole, mode="append")
    world.table("half").delete()
    world.send(b"newer")

    world.publisher.run_once()

    assert world.table("half").to_pyarrow_table()["body"].to_pylist() == [b"newer"]


@pytest.mark.parametrize("name", ["half", "settled"])
def test_clean_up_waits_for_a_publisher_that_is_away(tmp_path: Path, name: str) -> None:
    world = World(Store.create(tmp_path / "store", Config(checkpoint_interval=10)))
    ids = world.send(b"1", b"2")
    world.publisher.run_once()
    (lost,) = world.send(b"lost")
    world.table(name).delete()
    for number in range(25):
        world.send(b"%d" % (10 + number))
        if name == "settled":
            world.table(name).optimize.compact()
    world.table(name).create_checkpoint()
    world.clock.advance(86_400)
    Maintenance(world.store, clock=world.clock).run_once()
    world.claim(ids[0])
    world.claim(lost)

    world.new_publisher().run_once()

    expected = sorted([b"1", b"2", b"lost", *(b"%d" % (10 + number) for number in range(25))])
    assert world.bodies() == expected


@pytest.mark.parametrize("is_gone", [True, False])
def test_halves_whose_file_is_gone_too_stop_nobody_else(world: World, *, is_gone: bool) -> None:
    world.send(b"1")
    world.publisher.run_once()
    (lost,) = world.send(b"lost")
    files = [Path(uri.removeprefix("file://")) for uri in world.table("half").file_uris()]
    world.table("half").delete()
    for file in files:
        content = file.read_bytes()
        file.unlink() if is_gone else file.write_bytes(content[:200] + b"x" * 80 + content[280:])
    world.send(b"2")

    world.publisher.run_once()

    assert world.bodies() == [b"1", b"2"]
    assert "with their file" in world.findings()["half"]
    assert lost not in read_set_aside(world.store.tables).transactions


def test_halves_of_a_parked_topic_are_put_back(world: World) -> None:
    world.send(b"1")
    with failing_commits(1, error=DeltaError("no space"), table=TOPIC):
        world.publisher.run_once()
    assert Admin(world.store, clock=world.clock).status().parked
    world.table("half").delete()
    world.send(b"2")
    world.publisher.run_once()

    world.clock.advance(world.store.config.park_retry_interval_s * 40)
    world.publisher.run_once()

    assert world.bodies() == [b"1", b"2"]


def test_rows_that_no_txmq_wrote_are_not_put_back(world: World) -> None:
    world.send(b"1")
    world.publisher.run_once()
    row = world.table("half").to_pyarrow_table().to_pylist()[0]
    strange = pa.Table.from_pylist(
        [{**row, "transaction_id": "nobody"}, {**row, "sequence": None}],
        schema=world.table("half").to_pyarrow_table().schema,
    )
    write_deltalake(world.table("half"), strange, mode="append")
    world.table("half").delete("transaction_id = 'nobody' OR sequence IS NULL")
    world.send(b"2")

    world.publisher.run_once()

    assert sorted(world.table("half").to_pyarrow_table()["body"].to_pylist()) == [b"1", b"2"]


def test_outage_while_halves_are_put_back_loses_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(b"1")
    world.publisher.run_once()
    world.send(b"lost")
    world.table("half").delete()
    with monkeypatch.context() as broken:
        broken.setattr(FileRows, "pieces", unreadable)
        with pytest.raises(StorageError, match="not now"):
            world.publisher.run_once()

    world.publisher.run_once()

    assert world.bodies() == [b"1", b"lost"]


def test_id_that_somebody_made_up_has_no_effect(world: World) -> None:
    world.send(b"1")
    world.claim("019b76da-a800-7f04-a051-6d1044879eaa")

    world.publisher.run_once()

    assert world.bodies() == [b"1"]
    assert not read_set_aside(world.store.tables).transactions


def test_idle_publisher_puts_halves_back(world: World) -> None:
    world.send(b"1")
    world.publisher.run_once()
    (open_id,) = world.send(b"open", commit=False)
    world.table("half").delete("body = 'open'")

    world.new_publisher().run_once()

    assert "half" not in world.findings()
    results = verify(world.store.location).results
    assert [each.invariant for each in results if each.violation_count] == ["I17"]
    rows = open_transactions(world.store, clock=world.clock)
    assert rows["transaction_id"].to_pylist() == [open_id]


@pytest.mark.parametrize("is_parked", [False, True])
def test_halves_of_dead_letters_are_put_back(world: World, *, is_parked: bool) -> None:
    (transaction_id,) = world.send(b"dead", commit=False)
    row = OpRow(transaction_id, ClaimKind.DISCARD, GROUP, ClaimSource.CHECK, 1, 0)
    ClaimWriter(world.store.tables.op_log(), "check", 4).append([row])
    if is_parked:
        with failing_commits(1, error=DeltaError("no space"), table=DEAD):
            world.publisher.run_once()
    else:
        world.settle()
    world.table("half").delete()
    world.publisher = world.new_publisher()

    world.publisher.run_once()
    world.clock.advance(world.store.config.park_retry_interval_s * 40)
    world.publisher.run_once()

    assert bodies(world.store, DEAD) == [b"dead"]


def test_transaction_of_two_topics_of_which_one_message_was_removed_is_published(
    world: World,
) -> None:
    with TransactionProducer(world.store, producer_group=GROUP, clock=world.clock) as producer:
        transaction = producer.begin_transaction()
        for number in range(4):
            transaction.send(Message(TOPIC if number % 2 else "other", b"%d" % number))
        transaction.prepare()
    world.table("half").delete("sequence = 2")
    world.claim(transaction.id)

    world.publisher.run_once()

    assert (world.bodies(), bodies(world.store, "other")) == ([b"1", b"3"], [b"0", b"2"])


def test_what_one_publisher_set_aside_another_one_puts_back(world: World) -> None:
    other = world.new_publisher()
    world.send(b"0")
    world.publisher.run_once()
    other.run_once()
    world.send(b"lost")
    rounds = world.settle()
    world.table("half").delete()
    rounds._publish()
    rounds.keep_progress()
    world.send(b"x")

    other.run_once()
    for publisher in (world.publisher, other):
        world.clock.advance(world.store.config.park_retry_interval_s * 40)
        publisher.run_once()

    assert world.bodies() == [b"0", b"lost", b"x"]


def test_rows_that_old_days_keep_are_put_back_though_later_days_are_gone(world: World) -> None:
    """Retention keeps a day with an open transaction, and takes the ones after it."""
    (shown,) = world.send(b"shown")
    (open_id,) = world.send(b"open", commit=False)
    world.publisher.run_once()
    world.clock.advance(86_400)
    world.send(b"next")
    world.publisher.run_once()
    world.clock.advance(86_400 * 30)
    world.send(b"late")
    world.publisher.run_once()
    Retention(world.store, world.clock).run()
    world.table("settled").delete()
    world.claim(shown)

    world.new_publisher().run_once()

    assert world.bodies().count(b"shown") == 1
    assert open_id


@pytest.mark.parametrize("predicate", [None, "body = 'open'"])
def test_retention_waits_until_removed_rows_are_put_back(
    world: World, predicate: str | None
) -> None:
    world.send(b"shown")
    (rolled_back,) = world.send(b"rolled back", commit=False)
    world.claim(rolled_back, ClaimKind.ROLLBACK)
    world.send(b"open", commit=False)
    world.publisher.run_once()
    world.clock.advance(86_400 * 10)
    world.publisher.run_once()
    world.table("half").delete(predicate)

    for _ in range(3):
        Retention(world.store, world.clock).run()
        world.clock.advance(86_400)
        world.new_publisher().run_once()

    assert world.bodies() == [b"shown"]
    assert bodies(world.store, DEAD) == [b"open"]


def test_service_that_waits_looks_at_half(world: World) -> None:
    rounds = world.publisher._rounds()
    rounds.advance(threading.Event())
    rounds._half_due_s = -math.inf
    world.send(b"open", commit=False)
    world.table("half").delete()

    rounds.wait_for_news(threading.Event(), math.inf)

    assert rounds._has_half_news()


def test_retry_beside_a_removal_loses_no_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(b"0")
    world.publisher.run_once()
    before = set(world.table("half").file_uris())
    world.send(b"A")
    (uri,) = set(world.table("half").file_uris()) - before
    file = Path(uri.removeprefix("file://"))
    away = file.rename(file.with_suffix(".away"))
    world.publisher.run_once()
    waiting = world.publisher._rounds()._waiting
    retry = waiting.retry

    def beside(*values: Any) -> object:
        away.rename(file)
        world.table("half").delete()
        file.rename(away)
        return retry(*values)

    monkeypatch.setattr(waiting, "retry", beside)
    world.clock.advance(world.store.config.park_retry_interval_s * 40)
    with pytest.raises(StorageError, match="the next round puts them back"):
        world.publisher.run_once()
    monkeypatch.undo()
    away.rename(file)
    world.clock.advance(world.store.config.park_retry_interval_s * 40)
    world.new_publisher().run_once()

    assert world.bodies() == [b"0", b"A"]


def test_erasure_waits_until_removed_rows_are_put_back(world: World) -> None:
    world.send(b"old", keys="c7")
    world.publisher.run_once()
    world.send(b"secret", keys="c7")
    world.table("half").delete()

    with pytest.raises(ErasureRefusedError, match="removed rows of half"):
        Erasure(world.store, "c7", clock=world.clock).apply(reason="asked for")


@pytest.mark.parametrize("moment", ["before it looks", "before its commit"])
def test_publisher_that_is_behind_brings_nothing_back_that_was_erased(
    world: World, moment: str
) -> None:
    behind = world.new_publisher()
    behind.run_once()
    world.send(b"secret", keys="c7")
    world.publisher.run_once()
    world.table("half").delete()

    def erase_behind_another_publisher() -> None:
        world.publisher._rounds()._half_due_s = -math.inf
        world.publisher.run_once()
        Erasure(world.store, "c7", clock=world.clock).apply(reason="asked for")

    if moment == "before its commit":
        with before_commit(erase_behind_another_publisher, table="half"):
            behind.run_once()
    else:
        rounds = behind._rounds()
        rounds._logs.refresh_claims()
        erase_behind_another_publisher()
        rounds._publish()

    assert world.bodies() == [b""]
    assert b"secret" not in world.table("half").to_pyarrow_table()["body"].to_pylist()


@pytest.mark.parametrize(
    ("change", "texts"), [({"size": None}, [b"1", b"2"]), ({"partitionValues": None}, [b"1"])]
)
def test_removal_that_says_little_of_its_file_stops_nobody(
    world: World, change: dict[str, object], texts: list[bytes]
) -> None:
    world.send(b"1")
    world.publisher.run_once()
    world.send(b"2")
    path = Path(world.store.location, "half", commit_path(world.table("half").version() + 1))
    world.table("half").delete()
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if "remove" in action:
            action["remove"] |= change
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))
    world.send(b"3")

    world.new_publisher().run_once()

    assert world.bodies() == [*texts, b"3"]


# --- settled --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", REMOVALS)
@pytest.mark.parametrize("is_new_publisher", [False, True])
def test_nothing_is_published_twice_after_facts_were_removed(
    world: World, how: str, *, is_new_publisher: bool
) -> None:
    ids = []
    for body in (b"1", b"2", b"3"):
        ids += world.send(body)
        world.publisher.run_once()
    REMOVALS[how](world.table("settled"))
    assert "another program removed" in world.findings()["settled"]
    for transaction_id in ids:
        world.claim(transaction_id)
    if is_new_publisher:
        world.table("settled").create_checkpoint()
        world.publisher = world.new_publisher()

    world.send(b"4")
    world.publisher.run_once()

    assert world.bodies() == [b"1", b"2", b"3", b"4"]
    assert "settled" not in world.findings()
    results = verify(world.store.location).results
    broken = [each.row_id for result in results for each in result.violations]
    assert all(row.startswith("settled version") or "nobody" in row for row in broken), broken


def test_fact_that_goes_before_its_message_is_published_is_not_passed_over(world: World) -> None:
    world.send(b"1")
    world.settle()
    world.table("settled").delete()

    world.new_publisher().run_once()

    assert world.bodies() == [b"1"]


def test_removal_in_the_middle_of_a_round_is_met_by_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(b"1")
    world.publisher.run_once()
    world.send(b"2")
    rounds = world.publisher._rounds()
    settle, is_first = rounds._settle, [True]

    def removed_after(latest: int) -> object:
        result = settle(latest)
        if is_first.pop() if is_first else False:
            world.table("settled").delete()
            rounds._settled.table.refresh()
        return result

    monkeypatch.setattr(rounds, "_settle", removed_after)
    with pytest.raises(Exception, match="another program removed facts"):
        world.publisher.run_once()
    world.publisher.run_once()

    assert world.bodies() == [b"1", b"2"]


def test_two_publishers_put_the_same_facts_back_once(world: World) -> None:
    world.send(b"1", b"2")
    world.publisher.run_once()
    other = world.new_publisher()
    other.run_once()
    world.table("settled").delete()
    put_back = other._rounds()._settled.put_back

    def after_the_first(*values: object) -> None:
        world.publisher.run_once()
        put_back(*values)

    other._rounds()._settled.put_back = after_the_first  # type: ignore[method-assign]
    other.run_once()
    other._rounds()._settled.put_back = put_back  # type: ignore[method-assign]
    other.run_once()

    assert world.table("settled").to_pyarrow_table().num_rows == 2


def test_facts_of_an_earlier_txmq_are_put_back_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(
            SettledLog, "_append", lambda log, rows, marks: log.table.writer.swap(rows, marks)
        )
        (transaction_id,) = world.send(b"1")
        world.publisher.run_once()
    world.new_publisher().run_once()
    world.table("settled").delete()
    world.claim(transaction_id)

    world.new_publisher().run_once()

    assert world.bodies() == [b"1"]


@pytest.mark.parametrize("change", [{"state": "'x'"}, {"life": "NULL"}])
def test_fact_that_was_made_none_is_put_back(world: World, change: dict[str, str]) -> None:
    (transaction_id,) = world.send(b"1")
    world.publisher.run_once()
    world.table("settled").update(updates=change)
    world.claim(transaction_id)

    world.publisher.run_once()

    assert world.bodies() == [b"1"]


def test_facts_whose_file_is_gone_too_stop_the_publisher(world: World) -> None:
    world.send(b"1")
    world.publisher.run_once()
    world.table("settled").delete()
    world.table("settled").vacuum(0, dry_run=False, enforce_retention_duration=False)
    world.send(b"2")

    with pytest.raises(SourceRestoredError, match="restore this file, or the store from a backup"):
        world.new_publisher().run_once()

    assert world.bodies() == [b"1"]


def test_what_txmq_merges_and_retention_takes_is_no_loss(world: World) -> None:
    for body in (b"1", b"2", b"3"):
        world.send(body)
        world.publisher.run_once()
    compact(world.store.tables.table_at("settled"), 1 << 27)
    world.table("settled").optimize.compact()
    compact(world.store.tables.table_at("half"), 1 << 27)
    world.clock.advance(86_400 * 400)
    Retention(world.store, world.clock).run()
    count = world.table("settled").to_pyarrow_table().num_rows
    world.send(b"5")

    world.new_publisher().run_once()

    assert world.table("settled").to_pyarrow_table().num_rows == count + 1
    assert not {"half", "settled"} & world.findings().keys()
    assert Admin(world.store, clock=world.clock).status().set_aside == ()
