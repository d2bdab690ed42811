"""`txmq produce`, `message` and `recall`: messages by hand. Bodies are shown only on request."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txmq.admin.found_message import FoundMessage, MessagePlace
from txmq.admin.messages import MAX_COUNT, MessageQuery
from txmq.cli.shared import AsJson, Location, console, location_and, print_json, say
from txmq.message.message import Message
from txmq.message.names import shown_name, stored_name, wrapped
from txmq.producer.producer import TransactionProducer
from txmq.producer.trace_records import TraceRecord
from txmq.store.opening import open_store

if TYPE_CHECKING:
    from rich.status import Status

CLI_GROUP = "txmq-cli"
BATCH_MESSAGES = 1_000
BATCH_BYTES = 8 * 1024 * 1024
SHOWN_BODY_BYTES = 4_096

ProducerGroup = Annotated[str, typer.Option("--group", help="The producer group that sends.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", help="In which the names are meant (R94).")
]


def add_message_commands(app: typer.Typer) -> None:
    """Make the commands part of `txmq`."""
    app.command()(produce)
    app.command()(message)
    app.command()(recall)


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
        str | None, typer.Option("--sharding-key", help="The same one, the same queue.")
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

    Without --body and --file each line of standard input is a body, as it is but for its end.
    """
    location, topic = location_and(location, topic, "TOPIC")
    form = _Form(
        topic=topic,
        tags=tag,
        keys=tuple(key or ()),
        properties=_pairs(properties or []),
        sharding_key=sharding_key,
        delay_level=delay_level,
        delay_s=delay_s,
        deliver_timestamp=None if deliver_at is None else _moment(deliver_at),
    )
    # What is wrong with the options is told before anything is read or sent.
    form.message(b"")
    store = open_store(location)
    with (
        TransactionProducer(store, producer_group=group, namespace=namespace) as producer,
        _Sent(as_json=as_json) as sent,
    ):
        for batch in _batches(form.message(each) for each in _bodies(body, file)):
            sent.add(producer.send(batch, queue_id=queue_id).message_ids)


def message(  # noqa: PLR0913 - the options of a command
    location: Location,
    *,
    message_id: Annotated[str | None, typer.Option("--id", help="Of one message.")] = None,
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
    if sum(each is not None for each in (message_id, key, transaction_id)) != 1:
        raise typer.BadParameter("give one of the three", param_hint="--id / --key / --transaction")
    if topic is not None and key is None:
        raise typer.BadParameter("goes with --key only", param_hint="--topic")
    query = MessageQuery(open_store(location))
    if message_id is not None:
        found: Sequence[FoundMessage] = [query.by_id(message_id, with_body=with_body)]
    elif transaction_id is not None:
        found = query.by_transaction(transaction_id, max_count=max_count, with_body=with_body)
    else:
        own = None if topic is None else wrapped(stored_name(topic), namespace)
        found = query.by_key(key or "", topic=own, max_count=max_count, with_body=with_body)
    if as_json:
        print_json({"count": len(found), "messages": [one.to_dict() for one in found]})
    else:
        console().print(messages_view(found))


def recall(
    location: Location,
    message_id: Annotated[
        str | None, typer.Argument(help="Of a delayed message.", show_default=False)
    ] = None,
    *,
    group: ProducerGroup = CLI_GROUP,
    namespace: Namespace = None,
) -> None:
    """Take a delayed message back before it is due."""
    location, own_id = location_and(location, message_id, "MESSAGE_ID")
    store = open_store(location)
    with TransactionProducer(store, producer_group=group, namespace=namespace) as producer:
        producer.recall(own_id)
    say(f"{own_id} is recalled")


# --- produce -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Form:
    """What all messages of one call share."""

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
    """Prints the ids of what is acknowledged, also where a later batch fails."""

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
        own = console(stderr=True)
        # Ids on the same terminal are progress enough, and few messages need none.
        if self._status is None and own.is_terminal and not sys.stdout.isatty():
            self._status = own.status("")
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


def _bodies(given: Sequence[str] | None, files: Sequence[Path] | None) -> Iterator[bytes]:
    if given or files:
        yield from (text.encode() for text in given or ())
        yield from (path.read_bytes() for path in files or ())
        return
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _batches(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Several messages a commit; a person at a terminal sees each sent at once."""
    most = 1 if sys.stdin.isatty() else BATCH_MESSAGES
    batch: list[Message] = []
    size_bytes = 0
    for each in messages:
        batch.append(each)
        size_bytes += each.body_size_bytes
        if len(batch) >= most or size_bytes >= BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _pairs(texts: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise typer.BadParameter("must be NAME=VALUE", param_hint="--property")
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint="--property")
        found[name] = value
    return found


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        problem = "must be a time such as 2026-07-01T12:00:00Z"
        raise typer.BadParameter(problem, param_hint="--deliver-at") from None


# --- message -------------------------------------------------------------------------------------


def messages_view(found: Sequence[FoundMessage]) -> RenderableType:
    """Each message as lines of a name and a value."""
    count = "1 message" if len(found) == 1 else f"{len(found):,} messages"
    return Group(*chain.from_iterable(_view(one) for one in found), Text(count))


def _view(found: FoundMessage) -> Iterator[RenderableType]:
    yield Text(f"{found.message_id}: {found.where}", style="bold")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    for name, value in _facts(found).items():
        table.add_row(name, Text(str(value)))
    yield table


def _facts(found: FoundMessage) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "topic": shown_name(found.topic),
        "group": shown_name(found.producer_group),
        "tag": found.tags,
        "keys": found.keys,
        "sharding key": found.sharding_key,
        "properties": ", ".join(f"{name}={value}" for name, value in found.properties.items()),
        "born": _time(found.born_timestamp),
        "kind": None if found.ordinary is None else _kind(is_ordinary=found.ordinary),
        "transaction": None if found.state is None else f"{found.state.value} by {found.source}",
        "half": "there" if found.is_half else "removed",
        "delivery": found.delivery,
        "due": None if found.due is None else _time(found.due),
    }
    for name, places in (("in", found.places), ("dead letter in", found.dead_letters)):
        facts.update({f"{name} {shown_name(one.topic)}": _place(one) for one in places})
    facts.update({f"trace {at}": _trace(one) for at, one in enumerate(found.trace, 1)})
    if found.body is not None:
        facts["body"] = _shown_body(found.body)
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _kind(*, is_ordinary: bool) -> str:
    return "ordinary" if is_ordinary else "transactional"


def _place(place: MessagePlace) -> str:
    at = f"queue {place.queue_id}, offset {place.queue_offset:,}"
    return f"{at}, since {_time(place.store_timestamp)}"


def _trace(record: TraceRecord) -> str:
    said = [record.trace_type.value, "ok" if record.success else record.error or "not as asked"]
    if record.asked is not None:
        said.append(f"asked {record.asked.value}")
    if record.state is not None:
        said.append(f"is {record.state.value} by {record.source}")
    if record.from_check:
        said.append("from check")
    if record.cost_ms is not None:
        said.append(f"{record.cost_ms:,.1f} ms")
    return ", ".join(said)


def _shown_body(body: bytes) -> str:
    text = body[:SHOWN_BODY_BYTES].decode(errors="backslashreplace")
    more = len(body) - SHOWN_BODY_BYTES
    return text if more <= 0 else f"{text}… ({more:,} bytes more; --json shows all)"


def _time(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="milliseconds")
