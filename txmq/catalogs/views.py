"""Views over the tables for who lives in SQL; each name in them comes from an allow-list.

The definitions are in the SQL that Spark and DuckDB share. What is not settled yet is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txmq.catalogs.names import LOG_PREFIX, LOGS, CatalogSchema
from txmq.lifecycle import FINAL_STATES, TransactionState
from txmq.message.names import (
    DEAD_LETTER_PREFIX,
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    check_readable_topic,
)

_NOT_VISIBLE = (SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)


def _words(values: list[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


_STATES = _words([state.value for state in TransactionState])
_STUCK = _words([state.value for state in TransactionState if state not in FINAL_STATES])

# The last fact of each transaction.
_FACTS = """
  SELECT transaction_id, producer_group, state, sequences, source, reason, settled_timestamp,
         op_version, op_timestamp
  FROM (
    SELECT *, row_number() OVER (
      PARTITION BY transaction_id ORDER BY op_version DESC, ordinal DESC) AS place
    FROM {settled} AS settled
    WHERE state IN ({states})
  ) AS all_facts
  WHERE place = 1
"""
_TRANSACTIONS = """
SELECT head.transaction_id, head.producer_group, head.message_count,
       head.born_timestamp AS prepared_timestamp,
       coalesce(fact.state, 'PENDING') AS state, fact.source AS ended_by, fact.reason,
       fact.settled_timestamp, head.client_id
FROM {half} AS head
LEFT JOIN ({facts}) AS fact ON fact.transaction_id = head.transaction_id
WHERE head.sequence = 0 AND NOT coalesce(head.ordinary, false)
"""
# The last check of a transaction that was not resumed since.
_CHECKS = """
  SELECT transaction_id, check_times, next_check_timestamp, reason
  FROM (
    SELECT *, row_number() OVER (
      PARTITION BY transaction_id ORDER BY op_timestamp DESC, ordinal DESC) AS place
    FROM {op} AS op
    WHERE kind IN ('UNKNOWN', 'RESUME')
  ) AS all_checks
  WHERE place = 1 AND kind = 'UNKNOWN'
"""
_STUCK_TRANSACTIONS = """
SELECT coalesce(begun.transaction_id, fact.transaction_id) AS transaction_id,
       coalesce(begun.producer_group, fact.producer_group) AS producer_group,
       coalesce(fact.state, 'PENDING') AS state,
       begun.prepared_timestamp, coalesce(begun.messages, 0) AS messages,
       checked.check_times, checked.next_check_timestamp,
       CASE WHEN coalesce(fact.state, 'PENDING') = 'PENDING' THEN checked.reason
            ELSE fact.reason END AS reason
FROM (
  SELECT transaction_id, min(producer_group) AS producer_group,
         min(born_timestamp) AS prepared_timestamp, count(real_topic) AS messages
  FROM {half} AS half
  GROUP BY transaction_id
) AS begun
FULL JOIN ({facts}) AS fact ON fact.transaction_id = begun.transaction_id
LEFT JOIN ({checks}) AS checked ON checked.transaction_id = begun.transaction_id
WHERE coalesce(fact.state, 'PENDING') IN ({stuck})
  AND (begun.transaction_id IS NOT NULL OR fact.state <> 'PENDING')
"""
_IS_UNPUBLISHED = """fact.state = 'COMMITTED' AND half.delay_s IS NULL
      AND half.deliver_timestamp IS NULL AND fact.op_version > coalesce(shown.op_version, -1)
      AND (fact.sequences IS NULL OR array_contains(fact.sequences, half.sequence))"""
_TOPIC_LAG = """
SELECT coalesce(shown.topic, waiting.topic) AS topic,
       coalesce(shown.messages, 0) AS visible_messages,
       coalesce(waiting.half_messages, 0) AS half_messages,
       coalesce(waiting.unpublished_messages, 0) AS unpublished_messages,
       waiting.unpublished_since
FROM ({shown}) AS shown
FULL JOIN (
  SELECT half.real_topic AS topic,
    count(CASE WHEN coalesce(fact.state, 'PENDING') = 'PENDING' THEN 1 END) AS half_messages,
    count(CASE WHEN {unpublished} THEN 1 END) AS unpublished_messages,
    min(CASE WHEN {unpublished} THEN fact.op_timestamp END) AS unpublished_since
  FROM {half} AS half
  LEFT JOIN ({facts}) AS fact ON fact.transaction_id = half.transaction_id
  LEFT JOIN ({shown}) AS shown ON shown.topic = half.real_topic
  WHERE half.real_topic IS NOT NULL
    AND (half.real_topic NOT IN ({deleted}) OR coalesce(fact.state, 'PENDING') = 'PENDING')
  GROUP BY half.real_topic
) AS waiting ON waiting.topic = shown.topic
"""
_SHOWN = (
    "SELECT '{name}' AS topic, count(*) AS messages, max(op_version) AS op_version FROM {table}"
)
_NO_TOPIC = (
    "SELECT '' AS topic, CAST(0 AS BIGINT) AS messages, CAST(0 AS BIGINT) AS op_version WHERE false"
)
_LETTERS = """SELECT '{name}' AS dead_letter_topic, message_id, topic, queue_id, queue_offset,
       transaction_id, producer_group, tags, keys, born_timestamp,
       store_timestamp AS dead_since
FROM {table}"""
_NO_LETTERS = """(
  SELECT message_id, real_topic AS topic, real_queue_id AS queue_id, sequence AS queue_offset,
         transaction_id, producer_group, tags, keys, born_timestamp,
         born_timestamp AS store_timestamp
  FROM {half} AS half WHERE false
) AS no_letters"""
_VIEWS: Mapping[str, str] = {
    "txmq_transactions": _TRANSACTIONS,
    "txmq_stuck": _STUCK_TRANSACTIONS,
    "txmq_topic_lag": _TOPIC_LAG,
    "txmq_dead_letters": "{letters}",
}


@dataclass(frozen=True, slots=True)
class ViewSources:
    """What stands behind FROM for each table.

    Attributes:
        logs: by the names in LOGS.
        topics: by the stored names of the topics that have a table.
        no_letters: what stands there where nobody has dead letters.
        deleted: stored names of deleted topics without a row: of what was committed to them
            nothing waits.
    """

    logs: Mapping[str, str]
    topics: Mapping[str, str]
    no_letters: str
    deleted: frozenset[str] = frozenset()


def view_queries(sources: ViewSources) -> dict[str, str]:
    """The query of each view, by its name. Raises: InvalidNameError for a strange topic."""
    topics = {check_readable_topic(name): table for name, table in sources.topics.items()}
    letters = {name: table for name, table in topics.items() if _has_dead_letters(name)}
    shown = {name: table for name, table in topics.items() if name not in _NOT_VISIBLE}
    logs = {**sources.logs, "states": _STATES, "stuck": _STUCK}
    given = {
        **logs,
        "facts": _FACTS.format(**logs),
        "checks": _CHECKS.format(**logs),
        "deleted": _words(sorted(map(check_readable_topic, sources.deleted)) or [""]),
        "unpublished": _IS_UNPUBLISHED,
        "shown": _union(_SHOWN, shown) or _NO_TOPIC,
        "letters": _union(_LETTERS, letters or {TRANS_CHECK_MAX_TIME_TOPIC: sources.no_letters}),
    }
    return {name: query.format(**given).strip() for name, query in _VIEWS.items()}


def view_statements(
    schema: CatalogSchema,
    topics: Mapping[str, str] | None = None,
    deleted: frozenset[str] = frozenset(),
) -> dict[str, str]:
    """`CREATE OR REPLACE VIEW` for each view of a catalog, by its name.

    Args:
        schema: has the logs.
        topics: the names in the schema of the topics that have one, by their stored names.
        deleted: as in ViewSources.
    """
    logs = {name: schema.table(LOG_PREFIX + name) for name in LOGS}
    tables = {topic: schema.table(name) for topic, name in (topics or {}).items()}
    queries = view_queries(ViewSources(logs, tables, no_letters_of(logs["half"]), deleted))
    return {
        name: f"CREATE OR REPLACE VIEW {schema.table(name)} AS {query}"
        for name, query in queries.items()
    }


def no_letters_of(half: str) -> str:
    """The columns of a topic without a row, by the table of half."""
    return _NO_LETTERS.format(half=half)


def _has_dead_letters(topic: str) -> bool:
    return topic == TRANS_CHECK_MAX_TIME_TOPIC or topic.startswith(DEAD_LETTER_PREFIX)


def _union(query: str, tables: Mapping[str, str]) -> str:
    parts = (query.format(name=name, table=table) for name, table in sorted(tables.items()))
    return "\nUNION ALL\n".join(parts)
