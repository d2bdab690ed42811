"""Which tables of a store are newer than others that they refer to: pure rules.

A live store is read, and copied, in an order in which no table is newer than one that it refers to.
A copy that was made in another order would lose messages, so it is told which table is newer than
which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from txmq.store.settled import NOTHING
from txmq.store.topic import TopicEnd

# The fingerprint of a commit of a log; None where the commit is not there (any more).
Fingerprints = Callable[[int], int | None]

COPY_AGAIN = (
    "start no service on it; copy the store again with txmq backup, which copies in the right order"
)
REBUILD = "txmq rebuild-topic writes what it lacks, if half and settled still have it"
SEEK = (
    "rebuild or restore the topic, and it is well; where its messages are gone for good, "
    "txmq offsets reset says where the group goes on"
)


@dataclass(frozen=True, slots=True)
class LogSight:
    """How far half or op is."""

    version: int
    fingerprint: Fingerprints


@dataclass(frozen=True, slots=True)
class SettledSight:
    """What the settled log says of itself, and of the logs that it follows."""

    mark: int = NOTHING
    fingerprint: int | None = None
    half_version: int = NOTHING
    half_fingerprint: int | None = None
    set_aside_count: int = 0


@dataclass(frozen=True, slots=True)
class TopicSight:
    """How far a topic is."""

    end: TopicEnd
    fingerprint: int | None
    next_offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PublisherSight:
    """What the publishers' progress says of op and of topics."""

    low_water_version: int = NOTHING
    fingerprint: int | None = None
    ends: Mapping[str, TopicEnd] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoreSight:
    """How far the tables of a store are.

    Attributes:
        set_aside_count: None where nobody counts.
        groups: the next offset of each consumer group, by topic and queue.
        claims_without_halves: the newest unsettled ends of producers whose halves are not there.
    """

    op: LogSight
    half: LogSight
    settled: SettledSight
    publisher: PublisherSight
    topics: Mapping[str, TopicSight]
    groups: Mapping[str, Mapping[tuple[str, int], int]]
    set_aside_count: int | None = None
    claims_without_halves: int = 0


@dataclass(frozen=True, slots=True)
class OrderFault:
    """A table that is newer than one that it refers to.

    Attributes:
        newer, older: the two tables.
        problem: what shows it.
        next_step: the way out.
        may_be_alone: whether the store may run with it, as with a topic that went back.
    """

    newer: str
    older: str
    problem: str
    next_step: str
    may_be_alone: bool = False

    def __str__(self) -> str:
        """Tell the fault in one line."""
        return f"{self.newer} is newer than {self.older}: {self.problem}"


def order_faults(sight: StoreSight) -> list[OrderFault]:
    """Find each table that is newer than one that it refers to; none in a store that is whole."""
    return [
        *_of_settled(sight),
        *_of_claims(sight),
        *_of_publisher(sight),
        *(fault for name in sorted(sight.topics) for fault in _of_topic(sight, name)),
        *(fault for name in sorted(sight.groups) for fault in _of_group(sight, name)),
    ]


def _of_settled(sight: StoreSight) -> Iterator[OrderFault]:
    settled, set_aside = sight.settled, sight.set_aside_count
    yield from _beyond("settled", "op", settled.mark, settled.fingerprint, sight.op)
    half = (settled.half_version, settled.half_fingerprint)
    yield from _beyond("settled", "half", *half, sight.half)
    if set_aside is not None and set_aside < settled.set_aside_count:
        problem = f"it has seen change {settled.set_aside_count}, and that has change {set_aside}"
        yield OrderFault("settled", "state/set_aside", problem, COPY_AGAIN)


def _of_claims(sight: StoreSight) -> Iterator[OrderFault]:
    if sight.claims_without_halves:
        problem = f"{sight.claims_without_halves:,} ends are claimed of halves that are not there"
        yield OrderFault("op", "half", problem, COPY_AGAIN)


def _of_publisher(sight: StoreSight) -> Iterator[OrderFault]:
    publisher, name = sight.publisher, "state/publisher"
    version = publisher.low_water_version
    yield from _beyond(name, "op", version, publisher.fingerprint, sight.op)
    if version > sight.settled.mark:
        problem = f"topics are complete up to {version}, and {sight.settled.mark} is settled"
        yield OrderFault(name, "settled", problem, COPY_AGAIN)
    for topic, known in sorted(publisher.ends.items()):
        there = sight.topics.get(topic)
        if there is None or there.end.is_behind(known):
            messages = 0 if there is None else there.end.messages
            problem = f"it had {known.messages:,} messages, and has {messages:,}"
            yield OrderFault(name, f"topics/{topic}", problem, REBUILD, may_be_alone=True)


def _of_topic(sight: StoreSight, name: str) -> Iterator[OrderFault]:
    topic, path = sight.topics[name], f"topics/{name}"
    if topic.end.mark > sight.settled.mark:
        problem = f"it is published up to {topic.end.mark}, and {sight.settled.mark} is settled"
        yield OrderFault(path, "settled", problem, COPY_AGAIN)
    yield from _beyond(path, "op", topic.end.mark, topic.fingerprint, sight.op)


def _of_group(sight: StoreSight, name: str) -> Iterator[OrderFault]:
    for (topic, queue), offset in sorted(sight.groups[name].items()):
        there = sight.topics.get(topic)
        end = 0 if there is None else there.next_offsets.get(queue, 0)
        if offset > end:
            problem = (
                f"its next offset in queue {queue} is {offset:,}, and the queue ends at {end:,}"
            )
            path = f"state/group_{name}"
            yield OrderFault(path, f"topics/{topic}", problem, SEEK, may_be_alone=True)
            return


def _beyond(
    newer: str, older: str, version: int, fingerprint: int | None, log: LogSight
) -> Iterator[OrderFault]:
    """Find a table that follows a commit which the log lacks, or has otherwise."""
    if version > log.version:
        problem = f"it follows commit {version}, and the log ends at {log.version}"
        yield OrderFault(newer, older, problem, COPY_AGAIN)
        return
    there = log.fingerprint(version) if version >= 0 and fingerprint is not None else None
    if there is not None and there != fingerprint:
        problem = f"it follows another commit {version} than the one that is there"
        yield OrderFault(newer, older, problem, COPY_AGAIN)
