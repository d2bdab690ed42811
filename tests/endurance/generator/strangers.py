"""What other programs do to the tables: another engine changes one, somebody appends a row."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tests.endurance.generator.deeds import rows_of
from tests.endurance.generator.ledger import Answer
from tests.endurance.generator.plan import Step
from tests.endurance.generator.simulation import Life
from tests.endurance.generator.world import TOPICS, Deed, World, readable_files

TABLES = (
    "half", "op", "settled", "topics/alpha", "topics/beta", "topics/SCHEDULE_TOPIC_XXXX",
    "state/publisher", "state/group_readers", "effects", "payments",
)  # fmt: skip
OF_USERS = ("effects", "payments")
# Properties that txmq reads, as no txmq writes them.
PROPERTIES = (
    {"delta.checkpointInterval": "many"}, {"delta.checkpointInterval": "0"},
    {"txmq.swept_ms": "soon"}, {"txmq.swept_ms": str(2**62)},
    {"delta.logRetentionDuration": "interval 0 days"}, {"delta.enableChangeDataFeed": "false"},
)  # fmt: skip
# Rows of these are never what a caller was told.
STRANGER = "stranger"
FAR = (-(2**63), 2**63 - 1, 253_402_300_800_000_000)
NUMBERS = (None, -(2**31), 2**31 - 1, -1, 100_000)
TEXTS = (None, "", "\x00", "x" * 70_000, "../../evil", "NONSENSE")
Action = Callable[[DeltaTable, random.Random], Any]


# --- another engine -------------------------------------------------------------------------------


def optimize(table: DeltaTable, draw: random.Random) -> None:
    table.optimize.compact() if draw.random() < 0.7 else table.optimize.z_order(["body"])  # noqa: RUF100


def vacuum(table: DeltaTable, _: random.Random) -> None:
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)


def set_property(table: DeltaTable, draw: random.Random) -> None:
    table.alter.set_table_properties(draw.choice(PROPERTIES), raise_if_not_exists=False)


def checkpoint(table: DeltaTable, _: random.Random) -> None:
    table.create_checkpoint()


def go_back(table: DeltaTable, draw: random.Random) -> None:
    version = table.version()
    table.restore(draw.choice((0, version - 1, version - 1, version - 2)))


def delete(table: DeltaTable, draw: random.Random) -> None:
    names = [field.name for field in table.schema().fields]
    rows = table.to_pyarrow_table(columns=["transaction_id"]) if "transaction_id" in names else None
    if rows is None or not rows.num_rows or draw.random() < 0.3:
        table.delete()
    else:
        chosen = rows["transaction_id"][draw.randrange(rows.num_rows)].as_py()
        table.delete(f"transaction_id = '{chosen}'")


# These keep the rows, those take some.
HARMLESS: tuple[Action, ...] = (optimize, optimize, vacuum, set_property, set_property, checkpoint)
TAKING: tuple[Action, ...] = (go_back, go_back, delete)


def other_engine(world: World, _: Life, step: Step) -> None:
    """Another engine opens a table, others work, and it changes the table as it read it."""
    draw = random.Random(step.what)
    name, action = draw.choice(TABLES), draw.choice((*HARMLESS, *TAKING))
    location = str(_location(world, name))
    try:
        table = DeltaTable(location)
    except (DeltaError, OSError):
        # It is not there, or damaged.
        return
    for other in step.meanwhile:
        world.play(other)
    if action in TAKING:
        _take(world, name)
    there = set(bodies_in(world, "payments"))
    with suppress(DeltaError, ValueError, OSError):
        action(table, draw)
    _forget_what_stays(world, name)
    _note_paid(world, there, is_undone=action is go_back)


def lose_rows(world: World, _: Life, step: Step) -> None:
    """Another engine deletes all rows of a topic."""
    name = f"topics/{TOPICS[step.what % 2]}"
    location = str(_location(world, name))
    if DeltaTable.is_deltatable(location):
        _take(world, name)
        with suppress(DeltaError, OSError):
            DeltaTable(location).delete()
        _forget_what_stays(world, name)


def _take(world: World, name: str) -> None:
    """Rows may be gone after this; whose rows they were must be told."""
    ledger = world.ledger
    if name == "effects":
        ledger.undone |= set(bodies_in(world, name))
    elif name != "payments":
        acknowledged = ledger.bodies(Answer.SHOWN)
        if name.startswith("topics/"):
            there = {body for body, _, _ in rows_of(world, name.removeprefix("topics/"))}
            acknowledged = {place for place in acknowledged if place[1] in there}
        ledger.taken |= acknowledged
        ledger.damage(is_older=True)


def _forget_what_stays(world: World, name: str) -> None:
    """What is still there after the change was not taken, though retention may take it later."""
    if name.startswith("topics/"):
        there = {body for body, _, _ in rows_of(world, name.removeprefix("topics/"))}
        world.ledger.taken = {place for place in world.ledger.taken if place[1] not in there}


def _note_paid(world: World, before: set[str], *, is_undone: bool) -> None:
    """Note local transactions that a RESTORE undid; rows that are deleted are the user's matter."""
    ledger, there = world.ledger, set(bodies_in(world, "payments"))
    ended = _ended_ids(world) if before - there else set()
    open_bodies = {one.body for one in ledger.promises if one.transaction_id not in ended}
    ledger.paid |= before
    ledger.unpaid -= there
    if is_undone:
        ledger.unpaid |= (before - there) & open_bodies


def _ended_ids(world: World) -> set[str]:
    ids: set[str] = set()
    for path in readable_files(world.location / "op"):
        claims = pq.read_table(path, columns=["transaction_id", "kind"]).to_pylist()
        ids |= {row["transaction_id"] for row in claims if row["kind"] in ("COMMIT", "ROLLBACK")}
    return ids


def bodies_in(world: World, name: str) -> list[str]:
    """What is in a table of the user."""
    tables = [pq.read_table(p, columns=["body"]) for p in readable_files(_location(world, name))]
    return [body for table in tables for body in table["body"].to_pylist()]


def _location(world: World, name: str) -> Any:
    return (world.simulation.root if name in OF_USERS else world.location) / name


# --- foreign rows ---------------------------------------------------------------------------------


def foreign_row(world: World, _: Life, step: Step) -> None:
    """Somebody appends a row, of which one value is odd; or a claim that is there, once more."""
    draw = random.Random(step.what)
    world.ledger.has_foreign_rows = True
    if draw.random() < 0.15:
        return _claim_again(world, draw)
    name = draw.choice(("half", "half", "half", "op", "settled", "topics/alpha", "topics/beta"))
    like = _row_like(world, name)
    if like is None:
        return None
    number = draw.getrandbits(40)
    key = f"{int(world.simulation.now_s * 1000):012x}"
    foreign = f"{key[:8]}-{key[8:]}-7000-8000-{number:012d}"
    row = {**like, "transaction_id": foreign, "message_id": f"{foreign}:0", "body": b"foreign"}
    # Who forges the retry of a message takes its place, and nobody can tell.
    row["properties"] = [pair for pair in like.get("properties") or () if "ORIGIN" not in pair[0]]
    # No honest message has the place of a row of a topic.
    row |= {"sequence": 0, "message_count": 1} if name == "half" else {"queue_offset": -1}
    schema = pa.schema(DeltaTable(str(world.location / name)).schema().to_arrow())
    column = draw.choice(schema.names)
    _append(world, name, row, column, draw.choice(_odd(schema.field(column).type)))
    if name == "half" and draw.random() < 0.7:
        _commit(world, foreign)
    return None


def _claim_again(world: World, draw: random.Random) -> None:
    """A row of the op log is appended once more, as it is, signature and all."""
    location = str(world.location / "op")
    with suppress(OSError):
        rows = DeltaTable(location).to_pyarrow_table()
        if rows.num_rows:
            row = rows.slice(draw.randrange(rows.num_rows), 1)
            _note_end(world, row)
            write_deltalake(location, row, mode="append")


def _note_end(world: World, row: pa.Table) -> None:
    """Note whose messages a COMMIT without a signature ends, where an operator resumed them."""
    (claim,) = row.select(["transaction_id", "kind", "signature"]).to_pylist()
    if claim["kind"] != "COMMIT" or claim["signature"] is not None:
        return
    for transaction in world.ledger.open:
        if transaction.id == claim["transaction_id"]:
            for promise in transaction.promises:
                if promise.answer is Answer.HIDDEN:
                    promise.answer = Answer.EITHER


def _commit(world: World, transaction_id: str) -> None:
    """Its COMMIT, as its producer would claim it."""
    like = _row_like(world, "op")
    if like is not None:
        row = {**like, "transaction_id": transaction_id, "kind": "COMMIT", "sequences": None}
        _append(world, "op", {**row, "source": "producer", "ordinal": 0}, None, None)


def _row_like(world: World, name: str) -> dict[str, Any] | None:
    """A row that is there; None where there is none."""
    location = str(world.location / name)
    if not DeltaTable.is_deltatable(location):
        return None
    # A time that Python has not is somebody's odd value; a file may be gone.
    with suppress(OverflowError, ValueError, OSError):
        found: list[dict[str, Any]] = (
            DeltaTable(location).to_pyarrow_table().slice(0, 1).to_pylist()
        )
        return found[0] if found else None
    return None


def _append(world: World, name: str, row: dict[str, Any], column: str | None, odd: Any) -> None:
    location = str(world.location / name)
    schema = pa.schema(DeltaTable(location).schema().to_arrow())
    columns = [pa.array([row.get(name)], schema.field(name).type) for name in schema.names]
    if column is not None:
        place, kind = schema.get_field_index(column), schema.field(column).type
        is_time = pa.types.is_timestamp(kind)
        columns[place] = pa.array([odd]).cast(kind) if is_time else pa.array([odd], kind)
    # What delta-rs refuses is no row.
    with suppress(DeltaError, ValueError, OSError):
        write_deltalake(location, pa.table(columns, schema=schema), mode="append")


def _odd(kind: pa.DataType) -> tuple[Any, ...]:
    """Values that no txmq writes into a column of this type, but it must not stop at them."""
    if pa.types.is_list(kind):
        return (None, [], [-1], [0, 0])
    return _ODD.get(str(kind), (None,))


_ODD = {
    "int32": NUMBERS, "int64": (*NUMBERS, *FAR), "string": TEXTS, "large_string": TEXTS,
    "double": (None, float("nan"), float("inf"), -1.0), "timestamp[us, tz=UTC]": (*FAR, None),
}  # fmt: skip
STRANGE_DEEDS: dict[str, Deed] = {"other engine": other_engine, "foreign row": foreign_row,
                               "lose rows": lose_rows}  # fmt: skip
