"""Parts of docs/runbook.md, done by their own commands as a new operator would."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.kit.stores import fresh_store
from txmq.consumer.pull import PullConsumer
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.broker import Broker
from txmq.ops.cli.app import app
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store
from txmq.testing import ManualClock

PAGE = (Path(__file__).parents[3] / "docs" / "runbook.md").read_text("utf-8")


class Operator:
    """Runs commands of one part of the page; names of the page are replaced by those at hand."""

    def __init__(self, store: Store, alert: str) -> None:
        """`alert` is the name of the part."""
        part = PAGE.partition(f"\n## {alert}\n")[2].partition("\n## ")[0]
        self.commands = re.findall(r"`txmq ([^`]+)`", " ".join(part.split()))
        self.names = {"LOCATION": store.location, "…": "'looked into the orders'"}

    def follow(self, words: str, **names: str) -> Result:
        """Run the command of the part that begins with these words."""
        command = next(one for one in self.commands if one.startswith(words))
        for name, value in {**self.names, **names}.items():
            command = command.replace(name, value)
        return CliRunner().invoke(app, shlex.split(command), env={"TXMQ_LOCATION": None})

    def told(self, words: str, **names: str) -> Any:
        """As `follow`, as JSON for a test to read."""
        command, self.commands = self.commands, [f"{one} --json" for one in self.commands]
        result = self.follow(words, **names)
        self.commands = command
        return json.loads(result.stdout)


class SaysCommit:
    """A listener that was mended."""

    def execute_local_transaction(self, message: object, argument: object) -> object:  # noqa: ARG002
        raise AssertionError

    def check_local_transaction(self, message: object) -> LocalTransactionState:  # noqa: ARG002
        return LocalTransactionState.COMMIT


def send(store: Store, *bodies: bytes, topic: str = "stock") -> None:
    with TransactionProducer(store, producer_group="shop") as producer:
        for body in bodies:
            producer.send(Message(topic, body))
    Broker(store).run_once()


def visible(store: Store, topic: str) -> int:
    with PullConsumer(store, consumer_group=f"count-{topic}", topics=topic) as consumer:
        return len(consumer.poll(100, timeout_s=0))


def stuck_transactions(store: Store, folder: Path) -> None:
    for group in ("shop", "gone"):
        with TransactionProducer(store, producer_group=group, clock=ManualClock()) as producer:
            transaction = producer.begin_transaction()
            transaction.send(Message("orders", group.encode()))
            transaction.prepare()
    # The deadline counts from the commit file, so its time is set back.
    for commit in Path(store.location, "half", "_delta_log").iterdir():
        os.utime(commit, (0, 0))
    operator, file = Operator(store, "TxmqOpenTooLong"), folder / "broker.yaml"
    file.write_text("listeners: {}\n")
    assert operator.follow("recheck", FILE=str(file)).exit_code == 1
    open_ones = {one["producer_group"]: one for one in operator.told("open")["transactions"]}
    assert {one["reason"] for one in open_ones.values()} == {"NO_LISTENER"}
    assert "NO_LISTENER" in operator.follow("open").stdout

    file.write_text(f"listeners: {{shop: '{__name__}:SaysCommit'}}\n")
    rechecked = operator.follow("recheck", FILE=str(file))
    assert "groups without a listener  gone" in re.sub(" {3,}", "  ", rechecked.stdout)
    lost = open_ones["gone"]["transaction_id"]
    assert "PENDING" in operator.follow("show", ID=lost).stdout
    assert operator.follow("resolve", ID=lost).exit_code == 0

    Broker(store).run_once()
    assert operator.told("open")["transactions"] == []
    assert visible(store, "orders") == 1


def parked_topics(store: Store, _: Path) -> None:
    operator = Operator(store, "TxmqTopicParked")
    send(store, b"1", b"2")
    table = Path(store.location, "topics", "stock")
    shutil.rmtree(table)
    blocked = table.with_name("blocked")
    blocked.write_text("no folder")
    send(store, b"3")
    send(store, b"4", topic="blocked")
    for topic in ("stock", "blocked"):
        assert f"topic {topic} is parked from op version" in operator.follow("status").stdout

    blocked.unlink()
    Broker(store).run_once()
    assert "topic blocked is parked" not in operator.follow("status").stdout
    dry = operator.follow("rebuild-topic LOCATION TOPIC", TOPIC="stock")
    assert "--apply makes it" in dry.stderr
    assert not table.exists()
    written = operator.told("rebuild-topic LOCATION TOPIC --apply", TOPIC="stock")
    assert written["is_written"]

    Broker(store).run_once()
    assert "is parked" not in operator.follow("status").stdout
    assert (visible(store, "stock"), visible(store, "blocked")) == (3, 1)


def lagging_group(store: Store, _: Path) -> None:
    operator = Operator(store, "TxmqNobodyConsumes")
    send(store, *[b"%d" % number for number in range(6)])
    with PullConsumer(store, consumer_group="billing", topics="stock") as consumer:
        consumer.poll(1, timeout_s=0)
        consumer.commit()
    assert "none lives" in operator.follow("groups").stdout
    assert "nobody" in operator.follow("lag", GROUP="billing").stdout
    assert operator.told("lag", GROUP="billing")["lag"] == 5

    with PullConsumer(store, consumer_group="billing", topics="stock") as consumer:
        consumer.run_once(fail_on_the_last)
        assert "none lives" not in operator.follow("groups").stdout
    Broker(store).run_once()
    queues = operator.told("lag", GROUP="billing")["queues"]
    assert {one["topic"] for one in queues if one["lag"]} <= {"RETRY_billing"}
    assert "0 dead letters" in operator.follow("dead-letters", GROUP="billing").stdout


def group_that_falls_behind(store: Store, _: Path) -> None:
    operator = Operator(store, "TxmqGroupFallsBehind")
    send(store, b"1", b"2")
    with PullConsumer(store, consumer_group="billing", topics="stock", member_id="slow") as slow:
        slow.poll(1, timeout_s=0)
        first, second = (
            [(one["owner"], one["next_offset"]) for one in found["queues"] if one["lag"]]
            for found in (operator.told("lag", GROUP="billing") for _ in range(2))
        )
        assert first == second
        assert {owner for owner, _ in first} == {"slow"}
    # It was ended, and another one takes its queues.
    with PullConsumer(store, consumer_group="billing", topics="stock") as other:
        other.run_once(lambda _: None)
    assert operator.told("lag", GROUP="billing")["lag"] == 0


def group_that_cannot_be_read(store: Store, _: Path) -> None:
    operator = Operator(store, "What the doctor finds")
    send(store, b"1", b"2")
    with PullConsumer(store, consumer_group="billing", topics="stock") as consumer:
        consumer.poll(1, timeout_s=0)
        consumer.commit()
    newest = max(Path(store.location, "state", "group_billing", "_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    found = operator.follow("doctor")
    assert found.exit_code == 1
    assert "txmq groups delete LOCATION billing" in " ".join(found.stdout.split())

    dry = operator.follow("groups delete LOCATION GROUP", GROUP="billing")
    assert "cannot be read" in dry.stdout
    assert newest.read_bytes() == b""
    command = "groups delete LOCATION GROUP --apply"
    assert operator.follow(command, GROUP="billing").exit_code == 0
    assert operator.follow("doctor").exit_code == 0
    with PullConsumer(store, consumer_group="billing", topics="stock") as consumer:
        assert len(consumer.poll(9, timeout_s=0)) == 2


def fail_on_the_last(message: Any) -> None:
    if message.body == b"5":
        raise ValueError


STORIES = (
    stuck_transactions, parked_topics, lagging_group, group_that_falls_behind,
    group_that_cannot_be_read,
)  # fmt: skip


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_runbook_is_followed(tmp_path: Path, story: Callable[[Store, Path], None]) -> None:
    story(fresh_store(tmp_path / "store"), tmp_path)
