"""`txmq consume`: messages as JSON lines, with or without a consumer group."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Generator
from contextlib import ExitStack, closing
from datetime import datetime
from itertools import islice
from typing import Annotated, Any

import typer

from txmq.admin.found_message import body_values
from txmq.cli.ending import Ending
from txmq.cli.shared import Location, location_and
from txmq.clock import timestamp
from txmq.consumer.modes import ConsumeFromWhere
from txmq.consumer.offsets import StartPoint
from txmq.consumer.peek import TopicPeek
from txmq.consumer.pull import PullConsumer
from txmq.consumer.rules import ALL
from txmq.errors import TopicNotFoundError
from txmq.message.filter import MessageFilter, parse_filter
from txmq.message.names import stored_topic
from txmq.message.received import ReceivedMessage
from txmq.store.catalog import unknown_topics
from txmq.store.opening import open_store
from txmq.store.store import Store

POLL_MESSAGES = 256
POLL_S = 0.2
COMMIT_INTERVAL_S = 1.0

FromWhere = Annotated[
    str,
    typer.Option("--from", metavar="first|last|ISO-TIME", help="Where to begin."),
]


def consume(  # noqa: PLR0913 - the options of a command
    location: Location,
    topic: Annotated[str | None, typer.Argument(help="What to read.", show_default=False)] = None,
    *,
    group: Annotated[
        str | None,
        typer.Option("--group", help="Read as a member of this group."),
    ] = None,
    filter_text: Annotated[
        str, typer.Option("--filter", help="`A || B`, or `sql:amount > 5 AND country = 'DE'`.")
    ] = ALL,
    from_where: FromWhere = "first",
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, for ever.")] = False,
    max_count: Annotated[
        int | None, typer.Option("--max-count", min=1, help="End after so many.")
    ] = None,
    with_body: Annotated[bool, typer.Option("--body/--no-body", help="Print bodies.")] = True,
    wait: Annotated[
        bool, typer.Option("--wait", help="Also a topic that nobody has made or written yet.")
    ] = False,
) -> None:
    """Print messages, one JSON object a line.

    Without --group no offset is stored and no consumer group is affected. With it the messages
    count as consumed by the group once they are printed, also where a pipe breaks; the line that is
    being written then comes again. SIGTERM and Ctrl-C leave the group; the exit codes are 143 and
    130.
    """
    location, topic = location_and(location, topic, "TOPIC")
    start = _start(from_where)
    store, message_filter = open_store(location), parse_filter(filter_text)
    if not wait:
        # A mistyped topic would show nothing, or wait for ever.
        _check_known(store, topic)
    options: Any = {"follow": follow, "count": max_count}
    with Ending() as ending:
        messages = (
            _peeked(store, topic, start, message_filter, **options)
            if group is None
            else _consumed(store, topic, group, start, message_filter, ending=ending, **options)
        )
        with closing(messages):
            for message in messages:
                typer.echo(json.dumps(_values(message, with_body=with_body)))


def _peeked(  # noqa: PLR0913 - the options of a command
    store: Store,
    topic: str,
    start: StartPoint,
    message_filter: MessageFilter,
    *,
    follow: bool,
    count: int | None,
) -> Generator[ReceivedMessage]:
    peek = TopicPeek(
        store,
        stored_topic(topic),
        start,
        message_filter=None if message_filter.is_all else message_filter,
    )
    yield from islice(peek.follow() if follow else peek.messages(), count)


def _check_known(store: Store, topic: str) -> None:
    unknown = unknown_topics(store, [stored_topic(topic)])
    for problem in unknown.values():
        steps = (
            "what is committed shows once a broker has run (txmq serve);"
            " --wait reads it from its first message on"
        )
        raise TopicNotFoundError(topic, f"{problem}; {steps}")


def _consumed(  # noqa: PLR0913 - the options of a command
    store: Store,
    topic: str,
    group: str,
    start: StartPoint,
    message_filter: MessageFilter,
    *,
    ending: Ending,
    follow: bool,
    count: int | None,
) -> Generator[ReceivedMessage]:
    """Messages of a group; one is consumed when the next one is asked for."""
    moment = None if start.moment_ms is None else timestamp(start.moment_ms)
    unprinted: deque[ReceivedMessage] = deque()
    with ExitStack() as stack:
        with ending.held():
            consumer = stack.enter_context(
                PullConsumer(
                    store, consumer_group=group, topics={topic: message_filter},
                    from_where=start.where, from_timestamp=moment,
                )
            )  # fmt: skip
            stack.callback(_commit, consumer, unprinted, ending)
        left, committed_s = count, time.monotonic()
        while left is None or left > 0:
            with ending.held():
                polled = consumer.poll(min(left or POLL_MESSAGES, POLL_MESSAGES), timeout_s=POLL_S)
                unprinted.extend(polled)
            if not polled and not follow:
                return
            left = None if left is None else left - len(polled)
            while unprinted:
                yield unprinted[0]
                unprinted.popleft()
            if time.monotonic() - committed_s > COMMIT_INTERVAL_S:
                _commit(consumer, unprinted, ending)
                committed_s = time.monotonic()


def _commit(consumer: PullConsumer, unprinted: deque[ReceivedMessage], ending: Ending) -> None:
    with ending.held():
        consumer.commit(unprinted)


def _values(message: ReceivedMessage, *, with_body: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "producer_group": message.producer_group,
        "tags": message.tags,
        "keys": message.keys,
        "properties": dict(message.properties),
        "sharding_key": message.sharding_key,
        "reconsume_times": message.reconsume_times,
        "born_timestamp": message.born_timestamp.isoformat(),
        "store_timestamp": message.store_timestamp.isoformat(),
    }
    return {**values, **(body_values(message.body) if with_body else {})}


def _start(text: str) -> StartPoint:
    where, moment = place_of(text, "--from")
    return StartPoint.of(where, moment)


def place_of(text: str, option: str) -> tuple[ConsumeFromWhere, datetime | None]:
    """Where to read from, as a person writes it; `option` is named in an error."""
    if text in (ConsumeFromWhere.FIRST_OFFSET.value, ConsumeFromWhere.LAST_OFFSET.value):
        return ConsumeFromWhere(text), None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        problem = "must be first, last, or a time such as 2026-07-01T12:00:00Z"
        raise typer.BadParameter(problem, param_hint=option) from None
    # A time without a zone is local time, as a person at a terminal means it.
    return ConsumeFromWhere.TIMESTAMP, moment if moment.tzinfo else moment.astimezone()
