"""Each page as a template and its values; all but a few read nothing but the last count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pyarrow.compute as pc

from txmq.errors import InvalidNameError
from txmq.ground.amounts import counted
from txmq.ground.clock import milliseconds
from txmq.message.lifecycle import TransactionState
from txmq.message.names import (
    DEAD_LETTER_PREFIX,
    check_stored_topic,
    is_group_topic,
    retry_topic,
    shown_name,
)
from txmq.ops.admin.operator import open_row
from txmq.ops.dashboard import rendering as commands
from txmq.ops.dashboard.attention import needs
from txmq.ops.dashboard.rendering import (
    Line,
    Point,
    chart,
    count,
    duration,
    rate,
    sparkline,
)
from txmq.ops.dashboard.snapshot import DELAYED_MAX, Sample, named, rates, topic_rate, values

if TYPE_CHECKING:
    from txmq.ground.histogram import Histogram
    from txmq.ops.dashboard.snapshot import Snapshot


ROWS_MAX = 50
TOP_MAX = 8
DIGITS_MAX = 18
# The bars between the bounds of the ages.
AGES = (
    "up to 5 s", "5 s to 1 min", "1 to 10 min", "10 min to 1 h", "1 to 12 h", "12 h to 1 d",
    "over 1 d",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """What a page is made of: the last count, the samples, what the address asks for.

    Attributes:
        took_s: how long the last count took.
    """

    snapshot: Snapshot
    samples: Sequence[Sample]
    query: Mapping[str, str]
    location: str
    took_s: float

    @property
    def page(self) -> int:
        """The number of the page of a list, from 1."""
        text = self.query.get("page", "1")
        return max(1, whole_number(text))


@dataclass(frozen=True, slots=True)
class Paged:
    """A part of a list.

    Attributes:
        rows: the rows of this page.
        total: how many there are in the list.
        first: the number of the first row, from 1.
    """

    rows: Sequence[Any]
    total: int
    first: int
    previous: str | None
    next: str | None


Content = dict[str, Any]


def whole_number(text: str | None) -> int:
    """Parse a page number; 0 if it is missing, invalid or out of range."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > DIGITS_MAX:
        return 0
    return int(text)


def paged(seen: Seen, path: str, rows: Sequence[Any]) -> Paged:
    """Return the rows of the wanted page; those of the last page if the number is too large."""
    last = max(1, -(-len(rows) // ROWS_MAX))
    page = min(seen.page, last)
    begin = (page - 1) * ROWS_MAX

    def address(number: int) -> str | None:
        if not 1 <= number <= last:
            return None
        return f"{path}?{urlencode({**seen.query, 'page': number})}"

    shown = rows[begin : begin + ROWS_MAX]
    return Paged(shown, len(rows), begin + 1, address(page - 1), address(page + 1))


# --- overview -------------------------------------------------------------------------------------


def overview(seen: Seen) -> Content:
    """Show how the store stands, and what needs an operator."""
    status = seen.snapshot.status
    return {
        "needs": needs(seen.snapshot),
        "tiles": _tiles(seen),
        "charts": _charts(seen.samples),
        "ages": _ages(
            status.open, [status.older_than[bound] for bound in sorted(status.older_than)]
        ),
        "topics": _busiest(seen),
        "groups": sorted(seen.snapshot.groups, key=lambda group: -group.lag)[:TOP_MAX],
        "half_messages": sorted(status.half_messages.items(), key=lambda item: -item[1])[:TOP_MAX],
        "unasked": status.unasked,
        "members": status.members,
    }


def _tiles(seen: Seen) -> list[dict[str, Any]]:
    status, samples = seen.snapshot.status, seen.samples
    commits, rollbacks = _rates(samples)
    publish = status.published
    return [
        _tile("Open transactions", count(status.open), "/transactions",
              values(samples, lambda sample: sample.open),
              f"oldest {duration(status.oldest_open_half_age_s)}" if status.open else "none waits"),
        _tile("Commits", rate(commits.last), None, commits.points,
              f"{status.committed:,} in all"),
        _tile("Rollbacks", rate(rollbacks.last), None, rollbacks.points,
              f"{status.rolled_back:,} in all"),
        _tile("Publish lag", duration(publish.seconds), None,
              values(samples, lambda sample: sample.publish_lag_s),
              counted(publish.op_versions, "commit") if publish.op_versions else "all is visible"),
        _tile("Consumer lag", count(sum(group.lag for group in seen.snapshot.groups)), "/groups",
              values(samples, lambda sample: sample.lag),
              f"messages, {len(seen.snapshot.groups):,} groups"),
        _tile("Delayed", count(status.scheduled), "/delayed",
              values(samples, lambda sample: sample.scheduled),
              f"overdue {duration(status.delay_lag_s)}" if status.delay_lag_s else "none overdue"),
    ]  # fmt: skip


def _tile(
    name: str, number: str, path: str | None, points: Sequence[Point], note: str
) -> dict[str, Any]:
    return {"name": name, "number": number, "path": path, "spark": sparkline(points), "note": note}


def _rates(samples: Sequence[Sample]) -> tuple[Line, Line]:
    return (
        Line("commits", rates(samples, lambda sample: sample.committed)),
        Line("rollbacks", rates(samples, lambda sample: sample.rolled_back)),
    )


def _charts(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    opened = [Line("open", values(samples, lambda sample: sample.open))]
    ends = _quantiles(samples, lambda sample: sample.end_latency)
    settles = _quantiles(samples, lambda sample: sample.settle_latency)
    note = "of the transactions that ended since the count before"
    return [
        _chart("Commits and rollbacks", "a second", _rates(samples), rate),
        _chart("Open transactions", "at each count", opened, _whole),
        _chart("From half to end", note, ends, duration),
        _chart("From claim to fact", "of the same transactions", settles, duration),
    ]


def _quantiles(
    samples: Sequence[Sample], latency: Callable[[Sample], Histogram]
) -> tuple[Line, Line]:
    """Draw a latency at each sample but the first, which measures nothing."""

    def line(name: str, share: float) -> Line:
        return Line(name, values(samples[1:], lambda sample: latency(sample).quantile(share)))

    return line("99 %", 0.99), line("median", 0.5)


def _chart(title: str, note: str, lines: Sequence[Line], unit: Any) -> dict[str, Any]:
    newest = ", ".join(f"{line.name} {unit(line.last)}" for line in lines)
    drawn = chart(lines, f"{title}: {newest} at the end")
    return {"title": title, "note": note, "drawn": drawn, "unit": unit,
            "lines": [(line.name, unit(line.last)) for line in lines]}  # fmt: skip


def _whole(value: float | None) -> str:
    return count(None if value is None else round(value))


def _ages(total: int, older: Sequence[int]) -> list[dict[str, Any]]:
    """Count the open transactions in each span of ages, and scale its bar."""
    ends = [total, *older, 0]
    counts = [max(0, above - below) for above, below in pairwise(ends)]
    most = max(counts) or 1
    return [
        {"name": name, "count": number, "width": round(100 * number / most, 1)}
        for name, number in zip(AGES, counts, strict=True)
    ]


def _busiest(seen: Seen) -> list[dict[str, Any]]:
    messages = seen.snapshot.status.messages
    rates_by_name = {
        name: topic_rate(seen.samples, name) or 0 for name in messages if not is_system(name)
    }
    busiest = sorted(rates_by_name, key=lambda name: (-rates_by_name[name], -messages[name]))
    return [_topic(seen, name) for name in busiest[:TOP_MAX]]


# --- transactions ---------------------------------------------------------------------------------


def transactions(seen: Seen) -> Content:
    """List the transactions without a final end, oldest first."""
    rows, states = seen.snapshot.open_rows, [state.value for state in TransactionState]
    state, group = seen.query.get("state", ""), seen.query.get("group", "")
    if state in states:
        rows = rows.filter(pc.equal(rows["state"], state))
    if group:
        rows = rows.filter(pc.equal(rows["producer_group"], group))
    page = paged(seen, "/transactions", range(rows.num_rows))
    now_ms = milliseconds(seen.snapshot.status.at)
    shown = rows.slice(page.first - 1, len(page.rows)).to_pylist()
    return {
        "page": page,
        "rows": [open_row(row, None, now_ms) for row in shown],
        "states": seen.snapshot.states,
        "total": sum(seen.snapshot.states.values()),
        "listed": seen.snapshot.open_rows.num_rows,
        "state": state,
        "group": group,
    }


# --- topics ---------------------------------------------------------------------------------------


def topics(seen: Seen) -> Content:
    """List all topics by name; the internal ones only where they are asked for."""
    show, wanted = seen.query.get("show", ""), seen.query.get("q", "").strip().lower()
    names = sorted({*seen.snapshot.status.messages, *seen.snapshot.topics.settings})
    parked = parked_topics(seen)
    listed = [
        name
        for name in names
        if wanted in shown_name(name).lower()
        and (name in parked if show == "parked" else is_system(name) == (show == "system"))
    ]
    page = paged(seen, "/topics", listed)
    return {"page": page, "rows": [_topic(seen, name) for name in page.rows], "show": show,
            "q": seen.query.get("q", "")}  # fmt: skip


def topic(seen: Seen, name: str) -> Content:
    """Show what the last count knows of one topic; the offsets are read beside."""
    row = _topic(seen, name)
    parked = next((row for row in seen.snapshot.status.parked if row.topic == name), None)
    points = rates(_samples_with(seen, name), lambda sample: sample.messages.get(name))
    line = Line("messages", points)
    return {
        "topic": row,
        "parked": parked,
        "chart": _chart("Messages", "that became visible, a second", [line], rate),
        "readers": _readers(seen, name),
        "commands": commands.of_topic(
            seen.location, shown_name(name), parked=parked.reason if parked else None
        ),
    }


def is_known_topic(seen: Seen, name: str) -> bool:
    """Tell whether the last count met a topic, which may have no table yet."""
    status = seen.snapshot.status
    places = (status.messages, status.half_messages, seen.snapshot.topics.settings)
    return (
        any(name in place for place in places)
        or name in parked_topics(seen)
        or any(queue.topic == name for queue in seen.snapshot.lags)
    )


def parked_topics(seen: Seen) -> set[str]:
    """Return the names of the topics that could not be written."""
    return {parked.topic for parked in seen.snapshot.status.parked}


def is_system(name: str) -> bool:
    """Tell whether a topic is one of txmq itself: of retries, dead letters, traces, delays."""
    try:
        check_stored_topic(name)
    except InvalidNameError:
        return True
    return is_group_topic(name)


def _topic(seen: Seen, name: str) -> dict[str, Any]:
    status, settings = seen.snapshot.status, seen.snapshot.topics.settings.get(name)
    size = status.tables.get(f"topics/{name}")
    return {
        "name": name,
        "kind": settings.kind.value if settings else None,
        "reserved_h": settings.reserved_time_h if settings else None,
        "is_registered": settings is not None,
        "messages": status.messages.get(name, 0),
        "half_messages": status.half_messages.get(name, 0),
        "files": size.files if size else 0,
        "size_bytes": size.size_bytes if size else 0,
        "rate": topic_rate(seen.samples, name),
        "spark": sparkline(
            rates(_samples_with(seen, name), lambda sample: sample.messages.get(name))
        ),
        "is_parked": name in parked_topics(seen),
    }


def _samples_with(seen: Seen, name: str) -> list[Sample]:
    return [sample for sample in named(seen.samples) if name in sample.messages]


def _readers(seen: Seen, name: str) -> list[dict[str, Any]]:
    """List the groups that read a topic, with their lag in it."""
    lags: dict[str, int] = {}
    for queue in seen.snapshot.lags:
        if queue.topic == name:
            lags[queue.group] = lags.get(queue.group, 0) + queue.lag
    return [{"group": group, "lag": lag} for group, lag in sorted(lags.items())]


# --- consumer groups ------------------------------------------------------------------------------


def groups(seen: Seen) -> Content:
    """List the consumer groups, those that are farthest behind first."""
    ordered = sorted(seen.snapshot.groups, key=lambda group: (-group.lag, group.group))
    page = paged(seen, "/groups", ordered)
    rows = [
        {"summary": summary, "spark": sparkline(_lags(seen, summary.group)),
         "ownerless": sum(1 for queue in seen.snapshot.lags
                          if queue.group == summary.group and queue.owner is None)}
        for summary in page.rows
    ]  # fmt: skip
    return {"page": page, "rows": rows, "damaged": sorted(seen.snapshot.damaged.items())[:TOP_MAX]}


def group(seen: Seen, name: str) -> Content | None:
    """Show one group, queue by queue; None where the last count knows none of this name."""
    summary = next((row for row in seen.snapshot.groups if row.group == name), None)
    if summary is None:
        return None
    queues = [queue for queue in seen.snapshot.lags if queue.group == name]
    ordered = sorted(queues, key=lambda queue: (-queue.lag, queue.topic, queue.queue_id))
    line, waiting = Line("messages", _lags(seen, name)), seen.snapshot.delayed
    topics = sorted({queue.topic for queue in queues if not is_system(queue.topic)})
    return {
        "summary": summary,
        "page": paged(seen, f"/groups/{name}", ordered),
        "chart": _chart("Lag", "messages that are not consumed", [line], _whole),
        "dead_letters": seen.snapshot.status.messages.get(DEAD_LETTER_PREFIX + name, 0),
        "retries": int(pc.sum(pc.equal(waiting["topic"], retry_topic(name))).as_py() or 0),
        "are_more": waiting.num_rows == DELAYED_MAX,
        "commands": commands.of_group(seen.location, shown_name(name), [*map(shown_name, topics)]),
    }


def _lags(seen: Seen, name: str) -> list[Point]:
    samples = [sample for sample in named(seen.samples) if name in sample.lags]
    return values(samples, lambda sample: sample.lags[name])


# --- what waits -----------------------------------------------------------------------------------


def dead_letters(seen: Seen) -> Content:
    """Show where dead letters are: of consumer groups, and of discarded transactions."""
    messages = seen.snapshot.status.messages
    letters = [
        {"group": name.removeprefix(DEAD_LETTER_PREFIX), "messages": number}
        for name, number in sorted(messages.items(), key=lambda item: -item[1])
        if name.startswith(DEAD_LETTER_PREFIX) and number
    ]
    status = seen.snapshot.status
    listed = commands.txmq("List the discarded ones", "discarded", "list", seen.location)
    return {"page": paged(seen, "/dead-letters", letters), "discarded": status.discarded,
            "discarded_messages": status.dead_letters, "commands": [listed]}  # fmt: skip


def delayed(seen: Seen) -> Content:
    """List the messages that wait for their time, those that are due first."""
    rows, status = seen.snapshot.delayed, seen.snapshot.status
    page = paged(seen, "/delayed", range(rows.num_rows))
    shown = rows.slice(page.first - 1, len(page.rows)).to_pylist()
    for row in shown:
        row["message_id"] = f"{row['transaction_id']}:{row['sequence']}"
        row["in_s"] = (row["deliver_timestamp"] - status.at).total_seconds()
    line = Line("messages", values(seen.samples, lambda sample: sample.scheduled))
    return {"page": page, "rows": shown, "total": status.scheduled, "lag_s": status.delay_lag_s,
            "listed": rows.num_rows,
            "chart": _chart("Delayed messages", "at each count", [line], _whole)}  # fmt: skip
