"""Do two checkers that share no code say the same? If not, one of them is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from txmq.verify.report import SHOWN_ROWS, InvariantResult, VerifyReport


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that both looked at and saw differently; `what` is a count or an I-number."""

    what: str
    plain: str
    spark: str


@dataclass(frozen=True, slots=True)
class VerifyComparison:
    """The reports of both engines about one store, and where they differ."""

    plain: VerifyReport
    spark: VerifyReport

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Everything that is not the same in both."""
        return differences(self.plain, self.spark)

    @property
    def is_clean(self) -> bool:
        """Whether every promise holds and both say so, and the local transactions agree."""
        return self.is_txmq_clean and self.is_business_clean

    @property
    def is_txmq_clean(self) -> bool:
        """Whether txmq keeps its promises and both say so, with the same numbers."""
        return self.plain.is_txmq_clean and self.spark.is_txmq_clean and not self.differences

    @property
    def is_business_clean(self) -> bool:
        """Whether messages and local transactions agree; the plain one alone compares them."""
        return self.plain.is_business_clean and self.spark.is_business_clean

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "engine": "both",
            "is_clean": self.is_clean,
            "is_txmq_clean": self.is_txmq_clean,
            "is_business_clean": self.is_business_clean,
            "differences": [
                {"what": found.what, "plain": found.plain, "spark": found.spark}
                for found in self.differences
            ],
            "plain": self.plain.to_dict(),
            "spark": self.spark.to_dict(),
        }


def differences(plain: VerifyReport, spark: VerifyReport) -> tuple[Difference, ...]:
    """Counts, numbers of violations and the rows that are shown; the words may differ.

    While a store runs, the two read at two moments: then the versions differ, and that alone is
    told, for nothing else can be compared.
    """
    if plain.versions != spark.versions:
        versions = _different("versions", dict(plain.versions), dict(spark.versions))
        return tuple(versions)
    results = zip(plain.results, spark.results, strict=True)
    return (
        *_different("unread", plain.unread, spark.unread),
        *_different("notes", plain.notes, spark.notes),
        *_different_counts(plain, spark),
        *_different("lateness", plain.lateness, spark.lateness),
        *(found for left, right in results for found in _different_results(left, right)),
    )


def _different_counts(plain: VerifyReport, spark: VerifyReport) -> Iterator[Difference]:
    for name in sorted({*plain.counts, *spark.counts}):
        yield from _different(name, plain.counts.get(name), spark.counts.get(name))


def _different_results(plain: InvariantResult, spark: InvariantResult) -> Iterator[Difference]:
    yield from _different(plain.invariant, plain.violation_count, spark.violation_count)
    if max(plain.violation_count, spark.violation_count) > SHOWN_ROWS:
        # Each shows the first of many, and first means something else to each.
        return
    left, right = _row_ids(plain), _row_ids(spark)
    only_left, only_right = (sorted(rows.elements()) for rows in (left - right, right - left))
    yield from _different(f"{plain.invariant} rows", only_left, only_right)


def _row_ids(result: InvariantResult) -> Counter[str]:
    return Counter(violation.row_id for violation in result.violations)


def _different(what: str, plain: object, spark: object) -> Iterator[Difference]:
    if plain != spark:
        yield Difference(what, str(plain), str(spark))
