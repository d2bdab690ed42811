"""`txmq produce`, `message`, `recall` and `erase`: send, find, take back and erase messages."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txmq.message.ids import message_address
from txmq.message.message import Message
from txmq.message.names import group_in_namespace, shown_name, stored_name, wrapped
from txmq.ops.admin.erasure import Erasure, ErasureReport
from txmq.ops.admin.messages import MAX_COUNT, FoundMessage, MessagePlace, MessageQuery
from txmq.ops.cli.shared import (
    AsJson,
    Column,
    Location,
    console,
    end_if_unusable,
    location_and,
    pairs,
    print_json,
    say,
    show,
    table,
)
from txmq.producer.producer import TransactionProducer
from txmq.producer.recall import RecallCheck
from txmq.producer.trace import TraceRecord
from txmq.store.store import open_store

if TYPE_CHECKING:
    from rich.status import Status

    from txmq.store.store import Store


CLI_GROUP = "txmq-cli"
BATCH_MESSAGES = 1_000
BATCH_BYTES = 8 * 1024 * 1024
SHOWN_BODY_BYTES = 4_096
EXIT_LEFT = 1
_KINDS: Mapping[bool | None, str] = {True: "ordinary", False: "transactional"}

ProducerGroup = Annotated[str, typer.Option("--group", help="The producer group that sends.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", help="The namespace of the names (R94).")
]

_TABLE_COLUMNS: Mapping[str, Column] = {
    "table": "table",
    "messages": "messages",
    "commit": lambda erased: None if erased.version is None else str(erased.version),
    "old files": "old_files",
    "unreadable": lambda erased: erased.unreadable or None,
    "gone after": "gone_after",
}


def add_message_commands(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(produce)
    app.command()(message)
    app.command()(recall)
    app.command()(erase)


# --- produce and recall


def produce(  # noqa: PLR0913 - the options of a command
    location: Location,
    topic: Annotated[
        str | None, typer.Argument(help="Where the messages go.", show_default=False)
    ] = None,
    *,
    body: Annotated[list[str] | None, typer.Option("--body", help="A body; repeatable.")] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file", exists=True, dir_okay=False, help="A file whose content is one body."
        ),
    ] = None,
    key: Annotated[list[str] | None, typer.Option("--key", help="A key; repeatable.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="The tag.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property; repeatable."),
    ] = None,
    sharding_key: Annotated[
        str | None, typer.Option("--sharding-key", help="Messages of one key go to one queue.")
    ] = None,
    queue_id: Annotated[int | None, typer.Option("--queue-id", help="The queue itself.")] = None,
    delay_level: Annotated[
        int | None, typer.Option("--delay-level", help="A level of message_delay_level.")
    ] = None,
    delay_s: Annotated[int | None, typer.Option("--delay-s", help="A pause in seconds.")] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(
            "--deliver-at", metavar="ISO-TIME", help="Not before, such as 2026-07-01T12:00:00Z."
        ),
    ] = None,
    group: ProducerGroup = CLI_GROUP,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Send messages without a local transaction and print their ids.

    Without --body and --file each line of standard input is a body, without its line end.
    """
    location, topic = location_and(location, topic, "TOPIC")
    form = _Form(
        topic=topic,
        tags=tag,
        keys=tuple(key or ()),
        properties=_properties(properties or []),
        sharding_key=sharding_key,
        delay_level=delay_level,
        delay_s=delay_s,
        deliver_timestamp=None if deliver_at is None else _moment(deliver_at),
    )
    # Wrong options are refused before anything is read or sent.
    form.message(b"")
    store = open_store(location)
    with (
        TransactionProducer(store, producer_group=group, namespace=namespace) as producer,
        _Sent(as_json=as_json) as sent,
    ):
        for batch in _batches(form.message(content) for content in _bodies(body, file)):
            sent.add(producer.send(batch, queue_id=queue_id).message_ids)


@dataclass(frozen=True, slots=True)
class _Form:
    """The values that all messages of one call share."""

    topic: str
    tags: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    sharding_key: str | None
    delay_level: int | None
    delay_s: int | None
    deliver_timestamp: datetime | None

    def message(self, body: bytes) -> Message:
        return Message(
            self.topic,
            body,
            tags=self.tags,
            keys=self.keys or None,
            properties=self.properties,
            sharding_key=self.sharding_key,
            delay_level=self.delay_level,
            delay_s=self.delay_s,
            deliver_timestamp=self.deliver_timestamp,
        )


class _Sent:
    """Prints the ids of acknowledged messages, also those before a batch that fails."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._ids: list[str] = []
        self._count = 0
        self._status: Status | None = None

    def add(self, message_ids: Sequence[str]) -> None:
        self._count += len(message_ids)
        if self._as_json:
            self._ids += message_ids
        else:
            typer.echo("\n".join(message_ids))
        self._show_progress()

    def _show_progress(self) -> None:
        stderr = console(stderr=True)
        # Ids that are printed on the same terminal show enough progress.
        if self._status is None and stderr.is_terminal and not sys.stdout.isatty():
            self._status = stderr.status("")
            self._status.start()
        if self._status is not None:
            self._status.update(f"{self._count:,} messages")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
        if self._as_json:
            print_json({"count": self._count, "message_ids": self._ids})


def _bodies(texts: Sequence[str] | None, files: Sequence[Path] | None) -> Iterator[bytes]:
    if texts or files:
        yield from (text.encode() for text in texts or ())
        yield from (path.read_bytes() for path in files or ())
        return
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _batches(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Cut messages into batches of one commit; a line that a person types is sent at once."""
    max_messages = 1 if sys.stdin.isatty() else BATCH_MESSAGES
    batch: list[Message] = []
    size_bytes = 0
    for message in messages:
        batch.append(message)
        size_bytes += message.body_size_bytes
        if len(batch) >= max_messages or size_bytes >= BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _properties(texts: Iterable[str]) -> dict[str, str]:
    properties: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise typer.BadParameter("must be NAME=VALUE", param_hint="--property")
        if name in properties:
            raise typer.BadParameter(f"{name} is given twice", param_hint="--property")
        properties[name] = value
    return properties


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        problem = "must be a time such as 2026-07-01T12:00:00Z"
        raise typer.BadParameter(problem, param_hint="--deliver-at") from None


def recall(
    location: Location,
    message_id: Annotated[
        str | None, typer.Argument(help="The id of a delayed message.", show_default=False)
    ] = None,
    *,
    group: ProducerGroup = CLI_GROUP,
    namespace: Namespace = None,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would do, and write nothing.")
    ] = False,
) -> None:
    """Recall a delayed message before it is due. It acts at once, unless with --dry-run."""
    location, message_id = location_and(location, message_id, "MESSAGE_ID")
    store = open_store(location)
    if is_dry_run:
        say(_recall_plan(store, message_id, group_in_namespace(group, namespace)))
        return
    with TransactionProducer(store, producer_group=group, namespace=namespace) as producer:
        producer.recall(message_id)
    say(f"{message_id} is recalled")


def _recall_plan(store: Store, message_id: str, stored_group: str) -> str:
    address = (*message_address(message_id), stored_group)
    if RecallCheck(store).is_recalled(*address):
        return f"{message_id} is recalled already; nothing would be written"
    return f"{message_id} would be recalled; nothing was written. Without --dry-run it is"


# --- message


def message(  # noqa: PLR0913 - the options of a command
    location: Location,
    *,
    message_id: Annotated[str | None, typer.Option("--id", help="The id of one message.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="One of its keys.")] = None,
    transaction_id: Annotated[
        str | None, typer.Option("--transaction", help="All messages of a transaction.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="With --key: look into this topic only.")
    ] = None,
    namespace: Namespace = None,
    max_count: Annotated[
        int, typer.Option("--max-count", min=1, help="The newest so many.")
    ] = MAX_COUNT,
    with_body: Annotated[bool, typer.Option("--body", help="Show bodies too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show where messages are: half, scheduled, visible, dead letter; and their trace."""
    if sum(option is not None for option in (message_id, key, transaction_id)) != 1:
        raise typer.BadParameter("give one of the three", param_hint="--id / --key / --transaction")
    if topic is not None and key is None:
        raise typer.BadParameter("goes with --key only", param_hint="--topic")
    query = MessageQuery(open_store(location))
    if message_id is not None:
        messages: Sequence[FoundMessage] = [query.by_id(message_id, with_body=with_body)]
    elif transaction_id is not None:
        messages = query.by_transaction(transaction_id, max_count=max_count, with_body=with_body)
    else:
        stored = None if topic is None else wrapped(stored_name(topic), namespace)
        messages = query.by_key(key or "", topic=stored, max_count=max_count, with_body=with_body)
    result = {"count": len(messages), "messages": messages}
    show(result, lambda _: _messages_view(messages), as_json=as_json)
    end_if_unusable(query.unusable)


def _messages_view(messages: Sequence[FoundMessage]) -> RenderableType:
    """Show each message as lines of a name and a value."""
    count = "1 message" if len(messages) == 1 else f"{len(messages):,} messages"
    return Group(*chain.from_iterable(map(_message_view, messages)), Text(count))


def _message_view(message: FoundMessage) -> Iterator[RenderableType]:
    yield Text(f"{message.message_id}: {message.where}", style="bold")
    lines = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for name, value in _facts(message).items():
        lines.add_row(name, Text(str(value)))
    yield lines


def _facts(message: FoundMessage) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "topic": shown_name(message.topic),
        "group": shown_name(message.producer_group),
        "tag": message.tags,
        "keys": message.keys,
        "sharding key": message.sharding_key,
        "properties": ", ".join(f"{name}={value}" for name, value in message.properties.items()),
        "born": _time(message.born_timestamp),
        "kind": _KINDS.get(message.ordinary),
        "transaction": None
        if message.state is None
        else f"{message.state.value} by {message.source or '?'}",
        "half": "there" if message.is_half else "removed",
        "delivery": message.delivery,
        "due": None if message.due is None else _time(message.due),
    }
    for name, places in (("in", message.places), ("dead letter in", message.dead_letters)):
        facts.update({f"{name} {shown_name(place.topic)}": _place(place) for place in places})
    facts.update(
        {f"trace {number}": _trace(record) for number, record in enumerate(message.trace, 1)}
    )
    if message.body is not None:
        facts["body"] = _shown_body(message.body)
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _place(place: MessagePlace) -> str:
    position = f"queue {place.queue_id}, offset {place.queue_offset:,}"
    return f"{position}, since {_time(place.store_timestamp)}"


def _trace(record: TraceRecord) -> str:
    words = [record.trace_type.value, "ok" if record.success else record.error or "not as asked"]
    if record.asked is not None:
        words.append(f"asked {record.asked.value}")
    if record.state is not None:
        words.append(f"is {record.state.value} by {record.source}")
    if record.from_check:
        words.append("from check")
    if record.cost_ms is not None:
        words.append(f"{record.cost_ms:,.1f} ms")
    return ", ".join(words)


def _shown_body(body: bytes) -> str:
    text = body[:SHOWN_BODY_BYTES].decode(errors="backslashreplace")
    more = len(body) - SHOWN_BODY_BYTES
    return text if more <= 0 else f"{text}… ({more:,} bytes more; --json shows all)"


def _time(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="milliseconds")


# --- erase


def erase(  # noqa: PLR0913 - the options of a command
    location: Location,
    *,
    key: Annotated[str, typer.Option("--key", help="One key of the messages, as a customer's id.")],
    topic: Annotated[
        str | None,
        typer.Option("--topic", help="Only messages to this topic, their retries included."),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Erase; without this it is shown only.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why; it is kept, with your user name.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit code 1 while any file holds the key.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Erase the bodies, keys and properties of all messages with a key, in every table.

    Without --apply it searches every file of half, schedule and topics and shows what it finds: run
    it again afterwards as the proof. Old files go with log clean-up; the time is shown.

    Exit code 1 after --apply: a publisher was writing one of the messages, so run it again.
    """
    _check_options(reason, apply=apply, check=check)
    erasure = Erasure(open_store(location), key, topic=topic)
    report = erasure.look() if reason is None else erasure.apply(reason=reason)
    show(report, _erasure_view, as_json=as_json)
    if report.on_their_way or (check and not report.is_gone):
        raise typer.Exit(EXIT_LEFT)


def _check_options(reason: str | None, *, apply: bool, check: bool) -> None:
    if apply and check:
        raise typer.BadParameter("give one of the two", param_hint="--apply / --check")
    if apply != (reason is not None):
        problem = "--apply needs --reason, and --reason is for --apply"
        raise typer.BadParameter(problem, param_hint="--reason")


def _erasure_view(report: ErasureReport) -> RenderableType:
    if report.is_gone:
        return Text("0 messages, 0 old files: no file of the store's tables holds this key")
    done = "erased" if report.is_written else "found"
    total = f"{report.messages:,} rows {done}, {report.old_files:,} old files hold them"
    return Group(table(report.tables, _TABLE_COLUMNS, total), *_hints(report))


def _hints(report: ErasureReport) -> list[RenderableType]:
    hints: list[RenderableType] = []
    if report.reason is not None:
        hints.append(pairs({"reason": report.reason}))
    if report.on_their_way:
        ids = ", ".join(report.on_their_way)
        hints.append(Text(f"a publisher was writing these: run it again: {ids}", style="bold"))
    if not report.is_written:
        dry = "nothing was written; with --apply --reason they are erased"
        hints.append(Text(dry if report.messages else _waiting(report), style="bold"))
    return hints


def _waiting(report: ErasureReport) -> str:
    """Tell what is left to wait for, or to do."""
    if any(erased.old_files and erased.gone_after is None for erased in report.tables):
        return "the log is not closed after the old files: run it with --apply --reason"
    if report.old_files:
        return "a broker or txmq maintenance removes the old files after the time shown"
    return "nobody can tell what unreadable files hold; maintenance removes them when they are old"
