"""What a marker in a user's Delta table is, and a fence, whoever writes them.

A marker is Delta's own transaction identifier on the commit that changes the table: its name is
the transaction id, its number is 1. The `userMetadata` of the commit says so in words, because
Spark shows no identifiers. A fence takes the place of a missing marker. Two kinds of it are
written, and either one makes Delta pass over the marked write, or refuse it:

- by files (`user_data/delta_marker.py`): number 2, one commit for many transactions;
- by Spark (`spark/marked_table.py`): number 1, for each transaction a commit of its own, whose
  words tell it from a marker; a second commit then raises the number to 2.

So number 2 is always a fence. Number 1 is a fence where the words of its commit say so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from txmq.delta.actions import BY_TIME, USER_METADATA
from txmq.delta.schemas import MARKS_PROPERTY, interval_ms

if TYPE_CHECKING:
    from txmq.ground.sessions import DataFrame, SparkSession

SqlStatement = Callable[..., "DataFrame"]

DONE = 1
FENCED = 2
APP_ID_OPTION, VERSION_OPTION = "txnAppId", "txnVersion"
USER_METADATA_SETTING = "spark.databricks.delta.commitInfo.userMetadata"
APP_ID_SETTING = "spark.databricks.delta.write.txnAppId"
VERSION_SETTING = "spark.databricks.delta.write.txnVersion"
_SETTINGS = {
    APP_ID_OPTION: APP_ID_SETTING,
    VERSION_OPTION: VERSION_SETTING,
    USER_METADATA: USER_METADATA_SETTING,
}
_IS_DONE, _IS_FENCE = "txmq done ", "txmq fence "
# A fence by files names as many of its transactions as Spark should read in one line.
NAMED_IDS = 1_000
_UNDONE = (
    "its change is undone: {}; roll the transaction back, or make the change again and commit it "
    "(txmq resolve)"
)


class Outcome(NamedTuple):
    """What a table says of a transaction: DONE, FENCED or None, and why it is None."""

    mark: int | None
    reason: str | None = None


class DeltaMarkers(Protocol):
    """The markers and fences of one Delta table. Not safe for several threads."""

    location: str

    def refresh(self) -> Self:
        """Look at the newest version from now on. Raises: StorageError."""
        ...

    def check_markable(self) -> None:
        """Raise StorageError where no fence is possible; 0 commits."""
        ...

    def is_done(self, transaction_id: str) -> bool | None:
        """Tell whether the local transaction is there, False if it is fenced, None if neither.

        Raises:
            LocalTransactionError: a RESTORE undid it.
            StorageError: the table cannot be read.
        """
        ...

    def outcomes(self, born_ms: Mapping[str, int], to_fence: Collection[str]) -> dict[str, Outcome]:
        """Look for the markers of transactions, and fence those of `to_fence` without one.

        Args:
            born_ms: when each transaction began, by the clock of its producer.
            to_fence: which of these may be fenced.

        Returns: the outcome of each. A transaction that is left for a later call has none.

        Raises: StorageError.
        """
        ...

    @property
    def marker_retention_s(self) -> float | None:
        """The time after which Delta may forget a marker; None if it keeps them for ever."""
        ...


# --- what a write carries -------------------------------------------------------------------------


def marker_options(transaction_id: str, users_text: str | None = None) -> dict[str, str]:
    """Return the options that put the marker on a Spark write; `users_text` follows its words."""
    return {
        APP_ID_OPTION: transaction_id,
        VERSION_OPTION: str(DONE),
        USER_METADATA: done_text(transaction_id, users_text),
    }


def fence_options(transaction_id: str, number: int) -> dict[str, str]:
    """Return the options that make a Spark write without rows a fence."""
    return {
        APP_ID_OPTION: transaction_id,
        VERSION_OPTION: str(number),
        USER_METADATA: fence_text([transaction_id]),
    }


def marker_settings(transaction_id: str, users_text: str | None = None) -> dict[str, str]:
    """Return the settings that put the marker on the next SQL statement of a session."""
    options = marker_options(transaction_id, users_text)
    return {setting: options[option] for option, setting in _SETTINGS.items()}


class MarkedStatement:
    """`spark.sql` for one statement: Spark silently skips a second write with the same marker."""

    def __init__(self, spark: SparkSession, second: Exception) -> None:
        """Run nothing yet; a second call raises `second`."""
        self._spark, self._second = spark, second
        self._is_used = False

    def __call__(self, statement: str, args: Any = None) -> DataFrame:
        """Run the statement."""
        if self._is_used:
            raise self._second
        self._is_used = True
        return self._spark.sql(statement) if args is None else self._spark.sql(statement, args)


# --- what a commit says ---------------------------------------------------------------------------


def done_text(transaction_id: str, users_text: str | None = None) -> str:
    """Return the words of a marker, and what the user says of the commit behind them."""
    return " ".join(filter(None, [_IS_DONE + transaction_id, users_text]))


def fence_text(transaction_ids: Collection[str]) -> str:
    """Return the words of a fence; empty where it fences more than one line should name."""
    return "" if len(transaction_ids) > NAMED_IDS else _IS_FENCE + " ".join(transaction_ids)


def done_by(text: str) -> list[str]:
    """Return the transaction whose marker is in a commit with these words, or none."""
    return text.removeprefix(_IS_DONE).split()[:1] if text.startswith(_IS_DONE) else []


def fenced_by(text: str) -> list[str]:
    """Return the transactions that a commit with these words fences."""
    return text.removeprefix(_IS_FENCE).split() if text.startswith(_IS_FENCE) else []


# --- what was taken back --------------------------------------------------------------------------


class Restore(NamedTuple):
    """A commit that took the table back, and the version to which it did, or BY_TIME."""

    version: int
    target: int

    def __str__(self) -> str:
        """Name it for an error text."""
        commit = f"commit {self.version:,} is a RESTORE to "
        if self.target == BY_TIME:
            return f"{commit}a time; restore the table once more, by version, so that it is known"
        return f"{commit}version {self.target:,}"


class RestoresBack:
    """Which commits a RESTORE undid; it is told the commits from the newest one backwards."""

    def __init__(self) -> None:
        """Know of no RESTORE."""
        self._restore: Restore | None = None

    def undone_by(self, version: int, restored_to: int | None) -> Restore | None:
        """Return the RESTORE that undid this commit; `restored_to` says that it is one itself."""
        if self._restore is not None and version > self._restore.target:
            return self._restore
        if restored_to is not None:
            self._restore = Restore(version, restored_to)
        return None


def undone_text(restore: Restore) -> str:
    """Say of a transaction that a RESTORE undid it, and what to do."""
    return _UNDONE.format(restore)


def retention_s(properties: Mapping[str, str]) -> float | None:
    """Return how long a table keeps markers, by its properties; None for ever."""
    text = properties.get(MARKS_PROPERTY)
    if text is None:
        return None
    # An interval that cannot be read may be short: then no marker is missing for certain.
    return (interval_ms(text) or 0) / 1000
