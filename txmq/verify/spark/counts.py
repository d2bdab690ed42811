"""How much was read and where the transactions stand, as rows of (name, number)."""

from __future__ import annotations

NAMES = (
    "transactions", "pending", "committed", "rolled_back", "discarded", "incomplete", "expired",
    "messages", "doubled_half_rows", "claims", "claims_without_half", "claims_without_effect",
    "checks", "facts", "visible_messages", "dead_letters", "not_published_yet",
    "judged_by_settled_alone", "forgotten_facts", "forgotten_messages",
)  # fmt: skip

COUNTS = """
    WITH told AS (
        SELECT count_if(has_half AND kind <> 'UNKNOWN') AS changing,
            count_if(NOT has_half) AS without_half
        FROM {claims}
    ), own_facts AS (
        SELECT coalesce(sum(size(facts)), 0) AS number FROM {standing}
    )
    SELECT 'transactions' AS name, count(*) AS number FROM {standing}
    UNION ALL SELECT lower(state), count(*) FROM {standing} GROUP BY state
    UNION ALL SELECT 'messages', count_if(real_topic IS NOT NULL) FROM {messages}
    UNION ALL SELECT 'doubled_half_rows', coalesce(sum(copies - 1), 0) FROM {messages}
    UNION ALL SELECT 'claims', count(*) FROM {op_log} WHERE _change_type = 'insert'
    UNION ALL SELECT 'claims_without_half', without_half FROM told
    UNION ALL SELECT 'claims_without_effect', changing - number FROM told CROSS JOIN own_facts
    UNION ALL SELECT 'checks', count(*) FROM {questions}
    UNION ALL SELECT 'facts', count(*) FROM {settled}
    UNION ALL SELECT 'visible_messages', count_if(NOT is_dead) FROM {placed}
    UNION ALL SELECT 'dead_letters', count_if(is_dead) FROM {placed}
    UNION ALL SELECT 'forgotten_messages', count_if(forgotten) FROM {placed}
    UNION ALL SELECT 'not_published_yet', count_if(waiting) FROM {fates}
    UNION ALL SELECT 'judged_by_settled_alone', count(*) FROM {without_claims}
    UNION ALL SELECT 'forgotten_facts', count(*)
        FROM {settled} s LEFT ANTI JOIN {standing} t USING (transaction_id)
        WHERE s.transaction_id < {kept_from} AND s.transaction_id RLIKE {well_formed}
"""

# The columns of a topic row where a store has no topic yet.
NO_ROWS = """
    SELECT '' AS file, '' AS name, false AS is_dead, '' AS message_id, '' AS topic, 0 AS queue_id,
        0L AS queue_offset, current_timestamp() AS born_timestamp, '' AS producer_group,
        '' AS transaction_id, 0L AS sequence, 0 AS life, 0L AS op_version, '' AS content
    WHERE false
"""
