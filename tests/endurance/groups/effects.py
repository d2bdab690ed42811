"""What a group's handlers do to the group's own database, behind an inbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from txmq.message.received import ReceivedMessage
from txmq.user_data.database_inbox import DatabaseInbox

# A member may be stopped in the middle of a transaction.
WAIT_S = 120.0


class Effects:
    """One row for each effect; nothing but the inbox keeps a second one out."""

    def __init__(self, folder: Path, group: str, member: str) -> None:
        self._connection = opened(folder, group)
        self._inbox, self._member = DatabaseInbox(group), member

    def apply(self, messages: Sequence[ReceivedMessage]) -> None:
        """All in one transaction."""
        with self._connection:
            new = self._inbox.once_all(self._connection, messages)
            rows = [(message.origin_message_id, self._member) for message in new]
            self._connection.executemany("INSERT INTO effects VALUES (?, ?)", rows)

    def apply_one(self, message: ReceivedMessage) -> None:
        with self._connection, self._inbox.once(self._connection, message) as is_new:
            if is_new:
                row = (message.origin_message_id, self._member)
                self._connection.execute("INSERT INTO effects VALUES (?, ?)", row)


def opened(folder: Path, group: str) -> sqlite3.Connection:
    # Handlers run in a thread of the consumer's own.
    path = folder / f"{group}.sqlite"
    connection = sqlite3.connect(path, timeout=WAIT_S, check_same_thread=False)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def create(folder: Path, group: str) -> None:
    with closing(opened(folder, group)) as connection, connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE effects (message_id TEXT, member TEXT)")
        DatabaseInbox(group).create_table(connection)


def effects_of(folder: Path, group: str) -> list[str]:
    with closing(opened(folder, group)) as connection:
        return [str(row[0]) for row in connection.execute("SELECT message_id FROM effects")]
