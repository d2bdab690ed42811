"""Tells hooks of the messages that a commit made visible."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.ground.columns import integers
from txmq.ground.handles import is_survivable
from txmq.listeners.hooks import TOLD_MAX, Hooks, Operation, OperationName
from txmq.message.names import SCHEDULE_TOPIC, namespace_of, unwrapped
from txmq.message.trace_context import context_of
from txmq.publish.plan import BATCH_ROWS, Plan, PlanFile
from txmq.store.schemas import SCHEDULE

logger = logging.getLogger(__name__)

# Of a commit so many messages, in so many files, are searched for traces.
SEARCHED_MAX, FILES_MAX = BATCH_ROWS, TOLD_MAX


class PublishWatch:
    """The hooks of one publisher. Safe for several threads."""

    def __init__(
        self, hooks: Hooks | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Without hooks nothing is read."""
        self._hooks, self._now_s = Hooks() if hooks is None else hooks, now_s

    def published(self, topic: str, plan: Plan, begun_ns: int) -> None:
        """Tell of each trace among these messages, of up to TOLD_MAX, in TOLD_S.

        Never raises an Exception.

        Reads: half or the schedule, of the first SEARCHED_MAX messages, without bodies; nothing
        without hooks.
        """
        if not self._hooks.hear_operations:
            return
        try:
            told = operations(topic, plan, begun_ns)
        except BaseException as error:
            # The messages are published.
            if not is_survivable(error):
                raise
            logger.warning("hooks hear of no message in %s: %s", topic, type(error).__name__)
            return
        self._hooks.over_each([(operation, None) for operation in told], self._now_s)


def operations(topic: str, plan: Plan, begun_ns: int) -> list[Operation]:
    """One for each trace context that is found, the first ones first."""
    found: dict[tuple[str, ...], Operation] = {}
    for row in _searched(plan):
        context = context_of(row["properties"])
        key = (row["transaction_id"], *context.values())
        if not context or (key not in found and len(found) >= TOLD_MAX):
            continue
        before = found.get(key)
        found[key] = (
            _operation(topic, row, context, begun_ns)
            if before is None
            else replace(before, message_count=before.message_count + 1)
        )
    return list(found.values())


def _operation(
    topic: str, row: Mapping[str, Any], context: Mapping[str, str], begun_ns: int
) -> Operation:
    is_scheduled = topic == SCHEDULE_TOPIC
    return Operation(
        OperationName.SCHEDULE if is_scheduled else OperationName.PUBLISH,
        unwrapped(row["topic"] if is_scheduled else topic),
        row["message_id"],
        row["transaction_id"],
        group=unwrapped(row["producer_group"]),
        namespace=namespace_of(row["producer_group"]),
        context=context,
        begun_ns=begun_ns,
    )


def _searched(plan: Plan) -> Iterator[dict[str, Any]]:
    """The first messages of a plan, file by file."""
    rows = plan.rows.slice(0, SEARCHED_MAX)
    for number in pc.unique(rows["file"]).to_pylist()[:FILES_MAX]:
        of_file = rows.filter(pc.equal(rows["file"], number))
        yield from _messages(plan.files[number], np.unique(integers(of_file["row"], 0)))


def _messages(source: PlanFile, wanted: Any) -> Iterator[dict[str, Any]]:
    topic = "topic" if source.table.schema.name == SCHEDULE.name else "real_topic"
    columns = ["message_id", "transaction_id", "producer_group", topic, "properties"]
    begin = 0
    for batch in source.table.rows.batches(source.file, columns, BATCH_ROWS):
        first, last = np.searchsorted(wanted, [begin, begin + batch.num_rows])
        names = ["topic" if name == topic else name for name in columns]
        rows = pa.table([batch[name] for name in columns], names=names)
        yield from rows.take(pa.array(wanted[first:last] - begin)).to_pylist()
        begin += batch.num_rows
        if last == len(wanted):
            return
