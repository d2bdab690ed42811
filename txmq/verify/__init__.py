"""The independent checker: do the tables keep what docs/invariants.md promises?

Two engines that share no code with producer, settle and publish, nor with each other: each reads
by itself and folds by itself, so one mistake cannot hide in both. `verify` needs no Spark. What the
local transactions say (I12) is compared by the plain one alone.
"""

from txmq.verify.agreement import Difference, VerifyComparison, differences
from txmq.verify.business import BusinessReport, BusinessResult, BusinessViolation, Fault, Problem
from txmq.verify.marker_places import DatabaseMarkers, DeltaMarkers, MarkerPlace, marker_places
from txmq.verify.plain.business import verify_business
from txmq.verify.plain.checker import verify
from txmq.verify.report import NOT_CHECKED, InvariantResult, Lateness, VerifyReport, Violation
from txmq.verify.spark.checker import verify_by_spark

__all__ = [
    "NOT_CHECKED",
    "BusinessReport",
    "BusinessResult",
    "BusinessViolation",
    "DatabaseMarkers",
    "DeltaMarkers",
    "Difference",
    "Fault",
    "InvariantResult",
    "Lateness",
    "MarkerPlace",
    "Problem",
    "VerifyComparison",
    "VerifyReport",
    "Violation",
    "differences",
    "marker_places",
    "verify",
    "verify_business",
    "verify_by_spark",
]
