"""A process that sells under a trace, tells of its spans, and loses the end of one transaction."""

from __future__ import annotations

from pathlib import Path

from tests.kit.books import GROUP, TOPICS
from tests.kit.spans import Spans, trace_of
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

PAID = TOPICS[0]


def main(location: str, told: str) -> None:
    """`told` gets a line for each span: the id of its trace, and its name."""
    spans = Spans()
    with TransactionProducer(
        Store.open(location), producer_group=GROUP, hooks=[spans.hook]
    ) as producer:
        for body, has_end in ((b"committed", True), (b"lost", False)):
            transaction = producer.begin_transaction()
            transaction.send(Message(PAID, body))
            transaction.prepare()
            if has_end:
                transaction.commit()
    lines = [f"{trace_of(span):032x} {span.name}\n" for span in spans.all()]
    Path(told).write_text("".join(lines), encoding="utf-8")
