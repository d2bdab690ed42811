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
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from txmq import errors
from txmq.delta.credentials import KEY, options_now
from txmq.delta.failures import STORAGE_ERRORS, failed_write, in_one_line
from txmq.delta.folder import TableFolder
from txmq.delta.log_files import delete_files
from txmq.delta.parquet import NewFile
from txmq.delta.table import Table
from txmq.errors import EnvironmentProblemError, StorageError, TxmqError, UnreadableFileError
from txmq.ground.clock import elapsed_ms
from txmq.ground.version import __version__
from txmq.message.body_schema import parsed_schema
from txmq.producer.frame_rows import Refusals, check_refusals, merge
from txmq.spark.session import session_settings, setting_of
from txmq.store.schemas import HALF, SCHEDULE, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of so many rows each task of a default number of tasks gets some.
LOOK_ROWS = 10_000
# Larger batches of a user's rows would be held by a task at once, and a copy of them.
BATCH_BYTES_MAX = 256 * 1024 * 1024
# Earlier ones bound the batches that a task gets by their rows alone.
_BOUNDS_BYTES = (4, 2)
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
# That of Spark 4.2, where a session tells no default.
_DEFAULT_BATCH_BYTES = "64m"
# Sizes as Spark spells them: 67108864b, 64m, 64mb.
_SIZE, _UNITS = re.compile(r"(\d{1,18})([kmg]?)b?", re.ASCII), ("", "k", "m", "g")
# What the tasks return, one for each.
OUTCOMES = "outcome string"
_SCHEMAS = MappingProxyType({schema.name: schema for schema in (HALF, SCHEDULE, TOPIC)})
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([A-Za-z0-9_.]{1,100})'", re.ASCII)
# The types in the traceback of a task; the last one ended it.
_TYPE = re.compile(
    r"^([A-Za-z_][A-Za-z0-9_.]{0,100}(?:Error|Exception))(?=:|$)", re.ASCII | re.MULTILINE
)
_OF_TXMQ = "txmq.errors."
_WAY_OUT = "See docs/places.md for what executors need."


class StrangeRowError(Exception):
    """A task met a row that it cannot copy; the text names the type of its error, never a value."""


# --- in this process ------------------------------------------------------------------------------


# Of the sessions: what executors lacked for a table and the bodies of its messages, and when; None
# where they lack nothing.
_LOOKS: WeakKeyDictionary[Any, dict[tuple[str, str | None], tuple[str | None, int]]] = (
    WeakKeyDictionary()
)


def check_executors(
    spark: SparkSession, table: Table, body_schema: str | None = None, believed_ms: int = 0
) -> None:
    """Do as `slots`, but not again where all was there, or where a problem is believed still."""
    looks = _LOOKS.setdefault(spark, {})
    problem, looked_ms = looks.get((table.location, body_schema), ("", -believed_ms))
    if problem is None:
        return
    if elapsed_ms() < looked_ms + believed_ms:
        raise EnvironmentProblemError(problem, _WAY_OUT)
    slots(spark, table, body_schema)


def slots(spark: SparkSession, table: Table, body_schema: str | None = None) -> int:
    """Return how many tasks Spark makes by default, as many as it has cores, by a small job.

    Each of them looks whether it can do the work: it imports txmq, of this version, and what bodies
    of the schema need, and finds the pinned version of the table.

    Raises: EnvironmentProblemError where one cannot; StorageError where the job fails.
    """
    needs = _Needs(__version__, TablePlace.of(table), table.version, body_schema)
    looks, key = _LOOKS.setdefault(spark, {}), (table.location, body_schema)
    try:
        with as_own_error(table.name):
            numbers = spark.range(LOOK_ROWS)
            rows = numbers.mapInArrow(partial(_looked, needs), OUTCOMES).collect()
        for problem in filter(None, (row["outcome"] for row in rows)):
            raise EnvironmentProblemError(f"an executor of Spark {problem}", _WAY_OUT)  # noqa: TRY301
    except EnvironmentProblemError as error:
        looks[key] = (error.what, elapsed_ms())
        raise
    looks[key] = (None, 0)
    return len(rows)


@contextmanager
def bounded_batches(spark: SparkSession, row_bytes: int) -> Iterator[None]:
    """Let tasks get batches of rows of BATCH_BYTES_MAX at most, in the jobs of the block.

    Spark bounds them in bytes since 4.2. Before, it bounds their rows, so few of them may come.

    Args:
        spark: the session; one of Spark Connect too.
        row_bytes: the most that a row has.

    Raises: EnvironmentProblemError where the session refuses the setting.
    """
    text = setting_of(spark, _BATCH_BYTES) or _DEFAULT_BATCH_BYTES
    size = _SIZE.fullmatch(text.strip().lower())
    size_bytes = int(size[1]) * 1024 ** _UNITS.index(size[2]) if size else 0
    version = tuple(int(part) for part in re.findall(r"\d+", spark.version)[:2])
    if version >= _BOUNDS_BYTES and 0 < size_bytes <= BATCH_BYTES_MAX:
        yield
        return
    rows = max(1, BATCH_BYTES_MAX // row_bytes)
    way_out = f"Set {_BATCH_ROWS} to {rows}."
    with session_settings(spark, {_BATCH_ROWS: str(rows)}, way_out=way_out):
        yield


def written_files(outcomes: DataFrame, folder: TableFolder) -> list[NewFile]:
    """Run the tasks that return `file_outcome`s; return their files in the order of the tasks.

    Raises: as `files_of`; as Spark where the job fails.
    """
    # A file is as old as it may be.
    made_ms = elapsed_ms()
    return files_of([row["outcome"] for row in outcomes.collect()], folder, made_ms)


def files_of(outcomes: Iterable[str], folder: TableFolder, made_ms: int) -> list[NewFile]:
    """Return the files that tasks have written, in the order of the tasks.

    Where one could not write, or refused a row, the files of all are deleted.

    Args:
        outcomes: of `file_outcome`.
        folder: of their table.
        made_ms: when the first of them may have been made, by `elapsed_ms`.

    Raises: UnreadableFileError, StrangeRowError of a task; InvalidMessageError for rows that cannot
        be messages.
    """
    facts: list[dict[str, Any]] = [json.loads(outcome) for outcome in outcomes]
    files = [NewFile(**file) for each in facts for file in each.get("files", ())]
    problems = [each for each in facts if "files" not in each]
    refusals: dict[str, tuple[int, int]] = {}
    for each in facts:
        merge(refusals, each.get("refusals", {}))
    if problems or refusals:
        # Else maintenance removes them.
        with suppress(*STORAGE_ERRORS):
            delete_files(folder, [file.path for file in files])
    for problem in problems:
        if "unreadable" in problem:
            raise UnreadableFileError(**problem["unreadable"])
        raise StrangeRowError(f"a task of Spark cannot copy a row ({problem['strange']})")
    check_refusals(refusals)
    return [replace(file, made_ms=made_ms) for file in files]


@contextmanager
def as_own_error(table: str, *, are_rows_of_users: bool = False) -> Iterator[None]:
    """Turn the failure of a job into an error of txmq, which parks one topic and ends no query.

    What fails in the rows of a user is the user's error, and raised as it is.

    Raises: EnvironmentProblemError if a task lacked a Python module; else StorageError.
    """
    try:
        yield
    except (TxmqError, StrangeRowError, MemoryError):
        raise
    except Exception as error:
        text = str(error)
        kind = (_TYPE.findall(text) or [""])[-1]
        if not kind.startswith(_OF_TXMQ) and are_rows_of_users:
            raise
        if missing := _MISSING.search(text):
            problem = f"an executor of Spark has no Python module {missing[1]}"
            raise EnvironmentProblemError(problem, _WAY_OUT) from error
        # The text of an error may quote a body.
        kinds = ", ".join(filter(None, [type(error).__name__, kind.removeprefix(_OF_TXMQ)]))
        own = getattr(errors, kind.removeprefix(_OF_TXMQ), StorageError)
        own = own if own in _TOLD else StorageError
        raise own(table, f"Spark could not write it ({kinds})") from error


# These tell an operator what to do.
_TOLD = (
    errors.StoreFullError,
    errors.ReadOnlyStoreError,
    errors.AccessDeniedError,
    errors.StorageUnavailableError,
)


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


def file_outcome(
    table: str, write: Callable[[], Iterable[NewFile]], refusals: Refusals | None = None
) -> str:
    """Write files of a table, and tell of them in JSON.

    `refusals` are those of rows that were met while `write` ran.

    What no other attempt would do better is told and not raised: a file that cannot be read, a row
    that cannot be copied. An error that is raised stands in Spark's log with its whole traceback,
    so it has no cause, whose text may hold a token.

    Raises: StorageError; MemoryError.
    """
    try:
        files = [asdict(file) for file in write()]
        facts: dict[str, Any] = {"files": files, "refusals": refusals or {}}
    except UnreadableFileError as error:
        facts = {"unreadable": {"table": error.table, "path": error.path, "problem": error.problem}}
    except TxmqError as error:
        raise error from None
    except STORAGE_ERRORS as error:
        raise failed_write(table, error) from None
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a strange row leads to
        facts = {"strange": type(error).__name__}
    return json.dumps(facts)


def as_batch(outcome: str | None) -> pa.RecordBatch:
    """Return the outcome of a task as its one row."""
    return pa.RecordBatch.from_pydict({"outcome": pa.array([outcome], pa.string())})


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
            if self.body_schema is not None:
                # It may need a package.
                parsed_schema(self.body_schema).problem(b"")
            if self.place.table().folder.has_commit(self.version):
                return None
        except (TxmqError, *STORAGE_ERRORS) as error:
            return f"cannot work ({in_one_line(error)})"
        return f"does not find version {self.version} of {self.place.location}"


def _looked(needs: _Needs, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tell once for a partition what stands in the way of a task there; null for nothing."""
    for _ in batches:
        pass
    yield as_batch(needs.problem())
