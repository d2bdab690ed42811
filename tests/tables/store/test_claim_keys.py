"""Groups whose claims are signed: what others claim in their name does not count."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.kit.check_world import JournalListener, wall_ms
from tests.kit.reading import bodies
from txmq.delta.actions import commit_path, of_kind
from txmq.errors import AlreadyResolvedError, ConfigError, StoreFormatError
from txmq.ground.clock import timestamp
from txmq.maintenance.service import Maintenance
from txmq.message.lifecycle import ClaimKind, ClaimSource, TransactionState, end_asked_for
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.admin.operator import Operator
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.publish.publisher import Publisher
from txmq.store.claim_writer import ClaimWriter
from txmq.store.config import Config
from txmq.store.op import ClaimKeys, OpRow, op_table
from txmq.store.schemas import OP, SIGNATURE
from txmq.store.store import Store
from txmq.testing import ManualClock
from txmq.verify import verify

GROUP, VARIABLE, KEY = "orders", "ORDERS_CLAIM_KEY", "0123456789abcdef" * 4
OTHER_KEY = "f" * 64
REQUIRED: Any = {GROUP: VARIABLE}
BEGUN: Any = {GROUP: {"variable": VARIABLE, "accept_unsigned": True}}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)


@pytest.fixture
def stranger(tmp_path: Path) -> Store:
    """The store as it is opened by who has no key."""
    return Store.create(tmp_path / "store", Config(half_queues=1))


@pytest.fixture
def store(stranger: Store) -> Store:
    return keyed(stranger)


def keyed(store: Store, claim_keys: Any = REQUIRED) -> Store:
    return store.with_settings(store.config.replace(claim_keys=claim_keys))


def prepared(store: Store, body: bytes = b"1", **values: Any) -> Transaction:
    transaction = TransactionProducer(store, producer_group=GROUP).begin_transaction()
    transaction.send(Message("order-paid", body, **values))
    transaction.prepare()
    return transaction


def claim(store: Store, transaction: Transaction, kind: ClaimKind, **values: Any) -> None:
    source = values.pop("source", ClaimSource.PRODUCER)
    row = OpRow(transaction.id, kind, GROUP, source, 1_767_225_600_000, **values)
    ClaimWriter(store.tables.op_log(), "test", store.config.half_queues).append([row])


# --- claims of others -----------------------------------------------------------------------------


def test_commit_of_a_stranger_shows_no_message(store: Store, stranger: Store) -> None:
    claim(stranger, prepared(store), ClaimKind.COMMIT)

    Publisher(store).run_once()

    assert bodies(store) == []


def test_commit_of_a_stranger_shows_the_message_without_a_key(stranger: Store) -> None:
    """What the key is for."""
    claim(stranger, prepared(stranger), ClaimKind.COMMIT)

    Publisher(stranger).run_once()

    assert bodies(stranger) == [b"1"]


@pytest.mark.parametrize("source", list(ClaimSource))
@pytest.mark.parametrize("kind", [ClaimKind.ROLLBACK, ClaimKind.DISCARD, ClaimKind.EXPIRE])
def test_end_of_a_stranger_does_not_win(
    store: Store, stranger: Store, kind: ClaimKind, source: ClaimSource
) -> None:
    transaction = prepared(store)
    claim(stranger, transaction, kind, source=source, life=0)

    transaction.commit()
    Publisher(store).run_once()

    assert bodies(store) == [b"1"]


def test_delivery_by_a_stranger_does_not_bring_a_delayed_message_early(
    store: Store, stranger: Store
) -> None:
    transaction = prepared(store, delay_s=3_600)
    transaction.commit()
    Publisher(store).run_once()
    claim(stranger, transaction, ClaimKind.DELIVER, source=ClaimSource.DELAY)

    Publisher(store).run_once()

    assert bodies(store) == []


def test_signature_of_another_key_or_claim_is_none(store: Store, stranger: Store) -> None:
    first, second, third = (prepared(store, body) for body in (b"1", b"2", b"3"))
    third.commit()
    signed = (
        store.tables.op_log()
        .refresh()
        .table.rows.read(store.tables.op_log().refresh().table.files.all(), OP.columns.names)
    )
    forged = op_table(
        [OpRow(t.id, ClaimKind.COMMIT, GROUP, ClaimSource.PRODUCER, 0)
         for t in (first, second)], 0,
    )  # fmt: skip
    place = forged.schema.get_field_index(SIGNATURE)
    texts = pa.array([signed[SIGNATURE][0].as_py(), b"x" * 32], pa.binary())
    forged = forged.set_column(place, OP.columns.field(SIGNATURE), texts)
    ClaimWriter(stranger.tables.op_log(), "test", 1).append_table(forged)

    Publisher(store).run_once()

    assert bodies(store) == [b"3"]


def test_claim_with_text_that_is_no_utf_8_stops_nobody(store: Store, stranger: Store) -> None:
    transaction = prepared(store)
    rows = op_table([OpRow(transaction.id, ClaimKind.ROLLBACK, GROUP, ClaimSource.PRODUCER, 0)], 0)
    reason = pa.Array.from_buffers(
        pa.string(), 1, pa.array([b"\xff\xfe"], pa.binary()).buffers()
    )  # fmt: skip
    rows = rows.set_column(
        rows.schema.get_field_index("reason"), OP.columns.field("reason"), reason
    )
    ClaimWriter(stranger.tables.op_log(), "test", 1).append_table(rows)

    transaction.commit()
    Publisher(store).run_once()

    assert bodies(store) == [b"1"]


def test_publisher_names_what_does_not_count_and_never_the_key(
    store: Store, stranger: Store, caplog: pytest.LogCaptureFixture
) -> None:
    transaction = prepared(store)
    claim(stranger, transaction, ClaimKind.COMMIT)

    with caplog.at_level(logging.WARNING):
        Publisher(store).run_once()

    assert f"about transaction '{transaction.id}'" in caplog.text
    assert KEY not in caplog.text


def test_other_groups_are_as_before(store: Store, stranger: Store) -> None:
    with TransactionProducer(stranger, producer_group="others") as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("order-paid", b"of others"))
        transaction.prepare()
        transaction.commit()

    Publisher(store).run_once()

    assert bodies(store) == [b"of others"]


# --- claims of the group --------------------------------------------------------------------------


def test_claims_of_all_services_and_of_operators_count(store: Store, tmp_path: Path) -> None:
    clock = ManualClock(wall_ms())
    producer = TransactionProducer(store, producer_group=GROUP, clock=clock)

    def sent(body: bytes, **values: Any) -> Transaction:
        transaction = producer.begin_transaction()
        transaction.send(Message("order-paid", body, **values))
        transaction.prepare()
        return transaction

    sent(b"committed").commit()
    sent(b"delayed", delay_s=60).commit()
    sent(b"checked")
    clock.advance(100)
    listener = JournalListener(tmp_path / "asked", lambda _: LocalTransactionState.COMMIT)
    Broker(store, clock=clock, listeners={GROUP: listener}).run_once()
    resolved = sent(b"resolved")
    Operator(store, clock=clock).resolve(
        resolved.id, LocalTransactionState.COMMIT, reason="by hand", apply=True
    )
    sent(b"expired")
    clock.advance(30 * 86_400)
    Broker(store, clock=clock).run_once()
    Broker(store, clock=clock).run_once()

    assert sorted(bodies(store)) == [b"checked", b"committed", b"delayed", b"resolved"]
    assert verify(store.location, claim_keys={GROUP: [KEY]}).is_clean


def test_signatures_outlive_compaction(store: Store) -> None:
    clock = ManualClock()
    transactions = [prepared(store, b"%d" % number) for number in range(12)]
    for transaction in transactions:
        transaction.commit()
    clock.advance(2 * 86_400)
    Maintenance(store, clock=clock).run_once()

    Publisher(store).run_once()

    assert len(bodies(store)) == 12


# --- a signed claim counts once -------------------------------------------------------------------


def copy_claims(source: Store, target: Store, kind: ClaimKind) -> None:
    """What who has no key can do: append signed rows as they are."""
    op = source.tables.op_log().refresh()
    rows = op.table.rows.read(op.table.files.all(), OP.columns.names)
    rows = rows.filter(pc.equal(rows["kind"], kind.value))
    without_keys = target.with_settings(target.config.replace(claim_keys={}))
    ClaimWriter(without_keys.tables.op_log(), "test", 1).append_table(rows)


def resumed_after_a_late(kind: ClaimKind, store: Store) -> Transaction:
    """A transaction that was discarded, then ended by its producer, and then resumed."""
    transaction = prepared(store)
    claim(store, transaction, ClaimKind.DISCARD, source=ClaimSource.CHECK, life=0)
    with pytest.raises(AlreadyResolvedError, match="DISCARDED"):
        transaction.end(kind)
    Operator(store).resume(transaction.id, reason="by hand", apply=True)
    Publisher(store).run_once()
    return transaction


def is_clean(store: Store, *, drained: bool = True) -> bool:
    """Whether all promises hold, with a DISCARD before any question."""
    keys, limits = {GROUP: [KEY]}, {GROUP: 0}
    return verify(store.location, claim_keys=keys, check_limits=limits, drained=drained).is_clean


@pytest.mark.parametrize("kind", [ClaimKind.COMMIT, ClaimKind.ROLLBACK])
def test_an_end_of_an_earlier_life_that_is_copied_is_no_claim(
    store: Store, stranger: Store, kind: ClaimKind
) -> None:
    transaction = resumed_after_a_late(kind, store)

    copy_claims(store, stranger, kind)
    Publisher(store).run_once()

    assert transaction.state is TransactionState.PENDING
    assert bodies(store) == []
    assert is_clean(store, drained=False)


@pytest.mark.parametrize("kind", [ClaimKind.COMMIT, ClaimKind.ROLLBACK])
@pytest.mark.parametrize("is_known", [False, True], ids=["another process", "its own process"])
def test_an_end_counts_in_a_later_life_as_well(
    store: Store, kind: ClaimKind, *, is_known: bool
) -> None:
    transaction = resumed_after_a_late(kind, store)

    if is_known:
        transaction.end(kind)
    else:
        state = LocalTransactionState(kind.value)
        with TransactionProducer(store, producer_group=GROUP) as producer:
            producer.end_transaction(transaction.id, state)
    Publisher(store).run_once()

    assert bodies(store) == ([b"1"] if kind is ClaimKind.COMMIT else [])
    assert transaction.state is end_asked_for(kind)
    assert is_clean(store)


@pytest.mark.parametrize("who", ["check", "operator"])
def test_ends_of_the_check_and_of_operators_count_in_a_later_life(
    store: Store, tmp_path: Path, who: str
) -> None:
    transaction = resumed_after_a_late(ClaimKind.COMMIT, store)

    if who == "operator":
        commit = LocalTransactionState.COMMIT
        Operator(store).resolve(transaction.id, commit, reason="by hand", apply=True)
    clock = ManualClock(wall_ms() + 100_000)
    listener = JournalListener(tmp_path / "asked", lambda _: LocalTransactionState.COMMIT)
    Broker(store, clock=clock, listeners={GROUP: listener}).run_once()

    assert bodies(store) == [b"1"]


def test_a_claim_of_another_store_is_none(store: Store, tmp_path: Path) -> None:
    """A test store has the same key, and the same transaction by its idempotency key."""
    test_store = keyed(Store.create(tmp_path / "test", Config(half_queues=1)))
    moment = timestamp(wall_ms())
    transactions = []
    for each in (store, test_store):
        producer = TransactionProducer(each, producer_group=GROUP)
        transaction = producer.begin_transaction(idempotency_key="7", key_timestamp=moment)
        transaction.send(Message("order-paid", b"1"))
        transaction.prepare()
        transactions.append(transaction)
    assert transactions[0].id == transactions[1].id
    transactions[1].commit()

    copy_claims(test_store, store, ClaimKind.COMMIT)
    Publisher(store).run_once()

    assert bodies(store) == []
    assert bodies_of(test_store) == [b"1"]


def bodies_of(store: Store) -> list[bytes]:
    Publisher(store).run_once()
    return bodies(store)


def test_an_end_without_a_key_names_no_life(stranger: Store) -> None:
    """As every txmq before, and as RocketMQ: what a producer says holds in any life."""
    transaction = prepared(stranger)
    transaction.commit()
    op = stranger.tables.op_log().refresh()

    assert op.table.rows.read(op.table.files.all(), ("life",))["life"].to_pylist() == [None]


# --- keys -----------------------------------------------------------------------------------------


def test_a_new_key_signs_while_the_old_one_is_still_believed(
    store: Store, stranger: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(store, b"old").commit()
    monkeypatch.setenv(VARIABLE, f"{OTHER_KEY} {KEY}")
    prepared(keyed(stranger), b"new").commit()

    Publisher(keyed(stranger)).run_once()
    assert sorted(bodies(store)) == [b"new", b"old"]


def test_keys_are_introduced_without_a_loss(stranger: Store) -> None:
    """First all sign; from the day on that nothing unsigned is open, signatures are required."""
    prepared(stranger, b"unsigned").commit()
    begun = keyed(stranger, BEGUN)
    prepared(begun, b"signed").commit()

    Publisher(begun).run_once()
    assert sorted(bodies(stranger)) == [b"signed", b"unsigned"]

    prepared(begun, b"signed too").commit()
    Publisher(keyed(stranger)).run_once()
    assert len(bodies(stranger)) == 3


@pytest.mark.parametrize(
    ("value", "problem"),
    [(None, f"needs the variable {VARIABLE}; set it"), (" ", "set it"),
     ("short", "shorter than 32"), (f"{KEY} short", "shorter than 32")],
)  # fmt: skip
def test_key_that_is_not_there_or_too_short_is_refused_at_the_start(
    stranger: Store, monkeypatch: pytest.MonkeyPatch, value: str | None, problem: str
) -> None:
    if value is None:
        monkeypatch.delenv(VARIABLE)
    else:
        monkeypatch.setenv(VARIABLE, value)

    with pytest.raises(ConfigError, match=problem) as error:
        keyed(stranger)

    assert KEY not in str(error.value)


@pytest.mark.parametrize(
    "claim_keys",
    ["X", {GROUP: KEY}, {GROUP: "a b"}, {GROUP: 5}, {GROUP: {}}, {GROUP: {"variable": 5}},
     {GROUP: {"variable": "A", "accept_unsigned": "yes"}}, {GROUP: {"variable": "A", "more": 1}},
     {"a b": "A"}],
)  # fmt: skip
def test_what_is_no_name_of_a_variable_is_refused_and_not_repeated(claim_keys: Any) -> None:
    with pytest.raises(ConfigError, match="claim_keys") as error:
        Config(claim_keys=claim_keys)

    assert KEY not in str(error.value)


def test_store_keeps_no_names_of_variables(tmp_path: Path) -> None:
    Store.create(tmp_path / "store", Config(claim_keys=REQUIRED))

    assert Store.open(tmp_path / "store").config.claim_keys == {}


def test_store_of_an_earlier_txmq_works_without_keys_and_says_that_it_cannot_sign(
    stranger: Store,
) -> None:
    op = Path(stranger.location, "op", commit_path(0))
    actions = [json.loads(line) for line in op.read_text().splitlines()]
    for metadata in of_kind(actions, "metaData"):
        schema = json.loads(metadata["schemaString"])
        schema["fields"] = [field for field in schema["fields"] if field["name"] != SIGNATURE]
        metadata["schemaString"] = json.dumps(schema)
    op.write_text("".join(json.dumps(action) + "\n" for action in actions))

    prepared(stranger).commit()
    Publisher(stranger).run_once()
    assert bodies(stranger) == [b"1"]
    assert verify(stranger.location).is_clean

    with pytest.raises(StoreFormatError, match="has no column signature"):
        prepared(keyed(stranger)).commit()


# --- verify ---------------------------------------------------------------------------------------


def test_verify_judges_by_the_claims_that_count(store: Store, stranger: Store) -> None:
    forged = prepared(store)
    claim(stranger, forged, ClaimKind.COMMIT)
    prepared(store, b"2").commit()
    Publisher(store).run_once()

    assert verify(store.location, claim_keys={GROUP: [KEY]}).is_clean
    assert verify(store.location, claim_keys={GROUP: [OTHER_KEY, KEY]}).is_clean
    assert not verify(store.location).is_clean
    assert not verify(store.location, claim_keys={GROUP: [OTHER_KEY]}).is_clean


# --- properties -----------------------------------------------------------------------------------

ROWS = some.builds(
    OpRow,
    transaction_id=some.text(max_size=3),
    kind=some.sampled_from(ClaimKind),
    producer_group=some.just(GROUP),
    source=some.sampled_from(ClaimSource),
    op_timestamp_ms=some.integers(0, 3),
    life=some.none() | some.integers(0, 2),
    check_times=some.none() | some.integers(0, 2),
    next_check_timestamp_ms=some.none() | some.integers(0, 3),
    reason=some.none() | some.text(max_size=2),
    sequences=some.none() | some.lists(some.integers(0, 2), max_size=2).map(tuple),
)


def said(row: OpRow) -> OpRow:
    """What is signed: an end that names no life is of the first one."""
    is_end = row.kind in (ClaimKind.COMMIT, ClaimKind.ROLLBACK)
    return replace(row, life=0) if is_end and row.life is None else row


@given(ROWS, ROWS)
def test_signature_is_valid_for_its_claim_alone(row: OpRow, other: OpRow) -> None:
    keys = ClaimKeys.of(Config(claim_keys=REQUIRED), {VARIABLE: KEY})
    signed = keys.signed(op_table([row], 0), "store")
    place = signed.schema.get_field_index(SIGNATURE)
    moved = op_table([said(other)], 0).set_column(place, SIGNATURE, signed[SIGNATURE])

    assert keys.judge(signed, "store").counted.num_rows == 1
    assert not keys.judge(signed, "other").counted.num_rows
    assert keys.judge(moved, "store").counted.num_rows == int(said(row) == said(other))
