"""Erasing one person: nothing is left in any file, and nothing else of the store changes."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.kit.builders import halves, table_versions
from tests.kit.dead_world import DEAD, DeadWorld
from tests.kit.delay_world import TOPIC
from tests.kit.kills import killed_at
from txmq.consumer.pull import PullConsumer
from txmq.delta.folder import UNFINISHED
from txmq.delta.table_writer import TableWriter
from txmq.errors import (
    CommitConflictError,
    CommitRefusedError,
    ErasureRefusedError,
    InvalidMessageError,
    InvalidReasonError,
    StorageError,
)
from txmq.ground.fail_points import FailPoint, arm
from txmq.listeners.hooks import SendContext
from txmq.maintenance.compaction import compact
from txmq.maintenance.service import Maintenance
from txmq.message.codec import ERASED
from txmq.message.message import Message
from txmq.message.names import SCHEDULE_TOPIC, TRACE_TOPIC
from txmq.ops.admin.dead_letter_notes import Chosen
from txmq.ops.admin.erasure import Erasure
from txmq.ops.admin.rebuild import rebuild_topic
from txmq.ops.admin.topics import Topics
from txmq.ops.cli.app import app
from txmq.producer.producer import TransactionProducer
from txmq.producer.trace import TraceHook
from txmq.verify import verify

KEY, SECRET = "customer-7", "SECRET-of-customer-7"
WHY = "request 4711"
# Its name stands before that of the trace topic.
EARLY = "ORDERS"
LEFT = {ERASED: "true"}
LINE = {"type": "record", "name": "Line", "fields": [{"name": "item", "type": "string"}]}
LINES = {"type": "array", "items": LINE}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DeadWorld]:
    made = DeadWorld(tmp_path)
    yield made
    made.producer.close()


def send_secret(world: DeadWorld, **fields: object) -> tuple[str, ...]:
    mine = {"keys": KEY, "tags": SECRET, "sharding_key": SECRET, "properties": {"p": SECRET}}
    return world.send(SECRET, **{**mine, **fields})  # type: ignore[arg-type]


def erasure(world: DeadWorld, **fields: str) -> Erasure:
    return Erasure(world.store, KEY, clock=world.clock, **fields)  # type: ignore[arg-type]


def found(world: DeadWorld) -> dict[str, int]:
    return {one.table: one.messages for one in erasure(world).look().tables if one.messages}


def files_with_secret(world: DeadWorld) -> set[str]:
    """Folders with files that hold a word as it is: Parquet compresses none that stands once."""
    root = Path(world.store.location)
    words = (SECRET.encode(), KEY.encode())
    paths = (path for path in root.rglob("*") if path.is_file())
    return {
        str(path.relative_to(root).parent)
        for path in paths
        if any(word in path.read_bytes() for word in words)
    }


def clean_up(world: DeadWorld) -> None:
    world.clock.advance(2 * 86_400)
    assert not Maintenance(world.store, clock=world.clock).run_once().failed


def is_clean(world: DeadWorld) -> bool:
    report = verify(world.store.location)
    assert report.is_clean, report
    return True


# --- the whole of it ------------------------------------------------------------------------------


def test_nothing_is_left_in_any_byte_of_the_store(world: DeadWorld) -> None:
    with (
        TraceHook(world.store) as trace,
        TransactionProducer(world.store, producer_group="shop", hooks=[trace]) as traced,
    ):
        traced.send(Message(TOPIC, SECRET.encode(), keys=["order-1", KEY]))
    world.send("of another", keys="customer-8")
    send_secret(world)
    send_secret(world, delay_s=3600)
    world.bury(SECRET, keys=KEY)
    before = {name: len(world.rows(name)) for name in world.store.topics()}
    kept_in = {"half", *(f"topics/{name}" for name in (TOPIC, SCHEDULE_TOPIC, DEAD, TRACE_TOPIC))}
    assert files_with_secret(world) == kept_in == set(found(world))

    report = erasure(world).apply(reason=WHY)

    assert {one.table for one in report.tables} == kept_in
    assert not report.on_their_way
    assert not report.is_gone
    assert found(world) == {}
    assert all(one.version is not None for one in report.tables)
    assert all(one.gone_after is not None and one.old_files for one in report.tables)
    assert before == {name: len(world.rows(name)) for name in world.store.topics()}
    assert is_clean(world)
    clean_up(world)
    assert files_with_secret(world) == set()
    assert erasure(world).look().is_gone
    assert is_clean(world)
    # What was delayed is delivered as the empty place that it is.
    world.deliver()
    assert sorted(map(bool, (row["body"] for row in world.rows()))).count(True) == 1
    assert is_clean(world)


def test_row_keeps_its_place_and_nothing_of_what_was_sent(world: DeadWorld) -> None:
    send_secret(world)
    (before,) = world.rows()

    erasure(world).apply(reason=WHY)

    (after,) = world.rows()
    gone = {"tags": None, "keys": None, "body": b"", "sharding_key": None}
    assert dict(after) == {**before, **gone, "properties": list(LEFT.items())}


def test_each_table_gets_one_rewrite_and_other_files_stay(world: DeadWorld) -> None:
    world.send("of another", keys="customer-8")
    send_secret(world)
    table = world.store.tables.table_at(f"topics/{TOPIC}")
    files = {file.path for file in table.files.all()}
    version = table.version

    report = erasure(world).apply(reason=WHY)

    shown = {one.table: one.version for one in report.tables}[f"topics/{TOPIC}"]
    assert shown == version + 1
    assert len(files & {file.path for file in table.refresh().files.all()}) == len(files) - 1
    # The second one closes the log.
    assert table.version == version + 2


def test_typed_columns_go_too(world: DeadWorld) -> None:
    fields = [{"name": "customer", "type": "string"}, {"name": "lines", "type": LINES}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    Topics(world.store).create("orders", body={"encoding": "json", "schema": schema})
    order = {"customer": SECRET, "lines": [{"item": SECRET}]}
    world.send(json.dumps(order), json.dumps(order | {"customer": "another"}), topic="orders")
    world.send(json.dumps(order), topic="orders", keys=KEY)
    table = world.store.tables.table_at("topics/orders")

    assert erasure(world).apply(reason=WHY).messages == 2

    table.refresh()
    shown = table.rows.read(table.files.all(), ["customer", "lines"]).to_pylist()
    assert sorted(row["customer"] or "" for row in shown) == ["", SECRET, "another"]
    assert [row["lines"] for row in shown if row["customer"] is None] == [None]
    assert is_clean(world)


def test_topic_narrows_it_to_its_messages_and_their_dead_letters(world: DeadWorld) -> None:
    world.bury(SECRET, keys=KEY)
    world.send("other topic", topic="invoices", keys=KEY)

    report = erasure(world, topic=TOPIC).apply(reason=WHY)

    assert {one.table for one in report.tables} == {"half", f"topics/{TOPIC}", f"topics/{DEAD}"}
    assert found(world) == {"half": 1, "topics/invoices": 1}


def send_traced(world: DeadWorld, topic: str) -> None:
    with (
        TraceHook(world.store) as trace,
        TransactionProducer(world.store, producer_group="shop", hooks=[trace]) as traced,
    ):
        traced.send(Message(topic, SECRET.encode(), keys=["order-1", KEY]))
    world.publisher.run_once()


class Late:
    """Keeps what a trace that is slow has not got yet."""

    def __init__(self) -> None:
        self.contexts: list[SendContext] = []

    def before_send(self, context: SendContext) -> None:
        """As every hook."""

    def after_send(self, context: SendContext) -> None:
        self.contexts.append(context)


def traces(world: DeadWorld) -> list[str | None]:
    return [row["keys"] for row in world.rows(TRACE_TOPIC)]


@pytest.mark.parametrize("passes", range(1, 4))
def test_topic_finds_its_traces_whenever_the_one_before_was_killed(
    world: DeadWorld, passes: int
) -> None:
    for topic in (EARLY, "invoices"):
        send_traced(world, topic)
    with killed_at(passes, FailPoint.FILES_REPLACED):
        erasure(world, topic=EARLY).apply(reason=WHY)
    assert is_clean(world)
    erasure(world, topic=EARLY).apply(reason=WHY)

    assert not erasure(world, topic=EARLY).look().messages
    # The other one is about a message of another topic.
    assert [keys is None for keys in traces(world)].count(True) == 1
    assert found(world) == {"half": 2, "topics/invoices": 1, f"topics/{TRACE_TOPIC}": 1}
    assert is_clean(world)


def test_trace_that_is_written_after_the_erasure_is_found_by_the_next(world: DeadWorld) -> None:
    late = Late()
    with (
        TraceHook(world.store) as trace,
        TransactionProducer(world.store, producer_group="shop", hooks=[late]) as producer,
    ):
        producer.send(Message(TOPIC, SECRET.encode(), keys=KEY))
        world.publisher.run_once()
        erasure(world, topic=TOPIC).apply(reason=WHY)
        assert not erasure(world, topic=TOPIC).look().messages
        trace.after_send(late.contexts[0])
    world.publisher.run_once()

    assert erasure(world, topic="invoices").look().messages == 0
    assert erasure(world, topic=TOPIC).apply(reason=WHY).messages == 2
    assert traces(world) == [None]
    assert is_clean(world)


# --- who meets an erased message ------------------------------------------------------------------


def test_consumers_pass_it_over_and_commit_its_offset(world: DeadWorld) -> None:
    world.send("first")
    send_secret(world)
    world.send("last")
    erasure(world).apply(reason=WHY)

    with PullConsumer(world.store, consumer_group="readers", topics=TOPIC) as consumer:
        got = sorted(message.body for message in consumer.poll(max_messages=10, timeout_s=5))
        consumer.commit()

    assert got == [b"first", b"last"]


def test_dead_letter_that_was_erased_is_not_sent_again(world: DeadWorld) -> None:
    world.bury(SECRET, keys=KEY)
    world.bury("of another")
    erasure(world).apply(reason=WHY)

    result = world.letters.replay(Chosen(everything=True), reason=WHY, apply=True)

    assert result.messages == 1
    assert len(world.letters.all()) == 2
    world.publisher.run_once()
    assert is_clean(world)


def test_retry_under_the_same_key_does_not_bring_it_back(world: DeadWorld) -> None:
    def keyed(body: str) -> str:
        moment = world.now - timedelta(seconds=1)
        transaction = world.producer.begin_transaction(
            idempotency_key="job-1", key_timestamp=moment.replace(microsecond=0)
        )
        transaction.send(Message(TOPIC, body.encode(), keys=KEY))
        transaction.prepare()
        transaction.commit()
        return transaction.id

    first = keyed(SECRET)
    world.publisher.run_once()
    erasure(world).apply(reason=WHY)

    assert keyed(SECRET) == first
    world.publisher.run_once()
    assert [row["body"] for row in world.rows()] == [b""]
    clean_up(world)
    assert files_with_secret(world) == set()


def test_rebuild_does_not_bring_it_back(world: DeadWorld) -> None:
    send_secret(world)
    world.send("of another")
    erasure(world).apply(reason=WHY)

    assert not rebuild_topic(world.store, TOPIC, world.clock, apply=True).is_needed
    table = world.store.tables.table_at(f"topics/{TOPIC}")
    table.writer.remove([table.files.all()[0]])
    assert rebuild_topic(world.store, TOPIC, world.clock, apply=True).is_written

    assert sorted(row["body"] for row in world.rows()) == [b"", b"of another"]
    assert is_clean(world)


@pytest.mark.parametrize("is_shown", [True, False])
def test_rebuild_that_read_before_reads_again(world: DeadWorld, *, is_shown: bool) -> None:
    send_secret(world)
    world.send("of another")
    table = world.store.tables.table_at(f"topics/{TOPIC}")
    table.writer.remove(table.files.all()[is_shown:])
    with halted(erases(world), FailPoint.PAYLOAD_WRITTEN):
        assert rebuild_topic(world.store, TOPIC, world.clock, apply=True).is_written

    assert sorted(row["body"] for row in world.rows()) == [b"", b"of another"]
    assert found(world) == {}
    assert is_clean(world)


@pytest.mark.parametrize("lost", [TOPIC, SCHEDULE_TOPIC])
@pytest.mark.parametrize("passes", range(1, 7))
def test_rebuild_that_commits_within_an_erasure_does_not_bring_it_back(
    world: DeadWorld, lost: str, passes: int
) -> None:
    send_secret(world)
    send_secret(world, delay_s=3600)
    table = world.store.tables.table_at(f"topics/{lost}")
    table.writer.remove(table.files.all())
    rebuild = HeldRebuild(world, lost)

    with halted(rebuild.goes_on, FailPoint.FILES_MERGED, FailPoint.FILES_REPLACED, passes=passes):
        erasure(world).apply(reason=WHY)
    rebuild.goes_on()

    assert len(world.rows(lost)) == 1
    assert found(world) == {}
    assert is_clean(world)


def test_rebuild_that_sleeps_through_a_killed_erasure_does_not_bring_it_back(
    world: DeadWorld,
) -> None:
    """What half held is gone when the erasure runs again, and the topic has not shown it yet."""
    send_secret(world)
    table = world.store.tables.table_at(f"topics/{TOPIC}")
    table.writer.remove(table.files.all())
    for path in Path(table.folder.location).glob("*.parquet"):
        path.unlink()
    rebuild = HeldRebuild(world, TOPIC)

    with killed_at(1, FailPoint.FILES_REPLACED):
        erasure(world).apply(reason=WHY)
    erasure(world).apply(reason=WHY)
    rebuild.goes_on()

    assert len(world.rows()) == 1
    assert found(world) == {}
    assert is_clean(world)


def erases(world: DeadWorld) -> Callable[[], None]:
    return lambda: void(erasure(world).apply(reason=WHY))


def void(_: object) -> None:
    """A result that nobody asks for."""


@contextmanager
def halted(meanwhile: Callable[[], None], *points: FailPoint, passes: int = 1) -> Iterator[None]:
    """Let something happen where this thread comes to one of these points for the n-th time."""
    thread, left = threading.get_ident(), passes

    def halts(point: FailPoint) -> None:
        nonlocal left
        if point in points and threading.get_ident() == thread:
            left -= 1
            if not left:
                meanwhile()

    disarm = arm(halts)
    try:
        yield
    finally:
        disarm()


class HeldRebuild:
    """A rebuild that has written its files and waits."""

    def __init__(self, world: DeadWorld, topic: str) -> None:
        self._may_go_on, self._has_written = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._rebuild, args=(world, topic))
        self._thread.start()
        assert self._has_written.wait(60)

    def _rebuild(self, world: DeadWorld, topic: str) -> None:
        with halted(self._waits, FailPoint.PAYLOAD_WRITTEN):
            rebuild_topic(world.store, topic, world.clock, apply=True)

    def _waits(self) -> None:
        self._has_written.set()
        assert self._may_go_on.wait(60)

    def goes_on(self) -> None:
        self._may_go_on.set()
        self._thread.join()


def test_verify_reports_a_copy_that_is_empty_while_its_half_is_not(world: DeadWorld) -> None:
    send_secret(world)
    erasure_of_topic_alone(world)

    violated = [
        one.invariant for one in verify(world.store.location).results if one.violation_count
    ]
    assert violated == ["I16"]


def erasure_of_topic_alone(world: DeadWorld) -> None:
    table = world.store.tables.table_at(f"topics/{TOPIC}")
    names = table.schema.columns.names
    (row,) = table.rows.read(table.files.all(), names).to_pylist()
    blank = {"tags": None, "keys": None, "body": b"", "sharding_key": None}
    rows = table.schema.columns.empty_table().from_pylist(
        [{**row, **blank, "properties": list(LEFT.items())}], table.schema.columns
    )
    table.writer.replace(rows, {})


# --- what is not ended yet ------------------------------------------------------------------------


def test_open_transaction_is_refused_by_name_and_nothing_is_written(world: DeadWorld) -> None:
    send_secret(world)
    transaction = world.producer.begin_transaction()
    transaction.send(Message(TOPIC, SECRET.encode(), keys=KEY))
    transaction.prepare()
    before = table_versions(world.store)

    with pytest.raises(ErasureRefusedError, match=transaction.id) as refused:
        erasure(world).apply(reason=WHY)

    assert refused.value.transaction_ids == (transaction.id,)
    assert SECRET not in str(refused.value)
    assert KEY not in str(refused.value)
    assert table_versions(world.store) == before
    transaction.rollback()
    with pytest.raises(ErasureRefusedError, match="publish"):
        erasure(world).apply(reason=WHY)
    world.publisher.run_once()
    assert erasure(world).apply(reason=WHY).messages == 3


def test_delivery_that_a_publisher_makes_meanwhile_is_found(world: DeadWorld) -> None:
    send_secret(world, delay_s=5)
    world.clock.advance(10)

    def delivers(point: FailPoint) -> None:
        if point is FailPoint.FILES_MERGED:
            disarm()
            # The claim alone: its publisher has read the body and not written it.
            world.service.run_once()

    disarm = arm(delivers)
    report = erasure(world).apply(reason=WHY)

    assert len(report.on_their_way) == 1
    world.publisher.run_once()
    assert not erasure(world).apply(reason=WHY).on_their_way
    assert found(world) == {}
    assert is_clean(world)


# --- who works meanwhile --------------------------------------------------------------------------


@pytest.mark.parametrize("passes", range(1, 5))
def test_killed_erasure_is_finished_by_the_next_one(world: DeadWorld, passes: int) -> None:
    send_secret(world)
    world.bury(SECRET, keys=KEY)
    with killed_at(passes, FailPoint.FILES_MERGED, FailPoint.FILES_REPLACED):
        erasure(world).apply(reason=WHY)
    assert is_clean(world)

    erasure(world).apply(reason=WHY)

    assert found(world) == {}
    clean_up(world)
    assert files_with_secret(world) == set()
    assert is_clean(world)


def test_compaction_of_the_same_files_is_waited_out(world: DeadWorld) -> None:
    for number in range(8):
        world.send(f"of another {number}")
    send_secret(world)
    compacted = []

    def compacts(point: FailPoint) -> None:
        if point is FailPoint.FILES_MERGED and not compacted:
            compacted.append(True)
            compact(world.store.tables.table_at("half"), 64 * 1024 * 1024)

    disarm = arm(compacts)
    erasure(world).apply(reason=WHY)
    disarm()

    assert found(world) == {}
    assert is_clean(world)


def test_conflicts_without_an_end_are_told(
    world: DeadWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_secret(world)

    def refused(table: TableWriter, *_: object) -> int:
        raise CommitRefusedError(table._name, "another was faster")

    monkeypatch.setattr(TableWriter, "rewrite", refused)

    with pytest.raises(CommitConflictError, match="run the erasure again"):
        erasure(world).apply(reason=WHY)


def test_two_erasures_and_a_sender_at_once(world: DeadWorld) -> None:
    for _ in range(3):
        send_secret(world)
    reports = []
    threads = [
        threading.Thread(target=lambda: reports.append(erasure(world).apply(reason=WHY)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for number in range(5):
        world.send(f"of another {number}")
    for thread in threads:
        thread.join()

    assert sum(report.messages for report in reports) == 6
    assert found(world) == {}
    assert len(world.rows()) == 8
    assert is_clean(world)


def test_leftovers_of_a_killed_sender_are_told_and_swept(world: DeadWorld) -> None:
    with killed_at(1, FailPoint.FILES_WRITTEN):
        half = world.store.tables.table_at("half")
        half.writer.append(
            halves(1, [Message(TOPIC, SECRET.encode(), keys=KEY)]), app_id="a", number=1
        )
    folder = Path(world.store.location, "half")
    for name in ("torn.parquet", "torn.parquet#2", f"torn.parquet.0a{UNFINISHED}"):
        (folder / name).write_bytes(b"torn")
    (left,) = (path for path in folder.iterdir() if path.name.startswith("part-"))
    # All of it, and not renamed yet.
    shutil.copy(left, f"{left}#1")

    (row,) = erasure(world).look().tables
    assert (row.table, row.messages, row.old_files, row.unreadable) == ("half", 0, 2, 3)
    assert row.gone_after is not None
    assert row.gone_after > world.now + timedelta(hours=23)
    clean_up(world)
    assert erasure(world).look().is_gone
    assert files_with_secret(world) == set()


def test_file_that_cannot_be_read_is_told_before_anything_is_written(world: DeadWorld) -> None:
    send_secret(world)
    table = world.store.tables.table_at(f"topics/{TOPIC}")
    Path(table.location, table.files.all()[0].path).write_bytes(b"damaged")
    before = table_versions(world.store)

    with pytest.raises(StorageError):
        erasure(world).apply(reason=WHY)

    assert table_versions(world.store) == before


# --- arguments, audit, command --------------------------------------------------------------------


def test_bad_arguments_are_refused(world: DeadWorld) -> None:
    for key in ("", "two keys", "\ud800", 5, None, b"key"):
        with pytest.raises(InvalidMessageError, match="one key"):
            Erasure(world.store, key)  # type: ignore[arg-type]
    with pytest.raises(InvalidReasonError):
        erasure(world).apply(reason=" ")


def test_audit_says_what_and_why_and_not_whose(world: DeadWorld) -> None:
    send_secret(world)
    erasure(world).apply(reason=WHY)

    (entry,) = erasure(world).audit()
    assert entry["messages"] == {"half": 1, f"topics/{TOPIC}": 1}
    assert entry["reason"].endswith(WHY)
    assert KEY not in str(entry)


def test_command_shows_then_erases_then_proves(world: DeadWorld) -> None:
    send_secret(world)

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["erase", world.store.location, "--key", KEY, *arguments])
        return result.exit_code, " ".join(result.output.split())

    before = table_versions(world.store)
    code, text = run()
    assert (code, "2 rows found" in text, "nothing was written" in text) == (0, True, True)
    assert table_versions(world.store) == before
    assert run("--check")[0] == 1
    assert run("--apply")[0] == 2
    code, text = run("--apply", "--reason", WHY)
    assert (code, "2 rows erased, 2 old files hold them" in text) == (0, True)
    assert run("--check")[0] == 1
    clean_up(world)
    code, text = run("--check")
    assert (code, text) == (
        0,
        "0 messages, 0 old files: no file of the store's tables holds this key",
    )
    assert '"is_gone": true' in run("--json")[1]
    assert SECRET not in text
