"""Does the oracle say the same as `verify`? If not, one of them is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.oracle.checker import verify_by_spark
from txmq.verify import verify
from txmq.verify.report import SHOWN_ROWS, InvariantResult, VerifyReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that both looked at and saw differently; `what` is a count or an I-number."""

    what: str
    verified: str
    by_oracle: str


def both_reports(
    location: str, spark: SparkSession, *, drained: bool = True
) -> tuple[VerifyReport, VerifyReport]:
    """What `verify` and the oracle say of the same versions of a store."""
    verified = verify(location, drained=drained)
    by_oracle = verify_by_spark(location, spark, drained=drained, versions=verified.versions)
    return verified, by_oracle


def differences(verified: VerifyReport, by_oracle: VerifyReport) -> tuple[Difference, ...]:
    """Counts, numbers of violations and the rows that are shown; the words may differ.

    If the two read different versions, as beside a running store, that is the only difference in
    the result, for nothing else can be compared.
    """
    if verified.versions != by_oracle.versions:
        versions = _different("versions", dict(verified.versions), dict(by_oracle.versions))
        return tuple(versions)
    results = zip(verified.results, by_oracle.results, strict=True)
    return (
        *_different("unread", verified.unread, by_oracle.unread),
        *_different("notes", _facts(verified), by_oracle.notes),
        *_different_counts(verified, by_oracle),
        *_different("lateness", verified.lateness, by_oracle.lateness),
        *(difference for pair in results for difference in _different_results(*pair)),
    )


def _facts(report: VerifyReport) -> tuple[str, ...]:
    """Leave out the advice on settings, which `verify` alone gives."""
    return tuple(note for note in report.notes if not note.startswith("judged by "))


def _different_counts(verified: VerifyReport, by_oracle: VerifyReport) -> Iterator[Difference]:
    for name in sorted({*verified.counts, *by_oracle.counts}):
        yield from _different(name, verified.counts.get(name), by_oracle.counts.get(name))


def _different_results(
    verified: InvariantResult, by_oracle: InvariantResult
) -> Iterator[Difference]:
    invariant, counts = verified.invariant, (verified.violation_count, by_oracle.violation_count)
    yield from _different(invariant, *counts)
    if max(counts) > SHOWN_ROWS:
        # Each shows the first of many, and first means something else to each.
        return
    left, right = _row_ids(verified), _row_ids(by_oracle)
    only_left, only_right = (sorted(rows.elements()) for rows in (left - right, right - left))
    yield from _different(f"{invariant} rows", only_left, only_right)


def _row_ids(result: InvariantResult) -> Counter[str]:
    return Counter(violation.row_id for violation in result.violations)


def _different(what: str, verified: object, by_oracle: object) -> Iterator[Difference]:
    if verified != by_oracle:
        yield Difference(what, str(verified), str(by_oracle))
