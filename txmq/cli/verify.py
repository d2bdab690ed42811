"""`txmq verify`: which engines read the store, and how they are compared."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import replace

from txmq.store.store import Store
from txmq.verify import (
    BusinessReport,
    MarkerPlace,
    VerifyComparison,
    VerifyReport,
    verify_business,
    verify_by_spark,
)
from txmq.verify import verify as verify_store


class VerifyEngine(enum.StrEnum):
    """Who verifies; two checkers share no code, so each finds the other's mistakes."""

    PLAIN = "plain"
    SPARK = "spark"
    BOTH = "both"


class Verification:
    """One store before the engines; Spark is started only for its own."""

    def __init__(self, store: Store, places: Mapping[str, MarkerPlace], *, drained: bool) -> None:
        """Read nothing yet."""
        self._store, self._places, self._drained = store, places, drained

    def one(self, engine: VerifyEngine) -> VerifyReport:
        """The report of one engine."""
        if engine is VerifyEngine.PLAIN:
            return self._plain()
        # What is wrong with the option is told before Spark starts.
        business = self._business()
        return replace(self._spark(None), business=business)

    def both(self) -> VerifyComparison:
        """The second one reads the versions that the first one read."""
        plain = self._plain()
        return VerifyComparison(plain, self._spark(plain.versions))

    def _limits(self) -> dict[str, int]:
        settings = self._store.config.check_settings().items()
        return {group: own.transaction_check_max for group, own in settings}

    def _plain(self) -> VerifyReport:
        return verify_store(
            self._store.location,
            drained=self._drained,
            check_limits=self._limits(),
            storage_options=self._store.storage_options,
            business=self._places,
        )

    def _business(self) -> BusinessReport | None:
        if not self._places:
            return None
        options = self._store.storage_options
        return verify_business(self._store.location, self._places, storage_options=options)

    def _spark(self, versions: Mapping[str, int] | None) -> VerifyReport:
        from txmq.local_spark.session import local_session

        return verify_by_spark(
            self._store.location,
            local_session("txmq-verify"),
            drained=self._drained,
            check_limits=self._limits(),
            versions=versions,
        )
