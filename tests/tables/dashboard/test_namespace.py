"""Each command of each page is run as it is copied, on a store whose names have a namespace."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.kit.consumer_world import drained
from tests.kit.dashboard_world import DashboardWorld
from tests.kit.handed_out import received
from txmq.consumer.send_back import SendBack
from txmq.message.message import Message
from txmq.message.names import stored_group, stored_topic
from txmq.ops.cli.app import app as command_line
from txmq.producer.producer import TransactionProducer

TOPIC, GROUP = stored_topic("ten%paid"), stored_group("ten%billing")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DashboardWorld]:
    made = DashboardWorld(tmp_path)
    made.producer.close()
    made.producer = TransactionProducer(
        made.store, producer_group="shop", namespace="ten", clock=made.clock
    )
    yield made
    made.close()


def addresses(world: DashboardWorld) -> list[str]:
    """Return addresses of pages about messages that are visible, delayed, dead and open."""
    sent = [Message("paid", b"1", keys="k"), Message("paid", b"2", delay_s=3_600)]
    now_id, later_id = (world.producer.send(one).message_ids[0] for one in sent)
    world.publisher.run_once()
    (row,) = world.rows(TOPIC)
    SendBack(world.store, GROUP, world.clock).send_back(received(row), reason="no", delay_level=-1)
    world.publisher.run_once()
    consumer = world.consumer("paid", group="billing", namespace="ten")
    drained(consumer)
    consumer.commit()
    consumer.close()
    opened = world.prepared("paid")
    world.clock.advance(2 * 3_600)
    world.count()
    return [
        "/", "/transactions", f"/transactions/{opened.id}", "/topics", f"/topics/{TOPIC}",
        "/groups", f"/groups/{GROUP}", "/dead-letters", f"/dead-letters/{GROUP}", "/delayed",
        f"/messages/{now_id}", f"/messages/{later_id}", "/search?q=k&topic=ten%25paid",
    ]  # fmt: skip


def test_each_command_runs_as_it_is_copied(world: DashboardWorld) -> None:
    pages = {address: world.page(address) for address in addresses(world)}
    assert {address: page.words for address, page in pages.items() if page.status != 200} == {}
    texts = {
        unescape(text)
        for page in pages.values()
        for text in re.findall(r'class="line"><code>(.*?)</code>', page.text)
    }
    lines = {tuple(shlex.split(text.removesuffix(" --follow"))[1:]) for text in texts}
    # It runs until it is stopped.
    lines = {line for line in lines if line[0] != "serve"}
    results = {line: CliRunner().invoke(command_line, line) for line in lines}

    assert {line: result.output for line, result in results.items()
            if result.exit_code not in {0, 1}} == {}  # fmt: skip
    assert {
        "recall",
        "recheck",
        "resolve",
        "lag",
        "offsets",
        "dead-letters",
        "message",
        "consume",
    } <= {line[0] for line in results}
    recalled = next(result for line, result in results.items() if line[0] == "recall")
    assert "would be recalled" in recalled.output
    assert "acts at once" in pages["/"].words
