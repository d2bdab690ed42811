"""Append messages to topics, exactly once, also beside other publishers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.log_files import commit_fingerprint, delete_files
from txmq.delta.parquet import NewFile
from txmq.delta.schemas import MARKS_PROPERTY
from txmq.delta.until_committed import until_committed
from txmq.errors import (
    CommitRefusedError,
    SourceRestoredError,
    StoreNotFoundError,
    TopicBehindError,
    TopicConflictError,
    TxmqError,
    UnreadableFileError,
)
from txmq.ground.clock import Clock
from txmq.ground.columns import Flags, flags
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.histogram import NO_DURATIONS, Histogram
from txmq.ground.results import Sum
from txmq.ground.tasks import called, submitted
from txmq.publish.announcement import PublishWatch
from txmq.publish.engines import EngineChoice
from txmq.publish.plan import NumberedPlan, Plan, Plans
from txmq.publish.progress import RESTORED
from txmq.store.catalog import clashing_names, spellings_of_topics
from txmq.store.known import lost_by_others, problem_of_loss
from txmq.store.settled import NOTHING
from txmq.store.topic import TopicEnd, TopicLog, offsets_in_order

if TYPE_CHECKING:
    from txmq.store.op import OpLog
    from txmq.store.store import Store

# The search for culprits tries so often; each try repeats the work for a part of the transactions.
MAX_TRIES = 64
# Errors of the table, the disk or the machine: no transaction is to blame.
NOBODYS_FAULT = (TxmqError, OSError, MemoryError)
_REBUILD = "restore it, or run txmq rebuild-topic"
# Registers transactions, each with its problem, from a version on; returns how many are new.
SetAside = Callable[[Mapping[str, str], int], int]


@dataclass(frozen=True, slots=True)
class PublishResult(Sum):
    """The counts of one call.

    Attributes:
        settled: new facts.
        published: messages that were appended to topics, the schedule or the dead letters.
        settled_commits: commits to the settled log.
        topic_commits: commits to topics.
        refused: commits that were refused because another publisher was faster.
        parked: topics that could not be written.
        set_aside: transactions that were set aside, because messages of them cannot be read.
        end_latency: from half messages to their COMMIT or ROLLBACK.
        publish_latency: from claims to their messages, visible.
    """

    settled: int = 0
    published: int = 0
    settled_commits: int = 0
    topic_commits: int = 0
    refused: int = 0
    parked: int = 0
    set_aside: int = 0
    end_latency: Histogram = field(default=NO_DURATIONS, compare=False, repr=False)
    publish_latency: Histogram = field(default=NO_DURATIONS, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a topic shall have: the planned messages of the op versions up to `mark`.

    Attributes:
        after: the topic has all messages up to this version.
        fingerprint: of the op log's commit at `mark`.
    """

    plans: Plans
    after: int
    mark: int
    fingerprint: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Missing:
    """The messages that a topic lacks: those above an op version, without some facts.

    Attributes:
        after: the op version.
        is_out: of each fact of the plans, whether its messages are left out.
    """

    plans: Plans
    topic: str
    after: int
    is_out: Flags

    def pieces(self) -> Iterator[Plan]:
        """Plan them piece by piece, as `Plans.of_topic`."""
        for plan in self.plans.of_topic(self.topic, self.after):
            rest = plan.without(self.is_out)
            if rest.rows.num_rows:
                yield rest

    def size_bytes(self) -> int:
        """Return how large their bodies are, at most and about."""
        return self.plans.size_bytes(self.topic)


@dataclass(frozen=True, slots=True, eq=False)
class _NewMessages:
    """Messages that are written and not committed.

    Attributes:
        first: the plan of the first piece, alone.
        next_offsets: of each queue behind its last message.
    """

    first: list[Plan]
    files: list[NewFile]
    next_offsets: dict[int, int]

    @property
    def first_version(self) -> int:
        """The op version of the first message."""
        return int(pc.min(self.first[0].rows["op_version"]).as_py())


class TopicWriter:
    """The handles of a publisher on topics. `write` is safe for several threads, one each topic."""

    def __init__(  # noqa: PLR0913 - the parts of a publisher
        self,
        store: Store,
        op: OpLog,
        clock: Clock,
        engines: EngineChoice,
        set_aside: SetAside,
        *,
        watch: PublishWatch,
    ) -> None:
        """Open nothing yet; `set_aside` keeps transactions that cannot be written, and why."""
        self._store, self._op, self._clock = store, op, clock
        self._threads = ThreadPoolExecutor(store.config.publish_threads, "txmq-topic")
        self._running: Collection[Future[PublishResult]] = ()
        self._engines, self._set_aside, self._watch = engines, set_aside, watch
        self._topics: dict[str, TopicLog] = {}
        # How far each topic was when this publisher, or one before it, saw it last.
        self.ends: dict[str, TopicEnd] = {}
        self._clashes: dict[str, str] = {}

    def expect(self, names: Iterable[str]) -> None:
        """Find which of the new topics differ from others in case alone; call it before `write`."""
        new = [name for name in names if name not in self._topics]
        folders = spellings_of_topics(self._store) if new else {}
        self._clashes = clashing_names(self._store, new, folders)

    def write_each(self, names: Sequence[str], goal: Goal) -> dict[str, Future[PublishResult]]:
        """Begin `write` for each topic, beside each other; a single one has ended on return."""
        return self._begun(names, self.write, goal, beside=len(names) > 1)

    def try_each(self, names: Sequence[str], goal: Goal) -> dict[str, Future[PublishResult]]:
        """Begin one try of `write` for each topic; the caller goes on with other tables.

        An error sets no transaction aside: `write` does, which comes to the same error.
        """
        return self._begun(names, self._try_once, goal, beside=True)

    def write(self, name: str, goal: Goal) -> PublishResult:
        """Append the missing messages to a topic in one commit, or none.

        Raises: CommitConflictError, SourceRestoredError, TopicBehindError, and what the engine
            raises.
        """
        topic, is_out, refused, set_aside = self._topic(name), goal.plans.no_facts(), 0, 0

        def compute() -> PublishResult:
            nonlocal refused, set_aside
            while (after := self._lacks_after(topic, goal)) is not None:
                missing = Missing(goal.plans, name, after, is_out)
                try:
                    result = self._appended(topic, missing, goal, goal.mark)
                except CommitRefusedError:
                    refused += 1
                    raise
                except Exception as error:
                    problems = self._culprits(topic, missing, error)
                    if not problems:
                        raise
                    set_aside += self._set_aside(problems, goal.after)
                    is_out[goal.plans.are_about(problems)] = True
                else:
                    return replace(result, refused=refused, set_aside=set_aside)
            return PublishResult(refused=refused, set_aside=set_aside)

        return until_committed(topic.table, compute, self._store.config.commit_attempts)

    def write_late(self, name: str, goal: Goal, given_up: Collection[str]) -> PublishResult:
        """Append messages that the topic has passed without them, each once.

        Args:
            name: a topic that has all other messages up to `goal.mark`.
            goal: the messages; its facts may be anywhere before `goal.mark`.
            given_up: transactions whose messages are left out where they cannot be written.

        Raises: as `write`.
        """
        topic, is_out, refused = self._topic(name), goal.plans.no_facts(), 0

        def compute() -> PublishResult:
            nonlocal refused
            self._checked_end(topic)
            is_shown = _are_shown(topic, goal.plans.facts)
            while True:
                missing = Missing(goal.plans, name, NOTHING, is_out | is_shown)
                try:
                    result = self._appended(topic, missing, goal, NOTHING)
                except CommitRefusedError:
                    refused += 1
                    raise
                except Exception as error:
                    problems = self._culprits(topic, missing, error)
                    if not problems or not problems.keys() <= set(given_up):
                        raise
                    is_out[goal.plans.are_about(problems)] = True
                else:
                    return replace(result, refused=refused)

        return until_committed(topic.table, compute, self._store.config.commit_attempts)

    def mark(self, name: str) -> int:
        """Return the op version up to which a topic has its messages now. Raises: as `write`."""
        return self._refreshed_end(self._topic(name)).mark

    def check(self, name: str) -> None:
        """Look at a topic that nobody writes. Raises: TopicBehindError if it was further before."""
        is_new = name not in self._topics
        try:
            self._refreshed_end(self._topic(name))
        except StoreNotFoundError:
            self.forget(name)
            self._topic(name)
        finally:
            if is_new:
                # A store may have thousands of topics that nobody writes.
                self.forget(name)

    def forget(self, name: str) -> None:
        """Open the topic anew at its next use."""
        self._topics.pop(name, None)

    # --- appending --------------------------------------------------------------------------------

    def _begun(
        self,
        names: Sequence[str],
        work: Callable[[str, Goal], PublishResult],
        goal: Goal,
        *,
        beside: bool,
    ) -> dict[str, Future[PublishResult]]:
        """Begin the work of each topic; if one cannot begin, wait for the others and raise."""
        # Tasks of a call that was broken off are still at work on the same tables.
        wait(self._running)
        self.expect(names)
        begin = partial(submitted, self._threads) if beside else called
        tasks: dict[str, Future[PublishResult]] = {}
        self._running = tasks.values()
        try:
            for name in names:
                tasks[name] = begin(work, name, goal)
        except BaseException:
            wait(tasks.values())
            raise
        return tasks

    def _try_once(self, name: str, goal: Goal) -> PublishResult:
        """Append the missing messages to a topic; a refused commit and all errors are raised."""
        topic = self._topic(name)
        topic.table.refresh()
        after = self._lacks_after(topic, goal)
        if after is None:
            return PublishResult()
        missing = Missing(goal.plans, name, after, goal.plans.no_facts())
        return self._appended(topic, missing, goal, goal.mark)

    def _lacks_after(self, topic: TopicLog, goal: Goal) -> int | None:
        """Return the op version after which the pinned version of a topic may lack messages."""
        self._checked_end(topic)
        self._check_not_ahead(topic, goal.mark)
        return max(goal.after, topic.mark) if goal.mark > topic.mark else None

    def _refreshed_end(self, topic: TopicLog) -> TopicEnd:
        topic.table.refresh()
        return self._checked_end(topic)

    def _checked_end(self, topic: TopicLog) -> TopicEnd:
        """Return how far the pinned version is. Raises: TopicBehindError if it was further."""
        end, seen = topic.end, self.ends.get(topic.name)
        if seen is not None and end.is_behind(seen):
            raise TopicBehindError(topic.name, _problem_of(topic, seen, end))
        self._check_whole(topic)
        self.ends[topic.name] = end
        return end

    def _check_whole(self, topic: TopicLog) -> None:
        """Raise TopicBehindError if messages are gone that txmq did not remove."""
        if (lost := lost_by_others(self._store, topic)) > 0:
            raise TopicBehindError(topic.name, f"{problem_of_loss(lost)}; {_REBUILD}")

    def _check_not_ahead(self, topic: TopicLog, mark: int) -> None:
        """Raise SourceRestoredError if the topic has more than was ever settled.

        What is sent now would count as published already.
        """
        if topic.mark <= mark:
            return
        # Another publisher may have settled more.
        settled = self._store.tables.settled_log(self._op.table.log.table_id).mark
        if topic.mark > settled:
            problem = f"is published up to {topic.mark}, but only {settled} is settled"
            raise SourceRestoredError(topic.name, f"{problem}; {RESTORED}")

    def _appended(self, topic: TopicLog, missing: Missing, goal: Goal, mark: int) -> PublishResult:
        """Append messages in one commit; note how far the topic is, `mark` if that is further."""
        end, begun_ns = self.ends[topic.name], time.time_ns()
        new = self._written(topic, missing)
        if new is None:
            return PublishResult()
        reached(FailPoint.PAYLOAD_WRITTEN)
        if goal.mark > topic.mark:
            is_late = new.first_version <= topic.mark
            marks = (goal.mark, new.next_offsets, goal.fingerprint)
            topic.swap_files(new.files, *marks, is_late=is_late)
        else:
            topic.add_files(new.files, new.next_offsets)
        reached(FailPoint.TOPIC_COMMITTED)
        self._watch.published(topic.name, new.first[0], begun_ns)
        count = sum(file.num_records for file in new.files)
        self.ends[topic.name] = end.appended(mark, count)
        return PublishResult(published=count, topic_commits=1)

    def _written(self, topic: TopicLog, missing: Missing) -> _NewMessages | None:
        """Write the files of messages; None if there are no messages."""
        new = _NewMessages([], [], {})
        engine = self._engines.engine_for(topic.table, missing.size_bytes())
        plans = self._numbered(topic, missing, new)
        new.files.extend(engine.write(topic.table, plans, self._clock.now_ms()))
        return new if new.files else None

    @staticmethod
    def _numbered(topic: TopicLog, missing: Missing, new: _NewMessages) -> Iterator[NumberedPlan]:
        """Plan the messages with their offsets; `new` says where they end."""
        for plan in missing.pieces():
            if not new.first:
                new.first.append(plan)
            queues = pc.unique(plan.rows["queue_id"]).to_pylist()
            begin = {**topic.next_offsets(queues), **new.next_offsets}
            offsets, ends = offsets_in_order(plan.rows["queue_id"], begin)
            new.next_offsets.update(ends)
            yield NumberedPlan(plan, offsets)

    # --- transactions that cannot be written ------------------------------------------------------

    def _culprits(self, topic: TopicLog, missing: Missing, error: Exception) -> dict[str, str]:
        """Find the transactions that are to blame for an error of the engine, if any is."""
        if isinstance(error, UnreadableFileError):
            return _owners_of_file(missing, error)
        if isinstance(error, NOBODYS_FAULT):
            return {}
        problems: dict[str, str] = {}
        for plan in missing.pieces():
            ids = missing.plans.owners_in(plan)
            problems |= culprits(ids, partial(self._try, topic, missing, plan))
        return problems

    def _try(
        self, topic: TopicLog, missing: Missing, plan: Plan, transaction_ids: Sequence[str]
    ) -> None:
        """Write the messages of some transactions into files that no commit names."""
        plan = plan.without(~missing.plans.are_about(transaction_ids))
        plans = [NumberedPlan(plan, np.zeros(plan.rows.num_rows, dtype=np.int64))]
        # Each try is of fewer messages, and most fail.
        files = self._engines.arrow.write(topic.table, plans, self._clock.now_ms())
        delete_files(topic.table.folder, [file.path for file in files])

    # --- opening ----------------------------------------------------------------------------------

    def _topic(self, name: str) -> TopicLog:
        """Open a topic, and make it if this is its first message.

        Raises: TopicConflictError, TopicBehindError, SourceRestoredError.
        """
        if name not in self._topics:
            if name in self._clashes:
                problem = f"the topic {self._clashes[name]} differs only in case"
                raise TopicConflictError("topic", name, problem)
            topic = self._store.tables.topic_log(name, self._op.table.log.table_id)
            if not topic.table.exists():
                if name in self.ends:
                    problem = f"had {self.ends[name].messages:,} messages, and its table is gone"
                    raise TopicBehindError(name, f"{problem}; {_REBUILD}")
                self._store.tables.create_topic(name)
                reached(FailPoint.TOPIC_CREATED)
            self._check_followed(topic)
            self._topics[name] = topic
        return self._topics[name]

    def _check_followed(self, topic: TopicLog) -> None:
        """Raise SourceRestoredError if the topic follows another op log than this one."""
        fingerprint = topic.fingerprint
        if fingerprint is None:
            return
        op_fingerprint = commit_fingerprint(self._op.table, topic.mark)
        if op_fingerprint not in (None, fingerprint):
            problem = f"follows another commit {topic.mark} of the op log"
            raise SourceRestoredError(topic.name, f"{problem}; {RESTORED}")


def _problem_of(topic: TopicLog, seen: TopicEnd, end: TopicEnd) -> str:
    """Tell why a topic is behind what was seen of it, and the way out."""
    if (duration := topic.table.log.properties().get(MARKS_PROPERTY)) is not None:
        problem = f"forgets its marks by its property {MARKS_PROPERTY} = {duration}"
        cure = f"ALTER TABLE … UNSET TBLPROPERTIES ('{MARKS_PROPERTY}'), then txmq rebuild-topic"
        return f"{problem}; {cure}"
    problem = (
        f"was restored to an older copy: it had {seen.messages:,} messages up to version "
        f"{seen.mark} of the op log, and has {end.messages:,} up to {end.mark}"
    )
    return f"{problem}; {_REBUILD}"


def _owners_of_file(missing: Missing, error: UnreadableFileError) -> dict[str, str]:
    """Find the transactions with messages in the file; none if another process replaced it."""
    owners: dict[str, str] = {}
    for plan in missing.pieces():
        numbers = [n for n, source in enumerate(plan.files) if source.file.path == error.path]
        problem = str(error)
        if any(missing.plans.has_replaced(plan.files[number], problem) for number in numbers):
            return {}
        is_in_file = pc.is_in(plan.rows["file"], value_set=pa.array(numbers, pa.int32()))
        owners |= dict.fromkeys(missing.plans.owners_in(plan.only(is_in_file)), problem)
    return owners


def culprits(
    transaction_ids: Sequence[str], work: Callable[[Sequence[str]], object]
) -> dict[str, str]:
    """Find the transactions for which `work` fails by themselves, each with its type of error.

    Args:
        transaction_ids: for all of them together it failed.
        work: is called for halves of them, and for halves of these; what it does must not last.

    Returns: the problem of each; none if MAX_TRIES did not find them all.

    Raises: what is nobody's fault, such as a full disk.
    """
    problems: dict[str, str] = {}
    waiting = [list(transaction_ids)]
    for _ in range(MAX_TRIES):
        if not waiting:
            return problems
        ids = waiting.pop()
        try:
            work(ids)
        except NOBODYS_FAULT:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a strange row leads to
            middle = len(ids) // 2
            if middle:
                waiting += [ids[:middle], ids[middle:]]
            else:
                problems[ids[0]] = f"it cannot be processed ({type(error).__name__})"
    return {}


def _are_shown(topic: TopicLog, facts: pa.Table) -> Flags:
    """Tell of which facts the topic has the messages; one commit appends all of a fact."""
    ids = pc.unique(facts["transaction_id"])
    columns = ("transaction_id", "op_version")
    rows = topic.table.search.rows_of("transaction_id", ids, columns, _once_each)
    return flags(pc.is_in(_key(facts), value_set=_key(rows)))


def _once_each(rows: pa.Table) -> pa.Table:
    return rows.group_by(rows.column_names, use_threads=False).aggregate([])


def _key(rows: pa.Table) -> pa.ChunkedArray:
    """Join the transaction and the op version of each row to one text."""
    version = rows["op_version"].cast(pa.string())
    return pc.binary_join_element_wise(rows["transaction_id"], version, "/")
