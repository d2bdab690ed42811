"""The independent checker: do the tables keep what docs/invariants.md promises?

Two engines that share no code with producer, settle and publish, nor with each other: each reads
by itself and folds by itself, so one mistake cannot hide in both. `verify` needs no Spark.
"""

from txmq.verify.agreement import Difference, VerifyComparison, differences
from txmq.verify.plain.checker import verify
from txmq.verify.report import NOT_CHECKED, InvariantResult, VerifyReport, Violation
from txmq.verify.spark.checker import verify_by_spark

__all__ = [
    "NOT_CHECKED",
    "Difference",
    "InvariantResult",
    "VerifyComparison",
    "VerifyReport",
    "Violation",
    "differences",
    "verify",
    "verify_by_spark",
]
