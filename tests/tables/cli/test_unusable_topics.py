"""One topic with a feature that txmq does not know hides nothing of the others."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.kit.reading import bodies
from tests.kit.sending import send_each
from txmq.consumer.pull import PullConsumer
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.message.names import SCHEDULE_TOPIC
from txmq.ops.admin.topics import Topics
from txmq.ops.cli.app import app
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

FEATURES = ("deletionVectors", "columnMapping", "rowTracking", "v2Checkpoint")
OF_READERS = FEATURES[:2] + FEATURES[3:]


@pytest.fixture(params=FEATURES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Two topics, the second of which gets a feature by another program."""
    made = Store.create(tmp_path / "store")
    with TransactionProducer(made, producer_group="shop") as producer:
        producer.send(Message("other", b"1", keys="order-1"))
        producer.send(Message("t", b"2", keys="order-1"))
    Publisher(made).run_once()
    with PullConsumer(made, consumer_group="billing", topics=["other"]) as consumer:
        assert consumer.poll(1, timeout_s=30.0)
        consumer.commit()
    with PullConsumer(made, consumer_group="stuck", topics=["t"]) as consumer:
        assert consumer.poll(1, timeout_s=30.0)
        consumer.commit()
    demand(made, "t", request.param)
    return made


def demand(store: Store, topic: str, feature: str) -> None:
    """As ALTER TABLE does it."""
    log = Path(store.topic_location(topic), "_delta_log")
    readers = [feature] if feature in OF_READERS else []
    protocol = {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": readers, "writerFeatures": [feature],
    }  # fmt: skip
    newest = max(int(path.stem) for path in log.glob("*.json"))
    (log / f"{newest + 1:020d}.json").write_text(json.dumps({"protocol": protocol}))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["status"], "other"),
        (["topics", "list"], "other"),
        (["message", "--key", "order-1"], "visible"),
        (["lag"], "billing"),
    ],
)
def test_command_shows_what_is_healthy_and_names_what_is_not(
    store: Store, words: list[str], shown: str
) -> None:
    name, *rest = words
    place = [*rest, store.location] if rest == ["list"] else [store.location, *rest]

    result = CliRunner().invoke(app, [name, *place])

    assert result.exit_code == 1, result.output
    assert shown in result.stdout
    (line,) = [line for line in result.stderr.splitlines() if line.strip()]
    assert "uses table features" in line


def test_maintenance_goes_on_and_names_it_in_a_line_for_each_task(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("other", "t"):
        Topics(store).alter(name, reserved_time_h=1.0)
    send_each(store, b"3", topic="other")
    Publisher(store).run_once()

    with caplog.at_level(logging.ERROR, logger="txmq.maintenance.service"):
        done = Maintenance(store).run_once()

    assert set(done.failed) == {"topics/t"}
    of_round = [one for one in caplog.records if one.name.startswith("txmq.maintenance")]
    assert {one.exc_info for one in of_round} == {None}
    assert len(of_round) == 2
    assert sorted(bodies(store, "other")) == [b"1", b"3"]


def test_status_counts_without_a_schedule_that_cannot_be_used(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    send_each(store, b"1")
    with TransactionProducer(store, producer_group="shop") as producer:
        producer.send(Message("other", b"2", delay_s=60))
    Publisher(store).run_once()
    demand(store, SCHEDULE_TOPIC, FEATURES[0])

    result = CliRunner().invoke(app, ["status", store.location, "--json"])

    assert result.exit_code == 1
    assert list(json.loads(result.stdout)["unusable"]) == [SCHEDULE_TOPIC]
