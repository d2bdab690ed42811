"""One effect for each message in a user's database, however often the message comes.

The inbox row belongs to the user's own transaction: it is there if and only if the effect is. Of
two members that have the same message, the second waits for the first at the unique key.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from txmq.errors import InboxError
from txmq.message.names import stored_group
from txmq.message.received import ReceivedMessage
from txmq.user_data.connection import (
    MYSQL,
    POSTGRESQL,
    SQLITE,
    UserDatabase,
    check_table,
    database_name,
)

INBOX_TABLE = "txmq_inbox"
STATEMENT_IDS = 25_000
MAX_AGE_S = 1e9
# What every database compares letter by letter and none cuts short.
_SAFE_ID = re.compile(r"[!-~]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class InboxDialect:
    """How one kind of database says what the inbox needs; `{p}` are parameters in turn.

    `insert`: consumer_group, delivery, a JSON list of ids. `select_new`, where the insert does not
    tell which rows are its own: consumer_group, the same list, delivery. `delete`: consumer_group,
    seconds.
    """

    create: str
    insert: str
    select_new: str | None
    delete: str


DIALECTS = {
    POSTGRESQL: InboxDialect(
        create="""\
CREATE TABLE IF NOT EXISTS {table} (
  consumer_group VARCHAR(128) NOT NULL,
  message_id VARCHAR(128) NOT NULL,
  delivery VARCHAR(36) NOT NULL,
  handled_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (consumer_group, message_id)
)""",
        insert="""\
INSERT INTO {table} (consumer_group, delivery, message_id)
SELECT {p}, {p}, id FROM json_array_elements_text(CAST({p} AS json)) AS asked(id) ORDER BY id
ON CONFLICT (consumer_group, message_id) DO NOTHING RETURNING message_id""",
        select_new=None,
        delete="""\
DELETE FROM {table} WHERE consumer_group = {p}
AND handled_at < CURRENT_TIMESTAMP - CAST({p} AS double precision) * INTERVAL '1 second'""",
    ),
    MYSQL: InboxDialect(
        create="""\
CREATE TABLE IF NOT EXISTS {table} (
  consumer_group VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  message_id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  delivery VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  handled_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (consumer_group, message_id)
) ENGINE = InnoDB""",
        insert="""\
INSERT IGNORE INTO {table} (consumer_group, delivery, message_id)
SELECT {p}, {p}, id FROM JSON_TABLE({p}, '$[*]' COLUMNS
(id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin PATH '$')) AS asked ORDER BY id""",
        select_new="""\
SELECT message_id FROM {table} WHERE consumer_group = {p} AND message_id IN
(SELECT id FROM JSON_TABLE({p}, '$[*]' COLUMNS
(id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin PATH '$')) AS asked) AND delivery = {p}""",
        delete="""\
DELETE FROM {table} WHERE consumer_group = {p}
AND handled_at < DATE_SUB(CURRENT_TIMESTAMP, INTERVAL {p} SECOND)""",
    ),
    SQLITE: InboxDialect(
        create="""\
CREATE TABLE IF NOT EXISTS {table} (
  consumer_group TEXT NOT NULL,
  message_id TEXT NOT NULL,
  delivery TEXT NOT NULL,
  handled_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (consumer_group, message_id)
)""",
        insert="""\
INSERT OR IGNORE INTO {table} (consumer_group, delivery, message_id)
SELECT {p}, {p}, value FROM json_each({p})""",
        select_new="""\
SELECT message_id FROM {table} WHERE consumer_group = {p} AND message_id IN
(SELECT value FROM json_each({p})) AND delivery = {p}""",
        delete="""\
DELETE FROM {table} WHERE consumer_group = {p}
AND handled_at < datetime('now', '-' || {p} || ' seconds')""",
    ),
}


def inbox_table_ddl(dialect: str, table: str = INBOX_TABLE) -> str:
    """The statement that makes the inbox table, for postgresql, mysql (MariaDB too) or sqlite.

    Raises: InvalidNameError.
    """
    return DIALECTS[database_name(dialect)].create.format(table=check_table(table, "inbox table"))


class DatabaseInbox:
    """Which messages a consumer group has handled, in the database that it changes.

    A row is a group and the id of the first message: a retry, or a dead letter that was sent again,
    is the same message. `inbox_table_ddl` makes the table.

    Args:
        consumer_group: its name, `tenant%name` inside a namespace.
        table: the inbox table; several groups may share it.

    Example:
        >>> inbox = DatabaseInbox("billing")
        >>> with connection:
        ...     with inbox.once(connection, message) as is_new:
        ...         if is_new:
        ...             book(connection, message)
    """

    def __init__(self, consumer_group: str, *, table: str = INBOX_TABLE) -> None:
        """Connect to nothing. Raises: InvalidNameError."""
        self.consumer_group = stored_group(consumer_group)
        self.table = check_table(table, "inbox table")

    @contextmanager
    def once(self, connection: Any, message: ReceivedMessage) -> Iterator[bool]:
        """Whether the message is new; its row is written in the caller's open transaction.

        The caller commits: effect and row together. Where the block raises, roll back: a row
        without its effect would keep the effect out for ever. Two statements.

        Raises: InboxError, EnvironmentProblemError, what the driver raises.
        """
        yield bool(self.once_all(connection, [message]))

    def once_all(
        self, connection: Any, messages: Sequence[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        """Those of the messages that are new, in their order; rows as with `once`.

        Two statements for 25,000 messages. Raises: as `once`.
        """
        by_id: dict[str, ReceivedMessage] = {}
        for message in messages:
            by_id.setdefault(self._checked(message.origin_message_id), message)
        database = self._opened(connection)
        ids = sorted(by_id)
        new: set[str] = set()
        for first in range(0, len(ids), STATEMENT_IDS):
            new |= self._put_in(database, ids[first : first + STATEMENT_IDS])
        return [message for own_id, message in by_id.items() if own_id in new]

    def is_handled(self, connection: Any, message: ReceivedMessage) -> bool:
        """Whether its row is there; one statement, nothing is written."""
        statement = "SELECT 1 FROM {table} WHERE consumer_group = {p} AND message_id = {p}"
        own_id = self._checked(message.origin_message_id)
        found = UserDatabase(connection).run(statement, self.table, self.consumer_group, own_id)
        return found.fetchone() is not None

    def purge(self, connection: Any, *, older_than_s: float) -> int:
        """Forget what was handled so long ago, in the caller's transaction; how many rows.

        By the database's clock. A message that comes again after that has its effect again: keep
        rows longer than its topics keep messages, and longer than all its retries take.

        Raises: InboxError; what the driver raises.
        """
        self._check_age(older_than_s)
        database = self._opened(connection)
        statement = DIALECTS[database.name].delete
        parameters = (self.consumer_group, int(older_than_s))
        return int(database.run(statement, self.table, *parameters).rowcount)

    def create_table(self, connection: Any) -> None:
        """Make the table if it is not there; the caller commits."""
        database = UserDatabase(connection)
        database.run(DIALECTS[database.name].create, self.table)

    # --- helpers ------------------------------------------------------------------------------

    def _put_in(self, database: UserDatabase, ids: Sequence[str]) -> set[str]:
        """Write the rows that are not there; which of them are ours.

        Not each database tells the rows of an insert, so they carry the name of this delivery.
        """
        dialect, delivery, listed = DIALECTS[database.name], str(uuid.uuid4()), json.dumps(ids)
        group = self.consumer_group
        found = database.run(dialect.insert, self.table, group, delivery, listed)
        if dialect.select_new is not None:
            found = database.run(dialect.select_new, self.table, group, listed, delivery)
        return {str(row[0]) for row in found.fetchall()}

    def _opened(self, connection: Any) -> UserDatabase:
        database = UserDatabase(connection)
        if database.commits_by_itself:
            problem = "the connection commits each statement by itself; turn autocommit off"
            raise InboxError(self.table, problem)
        return database

    def _check_age(self, older_than_s: object) -> None:
        # bool is an int in Python.
        is_number = isinstance(older_than_s, int | float) and not isinstance(older_than_s, bool)
        if not is_number or not 1 <= float(str(older_than_s)) < MAX_AGE_S:
            raise InboxError(self.table, "older_than_s must be a number of seconds, 1 or more")

    def _checked(self, message_id: object) -> str:
        if not isinstance(message_id, str) or not _SAFE_ID.fullmatch(message_id):
            problem = "a message id must be 1 to 128 ASCII characters without spaces"
            raise InboxError(self.table, problem)
        return message_id
