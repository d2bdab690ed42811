"""Two ends for one transaction: 8 x 8 stories, each with the one effect that the documents promise.

The table below was written by hand from docs/architecture.md, not computed by the fold: the first
end wins for good, DISCARD is an end until a RESUME, UNKNOWN never ends anything.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.reading import log_rows, topic_rows
from tests.kit.stores import fresh_store
from txmq.errors import AlreadyResolvedError
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.op import OpRow
from txmq.testing import START_MS, ManualClock
from txmq.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

GROUP = "orders-service"
TOPIC = "order-paid"
COMMIT, ROLLBACK = ClaimKind.COMMIT, ClaimKind.ROLLBACK
DISCARD, UNKNOWN = ClaimKind.DISCARD, ClaimKind.UNKNOWN
STATE_ASKED_FOR = {COMMIT: LocalTransactionState.COMMIT, ROLLBACK: LocalTransactionState.ROLLBACK}

# What becomes of the one message.
VISIBLE, NEVER, DEAD = "visible once", "never visible", "one dead letter"
# Rows of its topic and dead letters.
SHOWN = {VISIBLE: (1, 0), NEVER: (0, 0), DEAD: (0, 1)}
# Whose claim took effect.
FIRST, SECOND, NOBODY = "the first", "the second", "nobody"
# What commit() or rollback() of a producer comes to; NONE: it cannot ask for this.
RETURNS, RESOLVED, NONE = "returns", "AlreadyResolvedError", "no such call"


@dataclass(frozen=True)
class Outcome:
    """How a story ends: one fact or none, one effect, and an answer for each producer."""

    state: str
    winner: str
    effect: str
    first_hears: str
    second_hears: str


# Rows of producer and check count alike: a fold does not ask who wrote a claim of the right group.
# A producer writes COMMIT and ROLLBACK only; its DISCARD and UNKNOWN stand here by hand, and
# count because their life is the current one.
OUTCOMES = {
    (COMMIT, COMMIT): Outcome("COMMITTED", FIRST, VISIBLE, RETURNS, RETURNS),
    (COMMIT, ROLLBACK): Outcome("COMMITTED", FIRST, VISIBLE, RETURNS, RESOLVED),
    (COMMIT, DISCARD): Outcome("COMMITTED", FIRST, VISIBLE, RETURNS, NONE),
    (COMMIT, UNKNOWN): Outcome("COMMITTED", FIRST, VISIBLE, RETURNS, NONE),
    (ROLLBACK, COMMIT): Outcome("ROLLED_BACK", FIRST, NEVER, RETURNS, RESOLVED),
    (ROLLBACK, ROLLBACK): Outcome("ROLLED_BACK", FIRST, NEVER, RETURNS, RETURNS),
    (ROLLBACK, DISCARD): Outcome("ROLLED_BACK", FIRST, NEVER, RETURNS, NONE),
    (ROLLBACK, UNKNOWN): Outcome("ROLLED_BACK", FIRST, NEVER, RETURNS, NONE),
    (DISCARD, COMMIT): Outcome("DISCARDED", FIRST, DEAD, NONE, RESOLVED),
    (DISCARD, ROLLBACK): Outcome("DISCARDED", FIRST, DEAD, NONE, RESOLVED),
    (DISCARD, DISCARD): Outcome("DISCARDED", FIRST, DEAD, NONE, NONE),
    (DISCARD, UNKNOWN): Outcome("DISCARDED", FIRST, DEAD, NONE, NONE),
    (UNKNOWN, COMMIT): Outcome("COMMITTED", SECOND, VISIBLE, NONE, RETURNS),
    (UNKNOWN, ROLLBACK): Outcome("ROLLED_BACK", SECOND, NEVER, NONE, RETURNS),
    (UNKNOWN, DISCARD): Outcome("DISCARDED", SECOND, DEAD, NONE, NONE),
    (UNKNOWN, UNKNOWN): Outcome("PENDING", NOBODY, NEVER, NONE, NONE),
}

# Halves become due by the times of files, and here everything is written long after them.
LONG_DUE_MS = START_MS + 100 * 365 * 24 * 3_600_000

SOURCES = (ClaimSource.PRODUCER, ClaimSource.CHECK)
CLAIMS = [(kind, source) for kind in (COMMIT, ROLLBACK, DISCARD, UNKNOWN) for source in SOURCES]


@dataclass(frozen=True)
class Story:
    """Who claims what first, and who claims what second."""

    first: tuple[ClaimKind, ClaimSource]
    second: tuple[ClaimKind, ClaimSource]

    @property
    def outcome(self) -> Outcome:
        return OUTCOMES[self.first[0], self.second[0]]

    @property
    def winning_source(self) -> str | None:
        winner = {FIRST: self.first, SECOND: self.second}.get(self.outcome.winner)
        return None if winner is None else winner[1].value

    def __str__(self) -> str:
        return "-".join(f"{kind}.{source}" for kind, source in (self.first, self.second))


STORIES = [Story(first, second) for first in CLAIMS for second in CLAIMS]
OF_PRODUCERS = [s for s in STORIES if {s.first[1], s.second[1]} == {ClaimSource.PRODUCER}]


class Stage:
    """One prepared transaction of one message, and all who may end it."""

    def __init__(self, theatre: Theatre) -> None:
        self.store, self.other = theatre.store, theatre.other
        self.transaction = theatre.producer.begin_transaction()
        self.transaction.send(Message(TOPIC, b"42"))
        self.transaction.prepare()
        self._written = 0

    def claim(self, kind: ClaimKind, source: ClaimSource) -> str:
        """Write it as its source does; what the caller of a producer heard."""
        self._written += 1
        if source is ClaimSource.PRODUCER and kind in STATE_ASKED_FOR:
            return self._asked_of_producer(kind)
        self._write_row(kind, source)
        return NONE

    def _asked_of_producer(self, kind: ClaimKind) -> str:
        try:
            if self._written > 1:
                self.other.end_transaction(self.transaction.id, STATE_ASKED_FOR[kind])
            elif kind is COMMIT:
                self.transaction.commit()
            else:
                self.transaction.rollback()
        except AlreadyResolvedError as error:
            return f"{RESOLVED}: {error.resolution} by {error.source}"
        return RETURNS

    def _write_row(self, kind: ClaimKind, source: ClaimSource) -> None:
        """A DISCARD comes after the one question that is allowed."""
        kinds = (UNKNOWN, DISCARD) if kind is DISCARD else (kind,)
        rows = [self._row(each, source) for each in kinds]
        app_id = f"test-{self.transaction.id}-{source}"
        self.store.tables.op_log().append(rows, 0, app_id=app_id, number=self._written)

    def _row(self, kind: ClaimKind, source: ClaimSource) -> OpRow:
        bound = kind in (DISCARD, UNKNOWN)
        return OpRow(
            self.transaction.id, kind, GROUP, source, LONG_DUE_MS,
            life=0 if bound else None,
            check_times=1 if bound else None,
            next_check_timestamp_ms=LONG_DUE_MS if kind is UNKNOWN else None,
        )  # fmt: skip


class Theatre:
    """One store in which every story is told at once, each of a transaction of its own."""

    def __init__(self, folder: Path, stories: Sequence[Story]) -> None:
        self.store = fresh_store(folder / "store", Config(transaction_check_max=1))
        clock = ManualClock()
        self.publisher = Publisher(self.store, clock=clock)
        self.producer = TransactionProducer(self.store, producer_group=GROUP, clock=clock)
        # Another process of the group, for it knows nothing of the first one's transactions.
        self.other = TransactionProducer(self.store, producer_group=GROUP, clock=clock)
        # Threads of one producer share a commit.
        with ThreadPoolExecutor(len(stories)) as pool:
            stages = pool.map(lambda _: Stage(self), stories)
            self.stages = dict(zip(stories, stages, strict=True))
        self.heard: dict[Story, list[str]] = {story: [] for story in stories}

    def claim_first(self) -> None:
        for story, stage in self.stages.items():
            self.heard[story].append(stage.claim(*story.first))

    def claim_second(self) -> None:
        for story, stage in self.stages.items():
            self.heard[story].append(stage.claim(*story.second))

    def publish(self) -> None:
        self.publisher.run_once()
        report = verify(self.store.location)
        assert report.is_clean, report

    def settle_only(self) -> None:
        rounds = Publisher(self.store, clock=ManualClock())._rounds()
        rounds._settle(rounds._op.table.version)

    def end(self) -> Theatre:
        """Read what became of it all."""
        self.producer.close()
        self.other.close()
        self.settled = log_rows(self.store, "settled")
        self.visible = Counter(row["transaction_id"] for row in topic_rows(self.store, TOPIC))
        dead = topic_rows(self.store, TRANS_CHECK_MAX_TIME_TOPIC)
        self.dead = Counter(row["transaction_id"] for row in dead)
        return self

    def check(self, story: Story) -> None:
        transaction_id = self.stages[story].transaction.id
        outcome = story.outcome
        assert self.heard[story] == [
            expected_answer(story, story.first, outcome.first_hears),
            expected_answer(story, story.second, outcome.second_hears),
        ]
        facts = [fact for fact in self.settled if fact["transaction_id"] == transaction_id]
        assert [(f["state"], f["source"], f["life"]) for f in facts] == expected_facts(story)
        shown = self.visible[transaction_id], self.dead[transaction_id]
        assert shown == SHOWN[outcome.effect]


def expected_facts(story: Story) -> list[tuple[Any, ...]]:
    outcome = story.outcome
    return [] if outcome.winner == NOBODY else [(outcome.state, story.winning_source, 0)]


def expected_answer(story: Story, claim: tuple[ClaimKind, ClaimSource], hears: str) -> str:
    if claim[1] is not ClaimSource.PRODUCER:
        return NONE
    if hears == RESOLVED:
        return f"{RESOLVED}: {story.outcome.state} by {story.winning_source}"
    return hears


# All tests of one worker, so that each theatre is built once.
pytestmark = pytest.mark.xdist_group("double-ends")


def told(folder: Path, stories: Sequence[Story], between: Callable[[Theatre], object]) -> Theatre:
    """All stories to their ends, with something `between` the two claims of each."""
    theatre = Theatre(folder, stories)
    theatre.claim_first()
    between(theatre)
    theatre.claim_second()
    theatre.publish()
    return theatre.end()


@pytest.fixture(scope="module")
def published_between(tmp_path_factory: pytest.TempPathFactory) -> Theatre:
    return told(tmp_path_factory.mktemp("published"), STORIES, Theatre.publish)


@pytest.fixture(scope="module")
def in_one_range(tmp_path_factory: pytest.TempPathFactory) -> Theatre:
    return told(tmp_path_factory.mktemp("together"), STORIES, lambda _: None)


@pytest.fixture(scope="module")
def settled_between(tmp_path_factory: pytest.TempPathFactory) -> Theatre:
    """The publisher dies between settle and publish; another one goes on."""
    return told(tmp_path_factory.mktemp("settled"), OF_PRODUCERS, Theatre.settle_only)


def test_the_table_has_every_pair_of_kinds() -> None:
    assert len(OUTCOMES) == 16
    assert len(STORIES) == 64


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_second_end_after_the_first_was_published(published_between: Theatre, story: Story) -> None:
    published_between.check(story)


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_both_ends_settled_in_one_range(in_one_range: Theatre, story: Story) -> None:
    in_one_range.check(story)


@pytest.mark.parametrize("story", OF_PRODUCERS, ids=str)
def test_second_end_after_the_first_was_settled_only(
    settled_between: Theatre, story: Story
) -> None:
    settled_between.check(story)
