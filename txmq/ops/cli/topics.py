"""`txmq topics …` and `txmq rebuild-topic`: create, list, describe, alter, delete, rebuild."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from txmq.errors import ConfigError
from txmq.message.names import shown_name
from txmq.ops.admin.rebuild_plan import TopicRebuild
from txmq.ops.admin.topics import KEEP, TopicDeletion, TopicDescription, Topics, TopicSummary
from txmq.ops.cli.shared import (
    AsJson,
    Column,
    Location,
    end_if_unusable,
    location_and,
    pairs,
    show,
    table,
)
from txmq.store.store import open_store
from txmq.store.topic_settings import TopicKind, TopicSettings

TopicName = Annotated[str | None, typer.Argument(help="Its name.", show_default=False)]
Kind = Annotated[TopicKind | None, typer.Option("--kind", help="Which messages it takes.")]
Queues = Annotated[int | None, typer.Option("--queues", help="How many queues it has.")]
ReservedTime = Annotated[
    float | None,
    typer.Option("--reserved-time-h", help="Messages may go when they are so many hours old."),
]
Body = Annotated[
    Path | None, typer.Option("--body", help="A JSON file with the schema of its bodies.")
]
Apply = Annotated[bool, typer.Option("--apply", help="Do it; without this it is shown only.")]

topics_app = typer.Typer(no_args_is_help=True, help="Topics: make, look, alter, delete.")


def add_topic_commands(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.add_typer(topics_app, name="topics")
    app.command("rebuild-topic")(rebuild_topic)


@topics_app.command("create")
def create(  # noqa: PLR0913 - the options of a command
    location: Location,
    topic: TopicName = None,
    *,
    kind: Kind = None,
    queues: Queues = None,
    reserved_time_h: ReservedTime = None,
    body: Body = None,
    as_json: AsJson = False,
) -> None:
    """Make a topic and its table."""
    location, name = location_and(location, topic, "TOPIC")
    settings = Topics(open_store(location)).create(
        name,
        kind=kind or TopicKind.UNSPECIFIED,
        queue_nums=queues,
        reserved_time_h=reserved_time_h,
        body=None if body is None else _body_of(body),
    )
    _show_settings(name, settings, as_json=as_json)


@topics_app.command("list")
def list_topics(location: Location, *, as_json: AsJson = False) -> None:
    """List all topics, those of txmq itself too."""
    topics = Topics(open_store(location)).all()
    summary = f"{len(topics):,} topics"
    show({"topics": topics}, lambda _: table(topics, _COLUMNS, summary), as_json=as_json)
    end_if_unusable({one.topic: one.problem for one in topics if one.problem is not None})


@topics_app.command("describe")
def describe(location: Location, topic: TopicName = None, *, as_json: AsJson = False) -> None:
    """Show all about one topic: settings, size, queues, oldest and newest message."""
    location, name = location_and(location, topic, "TOPIC")
    description = Topics(open_store(location)).describe(name)
    show(description, _description_view, as_json=as_json)


@topics_app.command("alter")
def alter(  # noqa: PLR0913 - the options of a command
    location: Location,
    topic: TopicName = None,
    *,
    kind: Kind = None,
    queues: Queues = None,
    reserved_time_h: ReservedTime = None,
    for_ever: Annotated[bool, typer.Option("--for-ever", help="Keep all messages.")] = False,
    body: Body = None,
    any_body: Annotated[bool, typer.Option("--any-body", help="Take any bytes.")] = False,
    read_only: Annotated[
        bool | None,
        typer.Option("--read-only/--writable", help="Refuse new messages, or take them again."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Fewer queues, though some get no new messages then.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic; what is left out stays as it is."""
    _check_one_of(reserved_time_h is not None, for_ever, "--reserved-time-h / --for-ever")
    _check_one_of(body is not None, any_body, "--body / --any-body")
    location, name = location_and(location, topic, "TOPIC")
    settings = Topics(open_store(location)).alter(
        name,
        kind=kind,
        queue_nums=queues,
        reserved_time_h=KEEP if reserved_time_h is None and not for_ever else reserved_time_h,
        body=_body_of(body) if body is not None else None if any_body else KEEP,
        is_read_only=read_only,
        force=force,
    )
    _show_settings(name, settings, as_json=as_json)


@topics_app.command("delete")
def delete(
    location: Location, topic: TopicName = None, *, apply: Apply = False, as_json: AsJson = False
) -> None:
    """Remove a topic and its messages; without --apply only show what would go."""
    location, name = location_and(location, topic, "TOPIC")
    result = Topics(open_store(location)).delete(name, apply=apply)
    show(result, _deletion_view, as_json=as_json)


def rebuild_topic(  # noqa: PLR0913 - the options of a command
    location: Location,
    topic: TopicName = None,
    *,
    apply: Apply = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Put back consumer groups under which offsets move."),
    ] = False,
    give_up: Annotated[
        bool,
        typer.Option("--give-up", help="Do without messages that no other table holds any more."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Repair a topic from half and settled; without --apply only show what is wrong."""
    location, name = location_and(location, topic, "TOPIC")
    topics = Topics(open_store(location))
    result = topics.rebuild(name, apply=apply, force=force, give_up=give_up)
    show(result, _rebuild_view, as_json=as_json)


def _body_of(path: Path) -> Mapping[str, Any]:
    try:
        # Bytes: JSON knows the byte order marks of Windows by itself.
        body = json.loads(path.read_bytes())
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ConfigError([f"{path} is no JSON: {place}: {error.msg}"]) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError([f"{path} cannot be read as JSON ({type(error).__name__})"]) from error
    if not isinstance(body, dict):
        raise ConfigError([f"{path} must hold one JSON object"])
    return body


def _check_one_of(first: bool, second: bool, hint: str) -> None:  # noqa: FBT001 - two of a kind
    if first and second:
        raise typer.BadParameter("give one of both", param_hint=hint)


def _show_settings(topic: str, settings: TopicSettings, *, as_json: bool) -> None:
    lines = pairs(_settings(settings))
    show(
        {"topic": topic, **settings.to_value()},
        lambda _: Group(Text(topic, style="bold"), lines),
        as_json=as_json,
    )


def _settings(settings: TopicSettings) -> dict[str, str]:
    return {
        "kind": settings.kind.value,
        "queues": f"{settings.queue_nums:,}",
        "messages are kept": _kept_time(settings),
        "bodies": "any bytes" if settings.body is None else "with a schema",
        "new messages": "refused: read-only" if settings.is_read_only else "taken",
    }


def _kept_time(settings: TopicSettings) -> str:
    hours = settings.reserved_time_h
    return "for ever" if hours is None else f"{hours:,g} h"


def _description_view(description: TopicDescription) -> RenderableType:
    summary = description.summary
    origin = "made by an operator" if summary.is_registered else "made by its first message"
    files = f"in {description.files:,} files, {summary.size_bytes:,} bytes"
    lines = {
        **_settings(summary.settings),
        "messages": f"{summary.rows:,} {files}",
        "oldest": description.oldest or "none",
        "newest": description.newest or "none",
        "complete up to": f"op version {description.op_version}",
    }
    if description.begin is not None:
        lines["may be gone up to"] = f"op version {description.begin}"
    for queue, offset in description.next_offsets.items():
        lines[f"queue {queue}"] = f"next offset {offset:,}"
    parts = [Text(f"{shown_name(summary.topic)}: {origin}", style="bold"), pairs(lines)]
    if description.parked is not None:
        where = f"parked from op version {description.parked.from_version}"
        parts.append(Text(f"{where}: {description.parked.reason}", style="red"))
    return Group(*parts)


def _deletion_view(result: TopicDeletion) -> RenderableType:
    size = f"{result.rows:,} messages, {result.size_bytes:,} bytes"
    topic = shown_name(result.topic)
    if result.is_written:
        return Text(f"{topic} is deleted: {size}", style="bold")
    return Text(f"dry run, nothing was written; with --apply {topic} goes: {size}")


def _rebuild_view(result: TopicRebuild) -> RenderableType:
    lines = {
        "messages": f"{result.rows:,} up to op version {result.op_version}",
        "missing": f"{result.missing:,}",
        "extra": f"{result.extra:,}",
        "different": f"{result.different:,}",
        "mark and next offsets": "wrong" if result.marks_differ else "right",
        "kept from the topic itself": f"{result.kept:,}",
        "not published yet": f"{result.unpublished:,}",
        "groups under which offsets move": ", ".join(map(shown_name, result.groups)) or "none",
    }
    return Group(Text(shown_name(result.topic), style="bold"), pairs(lines), _what_follows(result))


def _what_follows(result: TopicRebuild) -> Text:
    if not result.is_needed:
        return Text("nothing is wrong: nothing to write", style="bold green")
    if result.is_written:
        back = "; these groups went back" if result.groups else ""
        return Text(f"rebuilt in one commit{back}", style="bold")
    return Text("dry run, nothing was written; with --apply it is rebuilt", style="bold")


def _notes(summary: TopicSummary) -> str:
    notes = ["of txmq itself"] if summary.is_system else []
    notes += ["parked"] if summary.is_parked else []
    notes += ["read-only"] if summary.settings.is_read_only else []
    return ", ".join(notes)


_COLUMNS: Mapping[str, Column] = {
    "topic": lambda summary: shown_name(summary.topic),
    "kind": "settings.kind",
    "queues": "settings.queue_nums",
    "kept": lambda summary: _kept_time(summary.settings),
    "messages": "rows",
    "bytes": "size_bytes",
    "": _notes,
}
