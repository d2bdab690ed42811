"""One row, property, mark or file of another program anywhere in a store; then an honest day.

Nothing stops, nothing honest is lost or doubled, and each queue keeps its order. FOREIGN_INPUT says
how many cases are run; `make foreign` runs 10,000, other ones each time.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.kit.foreign_input import (
    AS_THE_PROTOCOL_SAYS,
    NUMBERS_AS_TEXT,
    STATISTICS,
    ForeignProgram,
    Told,
    column_of,
    odd_values,
)
from tests.kit.honest_day import BILLING, PAID, HonestDay, day_before
from txmq.delta.schemas import TableSchema
from txmq.message.names import SCHEDULE_TOPIC
from txmq.store.schemas import HALF, OP, REGISTER, SCHEDULE, SETTLED, TOPIC
from txmq.testing import ManualClock

CASES = int(os.environ.get("FOREIGN_INPUT", "10"))
IS_LONG = "FOREIGN_INPUT" in os.environ
# Of ten cases.
SHARES = {"rows": 7, "properties": 1, "marks": 1, "entries": 1}
REPORT = os.environ.get("FOREIGN_INPUT_REPORT")
LOGS: Mapping[str, TableSchema] = {
    "half": HALF, "op": OP, "settled": SETTLED, f"topics/{PAID}": TOPIC,
    f"topics/{SCHEDULE_TOPIC}": SCHEDULE,
}  # fmt: skip
REGISTERS = ("publisher", "maintenance", "topics", f"group_{BILLING}", "check_lease")
SCHEMAS = {**LOGS, **{f"state/{name}": REGISTER for name in REGISTERS}}
PROPERTIES = (
    "delta.checkpointInterval", "delta.logRetentionDuration", "delta.deletedFileRetentionDuration",
    "delta.setTransactionRetentionDuration", "delta.dataSkippingStatsColumns",
    "delta.dataSkippingNumIndexedCols", "delta.enableChangeDataFeed", "txmq.swept_ms",
    "txmq.schema_version", "txmq.body_schema", "txmq.other",
)  # fmt: skip
MARKS = (
    "txmq-offset/None", "txmq-offset/9", "txmq-offset/99999999999", "other", "", "txmq/x/y",
    "txmq-once/x", "\u0663",
)  # fmt: skip
KINDS = (b"COMMIT", b"ROLLBACK", b"UNKNOWN", b"DISCARD", b"RESUME", b"EXPIRE", b"DELIVER",
         b"RECALL")  # fmt: skip
Row = Mapping[str, pa.Array]


@dataclass(frozen=True, repr=False)
class Template:
    """A store after a day of honest work; `victim` is open, and nobody's loss."""

    location: Path
    victim: str
    rows: Mapping[str, pa.Table]

    def row(self, path: str, number: int) -> dict[str, pa.Array]:
        """Return one honest row."""
        rows = self.rows[path]
        return {name: rows[name].slice(number, 1).combine_chunks() for name in rows.column_names}

    @property
    def half_of_victim(self) -> int:
        """Which row of half it is; honest halves are not forged: that is the producer's loss."""
        place: int = self.rows["half"]["transaction_id"].to_pylist().index(self.victim)
        return place


@dataclass(frozen=True)
class Case:
    """What the other program does, in words and as a deed, which returns its cure."""

    name: str
    path: str
    do: Callable[[ForeignProgram], Callable[[], object]]
    may_stop: bool = False


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Spend the day before once for all cases."""
    location = tmp_path_factory.mktemp("foreign") / "store"
    victim = day_before(location, ManualClock(time.time_ns() // 1_000_000))
    rows = {
        path: pa.table(DeltaTable(f"{location}/{path}").to_pyarrow_table()).cast(schema.columns)
        for path, schema in SCHEMAS.items()
    }
    return Template(location, victim, rows)


@pytest.mark.parametrize("kind", SHARES)
def test_an_honest_day_beside_foreign_input(
    template: Template, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    problems: dict[str, list[str]] = {}

    @settings(
        max_examples=max(1, CASES * SHARES[kind] // 10), phases=[Phase.generate], deadline=None,
        database=None, derandomize=not IS_LONG, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases(template, kind))
    def try_it(case: Case) -> None:
        folder = tmp_path_factory.mktemp("case")
        try:
            problems[case.name] = problems_of(case, template, folder)
        finally:
            shutil.rmtree(folder)
        report(case.name, problems[case.name])

    try_it()
    assert not any(problems.values()), "\n".join(_lines(problems))


def _lines(problems: Mapping[str, list[str]]) -> Iterable[str]:
    return ("\n    ".join((name, *lines)) for name, lines in problems.items() if lines)


def report(name: str, problems: list[str]) -> None:
    if REPORT:
        with Path(REPORT).open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, problems]) + "\n")


def problems_of(case: Case, template: Template, folder: Path) -> list[str]:
    """Let the other program act and the day run; where it may stop, also after the cure."""
    shutil.copytree(template.location, folder / "store")
    cure = case.do(ForeignProgram(str(folder / "store"), case.path))
    # Not the template's time: the store's own clock has gone on.
    clock = ManualClock(time.time_ns() // 1_000_000)
    day = HonestDay(folder, clock, case.path, template.victim, may_stop=case.may_stop)
    day.work()
    if day.has_stopped:
        cure()
        day.may_stop = False
        clock.advance(3600)
        day.work()
    day.read()
    day.outlive_retention()
    return day.problems


# --- what the other program does ------------------------------------------------------------------


def cases(template: Template, kind: str) -> st.SearchStrategy[Case]:
    return {
        "rows": rows(template), "properties": properties(), "marks": marks(),
        "entries": entries(template),
    }[kind]  # fmt: skip


@st.composite
def rows(draw: st.DrawFn, template: Template) -> Case:
    """A row that an honest one was, with one or two odd values."""
    path = draw(st.sampled_from([path for path, rows in template.rows.items() if rows.num_rows]))
    base = draw(honest_rows(template, path))
    columns = st.sampled_from(list(SCHEMAS[path].columns))
    chosen = draw(st.lists(columns, min_size=1, max_size=2, unique=True))
    changes = {field.name: draw(st.sampled_from(odd_values(field.type))) for field in chosen}
    odd = {field.name: column_of(changes[field.name], field.type) for field in chosen}
    told = ", ".join(f"{name}={str(value)[:60]!r}" for name, value in changes.items())
    return appended(f"{path}: {told}", path, {**base, **odd}, may_stop=path.startswith("state/"))


@st.composite
def honest_rows(draw: st.DrawFn, template: Template, path: str) -> Row:
    """A row of the table, so that it takes away nothing honest."""
    if path == "half":
        own_id = b"00000000-0001-7000-8000-00000000000%d" % draw(st.integers(0, 9))
        transaction_id = draw(st.sampled_from([template.victim.encode(), own_id]))
        row = template.row(path, template.half_of_victim)
        return {**row, "transaction_id": column_of(transaction_id, pa.string())}
    row = template.row(path, draw(st.integers(0, template.rows[path].num_rows - 1)))
    if path.startswith("topics/"):
        row["body"] = column_of(b"foreign", pa.binary())
    if path in {"op", "settled"}:
        row["transaction_id"] = column_of(template.victim.encode(), pa.string())
    if path == "op":
        row["kind"] = column_of(draw(st.sampled_from(KINDS)), pa.string())
        row["life"] = column_of(draw(st.sampled_from([None, 0, 1])), pa.int32())
    return row


def appended(
    name: str, path: str, row: Row, told: Told = AS_THE_PROTOCOL_SAYS, *, may_stop: bool
) -> Case:
    def do(program: ForeignProgram) -> Callable[[], object]:
        file = program.append(row, SCHEMAS[path].partition_by, told)
        return lambda: program.remove(file)

    return Case(name, path, do, may_stop)


@st.composite
def properties(draw: st.DrawFn) -> Case:
    """A property that says something else."""
    path = draw(st.sampled_from(sorted(SCHEMAS)))
    key, value = draw(st.sampled_from(PROPERTIES)), draw(st.sampled_from(NUMBERS_AS_TEXT))

    def do(program: ForeignProgram) -> Callable[[], object]:
        before = program.set_property(key, value)
        return lambda: program.set_property(key, before or "")

    return Case(f"{path}: property {key}={value[:40]!r}", path, do, may_stop=True)


@st.composite
def marks(draw: st.DrawFn) -> Case:
    """A mark of a name or with a number that txmq never writes."""
    path = draw(st.sampled_from(sorted(LOGS)))
    name = draw(st.sampled_from(MARKS))
    number = draw(st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]))

    def do(program: ForeignProgram) -> Callable[[], object]:
        program.set_mark(name, number)
        return lambda: program.set_mark(name, 0)

    return Case(f"{path}: mark {name}={number}", path, do, may_stop=name == "txmq-offset/9")


@st.composite
def entries(draw: st.DrawFn, template: Template) -> Case:
    """An honest row in a file of which the log tells odd things."""
    path = draw(st.sampled_from(("half", "op", "settled")))
    row = template.row(path, template.half_of_victim if path == "half" else 0)
    row["transaction_id"] = column_of(template.victim.encode(), pa.string())
    days = (None, "", "x", "2026-13-01", "+5881580-07-11", "-1", "0000-00-00", "9" * 50)
    partition = draw(st.sampled_from([{}, *({"store_date": day} for day in days)]))
    told = Told(
        draw(st.sampled_from(STATISTICS)), draw(st.sampled_from([None, 0, 2**62])), partition
    )
    return appended(f"{path}: {told}", path, row, told, may_stop=True)
