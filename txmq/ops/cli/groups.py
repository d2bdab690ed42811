"""`txmq groups`, `lag`, `offsets reset` and `consume`: look, move, delete, read."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer
import yaml
from rich.text import Text
from typer.core import TyperGroup

from txmq.consumer.group import group_names
from txmq.consumer.group_rules import ALL
from txmq.consumer.lag import ConsumerLag, QueueLag, readable_lags
from txmq.consumer.offsets import ConsumeFromWhere, StartPoint
from txmq.consumer.peek import TopicPeek
from txmq.consumer.pull import PullConsumer
from txmq.errors import ConsumerGroupNotFoundError, TopicNotFoundError, TxmqError
from txmq.ground.clock import SystemClock, timestamp
from txmq.message.filter import MessageFilter, parse_filter
from txmq.message.names import shown_name, stored_name, stored_topic
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.groups import (
    ConsumerGroups,
    GroupAlteration,
    GroupDeletion,
    GroupSummary,
    OffsetsReset,
)
from txmq.ops.admin.messages import body_values
from txmq.ops.cli.shared import (
    AsJson,
    Column,
    Location,
    console,
    location_and,
    pairs,
    rows_view,
    show,
    table,
)
from txmq.store.catalog import unknown_topics
from txmq.store.store import Store, open_store

if TYPE_CHECKING:
    from rich.console import RenderableType


EXIT_DAMAGED = 1
POLL_MESSAGES = 256
POLL_S = 0.2
COMMIT_INTERVAL_S = 1.0

FromWhere = Annotated[
    str,
    typer.Option("--from", metavar="first|last|ISO-TIME", help="Where to begin."),
]


class _ListsByDefault(TyperGroup):
    """`txmq groups LOCATION` lists them, as it did before there was a second command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take what is no command for the arguments of `list`."""
        is_command = bool(args) and args[0] in {*self.commands, "--help"}
        return super().parse_args(ctx, args if is_command else ["list", *args])


groups_app = typer.Typer(
    cls=_ListsByDefault, help="Consumer groups: look (the default), alter, delete."
)


def add_group_commands(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.add_typer(groups_app, name="groups")
    app.command()(lag)
    app.command()(consume)
    offsets = typer.Typer(help="The offsets of consumer groups.", no_args_is_help=True)
    offsets.command()(reset)
    app.add_typer(offsets, name="offsets")


# --- groups, lag and offsets


@groups_app.command("list")
def list_groups(location: Location, *, as_json: AsJson = False) -> None:
    """List consumer groups: what they read, which members live, how far they are behind.

    Exit code 1 if a group is damaged; all others are listed.
    """
    damaged = _Damaged()
    summaries = ConsumerGroups(open_store(location)).list(damaged)
    if as_json or summaries or not damaged.problems:
        result = {"count": len(summaries), "groups": summaries, **damaged.to_dict()}
        show(result, lambda _: _list_view(summaries, _GROUP_COLUMNS, ""), as_json=as_json)
    damaged.end()


@groups_app.command("alter")
def alter(  # noqa: PLR0913 - the options of a command
    location: Location,
    group: Annotated[
        str | None, typer.Argument(help="The consumer group.", show_default=False)
    ] = None,
    *,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the group; repeatable."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Go back to the store's; repeatable."),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; else only show it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give a group settings of its own, for members that join from then on.

    Without --apply only show what they would be.
    """
    location, name = location_and(location, group, "GROUP")
    changes = {**_set_values(settings or []), **dict.fromkeys(unset or [])}
    result = ConsumerGroups(open_store(location)).alter(name, changes, apply=apply)
    show(result, _alteration_view, as_json=as_json)


def _set_values(words: Sequence[str]) -> dict[str, object]:
    """Read `name=value` words. Raises: BadParameter."""
    values: dict[str, object] = {}
    for word in words:
        name, is_pair, text = word.partition("=")
        if not is_pair:
            raise typer.BadParameter(f"{word!r} must be NAME=VALUE", param_hint="--set")
        try:
            values[name.strip()] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise typer.BadParameter(f"{word!r} has no value", param_hint="--set") from None
    return values


@groups_app.command("delete")
def delete(
    location: Location,
    group: Annotated[
        str | None, typer.Argument(help="The consumer group.", show_default=False)
    ] = None,
    *,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; else only show it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the offsets and retries of a group without members; its dead letters stay.

    Without --apply only show what would go.
    """
    location, name = location_and(location, group, "GROUP")
    result = ConsumerGroups(open_store(location)).delete(name, apply=apply)
    show(result, _deletion_view, as_json=as_json)


def lag(
    location: Location,
    *,
    group: Annotated[str | None, typer.Option("--group", help="Of this group only.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show for each queue of each group how many messages it has not consumed yet.

    Exit code 1 if a group is damaged; all others are shown.
    """
    store, damaged = open_store(location), _Damaged()
    if group is None:
        queues = readable_lags(store, SystemClock(), damaged)
    else:
        queues = _lag_of(store, stored_name(group))
    total = sum(queue.lag for queue in queues)
    if as_json or queues or not damaged.problems:
        result = {"lag": total, "queues": queues, **damaged.to_dict()}
        summary = f"{total:,} messages behind"
        show(result, lambda _: _list_view(queues, _QUEUE_COLUMNS, summary), as_json=as_json)
    damaged.end()


def _lag_of(store: Store, group: str) -> list[QueueLag]:
    if group not in group_names(store):
        raise ConsumerGroupNotFoundError(group)
    return ConsumerLag(store).of_group(group)


def reset(  # noqa: PLR0913 - the options of a command
    location: Location,
    group: Annotated[
        str | None, typer.Argument(help="The consumer group.", show_default=False)
    ] = None,
    *,
    topic: Annotated[str, typer.Option("--topic", help="The topic.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="first|last|ISO-TIME|OFFSET", help="Where the group continues."
        ),
    ],
    queue_id: Annotated[
        int | None, typer.Option("--queue-id", help="This queue only; needed with an offset.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write it; else only show it.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also while members live.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move a group to another place in a topic; without --apply only show what would change."""
    location, group = location_and(location, group, "GROUP")
    where, moment = _target(to, queue_id)
    result = ConsumerGroups(open_store(location)).reset_offsets(
        group, topic, where, moment=moment, queue_id=queue_id, apply=apply, force=force
    )
    show(result, lambda reset: _reset_view(reset, moment), as_json=as_json)


def _target(
    text: str, queue_id: int | None
) -> tuple[ConsumeFromWhere | dict[int, int], datetime | None]:
    if not text.isdecimal():
        return place_of(text, "--to")
    if queue_id is None:
        raise typer.BadParameter("an offset belongs to one queue", param_hint="--queue-id")
    return {queue_id: int(text)}, None


def place_of(text: str, option: str) -> tuple[ConsumeFromWhere, datetime | None]:
    """Parse where to read from, as a person writes it; `option` is named in an error."""
    if text in (ConsumeFromWhere.FIRST_OFFSET.value, ConsumeFromWhere.LAST_OFFSET.value):
        return ConsumeFromWhere(text), None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        problem = "must be first, last, or a time such as 2026-07-01T12:00:00Z"
        raise typer.BadParameter(problem, param_hint=option) from None
    if moment.tzinfo is None:
        # A time without a zone is local time, as a person at a terminal means it.
        _check_zone(option)
        moment = moment.astimezone()
    return ConsumeFromWhere.TIMESTAMP, moment


def _check_zone(option: str) -> None:
    """Refuse a zone that the system does not know, and takes for UTC without a word."""
    zone = os.environ.get("TZ", "").removeprefix(":")
    # With a digit it is a rule, such as CET-1CEST.
    if not zone or any(map(str.isdigit, zone)) or Path(zone).is_absolute():
        return
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        problem = f"is local time, and TZ={zone} is no zone that this system knows; add one, or Z"
        raise typer.BadParameter(problem, param_hint=option) from None


class _Damaged:
    """The groups that cannot be read; it is called with each."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}

    def __call__(self, group: str, error: TxmqError) -> None:
        self.problems[group] = str(error)

    def to_dict(self) -> dict[str, Any]:
        return {"damaged": self.problems} if self.problems else {}

    def end(self) -> None:
        """Name each one, and end the program so that a scheduler sees it."""
        for group, problem in self.problems.items():
            text = f"group {shown_name(group)} cannot be read: {problem}"
            console(stderr=True).print(text, markup=False, soft_wrap=True)
        if self.problems:
            raise typer.Exit(EXIT_DAMAGED)


def _list_view(
    rows: Sequence[object], columns: Mapping[str, Column], summary: str
) -> RenderableType:
    return table(rows, columns, summary) if rows else Text("no consumer group has ever read here")


def _topics_of(summary: GroupSummary) -> str:
    return ", ".join(
        shown_name(topic) if text == ALL else f"{shown_name(topic)} [{text}]"
        for topic, text in sorted(summary.subscription.items())
    )


_GROUP_COLUMNS: Mapping[str, Column] = {
    "group": lambda summary: shown_name(summary.group),
    "mode": "mode",
    "topics": _topics_of,
    "members": lambda summary: ", ".join(summary.members) or "none lives",
    "lag": "lag",
}
_QUEUE_COLUMNS: Mapping[str, Column] = {
    "group": lambda queue: shown_name(queue.group),
    "topic": lambda queue: shown_name(queue.topic),
    "queue": "queue_id",
    "next offset": "next_offset",
    "end offset": "end_offset",
    "lag": "lag",
    "read by": lambda queue: queue.owner or "nobody",
}


def _alteration_view(result: GroupAlteration) -> RenderableType:
    before, after = result.before, result.after
    lines = {
        name: f"{before.get(name, 'as the store')} -> {after.get(name, 'as the store')}"
        for name in sorted({*before, *after})
    }
    outcome = "changed" if result.is_written else "dry run: add --apply to change it"
    return pairs({"group": shown_name(result.group), **lines, "": outcome})


def _deletion_view(result: GroupDeletion) -> RenderableType:
    topics = ", ".join(map(shown_name, sorted(result.subscription))) or "nothing any more"
    unknown = {
        "offsets": f"cannot be read: {result.problem}",
        "members": "cannot be told; those that run join again, and begin as a new group does",
    }
    lines = {
        "group": shown_name(result.group),
        **({"reads": topics} if result.problem is None else unknown),
        f"retries that {'go' if result.problem is None else 'stay'}": f"{result.retries:,}",
        **({"settings that go": ", ".join(sorted(result.own))} if result.own else {}),
        "dead letters that stay": f"{result.dead_letters:,}",
        "": "deleted" if result.is_written else "dry run: add --apply to delete it",
    }
    return pairs(lines)


def _reset_view(result: OffsetsReset, at: datetime | None) -> RenderableType:
    rows = [
        (queue, "-" if before is None else before, after)
        for queue, after in sorted(result.after.items())
        for before in (result.before.get(queue),)
    ]
    done = "written" if result.is_written else "dry run: add --apply to write it"
    since = "" if at is None else f"from {at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ} on; "
    return rows_view(("queue", "before", "after"), rows, since + done)


# --- consume


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
    where, moment = place_of(from_where, "--from")
    start = StartPoint.of(where, moment)
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


def _check_known(store: Store, topic: str) -> None:
    unknown = unknown_topics(store, [stored_topic(topic)])
    for problem in unknown.values():
        steps = (
            "what is committed shows once a broker has run (txmq serve);"
            " --wait reads it from its first message on"
        )
        raise TopicNotFoundError(topic, f"{problem}; {steps}")


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
    """Yield messages of a group; one is consumed when the next one is asked for."""
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
                messages = consumer.poll(
                    min(left or POLL_MESSAGES, POLL_MESSAGES), timeout_s=POLL_S
                )
                unprinted.extend(messages)
            if not messages and not follow:
                return
            left = None if left is None else left - len(messages)
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


class Ending:
    """SIGTERM ends a block as Ctrl-C does, by an exception, so that a member leaves its group.

    Neither ends what is `held` halfway, but for a second signal.
    """

    def __init__(self) -> None:
        """Catch no signal yet."""
        self._is_held = False
        self._number: int | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Catch the signals."""
        caught = [signal.SIGTERM]
        # What ignores Ctrl-C, such as a job in the background, goes on to do so.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            caught.append(signal.SIGINT)
        self._previous = {number: signal.signal(number, self._on_signal) for number in caught}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the signals to whoever had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have a signal end the block only after this one."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._number is not None:
            number, self._number = self._number, None
            _end(number)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._is_held and self._number is None:
            self._number = number
        else:
            _end(number)


def _end(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
