"""Topics for operators: create, list, describe, alter, delete, rebuild."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.files import DataFile, FileRange
from txmq.delta.log_files import delete_files, log_files, named_by
from txmq.delta.table import Table
from txmq.errors import (
    CommitConflictError,
    CommitRefusedError,
    ConfigError,
    InvalidNameError,
    TopicExistsError,
    TopicInUseError,
    TopicNotFoundError,
    UnsupportedTableError,
)
from txmq.ground.clock import Clock, SystemClock, timestamp
from txmq.ground.columns import Groups, find_pairs, integers, list_items, python_values
from txmq.ground.results import Plain, plain
from txmq.maintenance.retention import tell_topic_begin, topic_begins
from txmq.message.lifecycle import FINAL_STATES, TransactionState
from txmq.message.names import (
    SCHEDULE_TOPIC,
    check_stored_topic,
    is_group_topic,
    stored_name,
    stored_topic,
)
from txmq.message.packed_body import schema_of_columns
from txmq.ops.admin.rebuild import give_up_lost, rebuild_topic
from txmq.ops.admin.rebuild_plan import TopicRebuild
from txmq.producer.frame_rows import MESSAGE_COLUMNS
from txmq.publish.progress import ParkedTopic, PublishProgress
from txmq.store.set_aside import read_set_aside
from txmq.store.settled import NOTHING, SettledLog, last_facts, scheduled_among
from txmq.store.store import Store, check_store
from txmq.store.topic import (
    OFFSET_MARK,
    TopicLog,
    queue_ends,
    remove_messages,
    set_body_schema,
)
from txmq.store.topic_settings import RegisteredTopics, TopicKind, TopicSettings, check_spelling

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_AT_REST = pa.array([state.value for state in (*FINAL_STATES, TransactionState.DISCARDED)])


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic in a list.

    Attributes:
        is_registered: whether an operator created or altered it; else its first message created it.
        is_system: whether it is a topic of txmq itself.
        is_parked: whether it cannot be written now; the other topics are published without it.
        problem: why its table cannot be used, so that nothing of it is counted; None if it can.
    """

    topic: str
    settings: TopicSettings
    is_registered: bool
    is_system: bool
    rows: int
    size_bytes: int
    is_parked: bool
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        values = plain(self)
        del values["settings"]
        return {"topic": values.pop("topic"), **self.settings.to_value(), **values}


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """Settings, size and offsets of one topic.

    Attributes:
        files: how many files hold its rows.
        next_offsets: for each queue the offset of its next message.
        oldest, newest: when its first and its last message became visible.
        op_version: its messages are complete up to this version of the op log; NOTHING before the
            first.
        begin: retention may have removed messages up to this version; None where it removed none.
        parked: why it cannot be written; None where it can.
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
        """Return plain values, for JSON."""
        values = plain(self)
        del values["summary"]
        parked = self.parked and {
            "from_version": self.parked.from_version,
            "reason": self.parked.reason,
            "since": timestamp(self.parked.since_ms).isoformat(),
            "attempts": self.parked.attempts,
        }
        return {**self.summary.to_dict(), **values, "parked": parked}


@dataclass(frozen=True, slots=True)
class TopicDeletion(Plain):
    """What a deletion removes, or has removed.

    Attributes:
        rows, size_bytes: the size of the topic.
        op_version: messages up to this version of the op log are removed.
        is_written: false in a dry run.
    """

    topic: str
    rows: int
    size_bytes: int
    op_version: int
    is_written: bool = False


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

    def create(  # noqa: PLR0913 - each is one setting
        self,
        topic: str,
        *,
        kind: TopicKind = TopicKind.UNSPECIFIED,
        queue_nums: int | None = None,
        reserved_time_h: float | None = None,
        body: Mapping[str, Any] | None = None,
        schema: StructType | None = None,
    ) -> TopicSettings:
        """Create a topic with settings, and its table.

        Args:
            topic: the name of the new topic.
            kind: which messages it takes.
            queue_nums: how many queues it has; `default_topic_queue_nums` if left out.
            reserved_time_h: messages may be removed when they are so many hours old; None keeps
                them for ever.
            body: the schema of its bodies; None takes any bytes.
            schema: that of a DataFrame, whose columns become the fields of bodies in JSON; those
                that are named as a field of a message are left out. Not beside `body`.

        Writes: state/topics, topics/NAME. Commits: one to each, and one that creates state/topics
        with the first settings. After a failure in between, a repeated call raises
        TopicExistsError; the first message then creates the table.

        Returns:
            The settings of the topic.

        Raises:
            TopicExistsError: there is a topic of this name.
            TopicConflictError: there is a topic whose name differs only in case.
            InvalidNameError: the name is not allowed.
            ConfigError: a setting or the body schema is wrong.
            TopicInUseError: it would get a body schema, and open transactions name it.
            CommitConflictError, StorageError: a table cannot be read or written.
        """
        topic = _own_topic(topic)
        count = self._store.config.default_topic_queue_nums if queue_nums is None else queue_nums
        if schema is not None:
            body = _body_of(schema, is_alone=body is None)
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
        schema: StructType | None = None,
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
            body: the schema of its bodies; None takes any bytes. While the topic has messages it
                can only get new fields, behind the others, that may be null.
            schema: that of a DataFrame, as in `create`. Not beside `body`.
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
        if schema is not None:
            body = _body_of(schema, is_alone=isinstance(body, Keep))
        settings_before: list[TopicSettings] = []

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
                self._take_bodies(topic, before, after)
            settings_before.append(before)
            return registered.with_settings(topic, after)

        try:
            registered = self._swap(altered)
        except TopicNotFoundError:
            # Deleted meanwhile: what is left of its table takes any bytes.
            if settings_before:
                self._store.tables.create_topic(topic, exactly=True)
            raise
        if not isinstance(body, Keep):
            before = settings_before[-1]
            if body is not None and not _takes_all_of(registered.settings[topic], before):
                self._confirm_unused(topic, before)
            self._store.tables.create_topic(topic, exactly=True)
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
            TopicInUseError: transactions that name it are open, set aside, or not published
                everywhere.
            TopicNotFoundError, InvalidNameError: there is no such topic.
            CommitConflictError, StorageError: a table cannot be read or written.
        """
        topic = self._checked(_own_topic(topic), self._store.tables.topic_register().read())
        return delete_topic(self._store, topic, self._clock, apply=apply)

    def rebuild(
        self, topic: str, *, apply: bool = False, force: bool = False, give_up: bool = False
    ) -> TopicRebuild:
        """Compare a topic with half and settled, and repair it; a dry run unless `apply`.

        Streams skip the commit of a rebuild, so they do not receive messages that it restores.

        Args:
            topic: the name of the topic; a system topic too, the schedule only while it is parked,
                or its table is gone.
            apply: repair it; without it the differences are only counted.
            force: repair it also where offsets move under consumer groups. These lose their members
                and go back to the first offset that moves: what follows comes to them again, also
                to a DeltaInbox, which then knows offsets of other messages. Dead letters from there
                on that were purged or replayed are listed again.
            give_up: with `apply`, do without the messages that another program removed and that no
                other table holds any more. Offsets stay; a group that has not read them is told.

        Reads: half, settled, the schedule, the topic, the groups. Writes: the topic. Commits: with
        `apply` one if anything is wrong, else 0; with `force` one or two more for each group that
        it puts back; with `give_up` one more to state/maintenance. A repeated call compares again.

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
            raise InvalidNameError("topic", name, rule)
        if apply and give_up:
            give_up_lost(self._store, name, self._clock)
        return rebuild_topic(self._store, name, self._clock, apply=apply, force=force)

    def all(self) -> tuple[TopicSummary, ...]:
        """List all topics by name, system topics too.

        Reads: state/topics, state/publisher, the logs of all topics. Commits: 0. Raises:
        StorageError.
        """
        registered, parked = self._store.tables.topic_register().read(), self._progress().parked
        names = sorted({*self._store.topics(), *registered.settings})
        return tuple(self._summary(name, registered, parked) for name in names)

    def describe(self, topic: str) -> TopicDescription:
        """Return settings, size and offsets of one topic; of a system topic too.

        Reads: state/topics, state/publisher, state/maintenance, the topic's log and two of its
        files. Commits: 0. Raises: TopicNotFoundError, InvalidNameError, StorageError.
        """
        registered, parked = self._store.tables.topic_register().read(), self._progress().parked
        name = self._checked(stored_topic(topic), registered)
        summary = self._summary(name, registered, parked)
        log = self._store.tables.topic_log(name, self._store.tables.op_log().table.log.table_id)
        is_there = log.table.exists()
        ranges = log.table.files.ranges("op_version") if is_there else []
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

    def _take_bodies(self, topic: str, before: TopicSettings, after: TopicSettings) -> None:
        """Add new fields of bodies to the table, or raise where other bodies cannot be taken.

        Producers may send new fields only when the publisher, which goes by the table, knows them.
        """
        if not _takes_all_of(after, before):
            self._check_body_schema(topic, after)
            return
        table = self._store.tables.table_at(f"topics/{topic}")
        if table.exists():
            set_body_schema(table, topic, lambda: after.body_schema)

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
        problem = None
        try:
            files = self._files(topic)
        except UnsupportedTableError as error:
            files, problem = [], str(error)
        return TopicSummary(
            topic,
            self._settings(topic, registered),
            is_registered=topic in registered.settings,
            is_system=_is_system(topic),
            rows=sum(file.num_records for file in files),
            size_bytes=sum(file.size_bytes for file in files),
            is_parked=topic in parked,
            problem=problem,
        )

    def _files(self, topic: str) -> list[DataFile]:
        table = self._store.tables.table_at(f"topics/{topic}")
        return table.files.all() if table.exists() else []

    def _settings(self, topic: str, registered: RegisteredTopics) -> TopicSettings:
        count = 1 if is_group_topic(topic) else self._store.config.default_topic_queue_nums
        default = TopicSettings(TopicKind.UNSPECIFIED, count)
        return registered.settings.get(topic, default)

    def _checked(self, topic: str, registered: RegisteredTopics) -> str:
        if topic not in registered.settings and topic not in self._store.topics():
            raise _not_found(topic)
        return topic

    def _progress(self) -> PublishProgress:
        value = self._store.tables.register("publisher", PublishProgress).read().value
        return PublishProgress.from_value(value, self._store.tables.op_log().table)

    def _is_deleted(self, topic: str) -> bool:
        return topic in self._store.tables.topic_register().read().deleted

    def _swap(self, change: Callable[[RegisteredTopics], RegisteredTopics]) -> RegisteredTopics:
        """Swap the register; where another operator was faster, compute the change again."""
        # What is refused makes no table.
        change(self._store.tables.topic_register().read())
        register = self._store.tables.topic_register(create=True)
        return register.change(change, self._clock.now_ms(), self._store.config.commit_attempts)


def _own_topic(topic: object) -> str:
    """Return the stored name of a topic of users. Raises: InvalidNameError."""
    return check_stored_topic(stored_name(topic) if isinstance(topic, str) else topic)


def _not_found(topic: str) -> TopicNotFoundError:
    return TopicNotFoundError(topic, "is not there; see txmq topics list")


def _body_of(schema: StructType, *, is_alone: bool) -> dict[str, Any]:
    """Return the body schema of a DataFrame's. Raises: ConfigError, BodySchemaError."""
    if not is_alone:
        raise ConfigError(["body and schema are both given; pass one"])
    return schema_of_columns(schema, MESSAGE_COLUMNS)


def _takes_all_of(after: TopicSettings, before: TopicSettings) -> bool:
    """Tell whether each body that a typed topic took before has its schema now."""
    earlier, schema = before.body_schema, after.body_schema
    return earlier is not None and schema is not None and not schema.differences(earlier)


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
    ends = queue_ends(log.table.log.marks(OFFSET_MARK))
    return {queue: ends.get(queue, 0) for queue in range(max([queue_nums, *(q + 1 for q in ends)]))}


def _edge(table: Table, ranges: list[FileRange], *, newest: bool) -> datetime | None:
    """Return when the first or the last message was stored; read the file that holds it."""
    bounded = [span for span in ranges if span.high is not None]
    if not bounded:
        return None
    last, first = max(bounded, key=lambda span: span.high), min(bounded, key=lambda span: span.low)
    times = table.rows.read([(last if newest else first).file], ("store_timestamp",))[
        "store_timestamp"
    ]
    edge = pc.max(times) if newest else pc.min(times)
    stored: datetime | None = python_values(pa.array([edge.cast(pa.int64())]).cast(times.type))[0]
    return stored


# --- deletion -------------------------------------------------------------------------------------


def delete_topic(store: Store, topic: str, clock: Clock, *, apply: bool) -> TopicDeletion:
    """Remove the settings and messages of a topic; a dry run unless `apply`.

    Reads: half, settled, state/publisher, the topic's log. Writes: state/maintenance, state/topics,
    the topic. Commits: with `apply` one to each of them, else 0.

    Raises: TopicInUseError, CommitConflictError, StorageError.
    """
    for _ in range(store.config.commit_attempts):
        table = store.tables.table_at(f"topics/{topic}")
        plan = _plan_of(store, topic, table)
        if not apply:
            return plan
        try:
            _delete(store, table, plan, clock.now_ms())
        except CommitRefusedError:
            continue
        return replace(plan, is_written=True)
    raise CommitConflictError(topic, "other writers won every try to delete it; try again")


def _plan_of(store: Store, topic: str, table: Table) -> TopicDeletion:
    version = check_unused(store, topic)
    if not table.exists():
        return TopicDeletion(topic, 0, 0, NOTHING)
    ranges = table.files.ranges("op_version")
    if any(span.high is None or span.high > version for span in ranges):
        problem = "got messages a moment ago; stop its producers, then try again"
        raise TopicInUseError(topic, 0, problem)
    rows = sum(span.file.num_records for span in ranges)
    return TopicDeletion(topic, rows, sum(span.file.size_bytes for span in ranges), version)


def check_unused(store: Store, topic: str) -> int:
    """Return the op version up to which the topic has all messages.

    Raises: TopicInUseError if transactions that name it are open, set aside, or not published
        everywhere.
    """
    version = _published(store, topic)
    ids = unfinished(store, topic, version)
    if len(ids):
        problem = (
            f"is named by {len(ids):,} transactions that are open, set aside or not published "
            f"everywhere, first {ids[0]}; end them, let the publisher catch up, then try again"
        )
        raise TopicInUseError(topic, len(ids), problem)
    return version


def _published(store: Store, topic: str) -> int:
    """Return the op version up to which this topic has its messages; others may be parked."""
    value = store.tables.register("publisher", PublishProgress).read().value
    if not value:
        return NOTHING
    progress = PublishProgress.from_value(value, store.tables.op_log().table)
    # Delayed messages come through the schedule.
    behind = [progress.parked[name] for name in (topic, SCHEDULE_TOPIC) if name in progress.parked]
    return min([progress.low_water_version, *(parked.from_version for parked in behind)])


def _delete(store: Store, table: Table, plan: TopicDeletion, now_ms: int) -> None:
    """Remove settings and messages.

    Order matters: `topic_begin` is recorded before any file goes, so that verify never meets an
    unexplained gap. A deletion that was killed can simply be run again.
    """
    is_there = table.exists()
    if is_there:
        begins = {plan.topic: plan.op_version}
        told = tell_topic_begin(store, begins, now_ms)[plan.topic]
    register = store.tables.topic_register(create=True)
    register.swap(register.read().with_deleted(plan.topic), now_ms)
    if is_there:
        # Also without rows: a rebuild that has read half would bring them all back.
        remove_messages(table, table.files.all(), told.before, told.begin)
        _delete_files(table)
        # A new topic of this name may have another schema.
        set_body_schema(table, plan.topic, lambda: None)


def _delete_files(table: Table) -> None:
    # Data files go at once; readers may still read the log, which maintenance cleans.
    named = named_by(table.folder, log_files(table.folder).commits_ms)
    delete_files(table.folder, named - {file.path for file in table.refresh().files.all()})


# --- unfinished transactions ----------------------------------------------------------------------


def unfinished(store: Store, topic: str, version: int) -> pa.Array:
    """Find the transactions that name the topic and may publish to it after an op version.

    Discarded transactions do not count: if one is resumed and committed later, it creates the topic
    again.
    """
    # Half and schedule are read first, so that an end that is written meanwhile is seen.
    ids, scheduled = _naming(store, topic), _scheduled(store, topic)
    settled = store.tables.logs().settled
    facts = last_facts(settled.facts_of(ids))
    at_rest = pc.and_(
        pc.is_in(facts["state"], value_set=_AT_REST), pc.less_equal(facts["op_version"], version)
    )
    ended = facts.filter(at_rest)["transaction_id"]
    open_ids = ids.filter(pc.invert(pc.is_in(ids, value_set=ended)))
    waiting = _waiting(scheduled, settled, version)
    named = pa.concat_arrays([ids, pc.unique(scheduled["transaction_id"])])
    # Their messages are published later, if the topic does not show them already.
    aside = [*read_set_aside(store.tables, settled.set_aside_count).transactions]
    held = named.filter(pc.is_in(named, value_set=pa.array(aside, pa.string())))
    return pc.unique(pa.concat_arrays([open_ids, waiting, held]))


def _naming(store: Store, topic: str) -> pa.Array:
    """Find the transactions with a half message to the topic; read one file at a time."""
    half = store.tables.half_log().table
    ids = [pa.array([], pa.string())]
    for file in half.files.holding("real_topic", pa.array([topic])):
        rows = half.rows.read([file], ("transaction_id", "real_topic"))
        ids.append(pc.unique(rows.filter(pc.equal(rows["real_topic"], topic))["transaction_id"]))
    return pc.unique(pa.concat_arrays(ids))


def _scheduled(store: Store, topic: str) -> pa.Table:
    """Read transaction_id and sequence of the delayed messages to a topic."""
    schedule = store.tables.schedule_log().refresh()
    files = schedule.table.files.all() if schedule.is_there else []
    rows = schedule.table.rows.read(files, ("transaction_id", "sequence", "topic"))
    rows = scheduled_among(rows)
    return rows.filter(pc.equal(rows["topic"], topic)).select(["transaction_id", "sequence"])


def _waiting(scheduled: pa.Table, settled: SettledLog, version: int) -> pa.Array:
    """Find the transactions with a message that is neither recalled nor published."""
    ids = pc.unique(scheduled["transaction_id"])
    facts = settled.deliveries_of(ids)
    facts = facts.filter(pc.less_equal(facts["op_version"], version))
    fact, sequence = list_items(facts["sequences"])
    by_id = Groups.of(facts["transaction_id"])
    place = integers(pc.index_in(scheduled["transaction_id"], value_set=by_id.keys), NOTHING)
    messages = (place, integers(scheduled["sequence"], NOTHING))
    is_waiting = find_pairs(messages, (by_id.place[fact], sequence)) < 0
    return pc.unique(scheduled.filter(pa.array(is_waiting))["transaction_id"])
