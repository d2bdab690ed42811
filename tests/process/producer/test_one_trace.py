"""One trace leads from a producer's process through a broker's to a consumer."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tests.kit.books import GROUP, SETTINGS
from tests.kit.check_world import COMMIT
from tests.kit.forked import Forked
from tests.kit.spans import Spans
from tests.process.producer.traced_seller import PAID, main
from txmq.consumer.pull import PullConsumer
from txmq.listeners.protocol import HalfMessage
from txmq.message.message import LocalTransactionState
from txmq.ops.broker import Broker
from txmq.store.config import Config
from txmq.store.store import Store


class Bank:
    """Finds that all of it was paid."""

    def execute_local_transaction(self, _: HalfMessage, __: object) -> LocalTransactionState:
        raise NotImplementedError

    def check_local_transaction(self, _: HalfMessage) -> LocalTransactionState:
        return COMMIT


def traces_of(told: str) -> dict[int, set[str]]:
    traces: dict[int, set[str]] = defaultdict(set)
    for line in told.splitlines():
        trace, _, name = line.partition(" ")
        traces[int(trace, 16)].add(name)
    return traces


def test_each_process_adds_its_spans_to_the_trace_of_the_producer(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", Config(**SETTINGS))
    told = tmp_path / "told"
    seller = Forked(main, store.location, str(told), faults="", log=tmp_path / "log")
    assert seller.wait(120) == 0, seller.complaint()
    spans = Spans()
    Broker(store, listeners={GROUP: Bank()}, hooks=[spans.hook]).run_once()
    with PullConsumer(store, consumer_group="billing", topics=PAID, hooks=[spans.hook]) as consumer:
        assert consumer.run_once(lambda _: None).consumed == 2

    sold, here = traces_of(told.read_text(encoding="utf-8")), spans.by_trace()
    committed = {f"{step} {PAID}" for step in ("send", "local_transaction", "commit")}
    later = {f"{step} {PAID}" for step in ("publish", "process")}
    assert sorted(map(sorted, sold.values())) == sorted([sorted(committed), [f"send {PAID}"]])
    assert here.keys() == sold.keys()
    for trace, names in sold.items():
        checked = set() if f"commit {PAID}" in names else {f"check {PAID}"}
        assert here[trace] == later | checked
