"""What figures should be, by SQL over the tables: it shares no code with who shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import duckdb
from deltalake import DeltaTable

from txmq.message.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from txmq.store.store import Store

_ENDED = "select transaction_id from settled where state in ('COMMITTED', 'ROLLED_BACK')"
_OPEN = f"from half where transaction_id not in ({_ENDED})"
QUESTIONS = {
    "txmq_open_transactions": f"select count(distinct transaction_id) {_OPEN}",
    "txmq_half_messages": f"select count(*) {_OPEN} and real_topic = 'order-paid'",
    "txmq_commits_total": "select count(*) from settled where state = 'COMMITTED'",
    "txmq_rollbacks_total": "select count(*) from settled where state = 'ROLLED_BACK'",
    "txmq_topic_messages": "select count(*) from paid",
    "txmq_scheduled_messages": "select count(*) from schedule where message_id not in"
    " (select transaction_id || ':' || unnest(sequences) from settled"
    " where state in ('DELIVERED', 'RECALLED'))",
}
# These have a label; the questions are about one topic.
OF_TOPIC = frozenset({"txmq_half_messages", "txmq_topic_messages"})
_TABLES = {
    "half": "half", "op": "op", "settled": "settled", "paid": "topics/order-paid",
    "schedule": f"topics/{SCHEDULE_TOPIC}",
}  # fmt: skip


def counted(store: Store) -> Mapping[str, float]:
    """The answer to each question whose tables are there."""
    with duckdb.connect() as connection:
        for name, path in _TABLES.items():
            location = f"{store.location}/{path}"
            if DeltaTable.is_deltatable(location):
                connection.register(name, DeltaTable(location).to_pyarrow_table())
        return {
            figure: float(connection.execute(question).fetchall()[0][0])
            for figure, question in QUESTIONS.items()
            if "schedule" not in question or DeltaTable.is_deltatable(_schedule(store))
        }


def _schedule(store: Store) -> str:
    return f"{store.location}/topics/{SCHEDULE_TOPIC}"
