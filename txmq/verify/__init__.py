"""Checks whether the tables of a store keep what docs/invariants.md promises.

It reads the tables and folds the claims with code of its own, so a mistake in the code that sends,
settles and publishes cannot hide in it. Each function loads that code when it is called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from txmq.verify.declared_markers import DatabaseMarkers, DeltaMarkers, MarkerPlace, marker_places
from txmq.verify.report import (
    NOT_CHECKED,
    BusinessReport,
    BusinessResult,
    BusinessViolation,
    Fault,
    InvariantResult,
    Lateness,
    Problem,
    VerifyReport,
    Violation,
)

__all__ = [
    "NOT_CHECKED",
    "BusinessReport",
    "BusinessResult",
    "BusinessViolation",
    "DatabaseMarkers",
    "DeltaMarkers",
    "Fault",
    "InvariantResult",
    "Lateness",
    "MarkerPlace",
    "Problem",
    "VerifyReport",
    "Violation",
    "marker_places",
    "verify",
    "verify_business",
]


def verify(  # noqa: PLR0913 - each is one thing to check by
    location: str | os.PathLike[str],
    *,
    drained: bool = True,
    check_limits: Mapping[str, int] | None = None,
    storage_options: Mapping[str, str] | None = None,
    business: Mapping[str, MarkerPlace] | None = None,
    claim_keys: Mapping[str, Sequence[str]] | None = None,
) -> VerifyReport:
    """Check every promise that the tables of a store can show by themselves.

    Makes 0 commits and writes nothing. It pins one version of each table in this order:
    state/publisher, state/config, all topics, settled, op, half, state/maintenance; then it reads
    the markers of local transactions. A retry starts anew.

    Memory: 200 MiB; some 300 MiB for the range of transactions that is read at the moment; 40 bytes
    for each message. A transaction is never cut: beyond 500,000 rows it takes 700 bytes for each of
    its messages. Bodies are not kept.

    Args:
        location: of the store; a path or a URI.
        drained: True: nothing runs and nothing is left to publish, so each committed message must
            be visible. False: a message that the publisher has not reached yet is open, not lost.
        check_limits: checks before a DISCARD by producer group, "" for all other groups. Give them
            if services run with another `transaction_check_max` than the one that the store keeps.
        storage_options: for delta-rs; of the store only.
        business: where the markers of local transactions are, by producer group (I12):
            DeltaMarkers or DatabaseMarkers.
        claim_keys: the keys of the producer groups whose claims must be signed; other claims in
            the name of these groups do not count, as for the services.

    Raises:
        StoreNotFoundError: there is no store at `location`.
        StorageError: a table or a marker table cannot be read.
        EnvironmentProblemError: with `business`: a database driver or variable is missing.
        ConfigError: the location is no path, or `claim_keys` has no lists of keys; with `business`:
            it is no mapping, or names a group that the store does not know.

    Example:
        >>> verify(store.location).is_clean
        True
        >>> verify(store.location, business={"orders": DeltaMarkers("/data/orders")}).is_clean
        True
    """
    from txmq.verify.checker import check_store

    return check_store(
        location,
        drained=drained,
        check_limits=check_limits,
        storage_options=storage_options or {},
        business=business or {},
        claim_keys=claim_keys or {},
    )


def verify_business(
    location: str | os.PathLike[str],
    business: Mapping[str, MarkerPlace],
    *,
    storage_options: Mapping[str, str] | None = None,
) -> BusinessReport:
    """Compare messages with local transactions (I12) and check nothing else; see `verify`.

    Raises: StoreNotFoundError, StorageError, EnvironmentProblemError, ConfigError.
    """
    from txmq.verify.checker import compare_business

    return compare_business(location, business, storage_options=storage_options or {})
