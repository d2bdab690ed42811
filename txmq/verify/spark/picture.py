"""What the tables say, as SQL sees it: messages, transactions, facts, and rows beside them.

Every view is a text without any value in it: values come as arguments, tables as frames.
"""

from __future__ import annotations

# Each table is read once; bodies become digests, and each row keeps the name of its file.
HALF = """
    SELECT file, transaction_id, sequence, message_id, producer_group,
        real_topic, real_queue_id, born_timestamp, delay_s, deliver_timestamp, ordinary,
        message_count, check_immunity_time_s,
        sha2(to_json(named_struct(
            'body', sha2(body, 256), 'tags', tags, 'keys', keys, 'sharding_key', sharding_key,
            'properties', array_sort(map_entries(properties)))), 256) AS content
    FROM {table}
"""

OP = "SELECT file, transaction_id FROM {table}"

SETTLED = """
    SELECT file, transaction_id, op_version, ordinal, state, life,
        settled_timestamp
    FROM {table}
"""

ROW_COUNTS = """
    SELECT file AS name, count(*) AS row_count FROM (
        SELECT file FROM {half} UNION ALL SELECT file FROM {op} UNION ALL
        SELECT file FROM {settled} UNION ALL SELECT file FROM {shown}
    ) GROUP BY file
"""

HALF_LOG = "SELECT transaction_id, sequence, _commit_version, _change_type FROM {table}"

OP_LOG = """
    SELECT transaction_id, ordinal, kind, source, producer_group, life, check_times,
        next_check_timestamp, op_timestamp, reason, _commit_version, _change_type
    FROM {table}
"""

MESSAGES = """
    WITH compared AS (
        SELECT *, to_json(named_struct(
            'message_id', message_id, 'producer_group', producer_group, 'real_topic', real_topic,
            'real_queue_id', real_queue_id, 'content', content, 'delay_s', delay_s,
            'deliver', unix_micros(deliver_timestamp), 'ordinary', ordinary,
            'message_count', message_count, 'immunity', check_immunity_time_s)) AS whole
        FROM {half} WHERE transaction_id IS NOT NULL AND sequence IS NOT NULL
    ), chosen AS (
        SELECT transaction_id, sequence, count(*) AS copies, min(whole) = max(whole) AS agreed,
            min(coalesce(producer_group, '')) AS first_group,
            max(coalesce(producer_group, '')) AS last_group,
            min(struct(real_topic, real_queue_id, message_id, producer_group, born_timestamp,
                content, message_count, check_immunity_time_s)) AS one
        FROM compared GROUP BY transaction_id, sequence
    )
    SELECT transaction_id, sequence, copies, agreed, first_group, last_group, one.*
    FROM chosen
"""

# Of a head that was appended twice, once before the log begins, the first time is unknown.
TRANSACTIONS = """
    SELECT transaction_id, min(first_group) AS producer_group,
        min(first_group) <> max(last_group) AS disputed,
        count(real_topic) = coalesce(max(if(sequence = 0, message_count, NULL)), -1)
            AND bool_and(agreed) AND min(first_group) = max(last_group) AS complete,
        max(if(sequence = 0 AND agreed AND ({half_from} = 0 OR copies = 1)
            AND check_immunity_time_s > 0 AND check_immunity_time_s < double('inf'),
            cast(bround(check_immunity_time_s * 1000) AS BIGINT), NULL)) AS immunity_ms
    FROM {messages} GROUP BY transaction_id
"""

MOMENTS = """
    SELECT table, version,
        least(min(file_ms), min(coalesce(info.timestamp, file_ms))) AS moment_ms
    FROM {actions} WHERE is_commit AND table IN ('half', 'op') GROUP BY table, version
"""

HALF_MOMENTS = """
    SELECT h.transaction_id, max(moment_ms) AS newest_ms,
        min(if(h.sequence = 0, moment_ms, NULL)) AS head_ms
    FROM {half_log} h JOIN {moments} m ON m.table = 'half' AND m.version = h._commit_version
    WHERE h._change_type = 'insert'
    GROUP BY h.transaction_id
"""

# Rows that no txmq writes count for nothing.
CLAIMS = """
    SELECT c.transaction_id, c._commit_version AS op_version, c.ordinal, c.kind, c.source,
        c.producer_group, c.life, c.check_times, c.next_check_timestamp, c.op_timestamp, c.reason,
        t.transaction_id IS NOT NULL AS has_half, t.producer_group <=> c.producer_group AS is_own
    FROM {op_log} c LEFT JOIN {transactions} t USING (transaction_id)
    WHERE c._change_type = 'insert'
        AND c.kind IN ('COMMIT', 'ROLLBACK', 'DISCARD', 'RESUME', 'EXPIRE', 'UNKNOWN')
        AND c.source IN ('producer', 'check', 'recheck', 'delay', 'operator', 'maintenance')
        AND c.transaction_id IS NOT NULL AND c.ordinal IS NOT NULL AND c.producer_group IS NOT NULL
"""

# Facts whose claims are gone are believed.
BELIEVED = """
    SELECT DISTINCT s.transaction_id, s.op_version, coalesce(s.ordinal, -1) AS ordinal, s.state,
        coalesce(s.life, -1) AS life
    FROM {settled} s LEFT SEMI JOIN {transactions} t USING (transaction_id)
    WHERE s.op_version >= 0 AND s.op_version < {op_from} AND s.state IN
        ('PENDING', 'COMMITTED', 'ROLLED_BACK', 'DISCARDED', 'INCOMPLETE', 'EXPIRED')
"""

# Whoever says INCOMPLETE of what is complete must show that halves came later.
EXCUSED = """
    SELECT DISTINCT s.transaction_id, s.op_version, s.ordinal, true AS excused
    FROM {settled} s JOIN {transactions} t USING (transaction_id)
    LEFT JOIN {half_moments} h USING (transaction_id)
    WHERE s.state = 'INCOMPLETE' AND t.complete
        AND coalesce(h.newest_ms > unix_millis(s.settled_timestamp), {half_from} > 0)
"""

# One row for each transaction: claims in their order go through the state machine one by one.
FOLDED = """
    WITH own AS (
        SELECT c.transaction_id, array_sort(collect_list(struct(
            c.op_version, c.ordinal, c.kind, c.source, coalesce(cast(c.life AS STRING), 'None'),
            coalesce(cast(c.check_times AS STRING), 'None'), coalesce(c.reason, 'None'), c.life,
            coalesce(x.excused, false) AS excused))) AS claims
        FROM {claims} c LEFT JOIN {excused} x USING (transaction_id, op_version, ordinal)
        WHERE c.is_own AND c.kind <> 'UNKNOWN'
        GROUP BY c.transaction_id
    ), starts AS (
        SELECT transaction_id, max_by(struct(state, life, op_version),
            struct(op_version, ordinal, life)) AS start
        FROM {believed} GROUP BY transaction_id
    ), begun AS (
        SELECT t.*, coalesce(s.start.state, 'PENDING') AS first_state,
            coalesce(cast(s.start.life AS INT), 0) AS first_life,
            coalesce(s.start.op_version, -1L) AS first_version, o.claims
        FROM {transactions} t
        LEFT JOIN own o USING (transaction_id) LEFT JOIN starts s USING (transaction_id)
    ), told AS (
        SELECT *, aggregate(
            coalesce(claims, array()),
            named_struct('state', first_state, 'life', first_life, 'op_version', first_version,
                'facts', cast(array() AS ARRAY<STRUCT<
                    op_version: BIGINT, ordinal: BIGINT, state: STRING, life: INT>>)),
            (now, claim) -> element_at(transform(array(CASE
                WHEN claim.kind = 'COMMIT' AND now.state = 'PENDING'
                    THEN if(complete AND NOT claim.excused, 'COMMITTED', 'INCOMPLETE')
                WHEN claim.kind = 'ROLLBACK' AND now.state IN ('PENDING', 'INCOMPLETE')
                    THEN 'ROLLED_BACK'
                WHEN claim.kind = 'DISCARD' AND now.state = 'PENDING' AND claim.life = now.life
                    THEN 'DISCARDED'
                WHEN claim.kind = 'RESUME' AND now.state IN ('DISCARDED', 'INCOMPLETE')
                    AND claim.life = now.life + 1
                    THEN 'PENDING'
                WHEN claim.kind = 'EXPIRE' AND now.state IN ('PENDING', 'DISCARDED', 'INCOMPLETE')
                    AND claim.life = now.life
                    THEN 'EXPIRED'
                END),
                next -> if(next IS NULL, now, named_struct(
                    'state', next,
                    'life', if(claim.kind = 'RESUME', now.life + 1, now.life),
                    'op_version', claim.op_version,
                    'facts', concat(now.facts, array(named_struct(
                        'op_version', claim.op_version, 'ordinal', claim.ordinal, 'state', next,
                        'life', if(claim.kind = 'RESUME', now.life + 1, now.life)))))
                )), 1)
        ) AS story
        FROM begun
    )
    SELECT transaction_id, producer_group, disputed, complete, immunity_ms,
        coalesce(try_element_at(from_json({limits}, 'MAP<STRING, BIGINT>'), producer_group),
            try_element_at(from_json({limits}, 'MAP<STRING, BIGINT>'), '')) AS check_max,
        story.state, story.life, story.op_version AS end_version, story.facts
    FROM told
"""

FACTS = """
    SELECT transaction_id, op_version, ordinal, state, life, false AS is_believed
    FROM (SELECT transaction_id, inline(facts) FROM {standing})
    UNION ALL
    SELECT transaction_id, op_version, ordinal, state, cast(life AS INT), true FROM {believed}
"""

# Transactions of which not every claim has its place.
WITHOUT_CLAIMS = """
    SELECT transaction_id FROM {standing} LEFT SEMI JOIN (
        SELECT transaction_id FROM (
            SELECT transaction_id, 1 AS live, 0 AS seen FROM {op} WHERE {op_from} > 0
            UNION ALL
            SELECT transaction_id, 0, 1 FROM {op_log}
            WHERE {op_from} > 0 AND _change_type = 'insert'
        ) GROUP BY transaction_id HAVING sum(live) > sum(seen)
        UNION
        SELECT transaction_id FROM {believed}
    ) USING (transaction_id)
"""

# How far each table follows the op log, and its next offsets.
MARKS = """
    SELECT table, txn.appId AS app_id, max_by(txn.version, version) AS number
    FROM {actions} WHERE txn IS NOT NULL GROUP BY table, txn.appId
"""

# Up to where a topic must be complete though the store is running.
REACHED = """
    WITH parked AS (
        SELECT key AS name, value.from_version AS from_version
        FROM (SELECT explode(from_json({parked}, 'MAP<STRING, STRUCT<from_version: BIGINT>>')))
    ), named AS (
        SELECT DISTINCT real_topic AS name FROM {messages} WHERE real_topic IS NOT NULL
        UNION SELECT {dead}
    )
    SELECT n.name, p.name IS NOT NULL AS is_parked, greatest(coalesce(m.number, -1),
        least({low_water}, coalesce(p.from_version - 1, {low_water}))) AS reached
    FROM named n LEFT JOIN parked p ON p.name = n.name
    LEFT JOIN {marks} m ON m.table = concat('topics/', n.name) AND m.app_id = {mark_id}
"""

# Every row of every topic beside the message that it shows and the fact that explains it.
PLACED = """
    WITH ends AS (
        SELECT transaction_id, op_version, life, state <> 'COMMITTED' AS is_dead,
            min(ordinal) AS ordinal
        FROM {facts} WHERE state IN ('COMMITTED', 'DISCARDED', 'EXPIRED') GROUP BY ALL
    )
    SELECT s.name, s.is_dead, s.message_id, s.transaction_id, s.sequence,
        coalesce(s.life, -1) AS life, coalesce(s.op_version, -1) AS op_version,
        coalesce(s.queue_id, -1) AS queue, coalesce(s.queue_offset, -1) AS offset,
        concat_ws('/', s.name, coalesce(cast(s.queue_id AS STRING), '?'),
            coalesce(cast(s.queue_offset AS STRING), '?')) || ' ' || coalesce(s.message_id, '?')
            AS address,
        coalesce(m.real_topic IS NOT NULL, false) AS known, m.real_topic, e.ordinal,
        t.state, t.life AS last_life, t.end_version,
        t.transaction_id IS NULL AND coalesce(
            s.transaction_id < {kept_from} AND s.transaction_id RLIKE {well_formed}, false)
            AS forgotten,
        coalesce(m.agreed, false) AND NOT coalesce(
            s.message_id = m.message_id AND s.topic = m.real_topic
            AND s.producer_group = m.producer_group AND s.content = m.content
            AND (s.is_dead OR s.queue_id = m.real_queue_id)
            AND (m.copies > 1 OR s.born_timestamp <=> m.born_timestamp), false) AS differs
    FROM {shown} s
    LEFT JOIN {messages} m ON m.transaction_id = s.transaction_id AND m.sequence = s.sequence
    LEFT JOIN {standing} t ON t.transaction_id = s.transaction_id
    LEFT JOIN ends e ON e.transaction_id = s.transaction_id AND e.op_version = s.op_version
        AND e.life = s.life AND e.is_dead = s.is_dead
"""

SHOWN = """
    SELECT file, {name} AS name, {name} = {dead} AS is_dead, message_id, topic, queue_id,
        queue_offset,
        born_timestamp, producer_group, transaction_id, sequence, life, op_version,
        sha2(to_json(named_struct(
            'body', sha2(body, 256), 'tags', tags, 'keys', keys, 'sharding_key', sharding_key,
            'properties', array_sort(map_entries(properties)))), 256) AS content
    FROM {table}
"""

# What became of each message.
FATES = """
    WITH seen AS (
        SELECT transaction_id, sequence, count_if(NOT is_dead) AS visible,
            collect_set(if(is_dead, life, NULL)) AS dead_lives
        FROM {placed} WHERE known GROUP BY transaction_id, sequence
    )
    SELECT m.transaction_id, m.sequence, m.message_id, m.real_topic AS name,
        coalesce(m.real_queue_id, -1) AS queue, t.state, t.state = 'COMMITTED' AS committed,
        coalesce(s.visible, 0) AS visible, r.is_parked,
        NOT {drained} AND t.state = 'COMMITTED' AND coalesce(s.visible, 0) = 0
            AND t.end_version > r.reached AS waiting,
        t.state = 'DISCARDED' AND coalesce(array_contains(s.dead_lives, t.life), false) AS dead
    FROM {messages} m JOIN {standing} t USING (transaction_id)
    LEFT JOIN seen s USING (transaction_id, sequence)
    JOIN {reached} r ON r.name = m.real_topic
"""
