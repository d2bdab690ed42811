"""A small partitioned table, its rows, and a commit of any kind that txmq makes."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa

from tests.kit.delta_protocol import COMMIT
from txmq.delta.schemas import TableSchema
from txmq.delta.table import Table

NUMBERS = TableSchema(
    "numbers",
    pa.schema([pa.field("number", pa.int64()), pa.field("part", pa.string())]),
    partition_by=("part",),
    change_data_feed=True,
)
PARTS = ["a", "b c", "ü%", None]
# No commit of a test comes so far.
NO_CHECKPOINTS = 1_000_000


def rows(*numbers: int, part: str | None = "a") -> pa.Table:
    columns = {"number": list(numbers), "part": [part] * len(numbers)}
    return pa.table(columns, schema=NUMBERS.columns)


def numbers_table(folder: Path, checkpoint_interval: int = NO_CHECKPOINTS) -> Table:
    made = Table(str(folder / "numbers"), NUMBERS)
    made.writer.create(checkpoint_interval=checkpoint_interval)
    return made.refresh()


def another(table: Table) -> Table:
    return Table(table.location, NUMBERS).refresh()


def stored(table: Table) -> list[int]:
    fresh = another(table)
    return sorted(fresh.rows.read(fresh.files.all(), ("number",))["number"].to_pylist())


def without_commits_before(table: Table, version: int) -> None:
    """Leave the checkpoint and the commits after it."""
    for path in Path(table.location, "_delta_log").iterdir():
        name = COMMIT.fullmatch(path.name)
        if name and int(name[1]) < version:
            path.unlink()


def something(table: Table, dice: random.Random, step: int) -> None:
    """One commit of any kind that txmq makes."""
    files = table.refresh().files.all()
    kind = dice.choice(["append", "append", "append", "swap", "rewrite", "remove", "property"])
    if kind == "append":
        part = pa.concat_tables(rows(step, part=p) for p in dice.sample(PARTS, 2))
        table.writer.append(part, app_id=f"app-{dice.randrange(3)}", number=step)
    elif kind == "swap":
        table.writer.swap(rows(step), {"progress": step})
    elif kind == "rewrite" and files:
        table.writer.rewrite(files[:2], table.writer.new_files(rows(step, step)))
    elif kind == "remove" and files:
        table.writer.remove(files[:1], {"removed": step})
    else:
        table.writer.set_properties({"txmq.step": str(step)})
