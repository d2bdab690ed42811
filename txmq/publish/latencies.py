"""How long ends and messages take, measured by the publisher that settles and shows them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from txmq.columns import times_ms
from txmq.histogram import NO_DURATIONS, Histogram
from txmq.lifecycle import TransactionState
from txmq.message.ids import transaction_times_ms

_ENDS = pa.array([TransactionState.COMMITTED.value, TransactionState.ROLLED_BACK.value])


def end_latency(facts: pa.Table) -> Histogram:
    """From the half message to its COMMIT or ROLLBACK, by the clocks of who wrote them (R86).

    Args:
        facts: transaction_id, state and op_timestamp of new facts.
    """
    ends = facts.filter(pc.is_in(facts["state"], value_set=_ENDS))
    if not ends.num_rows:
        return NO_DURATIONS
    return Histogram.of(
        times_ms(ends["op_timestamp"]) - transaction_times_ms(ends["transaction_id"])
    )


def publish_latency(facts: pa.Table, now_ms: int) -> Histogram:
    """From a claim, by the clock of who wrote it, to the messages that are visible now.

    Args:
        facts: op_timestamp of facts whose messages were just shown.
        now_ms: the store's time.
    """
    return (
        Histogram.of(now_ms - times_ms(facts["op_timestamp"])) if facts.num_rows else NO_DURATIONS
    )
