"""A producer that lives is not asked about what it works on, however long that takes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

import pytest

from tests.kit.check_world import GROUP, ROLLBACK, CheckWorld, JournalListener, wall_ms
from txmq.check.recheck import RecheckJob, RecheckResult
from txmq.delta.folder import Objects
from txmq.errors import AccessDeniedError
from txmq.ground.clock import Clock, SystemClock, elapsed_ms, timestamp
from txmq.message.ids import new_transaction_id
from txmq.message.lifecycle import ClaimKind, TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.awaitable import AsyncTransactionProducer
from txmq.producer.commits import ProducerCommits
from txmq.producer.pipeline import Steps
from txmq.producer.producer import TransactionProducer
from txmq.producer.renewing import Renewing
from txmq.producer.routing import PlannedSend
from txmq.producer.transaction import Transaction
from txmq.spark.micro_batches import BatchTransactions
from txmq.store.renewals import BYTES_MAX, RENEWAL_FOLDER, Renewal, RenewalFile, RenewalReader
from txmq.store.schemas import HALF
from txmq.store.store_clock import StoreClock

HOUR_S = 3600.0
SHORT_S, LEASE_S = 7.0, 30.0
# After a digit a number that no float can be.
ZEROS = b"0" * 400


@pytest.fixture
def world(tmp_path: Path) -> CheckWorld:
    return CheckWorld(tmp_path)


def producer(world: CheckWorld, **options: Any) -> TransactionProducer:
    return TransactionProducer(world.store, producer_group=GROUP, clock=world.clock, **options)


def renewing(own: TransactionProducer) -> Renewing:
    return own._renewing


def prepared(own: TransactionProducer, **options: Any) -> Transaction:
    transaction = own.begin_transaction(**options)
    transaction.send(Message("paid", b"1"))
    transaction.prepare()
    return transaction


def check(world: CheckWorld, listener: Any, clock: Clock | None = None) -> RecheckResult:
    listeners = {GROUP: listener}
    return RecheckJob(world.store, listeners=listeners, clock=clock or world.clock).run_once()


def work_for(world: CheckWorld, own: TransactionProducer, listener: Any, work_s: float) -> None:
    """Let the time pass second by second, with a look of the producer and of the check at each."""
    for _ in range(round(work_s)):
        world.clock.advance(1.0)
        renewing(own).run_once()
        if not round(world.clock.now_ms() / 1000) % 5:
            check(world, listener)


def files(world: CheckWorld) -> list[Path]:
    return sorted(Path(world.store.location, RENEWAL_FOLDER).glob("*"))


# --- who lives -----------------------------------------------------------------------------------


def test_change_of_minutes_is_not_asked_about_and_commits(world: CheckWorld) -> None:
    listener = world.listener(ROLLBACK)
    with producer(world) as own, own.begin_transaction() as transaction:
        transaction.send(Message("paid", b"1"))
        transaction.prepare()
        work_for(world, own, listener, 180)
        transaction.commit()

        assert transaction.state is TransactionState.COMMITTED
    assert listener.asked() == []
    reasons = {row["reason"] for row in world.claims(ClaimKind.UNKNOWN)}
    assert reasons == {"PRODUCER_LIVES"}
    # One for each lease, not one for each look.
    assert len(world.claims(ClaimKind.UNKNOWN)) <= 180 / LEASE_S + 1


def test_transaction_of_a_killed_producer_is_asked_after_its_lease(world: CheckWorld) -> None:
    listener, own = world.listener(ROLLBACK), producer(world)
    transaction = prepared(own)
    work_for(world, own, listener, 60)
    # Nobody renews any more.
    world.clock.advance(LEASE_S + 1)

    assert check(world, listener).checks.rolled_back == 1
    assert listener.asked() == [transaction.id]


def test_questions_before_a_renewal_are_neither_counted_nor_do_pauses_grow(
    world: CheckWorld,
) -> None:
    listener, own = world.listener(LocalTransactionState.UNKNOWN), producer(world)
    transaction = prepared(own)
    work_for(world, own, listener, 600)
    world.clock.advance(LEASE_S + 1)
    RecheckJob(world.store, listeners={}, clock=world.clock).run_once()

    (row,) = [row for row in world.claims(ClaimKind.UNKNOWN) if row["reason"] == "NO_LISTENER"]
    pause_s = (row["next_check_timestamp"] - row["op_timestamp"]).total_seconds()
    assert row["check_times"] == 0
    assert pause_s == world.store.config.transaction_check_interval_s
    assert transaction.state is TransactionState.PENDING


def test_block_that_an_exception_leaves_is_asked_at_once(world: CheckWorld) -> None:
    listener, own = world.listener(ROLLBACK), producer(world)
    held: list[Transaction] = []
    with pytest.raises(ZeroDivisionError), own.begin_transaction() as transaction:
        held.append(transaction)
        transaction.send(Message("paid", b"1"))
        transaction.prepare()
        world.clock.advance(3.0)
        renewing(own).run_once()
        raise ZeroDivisionError
    world.clock.advance(SHORT_S)
    renewing(own).run_once()

    assert check(world, listener).checks.rolled_back == 1
    assert files(world) == []


def test_transaction_that_nobody_holds_is_asked(world: CheckWorld) -> None:
    listener, own = world.listener(ROLLBACK), producer(world)
    prepared(own)
    world.clock.advance(SHORT_S)
    renewing(own).run_once()

    assert check(world, listener).checks.rolled_back == 1


def test_of_two_producers_of_a_group_the_dead_one_is_asked(world: CheckWorld) -> None:
    listener = world.listener(ROLLBACK)
    living, dead = producer(world), producer(world)
    works, lost = prepared(living), prepared(dead)
    renewing(dead).run_once()
    work_for(world, living, listener, 40)

    check(world, listener)

    assert listener.asked() == [lost.id]
    assert works.state is TransactionState.PENDING


def test_renewal_ends_after_its_longest_time(world: CheckWorld) -> None:
    listener = world.listener(ROLLBACK)
    world.store = world.store.with_settings(
        world.store.config.replace(transaction_renewal_max_s=HOUR_S)
    )
    own = producer(world)
    transaction = prepared(own)
    for _ in range(60):
        world.clock.advance(59.0)
        renewing(own).run_once()
        check(world, listener)
    assert listener.asked() == []
    for _ in range(3):
        world.clock.advance(59.0)
        renewing(own).run_once()
        check(world, listener)

    assert listener.asked() == [transaction.id]


def test_without_renewals_the_check_asks_after_the_timeout_as_rocketmq_does(
    world: CheckWorld,
) -> None:
    listener = world.listener(ROLLBACK)
    world.store = world.store.with_settings(
        world.store.config.replace(groups={GROUP: {"transaction_renewal_max_s": 0}})
    )
    own = producer(world)
    transaction = prepared(own)
    # A check comes in each five seconds, and the transaction is due after six.
    work_for(world, own, listener, 15)

    assert listener.asked() == [transaction.id]
    assert not Path(world.store.location, RENEWAL_FOLDER).exists()


def test_end_that_is_unknown_is_asked(world: CheckWorld) -> None:
    class Undecided(JournalListener):
        def execute_local_transaction(self, _: object, __: object) -> Any:
            world.clock.advance(3.0)
            renewing(own).run_once()
            assert len(files(world)) == 1
            return LocalTransactionState.UNKNOWN

    listener = Undecided(world.folder / "journal", lambda _: ROLLBACK)
    own = producer(world, listener=listener)
    sent = own.send_message_in_transaction(Message("paid", b"1"))
    world.clock.advance(SHORT_S)
    renewing(own).run_once()
    check(world, listener)

    assert listener.asked() == [sent.transaction_id]


def test_asynchronous_local_transaction_is_renewed_while_it_runs(world: CheckWorld) -> None:
    class Slow(JournalListener):
        def execute_local_transaction(self, _: object, __: object) -> Any:
            work_for(world, own, self, 20)
            return LocalTransactionState.COMMIT

    listener = Slow(world.folder / "journal", lambda _: ROLLBACK)
    with producer(world, listener=listener) as own:
        result = own.send_message_in_transaction_async(Message("paid", b"1")).result()

        assert result.local_transaction_state is LocalTransactionState.COMMIT
        assert listener.asked() == []
        assert renewing(own).run_once() == 0
    assert files(world) == []


async def prepared_in(own: AsyncTransactionProducer, world: CheckWorld, listener: Any) -> None:
    async with own.begin_transaction() as transaction:
        transaction.send(Message("paid", b"1"))
        await transaction.prepare()
        work_for(world, own.producer, listener, 20)
        await transaction.commit()


def test_transaction_of_asyncio_is_renewed(world: CheckWorld) -> None:
    import asyncio

    listener = world.listener(ROLLBACK)
    own = AsyncTransactionProducer(world.store, producer_group=GROUP, clock=world.clock)
    asyncio.run(prepared_in(own, world, listener))

    assert listener.asked() == []


def test_try_that_fails_leaves_another_try_of_its_key_alone(world: CheckWorld) -> None:
    listener, own = world.listener(ROLLBACK), producer(world)
    key: dict[str, Any] = {
        "idempotency_key": "job",
        "key_timestamp": timestamp(world.clock.now_ms()),
    }
    works = prepared(own, **key)
    with pytest.raises(ZeroDivisionError), own.begin_transaction(**key) as fails:
        fails.send(Message("paid", b"1"))
        fails.prepare()
        raise ZeroDivisionError
    work_for(world, own, listener, 40)

    assert works.id == fails.id
    assert listener.asked() == []


def test_block_that_is_left_while_it_prepares_is_asked(world: CheckWorld) -> None:
    listener, own = world.listener(ROLLBACK), producer(world)
    with pytest.raises(ZeroDivisionError), own.begin_transaction() as transaction:
        transaction.send(Message("paid", b"1"))
        durable = transaction.prepare_async()
        raise ZeroDivisionError
    durable.result()
    work_for(world, own, listener, 15)

    assert listener.asked() == [transaction.id]


def test_interrupted_local_transaction_is_asked_though_its_error_is_kept(world: CheckWorld) -> None:
    class Interrupted(JournalListener):
        def execute_local_transaction(self, _: object, __: object) -> Any:
            raise KeyboardInterrupt

    listener = Interrupted(world.folder / "journal", lambda _: ROLLBACK)
    own = producer(world, listener=listener)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        own.send_message_in_transaction(Message("paid", b"1"))
    work_for(world, own, listener, 15)

    assert len(listener.asked()) == 1
    assert interrupt.tb is not None


def test_batch_that_failed_is_asked_though_spark_keeps_its_error(world: CheckWorld) -> None:
    def fail(_: Any, __: Transaction) -> NoReturn:
        raise ZeroDivisionError

    def tell(_: Any, transaction: Transaction) -> None:
        transaction.send(Message("paid", b"1"))

    listener, own = world.listener(ROLLBACK), producer(world)
    batches: Any = BatchTransactions(own, query_name="booking", send=tell, change=fail)
    with pytest.raises(ZeroDivisionError) as failure:
        batches.run([], 0, timestamp(world.clock.now_ms()))
    work_for(world, own, listener, 15)

    assert len(listener.asked()) == 1
    assert failure.tb is not None


def test_preparation_that_takes_long_is_renewed_meanwhile(
    world: CheckWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(commits: ProducerCommits, send: PlannedSend) -> Steps[None]:
        yield from prepare(commits, send)
        work_for(world, own, listener, 15)

    prepare = ProducerCommits.prepare
    listener, own = world.listener(ROLLBACK), producer(world)
    monkeypatch.setattr(ProducerCommits, "prepare", slowly)
    transaction = prepared(own)
    monkeypatch.undo()
    transaction.commit()

    assert listener.asked() == []


def test_renewed_transaction_is_asked_before_it_expires(world: CheckWorld) -> None:
    settings = world.store.config.replace(file_reserved_time_h=1.0, producer_lease_s=600.0)
    world.store = world.store.with_settings(settings)
    listener, own = world.listener(ROLLBACK), producer(world)
    transaction = prepared(own)
    world.clock.advance(SHORT_S)
    begun_ms = world.clock.now_ms()
    while not listener.asked():
        world.clock.advance(100.0)
        renewing(own).run_once()
        check(world, listener)
    passed_s = (world.clock.now_ms() - begun_ms) / 1000
    latest_s = HOUR_S - settings.of_group(GROUP).checks_s

    assert listener.asked() == [transaction.id]
    assert latest_s - 600 <= passed_s <= latest_s + 100


# --- what is written -----------------------------------------------------------------------------


def test_quick_transactions_write_no_renewal_and_slow_ones_share_one_file(
    world: CheckWorld,
) -> None:
    own = producer(world)
    prepared(own).commit()
    assert renewing(own).run_once() == 0
    assert not Path(world.store.location, RENEWAL_FOLDER).exists()
    held = [prepared(own) for _ in range(20)]
    world.clock.advance(2.0)

    assert renewing(own).run_once() == 20
    assert len(files(world)) == 1
    for transaction in held:
        transaction.rollback()
    assert renewing(own).run_once() == 0
    assert files(world) == []


def test_file_is_written_again_in_each_third_of_a_lease_only(world: CheckWorld) -> None:
    own = producer(world)
    transaction = prepared(own)
    contents = set()
    for _ in range(30):
        world.clock.advance(1.0)
        renewing(own).run_once()
        contents.add(files(world)[0].read_bytes())

    assert len(contents) == 3
    assert transaction.state is TransactionState.PENDING


@pytest.mark.parametrize("lease_s", [0.3, 2.0, 30.0])
def test_thread_looks_in_each_third_of_a_lease(world: CheckWorld, lease_s: float) -> None:
    world.store = world.store.with_settings(world.store.config.replace(producer_lease_s=lease_s))

    assert renewing(producer(world))._interval_s <= lease_s / 3


def test_more_than_a_file_may_list_are_said_once(
    world: CheckWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("txmq.producer.renewing.TRANSACTIONS_MAX", 2)
    own = producer(world)
    held = [prepared(own) for _ in range(3)]
    for _ in range(3):
        world.clock.advance(2.0)
        assert renewing(own).run_once() == 2

    assert caplog.text.count("3 transactions are open; the 2 oldest are renewed") == 1
    assert held[2].id not in files(world)[0].read_text()


def test_renewal_that_is_refused_for_long_is_said_once_and_goes_on(
    world: CheckWorld, caplog: pytest.LogCaptureFixture
) -> None:
    own = producer(world)
    transaction = prepared(own)
    folder = Path(world.store.location, RENEWAL_FOLDER)
    folder.write_text("no folder")
    for _ in range(20):
        world.clock.advance(2.0)
        renewing(own)._turn()
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    folder.unlink()
    world.clock.advance(2.0)
    renewing(own)._turn()

    assert len(warnings) == 1
    assert transaction.id in files(world)[0].read_text()


def test_file_that_may_not_be_removed_is_said_and_closes_all_the_same(
    world: CheckWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: RenewalFile) -> NoReturn:
        raise AccessDeniedError(RENEWAL_FOLDER, "may not be deleted from")

    monkeypatch.setattr(RenewalFile, "remove", refuse)
    own = producer(world)
    transaction = prepared(own)
    world.clock.advance(2.0)
    renewing(own).run_once()
    transaction.commit()
    for _ in range(20):
        renewing(own)._turn()
    renewing(own)._end()
    own.close()

    (record,) = caplog.records
    assert (record.levelname, "may not be deleted from" in record.getMessage()) == ("WARNING", True)


def test_thread_that_could_not_start_is_started_by_the_next_transaction(
    world: CheckWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> NoReturn:
        raise RuntimeError("can't start new thread")

    with TransactionProducer(world.store, producer_group=GROUP) as own:
        with monkeypatch.context() as full:
            full.setattr(renewing(own)._thread, "start", refuse)
            prepared(own).rollback()
        assert not renewing(own).is_alive
        prepared(own).rollback()

        assert renewing(own).is_alive


def test_immunity_of_a_transaction_holds_without_renewals(world: CheckWorld) -> None:
    listener, own = world.listener(ROLLBACK), producer(world)
    transaction = prepared(own, check_immunity_time_s=120.0)
    world.clock.advance(100.0)
    assert check(world, listener).open_transactions == 1
    assert listener.asked() == []
    world.clock.advance(30.0)
    check(world, listener)

    assert listener.asked() == [transaction.id]


# --- by the storage's time, and files of others --------------------------------------------------


def renewal(transaction_id: str, **changes: Any) -> Renewal:
    values = {
        "producer_group": GROUP, "client_id": "c", "lease_s": LEASE_S, "renewed_ms": 0,
        "open_s": {transaction_id: 7.0},
    }  # fmt: skip
    return Renewal(**{**values, **changes})


def put(world: CheckWorld, content: bytes, *, age_s: float = 0.0) -> Path:
    folder = Path(world.store.location, RENEWAL_FOLDER)
    folder.mkdir(exist_ok=True)
    path = folder / f"{'0' * 8}-{'0' * 4}-{'0' * 4}-{'0' * 4}-{'0' * 12}.json"
    path.write_bytes(content)
    moment_s = wall_ms() / 1000 - age_s
    os.utime(path, (moment_s, moment_s))
    return path


def due(world: CheckWorld, **options: Any) -> str:
    """Prepare a transaction that the store received ten seconds ago, and that is due."""
    (key,) = world.prepare(immunity_s=1.0, **options)
    moment_s = wall_ms() / 1000 - 10
    for commit in Path(world.store.location, "half", "_delta_log").glob("*.json"):
        os.utime(commit, (moment_s, moment_s))
    return key


@pytest.mark.parametrize(("age_s", "is_asked"), [(0.0, False), (29.0, False), (31.0, True)])
def test_lease_counts_from_the_time_of_the_file(
    world: CheckWorld, age_s: float, *, is_asked: bool
) -> None:
    listener = world.listener(ROLLBACK)
    key = due(world)
    put(world, renewal(key, renewed_ms=2**50).to_bytes(), age_s=age_s)

    check(world, listener, SystemClock())

    assert bool(listener.asked()) is is_asked


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}", b"[]", b"null", b"\xff", b'{"open_s": 1}', b"[" * 100_000,
        b'{"producer_group":"g","client_id":"c","lease_s":NaN,"renewed_ms":0,"open_s":{}}',
        b'{"producer_group":"g","client_id":"c","lease_s":1e999,"renewed_ms":0,"open_s":{}}',
        b'{"producer_group":"g","client_id":"c","lease_s":1%s,"renewed_ms":0,"open_s":{}}' % ZEROS,
        b'{"producer_group":1,"client_id":"c","lease_s":1,"renewed_ms":0,"open_s":{}}',
        b'{"producer_group":"g","client_id":"c","lease_s":1,"renewed_ms":0,"open_s":{"x":1}}',
        b'{"producer_group":"g","client_id":"c","lease_s":1,"renewed_ms":0,"open_s":[]}',
        b" " * (BYTES_MAX + 1),
    ],
    ids=range(14),
)  # fmt: skip
def test_file_that_is_no_renewal_counts_for_nothing_and_is_named(
    world: CheckWorld, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    listener = world.listener(ROLLBACK)
    key = due(world)
    path = put(world, content)

    check(world, listener, SystemClock())

    assert listener.asked() == [key]
    assert path.name in caplog.text


@pytest.mark.parametrize("age_s", [-HOUR_S, -100 * 365 * 24 * HOUR_S])
def test_file_of_a_time_to_come_counts_for_nothing(world: CheckWorld, age_s: float) -> None:
    listener = world.listener(ROLLBACK)
    key = due(world)
    put(world, renewal(key).to_bytes(), age_s=age_s)

    check(world, listener, SystemClock())

    assert listener.asked() == [key]


def test_file_that_is_written_twice_within_a_tick_of_the_storage_is_read_twice(
    world: CheckWorld,
) -> None:
    # S3 counts the times of objects in whole seconds.
    first, second = due(world), due(world)
    reader = RenewalReader(world.store, StoreClock(world.store))
    path = put(world, renewal(first).to_bytes())
    moment_ns = path.stat().st_mtime_ns

    reader.read()
    path.rename(path.with_suffix(".before"))
    put(world, renewal(first, open_s={first: 7.0, second: 7.0}).to_bytes())
    os.utime(path, ns=(moment_ns, moment_ns))

    assert set(reader.until_ms()) == {first, second}


def test_long_lease_of_another_program_is_cut(world: CheckWorld) -> None:
    key = due(world)
    put(world, renewal(key, lease_s=1e12).to_bytes())

    until_ms = RenewalReader(world.store, StoreClock(world.store)).until_ms()

    assert until_ms[key] <= wall_ms() + 3_600_000 + 10_000


def reader(world: CheckWorld) -> RenewalReader:
    return RenewalReader(world.store, StoreClock(world.store))


def rewrite(world: CheckWorld, key: str, *, moment_s: float) -> None:
    """Let a producer write its file, at a time that the storage gives it."""
    client_id = f"{'0' * 8}-{'0' * 4}-{'0' * 4}-{'0' * 4}-{'0' * 12}"
    RenewalFile(world.store, client_id, timeout_s=10.0).put(renewal(key))
    (path,) = files(world)
    os.utime(path, (moment_s, moment_s))


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S, -45.0])
def test_renewal_counts_while_the_clock_of_the_storage_is_set(
    world: CheckWorld, jump_s: float
) -> None:
    (key,), own = world.prepare(), reader(world)
    rewrite(world, key, moment_s=wall_ms() / 1000)
    own.until_ms()
    rewrite(world, key, moment_s=wall_ms() / 1000 + jump_s)

    assert wall_ms() < own.until_ms()[key] <= wall_ms() + (LEASE_S + 10) * 1000


def test_renewal_of_a_set_clock_ends_a_lease_after_it_was_seen(world: CheckWorld) -> None:
    (key,), passed_ms = world.prepare(), [0]
    clock = StoreClock(world.store, count_ms=lambda: elapsed_ms() + passed_ms[0])
    own = RenewalReader(world.store, clock)
    rewrite(world, key, moment_s=wall_ms() / 1000)
    own.until_ms()
    rewrite(world, key, moment_s=wall_ms() / 1000 + HOUR_S)
    own.until_ms()
    passed_ms[0] = 25_000
    assert set(own.until_ms()) == {key}
    passed_ms[0] = 31_000

    assert own.until_ms() == {}


class Hanging(BaseHTTPRequestHandler):
    """An object store that never answers the first request."""

    requests: ClassVar[list[str]] = []

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append(self.path)
        if len(self.requests) == 1:
            # Until the client goes.
            self.rfile.read(1)
            return
        self.send_response_only(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_request_that_hangs_is_made_again_before_the_lease_ends() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hanging) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {
            "aws_endpoint": f"http://127.0.0.1:{server.server_port}", "aws_allow_http": "true",
            "aws_access_key_id": "x", "aws_secret_access_key": "x", "timeout": "1h",
        }  # fmt: skip
        store: Any = SimpleNamespace(location="s3://bucket/store", storage_options=options)
        RenewalFile(store, "c", timeout_s=1.0).put(renewal(new_transaction_id(wall_ms())))
        server.shutdown()

    assert Hanging.requests == ["/bucket/store/renewals/c.json"] * 2


def test_copy_in_a_folder_below_is_no_renewal(world: CheckWorld) -> None:
    key, listener = due(world), world.listener(ROLLBACK)
    path = put(world, renewal(key).to_bytes())
    copy = path.parent / "old" / path.name
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    os.utime(copy, (0, 0))
    (path.parent / "loop").symlink_to("..")

    check(world, listener, SystemClock())

    assert listener.asked() == []


def test_file_that_cannot_be_read_now_counts_as_it_was_read_last(
    world: CheckWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Objects, path: str) -> NoReturn:
        raise OSError(path)

    (key,), own = world.prepare(), reader(world)
    rewrite(world, key, moment_s=wall_ms() / 1000)
    own.until_ms()
    with monkeypatch.context() as broken:
        broken.setattr(Objects, "pieces", refuse)
        rewrite(world, key, moment_s=wall_ms() / 1000)
        assert set(own.until_ms()) == {key}
        # Who has read nothing before knows nothing, until the storage is back.
        late = reader(world)
        assert late.until_ms() == {}

    assert set(late.until_ms()) == {key}


def test_file_that_is_older_than_any_lease_is_not_read(
    world: CheckWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = world.prepare()
    rewrite(world, key, moment_s=wall_ms() / 1000 - HOUR_S - 1)
    monkeypatch.delattr(Objects, "pieces")

    assert reader(world).until_ms() == {}


def test_slow_reading_ends_no_lease(world: CheckWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that reads many files from a slow storage is late, and their producers are not."""
    pieces = Objects.pieces

    def slow(own: Objects, path: str) -> Iterator[bytes]:
        passed.append(40_000)
        return pieces(own, path)

    (key,), passed = world.prepare(), [0]
    monkeypatch.setattr(Objects, "pieces", slow)
    rewrite(world, key, moment_s=wall_ms() / 1000 - 5)
    clock = StoreClock(world.store, count_ms=lambda: elapsed_ms() + sum(passed))
    # Its first look at the storage.
    clock.now_ms()

    assert set(RenewalReader(world.store, clock).until_ms()) == {key}
    assert passed == [0, 40_000]


def test_ordinary_message_is_rolled_back_whoever_renews_it(world: CheckWorld) -> None:
    def ordinary(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
        place = HALF.columns.names.index("ordinary")
        return [(*row[:place], True, *row[place + 1 :]) for row in rows]

    listener = world.listener(ROLLBACK)
    key = due(world, change=ordinary)
    put(world, renewal(key).to_bytes())

    assert check(world, listener, SystemClock()).checks.never_acknowledged == 1
