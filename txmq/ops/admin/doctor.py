"""Looks at a store for what needs a hand: its tables, its progress, its brokers, this machine."""

from __future__ import annotations

import re
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from importlib.util import find_spec

import pyarrow.compute as pc

from txmq.check.open_transactions import open_transactions
from txmq.consumer.group import group_names
from txmq.consumer.lag import ConsumerLag, QueueLag
from txmq.consumer.offsets import TopicOffsets
from txmq.delta.failures import translated
from txmq.delta.folder import Objects, inside, rooted_filesystem
from txmq.delta.log_files import log_files
from txmq.delta.schemas import MARKS_PROPERTY, SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY
from txmq.delta.table import Table
from txmq.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    CredentialsExpiredError,
    IncompatibleVersionError,
    ReadOnlyStoreError,
    StorageError,
    StorageUnavailableError,
    StoreFullError,
    TxmqError,
    UnsupportedTableError,
)
from txmq.ground.clock import Clock, SystemClock, timestamp
from txmq.ground.printable import printable
from txmq.ground.results import Plain
from txmq.listeners.protocol import Reason
from txmq.message.names import shown_name
from txmq.ops.admin.forms import form_of
from txmq.ops.admin.needs import Figures, needs_of
from txmq.ops.admin.status import Admin, lag_of, parked_topics, set_aside
from txmq.ops.backup.order import order_faults
from txmq.ops.backup.positions import sight_of
from txmq.publish.progress import PublishProgress
from txmq.spark.java import OLDEST_JAVA, find_java
from txmq.store.brokers import BrokerEntry, read_brokers
from txmq.store.config import Config
from txmq.store.known import lost_by_others, problem_of_loss
from txmq.store.register import Register
from txmq.store.settled import NOTHING
from txmq.store.store import Store, check_store
from txmq.store.store_clock import CLOCK_FOLDER, FAR_MS, StoreClock
from txmq.store.stored_settings import HOW_TO_MOVE, as_yaml, ignored_names
from txmq.store.tables import CONSUMER_GROUP, STATE

GRANT = "grant it to who runs a broker (docs/security.md)"
RESTORE = "restore it from a backup; run txmq verify"
_GROUPS = STATE + CONSUMER_GROUP
TOPICS = "topics/"
_LATER = "look again later; nothing shows that it is damaged"
_CURES: dict[type[TxmqError], str] = {
    IncompatibleVersionError: "use the txmq that wrote it, or a newer one",
    UnsupportedTableError: "drop the feature: ALTER TABLE … DROP FEATURE in Spark",
    AccessDeniedError: GRANT,
    CredentialsExpiredError: "renew them, or let a catalog lend them (docs/security.md)",
    ReadOnlyStoreError: GRANT,
    BucketNotFoundError: "look at the location of the store, or make the bucket",
    StoreFullError: "make room; writes are refused when it is full, and nothing is lost",
    StorageUnavailableError: _LATER,
}
FREE_BYTES_MIN = 1024**3
WRITERS = 4
# A package, its versions, and the extra that brings it.
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*([^;]*)(?:;\s*extra == ['\"](\w+)['\"])?$")
_LIMIT = re.compile(r"(>=|<)\s*(\d+(?:\.\d+)*)")
# Maintenance and writers both make checkpoints; a log without them is read ever more slowly.
CHECKPOINTS_MISSED = 10
UPGRADE = "bring all processes of the older txmq to this one, then txmq upgrade LOCATION --apply"
# What txmq sets at the start, and why it must stay.
_PROPERTIES = {
    "delta.enableExpiredLogCleanup": "other programs may remove commits that readers need",
    "delta.enableChangeDataFeed": "streams of Spark do not see its commits",
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


class Doctor:
    """Looks at a store, its brokers and readers, and this machine; `txmq verify` proves more.

    Args:
        store: the store to look at.
        clock: the clock of this machine.

    Example:
        >>> Doctor(store).examine().findings
        ()
    """

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        """Read nothing yet."""
        check_store(store)
        self._store, self._clock = store, clock

    def examine(self, *, probes: bool = False) -> Diagnosis:
        """Look at everything once; nothing that the store names is loaded. Commits: 0.

        Reads: the log of each table, the registers, the offsets of topics with readers. A retry
        looks again.

        Args:
            probes: also write a small file in `clock/` and remove it, which shows what this process
                may do to the storage, whether writes are exclusive, and the store's time.

        Raises: StorageError if the folder of the store cannot be listed.
        """
        store = self._store
        clock = self._clock or SystemClock()
        now_ms = clock.now_ms()
        paths = store.tables.table_paths()
        findings = [
            *with_failure("settings", partial(findings_of_settings, store)),
            *(finding for path in paths for finding in self._of_table(path)),
            *findings_of_removals(store),
            *findings_of_strange_paths(store),
            *findings_of_order(store),
            *findings_of_needs(store, clock),
            *with_failure("state/brokers", partial(findings_of_brokers, store, now_ms)),
            *with_failure("consumer groups", partial(findings_of_readers, store)),
            *findings_of_programs(store),
            *(findings_of_probes(store, self._clock) if probes else ()),
        ]
        text = as_yaml(store.ignored) if store.ignored else ""
        return Diagnosis(store.location, len(paths), tuple(dict.fromkeys(findings)), text)

    def _of_table(self, path: str) -> Iterator[Finding]:
        table = self._store.tables.table_at(path)
        yield from findings_of_table(path, table, self._store.config.checkpoint_interval)
        if path.startswith(TOPICS):
            look = partial(findings_of_topic, self._store, path.removeprefix(TOPICS))
            yield from with_failure(path, look)
        if path.startswith(STATE):
            register = Register(table, form_of(path.removeprefix(STATE)))
            yield from with_failure(path, partial(_without_findings, register))


def _without_findings(register: Register) -> tuple[Finding, ...]:
    """Read its value, which fails where that is damaged."""
    if register.exists:
        register.read()
    return ()


def with_failure(where: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield what a look finds; if it fails, what it found up to there and the failure."""
    try:
        yield from look()
    except TxmqError as error:
        yield Finding(where, str(error), cure_of(error, restore_of(where)))


def cure_of(error: TxmqError, otherwise: str = RESTORE) -> str:
    """Say what to do about an error: only what may be damaged is restored."""
    return _CURES.get(type(error), _LATER if error.retryable else otherwise)


def restore_of(path: str) -> str:
    """Say what to do about a damaged table."""
    if not path.startswith(_GROUPS):
        return RESTORE
    group = shown_name(path.removeprefix(_GROUPS))
    return f"{RESTORE}; or give its offsets up: txmq groups delete LOCATION {group}"


# --- settings and tables --------------------------------------------------------------------------


def findings_of_settings(store: Store) -> Iterator[Finding]:
    """Find settings that nobody loads, and pairs that do not fit each other."""
    for name in ignored_names(store.ignored):
        problem = "stands in the store's own settings and could act, so nobody loads it"
        yield Finding(name, problem, f"if you trust it, {HOW_TO_MOVE}")
    yield from _misfit_settings(store.config)


def _misfit_settings(config: Config) -> Iterator[Finding]:
    look_s, timeout_s = config.check_trigger_interval_s, config.transaction_timeout_s
    if look_s > timeout_s:
        problem = f"is {look_s:g} s, longer than transaction_timeout_s ({timeout_s:g} s)"
        step = "make it shorter: transactions are asked about that much too late"
        yield Finding("check_trigger_interval_s", problem, step)
    recheck_s, log_s = config.recheck_interval_s, config.log_reserved_time_s
    if recheck_s > log_s:
        problem = f"is {recheck_s:g} s, longer than log_reserved_time_s ({log_s:g} s)"
        step = "make it shorter: else each recheck reads the whole logs"
        yield Finding("recheck_interval_s", problem, step)


def findings_of_table(path: str, table: Table, checkpoint_interval: int) -> Iterator[Finding]:
    """Find what is wrong with a table; `checkpoint_interval` is the one of the store."""
    try:
        files = table.files.all()
        properties = table.log.properties()
        missed = log_files(table.folder).since_checkpoint(table.version)
    except TxmqError as error:
        yield Finding(path, str(error), cure_of(error, restore_of(path)))
        return
    version = int(properties[SCHEMA_VERSION_PROPERTY])
    if version < SCHEMA_VERSION:
        problem = f"has schema version {version}, this txmq makes {SCHEMA_VERSION}"
        yield Finding(path, f"{problem}: an older txmq may write beside this one", UPGRADE)
    for file in files:
        try:
            inside(file.path)
        except TxmqError as error:
            step = "find out who wrote this commit; restore the table to the version before it"
            yield Finding(path, str(error), step)
    for name, value in table.schema.properties(checkpoint_interval).items():
        if name in _PROPERTIES and properties.get(name) != value:
            problem = f"its property {name} is {properties.get(name)!r}: {_PROPERTIES[name]}"
            yield Finding(path, problem, f"set it: SET TBLPROPERTIES ('{name}' = '{value}')")
    if MARKS_PROPERTY in properties:
        problem = f"its property {MARKS_PROPERTY} lets it forget marks, which txmq rests on"
        yield Finding(path, problem, f"ALTER TABLE … UNSET TBLPROPERTIES ('{MARKS_PROPERTY}')")
    if missed > CHECKPOINTS_MISSED * checkpoint_interval:
        problem = f"has had no checkpoint for {missed:,} commits, one is due each"
        step = "run a broker or txmq maintenance, and look at why it fails"
        yield Finding(path, f"{problem} {checkpoint_interval:,}", step)


def findings_of_topic(store: Store, topic: str) -> Iterator[Finding]:
    """Find messages that another program removed from a topic; 0 commits."""
    op = store.tables.op_log().table
    lost = lost_by_others(store, store.tables.topic_log(topic, op.log.table_id))
    if lost > 0:
        step = f"restore it, or run txmq rebuild-topic {store.location} {shown_name(topic)}"
        yield Finding(f"{TOPICS}{topic}", problem_of_loss(lost), step)


def findings_of_removals(store: Store) -> Iterator[Finding]:
    """Find halves and facts that another program removed; 0 commits."""
    half = store.tables.half_log().table
    try:
        settled = store.tables.settled_log(store.tables.op_log().table.log.table_id)
        seen = settled.half_seen
        removals = [("half", version) for version in settled.half_removals(half)]
        removals += [("settled", version) for version in settled.removals()]
        is_lost = seen.lost != NOTHING and half.folder.has_commit(seen.lost)
    except TxmqError:
        # A table that cannot be read is a finding of its own.
        return
    for name, version in removals:
        problem = f"lacks rows that another program removed in commit {version}"
        step = "run a broker (txmq serve), which puts them back; do not vacuum before"
        yield Finding(name, problem, step)
    if is_lost:
        problem = f"lacks rows that another program removed in commit {seen.lost}"
        yield Finding("half", f"{problem}, with their file; no COMMIT of them counts", RESTORE)


def findings_of_strange_paths(store: Store) -> Iterator[Finding]:
    """Find folders that look like a topic or a group, and can be none."""
    for path in store.tables.strange_paths():
        problem = "has a name that no topic and no group can have, so nothing reads it"
        yield Finding(path, problem, "find out who made it, and move it out of the store")


def findings_of_order(store: Store) -> Iterator[Finding]:
    """Find tables that are newer than others that they refer to, as in a copy made by hand."""
    try:
        faults = order_faults(sight_of(store.tables))
    except TxmqError:
        # A table that cannot be read is a finding of its own.
        return
    for fault in faults:
        problem = f"is newer than {fault.older}: {fault.problem}"
        yield Finding(fault.newer, problem, fault.next_step)


# --- progress -------------------------------------------------------------------------------------


def findings_of_needs(store: Store, clock: Clock) -> Iterator[Finding]:
    """Find what needs an operator by the figures of the store."""
    silent = _silent_groups(store, clock)
    figures = Figures(store.location, timestamp(clock.now_ms()))
    try:
        # Each table that cannot be used has a finding of its own.
        figures = replace(Figures.of(Admin(store, clock=clock).status()), unusable={})
    except Exception as error:  # noqa: BLE001 - a value of others hides no other finding
        # What cannot be read is a finding of its own; the registers tell what they can.
        if not isinstance(error, TxmqError):
            problem = f"cannot be counted ({type(error).__name__})"
            yield Finding("status", problem, "look for rows that no txmq wrote: txmq verify")
        yield from _needs_of_registers(store, figures, clock.now_ms())
    yield from _findings_of(replace(figures, silent=sum(silent.values()), silent_groups=silent))


def _silent_groups(store: Store, clock: Clock) -> Counter[str]:
    """Count the open transactions that nobody answers for, by producer group."""
    try:
        rows = open_transactions(store, clock=clock)
    except TxmqError:
        # A log that cannot be read is a finding of its own.
        return Counter()
    silent = rows.filter(pc.equal(rows["reason"], Reason.NO_LISTENER.value))
    return Counter(silent["producer_group"].to_pylist())


def _needs_of_registers(store: Store, nothing: Figures, now_ms: int) -> Iterator[Finding]:
    """Find what needs an operator by each register that can be read."""

    def waiting() -> Iterator[Finding]:
        return _findings_of(replace(nothing, set_aside=set_aside(store)))

    of_publisher = partial(_needs_of_publisher, store, nothing, now_ms)
    yield from with_failure("state/publisher", of_publisher)
    yield from with_failure("state/set_aside", waiting)


def _needs_of_publisher(store: Store, nothing: Figures, now_ms: int) -> Iterator[Finding]:
    value = store.tables.register("publisher", PublishProgress).read().value
    yield from _findings_of(replace(nothing, parked=parked_topics(value.get("parked", {}))))
    version = value.get("low_water_version", NOTHING)
    yield from with_failure("op", partial(_needs_of_lag, store, nothing, version, now_ms))


def _needs_of_lag(store: Store, nothing: Figures, version: int, now_ms: int) -> Iterator[Finding]:
    lag, has_broker = lag_of(store.tables.op_log(), version, now_ms), bool(_living(store, now_ms))
    yield from _findings_of(replace(nothing, published=lag, has_broker=has_broker))


def _findings_of(figures: Figures) -> Iterator[Finding]:
    for need in needs_of(figures):
        yield Finding(need.where, need.problem, need.next_step)


# --- brokers and consumer groups ------------------------------------------------------------------


def findings_of_brokers(store: Store, now_ms: int) -> Iterator[Finding]:
    """Find brokers that did not stop in order, and brokers of two versions."""
    entries = read_brokers(store.tables).entries.values()
    for entry in sorted(entries, key=lambda entry: entry.seen_ms):
        if entry.is_gone(now_ms):
            seen = timestamp(entry.seen_ms).isoformat(sep=" ", timespec="seconds")
            was = "says that it was seen at" if entry.is_to_come(now_ms) else "was seen last at"
            problem = f"{printable(entry.name)} {was} {seen} and did not stop in order"
            step = "look at its log, and whether it must run; its entry goes after a day"
            yield Finding("brokers", problem, step)
    versions = sorted({entry.version for entry in _living(store, now_ms)})
    if len(versions) > 1:
        problem = f"run with different versions of txmq: {', '.join(versions)}"
        yield Finding("brokers", problem, "bring the older ones to the newest version")


def _living(store: Store, now_ms: int) -> list[BrokerEntry]:
    try:
        entries = read_brokers(store.tables).entries.values()
    except TxmqError:
        # This is a finding of its own.
        return []
    return [entry for entry in entries if not entry.is_gone(now_ms)]


def findings_of_readers(store: Store) -> Iterator[Finding]:
    """Find consumer groups that are behind what retention has left."""
    lags = ConsumerLag(store)
    for group in group_names(store):
        path = f"state/{CONSUMER_GROUP}{group}"
        yield from with_failure(path, partial(_of_group, store, lags, group))


def _of_group(store: Store, lags: ConsumerLag, group: str) -> Iterator[Finding]:
    behind: dict[str, list[QueueLag]] = {}
    for queue in lags.of_group(group):
        if queue.lag:
            behind.setdefault(queue.topic, []).append(queue)
    lost = {topic: _lost(store, topic, queues) for topic, queues in sorted(behind.items())}
    for topic, count in lost.items():
        if count:
            problem = f"retention removed {count:,} messages of {shown_name(topic)} unread"
            step = "let the group read more often, or keep the topic longer: txmq topics alter"
            yield Finding(f"group {shown_name(group)}", problem, step)


def _lost(store: Store, topic: str, queues: list[QueueLag]) -> int:
    """Count the messages that retention removed unread; one look at the topic."""
    first = TopicOffsets(store, topic).first({queue.queue_id for queue in queues})
    return sum(max(0, first[queue.queue_id] - queue.next_offset) for queue in queues)


# --- this machine ---------------------------------------------------------------------------------


def findings_of_programs(store: Store) -> Iterator[Finding]:
    """Find packages of a version that txmq is not made for, a missing Java, little free space."""
    for name, versions, installed in _unfit_packages():
        step = f"pip install '{name}{versions}'"
        yield Finding(f"package {name}", f"is {installed}, txmq needs {versions}", step)
    if find_spec("pyspark") is not None and find_java() is None:
        problem = f"Spark is installed, and no Java {OLDEST_JAVA} or newer is found"
        yield Finding(
            "Java",
            problem,
            "install txmq with its extra java (docs/install.md), or run txmq serve --no-spark",
        )
    if not store.is_remote:
        free = shutil.disk_usage(store.location).free
        if free < FREE_BYTES_MIN:
            problem = f"{free:,} bytes are free, less than {FREE_BYTES_MIN:,}"
            step = "make room; writes are refused when it is full, and nothing is lost"
            yield Finding("disk", problem, step)


def _unfit_packages() -> Iterator[tuple[str, str, str]]:
    """Yield packages with the versions that txmq needs and the one that is installed."""
    for text in _requirements():
        match = _REQUIREMENT.match(text)
        if match is None or match[3] not in (None, "spark"):
            continue
        try:
            installed = metadata.version(match[1])
        except metadata.PackageNotFoundError:
            continue
        if not is_within(installed, match[2]):
            yield match[1], match[2].strip(), installed


def _requirements() -> list[str]:
    try:
        return metadata.requires("txmq") or []
    except metadata.PackageNotFoundError:
        # It runs from a checkout.
        return []


def is_within(version: str, limits: str) -> bool:
    """Tell whether a version keeps its limits, such as `>=1.6.6,<1.7`."""
    numbers = _numbers(version)
    for sign, text in _LIMIT.findall(limits):
        if (numbers < _numbers(text)) is (sign == ">="):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(digits) for digits in re.findall(r"\d+", version.partition("+")[0])[:3]]
    return tuple(numbers + [0] * (3 - len(numbers)))


# --- probes ---------------------------------------------------------------------------------------


def findings_of_probes(store: Store, clock: Clock | None = None) -> Iterator[Finding]:
    """Write a small file in `clock/` and remove it: to see rights, exclusive writes, the clock."""
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
        """Find what is refused, or is not exclusive; the file is gone afterwards."""
        winners, problem = self._write_at_once()
        if problem is not None:
            yield _refused(f"files cannot be written: {problem}", problem)
            # A writer that was refused may have written all the same.
            yield from self._without_the_file(is_there=winners > 0)
            return
        if winners != 1:
            who = f"{winners} of {WRITERS} writers made the same file"
            step = "do not use this place: commits would overwrite each other (docs/places.md)"
            yield Finding("storage", f"{who}, so two may make the same commit", step)
        for what, step_of_it in {"read": self._is_read, "listed": self._is_listed}.items():
            is_done, problem = self._try(step_of_it)
            if not is_done:
                reason = problem or "it is not there"
                yield _refused(f"a new file cannot be {what}: {reason}", problem)
        yield from self._without_the_file(is_there=True)

    def _without_the_file(self, *, is_there: bool) -> Iterator[Finding]:
        _, problem = self._try(self._deleted)
        if problem is not None and is_there:
            finding = _refused(f"files cannot be deleted: {problem}; {self._path} stays", problem)
            next_step = f"{finding.next_step}; else maintenance cleans nothing"
            yield replace(finding, next_step=next_step)

    def _try(self, step: Callable[[], int]) -> tuple[int, StorageError | None]:
        try:
            with translated(CLOCK_FOLDER):
                return step(), None
        except StorageError as error:
            return 0, error

    def _write_at_once(self) -> tuple[int, StorageError | None]:
        """Let several writers make the file at once; count those that did, return a refusal."""
        with ThreadPoolExecutor(WRITERS) as pool:
            outcomes = list(pool.map(self._put, range(WRITERS)))
        problems = [problem for _, problem in outcomes if problem is not None]
        return sum(count for count, _ in outcomes), next(iter(problems), None)

    def _put(self, number: int) -> tuple[int, StorageError | None]:
        return self._try(lambda: self._objects.put_new(self._path, b"%d" % number))

    def _is_read(self) -> int:
        with self._filesystem.open_input_file(self._path) as file:
            return len(file.read())

    def _is_listed(self) -> int:
        return self._name in self._objects.names(CLOCK_FOLDER)

    def _deleted(self) -> int:
        self._filesystem.delete_file(self._path)
        return 1


def _refused(problem: str, error: StorageError | None) -> Finding:
    """Make a finding of a step that failed: of rights, unless the error names another cause."""
    step = GRANT if error is None else cure_of(error, otherwise=GRANT)
    return Finding("rights" if step == GRANT else "storage", problem, step)
