"""`txmq groups`, `lag` and `offsets reset`: look at consumer groups, move, delete."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from txmq.admin.consumer_groups import ConsumerGroups, GroupSummary, OffsetsReset
from txmq.admin.group_deletion import GroupDeletion
from txmq.cli.consume import consume, place_of
from txmq.cli.shared import (
    AsJson,
    Location,
    console,
    list_console,
    location_and,
    pairs,
    print_json,
    print_result,
)
from txmq.clock import SystemClock
from txmq.consumer.group import group_names
from txmq.consumer.lag import ConsumerLag, QueueLag, readable_lags
from txmq.consumer.modes import ConsumeFromWhere
from txmq.consumer.rules import ALL
from txmq.errors import ConsumerGroupNotFoundError, TxmqError
from txmq.message.names import shown_name, stored_name
from txmq.store.opening import open_store
from txmq.store.store import Store

if TYPE_CHECKING:
    from rich.console import RenderableType

EXIT_DAMAGED = 1


class _ListsByDefault(TyperGroup):
    """`txmq groups LOCATION` lists them, as it did before there was a second command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take what is no command for the arguments of `list`."""
        is_command = bool(args) and args[0] in {*self.commands, "--help"}
        return super().parse_args(ctx, args if is_command else ["list", *args])


groups_app = typer.Typer(cls=_ListsByDefault, help="Consumer groups: look (the default), delete.")


def add_group_commands(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.add_typer(groups_app, name="groups")
    app.command()(lag)
    app.command()(consume)
    offsets = typer.Typer(help="The offsets of consumer groups.", no_args_is_help=True)
    offsets.command()(reset)
    app.add_typer(offsets, name="offsets")


@groups_app.command("list")
def list_groups(location: Location, *, as_json: AsJson = False) -> None:
    """List consumer groups: what they read, which members live, how far they are behind.

    Exit code 1 if a group is damaged; all others are listed.
    """
    damaged = _Damaged()
    summaries = ConsumerGroups(open_store(location)).list(damaged)
    if as_json:
        values = [summary.to_dict() for summary in summaries]
        print_json({"count": len(summaries), "groups": values, **damaged.to_dict()})
    elif summaries or not damaged.problems:
        list_console().print(_groups_view(summaries))
    damaged.end()


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
    print_result(result, _deletion_view, as_json=as_json)


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
    if as_json:
        values = [queue.to_dict() for queue in queues]
        print_json({"lag": total, "queues": values, **damaged.to_dict()})
    elif queues or not damaged.problems:
        list_console().print(_lag_view(queues, total))
    damaged.end()


def _lag_of(store: Store, group: str) -> list[QueueLag]:
    if group not in group_names(store):
        raise ConsumerGroupNotFoundError(group)
    return ConsumerLag(store).of_group(group)


class _Damaged:
    """The groups that cannot be read; it is told of each."""

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
    print_result(result, _reset_view, as_json=as_json)


def _target(
    text: str, queue_id: int | None
) -> tuple[ConsumeFromWhere | dict[int, int], datetime | None]:
    if not text.isdecimal():
        return place_of(text, "--to")
    if queue_id is None:
        raise typer.BadParameter("an offset belongs to one queue", param_hint="--queue-id")
    return {queue_id: int(text)}, None


# --- showing -------------------------------------------------------------------------------------


def _groups_view(summaries: Sequence[GroupSummary]) -> RenderableType:
    table = Table(box=None, header_style="bold")
    for name in ("group", "mode", "topics", "members"):
        table.add_column(name)
    table.add_column("lag", justify="right")
    for summary in summaries:
        topics = ", ".join(
            shown_name(topic) if text == ALL else f"{shown_name(topic)} [{text}]"
            for topic, text in sorted(summary.subscription.items())
        )
        members = ", ".join(summary.members) or "none lives"
        row = (shown_name(summary.group), summary.mode.value, topics, members, f"{summary.lag:,}")
        table.add_row(*map(Text, row))
    return table if summaries else Text("no consumer group has ever read here")


def _lag_view(queues: Sequence[QueueLag], total: int) -> RenderableType:
    table = Table(box=None, header_style="bold", caption=f"{total:,} messages behind")
    table.add_column("group")
    table.add_column("topic")
    for name in ("queue", "next offset", "end offset", "lag"):
        table.add_column(name, justify="right")
    table.add_column("read by")
    for queue in queues:
        numbers = (queue.queue_id, queue.next_offset, queue.end_offset, queue.lag)
        names = (shown_name(queue.group), shown_name(queue.topic))
        row = (*names, *(f"{number:,}" for number in numbers), queue.owner or "nobody")
        table.add_row(*map(Text, row))
    return table if queues else Text("no consumer group has ever read here")


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
        "dead letters that stay": f"{result.dead_letters:,}",
        "": "deleted" if result.is_written else "dry run: add --apply to delete it",
    }
    return pairs(lines)


def _reset_view(result: OffsetsReset) -> RenderableType:
    done = "written" if result.is_written else "dry run: add --apply to write it"
    table = Table(box=None, header_style="bold", caption=done)
    for name in ("queue", "before", "after"):
        table.add_column(name, justify="right")
    for queue, after in sorted(result.after.items()):
        before = result.before.get(queue)
        table.add_row(str(queue), "-" if before is None else f"{before:,}", f"{after:,}")
    return table
