"""The independent checker: do the tables keep what docs/invariants.md promises?

Two engines that share no code with producer, settle and publish, nor with each other: each reads
by itself and folds by itself, so one mistake cannot hide in both. `verify` needs no Spark. What the
local transactions say (I12) is compared by the plain one alone. Loaded at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from txmq.verify.agreement import Difference, VerifyComparison, differences
    from txmq.verify.business import (
        BusinessReport,
        BusinessResult,
        BusinessViolation,
        Fault,
        Problem,
    )
    from txmq.verify.business_markers import (
        DatabaseMarkers,
        DeltaMarkers,
        MarkerPlace,
        marker_places,
    )
    from txmq.verify.plain.business import verify_business
    from txmq.verify.report import NOT_CHECKED, InvariantResult, Lateness, VerifyReport, Violation
    from txmq.verify.spark.checker import verify_by_spark

_MODULES = {
    "BusinessReport": "business",
    "BusinessResult": "business",
    "BusinessViolation": "business",
    "DatabaseMarkers": "business_markers",
    "DeltaMarkers": "business_markers",
    "Difference": "agreement",
    "Fault": "business",
    "InvariantResult": "report",
    "Lateness": "report",
    "MarkerPlace": "business_markers",
    "NOT_CHECKED": "report",
    "Problem": "business",
    "VerifyComparison": "agreement",
    "VerifyReport": "report",
    "Violation": "report",
    "differences": "agreement",
    "marker_places": "business_markers",
    "verify_business": "plain.business",
    "verify_by_spark": "spark.checker",
}

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


def verify(
    location: str,
    *,
    drained: bool = True,
    check_limits: Mapping[str, int] | None = None,
    storage_options: Mapping[str, str] | None = None,
    business: Mapping[str, MarkerPlace] | None = None,
) -> VerifyReport:
    """Check every promise that the tables of a store can show by themselves.

    Args:
        location: of the store; a path or a URI.
        drained: nothing runs and nothing is left to publish, so all that is committed must be
            visible. False: what the publisher has not reached yet is open, not lost.
        check_limits: checks before a DISCARD by producer group, "" for all others, where services
            run with another `transaction_check_max` than the one that the store keeps.
        storage_options: for delta-rs; of the store only.
        business: where the markers of local transactions are, by producer group (I12):
            DeltaMarkers or DatabaseMarkers.

    Reads: state/publisher, state/config, all topics, settled, op, half, state/maintenance, each at
    one version, pinned in this order, and their logs; then the markers. Writes: nothing. Memory:
    about 300 bytes a message, bodies excluded.

    Raises: StoreNotFoundError, StorageError; with `business` also EnvironmentProblemError, and
        ConfigError for a group that the store does not know.

    Example:
        >>> verify(store.location).is_clean
        True
        >>> verify(store.location, business={"orders": DeltaMarkers("/data/orders")}).is_clean
        True
    """
    from txmq.verify.plain import checker

    return checker.verify(
        location,
        drained=drained,
        check_limits=check_limits,
        storage_options=storage_options,
        business=business,
    )


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'txmq.verify' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"txmq.verify.{_MODULES[name]}"), name)
    return value
