"""What breaks a promise: each query gives rows of (invariant, row_id, detail)."""

from __future__ import annotations

ROWS = """
    WITH windowed AS (
        SELECT *, known AND ordinal IS NOT NULL OR forgotten OR by_schedule AS has_place,
            lag(offset) OVER (PARTITION BY name, queue ORDER BY offset, message_id)
                AS offset_before,
            last(if(known AND ordinal IS NOT NULL OR forgotten OR by_schedule,
                struct(op_version, ordinal, sequence, offset), NULL), true)
                OVER (PARTITION BY name, queue ORDER BY offset, message_id
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
        FROM {placed}
    ), judged AS (
        SELECT p.*, m.number AS mark, offset - offset_before AS step,
            is_scheduled AND {schedule_us} > {never} OR try_element_at(
                from_json({begins}, 'MAP<STRING, BIGINT>'), p.name) IS NOT NULL AS may_lack,
            before.offset < offset AND has_place AS comparable,
            p.ordinal IS NULL OR before.ordinal IS NULL AS is_coarse,
            known AND is_dead AND p.ordinal IS NULL AS unexplained,
            known AND NOT is_dead AS shown,
            known AND NOT is_hidden AND waits AND state = 'COMMITTED' AS was_delayed
        FROM windowed p
        LEFT JOIN {marks} m ON m.table = concat('topics/', p.name) AND m.app_id = {mark_id}
    )
    SELECT inline(filter(array(
        if(NOT known AND NOT forgotten, struct('I4', address, 'has no half'), NULL),
        if(shown AND NOT is_scheduled AND real_topic <> name,
            struct('I4', address, 'was sent to another topic'), NULL),
        if(shown AND is_scheduled AND NOT waits,
            struct('I4', address, 'was sent without a delay'), NULL),
        if(shown AND state = 'ROLLED_BACK',
            struct('I2', address, 'visible, though its transaction was rolled back'), NULL),
        if(shown AND state = 'PENDING',
            struct('I5', address, 'visible, though no COMMIT took effect'), NULL),
        if(shown AND state = 'INCOMPLETE', struct('I5', address,
            'visible, though halves are missing or contradict each other'), NULL),
        if(shown AND state IN ('DISCARDED', 'EXPIRED'),
            struct('I11', address, concat('visible and ', lower(state))), NULL),
        if(shown AND state = 'COMMITTED' AND (is_scheduled OR NOT waits)
                AND NOT (op_version = end_version AND life = last_life),
            struct('I10', address, 'names another COMMIT than the one that took effect'), NULL),
        if(was_delayed AND delivery = 'DELIVERED'
                AND NOT (op_version = delivery_version AND life = last_life),
            struct('I10', address, 'names another DELIVER than the one that took effect'), NULL),
        if(was_delayed AND delivery = 'RECALLED',
            struct('I11', address, 'visible, though it was recalled'), NULL),
        if(was_delayed AND delivery IS NULL,
            struct('I15', address, 'visible, though no DELIVER took effect'), NULL),
        if(was_delayed AND delivery = 'DELIVERED' AND shown_us < due_us,
            struct('I15', address, 'was shown before it was due'), NULL),
        if(known AND is_scheduled AND asked_us IS NOT NULL AND NOT told_us <=> asked_us,
            struct('I15', address, 'is due at another time than was asked for'), NULL),
        if(is_scheduled AND NOT coalesce(due_day = date_from_unix_date(cast(
                (told_us - pmod(told_us, 86400000000)) DIV 86400000000 AS INT)), false),
            struct('I15', address, 'lies under another day than that of its time'), NULL),
        if(known AND differs, struct('I16', address, 'differs from its half'), NULL),
        if(op_version > coalesce(mark, -1),
            struct('I21', address, 'lies beyond the mark of its topic'), NULL),
        if(step = 0, struct('I3', address, 'has an offset that is taken'), NULL),
        if(step > 1 AND NOT may_lack,
            struct('I23', address, 'comes after a gap of offsets'), NULL),
        if(comparable AND (op_version < before.op_version OR (NOT is_coarse
            AND op_version = before.op_version AND (ordinal < before.ordinal
                OR (ordinal = before.ordinal AND sequence < before.sequence)))),
            struct('I14', address, 'stands behind one that ended later'), NULL),
        if(unexplained AND state IN ('COMMITTED', 'ROLLED_BACK'),
            struct('I11', address, 'dead letter of a transaction with another end'), NULL),
        if(unexplained AND state NOT IN ('COMMITTED', 'ROLLED_BACK'),
            struct('I19', address, 'dead letter that no DISCARD or EXPIRE led to'), NULL)
    ), fault -> fault IS NOT NULL)) AS (invariant, row_id, detail)
    FROM judged
"""

# A key may move to another queue, for their number may be altered; it must not come back. By
# COMMIT, for the queue of a delayed message was chosen before that too.
KEYS = """
    WITH keyed AS (
        SELECT *, lag(queue) OVER (PARTITION BY name, sharding_key
            ORDER BY end_version, commit_ordinal, sequence, queue, offset) AS queue_before
        FROM {placed}
        WHERE known AND NOT is_hidden AND ordinal IS NOT NULL AND sharding_key IS NOT NULL
    ), moved AS (
        SELECT *, row_number() OVER (PARTITION BY name, sharding_key, queue
            ORDER BY end_version, commit_ordinal, sequence, queue, offset) AS nth
        FROM keyed WHERE queue_before IS NULL OR queue_before <> queue
    )
    SELECT 'I14', address, 'its key came back to a queue that it had left'
    FROM moved WHERE nth > 1
"""

# The delay service alone delivers, and not before the time.
DELIVERED = """
    SELECT inline(filter(array(
        if(d.asked_us < u.due_us, struct('I15', coalesce(m.message_id, 'None'),
            'was delivered before it was due'), NULL),
        if(NOT d.by_service, struct('I15', coalesce(m.message_id, 'None'),
            'was not delivered by the delay service'), NULL)
    ), fault -> fault IS NOT NULL))
    FROM {deliveries} d
    JOIN {messages} m ON m.transaction_id = d.transaction_id AND m.sequence = d.sequence
    LEFT JOIN {timed} u ON u.transaction_id = d.transaction_id AND u.sequence = d.sequence
    WHERE d.state = 'DELIVERED'
"""

REPEATS = """
    SELECT 'I3', address, 'dead letter that is there already' FROM (
        SELECT address, row_number() OVER (
            PARTITION BY transaction_id, sequence, life ORDER BY queue, offset, message_id) AS nth
        FROM {placed} WHERE is_dead AND known
    ) WHERE nth > 1
    UNION ALL
    SELECT 'I3', concat(transaction_id, ':', sequence), 'is visible more than once'
    FROM {placed} WHERE forgotten AND NOT is_scheduled
    GROUP BY transaction_id, sequence, if(is_dead, life, NULL) HAVING count(*) > 1
"""

QUEUES = """
    WITH queues AS (
        SELECT name, queue, min(offset) AS first, max(offset) AS last,
            any_value(is_scheduled) AND {schedule_us} > {never} AS has_holes,
            try_element_at(from_json({begins}, 'MAP<STRING, BIGINT>'), name) AS begin
        FROM {placed} GROUP BY name, queue
    )
    SELECT 'I23', concat(name, '/', queue), concat('begins at offset ', first, ', not at 0')
    FROM queues WHERE first <> 0 AND NOT has_holes AND begin IS NULL
    UNION ALL
    SELECT 'I21', concat(name, '/', queue),
        concat('next offset is kept as ', coalesce(number, -1), ', the last row has ', last)
    FROM queues LEFT JOIN {marks} m
        ON m.table = concat('topics/', name) AND m.app_id = concat('txmq-offset/', queue)
    WHERE coalesce(number, -1) <> last + 1 AND NOT (coalesce(number, -1) > last
        AND (has_holes OR begin IS NOT NULL))
"""

SETTLED = """
    SELECT inline(filter(array(
        if(t.transaction_id IS NULL AND NOT coalesce(
            s.transaction_id < {kept_from} AND s.transaction_id RLIKE {well_formed}, false),
            struct('I4', coalesce(s.transaction_id, 'None'), 'settled without a half'), NULL),
        if(s.op_version > {settled_mark}, struct('I21', coalesce(s.transaction_id, 'None'),
            concat('settled beyond its own mark ', {settled_mark})), NULL)
    ), fault -> fault IS NOT NULL))
    FROM {settled} s LEFT JOIN {standing} t USING (transaction_id)
"""

FACTS = """
    WITH told AS (
        SELECT *, coalesce(op_version, -1) AS version, coalesce(ordinal, -1) AS place,
            coalesce(life, -1) AS own_life, if(state IN ('PENDING', 'COMMITTED', 'ROLLED_BACK',
                'DISCARDED', 'INCOMPLETE', 'EXPIRED', 'DELIVERED', 'RECALLED'), state, '?') AS said
        FROM {settled}
    ), sides AS (
        SELECT transaction_id, op_version, ordinal, state, life, -1L AS sequence, 1 AS own,
            0 AS found
        FROM {facts} WHERE {drained} OR op_version <= {settled_mark}
        UNION ALL
        SELECT d.transaction_id, d.op_version, d.ordinal, d.state, t.life, d.sequence, 1, 0
        FROM {deliveries} d JOIN {standing} t ON t.transaction_id = d.transaction_id
        WHERE {drained} OR d.op_version <= {settled_mark}
        UNION ALL
        SELECT transaction_id, version, place, said, own_life, coalesce(sequence, -1), 0, 1
        FROM (SELECT *, explode(if(coalesce(size(sequences), 0) > 0, sequences,
            array(cast(NULL AS BIGINT)))) AS sequence FROM told)
    ), counted AS (
        SELECT b.transaction_id, b.op_version, b.ordinal, b.state, b.life, b.sequence,
            any_value(t.by_schedule) AS by_schedule, sum(own) AS own, sum(found) AS found
        FROM sides b JOIN {standing} t ON t.transaction_id = b.transaction_id AND NOT t.disputed
        GROUP BY b.transaction_id, b.op_version, b.ordinal, b.state, b.life, b.sequence
    ), judged AS (
        SELECT c.*, own > 0 AND found = 0 AS is_unsettled,
            own = 0 AND found > 0 AND (NOT c.by_schedule OR m.sequence IS NOT NULL
                AND c.state IN ('DELIVERED', 'RECALLED')) AS is_unclaimed
        FROM counted c LEFT JOIN {messages} m
            ON m.transaction_id = c.transaction_id AND m.sequence = c.sequence
    ), twice AS (
        SELECT f.transaction_id, f.version AS op_version, f.place AS ordinal, f.said AS state,
            f.own_life AS life
        FROM told f JOIN {standing} t ON t.transaction_id = f.transaction_id AND NOT t.disputed
        WHERE NOT t.by_schedule OR f.said IN ('DELIVERED', 'RECALLED')
        GROUP BY f.transaction_id, f.version, f.place, f.said, f.own_life HAVING count(*) > 1
    ), stepped AS (
        SELECT f.*, lag(state, 1, 'PENDING') OVER told AS before, lag(life, 1, 0) OVER told AS older
        FROM (SELECT f.* FROM {facts} f JOIN {standing} t
            ON t.transaction_id = f.transaction_id AND NOT t.disputed WHERE f.is_believed) f
        WINDOW told AS (PARTITION BY transaction_id ORDER BY op_version, ordinal)
    ), wrong AS (
        SELECT DISTINCT transaction_id, op_version, ordinal, state, life,
            'took effect but is not settled so' AS detail FROM judged WHERE is_unsettled
        UNION ALL
        SELECT DISTINCT transaction_id, op_version, ordinal, state, life,
            'settled, but no claim led to it' FROM judged WHERE is_unclaimed
        UNION ALL
        SELECT *, 'settled twice' FROM twice
        UNION ALL
        SELECT transaction_id, op_version, ordinal, state, life,
            'settled, though it cannot follow the fact before it'
        FROM stepped WHERE NOT CASE
            WHEN before = 'PENDING' THEN state <> 'PENDING' AND life = older
            WHEN before = 'DISCARDED' THEN state = 'PENDING' AND life = older + 1
                OR state = 'EXPIRED' AND life = older
            WHEN before = 'INCOMPLETE' THEN state = 'PENDING' AND life = older + 1
                OR state IN ('ROLLED_BACK', 'EXPIRED') AND life = older
            ELSE false END
    )
    SELECT 'I10', concat(transaction_id, ' ', state, ' op ', op_version, '/', ordinal, ' life ',
        life), detail
    FROM wrong
"""

MESSAGES = """
    SELECT inline(filter(array(
        if(is_hidden AND NOT taken AND NOT waiting, struct('I1', coalesce(message_id, 'None'),
            concat('committed, but not in topic ', name, if(is_parked, ', which is parked', ''))),
            NULL),
        if(is_unscheduled AND NOT day_taken AND NOT not_scheduled_yet,
            if(delivery = 'DELIVERED', struct('I15', coalesce(message_id, 'None'),
                    'delivered, but it never was in the schedule'),
                struct('I1', coalesce(message_id, 'None'),
                    concat('committed, but not in topic ', {schedule}))), NULL),
        if(visible > 1,
            struct('I3', coalesce(message_id, 'None'), 'is visible more than once'), NULL),
        if(scheduled > 1, struct('I3', coalesce(message_id, 'None'),
            'is in the schedule more than once'), NULL)
    ), fault -> fault IS NOT NULL))
    FROM {fates}
"""

# The schedule is the topic of all that is delayed.
SHARED_FATE = """
    WITH homes AS (
        SELECT transaction_id, if(is_delayed, {schedule}, name) AS name,
            if(is_delayed, scheduled, visible) > 0 AS is_there,
            if(is_delayed, not_scheduled_yet, waiting) AS waiting
        FROM {fates} WHERE committed AND NOT if(is_delayed, day_taken, taken)
    ), pairs AS (
        SELECT transaction_id, name, count(*) AS expected, count_if(is_there) AS found,
            count_if(NOT waiting) > 0 AS due
        FROM homes GROUP BY transaction_id, name
    ), beside AS (
        SELECT *, max(found > 0) OVER (PARTITION BY transaction_id) AS somewhere FROM pairs
    )
    SELECT 'I13', concat(transaction_id, ' in ', name), if(found > 0, 'is shown in part',
        'is not shown, though another topic shows it')
    FROM beside WHERE found > 0 AND found < expected OR found = 0 AND due AND somewhere
"""

SUMS = """
    WITH sent AS (
        SELECT name, queue, count(*) AS sent, count_if(state = 'ROLLED_BACK') AS rolled_back,
            count_if(dead) AS dead, count_if(state = 'EXPIRED') AS expired,
            count_if(state IN ('PENDING', 'INCOMPLETE') OR waiting
                OR NOT {drained} AND state = 'DISCARDED' AND NOT dead) AS open,
            count_if(delivery = 'SCHEDULED') AS scheduled,
            count_if(delivery = 'RECALLED') AS recalled, count_if(taken) AS taken
        FROM {fates} GROUP BY name, queue
    ), published AS (
        SELECT name, queue, count(*) AS published FROM {placed}
        WHERE NOT is_hidden AND NOT forgotten GROUP BY name, queue
    ), whole AS (
        SELECT name, queue, coalesce(sent, 0) AS sent, coalesce(published, 0) AS published,
            coalesce(rolled_back, 0) AS rolled_back, coalesce(dead, 0) AS dead,
            coalesce(expired, 0) AS expired, coalesce(open, 0) AS open,
            coalesce(scheduled, 0) AS scheduled, coalesce(recalled, 0) AS recalled,
            coalesce(taken, 0) AS taken
        FROM sent FULL JOIN published USING (name, queue)
    )
    SELECT 'I23', concat(name, '/', queue), concat(sent, ' sent, but ', published, ' published + ',
        rolled_back, ' rolled back + ', dead, ' dead + ', expired, ' expired + ', open, ' open + ',
        scheduled, ' scheduled + ', recalled, ' recalled + ', taken, ' taken away')
    FROM whole WHERE sent <> published + rolled_back + dead + expired + open + scheduled + recalled
        + taken
"""

DEAD_LETTERS = """
    WITH dead AS (
        SELECT DISTINCT transaction_id, sequence, life FROM {placed} WHERE is_dead AND known
    ), wanted AS (
        SELECT f.transaction_id, f.life, f.op_version, f.state, m.message_id, r.reached,
            if(f.state = 'EXPIRED', e.sequence, d.sequence) IS NOT NULL AS is_there,
            coalesce(f.op_version <= r.begin, false) AS may_lack
        FROM {facts} f JOIN {messages} m USING (transaction_id)
        JOIN {reached} r ON r.name = {dead}
        LEFT JOIN dead d ON d.transaction_id = f.transaction_id AND d.sequence = m.sequence
            AND d.life = f.life
        LEFT JOIN (SELECT DISTINCT transaction_id, sequence FROM dead) e
            ON e.transaction_id = f.transaction_id AND e.sequence = m.sequence
        WHERE f.state IN ('DISCARDED', 'EXPIRED') AND m.real_topic IS NOT NULL
    )
    SELECT 'I19', coalesce(message_id, 'None'), 'has no dead letter'
    FROM wanted
    WHERE NOT is_there AND NOT may_lack AND ({drained} OR op_version <= reached)
    UNION ALL
    SELECT 'I13', concat(transaction_id, ' in ', {dead}, ' life ', life), 'is shown in part'
    FROM wanted WHERE state = 'DISCARDED' GROUP BY transaction_id, life
    HAVING bool_or(is_there) AND bool_or(NOT is_there AND NOT may_lack)
"""

QUESTIONS = """
    SELECT c.transaction_id, c.life, c.check_times AS times, any_value(t.check_max) AS check_max,
        min(struct(c.op_version, c.ordinal)) AS place, min(unix_micros(c.op_timestamp)) AS asked_us,
        min(unix_micros(c.next_check_timestamp)) AS next_us
    FROM {claims} c JOIN {standing} t USING (transaction_id)
    LEFT ANTI JOIN {without_claims} w USING (transaction_id)
    WHERE c.is_own AND NOT c.by_schedule AND NOT t.disputed AND c.kind = 'UNKNOWN'
        AND c.check_times >= 1 AND c.life BETWEEN 0 AND t.life
    GROUP BY c.transaction_id, c.life, c.check_times
"""

CHECKS = """
    WITH ends AS (
        SELECT transaction_id, life, min(struct(op_version, ordinal)) AS ended
        FROM {facts} WHERE state <> 'PENDING' GROUP BY transaction_id, life
    ), numbered AS (
        SELECT q.*, ended, lag(times) OVER told AS times_before,
            lag(place) OVER told AS place_before, lag(asked_us) OVER told AS asked_before,
            lag(next_us) OVER told AS next_before
        FROM {questions} q LEFT JOIN ends e USING (transaction_id, life)
        WINDOW told AS (PARTITION BY transaction_id, life ORDER BY times)
    ), judged AS (
        SELECT *, coalesce(times_before = times - 1, false) AS follows,
            concat(transaction_id, ' life ', life, ' check ', times) AS row_id
        FROM numbered
    )
    SELECT inline(filter(array(
        if(times > 1 AND NOT (follows AND place_before < place),
            struct('I18', row_id, 'comes without the one before it'), NULL),
        if(times > check_max, struct('I18', row_id, 'is one more than are allowed'), NULL),
        if(follows AND place_before > ended, struct('I18', row_id,
            'was asked though the one before it stands behind the end'), NULL),
        if(follows AND asked_us >= asked_before AND asked_us < next_before,
            struct('I18', row_id, 'was asked before it was due'), NULL)
    ), fault -> fault IS NOT NULL))
    FROM judged
"""

FIRST_CHECKS = """
    WITH asked AS (
        SELECT c.transaction_id, min(unix_millis(c.op_timestamp)) AS asked_ms
        FROM {claims} c JOIN {standing} t USING (transaction_id)
        LEFT ANTI JOIN {without_claims} w USING (transaction_id)
        WHERE c.is_own AND NOT c.by_schedule AND NOT t.disputed
            AND c.source IN ('check', 'recheck')
            AND (c.kind = 'UNKNOWN' AND c.life = 0 AND c.check_times >= 1
                OR c.kind IN ('COMMIT', 'ROLLBACK') AND t.life = 0)
        GROUP BY c.transaction_id
    )
    SELECT 'I18', concat(a.transaction_id, ' life 0 check 1'),
        'was asked before its immunity was over'
    FROM asked a JOIN {standing} t USING (transaction_id)
    JOIN {half_moments} h USING (transaction_id)
    WHERE a.asked_ms < h.head_ms + t.immunity_ms
"""

DISCARDS = """
    SELECT 'I19', concat(f.transaction_id, ' life ', f.life), concat('was discarded after ',
        coalesce(max(q.times), 0), ' checks of ', max(t.check_max))
    FROM {facts} f JOIN {standing} t ON t.transaction_id = f.transaction_id AND NOT t.disputed
    LEFT ANTI JOIN {without_claims} w ON w.transaction_id = f.transaction_id
    LEFT JOIN {questions} q ON q.transaction_id = f.transaction_id AND q.life = f.life
        AND q.place < struct(f.op_version, f.ordinal)
    WHERE f.state = 'DISCARDED'
    GROUP BY f.transaction_id, f.life, f.op_version, f.ordinal
    HAVING coalesce(max(q.times), 0) < max(t.check_max)
"""

APPENDED_ONLY = """
    WITH largest AS (
        SELECT table, added.path AS path, max(added.largest_id) AS largest_id,
            max(added.day) AS day
        FROM {actions} WHERE is_commit AND added.path IS NOT NULL GROUP BY table, added.path
    ), commits AS (
        SELECT a.table, a.version, max(a.info.operation) AS operation,
            bool_or(a.added.is_change) AS adds, bool_or(a.removed.is_change) AS removes,
            bool_or(a.removed.is_change AND NOT coalesce(l.day < {kept_day}, false)
                AND NOT coalesce(l.largest_id < {kept_from} AND l.largest_id RLIKE {well_formed},
                    l.largest_id IS NULL)) AS removes_kept
        FROM {actions} a LEFT JOIN largest l ON l.table = a.table AND l.path = a.removed.path
        WHERE a.is_commit AND a.table IN ('half', 'op')
        GROUP BY a.table, a.version
    )
    SELECT 'I17', concat(table, ' version ', version), CASE
        WHEN NOT is_lawful THEN concat('is ', coalesce(operation, 'None'),
            ', which txmq never does')
        WHEN adds THEN 'altered rows'
        ELSE 'removed rows that retention has not reached' END
    FROM (SELECT *, coalesce(operation IN ('CREATE TABLE', 'WRITE', 'STREAMING UPDATE', 'OPTIMIZE',
        'VACUUM START', 'VACUUM END', 'SET TBLPROPERTIES', 'ADD COLUMN', 'DELETE'), false)
        AS is_lawful FROM commits)
    WHERE NOT is_lawful OR removes AND (adds OR removes_kept)
"""

MARKS = """
    WITH risen AS (
        SELECT table, version, txn.appId AS app_id, txn.version AS number,
            lag(txn.version) OVER (PARTITION BY table, txn.appId ORDER BY version) AS before
        FROM {actions}
        WHERE is_commit AND txn IS NOT NULL AND (table = 'settled' OR table LIKE 'topics/%')
            AND (startswith(txn.appId, 'txmq/') OR startswith(txn.appId, 'txmq-offset/'))
    ), rebuilt AS (
        SELECT DISTINCT table, version FROM {actions}
        WHERE is_commit AND txn.appId = 'txmq-rebuild'
    ), followed AS (
        SELECT table AS name, number AS mark, {settled_mark} AS followed
        FROM {marks} WHERE app_id = {mark_id} AND table LIKE 'topics/%'
        UNION ALL SELECT 'state/publisher', {low_water}, {settled_mark}
        UNION ALL SELECT 'settled', {settled_mark}, {op_version}
    )
    SELECT 'I21', concat(table, ' version ', version, ' ', app_id),
        'does not rise above the mark before it'
    FROM risen LEFT ANTI JOIN rebuilt USING (table, version) WHERE number <= before
    UNION ALL
    SELECT 'I21', name, concat('its mark ', mark, ' is beyond ', followed, ', which it follows')
    FROM followed WHERE mark > followed
    UNION ALL
    SELECT 'I21', 'op', concat('is readable from version ', {op_from}, ', but settled only up to ',
        {settled_mark})
    WHERE {op_from} > {settled_mark} + 1
"""

FILES = """
    WITH newest AS (
        SELECT table, max(version) AS version FROM {actions} WHERE NOT is_commit GROUP BY table
    ), told AS (
        SELECT a.*, coalesce(a.added.path, a.removed.path) AS path
        FROM {actions} a LEFT JOIN newest n ON n.table = a.table
        WHERE NOT startswith(a.table, 'state/') AND if(a.is_commit,
            a.version > coalesce(n.version, -1), a.version = n.version)
    ), live AS (
        SELECT table, path, max_by(added, version) AS file
        FROM told WHERE path IS NOT NULL GROUP BY table, path
        HAVING max_by(added.path, version) IS NOT NULL
    )
    SELECT 'I26', concat(table, '/', path), CASE
        WHEN f.name IS NULL THEN 'is not there'
        WHEN f.size <> file.size
            THEN concat('has ', f.size, ' bytes, its commit says ', file.size)
        ELSE concat('has ', coalesce(c.row_count, 0), ' rows, its commit says ', file.row_count) END
    FROM live LEFT JOIN {files} f ON f.name = file.name
    LEFT JOIN {row_counts} c ON c.name = file.name
    WHERE f.name IS NULL OR f.size <> file.size OR coalesce(c.row_count, 0) <> file.row_count
"""

# What still waits long after its time, or though the delay service says that it was claimed.
OVERDUE = """
    WITH said AS (
        SELECT (SELECT max(unix_micros(op_timestamp)) FROM {op}) AS claimed_us,
            (SELECT max(unix_micros(settled_timestamp)) FROM {settled}) AS settled_us
    ), waiting AS (
        SELECT f.message_id, f.end_version, f.due_us,
            greatest(f.due_us, u.committed_us) AS since_us
        FROM {fates} f JOIN {timed} u
            ON u.transaction_id = f.transaction_id AND u.sequence = f.sequence
        WHERE f.delivery = 'SCHEDULED' AND f.due_us IS NOT NULL
    )
    SELECT 'I27', coalesce(message_id, 'None'), 'still waits long after its time'
    FROM waiting CROSS JOIN said
    WHERE claimed_us IS NOT NULL AND settled_us IS NOT NULL
        AND since_us < least(claimed_us, settled_us) - {overdue_us}
    UNION ALL
    SELECT 'I27', coalesce(message_id, 'None'), 'is claimed, says state/delay, but nobody did'
    FROM waiting WHERE end_version <= {delay_version} AND due_us <= {delay_us}
"""

# COMMITs of producers that came to nothing.
COMMITS = """
    WITH live AS (
        SELECT transaction_id,
            bool_or(kind = 'COMMIT' AND source = 'producer') AS is_commit,
            bool_or(kind IN ('ROLLBACK', 'DISCARD', 'RESUME', 'EXPIRE')) AS is_contested
        FROM {op} WHERE transaction_id IS NOT NULL GROUP BY transaction_id
    ), committed AS (
        SELECT DISTINCT transaction_id FROM {settled} WHERE state = 'COMMITTED'
    )
    SELECT 'I28', t.transaction_id, 'its COMMIT found halves that do not fit'
    FROM {standing} t
    WHERE t.state = 'INCOMPLETE' AND NOT t.disputed AND EXISTS (
        SELECT 1 FROM {claims} c WHERE c.transaction_id = t.transaction_id
            AND c.op_version = t.end_version AND c.ordinal = t.end_ordinal
            AND c.kind = 'COMMIT' AND c.source = 'producer')
    UNION ALL
    SELECT 'I28', l.transaction_id, 'its COMMIT came when retention had taken its halves'
    FROM live l
    LEFT ANTI JOIN {standing} t ON t.transaction_id = l.transaction_id
    LEFT ANTI JOIN committed d ON d.transaction_id = l.transaction_id
    WHERE l.is_commit AND NOT l.is_contested AND l.transaction_id < {kept_from}
        AND l.transaction_id RLIKE {well_formed}
"""

GROUPS = """
    WITH offsets AS (
        SELECT group, topic, queue, next_offset FROM (
            SELECT inline(from_json({group_offsets}, 'ARRAY<STRUCT<group: STRING,
                topic: STRING, queue: STRING, next_offset: BIGINT>>')))
    )
    SELECT 'I29', concat(group, ' ', topic, '/', queue), concat('its next offset ', next_offset,
        ' is beyond ', coalesce(m.number, 0), ', where the queue ends')
    FROM offsets LEFT JOIN {marks} m
        ON m.table = concat('topics/', topic) AND m.app_id = concat('txmq-offset/', queue)
    WHERE next_offset > coalesce(m.number, 0)
"""

# Whom nobody would ask.
OPEN_SET = """
    SELECT 'I30', t.transaction_id,
        'is open, and state/open_transactions does not name it: nobody would ask about it'
    FROM {standing} t
    LEFT ANTI JOIN {open_set} k ON k.transaction_id = t.transaction_id
    LEFT ANTI JOIN (SELECT transaction_id FROM {half_log}
        WHERE _change_type = 'insert' AND _commit_version > {open_set_version}) n
        ON n.transaction_id = t.transaction_id
    LEFT ANTI JOIN (SELECT transaction_id FROM {settled}
        WHERE state IN ('COMMITTED', 'ROLLED_BACK', 'EXPIRED')) f
        ON f.transaction_id = t.transaction_id
    WHERE NOT t.by_schedule AND t.state IN ('PENDING', 'DISCARDED', 'INCOMPLETE')
        AND {open_set_version} >= 0 AND {half_from} <= {open_set_version} + 1
"""

ALL = (
    ROWS, KEYS, DELIVERED, REPEATS, QUEUES, SETTLED, FACTS, MESSAGES, SHARED_FATE, SUMS,
    DEAD_LETTERS, CHECKS, FIRST_CHECKS, DISCARDS, APPENDED_ONLY, MARKS, FILES,
    OVERDUE, COMMITS, GROUPS, OPEN_SET,
)  # fmt: skip
