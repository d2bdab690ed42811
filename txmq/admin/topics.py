"""Topics for operators: create, list, describe, alter, delete, rebuild."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from txmq.admin.rebuild_compare import TopicRebuild
from txmq.admin.rebuild_write import rebuild_topic
from txmq.admin.topic_deletion import TopicDeletion, check_unused, delete_topic
from txmq.admin.topic_description import TopicDescription, TopicSummary
from txmq.clock import Clock, SystemClock
from txmq.delta.files import DataFile, FileRange
from txmq.delta.reading import ReadTable
from txmq.errors import (
    CommitConflictError,
    CommitRefusedError,
    ConfigError,
    InvalidNameError,
    ReservedNameError,
    TopicExistsError,
    TopicInUseError,
    TopicNotFoundError,
)
from txmq.maintenance.topic_retention import topic_begins
from txmq.message.names import (
    SCHEDULE_TOPIC,
    check_stored_topic,
    is_group_topic,
    stored_name,
    stored_topic,
)
from txmq.publish.progress import ParkedTopic, PublishProgress
from txmq.store.settled import NOTHING
from txmq.store.store import Store, check_store
from txmq.store.topic import TopicLog
from txmq.store.topic_settings import RegisteredTopics, TopicKind, TopicSettings, check_spelling


class Keep(enum.Enum):
    """Leaves a setting unchanged, where None is a value of the setting."""

    KEEP = "keep"


KEEP = Keep.KEEP


class Topics:
    """Creates, lists, alters, deletes and rebuilds topics; needs no Spark.

    A name in a namespace is given as `tenant%name`.

    Args:
        store: the store of the topics.
        clock: the time for changes that are written.

    Example:
        >>> topics = Topics(store)
        >>> topics.create("order-paid", kind=TopicKind.TRANSACTION, queue_nums=4).queue_nums
        4
        >>> topics.delete("order-paid").is_written  # a dry run
        False
    """

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        """Read nothing yet."""
        check_store(store)
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
        """Create a topic with settings, and its table.

        Args:
            topic: the name of the new topic.
            kind: which messages it takes.
            queue_nums: how many queues it has; `default_topic_queue_nums` if left out.
            reserved_time_h: messages may be removed when they are so many hours old; None keeps
                them for ever.
            body: the schema of its bodies; None takes any bytes.

        Writes: state/topics, topics/NAME. Commits: one to each, and one that creates state/topics
        with the first settings. After a failure in between, a repeated call raises
        TopicExistsError; the first message then creates the table.

        Returns:
            The settings of the topic.

        Raises:
            TopicExistsError: there is a topic of this name.
            TopicConflictError: there is a topic whose name differs only in case.
            ReservedNameError, InvalidNameError: the name is not allowed.
            ConfigError: a setting or the body schema is wrong.
            TopicInUseError: it would get a body schema, and open transactions name it.
            CommitConflictError, StorageError: a table cannot be read or written.
        """
        topic = _own_topic(topic)
        count = self._store.config.default_topic_queue_nums if queue_nums is None else queue_nums
        settings = TopicSettings(kind, count, reserved_time_h, body)

        def created(registered: RegisteredTopics) -> RegisteredTopics:
            names = [*self._store.topics(), *registered.settings]
            check_spelling(topic, names)
            if topic in names:
                raise TopicExistsError("topic", topic, "it is there already; alter it instead")
            self._check_body_schema(topic, settings)
            return registered.with_settings(topic, settings)

        self._swap(created)
        if settings.body is not None:
            self._confirm_unused(topic, None)
        self._store.tables.create_topic(topic)
        return settings

    def alter(  # noqa: PLR0913 - each is one setting
        self,
        topic: str,
        *,
        kind: TopicKind | None = None,
        queue_nums: int | None = None,
        reserved_time_h: float | Keep | None = KEEP,
        body: Mapping[str, Any] | Keep | None = KEEP,
        is_read_only: bool | None = None,
        force: bool = False,
    ) -> TopicSettings:
        """Change settings of a topic; producers follow within `topic_refresh_s`.

        Args:
            topic: the name of the topic.
            kind: which messages it takes; None leaves it unchanged.
            queue_nums: how many queues it has; None leaves it unchanged. With another number the
                messages of one sharding key may be in two queues.
            reserved_time_h: None keeps messages for ever. With a shorter time the next round of
                maintenance may remove messages.
            body: the schema of its bodies; None takes any bytes. It can only be changed while the
                topic has no messages.
            is_read_only: refuse new messages, or take them again; None leaves it unchanged.
                Consumers read on, and what was prepared or delayed before is still published.
            force: allow fewer queues, which leaves messages in queues that get no new ones.

        Writes: state/topics; with `body` also topics/NAME. Commits: one, with `body` up to three.
        A repeated call writes the same settings again.

        Returns:
            The settings after the change.

        Raises:
            TopicNotFoundError, InvalidNameError: there is no such topic.
            ConfigError: a setting is wrong, or there would be fewer queues without `force`.
            BodySchemaConflictError: the topic has messages with other bodies.
            TopicInUseError: it would get a body schema, and open transactions name it.
            CommitConflictError, StorageError: a table cannot be read or written.
        """
        topic = _own_topic(topic)

        seen: list[TopicSettings] = []

        def altered(registered: RegisteredTopics) -> RegisteredTopics:
            before = self._settings(self._checked(topic, registered), registered)
            after = TopicSettings(
                before.kind if kind is None else kind,
                before.queue_nums if queue_nums is None else queue_nums,
                before.reserved_time_h if isinstance(reserved_time_h, Keep) else reserved_time_h,
                before.body if isinstance(body, Keep) else body,
                before.is_read_only if is_read_only is None else is_read_only,
            )
            _check_queues(before, after, force=force)
            if not isinstance(body, Keep):
                self._check_body_schema(topic, after)
            seen.append(before)
            return registered.with_settings(topic, after)

        registered = self._swap(altered)
        if not isinstance(body, Keep):
            if body is not None:
                self._confirm_unused(topic, seen[-1])
            self._store.tables.create_topic(topic)
        return registered.settings[topic]

    def delete(self, topic: str, *, apply: bool = False) -> TopicDeletion:
        """Remove the settings and the messages of a topic; a dry run unless `apply`.

        A later message to the name creates the topic again, with default settings; its offsets
        continue where the topic ended. A stream that has read everything continues and sees later
        messages; a stream that lags behind fails.

        Args:
            topic: the name of the topic.
            apply: delete it; without it only its size is counted.

        Reads: half, settled, state/publisher. Writes: state/maintenance, state/topics, topics/NAME.
        Commits: with `apply` one to each, else 0. A deletion that failed or was killed can be
        repeated.

        Raises:
            TopicInUseError: transactions that name it are open or not published everywhere.
            TopicNotFoundError, InvalidNameError: there is no such topic.
            CommitConflictError, StorageError: a table cannot be read or written.
        """
        topic = self._checked(_own_topic(topic), self._store.tables.topic_register().read())
        return delete_topic(self._store, topic, self._clock, apply=apply)

    def rebuild(self, topic: str, *, apply: bool = False, force: bool = False) -> TopicRebuild:
        """Compare a topic with half and settled, and repair it; a dry run unless `apply`.

        Streams skip the commit of a rebuild, so they do not receive messages that it restores.

        Args:
            topic: the name of the topic; a system topic too, the schedule only while it is parked,
                or its table is gone.
            apply: repair it; without it the differences are only counted.
            force: repair it also where offsets move under consumer groups. These lose their members
                and go back to the first offset that moves: what follows comes to them again, also
                to a DeltaInbox, which then knows offsets of other messages.

        Reads: half, settled, the schedule, the topic, the groups. Writes: the topic. Commits: with
        `apply` one if anything is wrong, else 0; with `force` one or two more for each group that
        it puts back. A repeated call compares again.

        Raises:
            TopicNotRebuiltError: messages are missing that no other table holds any more, or
                offsets would move under consumer groups; without `apply`, its table is gone.
            PayloadMissingError: half messages are missing that retention did not remove.
            TopicNotFoundError, InvalidNameError: there is no such topic.
            CommitConflictError, StorageError: a table cannot be read or written.
        """
        name, progress = stored_topic(topic), self._progress()
        is_there, is_parked = name in self._store.topics(), name in progress.parked
        if not is_there and (name not in progress.ends or self._is_deleted(name)):
            raise _not_found(name)
        if name == SCHEDULE_TOPIC and is_there and not is_parked:
            rule = "the schedule is rebuilt only while it is parked: it may hold what no other does"
            raise ReservedNameError("topic", name, rule)
        return rebuild_topic(self._store, name, self._clock, apply=apply, force=force)

    def all(self) -> tuple[TopicSummary, ...]:
        """All topics by name, system topics too.

        Reads: state/topics, state/publisher, the logs of all topics. Commits: 0. Raises:
        StorageError.
        """
        registered, parked = self._store.tables.topic_register().read(), self._parked()
        names = sorted({*self._store.topics(), *registered.settings})
        return tuple(self._summary(name, registered, parked) for name in names)

    def describe(self, topic: str) -> TopicDescription:
        """Settings, size and offsets of one topic; of a system topic too.

        Reads: state/topics, state/publisher, state/maintenance, the topic's log and two of its
        files. Commits: 0. Raises: TopicNotFoundError, InvalidNameError, StorageError.
        """
        registered, parked = self._store.tables.topic_register().read(), self._parked()
        name = self._checked(stored_topic(topic), registered)
        summary = self._summary(name, registered, parked)
        log = self._store.tables.topic_log(name, self._store.tables.op_log().table.table_id)
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

    def _check_body_schema(self, topic: str, settings: TopicSettings) -> None:
        """Raise where the table or messages on their way have other bodies."""
        self._store.tables.check_body_schema(topic, settings.body_schema)
        if settings.body is not None:
            check_unused(self._store, topic)

    def _confirm_unused(self, topic: str, before: TopicSettings | None) -> None:
        """Take a new body schema back if a transaction named the topic before producers saw it.

        Producers compare the settings right after each commit of halves, so later ones are refused.
        """
        try:
            check_unused(self._store, topic)
        except TopicInUseError:
            self._swap(
                lambda registered: (
                    registered.with_settings(topic, before)
                    if before is not None
                    else registered.without_settings(topic)
                )
            )
            raise

    def _summary(
        self, topic: str, registered: RegisteredTopics, parked: Mapping[str, ParkedTopic]
    ) -> TopicSummary:
        files = self._files(topic)
        return TopicSummary(
            topic,
            self._settings(topic, registered),
            is_registered=topic in registered.settings,
            is_system=_is_system(topic),
            rows=sum(file.num_records for file in files),
            size_bytes=sum(file.size_bytes for file in files),
            is_parked=topic in parked,
        )

    def _files(self, topic: str) -> list[DataFile]:
        table = self._store.tables.table_at(f"topics/{topic}")
        return table.files() if table.exists() else []

    def _settings(self, topic: str, registered: RegisteredTopics) -> TopicSettings:
        count = 1 if is_group_topic(topic) else self._store.config.default_topic_queue_nums
        default = TopicSettings(TopicKind.UNSPECIFIED, count)
        return registered.settings.get(topic, default)

    def _checked(self, topic: str, registered: RegisteredTopics) -> str:
        if topic not in registered.settings and topic not in self._store.topics():
            raise _not_found(topic)
        return topic

    def _parked(self) -> Mapping[str, ParkedTopic]:
        return self._progress().parked

    def _progress(self) -> PublishProgress:
        value = self._store.tables.register("publisher").read().value
        return PublishProgress.from_value(value, self._store.tables.op_log().table)

    def _is_deleted(self, topic: str) -> bool:
        return topic in self._store.tables.topic_register().read().deleted

    def _swap(self, change: Callable[[RegisteredTopics], RegisteredTopics]) -> RegisteredTopics:
        """Swap the register; where another operator was faster, compute the change again."""
        change(self._store.tables.topic_register().read())
        register = self._store.tables.topic_register(create=True)
        for _ in range(self._store.config.commit_attempts):
            try:
                after = change(register.read())
                register.swap(after, self._clock.now_ms())
            except CommitRefusedError:
                continue
            return after
        raise CommitConflictError("state/topics", "other operators won every try; try again")


def _own_topic(topic: object) -> str:
    """The stored name of a topic of users."""
    return check_stored_topic(stored_name(topic) if isinstance(topic, str) else topic)


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
    highs = [span.high for span in log.table.ranges("queue_id") if span.high is not None]
    return log.next_offsets(range(max([queue_nums, *(high + 1 for high in highs)])))


def _edge(table: ReadTable, ranges: list[FileRange], *, newest: bool) -> datetime | None:
    """When the first or the last message was stored; read from the file that holds it."""
    bounded = [span for span in ranges if span.high is not None]
    if not bounded:
        return None
    last, first = max(bounded, key=lambda span: span.high), min(bounded, key=lambda span: span.low)
    times = table.read([(last if newest else first).file], ("store_timestamp",))["store_timestamp"]
    stored: datetime | None = (pc.max(times) if newest else pc.min(times)).as_py()
    return stored
