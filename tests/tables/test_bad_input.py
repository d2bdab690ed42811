# ruff: noqa: ARG002, ARG005
"""Bad input: each is refused with an error of ours that says what to do, and nothing is written.

The numbers are those of the catalogue of bad input; DataFrames (74-84) are in
tests/spark/producer/test_dataframe.py, for they need Spark.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import GROUP, halves, kind_of, table_versions, transaction_id
from txmq.delta.schemas import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY
from txmq.errors import (
    AlreadyPreparedError,
    BatchTooLargeError,
    ClosedError,
    ConfigError,
    IncompatibleVersionError,
    InvalidMessageError,
    InvalidNameError,
    ListenerError,
    MessageTooLargeError,
    NotEndedError,
    NotPreparedError,
    ProducerGroupMismatchError,
    StorageError,
    StoreNotFoundError,
    TopicConflictError,
    TransactionNotFoundError,
    TxmqError,
)
from txmq.message.message import CHECK_IMMUNITY_TIME_IN_SECONDS, LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify, verify_business

MEBIBYTE = 1024 * 1024
COMMIT, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN
NOW = datetime(2026, 1, 1, tzinfo=UTC)

Call = Callable[[TransactionProducer], object]


class Listener:
    def execute_local_transaction(self, message: object, argument: object) -> Any:
        return COMMIT

    def check_local_transaction(self, message: object) -> Any:
        return COMMIT


class AsyncListener(Listener):
    async def execute_local_transaction(self, message: object, argument: object) -> Any:
        return COMMIT


@pytest.fixture
def producer(store: Store) -> Iterator[TransactionProducer]:
    with TransactionProducer(store, producer_group=GROUP, listener=Listener()) as made:
        yield made


@pytest.fixture
def untouched(store: Store) -> Iterator[None]:
    """Fails a test in which any table got a commit, or a thread was left running."""
    versions, threads = table_versions(store), set(threading.enumerate())
    yield
    assert table_versions(store) == versions
    left = [one for one in threading.enumerate() if one not in threads and not one.daemon]
    assert left == []


def sent(message: Callable[[], Message]) -> Call:
    """Make the message and send it, as its caller would."""

    def call(producer: TransactionProducer) -> None:
        transaction = producer.begin_transaction()
        transaction.send(message())
        transaction.prepare()

    return call


def to_topic(topic: Any) -> Call:
    return sent(lambda: Message(topic, b""))


def with_fields(body: Any = b"", **fields: Any) -> Call:
    return sent(lambda: Message("orders", body, **fields))


def with_property(name: Any, value: Any) -> Call:
    return with_fields(properties={name: value})


def bad_property(
    name: Any, value: Any, text: str = "property"
) -> tuple[Call, type[Exception], str]:
    return with_property(name, value), InvalidMessageError, text


def bad_field(**field: Any) -> tuple[Call, type[Exception], str]:
    return with_fields(**field), InvalidMessageError, f"refused: {next(iter(field))} "


def check_helps(error: TxmqError) -> None:
    """What every refusal owes to its reader."""
    text = str(error)
    assert 10 < len(text) < 1_000
    assert text.isprintable()


def check_refused(
    producer: TransactionProducer, call: Call, error: type[Exception], text: str | None = None
) -> None:
    with pytest.raises(error, match=text) as refused:
        call(producer)

    assert isinstance(refused.value, TxmqError)
    check_helps(refused.value)


# --- 1-32: topics -----------------------------------------------------------------------------

TOPICS: dict[str, tuple[Any, type[Exception]] | tuple[Any, type[Exception], str]] = {
    "1 empty": ("", InvalidNameError),
    "2 blank": ("  ", InvalidNameError),
    "3 None": (None, InvalidNameError),
    "4 number": (123, InvalidNameError),
    "5 bytes": (b"t", InvalidNameError),
    "6 list": (["t"], InvalidNameError),
    "3 None is no str": (None, InvalidNameError, "pass a str, not NoneType"),
    "6 list is no str": (["t"], InvalidNameError, "pass a str, not list"),
    "7 parent": ("../etc", InvalidNameError),
    "8 slash": ("a/b", InvalidNameError),
    "9 backslash": ("a\\b", InvalidNameError),
    "10 absolute": ("/abs", InvalidNameError),
    "11 file URI": ("file:///x", InvalidNameError),
    "12 bucket": ("s3a://b/k", InvalidNameError),
    "13 dot": (".", InvalidNameError),
    "14 dots": ("..", InvalidNameError),
    "15 encoded slash": ("a%2Fb", InvalidNameError),
    "16 NUL": ("a\x00b", InvalidNameError),
    "17 newline": ("a\nb", InvalidNameError),
    "17 newline at the end": ("a\n", InvalidNameError),
    "18 SQL": ("t'; DROP TABLE x--", InvalidNameError),
    "19 backtick": ("a`b", InvalidNameError),
    "20 quotes": ('x" OR "1"="1', InvalidNameError),
    "21 cyrillic": ("тема", InvalidNameError),
    "22 bidi": ("a\u202eb", InvalidNameError),
    "23 fullwidth": ("\uff21", InvalidNameError),
    "24 composed": ("\u00e9", InvalidNameError),
    "24 decomposed": ("e\u0301", InvalidNameError),
    "25 emoji": ("a🎉", InvalidNameError),
    "26 too long": ("x" * 128, InvalidNameError),
    "26 far too long": ("x" * 100_000, InvalidNameError),
    "29 log folder": ("_delta_log", InvalidNameError),
    "30 dead letters": ("TRANS_CHECK_MAX_TIME_TOPIC", InvalidNameError, "reserved"),
    "31 own prefix": ("txmq_half", InvalidNameError, "reserved"),
    "32 device": ("CON", InvalidNameError, "reserved"),
    "32 device in small letters": ("nul", InvalidNameError, "reserved"),
    "41 surrogate": ("\ud800", InvalidNameError),
}


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("case", TOPICS)
def test_bad_topic(producer: TransactionProducer, case: str) -> None:
    topic, error, text = (*TOPICS[case], None)[:3]

    check_refused(producer, to_topic(topic), error, text)


@pytest.mark.parametrize("group", ["g" * 121, "a b", "", None, "RETRY_g", "../g", "con"])
def test_27_bad_group_is_refused_before_its_tables_get_their_names(
    store: Store, group: object
) -> None:
    with pytest.raises(InvalidNameError) as refused:
        TransactionProducer(store, producer_group=group)  # type: ignore[arg-type]

    check_helps(refused.value)


def test_28_topic_that_differs_in_case_from_another_store_wide(
    store: Store, producer: TransactionProducer
) -> None:
    store.tables.create_topic("orders")
    before = table_versions(store)

    check_refused(producer, to_topic("Orders"), TopicConflictError)
    assert table_versions(store) == before


@pytest.mark.usefixtures("untouched")
def test_28_topics_of_one_transaction_that_differ_in_case(producer: TransactionProducer) -> None:
    transaction = producer.begin_transaction()
    transaction.send(Message("orders", b""))

    with pytest.raises(TopicConflictError):
        transaction.send(Message("ORDERS", b""))


# --- 39-65: messages ---------------------------------------------------------------------------

MESSAGES: dict[str, tuple[Call, type[Exception]] | tuple[Call, type[Exception], str]] = {
    "39 no body": (with_fields(None), InvalidMessageError),
    "40 text body": (with_fields("text"), InvalidMessageError),
    "40 text body is no bytes": (with_fields("text"), InvalidMessageError, "body must be bytes"),
    "41 surrogate in keys": (with_fields(keys="\ud800"), InvalidMessageError),
    "41 surrogate in tags": (with_fields(tags="\ud800"), InvalidMessageError),
    "43 body above its limit": (
        with_fields(b"x" * (4 * MEBIBYTE + 1)), MessageTooLargeError, "body bytes"
    ),
    "46 property without value": bad_property("a", None),
    "47 property without name": bad_property("", "b"),
    "48 name that is no text": bad_property(1, "b"),
    "49 10,000 properties": (
        with_fields(properties={f"p{n}": "v" for n in range(10_000)}),
        MessageTooLargeError, "properties bytes",
    ),
    "50 properties above their limit": (
        with_fields(properties={f"p{n}": "v" * 8192 for n in range(4)}),
        MessageTooLargeError, "properties bytes",
    ),
    "51 RocketMQ's separators": bad_property("a", "x\x01y\x02z"),
    "52 nested": bad_property("a", {"b": "c"}),
    "53 NaN": bad_property("a", float("nan")),
    "54 RocketMQ's own": bad_property("TRAN_MSG", "true", "reserved"),
    "54 our own": bad_property("__txmq_x", "1", "reserved"),
    "56 long key": (with_fields(keys="k" * 65_536), InvalidMessageError),
    "56 long sharding key": (with_fields(sharding_key="k" * 65_536), InvalidMessageError),
    "57 delay -1": bad_field(delay_level=-1),
    "57 pause -1": bad_field(delay_s=-1),
    "60 level as text": bad_field(delay_level="5s"),
    "61 NaN": bad_field(delay_level=float("nan")),
    "61 infinite pause": bad_field(delay_s=float("inf")),
    "62 pause above all": bad_field(delay_s=10**18),
    "62 far too late": bad_field(deliver_timestamp=10**18),
    "63 level and time": (
        with_fields(delay_level=1, deliver_timestamp=NOW + timedelta(days=1)),
        InvalidMessageError, "delay is given more than once",
    ),
    "65 naive time": bad_field(deliver_timestamp=datetime(2026, 1, 1)),  # noqa: DTZ001
    "66 immunity 0": bad_property(CHECK_IMMUNITY_TIME_IN_SECONDS, "0"),
    "66 immunity -1": bad_property(CHECK_IMMUNITY_TIME_IN_SECONDS, "-1"),
    "message of another type": (sent(lambda: "text"), InvalidMessageError),  # type: ignore[arg-type,return-value]
    "no message": (lambda producer: producer.begin_transaction().prepare(), InvalidMessageError),
    "no message but None": (
        lambda producer: producer.send_message_in_transaction(None), InvalidMessageError  # type: ignore[arg-type]
    ),
}  # fmt: skip


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("case", MESSAGES)
def test_bad_message(producer: TransactionProducer, case: str) -> None:
    call, error, text = (*MESSAGES[case], None)[:3]

    check_refused(producer, call, error, text)


@pytest.mark.parametrize(
    "fields",
    [{}, {"keys": None}, {"sharding_key": None}, {"properties": {}}, {"tags": None}],
    ids=str,
)
def test_42_55_what_is_left_out_or_empty_is_fine(
    producer: TransactionProducer, fields: dict[str, Any]
) -> None:
    transaction = producer.begin_transaction()
    transaction.send(Message("orders", b"", **fields))

    transaction.prepare()
    transaction.commit()


@pytest.mark.usefixtures("untouched")
def test_44_messages_that_are_too_large_together(producer: TransactionProducer) -> None:
    transaction = producer.begin_transaction()
    body = b"x" * (4 * MEBIBYTE)
    for _ in range(16):
        transaction.send(Message("orders", body))

    with pytest.raises(BatchTooLargeError) as refused:
        transaction.send(Message("orders", b"x"))

    check_helps(refused.value)


def test_45_size_is_looked_at_before_anything_is_copied() -> None:
    class HugeBody(bytes):
        def __len__(self) -> int:
            return 2**31

    message = Message("orders", HugeBody())

    with pytest.raises(MessageTooLargeError):
        message.check_sizes(max_message_size_bytes=4 * MEBIBYTE, max_properties_size_bytes=32_767)


# --- 66-73: settings and places ------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "66 immunity -1": {"transaction_timeout_s": -1},
    "66 immunity 0": {"transaction_timeout_s": 0},
    "66 immunity beyond retention": {"transaction_timeout_s": 10**6},
    "67 check_max 0": {"transaction_check_max": 0},
    "67 check_max -3": {"transaction_check_max": -3},
    "67 check_max 10^6": {"transaction_check_max": 10**6},
    "68 interval 0": {"transaction_check_interval_s": 0},
    "69 typo": {"transaction_chek_max": 3},
    "70 yes for a number": {"transaction_check_max": True},
    "70 text for a number": {"transaction_check_max": "3"},
}


@pytest.mark.parametrize("case", SETTINGS)
def test_bad_settings(tmp_path: Path, case: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Store.create(tmp_path / "store", Config.from_dict(SETTINGS[case]))

    check_helps(refused.value)
    assert any(key in str(refused.value) for key in SETTINGS[case])
    assert list(tmp_path.iterdir()) == []


def test_73_missing_store(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="txmq init") as refused:
        Store.open(tmp_path / "absent")

    check_helps(refused.value)
    assert list(tmp_path.iterdir()) == []


# --- 85-91: transactions and listeners -----------------------------------------------------------

ENDS: dict[str, tuple[Any, Any, type[Exception]]] = {
    "85 None for a state": (transaction_id(1), None, InvalidMessageError),
    "85 text for a state": (transaction_id(1), "COMMIT", InvalidMessageError),
    "85 True for a state": (transaction_id(1), True, InvalidMessageError),
    "86 no id": (None, COMMIT, TransactionNotFoundError),
    "86 empty id": ("", COMMIT, TransactionNotFoundError),
    "86 id of another kind": (str(uuid.uuid4()), COMMIT, TransactionNotFoundError),
    "86 unknown id": (transaction_id(99), COMMIT, TransactionNotFoundError),
    "86 unknown id, end not known": (transaction_id(99), UNKNOWN, TransactionNotFoundError),
    "86 id with SQL": ("x' OR '1'='1", COMMIT, TransactionNotFoundError),
    "86 surrogate": ("\ud800", COMMIT, TransactionNotFoundError),
}


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("case", ENDS)
def test_bad_end(producer: TransactionProducer, case: str) -> None:
    own_id, state, error = ENDS[case]

    check_refused(producer, lambda made: made.end_transaction(own_id, state), error)


@pytest.mark.parametrize("state", LocalTransactionState)
def test_87_end_of_another_group_s_transaction(
    store: Store, producer: TransactionProducer, state: LocalTransactionState
) -> None:
    store.tables.half_log().table.writer.append(
        halves(1, producer_group="others"), app_id="o", number=1
    )
    before = table_versions(store)

    check_refused(
        producer,
        lambda made: made.end_transaction(transaction_id(1), state),
        ProducerGroupMismatchError,
    )
    assert table_versions(store) == before


def answer_of_the_fork(call: Callable[[], object], connection: Any) -> None:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - the parent looks at it
        connection.send(type(error).__name__)
    else:
        connection.send("no error")
    os._exit(0)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_88_producer_in_a_forked_process(store: Store, producer: TransactionProducer) -> None:
    transaction = producer.begin_transaction()
    transaction.send(Message("orders", b""))
    transaction.prepare()
    before = table_versions(store)
    context = multiprocessing.get_context("fork")

    answers = []
    for call in (transaction.commit, producer.begin_transaction):
        here, there = context.Pipe()
        child = context.Process(target=answer_of_the_fork, args=(call, there))
        child.start()
        assert here.poll(timeout=30)
        answers.append(here.recv())
        child.join()
        here.close()
        there.close()

    assert answers == ["ClosedError", "ClosedError"]
    assert table_versions(store) == before
    transaction.commit()


CLOSED: dict[str, Call] = {
    "begin": lambda producer: producer.begin_transaction(),
    "send in transaction": lambda p: p.send_message_in_transaction(Message("orders", b"")),
}


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("case", CLOSED)
def test_89_call_after_close(producer: TransactionProducer, case: str) -> None:
    producer.close()

    check_refused(producer, CLOSED[case], ClosedError)


@pytest.mark.usefixtures("untouched")
def test_89_prepare_after_close(producer: TransactionProducer) -> None:
    transaction = producer.begin_transaction()
    transaction.send(Message("orders", b""))
    producer.close()

    with pytest.raises(ClosedError):
        transaction.prepare()


def test_89_end_after_close(store: Store, producer: TransactionProducer) -> None:
    transaction = producer.begin_transaction()
    transaction.send(Message("orders", b""))
    transaction.prepare()
    producer.close()
    before = table_versions(store)

    with pytest.raises(ClosedError):
        transaction.commit()
    with pytest.raises(ClosedError):
        producer.end_transaction(transaction.id, COMMIT)
    assert table_versions(store) == before


def test_89_closing_twice_is_no_error(producer: TransactionProducer) -> None:
    producer.close()
    producer.close()


@pytest.mark.parametrize(
    "listener", ["x", Listener, lambda message: COMMIT, object(), AsyncListener()], ids=kind_of
)
def test_91_listener_that_cannot_answer(store: Store, listener: object) -> None:
    with pytest.raises(ListenerError) as refused:
        TransactionProducer(store, producer_group=GROUP, listener=listener)  # type: ignore[arg-type]

    check_helps(refused.value)


@pytest.mark.usefixtures("untouched")
def test_91_no_listener_where_one_is_needed(store: Store) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        check_refused(
            producer,
            lambda made: made.send_message_in_transaction(Message("orders", b"")),
            ListenerError,
        )


ORDER: dict[str, tuple[Call, type[Exception]]] = {
    "commit before prepare": (lambda p: p.begin_transaction().commit(), NotPreparedError),
}


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("case", ORDER)
def test_calls_in_a_wrong_order(producer: TransactionProducer, case: str) -> None:
    call, error = ORDER[case]

    check_refused(producer, call, error)


@pytest.mark.usefixtures("untouched")
def test_block_left_without_an_end(producer: TransactionProducer) -> None:
    with pytest.raises(NotEndedError), producer.begin_transaction() as transaction:
        transaction.send(Message("orders", b""))


def test_send_and_prepare_after_prepare(store: Store, producer: TransactionProducer) -> None:
    transaction = producer.begin_transaction()
    transaction.send(Message("orders", b""))
    transaction.prepare()
    before = table_versions(store)

    with pytest.raises(AlreadyPreparedError):
        transaction.send(Message("orders", b""))
    with pytest.raises(AlreadyPreparedError):
        transaction.prepare()
    assert table_versions(store) == before


# --- 92-95: stores ------------------------------------------------------------------------------


def raised_version(store: Store, table: str) -> None:
    DeltaTable(f"{store.location}/{table}").alter.set_table_properties(
        {SCHEMA_VERSION_PROPERTY: str(SCHEMA_VERSION + 1)}, raise_if_not_exists=False
    )


def test_92_store_of_a_newer_txmq(store: Store) -> None:
    raised_version(store, "state/config")

    with pytest.raises(IncompatibleVersionError, match="upgrade") as refused:
        Store.open(store.location)

    check_helps(refused.value)


@pytest.mark.parametrize("table", ["half", "op"])
def test_92_log_of_a_newer_txmq(store: Store, table: str) -> None:
    raised_version(store, table)
    before = table_versions(store)

    def send(producer: TransactionProducer) -> None:
        transaction = producer.begin_transaction()
        transaction.send(Message("orders", b""))
        transaction.prepare()
        transaction.commit()

    with TransactionProducer(store, producer_group=GROUP) as producer:
        check_refused(producer, send, IncompatibleVersionError)

    assert table_versions(store)["op"] == before["op"]


def test_93_log_with_a_feature_that_nobody_knows(store: Store) -> None:
    log = Path(store.location, "half", "_delta_log", f"{1:020d}.json")
    log.write_text(
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,'
        '"readerFeatures":["fromTheFuture"],"writerFeatures":["fromTheFuture"]}}\n'
    )
    before = table_versions(store)

    with TransactionProducer(store, producer_group=GROUP) as producer:
        check_refused(producer, to_topic("orders"), StorageError)
    assert table_versions(store) == before


def test_94_no_delta_table_where_a_log_should_be(store: Store) -> None:
    for commit in Path(store.location, "half", "_delta_log").iterdir():
        commit.unlink()

    with TransactionProducer(store, producer_group=GROUP) as producer:
        check_refused(producer, to_topic("orders"), StorageError)


def test_94_log_that_is_no_log(store: Store) -> None:
    Path(store.location, "half", "_delta_log", f"{0:020d}.json").write_text("not JSON\n")

    with TransactionProducer(store, producer_group=GROUP) as producer:
        check_refused(producer, to_topic("orders"), StorageError)


def test_95_one_place_by_many_names_is_one_store(store: Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store.location)
    path = store.location

    names = [path, f"{path}/", f"file:{path}", f"file://{path}", str(tmp_path / "link")]

    assert {Store.open(name).location for name in names} == {path}


# --- anything ------------------------------------------------------------------------------------

ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
    | st.binary(max_size=9) | st.lists(st.text(max_size=3), max_size=3) | st.just(Message("t", b""))
    | st.sampled_from(LocalTransactionState)
    | st.dictionaries(st.text(max_size=3), st.text(max_size=3))
)  # fmt: skip


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransactionProducer]:
    store = Store.create(tmp_path_factory.mktemp("fuzz") / "store")
    with TransactionProducer(store, producer_group=GROUP) as made:
        yield made


@given(own_id=ANYTHING, state=ANYTHING)
def test_any_end_is_refused_with_an_error_of_ours(
    fuzzed: TransactionProducer, own_id: Any, state: Any
) -> None:
    before = table_versions(fuzzed.store)

    with pytest.raises(TxmqError) as refused:
        fuzzed.end_transaction(own_id, state)

    check_helps(refused.value)
    assert table_versions(fuzzed.store) == before


@given(message=ANYTHING)
def test_anything_is_collected_or_refused_with_an_error_of_ours(
    fuzzed: TransactionProducer, message: Any
) -> None:
    before = table_versions(fuzzed.store)
    transaction = fuzzed.begin_transaction()

    try:
        transaction.send(message)
    except TxmqError as error:
        check_helps(error)
    else:
        assert isinstance(message, Message)
    assert table_versions(fuzzed.store) == before


@given(group=ANYTHING, listener=ANYTHING)
def test_any_producer_is_made_or_refused_with_an_error_of_ours(
    fuzzed: TransactionProducer, group: Any, listener: Any
) -> None:
    try:
        TransactionProducer(fuzzed.store, producer_group=group, listener=listener).close()
    except TxmqError as error:
        check_helps(error)
    else:
        assert (type(group), listener) == (str, None)


# --- stores and their checker ---------------------------------------------------------------------


@pytest.mark.parametrize("config", [{"half_queues": 2}, "conf/txmq.yaml", 0])
def test_settings_that_are_no_config_are_refused_before_a_byte_is_written(
    config: Any, tmp_path: Path
) -> None:
    location, kept = tmp_path / "store", Store.create(tmp_path / "kept")
    calls: list[Callable[[], object]] = [
        lambda: Store.create(location, config),
        lambda: Store.open(kept.location, config),
        lambda: kept.with_settings(config),
    ]

    for call in calls:
        with pytest.raises(ConfigError, match=r"config must be a Config, .*Config\.from_dict"):
            call()
    assert not location.exists()


@pytest.mark.parametrize("location", [5, b"store", None, "", " "])
def test_checker_refuses_a_location_that_is_no_path(location: Any) -> None:
    with pytest.raises(ConfigError, match="location must be a path or a URI"):
        verify(location)


def test_checker_takes_a_path_as_a_store_does(tmp_path: Path) -> None:
    Store.create(tmp_path / "store")

    assert verify(tmp_path / "store").is_clean


@pytest.mark.parametrize("business", ["orders", ["orders"]])
def test_checker_refuses_marker_places_that_are_not_named_by_group(
    business: Any, tmp_path: Path
) -> None:
    location = Store.create(tmp_path / "store").location

    for check in (
        lambda: verify(location, business=business),
        lambda: verify_business(location, business),
    ):
        with pytest.raises(ConfigError, match="business must be a mapping from producer group"):
            check()
