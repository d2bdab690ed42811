"""How much was read and where the transactions stand, as rows of (name, number)."""

from __future__ import annotations

NAMES = (
    "transactions", "pending", "committed", "rolled_back", "discarded", "incomplete", "expired",
    "messages", "doubled_half_rows", "claims", "claims_without_half", "claims_without_effect",
    "checks", "facts", "visible_messages", "dead_letters", "scheduled", "delivered", "recalled",
    "overdue", "not_published_yet", "known_by_schedule_alone", "judged_by_settled_alone",
    "forgotten_facts", "forgotten_messages",
)  # fmt: skip

COUNTS = """
    WITH told AS (
        SELECT count_if(has_half AND kind <> 'UNKNOWN'
                AND (kind IN ('DELIVER', 'RECALL') OR NOT by_schedule)) AS changing,
            count_if(NOT has_half) AS without_half
        FROM {claims}
    ), own_facts AS (
        SELECT (SELECT coalesce(sum(size(facts)), 0) FROM {standing}) + (
            SELECT count(DISTINCT struct(transaction_id, op_version, ordinal, rest))
            FROM {deliveries} WHERE is_claim) AS number
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
    UNION ALL SELECT 'visible_messages', count_if(NOT is_hidden) FROM {placed}
    UNION ALL SELECT 'dead_letters', count_if(is_dead) FROM {placed}
    UNION ALL SELECT 'forgotten_messages', count_if(forgotten) FROM {placed}
    UNION ALL SELECT lower(delivery), count(*) FROM {fates} WHERE delivery IS NOT NULL
        GROUP BY delivery
    UNION ALL SELECT 'overdue', count_if(delivery = 'SCHEDULED' AND due_us <= now_us) FROM {fates}
        CROSS JOIN (SELECT max(asked_us) AS now_us FROM {deliveries} WHERE state = 'DELIVERED')
    UNION ALL SELECT 'not_published_yet', count_if(waiting OR not_scheduled_yet) FROM {fates}
    UNION ALL SELECT 'known_by_schedule_alone', count_if(by_schedule) FROM {messages}
    UNION ALL SELECT 'judged_by_settled_alone', count(*) FROM {without_claims}
    UNION ALL SELECT 'forgotten_facts', count(*)
        FROM {settled} s LEFT JOIN {standing} t ON t.transaction_id = s.transaction_id
        WHERE coalesce(t.by_schedule, true) AND s.transaction_id < {kept_from}
            AND s.transaction_id RLIKE {well_formed}
"""

# The columns of a topic row where a store has no topic yet.
NO_ROWS = """
    SELECT '' AS file, '' AS name, false AS is_dead, false AS is_scheduled, '' AS message_id,
        '' AS topic, 0 AS queue_id, 0L AS queue_offset, current_timestamp() AS born_timestamp,
        '' AS producer_group, '' AS transaction_id, 0L AS sequence, 0 AS life, 0L AS op_version,
        '' AS sharding_key, 0L AS shown_us, 0L AS told_us, current_date() AS due_day, '' AS content
    WHERE false
"""

# How long after their time delayed messages were shown; their time is not before the COMMIT.
LATENESS = """
    WITH late AS (
        SELECT shown_us - greatest(due_us, committed_us) AS late_us FROM {placed}
        WHERE known AND NOT is_hidden AND waits AND state = 'COMMITTED'
            AND delivery = 'DELIVERED' AND due_us IS NOT NULL AND shown_us IS NOT NULL
    ), ranked AS (
        SELECT late_us, row_number() OVER (ORDER BY late_us) AS place, count(*) OVER () AS total
        FROM late
    )
    SELECT count(*) AS delivered, max(late_us) AS max_us,
        max(if(place = (99 * total + 99) DIV 100, late_us, NULL)) AS p99_us
    FROM ranked
"""
