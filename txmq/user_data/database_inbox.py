"""One effect for each message in a user's database, however often the message comes.

The inbox row is part of the user's own transaction: it exists if and only if the effect does. If
two members have the same message, the second waits for the first at the unique key.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from txmq.errors import InboxError, shown
from txmq.message.names import stored_group
from txmq.message.received import ReceivedMessage
from txmq.user_data.database_marker import (
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
# All databases compare such ids letter by letter, and none of them cuts them short.
_SAFE_ID = re.compile(r"[!-~]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class InboxDialect:
    """The statements of the inbox for one kind of database; each `{p}` is the next parameter.

    Attributes:
        create: creates the table.
        insert: parameters are consumer_group, delivery and a JSON list of ids.
        select_new: for databases whose insert does not return its rows; parameters are
            consumer_group, the same list and delivery.
        delete: parameters are consumer_group and seconds.
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


class DatabaseInbox:
    """Keeps which messages a consumer group has handled, in the database that it changes.

    A row holds the group and the id of the first message. So a retry, and a dead letter that was
    sent again, count as the same message. `inbox_table_ddl` gives the statement that creates the
    table. Safe for several threads, each with its own connection.

    Args:
        consumer_group: the name of the group, `tenant%name` inside a namespace.
        table: the inbox table; several groups may share it.

    Raises: InvalidNameError.

    Example:
        >>> inbox = DatabaseInbox("billing")
        >>> with connection:
        ...     with inbox.once(connection, message) as is_new:
        ...         if is_new:
        ...             book(connection, message)
    """

    def __init__(self, consumer_group: str, *, table: str = INBOX_TABLE) -> None:
        """Check the names; it connects to nothing."""
        self.consumer_group = stored_group(consumer_group)
        self.table = check_table(table, "inbox table")

    @contextmanager
    def once(self, connection: Any, message: ReceivedMessage) -> Iterator[bool]:
        """Write the row of a message in the caller's open transaction, and say if it is new.

        The caller commits row and effect together. If the block raises, roll back: a row without
        its effect would keep the effect out for ever. Runs one or two statements. A retry of a
        transaction that was committed finds the row, and the message is not new.

        Args:
            connection: a connection of a DB-API driver or of SQLAlchemy, or an ORM session.
            message: the message to handle.

        Returns:
            As the value of the `with` statement: whether the message was not handled before.

        Raises:
            InboxError: the connection commits each statement by itself, or the message id cannot
                be stored.
            EnvironmentProblemError: the driver is unknown.
            Exception: the errors of the driver.
        """
        yield bool(self.once_all(connection, [message]))

    def once_all(
        self, connection: Any, messages: Sequence[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        """Write the rows of many messages in the caller's open transaction; see `once`.

        Runs one or two statements for each 25,000 messages.

        Args:
            connection: as in `once`.
            messages: the messages to handle.

        Returns:
            The messages that were not handled before, in their order. Of several messages with the
            same origin, only the first.

        Raises: as `once`.
        """
        by_id: dict[str, ReceivedMessage] = {}
        for message in messages:
            by_id.setdefault(self._checked(message.origin_message_id), message)
        database = self._opened(connection)
        ids = sorted(by_id)
        new: set[str] = set()
        for first in range(0, len(ids), STATEMENT_IDS):
            new |= self._put_in(database, ids[first : first + STATEMENT_IDS])
        return [message for message_id, message in by_id.items() if message_id in new]

    def is_handled(self, connection: Any, message: ReceivedMessage) -> bool:
        """Tell whether the row of a message exists; one statement, nothing is written.

        Args:
            connection: as in `once`.
            message: a message, or a retry of it.

        Raises: InboxError for a message id that cannot be stored, EnvironmentProblemError; the
            errors of the driver.
        """
        statement = "SELECT 1 FROM {table} WHERE consumer_group = {p} AND message_id = {p}"
        message_id = self._checked(message.origin_message_id)
        rows = UserDatabase(connection).run(statement, self.table, self.consumer_group, message_id)
        return rows.fetchone() is not None

    def purge(self, connection: Any, *, older_than_s: float) -> int:
        """Delete old rows of this group in the caller's transaction; one statement.

        A message that comes again after that has its effect again. So keep rows longer than the
        topics keep messages, and longer than all retries of a message take.

        Args:
            connection: as in `once`.
            older_than_s: delete rows that are older, by the clock of the database.

        Returns:
            How many rows were deleted.

        Raises: InboxError for an age below one second; otherwise as `once`.
        """
        self._check_age(older_than_s)
        database = self._opened(connection)
        statement = DIALECTS[database.name].delete
        parameters = (self.consumer_group, int(older_than_s))
        return int(database.run(statement, self.table, *parameters).rowcount)

    def create_table(self, connection: Any) -> None:
        """Create the table if it does not exist; one statement, and the caller commits.

        Args:
            connection: as in `once`.

        Raises: EnvironmentProblemError; the errors of the driver.
        """
        database = UserDatabase(connection)
        database.run(DIALECTS[database.name].create, self.table)

    # --- helpers ------------------------------------------------------------------------------

    def _put_in(self, database: UserDatabase, ids: Sequence[str]) -> set[str]:
        """Write the rows that do not exist yet, and return their ids.

        Some databases do not return the rows of an insert, so rows carry the id of this delivery.
        """
        dialect, delivery, id_list = DIALECTS[database.name], str(uuid.uuid4()), json.dumps(ids)
        group = self.consumer_group
        rows = database.run(dialect.insert, self.table, group, delivery, id_list)
        if dialect.select_new is not None:
            rows = database.run(dialect.select_new, self.table, group, id_list, delivery)
        return {str(row[0]) for row in rows.fetchall()}

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
            rule = "older_than_s must be a number of seconds from 1 on"
            raise InboxError(self.table, f"{rule}, not {shown(older_than_s)}")

    def _checked(self, message_id: object) -> str:
        if not isinstance(message_id, str) or not _SAFE_ID.fullmatch(message_id):
            rule = "a message id must be 1 to 128 ASCII characters without spaces"
            raise InboxError(self.table, f"{rule}, not {shown(message_id)}")
        return message_id


def inbox_table_ddl(dialect: str, table: str = INBOX_TABLE) -> str:
    """Return the statement that creates the inbox table.

    Args:
        dialect: postgresql, mysql (also for MariaDB) or sqlite.
        table: the name of the table, also with a schema.

    Raises: InvalidNameError.
    """
    return DIALECTS[database_name(dialect)].create.format(table=check_table(table, "inbox table"))
