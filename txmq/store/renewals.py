"""Renewals: what a producer says of the transactions that it still works on.

A local transaction may take an hour. So a producer that lives writes a small file in `renewals/`
again and again, which lists its open transactions, and the check does not ask about them. The lease
of a file counts from the time at which the storage received it, so no machine's clock decides. Who
is killed or suspended writes no more, and once the lease is over the check asks as if there had
been no file. A renewal only puts a question off; who is asked too early loses no message, because
the first end wins and a fence excludes the local transaction.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txmq.delta.failures import STORAGE_ERRORS, read_errors, translated
from txmq.delta.folder import ListedObject, Objects
from txmq.errors import StorageError
from txmq.ground.clock import affine, follows_storage
from txmq.message.ids import is_transaction_id
from txmq.store.store import Store
from txmq.store.store_clock import FAR_MS, NEAR_MS, StoreClock

logger = logging.getLogger(__name__)

RENEWAL_FOLDER = "renewals"
# Of one file; those that were prepared first.
TRANSACTIONS_MAX = 50_000
BYTES_MAX = 4 * 1024 * 1024
LEASE_MAX_S = 3600.0
# JSON has larger ones, which no float can be.
NUMBER_MAX = 2**53
_NAME = re.compile(r"[0-9a-f-]{36}\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class Renewal:
    """The open transactions of one producer.

    Attributes:
        producer_group: the stored name of its group.
        client_id: the id of the producer, as the heads of its transactions carry it.
        lease_s: how long the check asks nothing after the storage received this.
        renewed_ms: when it was written; counts for clocks that tests set alone.
        open_s: by transaction id, how long ago it was prepared.
    """

    producer_group: str
    client_id: str
    lease_s: float
    renewed_ms: int
    open_s: Mapping[str, float]

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds."""
        return round(self.lease_s * 1000)

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        content = {
            "producer_group": self.producer_group,
            "client_id": self.client_id,
            "lease_s": self.lease_s,
            "renewed_ms": self.renewed_ms,
            "open_s": {key: round(open_s, 1) for key, open_s in self.open_s.items()},
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Renewal:
        """Read the content of a file, which any program may have written. Raises: ValueError."""
        try:
            value = json.loads(content)
            texts = value["producer_group"], value["client_id"]
            numbers = value["lease_s"], value["renewed_ms"], *value["open_s"].values()
            ids = list(value["open_s"])
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"is no renewal ({type(error).__name__})") from error
        if not all(isinstance(text, str) for text in texts) or not all(map(_is_number, numbers)):
            raise ValueError("has a value of a wrong type")
        if not all(map(is_transaction_id, ids)):
            raise ValueError("names what is no transaction")
        lease_s = min(float(value["lease_s"]), LEASE_MAX_S)
        return cls(*texts, lease_s, int(value["renewed_ms"]), value["open_s"])


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= NUMBER_MAX


class RenewalFile:
    """The file of one producer. Not safe for several threads."""

    def __init__(self, store: Store, client_id: str, *, timeout_s: float) -> None:
        """Write nothing yet; a request that takes longer than `timeout_s` is made once more.

        By default one may hang for half a minute, as long as a lease, and is repeated for three
        minutes, for which who closes the producer would wait.
        """
        timeout_ms = round(timeout_s * 1000)
        limits = {"timeout": f"{timeout_ms}ms", "retry_timeout": f"{2 * timeout_ms}ms"}
        self._objects = Objects(store.location, store.storage_options, limits=limits)
        self._path = f"{RENEWAL_FOLDER}/{client_id}.json"

    def put(self, renewal: Renewal) -> None:
        """Write the file: one request, 0 commits; a retry writes it again. Raises: StorageError."""
        with translated(RENEWAL_FOLDER):
            self._objects.put(self._path, renewal.to_bytes())

    def remove(self) -> None:
        """Remove the file, one request; 0 commits. Raises: StorageError."""
        with translated(RENEWAL_FOLDER):
            self._objects.delete(self._path)


@dataclass(frozen=True, slots=True)
class Renewed:
    """A renewal whose lease is not over, and when it is, by the clock of its reader."""

    renewal: Renewal
    until_ms: int


@dataclass(slots=True)
class _Seen:
    """What this process knows of one file, by the time that it counts itself.

    Attributes:
        listed: how the last listing showed the file.
        shown_ms: the first look that showed it like this.
        before_ms: the look before that one; None if there was none.
        renewal: what it said when it was read last; None if that was no renewal.
        is_read: whether it was read as it is listed.
    """

    listed: ListedObject
    shown_ms: int
    before_ms: int | None
    renewal: Renewal | None
    is_read: bool = False

    def age_ms(self, storage_age_ms: int, look_ms: int) -> int:
        """Return how long ago it was written.

        By the storage's time, unless this process knows better: it saw the file change since its
        last look, so the clock that wrote the time of the file was set, or is about to be believed.
        """
        if self.before_ms is None:
            return storage_age_ms
        least_ms, most_ms = look_ms - self.shown_ms, look_ms - self.before_ms
        is_possible = least_ms - FAR_MS <= storage_age_ms <= most_ms + NEAR_MS
        return storage_age_ms if is_possible else least_ms


class RenewalReader:
    """Reads the renewals of all producers: one listing, and each file that is new since then.

    Not safe for several threads.
    """

    def __init__(self, store: Store, clock: StoreClock) -> None:
        """Read nothing yet."""
        self._objects = Objects(store.location, store.storage_options)
        self._clock = clock
        self._files: dict[str, _Seen] = {}
        self._look_ms: int | None = None

    def read(self) -> list[Renewed]:
        """Return the renewals whose lease is not over; 0 commits.

        A file that is no renewal is named in a warning and counts for nothing: then the check asks.
        So does one from a time to come. One that cannot be read now counts as it was read last.
        Raises: StorageError where nothing can be listed.
        """
        # Before the listing: who reads for long must not find that leases ended meanwhile.
        now_ms, look_ms = self._clock.now_ms(), self._clock.counted_ms()
        with read_errors(RENEWAL_FOLDER):
            listing = self._objects.listed(RENEWAL_FOLDER)
        self._files = {
            file.name: self._seen(file, look_ms) for file in listing if _NAME.fullmatch(file.name)
        }
        self._look_ms = look_ms
        renewed = (self._renewed(seen, now_ms, look_ms) for seen in self._files.values())
        return [renewal for renewal in renewed if renewal is not None]

    def until_ms(self) -> dict[str, int]:
        """Return for each renewed transaction when its lease is over; as `read`."""
        until_ms: dict[str, int] = {}
        for renewed in self.read():
            for key in renewed.renewal.open_s:
                until_ms[key] = max(until_ms.get(key, 0), renewed.until_ms)
        return until_ms

    def _seen(self, listed: ListedObject, look_ms: int) -> _Seen:
        before = self._files.get(listed.name)
        if before is not None and before.listed == listed:
            return before
        return _Seen(listed, look_ms, self._look_ms, None if before is None else before.renewal)

    def _renewed(self, seen: _Seen, now_ms: int, look_ms: int) -> Renewed | None:
        """Return a renewal whose lease is not over; what is older than any lease is not read."""
        own = self._clock.own
        age_ms = 0
        if follows_storage(own):
            written_ms = affine(own).at(seen.listed.modified_ms)
            age_ms = seen.age_ms(now_ms - written_ms, look_ms)
        if not -FAR_MS <= age_ms < LEASE_MAX_S * 1000:
            return None
        renewal = self._content(seen)
        if renewal is None:
            return None
        if not follows_storage(own):
            age_ms = now_ms - renewal.renewed_ms
        is_over = not -FAR_MS <= age_ms < renewal.lease_ms
        return None if is_over else Renewed(renewal, now_ms + renewal.lease_ms - age_ms)

    def _content(self, seen: _Seen) -> Renewal | None:
        """Read a file once; None if it is gone or is no renewal."""
        if seen.is_read:
            return seen.renewal
        path = f"{RENEWAL_FOLDER}/{seen.listed.name}"
        try:
            seen.renewal, seen.is_read = self._renewal(path, seen.listed.size_bytes), True
        except FileNotFoundError:
            return None
        except ValueError as error:
            logger.warning("%s counts for nothing, so its transactions are asked: %s", path, error)
            seen.renewal, seen.is_read = None, True
        except (StorageError, *STORAGE_ERRORS) as error:
            logger.warning("%s cannot be read and counts as it was read last: %s", path, error)
        return seen.renewal

    def _renewal(self, path: str, size_bytes: int) -> Renewal:
        if size_bytes > BYTES_MAX:
            raise ValueError(f"it has {size_bytes:,} bytes, above {BYTES_MAX:,}")
        return Renewal.from_bytes(b"".join(self._objects.pieces(path)))
