"""`txmq topics …` and `txmq rebuild-topic`: make, look, alter, delete, rebuild."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txmq.admin.rebuild_compare import TopicRebuild
from txmq.admin.topic_deletion import TopicDeletion
from txmq.admin.topics import KEEP, TopicDescription, Topics, TopicSummary
from txmq.cli.shared import (
    AsJson,
    Location,
    console,
    list_console,
    location_and,
    print_json,
    print_result,
)
from txmq.errors import ConfigError
from txmq.message.names import shown_name
from txmq.store.opening import open_store
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
    """Put these commands into the app."""
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
    found = Topics(open_store(location)).all()
    if as_json:
        print_json({"topics": [one.to_dict() for one in found]})
    else:
        list_console().print(_list_view(found))


@topics_app.command("describe")
def describe(location: Location, topic: TopicName = None, *, as_json: AsJson = False) -> None:
    """Show all about one topic: settings, size, queues, oldest and newest message."""
    location, name = location_and(location, topic, "TOPIC")
    found = Topics(open_store(location)).describe(name)
    print_result(found, _description_view, as_json=as_json)


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
        force=force,
    )
    _show_settings(name, settings, as_json=as_json)


@topics_app.command("delete")
def delete(
    location: Location, topic: TopicName = None, *, apply: Apply = False, as_json: AsJson = False
) -> None:
    """Take a topic and its messages away; without --apply only show what would go."""
    location, name = location_and(location, topic, "TOPIC")
    found = Topics(open_store(location)).delete(name, apply=apply)
    print_result(found, _deletion_view, as_json=as_json)


def rebuild_topic(
    location: Location, topic: TopicName = None, *, apply: Apply = False, as_json: AsJson = False
) -> None:
    """Set a topic right by what half and settled say; without --apply only show what is wrong."""
    location, name = location_and(location, topic, "TOPIC")
    found = Topics(open_store(location)).rebuild(name, apply=apply)
    print_result(found, _rebuild_view, as_json=as_json)


# --- options -------------------------------------------------------------------------------------


def _body_of(path: Path) -> Mapping[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError([f"{path} cannot be read as JSON ({type(error).__name__})"]) from error
    if not isinstance(body, dict):
        raise ConfigError([f"{path} must hold one JSON object"])
    return body


def _check_one_of(one: bool, other: bool, hint: str) -> None:  # noqa: FBT001 - two of a kind
    if one and other:
        raise typer.BadParameter("give one of both", param_hint=hint)


# --- views ---------------------------------------------------------------------------------------


def _show_settings(topic: str, settings: TopicSettings, *, as_json: bool) -> None:
    if as_json:
        print_json({"topic": topic, **settings.to_value()})
    else:
        console().print(Group(Text(topic, style="bold"), _pairs(_settings(settings))))


def _settings(settings: TopicSettings) -> dict[str, str]:
    hours = settings.reserved_time_h
    return {
        "kind": settings.kind.value,
        "queues": f"{settings.queue_nums:,}",
        "messages are kept": "for ever" if hours is None else f"{hours:,g} h",
        "bodies": "any bytes" if settings.body is None else "with a schema",
    }


def _list_view(found: tuple[TopicSummary, ...]) -> RenderableType:
    table = Table(box=None, header_style="bold")
    columns = ("topic", "kind", "queues", "kept", "messages", "bytes", "")
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=place == 0, overflow="fold")
    for one in found:
        hours = one.settings.reserved_time_h
        kept = "for ever" if hours is None else f"{hours:,g} h"
        kind, queues = one.settings.kind.value, f"{one.settings.queue_nums:,}"
        row = (
            shown_name(one.topic),
            kind,
            queues,
            kept,
            f"{one.rows:,}",
            f"{one.size_bytes:,}",
            _notes(one),
        )
        table.add_row(*map(Text, row))
    return Group(*([table] if found else []), Text(f"{len(found):,} topics"))


def _notes(one: TopicSummary) -> str:
    notes = ["of txmq itself"] if one.is_system else []
    notes += ["parked"] if one.is_parked else []
    return ", ".join(notes)


def _description_view(found: TopicDescription) -> RenderableType:
    one = found.summary
    origin = "made by an operator" if one.is_registered else "made by its first message"
    said = {
        **_settings(one.settings),
        "messages": f"{one.rows:,} in {found.files:,} files, {one.size_bytes:,} bytes",
        "oldest": _text(found.oldest),
        "newest": _text(found.newest),
        "complete up to": f"op version {found.op_version}",
    }
    if found.begin is not None:
        said["may be gone up to"] = f"op version {found.begin}"
    queues = {f"queue {queue}": f"next offset {at:,}" for queue, at in found.next_offsets.items()}
    parts = [Text(f"{shown_name(one.topic)}: {origin}", style="bold"), _pairs({**said, **queues})]
    if found.parked is not None:
        where = f"parked from op version {found.parked.from_version}"
        parts.append(Text(f"{where}: {found.parked.reason}", style="red"))
    return Group(*parts)


def _deletion_view(found: TopicDeletion) -> RenderableType:
    size = f"{found.rows:,} messages, {found.size_bytes:,} bytes"
    if found.is_written:
        return Text(f"{shown_name(found.topic)} is deleted: {size}", style="bold")
    return Text(
        f"dry run, nothing was written; with --apply {shown_name(found.topic)} goes: {size}"
    )


def _rebuild_view(found: TopicRebuild) -> RenderableType:
    said = {
        "messages": f"{found.rows:,} up to op version {found.op_version}",
        "missing": f"{found.missing:,}",
        "extra": f"{found.extra:,}",
        "different": f"{found.different:,}",
        "mark and next offsets": "wrong" if found.marks_differ else "right",
        "kept from the topic itself": f"{found.kept:,}",
        "not published yet": f"{found.unpublished:,}",
    }
    return Group(Text(shown_name(found.topic), style="bold"), _pairs(said), _what_follows(found))


def _what_follows(found: TopicRebuild) -> Text:
    if not found.is_needed:
        return Text("nothing is wrong: nothing to write", style="bold green")
    if found.is_written:
        return Text("rebuilt in one commit", style="bold")
    return Text("dry run, nothing was written; with --apply it is rebuilt", style="bold")


def _pairs(values: Mapping[str, str]) -> RenderableType:
    table = Table(show_header=False, box=None)
    for name, value in values.items():
        table.add_row(Text(f"  {name}"), Text(value))
    return table


def _text(value: object) -> str:
    return "none" if value is None else str(value)
