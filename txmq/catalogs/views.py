"""Views over the logs for who lives in SQL; every name in them comes from an allow-list."""

from __future__ import annotations

from collections.abc import Mapping

from txmq.catalogs.names import LOG_PREFIX, LOGS, CatalogSchema
from txmq.lifecycle import TransactionState

# The last fact of each transaction beside its head; claims that were not settled yet are not seen.
_TRANSACTIONS = """
SELECT head.transaction_id, head.producer_group, head.message_count,
       head.born_timestamp AS prepared_timestamp,
       coalesce(fact.state, 'PENDING') AS state, fact.source AS ended_by, fact.reason,
       fact.settled_timestamp, head.client_id
FROM {half} AS head
LEFT JOIN (
  SELECT transaction_id, max_by(struct(state, source, reason, settled_timestamp),
                                struct(op_version, ordinal)) AS last
  FROM {settled}
  WHERE state IN ({states})
  GROUP BY transaction_id
) AS facts ON facts.transaction_id = head.transaction_id
LATERAL VIEW OUTER inline(array(facts.last)) fact AS state, source, reason, settled_timestamp
WHERE head.sequence = 0 AND NOT coalesce(head.ordinary, false)
"""
_STATES = ", ".join(f"'{state.value}'" for state in TransactionState)
_VIEWS: Mapping[str, str] = {"txmq_transactions": _TRANSACTIONS}


def view_statements(schema: CatalogSchema) -> dict[str, str]:
    """`CREATE OR REPLACE VIEW` for each view, by its name."""
    given = {"states": _STATES, **{name: schema.table(LOG_PREFIX + name) for name in LOGS}}
    return {
        name: f"CREATE OR REPLACE VIEW {schema.table(name)} AS {query.format(**given).strip()}"
        for name, query in _VIEWS.items()
    }
