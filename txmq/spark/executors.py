"""Tasks on Spark's executors that write files of txmq's tables by Arrow, as this process does.

A task gets what it needs as plain values, opens a table by its place with the credentials of now,
writes files that no commit names yet, and returns what a commit has to say of them. Spark tries a
task again that fails, and may run one twice: a commit names the files of the attempt that Spark
counts. The others are named by none, and maintenance removes them.

Executors need txmq, of this version, and the way to the storage. A small job looks whether they
have both, before the first work on a table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from txmq.delta.credentials import KEY, options_now
from txmq.delta.failures import problem_of
from txmq.delta.parquet import NewFile
from txmq.delta.table import Table
from txmq.errors import EnvironmentProblemError, StorageError, TxmqError, UnreadableFileError
from txmq.ground.clock import elapsed_ms
from txmq.ground.version import __version__
from txmq.message.body_schema import BodySchema, parsed_schema
from txmq.store.schemas import HALF, SCHEDULE, TOPIC
from txmq.store.topic import BODY_SCHEMA_PROPERTY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of so many rows each task that runs at once gets some.
SLOTS_MAX = 10_000
# Larger batches of a user's rows would be held by a task at once, and a copy of them.
BATCH_BYTES_MAX = 256 * 1024 * 1024
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
# Sizes as Spark spells them: 67108864b, 64m, 64mb.
_SIZE, _UNITS = re.compile(r"(\d{1,18})([kmg]?)b?", re.ASCII), ("", "k", "m", "g")
# What the tasks return, one for each.
OUTCOMES = "outcome string"
_SCHEMAS = MappingProxyType({schema.name: schema for schema in (HALF, SCHEDULE, TOPIC)})
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([A-Za-z0-9_.]{1,100})'", re.ASCII)
_WAY_OUT = "See docs/places.md for what executors need."


# --- in this process ------------------------------------------------------------------------------


class Executors:
    """The executors of a session. Safe for several threads."""

    def __init__(self, spark: SparkSession) -> None:
        """Start no job yet."""
        self._spark = spark
        self._problems: dict[str, EnvironmentProblemError | None] = {}

    def check(self, table: Table, body_schema: str | None = None) -> None:
        """Do as `slots`, once for a table in the life of this process."""
        if table.location not in self._problems:
            try:
                self.slots(table, body_schema)
            except EnvironmentProblemError as error:
                self._problems[table.location] = error
        if (problem := self._problems[table.location]) is not None:
            raise problem

    def slots(self, table: Table, body_schema: str | None = None) -> int:
        """Return how many tasks run at once, by a small job.

        Each of its tasks looks whether it can do the work: it imports txmq, of this version, and
        what bodies of the schema need, and finds the pinned version of the table.

        Raises: EnvironmentProblemError where one cannot; StorageError where the job fails.
        """
        needs = _Needs(__version__, TablePlace.of(table), table.version, body_schema)
        with as_own_error(table.name):
            numbers = self._spark.range(SLOTS_MAX)
            rows = numbers.mapInArrow(partial(_looked, needs), OUTCOMES).collect()
        for problem in filter(None, (row["outcome"] for row in rows)):
            raise EnvironmentProblemError(f"an executor of Spark {problem}", _WAY_OUT)
        self._problems[table.location] = None
        return len(rows)

    def check_batches(self) -> None:
        """Raise EnvironmentProblemError if a task may get batches of rows of any size."""
        from pyspark.errors import PySparkException

        try:
            size = _SIZE.fullmatch((self._spark.conf.get(_BATCH_BYTES) or "").strip().lower())
        except PySparkException:
            size = None
        size_bytes = int(size[1]) * 1024 ** _UNITS.index(size[2]) if size else 0
        if not 0 < size_bytes <= BATCH_BYTES_MAX:
            problem = f"{_BATCH_BYTES} bounds no batch by {BATCH_BYTES_MAX:,} bytes or less"
            raise EnvironmentProblemError(problem, "Use Spark 4.2, or set it.")


_EXECUTORS: WeakKeyDictionary[SparkSession, Executors] = WeakKeyDictionary()


def executors_of(spark: SparkSession) -> Executors:
    """Return the executors of a session, always the same object."""
    return _EXECUTORS.setdefault(spark, Executors(spark))


def written_files(outcomes: DataFrame) -> list[NewFile]:
    """Run the tasks that return `file_outcome`s; return their files in the order of the tasks.

    Raises: UnreadableFileError of a task; PySparkException, Py4JError where the job fails.
    """
    # A file is as old as it may be.
    made_ms = elapsed_ms()
    facts: list[dict[str, Any]] = [json.loads(row["outcome"]) for row in outcomes.collect()]
    for unreadable in (each["unreadable"] for each in facts if "unreadable" in each):
        raise UnreadableFileError(**unreadable)
    files = [NewFile(**file) for each in facts for file in each["files"]]
    return [replace(file, made_ms=made_ms) for file in files]


@contextmanager
def as_own_error(table: str) -> Iterator[None]:
    """Turn the failure of a job into an error of txmq, which parks one topic and ends no query.

    Raises: EnvironmentProblemError if a task lacked a Python module; else StorageError.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        if missing := _MISSING.search(str(error)):
            problem = f"an executor of Spark has no Python module {missing[1]}"
            raise EnvironmentProblemError(problem, _WAY_OUT) from error
        # The text of an error may quote a body.
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        kind = ", ".join(filter(None, [type(error).__name__, condition]))
        raise StorageError(table, f"Spark could not write it ({kind})") from error


def body_schema_text(table: Table) -> str | None:
    """Return the body schema of a topic as a task takes it; None where bodies are any bytes."""
    return table.log.properties().get(BODY_SCHEMA_PROPERTY) or None


# --- on an executor -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class TablePlace:
    """A table as an executor opens it, with the credentials of now."""

    kind: str
    location: str
    options: Mapping[str, str]

    @classmethod
    def of(cls, table: Table) -> TablePlace:
        """Return the place of a table."""
        # An executor asks no provider: it need not be anybody there.
        options = {**(options_now(table.folder.options) or {}), KEY: ""}
        return cls(table.schema.name, table.location, options)

    def table(self) -> Table:
        """Open the table; its log is not read."""
        return Table(self.location, _SCHEMAS[self.kind], self.options)


def body_schema_of(text: str | None) -> BodySchema | None:
    """Return the schema that `body_schema_text` gave to a task."""
    return parsed_schema(text) if text else None


def file_outcome(write: Callable[[], Iterable[NewFile]]) -> pa.RecordBatch:
    """Write files, and tell of them in JSON.

    A file that cannot be read is told and not raised: no other attempt would read it.
    """
    try:
        facts: dict[str, Any] = {"files": [asdict(file) for file in write()]}
    except UnreadableFileError as error:
        facts = {"unreadable": {"table": error.table, "path": error.path, "problem": error.problem}}
    return pa.RecordBatch.from_pydict({"outcome": [json.dumps(facts)]})


@dataclass(frozen=True, slots=True, repr=False)
class _Needs:
    """What a task needs: this txmq, a version of a table, and what bodies of a schema need."""

    txmq_version: str
    place: TablePlace
    version: int
    body_schema: str | None

    def problem(self) -> str | None:
        if self.txmq_version != __version__:
            return f"has txmq {__version__}, and this process {self.txmq_version}"
        try:
            if (body := body_schema_of(self.body_schema)) is not None:
                # It may need a package.
                body.problem(b"")
            if self.place.table().folder.has_commit(self.version):
                return None
        except (TxmqError, OSError) as error:
            return f"cannot work: {problem_of(error)}"
        return f"does not find version {self.version} of {self.place.location}"


def _looked(needs: _Needs, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tell once for a partition what stands in the way of a task there; null for nothing."""
    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"outcome": pa.array([needs.problem()], pa.string())})
