"""`txmq dead-letters …`: list, show, replay and purge what consumers could not handle."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from txmq.consumer.group import group_names
from txmq.errors import ConsumerGroupNotFoundError
from txmq.ground.clock import timestamp
from txmq.message.names import shown_name
from txmq.ops.admin.dead_letter_notes import Chosen
from txmq.ops.admin.dead_letters import (
    DeadLetters,
    PurgeResult,
    ReplayResult,
    ReplayTarget,
    groups_with_dead_letters,
)
from txmq.ops.cli.shared import (
    AsJson,
    Column,
    Location,
    location_and,
    pairs,
    show,
    table,
)
from txmq.store.store import Store, open_store
from txmq.store.store_clock import StoreClock

SHOWN_LETTERS = 50
ConsumerGroup = Annotated[
    str, typer.Option("--group", help="The consumer group; tenant%name in a namespace.")
]
MessageIds = Annotated[
    list[str] | None, typer.Option("--id", help="The id of a message; repeatable.")
]
OlderThan = Annotated[
    float | None,
    typer.Option("--older-than-h", min=0.0, help="Those that are older than so many hours."),
]
Everything = Annotated[bool, typer.Option("--all", help="All of them.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it is kept, with your user name.")]
Apply = Annotated[bool, typer.Option("--apply", help="Do it; without this it is shown only.")]

_COLUMNS: Mapping[str, Column] = {
    "message": "message_id",
    "from": "origin_topic",
    "since": lambda letter: letter.store_timestamp.isoformat(timespec="seconds"),
    "sent back": lambda letter: letter.reconsume_times or None,
    "reason": "reason",
    "keys": "keys",
    "": lambda letter: "sent again" if letter.is_replayed else "",
}

dead_letters_app = typer.Typer(
    no_args_is_help=True, help="Messages that a consumer group could not handle."
)


def add_dead_letter_commands(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.add_typer(dead_letters_app, name="dead-letters")


@dead_letters_app.command("list")
def list_dead_letters(
    location: Location,
    *,
    group: Annotated[
        str | None,
        typer.Option("--group", help="Of this group; without it, count those of every group."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, help=f"List so many; without it {SHOWN_LETTERS}, as JSON all."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the dead letters of a consumer group, oldest first. Bodies are never shown."""
    store = open_store(location)
    if group is None:
        _show_groups(store, as_json=as_json)
        return
    dead_letters = _of_group(store, group)
    letters = dead_letters.all(max_count=limit if as_json else limit or SHOWN_LETTERS)
    total = dead_letters.count()
    result: dict[str, object] = {"total": total, "dead_letters": letters}
    if as_json:
        result["audit"] = dead_letters.audit()
    more = f", {total - len(letters):,} more" if total > len(letters) else ""
    summary = f"{total:,} dead letters{more}"
    show(result, lambda _: table(letters, _COLUMNS, summary), as_json=as_json)


@dead_letters_app.command("show")
def show_one(
    location: Location,
    message_id: Annotated[
        str | None, typer.Argument(help="Its id, as `list` shows it.", show_default=False)
    ] = None,
    *,
    group: ConsumerGroup,
    body: Annotated[bool, typer.Option("--body", help="Print its body too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter, and where it comes from."""
    location, message_id = location_and(location, message_id, "MESSAGE_ID")
    letter = _of_group(open_store(location), group).show(message_id, with_body=body)
    show(letter, lambda shown: pairs(shown.to_dict()), as_json=as_json)


@dead_letters_app.command("replay")
def replay(  # noqa: PLR0913 - the options of a command
    location: Location,
    *,
    group: ConsumerGroup,
    message_ids: MessageIds = None,
    older_than_h: OlderThan = None,
    everything: Everything = False,
    to: Annotated[
        ReplayTarget,
        typer.Option("--to", help="retry: to this group alone. topic: to all that read the topic."),
    ] = ReplayTarget.RETRY,
    reason: Why,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters again, each once; without --apply only show what would be sent."""
    store = open_store(location)
    chosen = _chosen(store, message_ids, older_than_h, everything=everything)
    result = _of_group(store, group).replay(chosen, reason=reason, to=to, apply=apply)
    show(result, _replay_view, as_json=as_json)


@dead_letters_app.command("purge")
def purge(  # noqa: PLR0913 - the options of a command
    location: Location,
    *,
    group: ConsumerGroup,
    message_ids: MessageIds = None,
    older_than_h: OlderThan = None,
    everything: Everything = False,
    reason: Why,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Hide dead letters for good; without --apply only show how many."""
    store = open_store(location)
    chosen = _chosen(store, message_ids, older_than_h, everything=everything)
    result = _of_group(store, group).purge(chosen, reason=reason, apply=apply)
    show(result, _purge_view, as_json=as_json)


def _show_groups(store: Store, *, as_json: bool) -> None:
    counts = {
        shown_name(name): DeadLetters(store, name).count()
        for name in groups_with_dead_letters(store)
    }
    lines = {name: f"{count:,} dead letters" for name, count in counts.items()}
    show(
        {"groups": counts},
        lambda _: pairs(lines) if lines else Text("no dead letters"),
        as_json=as_json,
    )


def _of_group(store: Store, group: str) -> DeadLetters:
    """Return the dead letters of a group that is there.

    A misspelt name would look like a group without any. Raises: ConsumerGroupNotFoundError.
    """
    dead_letters = DeadLetters(store, group)
    if dead_letters.consumer_group not in {*group_names(store), *groups_with_dead_letters(store)}:
        raise ConsumerGroupNotFoundError(group)
    return dead_letters


def _chosen(
    store: Store, message_ids: list[str] | None, older_than_h: float | None, *, everything: bool
) -> Chosen:
    if bool(message_ids) + (older_than_h is not None) + everything != 1:
        raise typer.BadParameter("give one of them", param_hint="--id / --older-than-h / --all")
    before = None
    if older_than_h is not None:
        # What is purged comes not back, whatever the clock of this machine says.
        before = timestamp(StoreClock(store).now_ms()) - timedelta(hours=older_than_h)
    return Chosen(tuple(message_ids or ()), before, everything)


def _replay_view(result: ReplayResult) -> RenderableType:
    lines = {topic: f"{count:,} messages" for topic, count in result.topics.items()}
    if result.skipped:
        lines["sent again before"] = f"{result.skipped:,}"
    done, dry = "sent again", "dry run, nothing was written; with --apply they are sent again"
    outcome = done if result.is_written else dry
    return Group(
        Text(f"{result.consumer_group}: {result.messages:,} dead letters", style="bold"),
        pairs({**lines, "reason": result.reason}),
        Text(outcome if result.messages else "nothing to send again", style="bold"),
    )


def _purge_view(result: PurgeResult) -> RenderableType:
    done = f"purged; {result.files:,} files left the table"
    dry = "dry run, nothing was written; with --apply they are hidden for good"
    return Group(
        Text(f"{result.consumer_group}: {result.messages:,} dead letters", style="bold"),
        pairs({"reason": result.reason}),
        Text(done if result.is_written else dry, style="bold"),
    )
