"""Tell hooks of the messages that a commit made visible."""

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
SEARCHED_MAX = BATCH_ROWS
FILES_MAX = TOLD_MAX


class PublishWatch:
    """The hooks of one publisher. Safe for several threads."""

    def __init__(
        self, hooks: Hooks | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the hooks; without any, nothing is ever read."""
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
            heard = operations(topic, plan, begun_ns)
        except BaseException as error:
            # The messages are published.
            if not is_survivable(error):
                raise
            logger.warning("hooks hear of no message in %s: %s", topic, type(error).__name__)
            return
        self._hooks.over_each([(operation, None) for operation in heard], self._now_s)


def operations(topic: str, plan: Plan, begun_ns: int) -> list[Operation]:
    """Return an operation for each of the first TOLD_MAX trace contexts, in their order."""
    by_trace: dict[tuple[str, ...], Operation] = {}
    for row in _searched(plan):
        context = context_of(row["properties"])
        key = (row["transaction_id"], *context.values())
        if not context or (key not in by_trace and len(by_trace) >= TOLD_MAX):
            continue
        operation = by_trace.get(key)
        by_trace[key] = (
            _operation(topic, row, context, begun_ns)
            if operation is None
            else replace(operation, message_count=operation.message_count + 1)
        )
    return list(by_trace.values())


def _searched(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the first messages of a plan, file by file."""
    rows = plan.rows.slice(0, SEARCHED_MAX)
    for file_number in pc.unique(rows["file"]).to_pylist()[:FILES_MAX]:
        in_file = rows.filter(pc.equal(rows["file"], file_number))
        yield from _messages(plan.files[file_number], np.unique(integers(in_file["row"], 0)))


def _messages(source: PlanFile, row_numbers: Any) -> Iterator[dict[str, Any]]:
    """Read these rows of a file, without bodies, with a topic's column names."""
    topic = "topic" if source.table.schema.name == SCHEDULE.name else "real_topic"
    columns = ["message_id", "transaction_id", "producer_group", topic, "properties"]
    start = 0
    for batch in source.table.rows.batches(source.file, columns, BATCH_ROWS):
        first, last = np.searchsorted(row_numbers, [start, start + batch.num_rows])
        names = ["topic" if name == topic else name for name in columns]
        rows = pa.table([batch[name] for name in columns], names=names)
        yield from rows.take(pa.array(row_numbers[first:last] - start)).to_pylist()
        start += batch.num_rows
        if last == len(row_numbers):
            return


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
