"""A store that txmq itself filled with every kind of life, and bugs to plant in copies of it.

Each bug has a transaction of its own, so that several can be planted in one store.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from txmq.check import open_set
from txmq.check.open_transactions import OpenTransactions
from txmq.check.recheck import RecheckJob
from txmq.delta.schemas import TableSchema
from txmq.ground.clock import SystemClock
from txmq.message.ids import first_transaction_id, new_transaction_id
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.ops.admin.operator import Operator
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.half import HalfOrigin, HalfTransaction, half_table
from txmq.store.op import OpRow
from txmq.store.schemas import HALF, OPEN_SET, REGISTER, SETTLED, TOPIC
from txmq.store.store import Store
from txmq.testing import ManualClock
from txmq.verify import VerifyReport

GROUP, SILENT = "shop", "silent"
DEAD = TRANS_CHECK_MAX_TIME_TOPIC
CHECK_MAX = 2
KIND = ClaimKind
COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
# Older than all else in the store.
FORGOTTEN_BEFORE = date(2020, 2, 1)
FORGOTTEN_ID = first_transaction_id(1_577_836_800_000)
CONFIG = Config(transaction_check_max=CHECK_MAX, default_topic_queue_nums=1)

COMMITTED = (
    "plain", "plain_once", "swapped_first", "swapped_second", "offset_gap", "doubled_row",
    "lost_row", "one_topic_lost", "wrong_topic", "body_truncated", "properties_made_null",
    "born_later", "doubled_fact", "dead_letter_of_committed", "half_row_altered",
    "half_file_deleted",
    "data_file_lost", "other_commit_named", "ended_and_asked", "fact_lost", "mark_set_back",
)  # fmt: skip
ROLLED_BACK = ("rolled_back", "shown_rolled_back", "last_end_wins")
DISCARDED = (
    "discarded", "resumed", "dead_letter_lost", "dead_letter_doubled", "dead_letters_torn",
    "discarded_is_shown",
)  # fmt: skip
OPEN = (
    "open", "open_is_shown", "fact_without_claim", "wrong_group_settled", "discard_too_early",
    "check_gap", "check_above_maximum", "check_before_immunity", "beyond_the_mark",
    "check_too_soon", "commit_of_halves_that_differ",
    "not_in_the_open_set",
)  # fmt: skip
# Their bugs are about a whole topic; all others share one.
TOPICS = {
    "offset_gap": "odd", "swapped_first": "odd", "swapped_second": "odd", "mark_set_back": "stock",
    "data_file_lost": "lost",
}  # fmt: skip


class SaysNothing:
    """Knows the answer to no question."""

    def execute_local_transaction(self, message: object, argument: object) -> object:  # noqa: ARG002
        raise AssertionError

    def check_local_transaction(self, message: object) -> LocalTransactionState:  # noqa: ARG002
        return LocalTransactionState.UNKNOWN


@dataclass(frozen=True)
class Filled:
    """A store and the id of each named transaction in it."""

    location: str
    ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return Store.open(self.location)


def copied(made: Filled, folder: Path) -> Filled:
    """The same store in a folder of its own, to plant bugs in."""
    shutil.copytree(made.location, folder)
    return replace(made, location=str(folder))


def topic_of(name: str) -> str:
    return TOPICS.get(name, "paid")


def filled(location: str) -> Filled:
    """Every outcome but those that need Spark, all of it published; nothing is wrong."""
    store = Store.create(location, CONFIG)
    ids: dict[str, str] = {}
    with TransactionProducer(store, producer_group=SILENT) as producer:
        _send(producer, DISCARDED, ids)
    _discard(store)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for name, sent in _send(producer, (*COMMITTED, *ROLLED_BACK, *OPEN), ids).items():
            if name in COMMITTED:
                sent.commit()
            if name in ROLLED_BACK:
                sent.rollback()
    made = Filled(location, ids)
    _double_ends(made)
    _incomplete(made)
    _resumed(made)
    Publisher(store).run_once()
    _keep_open_set(store)
    return made


def _keep_open_set(store: Store) -> None:
    reader = OpenTransactions(store, SystemClock())
    reader.read()
    with mock.patch.object(open_set, "KEEP_EVERY_ROWS", 0):
        assert reader.open_set.keep()


def _send(producer: TransactionProducer, names: Sequence[str], ids: dict[str, str]) -> Any:
    sent = {}
    for name in names:
        transaction = producer.begin_transaction()
        transaction.send(Message(topic_of(name), f"body of {name}".encode(), keys=name))
        if name in ("one_topic_lost", "plain"):
            transaction.send(Message("stock", b"\x00\xff", tags="tag", properties={"b": "1"}))
        if name in ("dead_letters_torn", "plain"):
            transaction.send(Message(topic_of(name), b"", sharding_key="key"))
        transaction.prepare()
        sent[name], ids[name] = transaction, transaction.id
    return sent


def _discard(store: Store) -> None:
    clock = ManualClock(time.time_ns() // 1_000_000)
    for _ in range(CHECK_MAX + 1):
        clock.advance(60)
        RecheckJob(store, listeners={SILENT: SaysNothing()}, clock=clock).run_once()
    Publisher(store).run_once()


def _double_ends(made: Filled) -> None:
    vandal = Vandal(made.location)
    vandal.claim(made.ids["plain"], KIND.ROLLBACK)
    vandal.claim(made.ids["last_end_wins"], KIND.COMMIT)
    vandal.claim(made.ids["open"], KIND.COMMIT, group="strangers")
    vandal.claim(new_transaction_id(1_800_000_000_000), KIND.COMMIT)


def _incomplete(made: Filled) -> None:
    """One of its two messages is missing when its COMMIT is settled."""
    own_id = new_transaction_id(time.time_ns() // 1_000_000)
    origin = HalfOrigin(own_id, GROUP, 0, 6.0, time.time_ns() // 1_000_000)
    rows = half_table([HalfTransaction(origin, [Message("paid", b"one")], [0], 2)])
    made.store.tables.half_log().table.writer.append(rows, app_id="test", number=1)
    # A listener said so; a producer would have been told.
    Vandal(made.location).claim(own_id, KIND.COMMIT, source=ClaimSource.RECHECK)


def _resumed(made: Filled) -> None:
    own_id = made.ids["resumed"]
    Operator(made.store).resume(own_id, reason="asked the shop", apply=True)
    with TransactionProducer(made.store, producer_group=SILENT) as producer:
        producer.end_transaction(own_id, COMMIT)


# --- what txmq never does -------------------------------------------------------------------------


class Vandal:
    """Writes rows that nobody asked for, and takes others away."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.store = Store.open(location)
        self.op_id = str(DeltaTable(f"{location}/op").metadata().id)

    def rows(self, path: str, transaction_id: str | None = None) -> list[dict[str, Any]]:
        found = pa.table(DeltaTable(f"{self.location}/{path}").to_pyarrow_table()).to_pylist()
        return [row for row in found if transaction_id in (None, row["transaction_id"])]

    def append(
        self,
        path: str,
        schema: TableSchema,
        rows: Sequence[Mapping[str, Any]],
        marks: Mapping[str, int] | None = None,
    ) -> None:
        self._write(path, schema, rows, "append", marks or {})

    def rewrite(self, path: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        """All rows of a topic as `change` wants them; None takes a row away."""
        rows = [new for row in self.rows(path) if (new := change(row)) is not None]
        self._write(path, TOPIC, rows, "overwrite", {})

    def _write(
        self,
        path: str,
        schema: TableSchema,
        rows: Sequence[Mapping[str, Any]],
        mode: Any,
        marks: Mapping[str, int],
    ) -> None:
        transactions = [Transaction(name, number, 1) for name, number in marks.items()]
        write_deltalake(
            f"{self.location}/{path}",
            pa.Table.from_pylist(list(rows), schema=schema.columns),
            mode=mode,
            commit_properties=CommitProperties(app_transactions=transactions or None),
        )

    def claim(self, own_id: str, kind: ClaimKind, *, group: str = GROUP, **fields: Any) -> int:
        """One more claim; the version of its commit."""
        hour_later_ms = time.time_ns() // 1_000_000 + 3_600_000
        given = {"source": ClaimSource.PRODUCER, "op_timestamp_ms": hour_later_ms, **fields}
        row = OpRow(own_id, kind, group, **given)
        number = time.time_ns()
        return self.store.tables.op_log().append([row], 0, app_id=f"vandal/{number}", number=1)

    def check(self, own_id: str, times: int, **fields: Any) -> int:
        return self.claim(
            own_id, KIND.UNKNOWN, check_times=times, life=0,
            **{"source": ClaimSource.RECHECK, **fields},
        )  # fmt: skip

    def settle(self, own_id: str, state: str, version: int, *, moves_mark: bool = True) -> None:
        now = datetime.now(tz=UTC)
        row = {
            "transaction_id": own_id, "state": state, "op_version": version, "ordinal": 0,
            "settled_timestamp": now, "source": "producer", "producer_group": GROUP, "life": 0,
            "op_timestamp": now, "store_date": now.date(),
        }  # fmt: skip
        marks = {f"txmq/{self.op_id}": version} if moves_mark else {}
        self.append("settled", SETTLED, [row], marks)

    def set_register(self, name: str, value: Mapping[str, Any]) -> None:
        """One of the small values under state/."""
        row = {"revision": 1, "value": json.dumps(value), "updated_timestamp": datetime.now(tz=UTC)}
        rows = pa.Table.from_pylist([row], schema=REGISTER.columns)
        write_deltalake(f"{self.location}/state/{name}", rows, mode="overwrite")

    def show(self, own_id: str, topic: str = "paid", **changes: Any) -> None:
        """The messages of a transaction as further rows of a topic."""
        offset = max((row["queue_offset"] for row in self.rows(f"topics/{topic}")), default=-1)
        rows = []
        for half in self.rows("half", own_id):
            offset += 1
            given = {
                "topic": half["real_topic"], "queue_id": 0, "queue_offset": offset, "life": 0,
                "op_version": 1, "store_timestamp": datetime.now(tz=UTC), **changes,
            }  # fmt: skip
            rows.append({name: {**half, **given}.get(name) for name in TOPIC.columns.names})
        marks = {"txmq-offset/0": offset + 1, **self._risen(topic, changes.get("op_version", 1))}
        self.append(f"topics/{topic}", TOPIC, rows, marks)

    def _risen(self, topic: str, version: int) -> dict[str, int]:
        name = f"txmq/{self.op_id}"
        mark = DeltaTable(f"{self.location}/topics/{topic}").transaction_version(name)
        return {name: version} if mark is None or version > mark else {}

    def change(self, own_id: str, topic: str = "paid", **changes: Any) -> None:
        self.rewrite(
            f"topics/{topic}",
            lambda row: {**row, **changes} if row["transaction_id"] == own_id else row,
        )

    def lose(self, own_id: str, topic: str = "paid", *, keep: int = 0) -> None:
        self.rewrite(
            f"topics/{topic}",
            lambda row: row if row["transaction_id"] != own_id or row["sequence"] < keep else None,
        )


# --- what maintenance does ------------------------------------------------------------------------


def forget(made: Filled, before: date) -> None:
    """Take all rows out of the three logs, as retention does, and keep how far it went."""
    Vandal(made.location).set_register("maintenance", {"forgotten_before_date": before.isoformat()})
    for log in ("half", "op", "settled"):
        DeltaTable(f"{made.location}/{log}").delete()


def clean_log(made: Filled, log: str) -> None:
    """As `clean_log_at`."""
    clean_log_at(made.location, log)


def clean_log_at(location: str, log: str) -> None:
    """Leave a checkpoint and the newest commit of a log."""
    table = DeltaTable(f"{location}/{log}")
    table.create_checkpoint()
    newest = f"{table.version():020d}.json"
    for path in Path(location, log, "_delta_log").glob("*.json"):
        if path.name < newest:
            path.unlink()


# --- bugs -----------------------------------------------------------------------------------------


def shown_rolled_back(vandal: Vandal, own_id: str) -> None:
    vandal.show(own_id)


def last_end_wins(vandal: Vandal, own_id: str) -> None:
    vandal.show(own_id)


def doubled_row(vandal: Vandal, own_id: str) -> None:
    (row,) = vandal.rows("topics/paid", own_id)
    vandal.show(own_id, op_version=row["op_version"])


def lost_row(vandal: Vandal, own_id: str) -> None:
    vandal.lose(own_id)


def open_is_shown(vandal: Vandal, own_id: str) -> None:
    vandal.show(own_id)


def one_topic_lost(vandal: Vandal, own_id: str) -> None:
    vandal.lose(own_id, "stock")


def wrong_topic(vandal: Vandal, own_id: str) -> None:
    (row,) = vandal.rows("topics/paid", own_id)
    vandal.show(own_id, "stock", op_version=row["op_version"])


def body_truncated(vandal: Vandal, own_id: str) -> None:
    vandal.change(own_id, body=b"body")


def properties_made_null(vandal: Vandal, own_id: str) -> None:
    vandal.change(own_id, properties=None)


def born_later(vandal: Vandal, own_id: str) -> None:
    vandal.change(own_id, born_timestamp=datetime.now(tz=UTC) + timedelta(days=1))


def other_commit_named(vandal: Vandal, own_id: str) -> None:
    vandal.change(own_id, life=1)


def doubled_fact(vandal: Vandal, own_id: str) -> None:
    rows = vandal.rows("settled", own_id)
    vandal.append("settled", SETTLED, rows)


def fact_lost(vandal: Vandal, own_id: str) -> None:
    DeltaTable(f"{vandal.location}/settled").delete(f"transaction_id = '{own_id}'")


def fact_without_claim(vandal: Vandal, own_id: str) -> None:
    vandal.settle(own_id, "ROLLED_BACK", 1, moves_mark=False)


def wrong_group_settled(vandal: Vandal, own_id: str) -> None:
    version = vandal.claim(own_id, KIND.COMMIT, group="strangers")
    vandal.settle(own_id, "COMMITTED", version)


def beyond_the_mark(vandal: Vandal, own_id: str) -> None:
    version = vandal.claim(own_id, KIND.ROLLBACK)
    vandal.settle(own_id, "ROLLED_BACK", version, moves_mark=False)


def offset_gap(vandal: Vandal, own_id: str) -> None:
    vandal.change(own_id, "odd", queue_offset=3)


def swapped_first(vandal: Vandal, own_id: str) -> None:
    """The first two messages of its topic change places."""
    assert vandal.rows("topics/odd", own_id)
    places = {0: 1, 1: 0}
    vandal.rewrite(
        "topics/odd",
        lambda row: {**row, "queue_offset": places.get(row["queue_offset"], row["queue_offset"])},
    )


def dead_letter_lost(vandal: Vandal, own_id: str) -> None:
    vandal.lose(own_id, DEAD)


def dead_letters_torn(vandal: Vandal, own_id: str) -> None:
    vandal.lose(own_id, DEAD, keep=1)


def dead_letter_doubled(vandal: Vandal, own_id: str) -> None:
    (row,) = vandal.rows(f"topics/{DEAD}", own_id)
    vandal.show(own_id, DEAD, op_version=row["op_version"])


def dead_letter_of_committed(vandal: Vandal, own_id: str) -> None:
    vandal.show(own_id, DEAD)


def discarded_is_shown(vandal: Vandal, own_id: str) -> None:
    vandal.show(own_id)


def row_from_nowhere(vandal: Vandal, own_id: str) -> None:
    row = vandal.rows("topics/paid", own_id)[0]
    stranger = new_transaction_id(1_800_000_000_000)
    offset = max(row["queue_offset"] for row in vandal.rows("topics/paid")) + 1
    changes = {"transaction_id": stranger, "keys": f"instead of {own_id}", "queue_offset": offset,
               "message_id": f"{own_id} from nowhere"}  # fmt: skip
    vandal.append("topics/paid", TOPIC, [{**row, **changes}], {"txmq-offset/0": offset + 1})


def mark_set_back(vandal: Vandal, own_id: str) -> None:
    (row,) = vandal.rows("topics/stock", own_id)
    for version in (row["op_version"], 1):
        vandal.append("topics/stock", TOPIC, [], {f"txmq/{vandal.op_id}": version})


def data_file_lost(vandal: Vandal, own_id: str) -> None:
    assert vandal.rows("topics/lost", own_id)
    for path in Path(vandal.location, "topics/lost").glob("*.parquet"):
        path.unlink()


def half_row_altered(vandal: Vandal, own_id: str) -> None:
    where = f"transaction_id = '{own_id}'"
    DeltaTable(f"{vandal.location}/half").update(updates={"tags": "'other'"}, predicate=where)


def half_file_deleted(vandal: Vandal, own_id: str) -> None:
    DeltaTable(f"{vandal.location}/half").delete(f"transaction_id = '{own_id}'")


def discard_too_early(vandal: Vandal, own_id: str) -> None:
    vandal.check(own_id, 1)
    version = vandal.claim(own_id, KIND.DISCARD, life=0, source=ClaimSource.RECHECK)
    vandal.settle(own_id, "DISCARDED", version)
    vandal.show(own_id, DEAD, op_version=version)


def check_gap(vandal: Vandal, own_id: str) -> None:
    vandal.check(own_id, 2)


def check_above_maximum(vandal: Vandal, own_id: str) -> None:
    for times in range(1, CHECK_MAX + 2):
        vandal.check(own_id, times)


def check_before_immunity(vandal: Vandal, own_id: str) -> None:
    vandal.check(own_id, 1, op_timestamp_ms=time.time_ns() // 1_000_000 - 3_600_000)


def check_too_soon(vandal: Vandal, own_id: str) -> None:
    now_ms = time.time_ns() // 1_000_000 + 3_600_000
    vandal.check(own_id, 1, op_timestamp_ms=now_ms, next_check_timestamp_ms=now_ms + 30_000)
    vandal.check(own_id, 2, op_timestamp_ms=now_ms + 1_000)


def ended_and_asked(vandal: Vandal, own_id: str) -> None:
    vandal.check(own_id, 1)
    vandal.check(own_id, 2)


def commit_of_halves_that_differ(vandal: Vandal, own_id: str) -> None:
    (row,) = vandal.rows("half", own_id)
    vandal.append("half", HALF, [{**row, "body": b"another"}])
    version = vandal.claim(own_id, KIND.COMMIT)
    vandal.settle(own_id, "INCOMPLETE", version)


def commit_of_what_retention_took(vandal: Vandal, _: str) -> None:
    vandal.set_register("maintenance", {"forgotten_before_date": FORGOTTEN_BEFORE.isoformat()})
    vandal.claim(FORGOTTEN_ID, KIND.COMMIT)


def group_beyond_its_topic(vandal: Vandal, _: str) -> None:
    vandal.set_register("group_readers", {"offsets": {"": {"stock": {"0": 99}}}})


def group_handed_out_beyond_its_topic(vandal: Vandal, _: str) -> None:
    value = {"offsets": {"": {"stock": {"0": 0}}}, "attempts": {"stock": {"0": [99, [[0, 1, 1]]]}}}
    vandal.set_register("group_packers", value)


def not_in_the_open_set(vandal: Vandal, own_id: str) -> None:
    table = vandal.store.tables.open_set().refresh()
    rows = table.rows.read(table.files.all(), OPEN_SET.columns.names)
    rows = rows.filter(pc.not_equal(rows["transaction_id"], own_id))
    files = table.writer.new_files(rows)
    marks = {open_set.FILES_MARK: open_set.name_print(file.path for file in files)}
    table.writer.replace_files(files, marks)


def topic_beyond_the_settled_log(vandal: Vandal, _: str) -> None:
    vandal.append("topics/odd", TOPIC, [], {f"txmq/{vandal.op_id}": 1_000_000})


@dataclass(frozen=True)
class Bug:
    """Something wrong, by one of the functions above.

    Attributes:
        breaks: invariants whose violations name the `subject`.
        also: those that break beside them.
        of: the name of the transaction, where it is not that of the function.
        subject: what violations name; the transaction if left out.
    """

    plant: Callable[[Vandal, str], None]
    breaks: tuple[str, ...]
    also: tuple[str, ...] = ()
    of: str | None = None
    subject: str | None = None

    @property
    def name(self) -> str:
        return self.plant.__name__

    def do(self, made: Filled) -> None:
        self.plant(Vandal(made.location), made.ids[self.of or self.name])

    def subject_in(self, made: Filled) -> str:
        return self.subject or made.ids[self.of or self.name]


def assert_named(subject: str, invariants: Collection[str], report: VerifyReport) -> None:
    """Violations of each of these promises name the subject."""
    for result in report.results:
        if result.invariant in invariants:
            ids = [violation.row_id for violation in result.violations]
            assert any(subject in row_id for row_id in ids), f"{result.invariant} names {ids}"


BUGS = (
    Bug(shown_rolled_back, ("I2",), ("I23",)),
    Bug(last_end_wins, ("I2",), ("I23",)),
    Bug(doubled_row, ("I3",), ("I14", "I23")),
    Bug(lost_row, ("I1",), ("I23",)),
    Bug(open_is_shown, ("I5",), ("I23",)),
    Bug(one_topic_lost, ("I13", "I1"), ("I23",)),
    Bug(wrong_topic, ("I4", "I3"), ("I14", "I23")),
    Bug(body_truncated, ("I16",)),
    Bug(properties_made_null, ("I16",)),
    Bug(born_later, ("I16",)),
    Bug(other_commit_named, ("I10",)),
    Bug(doubled_fact, ("I10",)),
    Bug(fact_lost, ("I10",)),
    Bug(fact_without_claim, ("I10",)),
    Bug(wrong_group_settled, ("I10",)),
    Bug(offset_gap, ("I23", "I21"), subject="odd/0"),
    Bug(swapped_first, ("I14",)),
    Bug(dead_letter_lost, ("I19",), ("I23",)),
    Bug(dead_letters_torn, ("I13", "I19"), ("I23",)),
    Bug(dead_letter_doubled, ("I3",), ("I14",)),
    Bug(dead_letter_of_committed, ("I11",)),
    Bug(discarded_is_shown, ("I11",), ("I23",)),
    Bug(row_from_nowhere, ("I4",), ("I23",), of="plain_once"),
    Bug(mark_set_back, ("I21",), subject="topics/stock version"),
    Bug(data_file_lost, ("I26",), ("I1", "I23"), subject="topics/lost"),
    Bug(half_row_altered, ("I17",), ("I16",), subject="half version"),
    Bug(half_file_deleted, ("I17",), ("I4", "I23"), subject="half version"),
    Bug(discard_too_early, ("I19",)),
    Bug(check_gap, ("I18",)),
    Bug(check_above_maximum, ("I18",)),
    Bug(check_before_immunity, ("I18",)),
    Bug(check_too_soon, ("I18",)),
    Bug(ended_and_asked, ("I18",)),
    Bug(commit_of_halves_that_differ, ("I28",)),
    Bug(commit_of_what_retention_took, ("I28",), of="plain", subject=FORGOTTEN_ID),
    Bug(group_beyond_its_topic, ("I29",), of="plain", subject="state/group_readers stock/0"),
    Bug(
        group_handed_out_beyond_its_topic,
        ("I29",),
        of="plain",
        subject="state/group_packers stock/0",
    ),
    Bug(not_in_the_open_set, ("I30",)),
    Bug(topic_beyond_the_settled_log, ("I21",), of="offset_gap", subject="topics/odd"),
    # The last one, for others move the mark.
    Bug(beyond_the_mark, ("I21",)),
)
