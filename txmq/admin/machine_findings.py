"""What ails this machine and its way to the store: programs, space, rights, clock."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec

from txmq.admin.findings import GRANT, Finding, cure_of
from txmq.clock import Clock, SystemClock
from txmq.delta.failures import translated
from txmq.delta.objects import Objects
from txmq.delta.rooted import rooted_filesystem
from txmq.errors import StorageError
from txmq.local_spark.java import OLDEST_JAVA, find_java
from txmq.store.store import Store
from txmq.store.store_clock import CLOCK_FOLDER, FAR_MS, StoreClock

FREE_BYTES_MIN = 1024**3
WRITERS = 4
# A package, its versions, and the extra that brings it.
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*([^;]*)(?:;\s*extra == ['\"](\w+)['\"])?$")
_LIMIT = re.compile(r"(>=|<)\s*(\d+(?:\.\d+)*)")


# --- programs and space ---------------------------------------------------------------------------


def findings_of_programs(store: Store) -> Iterator[Finding]:
    """Packages of another version than txmq was made for, Java, free space."""
    for name, versions, has in _unfit_packages():
        step = f"pip install '{name}{versions}'"
        yield Finding(f"package {name}", f"is {has}, txmq needs {versions}", step)
    if find_spec("pyspark") is not None and find_java() is None:
        problem = f"Spark is installed, and no Java {OLDEST_JAVA} or newer is found"
        yield Finding("Java", problem, "pip install 'txmq[java]', or txmq serve --no-spark")
    if not store.is_remote:
        free = shutil.disk_usage(store.location).free
        if free < FREE_BYTES_MIN:
            problem = f"{free:,} bytes are free, less than {FREE_BYTES_MIN:,}"
            step = "make room; writes are refused when it is full, and nothing is lost"
            yield Finding("disk", problem, step)


def _unfit_packages() -> Iterator[tuple[str, str, str]]:
    for text in _requirements():
        match = _REQUIREMENT.match(text)
        if match is None or match[3] not in (None, "spark"):
            continue
        try:
            has = metadata.version(match[1])
        except metadata.PackageNotFoundError:
            continue
        if not is_within(has, match[2]):
            yield match[1], match[2].strip(), has


def _requirements() -> list[str]:
    try:
        return metadata.requires("txmq") or []
    except metadata.PackageNotFoundError:
        # It runs from a checkout.
        return []


def is_within(version: str, limits: str) -> bool:
    """Whether a version keeps its limits, such as `>=1.6.6,<1.7`."""
    has = _numbers(version)
    for sign, text in _LIMIT.findall(limits):
        if (has < _numbers(text)) is (sign == ">="):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]]
    return tuple(numbers + [0] * (3 - len(numbers)))


# --- probes ---------------------------------------------------------------------------------------


def findings_of_probes(store: Store, clock: Clock | None = None) -> Iterator[Finding]:
    """Writes a small file in `clock/`, and removes it: rights, exclusive writes, the clock."""
    yield from StorageProbe(store).findings()
    own = clock or SystemClock()
    try:
        ahead_ms = own.now_ms() - StoreClock(store, clock).now_ms()
    except StorageError:
        # The rights are missing that were just named.
        return
    if abs(ahead_ms) > FAR_MS:
        side = "ahead of" if ahead_ms > 0 else "behind"
        problem = f"this machine's clock is {abs(ahead_ms) / 1000:,.1f} s {side} the store's"
        yield Finding("clock", problem, "set it by NTP; ages and latencies are wrong until then")


class StorageProbe:
    """Tries on one small file what a broker does to its tables."""

    def __init__(self, store: Store, objects: Objects | None = None) -> None:
        """Write nothing yet."""
        self._objects = objects or Objects(store.location, store.storage_options)
        self._filesystem = rooted_filesystem(store.location, store.storage_options)
        self._name = f"doctor-{uuid.uuid4()}"
        self._path = f"{CLOCK_FOLDER}/{self._name}"

    def findings(self) -> Iterator[Finding]:
        """What is refused, or is not exclusive; the file is gone afterwards."""
        winners, problem = self._written()
        if problem is not None:
            yield _refused(f"files cannot be written: {problem}", problem)
            # A writer that was refused may have written all the same.
            yield from self._without_the_file(is_there=winners > 0)
            return
        if winners != 1:
            who = f"{winners} of {WRITERS} writers made the same file"
            step = "do not use this place: commits would overwrite each other (docs/places.md)"
            yield Finding("storage", f"{who}, so two may make the same commit", step)
        for what, is_so in {"read": self._is_read, "listed": self._is_listed}.items():
            is_done, problem = self._tried(is_so)
            if not is_done:
                said = problem or "it is not there"
                yield _refused(f"a new file cannot be {what}: {said}", problem)
        yield from self._without_the_file(is_there=True)

    def _without_the_file(self, *, is_there: bool) -> Iterator[Finding]:
        _, problem = self._tried(self._deleted)
        if problem is not None and is_there:
            left = f"files cannot be deleted: {problem}; {self._path} stays"
            found = _refused(left, problem)
            yield replace(found, next_step=f"{found.next_step}; else maintenance cleans nothing")

    def _tried(self, step: Callable[[], int]) -> tuple[int, StorageError | None]:
        try:
            with translated(CLOCK_FOLDER):
                return step(), None
        except StorageError as error:
            return 0, error

    def _written(self) -> tuple[int, StorageError | None]:
        """How many of several writers at once made the file, and why one of them could not try."""
        with ThreadPoolExecutor(WRITERS) as pool:
            outcomes = list(pool.map(self._put, range(WRITERS)))
        problems = [problem for _, problem in outcomes if problem is not None]
        return sum(made for made, _ in outcomes), next(iter(problems), None)

    def _put(self, number: int) -> tuple[int, StorageError | None]:
        return self._tried(lambda: self._objects.put_new(self._path, b"%d" % number))

    def _is_read(self) -> int:
        with self._filesystem.open_input_file(self._path) as file:
            return len(file.read())

    def _is_listed(self) -> int:
        return self._name in self._objects.names(CLOCK_FOLDER)

    def _deleted(self) -> int:
        self._filesystem.delete_file(self._path)
        return 1


def _refused(said: str, error: StorageError | None) -> Finding:
    """A step that failed: a matter of rights, unless the error names another cause."""
    step = GRANT if error is None else cure_of(error, otherwise=GRANT)
    return Finding("rights" if step == GRANT else "storage", said, step)
