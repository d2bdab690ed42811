"""Everything at once, in any order: producers, checks, two publishers, crashes, lost answers.

Production code from the producer down to `storage.Table`, whose handle alone is a stand-in
(tests/kit/memory_table.py); what must hold is told by an own model (tests/kit/store_model.py).
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from deltalake.exceptions import CommitFailedError, DeltaError
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.kit.builders import ids
from tests.kit.fault_vocabulary import CLOCK_JUMPS_S, WRITTEN_BY
from tests.kit.memory_table import MemoryStore, payload_files_in_memory
from tests.kit.store_model import FOR_GOOD, GROUP, Fate, Model
from txmq.check.open_transactions import OpenTransactions, dues_of
from txmq.check.round import CheckRound
from txmq.delta import failures as retries
from txmq.delta.table_writer import TableWriter
from txmq.errors import AlreadyResolvedError, CommitRefusedError, TxmqError
from txmq.listeners.protocol import HalfMessage
from txmq.message import lifecycle
from txmq.message.ids import new_transaction_id
from txmq.message.lifecycle import ClaimKind, ClaimSource, Standing, TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.publish import plan
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.half import HalfOrigin, HalfTransaction, half_table
from txmq.store.op import OpRow
from txmq.store.topic import TopicLog
from txmq.testing import ManualClock

# A hundred take ten seconds; CI runs 2,000.
SHARES = 4
EXAMPLES = int(os.environ.get("STATE_MACHINE_EXAMPLES", "100"))
STEPS = 7
MONTH_S = 30 * 86_400.0
TOPICS = ("alpha", "beta")
IMMUNITY_S, INTERVAL_S, CHECK_MAX = 6.0, 30.0, 2
CONFIG = Config(
    transaction_timeout_s=IMMUNITY_S, transaction_check_interval_s=INTERVAL_S,
    transaction_check_max=CHECK_MAX, check_threads=1, publish_threads=1, half_queues=1,
    default_topic_queue_nums=2, listener_timeout_s=5.0,
)  # fmt: skip
ENDS = (ClaimKind.COMMIT, ClaimKind.ROLLBACK)
KINDS = (*ENDS, ClaimKind.DISCARD, ClaimKind.RESUME, ClaimKind.EXPIRE, ClaimKind.UNKNOWN)
# Where a publisher can be hit: the first table of each commit that it makes.
PUBLISHED = WRITTEN_BY["publisher"]

publishers = st.integers(0, 1)
places = st.integers(0, 9)
texts = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3)


class KilledError(Exception):
    """The process ends here; txmq must not know it."""


class StoreMachine(RuleBasedStateMachine):
    """One store, one producer, a check service and two publishers, each with its own handles."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = MemoryStore(CONFIG, clock=self.clock)
        self.disk = self.store.disk
        self.model = Model(self.store)
        self.publishers = [Publisher(self.store, clock=self.clock) for _ in range(2)]
        self.producer = TransactionProducer(self.store, producer_group=GROUP, clock=self.clock)
        self.checks = self._new_checks()
        self.searching = OpenTransactions(self.store, self.clock)
        self.kills = 0
        # What was wrong with a question; a listener that raises would only be UNKNOWN.
        self.questions: list[str] = []
        self.collecting: tuple[Transaction, list[tuple[str, bytes]]] | None = None
        self.own: dict[str, Transaction] = {}
        self._numbers = itertools.count(1)

    def _new_checks(self) -> CheckRound:
        return CheckRound(self.store, listeners={GROUP: self}, clock=self.clock)

    # --- the application ------------------------------------------------------------------------

    @rule(topics=texts)
    def send(self, topics: list[str]) -> None:
        if self.collecting is None:
            self.collecting = (self.producer.begin_transaction(), [])
        transaction, sent = self.collecting
        for topic in topics:
            body = b"%d" % next(self._numbers)
            transaction.send(Message(topic, body))
            sent.append((topic, body))

    @rule(topics=texts, lost=st.sampled_from([None, None, False, True]))
    def prepare(self, topics: list[str], lost: bool | None) -> None:  # noqa: FBT001
        if self.collecting is None:
            self.send(topics)
        assert self.collecting is not None
        (transaction, sent), self.collecting = self.collecting, None
        self._retried("half", lost)
        transaction.prepare()
        self.own[transaction.id] = transaction
        self._prepared(transaction.id, Fate(sent))

    def _retried(self, table: str, lost: bool | None) -> None:  # noqa: FBT001
        """The next append is refused, or made and its answer lost: the producer tries again."""
        error = DeltaError("no answer") if lost else CommitFailedError("refused")
        if lost is not None:
            self.disk.interrupts.append((table, lost, _raising(error)))

    def _prepared(self, transaction_id: str, fate: Fate) -> None:
        fate.half_ms = self.clock.now_ms()
        self.model.fates[transaction_id] = fate

    @rule(topics=texts, kinds=st.lists(st.sampled_from(ENDS), max_size=2))
    def prepare_with_a_message_lost(self, topics: list[str], kinds: list[ClaimKind]) -> None:
        """Tampering or loss: the head promises more than there is."""
        transaction_id = new_transaction_id(self.clock.now_ms())
        sent = [(topic, b"%d" % next(self._numbers)) for topic in [*topics, "alpha"]]
        self._append_halves(transaction_id, sent)
        self._prepared(transaction_id, Fate(sent, is_torn=True, is_meddled=True))
        self._append_claims([self._row(transaction_id, kind, None) for kind in kinds])

    def _append_halves(self, transaction_id: str, sent: Sequence[tuple[str, bytes]]) -> None:
        origin = HalfOrigin(transaction_id, GROUP, 0, IMMUNITY_S, self.clock.now_ms())
        messages = [Message(*one) for one in sent]
        rows = half_table([HalfTransaction(origin, messages, [0] * len(sent), len(sent))])
        half = self.store.tables.half_log().table
        half.writer.append(rows.slice(0, len(sent) - 1), app_id=str(uuid.uuid4()), number=1)

    @precondition(lambda self: self.own)
    @rule(place=places)
    def retried_append(self, place: int) -> None:
        """Another process wrote the same halves again, for it had no answer either."""
        half = self.store.tables.half_log().table
        transaction_id = self._chosen(self.own, place)
        rows = self.store.tables.half_log().rows(ids(transaction_id))
        half.writer.append(rows, app_id=str(uuid.uuid4()), number=1)

    @precondition(lambda self: self.own)
    @rule(place=places, outcome=st.sampled_from(ENDS))
    def local_commit(self, place: int, outcome: ClaimKind) -> None:
        """The local transaction is done or undone, once."""
        fate = self.model.fates[self._chosen(self.own, place)]
        fate.local = fate.local or outcome.value

    @precondition(lambda self: self.own)
    @rule(place=places, outcome=st.sampled_from(ENDS), lost=st.sampled_from([None, False, True]))
    def end(self, place: int, outcome: ClaimKind, lost: bool | None) -> None:  # noqa: FBT001
        """The process that prepared it ends it as its local transaction went."""
        transaction_id = self._chosen(self.own, place)
        fate, transaction = self.model.fates[transaction_id], self.own[transaction_id]
        fate.local = fate.local or outcome.value
        self._retried("op", lost)
        self._ask_for(transaction_id, ClaimKind(fate.local), transaction.end)

    @precondition(lambda self: self.own)
    @rule(place=places, kind=st.sampled_from(ENDS))
    def doubled_end(self, place: int, kind: ClaimKind) -> None:
        """Somebody else of the group ends it as well, not always alike."""
        transaction_id = self._chosen(self.own, place)
        self.model.fates[transaction_id].is_meddled = True
        state = LocalTransactionState[kind.value]
        self._ask_for(
            transaction_id, kind, lambda _: self.producer.end_transaction(transaction_id, state)
        )

    @rule(topics=texts, outcome=st.sampled_from(ENDS))
    def sale(self, topics: list[str], outcome: ClaimKind = ClaimKind.COMMIT) -> None:
        """The common case at once, so that there is something to get wrong."""
        self.prepare(topics, None)
        transaction_id, transaction = list(self.own.items())[-1]
        self.model.fates[transaction_id].local = outcome.value
        self._ask_for(transaction_id, outcome, transaction.end)

    def _ask_for(
        self, transaction_id: str, kind: ClaimKind, call: Callable[[ClaimKind], None]
    ) -> None:
        """I7: what the caller hears is where the transaction stands."""
        heard = {"COMMIT": "COMMITTED", "ROLLBACK": "ROLLED_BACK"}[kind.value]
        try:
            call(kind)
        except AlreadyResolvedError as error:
            heard = error.resolution
        self.model.follow()
        fate = self.model.fates[transaction_id]
        assert fate.state == heard, f"I7: the producer heard {heard}, it is {fate.state}"
        fate.acknowledged = heard if heard in FOR_GOOD else fate.acknowledged

    # --- operators and strangers ------------------------------------------------------------------

    @precondition(lambda self: self.model.fates)
    @rule(
        claims=st.lists(
            st.tuples(places, st.sampled_from(KINDS), st.integers(0, 9)), min_size=1, max_size=4
        )
    )
    def claims(self, claims: list[tuple[int, ClaimKind, int]]) -> None:
        """Several claims in one commit, by hand; some of another group, some of another life."""
        self._append_claims([self._claim(*claim) for claim in claims])

    @rule(topics=texts, place=places, outcome=st.sampled_from([None, *ENDS]))
    def resume(self, topics: list[str], place: int, outcome: ClaimKind | None) -> None:
        """A dead letter gets another life, and in it perhaps an end."""
        if not self._discarded():
            self.nobody_knows(topics)
        transaction_id = self._chosen(self._discarded() or self.model.fates, place)
        fate = self.model.fates[transaction_id]
        self._append_claims([self._row(transaction_id, ClaimKind.RESUME, fate.life + 1)])
        if outcome is not None:
            fate.is_meddled = True
            self._append_claims([self._row(transaction_id, outcome, None)])

    def _discarded(self) -> list[str]:
        return [key for key, fate in self.model.fates.items() if fate.state == "DISCARDED"]

    def _claim(self, place: int, kind: ClaimKind, chance: int) -> OpRow:
        transaction_id = self._chosen(self.model.fates, place)
        fate = self.model.fates[transaction_id]
        fate.is_meddled = fate.is_meddled or kind in ENDS
        life = fate.life + (kind is ClaimKind.RESUME) + (chance == 1)
        group = "strangers" if chance == 0 else GROUP
        return self._row(transaction_id, kind, None if kind in ENDS else life, group)

    def _row(
        self, transaction_id: str, kind: ClaimKind, life: int | None, group: str = GROUP
    ) -> OpRow:
        now_ms = self.clock.now_ms()
        is_check = kind is ClaimKind.UNKNOWN
        return OpRow(
            transaction_id, kind, group, ClaimSource.OPERATOR, now_ms, life=life,
            check_times=1 if is_check else None,
            next_check_timestamp_ms=now_ms if is_check else None,
        )  # fmt: skip

    def _append_claims(self, rows: list[OpRow]) -> None:
        if not rows:
            return
        self.store.tables.op_log().append(rows, 0, app_id=str(uuid.uuid4()), number=1)

    # --- the check --------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, IMMUNITY_S, INTERVAL_S]))
    def check(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._check()

    @rule(topics=texts)
    def nobody_knows(self, topics: list[str]) -> None:
        """I9: who is asked in vain often enough becomes a dead letter, in time."""
        self.prepare(topics, None)
        fate = list(self.model.fates.values())[-1]
        for _ in range(CHECK_MAX + 1):
            self.clock.advance(INTERVAL_S)
            self._check()
        self.model.follow()
        # A killed round keeps its lease for a while.
        assert self.kills or fate.state == "DISCARDED", f"I9: still {fate.state}"

    @rule(topics=texts, is_after=st.booleans())
    def check_crashes(self, topics: list[str], is_after: bool) -> None:  # noqa: FBT001
        """Killed with its answers not written, or not known to be."""
        self.prepare(topics, None)
        self.clock.advance(IMMUNITY_S)
        self._killed_in("op", self._check, is_after=is_after)
        self.checks.close()
        self.checks = self._new_checks()

    def _check(self) -> None:
        clock_ms = self.clock.now_ms()
        transactions = self.searching.read(clock_ms)
        fresh = OpenTransactions(self.store, self.clock).read(clock_ms)
        assert transactions.equals(fresh), "what goes on differs from a new search"
        dues = dues_of(transactions, clock_ms)
        self.checks.run(dues, clock_ms=clock_ms, source=ClaimSource.RECHECK)

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """The listener; I18: nobody is asked too early, too often or after the end."""
        self.model.follow()
        fate = self.model.fates[message.transaction_id]
        fate.asked[fate.life] += 1
        self._check_question(fate)
        return LocalTransactionState[fate.local or "UNKNOWN"]

    def _check_question(self, fate: Fate) -> None:
        if fate.state != "PENDING":
            self.questions.append(f"I18: asked although {fate.state}")
        is_first = fate.life == 0 and fate.asked.total() == 1 and not fate.armed_by_hand
        if is_first and self.clock.now_ms() < fate.half_ms + IMMUNITY_S * 1000:
            self.questions.append("I18: asked while it is immune")
        if fate.asked[fate.life] > CHECK_MAX + self.kills:
            self.questions.append("I18: asked too often")

    # --- publishing -------------------------------------------------------------------------------

    @rule(which=publishers)
    def publish(self, which: int) -> None:
        self.publishers[which].run_once()

    @rule(which=publishers)
    def settle_step(self, which: int) -> None:
        rounds = self.publishers[which]._rounds()
        rounds._settled.table.refresh()
        rounds._op.table.refresh()
        if rounds._settled.mark < rounds._op.table.version:
            rounds._settle(rounds._op.table.version)

    @rule(which=publishers)
    def publish_step(self, which: int) -> None:
        self.publishers[which]._rounds()._publish()

    @rule(which=publishers, topics=texts, table=st.sampled_from(PUBLISHED), is_after=st.booleans())
    def crash(self, topics: list[str], which: int, table: str, is_after: bool) -> None:  # noqa: FBT001
        self.sale(topics)
        dying = self.publishers[which]

        def run() -> None:
            try:
                dying.run_once()
            finally:
                # Its threads die with it: none may commit once the next one runs.
                dying._rounds()._topics._threads.shutdown()

        self._killed_in(table, run, is_after=is_after)
        self.restart(which)

    def _killed_in(self, table: str, act: Callable[[], object], *, is_after: bool) -> None:
        def kill() -> None:
            self.disk.killed = KilledError()
            raise self.disk.killed

        self.disk.interrupts.append((table, is_after, kill))
        try:
            act()
        except KilledError:
            self.kills += 1
        self.disk.killed = None
        self.disk.interrupts.clear()

    @rule(which=publishers)
    def restart(self, which: int) -> None:
        self.publishers[which] = Publisher(self.store, clock=self.clock)

    @rule(which=publishers, topics=texts, table=st.sampled_from(PUBLISHED), count=st.integers(1, 2))
    def two_publishers(self, topics: list[str], which: int, table: str, count: int) -> None:
        """One computes, the other one commits first: at the moment where it hurts."""
        self.sale(topics)
        for _ in range(count):
            self.disk.interrupts.append((table, False, lambda: self._undisturbed(1 - which)))
        self.publishers[which].run_once()
        self.disk.interrupts.clear()

    def _undisturbed(self, rival: int) -> None:
        waiting, self.disk.interrupts = self.disk.interrupts, []
        self.publishers[rival].run_once()
        self.disk.interrupts = waiting

    @rule(which=publishers, topics=texts, table=st.sampled_from(PUBLISHED))
    def lost_answer(self, topics: list[str], which: int, table: str) -> None:
        """A commit is made and its publisher told that it failed."""
        self.sale(topics)
        self.disk.interrupts.append((table, True, _raising(DeltaError("no answer"))))
        try:
            self.publishers[which].run_once()
        except TxmqError:
            # The service begins anew with fresh handles.
            self.restart(which)
        self.disk.interrupts.clear()

    @rule()
    def lost_checkpoint(self) -> None:
        self._restore_progress(0)

    @rule(back=st.integers(1, 3))
    def restored_old_checkpoint(self, back: int) -> None:
        self._restore_progress(max(len(self.store.log("state/publisher").commits) - 1 - back, 0))

    def _restore_progress(self, version: int) -> None:
        """What the publishers remember of themselves is older than what they did."""
        log = self.store.log("state/publisher")
        del log.commits[version + 1 :]
        self.restart(0)
        self.restart(1)

    @rule(seconds=st.sampled_from([*CLOCK_JUMPS_S, -1, 1]))
    def clock_jump(self, seconds: int) -> None:
        self.clock.advance(seconds)

    # --- what must hold ---------------------------------------------------------------------------

    @invariant()
    def the_tables_tell_the_truth(self) -> None:
        assert not self.questions, self.questions
        self.model.check()

    def teardown(self) -> None:
        self.disk.interrupts.clear()
        try:
            self._drain()
            self.model.check_drained()
        finally:
            self.producer.close()
            self.checks.close()

    def _drain(self) -> None:
        # What is parked is tried again after a while.
        for seconds in (0.0, MONTH_S):
            self.clock.advance(seconds)
            self.publishers[0].run_once()

    @staticmethod
    def _chosen(of: Any, place: int) -> str:
        names = list(of)
        return str(names[place % len(names)])


def _raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(retries, "RETRY_PAUSE_S", 0.0)
    with payload_files_in_memory():
        yield


def run_machine(examples: int, **options: Any) -> None:
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(max_examples=examples, stateful_step_count=STEPS, **options),
    )


# A night's examples take longer than a test usually may; in shares, two workers have some each.
@pytest.mark.timeout(300 + EXAMPLES)
@pytest.mark.parametrize("share", range(SHARES))
def test_every_history_keeps_the_invariants(share: int) -> None:
    run_machine(EXAMPLES // SHARES + (share < EXAMPLES % SHARES))


# --- the machine must be able to go red -----------------------------------------------------------


def last_end_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lifecycle.next_state
    committed, rolled_back = TransactionState.COMMITTED, TransactionState.ROLLED_BACK

    def wrong(standing: Standing, claim: Any, halves: Any) -> TransactionState | None:
        match standing.state, claim.kind:
            case (TransactionState.COMMITTED, ClaimKind.ROLLBACK):
                return rolled_back
            case (TransactionState.ROLLED_BACK, ClaimKind.COMMIT) if halves.problem is None:
                return committed
        return right(standing, claim, halves)

    monkeypatch.setattr(lifecycle, "next_state", wrong)


def mark_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was computed from an old handle is committed through a new one."""
    right = TableWriter.swap_files

    def wrong(table: TableWriter, files: Any, marks: Any) -> None:
        try:
            right(table, files, marks)
        except CommitRefusedError:
            table._log.refresh()
            right(table, files, marks)

    monkeypatch.setattr(TableWriter, "swap_files", wrong)


def offsets_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicLog, "next_offsets", lambda _, queues: dict.fromkeys(queues, 0))


def rollback_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = (*plan.SHOWN_STATES, TransactionState.ROLLED_BACK.value)
    monkeypatch.setattr(plan, "SHOWN_STATES", shown)


BUGS = [last_end_wins, mark_not_compared, offsets_begin_again, rollback_is_published]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    # The first of them is enough; shrinking would only take time.
    options = {"phases": [Phase.generate], "database": None, "report_multiple_bugs": False}
    with pytest.raises(AssertionError, match=r"I\d+"):
        run_machine(2_000, derandomize=True, **options)


def test_transaction_that_is_discarded_twice_in_one_commit_has_its_letters_in_order() -> None:
    state = StoreMachine()
    state.check_crashes(topics=["alpha", "alpha", "alpha"], is_after=False)
    kinds = (ClaimKind.COMMIT, ClaimKind.DISCARD, ClaimKind.RESUME, ClaimKind.DISCARD)
    state.claims([(0, kind, chance) for kind, chance in zip(kinds, (0, 9, 5, 1), strict=True)])
    for _ in range(4):
        state.lost_checkpoint()
    state.teardown()
