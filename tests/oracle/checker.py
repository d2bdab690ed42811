"""One run of the oracle: the same promises as `verify`, checked by SQL over frames."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.oracle import counts, faults, picture
from tests.oracle.log import kept
from tests.oracle.tables import (
    DEAD_LETTERS,
    NEVER,
    SCHEDULE,
    WELL_FORMED_ID,
    Settings,
    Source,
    united,
)
from txmq.verify.report import (
    OVERDUE_LIMIT_S,
    PROMISES,
    SHOWN_ROWS,
    InvariantResult,
    Lateness,
    VerifyReport,
    Violation,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAMED = re.compile("{([a-z_]+)}")
_RANKED = """
    SELECT invariant, row_id, detail, total FROM (
        SELECT *, count(*) OVER (PARTITION BY invariant) AS total,
            row_number() OVER (PARTITION BY invariant ORDER BY detail, row_id) AS place
        FROM {found}
    ) WHERE place <= {shown}
"""


def verify_by_spark(
    location: str,
    spark: SparkSession,
    *,
    drained: bool = True,
    check_limits: Mapping[str, int] | None = None,
    versions: Mapping[str, int] | None = None,
) -> VerifyReport:
    """Check the same promises as `verify`, by SQL on Spark and with none of its code.

    Args:
        location: of the store; Spark must be able to read it.
        spark: a session with Delta.
        drained: nothing runs and nothing is left to publish; see `verify`.
        check_limits: checks before a DISCARD by group, where services run with others than kept.
        versions: of an earlier report, so that both looked at the same; else what is newest.

    Reads: what `verify` reads. Writes: nothing. Only the rows of violations come to the driver,
    SHOWN_ROWS of each promise.

    Raises: StoreNotFoundError.

    Example:
        >>> verify_by_spark(store.location, spark).is_clean
        True
    """
    started = time.monotonic()
    with _lost_files_left_out(spark):
        run = _Run(spark, location, drained=drained, check_limits=check_limits, versions=versions)
        results, numbers, lateness = run.results(), run.counts(), run.lateness()
    return VerifyReport(
        location, drained, run.source.versions, numbers, results, run.source.unread,
        run.notes(numbers), time.monotonic() - started, lateness=lateness,
    )  # fmt: skip


@contextmanager
def _lost_files_left_out(spark: SparkSession) -> Iterator[None]:
    """A file that is not there is told by I26; the rest can still be judged."""
    key = "spark.sql.files.ignoreMissingFiles"
    before = str(spark.conf.get(key))
    spark.conf.set(key, "true")
    try:
        yield
    finally:
        spark.conf.set(key, before)


class _Run:
    """Views of one pinned store, kept while they are used, and the values that queries need."""

    def __init__(
        self,
        spark: SparkSession,
        location: str,
        *,
        drained: bool,
        check_limits: Mapping[str, int] | None,
        versions: Mapping[str, int] | None,
    ) -> None:
        self._spark = spark
        self.source = Source.open(spark, location.rstrip("/"), versions)
        self._settings = Settings.of(self.source, check_limits)
        self._values = self._given(drained=drained)
        self._views = self._made()

    def results(self) -> tuple[InvariantResult, ...]:
        """One result for each promise."""
        found = united([kept(self._sql(query)) for query in faults.ALL])
        found = found.toDF("invariant", "row_id", "detail")
        rows = self._spark.sql(_RANKED, shown=SHOWN_ROWS, found=found).collect()
        shown: dict[str, list[Violation]] = {name: [] for name in PROMISES}
        for row in rows:
            shown[row.invariant].append(Violation(row.invariant, row.row_id, row.detail))
        totals = {row.invariant: row.total for row in rows}
        return tuple(
            InvariantResult(name, promise, totals.get(name, 0), tuple(shown[name]))
            for name, promise in PROMISES.items()
        )

    def counts(self) -> dict[str, int]:
        """What was read, and where the transactions stand."""
        rows = self._sql(counts.COUNTS).collect()
        found = {row.name: int(row.number) for row in rows}
        return {name: found.get(name, 0) for name in counts.NAMES} | {
            "topics": len(self.source.topics)
        }

    def lateness(self) -> Lateness:
        """How long after their time delayed messages were shown."""
        (row,) = self._sql(counts.LATENESS).collect()
        if not row.delivered:
            return Lateness()
        return Lateness(row.delivered, row.p99_us / 1e6, row.max_us / 1e6)

    def notes(self, numbers: Mapping[str, int]) -> tuple[str, ...]:
        """What could be judged in part only."""
        judged = numbers["judged_by_settled_alone"]
        told = {
            f"{judged} transactions judged by the settled log alone": judged > 0,
            "the number of allowed checks is not known": not self._settings.check_limits,
        }
        return tuple(note for note, holds in told.items() if holds)

    # --- views ----------------------------------------------------------------------------------

    def _given(self, *, drained: bool) -> dict[str, Any]:
        pinned = self.source.logs.pinned
        mark_id = f"txmq/{pinned['op'].table_id}"
        return {
            "drained": drained,
            "dead": DEAD_LETTERS,
            "schedule": SCHEDULE,
            "never": NEVER,
            "schedule_us": self._settings.schedule_us,
            "begins": self._settings.begins,
            "well_formed": WELL_FORMED_ID,
            "kept_day": self._settings.kept_day,
            "kept_from": self._settings.kept_from,
            "limits": json.dumps(self._settings.check_limits),
            "low_water": self._settings.low_water,
            "parked": self._settings.parked,
            "mark_id": mark_id,
            "settled_mark": pinned["settled"].marks.get(mark_id, -1),
            "op_version": pinned["op"].version,
            "op_from": pinned["op"].readable_from,
            "half_from": pinned["half"].readable_from,
            "overdue_us": round(OVERDUE_LIMIT_S * 1_000_000),
            **self._settings.delay,
            "group_offsets": self._settings.group_offsets,
            "open_set_version": self.source.open_set_version,
        }

    def _made(self) -> dict[str, DataFrame]:
        """Every view, each of those before it."""
        source = self.source
        self._views = {
            "actions": source.actions(),
            "files": source.logs.files,
            "half": self._read(picture.HALF, source.table("half")),
            "op": self._read(picture.OP, source.table("op")),
            "settled": self._read(picture.SETTLED, source.table("settled")),
            "half_log": self._read(picture.HALF_LOG, source.changes("half")),
            "op_log": self._read(picture.OP_LOG, source.changes("op")),
            "shown": kept(self._shown()),
            "open_set": kept(self.source.open_set()),
        }
        for name, query, is_kept in _VIEWS:
            frame = self._sql(query)
            self._views[name] = kept(frame) if is_kept else frame
        return self._views

    def _read(self, query: str, table: DataFrame) -> DataFrame:
        return kept(self._spark.sql(query, table=table))

    def _shown(self) -> DataFrame:
        rows = self._spark.sql(counts.NO_ROWS)
        for topic in self.source.topics:
            rows = rows.union(self._shown_in(topic))
        return rows

    def _shown_in(self, topic: str) -> DataFrame:
        if topic == SCHEDULE:
            table = self.source.table(f"topics/{topic}")
            return self._spark.sql(picture.SCHEDULED, name=topic, table=table)
        table = self.source.topic(topic)
        return self._spark.sql(picture.SHOWN, name=topic, dead=DEAD_LETTERS, table=table)

    def _sql(self, query: str) -> DataFrame:
        # Only what is named, for every view that is passed on is registered anew. Values become
        # literals here and not by `args`, whose named markers Delta's parser leaves unbound.
        known = {**self._values, **self._views}
        used = {name: known[name] for name in _NAMED.findall(query)}
        return self._spark.sql(query, **used)


# In the order in which they are made; those that are used again and again are kept.
_VIEWS = (
    ("row_counts", picture.ROW_COUNTS, False),
    ("marks", picture.MARKS, True),
    ("stand_ins", picture.STAND_INS, True),
    ("messages", picture.MESSAGES, True),
    ("transactions", picture.TRANSACTIONS, True),
    ("moments", picture.MOMENTS, False),
    ("half_moments", picture.HALF_MOMENTS, True),
    ("claims", picture.CLAIMS, True),
    ("believed", picture.BELIEVED, True),
    ("excused", picture.EXCUSED, False),
    ("standing", picture.FOLDED, True),
    ("facts", picture.FACTS, True),
    ("deliveries", picture.DELIVERIES, True),
    ("timed", picture.TIMED, True),
    ("without_claims", picture.WITHOUT_CLAIMS, True),
    ("reached", picture.REACHED, True),
    ("placed", picture.PLACED, True),
    ("fates", picture.FATES, True),
    ("questions", faults.QUESTIONS, True),
)
