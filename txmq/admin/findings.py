"""What a look at a store found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from txmq.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    IncompatibleVersionError,
    ReadOnlyStoreError,
    StorageUnavailableError,
    StoreFullError,
    TxmqError,
    UnsupportedTableError,
)
from txmq.message.names import shown_name
from txmq.results import Plain
from txmq.store.tables import CONSUMER_GROUP, STATE

GRANT = "grant it to who runs a broker (docs/security.md)"
RESTORE = "restore it from a backup; run txmq verify"
_GROUPS = STATE + CONSUMER_GROUP
_LATER = "look again later; nothing shows that it is damaged"
_CURES: dict[type[TxmqError], str] = {
    IncompatibleVersionError: "use the txmq that wrote it, or a newer one",
    UnsupportedTableError: "drop the feature: ALTER TABLE … DROP FEATURE in Spark",
    AccessDeniedError: GRANT,
    ReadOnlyStoreError: GRANT,
    BucketNotFoundError: "look at the location of the store, or make the bucket",
    StoreFullError: "make room; writes are refused when it is full, and nothing is lost",
    StorageUnavailableError: _LATER,
}


@dataclass(frozen=True, slots=True)
class Finding(Plain):
    """One thing that needs a hand.

    Attributes:
        where: the table, the setting, or the part of the machine.
        problem: what is wrong.
        next_step: what to do about it.
    """

    where: str
    problem: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Diagnosis(Plain):
    """What a look at a store found.

    Attributes:
        location: the store.
        tables: how many tables were looked at.
        findings: what needs a hand; empty if all is well.
        ignored_settings: the kept settings that could act and were not taken, as YAML for a
            settings file; empty if there are none.
    """

    location: str
    tables: int
    findings: tuple[Finding, ...]
    ignored_settings: str


def restore_of(path: str) -> str:
    """What to do about a damaged table."""
    if not path.startswith(_GROUPS):
        return RESTORE
    group = shown_name(path.removeprefix(_GROUPS))
    return f"{RESTORE}; or give its offsets up: txmq groups delete LOCATION {group}"


def cure_of(error: TxmqError, otherwise: str = RESTORE) -> str:
    """What to do about an error: only what may be damaged is restored."""
    return _CURES.get(type(error), _LATER if error.retryable else otherwise)


def told(where: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """What a look finds; where it fails, what it found up to there and the failure."""
    try:
        yield from look()
    except TxmqError as error:
        yield Finding(where, str(error), cure_of(error, restore_of(where)))
