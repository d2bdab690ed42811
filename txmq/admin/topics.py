"""What operators do with topics: make, look, alter, delete, rebuild."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from txmq.admin.rebuild_compare import TopicRebuild
from txmq.admin.rebuild_write import rebuild_topic
from txmq.admin.topic_deletion import TopicDeletion, delete_topic
from txmq.clock import Clock, SystemClock, timestamp
from txmq.delta.files import DataFile, FileRange
from txmq.delta.reading import ReadTable
from txmq.errors import (
    CommitConflictError,
    CommitRefusedError,
    ConfigError,
    InvalidNameError,
    ReservedNameError,
    TopicExistsError,
    TopicNotFoundError,
)
from txmq.maintenance.topic_retention import topic_begins
from txmq.message.names import (
    SCHEDULE_TOPIC,
    check_readable_topic,
    check_stored_topic,
    is_group_topic,
    stored_name,
)
from txmq.publish.progress import ParkedTopic, PublishProgress
from txmq.results import plain
from txmq.store.settled import NOTHING
from txmq.store.store import Store
from txmq.store.topic import TopicLog
from txmq.store.topic_settings import RegisteredTopics, TopicKind, TopicSettings, check_spelling


class Keep(enum.Enum):
    """Stands for a setting that is left as it is, where None has a meaning of its own."""

    KEEP = "keep"


KEEP = Keep.KEEP


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic in a list.

    Attributes:
        is_registered: an operator made or altered it; else its first message did.
        is_parked: it cannot be written now, and the others go on without it.
    """

    topic: str
    settings: TopicSettings
    is_registered: bool
    is_system: bool
    rows: int
    size_bytes: int
    is_parked: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = plain(self)
        del values["settings"]
        return {"topic": values.pop("topic"), **self.settings.to_value(), **values}


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """All about one topic.

    Attributes:
        files: how many files hold its rows.
        next_offsets: of each queue, the offset of its next message.
        oldest, newest: when the first and the last message that is there became visible.
        op_version: its messages are complete up to here; NOTHING before the first.
        begin: messages up to this op version may be gone by retention; None where all are there.
        parked: why it cannot be written, if it cannot.
    """

    summary: TopicSummary
    files: int
    next_offsets: Mapping[int, int]
    oldest: datetime | None
    newest: datetime | None
    op_version: int
    begin: int | None
    parked: ParkedTopic | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = plain(self)
        del values["summary"]
        parked = None if self.parked is None else _parked_value(self.parked)
        return {**self.summary.to_dict(), **values, "parked": parked}


class Topics:
    """Topics as things of their own; needs no Spark.

    Args:
        store: whose topics.
        clock: what the times of changes are told by.

    Example:
        >>> topics = Topics(store)
        >>> topics.create("order-paid", kind=TopicKind.TRANSACTION, queue_nums=4).queue_nums
        4
        >>> topics.delete("order-paid").is_written  # a dry run
        False
    """

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        """Read nothing yet."""
        self._store = store
        self._clock: Clock = clock or SystemClock()

    def create(
        self,
        topic: str,
        *,
        kind: TopicKind = TopicKind.UNSPECIFIED,
        queue_nums: int | None = None,
        reserved_time_h: float | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> TopicSettings:
        """Make a topic and its table at once; see TopicSettings.

        Writes: state/topics, topics/NAME. Commits: one to each (and one where the first settings
        make state/topics).

        Raises: TopicExistsError, TopicConflictError, ReservedNameError and other InvalidNameErrors,
            ConfigError (a body schema too), StorageError.
        """
        topic = _own_topic(topic)
        count = self._store.config.default_topic_queue_nums if queue_nums is None else queue_nums
        settings = TopicSettings(kind, count, reserved_time_h, body)

        def created(known: RegisteredTopics) -> RegisteredTopics:
            names = [*self._store.topics(), *known.settings]
            check_spelling(topic, names)
            if topic in names:
                raise TopicExistsError("topic", topic, "it is there already; alter it instead")
            self._store.check_body_schema(topic, settings.body_schema)
            return known.with_settings(topic, settings)

        self._swap(created)
        self._store.create_topic(topic)
        return settings

    def alter(  # noqa: PLR0913 - each is one setting
        self,
        topic: str,
        *,
        kind: TopicKind | None = None,
        queue_nums: int | None = None,
        reserved_time_h: float | Keep | None = KEEP,
        body: Mapping[str, Any] | Keep | None = KEEP,
        force: bool = False,
    ) -> TopicSettings:
        """Change settings of a topic; producers follow within `topic_refresh_s`.

        More queues: messages of one sharding key before and after the change may be in two queues.
        Fewer queues also leave queues that nobody writes to any more: only with `force`. A shorter
        `reserved_time_h` lets the next round of maintenance take messages away. Another `body` only
        while the topic has no messages.

        Writes: state/topics; with `body` also topics/NAME. Commits: one, with `body` up to three.

        Raises: TopicNotFoundError, InvalidNameError, ConfigError, BodySchemaConflictError,
            StorageError.
        """
        topic = _own_topic(topic)

        def altered(known: RegisteredTopics) -> RegisteredTopics:
            before = self._settings(self._checked(topic, known), known)
            after = TopicSettings(
                before.kind if kind is None else kind,
                before.queue_nums if queue_nums is None else queue_nums,
                before.reserved_time_h if isinstance(reserved_time_h, Keep) else reserved_time_h,
                before.body if isinstance(body, Keep) else body,
            )
            _check_queues(before, after, force=force)
            if not isinstance(body, Keep):
                self._store.check_body_schema(topic, after.body_schema)
            return known.with_settings(topic, after)

        settings = self._swap(altered).settings[topic]
        if not isinstance(body, Keep):
            self._store.create_topic(topic)
        return settings

    def delete(self, topic: str, *, apply: bool = False) -> TopicDeletion:
        """Take a topic's settings and its messages away; dry unless `apply`.

        Refused while transactions that name it are open or not published everywhere. Later messages
        to the name make it anew, with the default settings; their offsets go on where it ended. A
        stream that reads the topic goes on and sees them; one that lags behind fails.

        Reads: half, settled, state/publisher. Writes: state/maintenance, state/topics, topics/NAME.
        Commits: with `apply` one to each.

        Raises: TopicInUseError, TopicNotFoundError, InvalidNameError, StorageError.
        """
        topic = self._checked(_own_topic(topic), self._store.topic_register().read())
        return delete_topic(self._store, topic, self._clock, apply=apply)

    def rebuild(self, topic: str, *, apply: bool = False) -> TopicRebuild:
        """Compare a topic with what half and settled say, and set it right; dry unless `apply`.

        Reads: half, settled, the schedule, the topic. Writes: the topic. Commits: with `apply` one,
        if anything is wrong.

        Raises: TopicNotRebuiltError, PayloadMissingError, TopicNotFoundError, InvalidNameError,
            CommitConflictError, StorageError.
        """
        name = _any_topic(topic)
        if name == SCHEDULE_TOPIC:
            rule = "the schedule holds what nothing else may hold any more; it is not rebuilt"
            raise ReservedNameError("topic", name, rule)
        if name not in self._store.topics():
            raise _not_found(name)
        return rebuild_topic(self._store, name, self._clock, apply=apply)

    def all(self) -> tuple[TopicSummary, ...]:
        """All topics by name, system topics too. Commits: 0. Raises: StorageError."""
        known, parked = self._store.topic_register().read(), self._parked()
        names = sorted({*self._store.topics(), *known.settings})
        return tuple(self._summary(name, known, parked) for name in names)

    def describe(self, topic: str) -> TopicDescription:
        """All about one topic; system topics too.

        Reads: state/topics, state/publisher, state/maintenance, the topic's log and two of its
        files. Commits: 0. Raises: TopicNotFoundError, InvalidNameError, StorageError.
        """
        known, parked = self._store.topic_register().read(), self._parked()
        name = self._checked(_any_topic(topic), known)
        summary = self._summary(name, known, parked)
        log = self._store.topic_log(name, self._store.op_log().table.table_id)
        is_there = log.table.exists()
        ranges = log.table.ranges("op_version") if is_there else []
        return TopicDescription(
            summary,
            len(ranges),
            _next_offsets(log, summary.settings.queue_nums) if is_there else {},
            _edge(log.table, ranges, newest=False),
            _edge(log.table, ranges, newest=True),
            log.mark if is_there else NOTHING,
            topic_begins(self._store).get(name),
            parked.get(name),
        )

    # --- helpers ------------------------------------------------------------------------------

    def _summary(
        self, topic: str, known: RegisteredTopics, parked: Mapping[str, ParkedTopic]
    ) -> TopicSummary:
        files = self._files(topic)
        return TopicSummary(
            topic,
            self._settings(topic, known),
            is_registered=topic in known.settings,
            is_system=_is_system(topic),
            rows=sum(file.num_records for file in files),
            size_bytes=sum(file.size_bytes for file in files),
            is_parked=topic in parked,
        )

    def _files(self, topic: str) -> list[DataFile]:
        table = self._store.table_at(f"topics/{topic}")
        return table.files() if table.exists() else []

    def _settings(self, topic: str, known: RegisteredTopics) -> TopicSettings:
        count = 1 if is_group_topic(topic) else self._store.config.default_topic_queue_nums
        default = TopicSettings(TopicKind.UNSPECIFIED, count)
        return known.settings.get(topic, default)

    def _checked(self, topic: str, known: RegisteredTopics) -> str:
        if topic not in known.settings and topic not in self._store.topics():
            raise _not_found(topic)
        return topic

    def _parked(self) -> Mapping[str, ParkedTopic]:
        value = self._store.register("publisher").read().value
        return PublishProgress.from_value(value, self._store.op_log().table).parked if value else {}

    def _swap(self, change: Callable[[RegisteredTopics], RegisteredTopics]) -> RegisteredTopics:
        """What is known after a change; where another operator was faster, it is asked again."""
        change(self._store.topic_register().read())
        register = self._store.topic_register(create=True)
        for _ in range(self._store.config.commit_attempts):
            try:
                after = change(register.read())
                register.swap(after, self._clock.now_ms())
            except CommitRefusedError:
                continue
            return after
        raise CommitConflictError("state/topics", "other operators won every try")


def _own_topic(topic: object) -> str:
    """The stored name of a topic of users; one in a namespace is given as `tenant%name`."""
    return check_stored_topic(stored_name(topic) if isinstance(topic, str) else topic)


def _any_topic(topic: object) -> str:
    """As `_own_topic`, for system topics too."""
    return check_readable_topic(stored_name(topic) if isinstance(topic, str) else topic)


def _not_found(topic: str) -> TopicNotFoundError:
    return TopicNotFoundError(topic, "is not there; see txmq topics list")


def _check_queues(before: TopicSettings, after: TopicSettings, *, force: bool) -> None:
    if after.queue_nums < before.queue_nums and not force:
        problem = (
            f"queue_nums goes down from {before.queue_nums:,} to {after.queue_nums:,}: messages "
            "stay in queues that get no new ones, and consumers must go on reading them; "
            "force it if they do"
        )
        raise ConfigError([problem])


def _is_system(topic: str) -> bool:
    try:
        check_stored_topic(topic)
    except InvalidNameError:
        return True
    return False


def _next_offsets(log: TopicLog, queue_nums: int) -> dict[int, int]:
    highs = [one.high for one in log.table.ranges("queue_id") if one.high is not None]
    return log.next_offsets(range(max([queue_nums, *(high + 1 for high in highs)])))


def _edge(table: ReadTable, ranges: list[FileRange], *, newest: bool) -> datetime | None:
    """When the first or the last message was stored: later claims are published later."""
    known = [one for one in ranges if one.high is not None]
    if not known:
        return None
    at = max(known, key=lambda one: one.high) if newest else min(known, key=lambda one: one.low)
    times = table.read([at.file], ("store_timestamp",))["store_timestamp"]
    found: datetime | None = (pc.max(times) if newest else pc.min(times)).as_py()
    return found


def _parked_value(parked: ParkedTopic) -> dict[str, Any]:
    return {
        "from_version": parked.from_version,
        "reason": parked.reason,
        "since": timestamp(parked.since_ms).isoformat(),
        "attempts": parked.attempts,
    }
