from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError

from tests.kit.builders import GROUP, halves, op_row, table_versions, transaction_id
from tests.kit.reading import bodies, commits, log_rows, publish, wait_until
from txmq.errors import (
    AlreadyPreparedError,
    AlreadyResolvedError,
    BatchTooLargeError,
    ClosedError,
    CommitConflictError,
    IncompleteTransactionError,
    InvalidMessageError,
    ListenerError,
    MessageTooLargeError,
    NotAcceptedError,
    NotEndedError,
    NotPreparedError,
    ProducerGroupMismatchError,
    StoreFullError,
    TopicConflictError,
    TransactionNotFoundError,
)
from txmq.listeners.protocol import HalfMessage
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import Transaction, TransactionProducer
from txmq.store.store import Store
from txmq.store.tables import StoreTables
from txmq.testing import before_commit, failing_commits

PAID = Message("order-paid", b"42")
COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
UNKNOWN = LocalTransactionState.UNKNOWN
FULL = OSError(errno.ENOSPC, "No space left")


class Listener:
    """Answers with what it was made with, or raises it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.heard: list[tuple[HalfMessage, object]] = []

    def execute_local_transaction(self, message: HalfMessage, argument: object) -> Any:
        self.heard.append((message, argument))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def check_local_transaction(self, message: HalfMessage) -> Any:  # noqa: ARG002
        return self.answer


@pytest.fixture
def producer(store: Store) -> TransactionProducer:
    return TransactionProducer(store, producer_group=GROUP)


def prepared(producer: TransactionProducer, *sent: Message) -> Transaction:
    transaction = producer.begin_transaction()
    for message in sent or (PAID,):
        transaction.send(message)
    transaction.prepare()
    return transaction


def append_claim(store: Store, kind: ClaimKind, transaction: str, **fields: Any) -> None:
    """Somebody else's claim."""
    row = op_row(0, kind, **fields)
    claim = type(row)(transaction, *[getattr(row, name) for name in row.__slots__[1:]])
    store.tables.op_log().append(
        [claim], 0, app_id="test", number=store.tables.op_log().table.version + 1
    )


# --- send_message_in_transaction ------------------------------------------------------------


def test_committed_message_becomes_visible(store: Store) -> None:
    producer = TransactionProducer(store, producer_group=GROUP, listener=Listener(COMMIT))

    result = producer.send_message_in_transaction(PAID, "argument")
    publish(store)

    assert result.local_transaction_state is COMMIT
    assert result.message_id == f"{result.transaction_id}:0"
    assert bodies(store) == [b"42"]


def test_rolled_back_message_never_becomes_visible(store: Store) -> None:
    producer = TransactionProducer(store, producer_group=GROUP, listener=Listener(ROLLBACK))

    producer.send_message_in_transaction(PAID)
    publish(store)

    assert store.topics() == []


@pytest.mark.parametrize("answer", [UNKNOWN, None, True, "COMMIT", RuntimeError("broken")])
def test_what_is_no_answer_is_unknown_and_writes_no_claim(store: Store, answer: object) -> None:
    producer = TransactionProducer(store, producer_group=GROUP, listener=Listener(answer))

    result = producer.send_message_in_transaction(PAID)

    assert result.local_transaction_state is UNKNOWN
    assert log_rows(store, "op") == []


def test_listener_sees_its_message_and_argument(store: Store) -> None:
    listener = Listener(COMMIT)
    producer = TransactionProducer(store, producer_group=GROUP, listener=listener)
    message = Message("order-paid", b"\x00\xff", "tag", ["a", "b"], {"ü": "ß"}, "customer-7")

    result = producer.send_message_in_transaction(message, argument={"order": 42})

    [(seen, argument)] = listener.heard
    assert argument == {"order": 42}
    assert (seen.transaction_id, seen.message_id) == (result.transaction_id, result.message_id)
    assert (seen.topic, seen.body, seen.tags, seen.keys) == (
        "order-paid",
        b"\x00\xff",
        "tag",
        "a b",
    )
    assert (seen.properties, seen.sharding_key) == ({"ü": "ß"}, "customer-7")
    assert (seen.producer_group, seen.message_count, seen.check_times) == (GROUP, 1, 0)


def test_half_is_durable_before_the_local_transaction(store: Store) -> None:
    durable: list[int] = []

    class Looks(Listener):
        def execute_local_transaction(self, message: HalfMessage, argument: object) -> Any:
            durable.append(len(log_rows(store, "half")))
            return super().execute_local_transaction(message, argument)

    producer = TransactionProducer(store, producer_group=GROUP, listener=Looks(COMMIT))

    producer.send_message_in_transaction(PAID)

    assert durable == [1]


def test_local_transaction_does_not_run_where_the_half_is_not_durable(store: Store) -> None:
    listener = Listener(COMMIT)
    producer = TransactionProducer(store, producer_group=GROUP, listener=listener)

    with failing_commits(99, error=FULL), pytest.raises(StoreFullError):
        producer.send_message_in_transaction(PAID)

    assert listener.heard == []
    assert log_rows(store, "half") == []


def test_sending_in_a_transaction_needs_a_listener(producer: TransactionProducer) -> None:
    with pytest.raises(ListenerError):
        producer.send_message_in_transaction(PAID)


def test_check_that_came_first_is_told_to_the_sender(store: Store) -> None:
    class RolledBackMeanwhile(Listener):
        def execute_local_transaction(self, message: HalfMessage, argument: object) -> Any:
            claim = {"source": ClaimSource.CHECK}
            append_claim(store, ClaimKind.ROLLBACK, message.transaction_id, **claim)
            return super().execute_local_transaction(message, argument)

    producer = TransactionProducer(
        store, producer_group=GROUP, listener=RolledBackMeanwhile(COMMIT)
    )

    with pytest.raises(AlreadyResolvedError) as raised:
        producer.send_message_in_transaction(PAID)

    assert (raised.value.resolution, raised.value.source) == ("ROLLED_BACK", "check")


# --- begin, prepare, end --------------------------------------------------------------------


def test_messages_to_several_topics_share_one_commit_of_each_log(
    store: Store, producer: TransactionProducer
) -> None:
    sent = [Message("order-paid", b"1"), Message("stock", b"2"), Message("order-paid", b"3")]

    prepared(producer, *sent).commit()
    publish(store)

    assert (commits(store, "half"), commits(store, "op")) == (1, 1)
    assert (bodies(store), bodies(store, "stock")) == ([b"1", b"3"], [b"2"])


def test_head_alone_carries_count_and_the_longest_immunity(
    store: Store, producer: TransactionProducer
) -> None:
    patient = Message("stock", b"2", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "90"})

    prepared(producer, PAID, patient)

    rows = sorted(log_rows(store, "half"), key=lambda row: row["sequence"])
    assert [row["message_count"] for row in rows] == [2, None]
    assert [row["check_immunity_time_s"] for row in rows] == [90.0, None]


def test_nothing_is_written_before_prepare(store: Store, producer: TransactionProducer) -> None:
    before = table_versions(store)

    producer.begin_transaction().send(PAID)

    assert table_versions(store) == before


def test_commit_before_prepare_is_refused(store: Store, producer: TransactionProducer) -> None:
    transaction = producer.begin_transaction()
    transaction.send(PAID)

    with pytest.raises(NotPreparedError):
        transaction.commit()

    assert log_rows(store, "op") == []


def test_rollback_before_prepare_writes_nothing(
    store: Store, producer: TransactionProducer
) -> None:
    before = table_versions(store)

    with producer.begin_transaction() as transaction:
        transaction.send(PAID)
        transaction.rollback()
        transaction.rollback()

    assert table_versions(store) == before


def test_commit_after_a_rollback_before_prepare_is_refused(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = producer.begin_transaction()
    transaction.send(PAID)
    transaction.rollback()

    with pytest.raises(NotPreparedError):
        transaction.commit()

    assert log_rows(store, "op") == []


@pytest.mark.parametrize(
    "call",
    [lambda transaction: transaction.send(PAID), lambda transaction: transaction.prepare()],
    ids=["send", "prepare"],
)
@pytest.mark.parametrize("ended", [False, True])
def test_prepared_transaction_takes_no_more_messages(
    store: Store, producer: TransactionProducer, call: Callable[[Transaction], Any], *, ended: bool
) -> None:
    transaction = prepared(producer)
    if ended:
        transaction.commit()

    with pytest.raises(AlreadyPreparedError):
        call(transaction)

    assert len(log_rows(store, "half")) == 1


def test_transaction_without_messages_is_refused(producer: TransactionProducer) -> None:
    with pytest.raises(InvalidMessageError, match="no message"):
        producer.begin_transaction().prepare()


def test_prepare_that_failed_may_be_tried_again(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = producer.begin_transaction()
    transaction.send(PAID)
    with failing_commits(1, error=FULL), pytest.raises(StoreFullError):
        transaction.prepare()
    with pytest.raises(NotPreparedError):
        transaction.commit()

    transaction.prepare()
    transaction.commit()
    publish(store)

    assert bodies(store) == [b"42"]


def leave_block(producer: TransactionProducer, *, prepare: bool, fail: bool = False) -> None:
    with producer.begin_transaction() as transaction:
        transaction.send(PAID)
        if prepare:
            transaction.prepare()
        if fail:
            raise ZeroDivisionError


@pytest.mark.parametrize("prepare", [False, True])
def test_block_without_an_end_raises(producer: TransactionProducer, *, prepare: bool) -> None:
    with pytest.raises(NotEndedError):
        leave_block(producer, prepare=prepare)


def test_exception_in_the_block_leaves_the_end_to_the_check(
    store: Store, producer: TransactionProducer
) -> None:
    with pytest.raises(ZeroDivisionError):
        leave_block(producer, prepare=True, fail=True)

    assert len(log_rows(store, "half")) == 1
    assert log_rows(store, "op") == []


def test_same_end_again_is_quiet(store: Store, producer: TransactionProducer) -> None:
    transaction = prepared(producer)
    transaction.commit()
    publish(store)

    transaction.commit()
    publish(store)

    assert bodies(store) == [b"42"]


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    ("first", "resolution"), [(COMMIT, "COMMITTED"), (ROLLBACK, "ROLLED_BACK")]
)
def test_other_end_hears_what_took_effect(
    store: Store,
    producer: TransactionProducer,
    first: LocalTransactionState,
    resolution: str,
    *,
    settled: bool,
) -> None:
    transaction = prepared(producer)
    producer.end_transaction(transaction.id, first)
    if settled:
        publish(store)

    with pytest.raises(AlreadyResolvedError) as raised:
        producer.end_transaction(transaction.id, ROLLBACK if first is COMMIT else COMMIT)
    publish(store)

    assert (raised.value.resolution, raised.value.source) == (resolution, "producer")
    assert [row["state"] for row in log_rows(store, "settled")] == [resolution]


@pytest.mark.parametrize("settled", [False, True])
def test_end_of_a_discarded_transaction_is_refused(
    store: Store, producer: TransactionProducer, *, settled: bool
) -> None:
    transaction = prepared(producer)
    append_claim(store, ClaimKind.DISCARD, transaction.id, source=ClaimSource.CHECK, life=0)
    if settled:
        publish(store)

    with pytest.raises(AlreadyResolvedError) as raised:
        transaction.commit()

    assert (raised.value.resolution, raised.value.source) == ("DISCARDED", "check")


def test_claims_of_another_group_do_not_count(store: Store, producer: TransactionProducer) -> None:
    transaction = prepared(producer)
    append_claim(store, ClaimKind.ROLLBACK, transaction.id, producer_group="others")

    transaction.commit()
    publish(store)

    assert bodies(store) == [b"42"]


# --- end_transaction ------------------------------------------------------------------------


def test_another_producer_of_the_group_may_end_it(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)

    TransactionProducer(store, producer_group=GROUP).end_transaction(transaction.id, COMMIT)
    publish(store)

    assert bodies(store) == [b"42"]


def test_unknown_as_an_end_changes_nothing(store: Store, producer: TransactionProducer) -> None:
    transaction = prepared(producer)

    producer.end_transaction(transaction.id, UNKNOWN)

    assert log_rows(store, "op") == []


def test_another_group_may_not_end_it(store: Store, producer: TransactionProducer) -> None:
    transaction = prepared(producer)

    with pytest.raises(ProducerGroupMismatchError):
        TransactionProducer(store, producer_group="others").end_transaction(transaction.id, COMMIT)

    assert log_rows(store, "op") == []


@pytest.mark.parametrize("unknown", [transaction_id(7), "not an id", "", None, 7])
@pytest.mark.parametrize("state", list(LocalTransactionState))
def test_transaction_without_halves_is_not_found(
    store: Store, producer: TransactionProducer, unknown: Any, state: LocalTransactionState
) -> None:
    with pytest.raises(TransactionNotFoundError):
        producer.end_transaction(unknown, state)

    assert log_rows(store, "op") == []


def test_incomplete_transaction_is_not_committed_but_may_be_rolled_back(
    store: Store, producer: TransactionProducer
) -> None:
    write_deltalake(f"{store.location}/half", halves(7, message_count=2), mode="append")

    with pytest.raises(IncompleteTransactionError) as raised:
        producer.end_transaction(transaction_id(7), COMMIT)
    producer.end_transaction(transaction_id(7), ROLLBACK)

    assert (raised.value.expected, raised.value.found) == (2, 1)
    assert [row["kind"] for row in log_rows(store, "op")] == ["ROLLBACK"]


@pytest.mark.parametrize("state", ["COMMIT", None, True])
def test_end_must_be_a_state(producer: TransactionProducer, state: Any) -> None:
    with pytest.raises(InvalidMessageError, match="must be a LocalTransactionState"):
        producer.end_transaction(transaction_id(7), state)


# --- what is refused ------------------------------------------------------------------------


def test_store_that_takes_no_transactions_still_ends_open_ones(store: Store) -> None:
    transaction = prepared(TransactionProducer(store, producer_group=GROUP))
    config = store.config.replace(reject_transaction_message=True)
    refusing = TransactionProducer(Store.open(store.location, config), producer_group=GROUP)

    with pytest.raises(NotAcceptedError):
        refusing.begin_transaction()
    refusing.end_transaction(transaction.id, COMMIT)
    publish(store)

    assert bodies(store) == [b"42"]


def test_large_message_is_refused_and_the_transaction_goes_on(store: Store) -> None:
    config = store.config.replace(max_message_size_bytes=2, max_transaction_size_bytes=3)
    producer = TransactionProducer(Store.open(store.location, config), producer_group=GROUP)
    transaction = producer.begin_transaction()
    transaction.send(Message("order-paid", b"12"))

    with pytest.raises(MessageTooLargeError):
        transaction.send(Message("order-paid", b"123"))
    with pytest.raises(BatchTooLargeError):
        transaction.send(Message("order-paid", b"12"))
    transaction.send(Message("order-paid", b"3"))
    transaction.prepare()
    transaction.commit()
    publish(store)

    assert bodies(store) == [b"12", b"3"]


def test_keys_and_properties_count_for_the_size_of_a_transaction(store: Store) -> None:
    config = store.config.replace(max_message_size_bytes=100, max_transaction_size_bytes=100)
    producer = TransactionProducer(Store.open(store.location, config), producer_group=GROUP)
    transaction = producer.begin_transaction()
    transaction.send(Message("order-paid", b"1", keys="k" * 200))

    with pytest.raises(BatchTooLargeError):
        transaction.send(Message("order-paid", b"2"))
    transaction.prepare()
    transaction.commit()
    publish(store)

    assert bodies(store) == [b"1"]


def test_what_is_no_message_is_refused(producer: TransactionProducer) -> None:
    with pytest.raises(InvalidMessageError, match="must be a Message, not bytes"):
        producer.begin_transaction().send(b"42")  # type: ignore[arg-type]


def test_topics_that_are_there_are_listed_once(
    store: Store, producer: TransactionProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"topic-{number}" for number in range(3)]
    for topic in topics:
        producer.send([Message(topic, b"42")])
    publish(store)
    folders, listings = StoreTables.topic_folders, list[None]()

    def listed(tables: StoreTables) -> list[str]:
        listings.append(None)
        return folders(tables)

    monkeypatch.setattr(StoreTables, "topic_folders", listed)
    with TransactionProducer(store, producer_group=GROUP) as another:
        for topic in topics:
            another.send([Message(topic, b"42")])

    assert len(listings) == 1


def test_first_message_of_a_process_looks_into_no_other_topic(
    store: Store, producer: TransactionProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(producer).commit()
    publish(store)
    monkeypatch.setattr(Store, "topics", lambda _: pytest.fail("every topic is opened"))

    with TransactionProducer(store, producer_group=GROUP) as another:
        for topic in ("order-paid", "order-sent"):
            another.send([Message(topic, b"42")])


@pytest.mark.parametrize("published", [False, True])
def test_topic_that_differs_in_case_alone_is_refused(
    store: Store, producer: TransactionProducer, *, published: bool
) -> None:
    prepared(producer).commit()
    if published:
        publish(store)
        producer = TransactionProducer(store, producer_group=GROUP)

    with pytest.raises(TopicConflictError):
        producer.begin_transaction().send(Message("Order-Paid", b"42"))


def test_one_sharding_key_is_one_queue_and_others_take_turns(
    store: Store, producer: TransactionProducer
) -> None:
    keyed = [Message("order-paid", b"", sharding_key="customer-7") for _ in range(5)]

    prepared(producer, *keyed, *[Message("stock", b"") for _ in range(16)])

    queues: dict[str, list[int]] = {}
    for row in log_rows(store, "half"):
        queues.setdefault(row["real_topic"], []).append(row["real_queue_id"])
    assert len(set(queues["order-paid"])) == 1
    assert sorted(queues["stock"]) == sorted(2 * list(range(8)))


# --- close and fork -------------------------------------------------------------------------


def test_closed_producer_says_so(store: Store, producer: TransactionProducer) -> None:
    transaction, unprepared = prepared(producer), producer.begin_transaction()
    unprepared.send(PAID)

    with producer:
        pass

    for call in (
        producer.begin_transaction,
        unprepared.prepare,
        transaction.commit,
        lambda: producer.end_transaction(transaction.id, COMMIT),
    ):
        with pytest.raises(ClosedError):
            call()
    assert log_rows(store, "op") == []


def test_close_waits_for_the_commit_on_its_way(store: Store, producer: TransactionProducer) -> None:
    transaction = producer.begin_transaction()
    transaction.send(PAID)
    closer = threading.Thread(target=producer.close)

    with before_commit(closer.start, table="half"):
        transaction.prepare()
    closer.join()

    assert len(log_rows(store, "half")) == 1


FORK = """
import os, sys
from txmq.errors import ClosedError
from txmq.message.message import Message
from txmq.producer.pipeline import SendFuture
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

location, used = sys.argv[1], sys.argv[2]
paid = Message("order-paid", b"42")
if used == "by delta-rs":
    from deltalake import DeltaTable
    DeltaTable(location + "/half")
if used == "yes":
    store = Store.open(location)
    producer = TransactionProducer(store, producer_group="orders-service")
    transaction = producer.begin_transaction()
    transaction.send(paid)
    transaction.prepare()
    unprepared = producer.begin_transaction()
    unprepared.send(paid)
    # As sends on their way do, whose room nobody gives back in the child.
    producer._parts.futures._room.enter(1 << 40, SendFuture())

def refused(call):
    try:
        call()
    except ClosedError as error:
        return "spawn" in str(error)
    return False

def send():
    with TransactionProducer(Store.open(location), producer_group="orders-service") as own:
        own.send(paid)

child = os.fork()
if child == 0:
    calls = [send]
    if used == "yes":
        calls += [producer.begin_transaction, transaction.commit, store.topics]
        calls += [unprepared.prepare_async, transaction.commit_async]
        calls += [lambda: TransactionProducer(store, producer_group="orders-service")]
    os._exit(sum(map(refused, calls)))
_, status = os.waitpid(child, 0)
if used == "yes":
    transaction.commit()
    producer.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize(
    ("used", "refused", "shown"),
    [("yes", 7, 1), ("by delta-rs", 1, 0), ("no", 0, 1)],
)
def test_forked_process_works_or_says_what_to_do(
    store: Store, used: str, refused: int, shown: int
) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, store.location, used]

    found = subprocess.run(command, timeout=60, check=False).returncode
    publish(store)

    assert found == refused
    assert (bodies(store) if store.topics() else []) == [b"42"] * shown


# --- group commit and lost answers ----------------------------------------------------------


def test_threads_that_wait_share_a_commit(store: Store, producer: TransactionProducer) -> None:
    threads = 64
    waiting, committing = producer._commits._logs.halves._waiting, threading.Event()

    def others_wait() -> None:
        committing.set()
        wait_until(lambda: len(waiting) == threads - 1)

    with ThreadPoolExecutor(threads) as pool, before_commit(others_wait, table="half"):
        first = pool.submit(prepared, producer)
        assert committing.wait(60)
        others = [pool.submit(prepared, producer) for _ in range(threads - 1)]
        transactions = [future.result() for future in (first, *others)]
        list(pool.map(Transaction.commit, transactions))
    publish(store)

    assert commits(store, "half") == 2
    assert commits(store, "op") < threads / 2
    assert len(bodies(store)) == threads


@pytest.mark.parametrize("table", ["half", "op"])
@pytest.mark.parametrize(
    "error",
    [None, OSError("connection reset"), CommitFailedError("timeout")],
    ids=["refused", "system", "timeout"],
)
def test_commit_whose_answer_was_lost_is_made_once(
    store: Store, producer: TransactionProducer, table: str, error: Exception | None
) -> None:
    with failing_commits(1, error=error, after_commit=True, table=table) as failed:
        prepared(producer).commit()

    assert len(failed) == 1
    assert (commits(store, "half"), commits(store, "op")) == (1, 1)
    assert (len(log_rows(store, "half")), len(log_rows(store, "op"))) == (1, 1)


@pytest.mark.parametrize("table", ["half", "op"])
def test_lost_race_is_tried_again(store: Store, producer: TransactionProducer, table: str) -> None:
    with failing_commits(3, table=table) as failed:
        prepared(producer).commit()

    assert len(failed) == 3
    assert (commits(store, "half"), commits(store, "op")) == (1, 1)


def test_races_lost_without_end_are_told_and_leave_nothing(
    store: Store, producer: TransactionProducer
) -> None:
    with failing_commits(999), pytest.raises(CommitConflictError):
        prepared(producer)

    assert log_rows(store, "half") == []


def test_end_that_could_not_be_written_may_be_tried_again(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    with failing_commits(1, error=FULL), pytest.raises(StoreFullError):
        transaction.commit()

    transaction.commit()
    publish(store)

    assert bodies(store) == [b"42"]


# --- contested ends -------------------------------------------------------------------------


def end(store: Store, transaction: str, state: LocalTransactionState) -> str:
    """What this caller believes the end to be."""
    with TransactionProducer(store, producer_group=GROUP) as producer:
        try:
            producer.end_transaction(transaction, state)
        except AlreadyResolvedError as error:
            return error.resolution
    return {COMMIT: "COMMITTED", ROLLBACK: "ROLLED_BACK"}[state]


@pytest.mark.parametrize("published", ["afterwards", "meanwhile"])
def test_eight_racing_ends_have_one_winner_and_all_hear_it(
    store: Store, producer: TransactionProducer, published: str
) -> None:
    transactions = [prepared(producer).id for _ in range(4)]
    wanted = [(one, state) for one in transactions for state in 4 * [COMMIT, ROLLBACK]]
    stopped = threading.Event()

    def follow() -> None:
        while not stopped.is_set():
            publish(store)

    with ThreadPoolExecutor(9) as pool:
        following = pool.submit(follow) if published == "meanwhile" else None
        heard = list(pool.map(lambda one: (one[0], end(store, *one)), wanted))
        stopped.set()
        if following is not None:
            following.result()
    publish(store)

    settled = [(row["transaction_id"], row["state"]) for row in log_rows(store, "settled")]
    assert sorted(transaction for transaction, _ in settled) == sorted(transactions)
    assert set(heard) == set(settled)


RACER = """
import sys
from txmq.errors import AlreadyResolvedError
from txmq.message.message import LocalTransactionState
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

_, location, state, *transactions = sys.argv
ends = {"COMMIT": "COMMITTED", "ROLLBACK": "ROLLED_BACK"}
with TransactionProducer(Store.open(location), producer_group="orders-service") as producer:
    print("ready", flush=True)
    sys.stdin.readline()
    for transaction in transactions:
        try:
            producer.end_transaction(transaction, LocalTransactionState(state))
            print(transaction, ends[state])
        except AlreadyResolvedError as error:
            print(transaction, error.resolution)
"""


def test_racing_processes_have_one_winner_and_all_hear_it(
    store: Store, producer: TransactionProducer
) -> None:
    transactions = [prepared(producer).id for _ in range(5)]
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, store.location, state, *transactions],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ),
        )
        for state in ("COMMIT", "ROLLBACK", "COMMIT")
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"

    # All of them are started before the first answer is read.
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    heard = {
        tuple(line.split()) for racer in racers for line in racer.communicate()[0].splitlines()
    }
    publish(store)

    settled = {(row["transaction_id"], row["state"]) for row in log_rows(store, "settled")}
    assert len(settled) == len(transactions)
    assert heard == settled
