"""What the tables say, as SQL sees it: messages, transactions, facts, and rows beside them.

Every view is a text without any value in it: values come as arguments, tables as frames.
"""

from __future__ import annotations

# Each table is read once; bodies become digests, and each row keeps the name of its file.
HALF = """
    SELECT file, transaction_id, sequence, message_id, producer_group,
        real_topic, real_queue_id, born_timestamp, delay_s,
        unix_micros(deliver_timestamp) AS deliver_us, ordinary,
        message_count, check_immunity_time_s,
        sha2(to_json(named_struct(
            'body', sha2(body, 256), 'tags', tags, 'keys', keys, 'sharding_key', sharding_key,
            'properties', array_sort(map_entries(properties)))), 256) AS content
    FROM {table}
"""

OP = "SELECT file, transaction_id, kind, source, op_timestamp FROM {table}"

SETTLED = """
    SELECT file, transaction_id, op_version, ordinal, state, life, sequences,
        settled_timestamp, coalesce(op_timestamp, settled_timestamp) AS begun_timestamp
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
        next_check_timestamp, op_timestamp, reason, sequences, _commit_version, _change_type
    FROM {table}
"""

# Messages whose halves retention took, as the schedule holds them; of days that may be gone, what
# became of their messages may be gone too.
STAND_INS = """
    SELECT s.transaction_id, s.sequence, min_by(struct(s.topic AS real_topic,
            s.queue_id AS real_queue_id, s.message_id, s.producer_group, s.born_timestamp,
            s.content, s.told_us AS deliver_us), struct(s.queue_id, s.queue_offset)) AS one,
        min(s.op_version) AS op_version, min(s.life) AS life
    FROM {shown} s LEFT ANTI JOIN {half} h ON h.transaction_id = s.transaction_id
    WHERE s.is_scheduled AND s.sequence IS NOT NULL AND s.told_us >= {schedule_us}
        AND s.transaction_id < {kept_from} AND s.transaction_id RLIKE {well_formed}
    GROUP BY s.transaction_id, s.sequence
"""

MESSAGES = """
    WITH compared AS (
        SELECT *, to_json(named_struct(
            'message_id', message_id, 'producer_group', producer_group, 'real_topic', real_topic,
            'real_queue_id', real_queue_id, 'content', content, 'delay_s', delay_s,
            'deliver', deliver_us, 'ordinary', ordinary,
            'message_count', message_count, 'immunity', check_immunity_time_s)) AS whole
        FROM {half} WHERE transaction_id IS NOT NULL AND sequence IS NOT NULL
    ), chosen AS (
        SELECT transaction_id, sequence, count(*) AS copies, min(whole) = max(whole) AS agreed,
            min(coalesce(producer_group, '')) AS first_group,
            max(coalesce(producer_group, '')) AS last_group,
            min(struct(real_topic, real_queue_id, message_id, delay_s, deliver_us, producer_group,
                born_timestamp, content, message_count, check_immunity_time_s)) AS one
        FROM compared GROUP BY transaction_id, sequence
    ), known AS (
        SELECT transaction_id, sequence, copies, agreed, first_group, last_group, one.*,
            false AS by_schedule
        FROM chosen
        UNION ALL
        SELECT transaction_id, sequence, 1, true, coalesce(one.producer_group, ''),
            coalesce(one.producer_group, ''), one.real_topic, one.real_queue_id, one.message_id,
            NULL, one.deliver_us, one.producer_group, one.born_timestamp, one.content, NULL, NULL,
            true
        FROM {stand_ins}
    )
    SELECT *, real_topic IS NOT NULL AND (delay_s IS NOT NULL OR deliver_us IS NOT NULL)
            AS is_delayed
    FROM known
"""

# Of a head that was appended twice, once before the log begins, the first time is unknown.
TRANSACTIONS = """
    SELECT transaction_id, min(first_group) AS producer_group,
        min(first_group) <> max(last_group) AS disputed, bool_or(by_schedule) AS by_schedule,
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
        c.sequences, t.transaction_id IS NOT NULL AS has_half,
        t.producer_group <=> c.producer_group AS is_own,
        coalesce(t.by_schedule, false) AS by_schedule
    FROM {op_log} c LEFT JOIN {transactions} t USING (transaction_id)
    WHERE c._change_type = 'insert'
        AND c.kind IN ('COMMIT', 'ROLLBACK', 'DISCARD', 'RESUME', 'EXPIRE', 'UNKNOWN',
            'DELIVER', 'RECALL')
        AND c.source IN ('producer', 'check', 'recheck', 'delay', 'operator', 'maintenance')
        AND c.transaction_id IS NOT NULL AND c.ordinal IS NOT NULL AND c.producer_group IS NOT NULL
"""

# Facts whose claims are gone are believed.
BELIEVED = """
    SELECT DISTINCT s.transaction_id, s.op_version, coalesce(s.ordinal, -1) AS ordinal, s.state,
        coalesce(s.life, -1) AS life
    FROM {settled} s
    LEFT SEMI JOIN {transactions} t ON t.transaction_id = s.transaction_id AND NOT t.by_schedule
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
        WHERE c.is_own AND NOT c.by_schedule AND c.kind NOT IN ('UNKNOWN', 'DELIVER', 'RECALL')
        GROUP BY c.transaction_id
    ), starts AS (
        SELECT transaction_id, max_by(struct(state, life, op_version, ordinal),
            struct(op_version, ordinal, life)) AS start
        FROM {believed} GROUP BY transaction_id
    ), stood_in AS (
        SELECT transaction_id, coalesce(min(op_version), -1L) AS op_version,
            coalesce(min(life), -1) AS life
        FROM {stand_ins} GROUP BY transaction_id
    ), begun AS (
        SELECT t.*,
            if(t.by_schedule, 'COMMITTED', coalesce(s.start.state, 'PENDING')) AS first_state,
            coalesce(i.life, cast(s.start.life AS INT), 0) AS first_life,
            coalesce(i.op_version, s.start.op_version, -1L) AS first_version,
            coalesce(s.start.ordinal, -1L) AS first_ordinal, o.claims
        FROM {transactions} t LEFT JOIN own o USING (transaction_id)
        LEFT JOIN starts s USING (transaction_id) LEFT JOIN stood_in i USING (transaction_id)
    ), told AS (
        SELECT *, aggregate(
            coalesce(claims, array()),
            named_struct('state', first_state, 'life', first_life, 'op_version', first_version,
                'ordinal', first_ordinal,
                'facts', cast(array() AS ARRAY<STRUCT<
                    op_version: BIGINT, ordinal: BIGINT, state: STRING, life: INT>>)),
            (now, claim) -> element_at(transform(array(CASE
                WHEN claim.life <> now.life AND claim.kind IN ('COMMIT', 'ROLLBACK')
                    THEN NULL
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
                    'ordinal', claim.ordinal,
                    'facts', concat(now.facts, array(named_struct(
                        'op_version', claim.op_version, 'ordinal', claim.ordinal, 'state', next,
                        'life', if(claim.kind = 'RESUME', now.life + 1, now.life)))))
                )), 1)
        ) AS story
        FROM begun
    )
    SELECT transaction_id, producer_group, disputed, by_schedule, complete, immunity_ms,
        coalesce(try_element_at(from_json({limits}, 'MAP<STRING, BIGINT>'), producer_group),
            try_element_at(from_json({limits}, 'MAP<STRING, BIGINT>'), '')) AS check_max,
        story.state, story.life, story.op_version AS end_version, story.ordinal AS end_ordinal,
        story.facts
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
    SELECT transaction_id FROM (SELECT * FROM {standing} WHERE NOT by_schedule) LEFT SEMI JOIN (
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
        UNION SELECT {dead} UNION SELECT {schedule}
    )
    SELECT n.name, p.name IS NOT NULL AS is_parked, greatest(coalesce(m.number, -1),
        least({low_water}, coalesce(p.from_version - 1, {low_water}))) AS reached,
        try_element_at(from_json({begins}, 'MAP<STRING, BIGINT>'), n.name) AS begin
    FROM named n LEFT JOIN parked p ON p.name = n.name
    LEFT JOIN {marks} m ON m.table = concat('topics/', n.name) AND m.app_id = {mark_id}
"""

# What became of each delayed message after its COMMIT: the first claim that names it decides.
DELIVERIES = """
    WITH asked AS (
        SELECT transaction_id, op_version, ordinal, sequences,
            unix_micros(op_timestamp) AS asked_us,
            if(kind = 'DELIVER', 'DELIVERED', 'RECALLED') AS state, source = 'delay' AS by_service,
            true AS is_claim, struct(kind, source, coalesce(cast(life AS STRING), 'None') AS life,
                coalesce(cast(check_times AS STRING), 'None') AS times,
                coalesce(reason, 'None') AS reason, CASE WHEN sequences IS NULL THEN 'None'
                    ELSE concat('(', array_join(transform(sequences, one -> cast(one AS STRING)),
                        ', ', 'None'), if(size(sequences) = 1, ',)', ')')) END AS named
            ) AS rest
        FROM {claims} WHERE is_own AND kind IN ('DELIVER', 'RECALL')
        UNION ALL
        SELECT transaction_id, op_version, coalesce(ordinal, -1), sequences, NULL, state, true,
            false, named_struct('kind', state, 'source', '', 'life', '', 'times', '',
                'reason', '', 'named', '')
        FROM {settled} WHERE op_version >= 0 AND op_version < {op_from}
            AND state IN ('DELIVERED', 'RECALLED') AND sequences IS NOT NULL
    ), named AS (
        SELECT a.*, m.sequence, row_number() OVER (PARTITION BY a.transaction_id, m.sequence
            ORDER BY a.op_version, a.ordinal, a.rest) AS place
        FROM asked a JOIN {standing} t ON t.transaction_id = a.transaction_id
        JOIN {messages} m ON m.transaction_id = a.transaction_id
            AND (a.sequences IS NULL OR array_contains(a.sequences, m.sequence))
        WHERE t.state = 'COMMITTED' AND m.is_delayed AND (a.op_version > t.end_version
            OR a.op_version = t.end_version AND a.ordinal > t.end_ordinal)
    )
    SELECT transaction_id, sequence, op_version, ordinal, state, asked_us, by_service, is_claim,
        rest
    FROM named WHERE place = 1
"""

# When each delayed message is due: by its half, or by the schedule where that cannot tell.
# A pause begins with the COMMIT; in older versions when it was settled, as the schedule shows.
TIMED = """
    WITH committed AS (
        SELECT s.transaction_id, min(unix_micros(s.settled_timestamp)) AS committed_us,
            min(unix_micros(s.begun_timestamp)) AS begun_us
        FROM {settled} s JOIN {standing} t ON t.transaction_id = s.transaction_id
        WHERE s.state = 'COMMITTED' AND s.op_version = t.end_version
        GROUP BY s.transaction_id
    ), told AS (
        SELECT transaction_id, sequence, min(told_us) AS told_us
        FROM {shown} WHERE is_scheduled GROUP BY transaction_id, sequence
    ), paused AS (
        SELECT m.transaction_id, m.sequence, c.committed_us, m.deliver_us, t.told_us,
            if(m.delay_s <= 100000000000, c.committed_us + m.delay_s * 1000000, NULL) AS before_us,
            if(m.delay_s <= 100000000000, c.begun_us + m.delay_s * 1000000, NULL) AS paused_us
        FROM {messages} m LEFT JOIN committed c ON c.transaction_id = m.transaction_id
        LEFT JOIN told t ON t.transaction_id = m.transaction_id AND t.sequence = m.sequence
        WHERE m.is_delayed
    ), asked AS (
        SELECT *, coalesce(deliver_us, if(before_us = told_us, before_us, paused_us)) AS asked_us
        FROM paused
    )
    SELECT transaction_id, sequence, committed_us, asked_us, coalesce(asked_us, told_us) AS due_us
    FROM asked
"""

# Every row of every topic beside the message that it shows and the fact that explains it.
PLACED = """
    WITH ends AS (
        SELECT transaction_id, op_version, life, state <> 'COMMITTED' AS is_dead,
            min(ordinal) AS ordinal
        FROM {facts} WHERE state IN ('COMMITTED', 'DISCARDED', 'EXPIRED') GROUP BY ALL
    ), beside AS (
        SELECT s.*, s.is_dead OR s.is_scheduled AS is_hidden, t.transaction_id IS NULL
                OR t.by_schedule AS has_no_half,
            m.real_topic IS NOT NULL AND NOT (s.is_dead AND m.by_schedule) AS known,
            coalesce(m.by_schedule, false) AS stands_in, coalesce(m.is_delayed, false) AS waits,
            m.real_topic, e.ordinal AS end_ordinal, t.state, t.life AS last_life, t.end_version,
            t.end_ordinal AS commit_ordinal, d.state AS delivery,
            d.op_version AS delivery_version, d.ordinal AS delivery_ordinal,
            u.asked_us, u.due_us, u.committed_us,
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
        LEFT JOIN {deliveries} d
            ON d.transaction_id = s.transaction_id AND d.sequence = s.sequence
        LEFT JOIN {timed} u ON u.transaction_id = s.transaction_id AND u.sequence = s.sequence
    )
    SELECT name, is_dead, is_scheduled, is_hidden, message_id, transaction_id, sequence,
        sharding_key, shown_us, told_us, due_day,
        coalesce(life, -1) AS life, coalesce(op_version, -1) AS op_version,
        coalesce(queue_id, -1) AS queue, coalesce(queue_offset, -1) AS offset,
        concat_ws('/', name, coalesce(cast(queue_id AS STRING), '?'),
            coalesce(cast(queue_offset AS STRING), '?')) || ' ' || coalesce(message_id, '?')
            AS address,
        known, known AND stands_in AS by_schedule, waits, real_topic, state, last_life,
        end_version, commit_ordinal, delivery, delivery_version, asked_us, due_us, committed_us,
        differs,
        CASE WHEN is_hidden OR NOT waits THEN end_ordinal
            WHEN delivery = 'DELIVERED' AND op_version = delivery_version AND life = last_life
                THEN nullif(delivery_ordinal, -1) END AS ordinal,
        NOT known AND has_no_half AND coalesce(
            transaction_id < {kept_from} AND transaction_id RLIKE {well_formed}, false)
            AS forgotten
    FROM beside
"""

SHOWN = """
    SELECT file, {name} AS name, {name} = {dead} AS is_dead, false AS is_scheduled, message_id,
        topic, queue_id, queue_offset, born_timestamp, producer_group, transaction_id, sequence,
        life, op_version, sharding_key, unix_micros(store_timestamp) AS shown_us,
        cast(NULL AS BIGINT) AS told_us, cast(NULL AS DATE) AS due_day,
        sha2(to_json(named_struct(
            'body', sha2(body, 256), 'tags', tags, 'keys', keys, 'sharding_key', sharding_key,
            'properties', array_sort(map_entries(properties)))), 256) AS content
    FROM {table}
"""

SCHEDULED = """
    SELECT file, {name} AS name, false AS is_dead, true AS is_scheduled, message_id,
        topic, queue_id, queue_offset, born_timestamp, producer_group, transaction_id, sequence,
        life, op_version, sharding_key, unix_micros(store_timestamp) AS shown_us,
        unix_micros(deliver_timestamp) AS told_us, due_date AS due_day,
        sha2(to_json(named_struct(
            'body', sha2(body, 256), 'tags', tags, 'keys', keys, 'sharding_key', sharding_key,
            'properties', array_sort(map_entries(properties)))), 256) AS content
    FROM {table}
"""

# What became of each message: shown, scheduled, taken away by retention, or on its way.
FATES = """
    WITH seen AS (
        SELECT transaction_id, sequence, count_if(NOT is_hidden) AS visible,
            count_if(is_scheduled) AS scheduled, collect_set(if(is_dead, life, NULL)) AS dead_lives
        FROM {placed} WHERE known GROUP BY transaction_id, sequence
    ), limits AS (
        SELECT max(if(name = {schedule}, reached, NULL)) AS schedule_reached,
            max(if(name = {dead}, begin, NULL)) AS dead_begin
        FROM {reached}
    ), stood AS (
        SELECT m.transaction_id, m.sequence, m.message_id, m.real_topic AS name, m.is_delayed,
            coalesce(m.real_queue_id, -1) AS queue, t.state, t.state = 'COMMITTED' AS committed,
            t.end_version, coalesce(s.visible, 0) AS visible,
            coalesce(s.scheduled, 0) AS scheduled, CASE
                WHEN t.state <> 'COMMITTED' OR NOT m.is_delayed THEN NULL
                WHEN d.state IS NOT NULL THEN d.state
                ELSE 'SCHEDULED' END AS delivery,
            if(m.is_delayed, d.op_version, t.end_version) AS shown_by, u.due_us, r.is_parked,
            r.reached, r.begin, l.schedule_reached,
            t.state = 'DISCARDED' AND (coalesce(array_contains(s.dead_lives, t.life), false)
                OR coalesce(t.end_version <= l.dead_begin, false)) AS dead
        FROM {messages} m JOIN {standing} t ON t.transaction_id = m.transaction_id
        LEFT JOIN seen s ON s.transaction_id = m.transaction_id AND s.sequence = m.sequence
        LEFT JOIN {deliveries} d
            ON d.transaction_id = m.transaction_id AND d.sequence = m.sequence
        LEFT JOIN {timed} u ON u.transaction_id = m.transaction_id AND u.sequence = m.sequence
        JOIN {reached} r ON r.name = m.real_topic
        CROSS JOIN limits l
    ), looked_for AS (
        SELECT *, visible = 0 AND committed AND (NOT is_delayed OR delivery = 'DELIVERED')
                AS is_hidden,
            scheduled = 0 AND committed AND is_delayed AS is_unscheduled
        FROM stood
    ), excused AS (
        SELECT *, is_hidden AND coalesce(shown_by <= begin, false) AS taken,
            is_unscheduled AND delivery <> 'SCHEDULED' AND coalesce(due_us < {schedule_us}, false)
                AS day_taken
        FROM looked_for
    )
    SELECT *, NOT {drained} AND is_hidden AND NOT taken AND coalesce(shown_by > reached, false)
            AS waiting,
        NOT {drained} AND is_unscheduled AND NOT day_taken AND end_version > schedule_reached
            AS not_scheduled_yet
    FROM excused
"""
