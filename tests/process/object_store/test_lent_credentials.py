"""A store on an S3 server that takes only what a Unity Catalog lends, for seconds.

The catalog and the guard before the storage are ours: `tests/kit/lending.py`. No Databricks is
asked.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit import s3
from tests.kit.check_world import wait_until
from tests.kit.lending import TOKEN_OF_BROKER, TOKENS, Lending, lending
from txmq.errors import AccessDeniedError, CredentialsExpiredError
from txmq.listeners.delta import DeltaListener
from txmq.message.message import Message
from txmq.ops.admin.status import Admin
from txmq.ops.backup.backup import back_up
from txmq.ops.backup.restore import restore
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

TOPIC, GROUP = "order-paid", "orders"
JOB = Path(__file__).parents[3] / "jobs" / "broker.py"
# Before the kill, and as many after it.
RENEWALS = 10
LIFE_S = 3.0
SECRETS = (*TOKENS, "lent-secret", "lent-session-token")


@pytest.fixture(scope="module")
def storage(server: s3.S3) -> s3.S3:
    if not isinstance(server, s3.S3):
        pytest.skip("the guard knows the requests of S3")
    return server


@pytest.fixture
def catalog(storage: s3.S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lending]:
    with lending(storage) as running:
        for name, value in running.identity.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def place() -> str:
    return f"s3://{s3.BUCKET}/{uuid.uuid4()}"


def bodies(store: Store) -> list[str]:
    table = store.tables.table_at(f"topics/{TOPIC}")
    rows = (
        table.rows.read(table.files.all(), ("body",)) if table.exists() else {"body": pa.array([])}
    )
    return sorted(body.decode() for body in rows["body"].to_pylist())


# --- a broker that runs on ------------------------------------------------------------------------


@contextmanager
def broker_process(store: str, catalog: Lending, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The job of the bundle; who lends is an argument, what else it needs in its environment."""
    options = ["--no-spark", "--credentials=unity-catalog", "--log-level=debug"]
    command = [sys.executable, str(JOB), store, *options]
    environment = os.environ | catalog.environment | {"DATABRICKS_TOKEN": TOKEN_OF_BROKER}
    del environment["TXMQ_CREDENTIALS"]
    with (
        log.open("ab") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def test_broker_runs_through_twenty_renewals_a_kill_and_a_restart(
    catalog: Lending, place: str, tmp_path: Path
) -> None:
    location, log = f"{place}/store", tmp_path / "log"
    catalog.lent(life_s=LIFE_S)
    store = Store.create(location, storage_options=catalog.options)
    sent: list[str] = []

    def brokers() -> int:
        """How many credentials of brokers the storage did something for."""
        return sum(1 for each in catalog.lent() if each.used and each.token_of == TOKEN_OF_BROKER)

    def send_through_renewals(process: subprocess.Popen[bytes]) -> None:
        """Send on while credentials end; each message is published under those of that time."""
        until = brokers() + 1 + RENEWALS
        while brokers() < until:
            sent.append(str(len(sent)))
            producer.send(Message(TOPIC, sent[-1].encode()))
            wait_until(lambda: bodies(store) == sorted(sent), "the message to be published")
            assert process.poll() is None, log.read_text("utf-8")[-2000:]

    with TransactionProducer(store, producer_group=GROUP) as producer:
        with broker_process(location, catalog, log) as process:
            send_through_renewals(process)
            process.send_signal(signal.SIGKILL)
            process.wait()
        # What is sent while no broker is there is published by the next one.
        sent.append("while it is dead")
        producer.send(Message(TOPIC, sent[-1].encode()))
        with broker_process(location, catalog, log) as process:
            send_through_renewals(process)
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0

    lent, text = catalog.lent(), log.read_text("utf-8")
    assert brokers() >= 2 * (1 + RENEWALS)
    assert {each.url for each in lent} == {location}
    assert verify(location, storage_options=store.storage_options).is_clean
    for secret in SECRETS:
        assert secret not in text


# --- what is opened once and used long after ------------------------------------------------------


def test_everything_that_is_open_goes_on_when_the_credentials_are_taken_away(
    catalog: Lending, place: str, tmp_path: Path
) -> None:
    orders = f"{place}/orders"
    store = Store.create(
        f"{place}/store",
        Config(transaction_timeout_s=0.001, transaction_renewal_max_s=0.0),
        storage_options=catalog.options,
    )
    # What was lent for the store is nothing for this table: it gets a loan of its own.
    listener = DeltaListener(orders, storage_options=store.storage_options)
    producer = TransactionProducer(store, producer_group=GROUP, listener=listener)
    producer.send(Message(TOPIC, b"0"))
    write_deltalake(orders, pa.table({"id": ["0"]}), storage_options=lent_for(orders, catalog))
    broker = Broker(store, listeners={GROUP: listener})
    broker.run_once()
    with TransactionProducer(store, producer_group=GROUP, listener=listener) as gone:
        late = gone.begin_transaction()
        late.send(Message(TOPIC, b"late"))
        late.prepare()

    catalog.lent(end_all=True)
    with producer.begin_transaction() as paid:
        paid.send(Message(TOPIC, b"1"))
        paid.prepare()
        catalog.lent(end_all=True)
        with paid.delta_rs(orders) as (table, properties):
            rows = pa.table({"id": ["1"]})
            write_deltalake(table, rows, mode="append", commit_properties=properties)
        catalog.lent(end_all=True)
        paid.commit()
    catalog.lent(end_all=True)
    broker.run_once()
    catalog.lent(end_all=True)
    broker.run_once()

    assert bodies(store) == ["0", "1"]
    catalog.lent(end_all=True)
    assert Admin(store).status().rolled_back == 1
    catalog.lent(end_all=True)
    assert verify(store.location, storage_options=store.storage_options).is_clean
    catalog.lent(end_all=True)
    back_up(store, tmp_path / "backup")
    catalog.lent(end_all=True)
    restore(tmp_path / "backup", f"{place}/again", target_options=catalog.options)
    again = Store.open(f"{place}/again", storage_options=catalog.options)
    assert bodies(again) == ["0", "1"]
    assert sum(each.refused for each in catalog.lent()) >= 6


def lent_for(location: str, catalog: Lending) -> dict[str, str]:
    """Options of now for a table of the user's own, as a job of the user's would ask for them."""
    return dict(Store(location, Config(), storage_options=catalog.options).storage_options)


# --- what is said where it cannot be --------------------------------------------------------------


def test_credentials_of_ones_own_that_have_expired_are_told_and_nothing_is_written(
    catalog: Lending, place: str
) -> None:
    store = Store.create(f"{place}/store", storage_options=catalog.options)
    own = dict(store.storage_options)
    catalog.lent(end_all=True)

    with pytest.raises(CredentialsExpiredError, match="the credentials have expired; renew them"):
        Store.open(store.location, storage_options=own)
    with (
        pytest.raises(CredentialsExpiredError, match="expired") as caught,
        TransactionProducer(
            Store(store.location, Config(), storage_options=own), producer_group=GROUP
        ) as producer,
    ):
        producer.send(Message(TOPIC, b"1"))

    assert "lent-" not in str(caught.value)
    assert verify(store.location, storage_options=store.storage_options).is_clean


def test_principal_without_the_grant_is_told_which(catalog: Lending, place: str) -> None:
    catalog.lent(refusals=[403])

    with pytest.raises(AccessDeniedError, match=r"answered 403 .* EXTERNAL USE LOCATION"):
        Store.create(f"{place}/store", storage_options=catalog.options)


def test_catalog_that_is_down_for_a_while_holds_up_nobody(catalog: Lending, place: str) -> None:
    catalog.lent(life_s=60.0, shown_life_s=2.0)
    store = Store.create(f"{place}/store", storage_options=catalog.options)
    catalog.lent(refusals=[503])

    with TransactionProducer(store, producer_group=GROUP) as producer:
        wait_until(lambda: send_is_under_others(producer, catalog), "the next credentials")

    assert verify(store.location, storage_options=store.storage_options, drained=False).is_clean


def send_is_under_others(producer: TransactionProducer, catalog: Lending) -> bool:
    """Send, and tell whether the first credentials are in use no more."""
    producer.send(Message(TOPIC, b"1"))
    return len([each for each in catalog.lent() if each.used]) > 1


def test_who_may_read_alone_reads_and_writes_nothing(catalog: Lending, place: str) -> None:
    store = Store.create(f"{place}/store", storage_options=catalog.options)
    reading = {**catalog.options, "txmq_credentials": "unity-catalog-read"}
    reader = Store.open(store.location, storage_options=reading)

    assert Admin(reader).status().committed == 0
    with (
        pytest.raises(AccessDeniedError, match="refuses the credentials or their rights"),
        TransactionProducer(reader, producer_group=GROUP) as producer,
    ):
        producer.send(Message(TOPIC, b"1"))
    assert {each.operation for each in catalog.lent()} == {"PATH_READ", "PATH_READ_WRITE"}


def test_no_secret_reaches_a_log(
    catalog: Lending, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store = Store.create(f"{place}/store", storage_options=catalog.options)
    catalog.lent(end_all=True)
    Broker(store).run_once()

    assert caplog.records
    for secret in SECRETS:
        assert secret not in f"{caplog.text} {store.storage_options!r} {vars(store)}"
