"""Pages that read tables for each request: one transaction, one message, offsets, a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txmq.consumer.offsets import TopicOffsets
from txmq.errors import TransactionNotFoundError
from txmq.ground.clock import Clock
from txmq.message.ids import check_transaction_id, message_address
from txmq.message.names import (
    SCHEDULE_TOPIC,
    dead_letter_topic,
    shown_name,
    stored_group,
    stored_topic,
)
from txmq.ops.admin.dead_letters import DeadLetters
from txmq.ops.admin.life import LifeEvent, LifeStage, TransactionLife
from txmq.ops.admin.messages import MessageQuery
from txmq.ops.admin.status import Admin
from txmq.ops.dashboard import rendering as commands
from txmq.ops.dashboard.pages import ROWS_MAX, Content, Seen, is_known_topic, paged, whole_number

if TYPE_CHECKING:
    from txmq.store.store import Store


# So many rows of one transaction in each table, and keys in a search.
MESSAGES_MAX = 200
SEARCHED_ROWS_MAX = 500_000
BODY_SHOWN_BYTES = 4_096
_BAD = frozenset({"DISCARDED", "INCOMPLETE", "DISCARD"})
_GOOD = frozenset({"COMMITTED", "DELIVERED"})


@dataclass(frozen=True, slots=True)
class Lookups:
    """Reads what one page is about; commits nothing.

    Args:
        show_bodies: whether a page of a message has its body.
    """

    store: Store
    clock: Clock | None = None
    show_bodies: bool = False

    def life(self, seen: Seen, transaction_id: str) -> Content:
        """Read one transaction as a timeline. Raises: TransactionNotFoundError, StorageError."""
        admin = Admin(self.store, clock=self.clock)
        life = admin.transaction(transaction_id, max_messages=MESSAGES_MAX)
        aside = [
            row for row in seen.snapshot.status.set_aside if row.transaction_id == transaction_id
        ]
        acts = commands.of_transaction(
            seen.location, transaction_id, life.state, is_set_aside=bool(aside)
        )
        show = commands.txmq("All of it, with its place in the logs", "show", seen.location,
                             transaction_id)  # fmt: skip
        return {
            "life": life,
            "events": _timeline(life),
            "set_aside": aside,
            "is_cut": life.messages_found > MESSAGES_MAX,
            "commands": [*acts, show],
        }

    def message(self, seen: Seen, message_id: str) -> Content:
        """Read one message and where it is. Raises: MessageNotFoundError, StorageError."""
        query = MessageQuery(self.store)
        message = query.by_id(message_id, with_body=self.show_bodies, with_trace=False)
        whole = commands.txmq("With its trace and its body", "message", seen.location, "--id",
                              message_id, "--body")  # fmt: skip
        delayed = commands.of_delayed(seen.location, message.message_id, message.producer_group)
        return {
            "message": message,
            "body": None if message.body is None else shown_body(message.body),
            "commands": [*(delayed if message.where == "scheduled" else ()), whole],
        }

    def offsets(self, seen: Seen, topic: str) -> Content:
        """Read the offsets of a topic, for one page of its queues."""
        name = stored_topic(topic)
        if not is_known_topic(seen, name):
            self.store.topic_location(name)
        offsets = TopicOffsets(self.store, name)
        settings = seen.snapshot.topics.settings.get(name)
        queues = max(offsets.queue_count(), settings.queue_nums if settings else 0)
        page = paged(seen, f"/topics/{name}", range(queues))
        # The schedule has no queues of its own.
        ids = [] if name == SCHEDULE_TOPIC else list(page.rows)
        first, end = offsets.first(ids), offsets.end(ids)
        rows = [{"queue": queue, "first": first[queue], "end": end[queue]} for queue in ids]
        return {"page": page, "queues": rows}

    def letters(self, seen: Seen, group: str) -> Content:
        """Read a page of the dead letters of a consumer group, oldest first."""
        name = stored_group(group)
        letters = DeadLetters(self.store, name, clock=self.clock)
        ends = TopicOffsets(self.store, dead_letter_topic(name))
        first, end = ends.first([0])[0], ends.end([0])[0]
        start = letters.first_offset(max(first, whole_number(seen.query.get("from"))))
        rows = letters.between(start, min(end, start + ROWS_MAX))
        following = start + ROWS_MAX
        return {
            "group": name,
            "letters": rows,
            "first": first,
            "end": end,
            "start": start,
            "next": f"?from={following}" if following < end else None,
            "previous": f"?from={max(first, start - ROWS_MAX)}" if start > first else None,
            "commands": commands.of_dead_letters(seen.location, shown_name(name)),
        }

    def search(self, seen: Seen) -> Content:
        """Find messages with a key, or the path of what an id names."""
        text, topic = seen.query.get("q", "").strip(), seen.query.get("topic", "").strip()
        content: Content = {"q": text, "topic": topic, "found": None, "to": None}
        if not text:
            return content
        if address := _address(text):
            return {**content, "to": address}
        name = stored_topic(topic) if topic else None
        messages = MessageQuery(self.store).newest_by_key(
            text, topic=name, max_rows=SEARCHED_ROWS_MAX
        )
        within = ("--topic", topic) if topic else ()
        whole = commands.txmq("Search all of it", "message", seen.location, "--key", text, *within)
        return {**content, "found": messages, "commands": [whole]}


def shown_body(body: bytes) -> dict[str, Any]:
    """Return the beginning of a body: as text, or in hexadecimal digits if it is none."""
    beginning, is_cut = body[:BODY_SHOWN_BYTES], len(body) > BODY_SHOWN_BYTES
    try:
        # The cut may go through a character.
        text, kind = beginning.decode("utf-8", "ignore" if is_cut else "strict"), "text"
    except UnicodeDecodeError:
        text, kind = beginning.hex(" "), "hexadecimal"
    return {"text": text, "kind": kind, "size_bytes": len(body), "is_cut": is_cut}


def _address(text: str) -> str | None:
    """Return the path of the page of an id; None for a text that can be no id."""
    try:
        message_address(text)
    except TransactionNotFoundError:
        pass
    else:
        return f"/messages/{text}"
    try:
        return f"/transactions/{check_transaction_id(text)}"
    except TransactionNotFoundError:
        return None


def _timeline(life: TransactionLife) -> list[dict[str, Any]]:
    """Return the events, each with the time since the one before."""
    rows: list[dict[str, Any]] = []
    before: LifeEvent | None = None
    for event in life.events:
        after_s = None if before is None else (event.at - before.at).total_seconds()
        rows.append({"event": event, "after_s": after_s, "tone": _tone(event)})
        before = event
    return rows


def _tone(event: LifeEvent) -> str:
    if event.stage is LifeStage.DEAD_LETTER or event.title in _BAD:
        return "bad"
    if event.stage is LifeStage.MESSAGE or event.title in _GOOD:
        return "good"
    return "plain"
