"""One suite over every database that an inbox may be in: real servers, real drivers."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from tests.kit import databases, handed_out
from tests.kit.databases import Database
from txmq.errors import EnvironmentProblemError, InboxError, InvalidNameError
from txmq.message.received import ReceivedMessage
from txmq.ops.cli.app import app
from txmq.user_data.database_inbox import DatabaseInbox, inbox_table_ddl

GROUP = "billing"


@dataclass(frozen=True)
class Shop(Database):
    """Where the effects are."""

    def book(self, connection: Any, message: ReceivedMessage) -> None:
        self.run(connection, "INSERT INTO bookings (id) VALUES (?)", message.message_id)

    def booked(self) -> list[str]:
        with closing(self.connect()) as connection:
            return sorted(str(row[0]) for row in self.run(connection, "SELECT id FROM bookings"))


@pytest.fixture(params=databases.KINDS)
def shop(
    request: pytest.FixtureRequest, servers: Callable[[str], databases.Server], tmp_path: Path
) -> Iterator[Shop]:
    with databases.database(request.param, servers, tmp_path / "shop.sqlite") as made:
        shop = Shop(made.connect, made.parameter, made.by_sqlalchemy)
        with closing(shop.connect()) as connection:
            for table in ("bookings", "txmq_inbox"):
                shop.run(connection, f"DROP TABLE IF EXISTS {table}")
            shop.run(connection, "CREATE TABLE bookings (id VARCHAR(64))")
            DatabaseInbox(GROUP).create_table(connection)
            connection.commit()
        yield shop


def message(number: int, origin: int | None = None) -> ReceivedMessage:
    properties = {} if origin is None else {"ORIGIN_MESSAGE_ID": f"message-{origin}:0"}
    return handed_out.message(f"message-{number}:0", properties=properties)


def handle(shop: Shop, received: ReceivedMessage, group: str = GROUP) -> bool:
    """A handler as a user would write it."""
    with closing(shop.connect()) as connection:
        with DatabaseInbox(group).once(connection, received) as is_new:
            if is_new:
                shop.book(connection, received)
        connection.commit()
    return is_new


# --- one ------------------------------------------------------------------------------------------


def test_message_that_comes_again_has_one_effect(shop: Shop) -> None:
    assert [handle(shop, message(1)) for _ in range(3)] == [True, False, False]
    assert shop.booked() == ["message-1:0"]


def test_retry_is_the_same_message(shop: Shop) -> None:
    handle(shop, message(1))

    assert not handle(shop, message(2, origin=1))
    assert shop.booked() == ["message-1:0"]


def test_effect_that_was_rolled_back_takes_place_the_next_time(shop: Shop) -> None:
    with closing(shop.connect()) as connection:
        with pytest.raises(ZeroDivisionError), DatabaseInbox(GROUP).once(connection, message(1)):
            shop.book(connection, message(1))
            raise ZeroDivisionError
        connection.rollback()

    assert shop.booked() == []
    assert handle(shop, message(1))
    assert shop.booked() == ["message-1:0"]


def test_member_that_died_before_its_offset_was_committed_has_one_effect(shop: Shop) -> None:
    dying = shop.connect()
    with DatabaseInbox(GROUP).once(dying, message(1)) as is_new:
        assert is_new
        shop.book(dying, message(1))
    dying.commit()
    dying.close()

    assert not handle(shop, message(1))
    assert shop.booked() == ["message-1:0"]


def test_each_group_has_effects_of_its_own(shop: Shop) -> None:
    assert handle(shop, message(1))
    assert handle(shop, message(1), group="acme%billing")
    assert not handle(shop, message(1), group="acme.billing")


def test_what_is_handled_can_be_looked_up(shop: Shop) -> None:
    handle(shop, message(1))

    with closing(shop.connect()) as connection:
        inbox = DatabaseInbox(GROUP)
        assert inbox.is_handled(connection, message(1))
        assert not inbox.is_handled(connection, message(2))


# --- two members ----------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
def test_second_member_waits_for_the_first(shop: Shop, *, commits: bool) -> None:
    if shop.is_sqlite:
        pytest.skip("SQLite has one writer; the second one is told that it is locked")
    first, answers = shop.connect(), []
    with DatabaseInbox(GROUP).once(first, message(1)) as is_new:
        assert is_new
        shop.book(first, message(1))
    second = threading.Thread(target=lambda: answers.append(handle(shop, message(1))))
    second.start()
    second.join(0.3)
    assert second.is_alive()

    first.commit() if commits else first.rollback()
    second.join(30)
    first.close()

    assert answers == [not commits]
    assert shop.booked() == ["message-1:0"]


def test_members_that_race_for_many_have_each_effect_once(shop: Shop) -> None:
    if shop.is_sqlite:
        pytest.skip("SQLite has one writer")
    several = [message(number) for number in range(60)]

    def member(order: list[ReceivedMessage]) -> None:
        for first in range(0, len(order), 20):
            with closing(shop.connect()) as connection:
                batch = order[first : first + 20]
                for new in DatabaseInbox(GROUP).once_all(connection, batch):
                    shop.book(connection, new)
                connection.commit()

    threads = [threading.Thread(target=member, args=(several,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert shop.booked() == sorted(expected.message_id for expected in several)


# --- many -----------------------------------------------------------------------------------------


def test_new_ones_of_many_come_in_their_order(shop: Shop) -> None:
    handle(shop, message(2))
    several = [message(3), message(2), message(1), message(9, origin=3)]

    with closing(shop.connect()) as connection:
        new = DatabaseInbox(GROUP).once_all(connection, several)
        connection.commit()

    assert new == [several[0], several[2]]


def test_very_many_are_few_statements(shop: Shop) -> None:
    rows = [{"message_id": f"message-{number}:0"} for number in range(30_000)]
    several = handed_out.messages(rows)

    with closing(shop.connect()) as connection:
        inbox = DatabaseInbox(GROUP)
        first = inbox.once_all(connection, several)
        again = inbox.once_all(connection, several[10:])
        connection.commit()
        assert inbox.once_all(connection, []) == []

    assert (len(first), again) == (30_000, [])


# --- retention ------------------------------------------------------------------------------------


def test_rows_are_forgotten_by_age(shop: Shop) -> None:
    for number in (1, 2):
        handle(shop, message(number))
    handle(shop, message(1), group="others")
    past = "2001-01-01 00:00:00"
    with closing(shop.connect()) as connection:
        statement = "UPDATE txmq_inbox SET handled_at = ? WHERE message_id = ?"
        shop.run(connection, statement, past, "message-1:0")
        count = DatabaseInbox(GROUP).purge(connection, older_than_s=3600.5)
        connection.commit()

    assert count == 1
    assert handle(shop, message(1))
    assert not handle(shop, message(2))
    assert not handle(shop, message(1), group="others")


@pytest.mark.parametrize("age", [0, -1, 0.5, float("nan"), float("inf"), True, "3600", None])
def test_age_that_is_none_is_refused(age: Any) -> None:
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(InboxError):
        DatabaseInbox(GROUP).purge(connection, older_than_s=age)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("hostile", ["'); DROP TABLE bookings; --", '"]', "%s", "?", "\\", "{p}"])
def test_hostile_id_is_only_an_id(shop: Shop, hostile: str) -> None:
    received = handed_out.message(hostile.replace(" ", "_"))

    assert handle(shop, received)
    assert not handle(shop, received)
    assert shop.booked() == [received.message_id]


@pytest.mark.parametrize("own_id", ["", "a b", "é", "x" * 129, "a\x00b", None, 5])
def test_id_that_a_database_could_bend_is_refused(own_id: Any) -> None:
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(InboxError):
        DatabaseInbox(GROUP).once_all(connection, [handed_out.message(own_id)])


@pytest.mark.parametrize("name", ["", "a b", "x;y", "a.b.c", "1st", "t" * 64, 'a"b', None])
def test_hostile_table_is_refused(name: Any) -> None:
    with pytest.raises(InvalidNameError):
        DatabaseInbox(GROUP, table=name)
    with pytest.raises(InvalidNameError):
        inbox_table_ddl("sqlite", name)


@pytest.mark.parametrize("group", ["", "a/b", None, "RETRY_x"])
def test_what_is_no_group_is_refused(group: Any) -> None:
    with pytest.raises(InvalidNameError):
        DatabaseInbox(group)


def test_autocommit_is_refused(shop: Shop) -> None:
    connection = shop.connect()
    if shop.by_sqlalchemy:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
    elif shop.is_sqlite:
        connection.isolation_level = None
    else:
        by_driver = getattr(connection, "set_autocommit", None) or connection.autocommit
        by_driver(True)  # noqa: FBT003 - the drivers' own call

    with (
        pytest.raises(InboxError, match="autocommit"),
        DatabaseInbox(GROUP).once(connection, message(1)),
    ):
        shop.book(connection, message(1))

    connection.close()
    assert shop.booked() == []


def test_connection_of_an_unknown_driver_is_refused() -> None:
    with pytest.raises(EnvironmentProblemError, match="psycopg"):
        DatabaseInbox(GROUP).once_all(object(), [message(1)])


def test_orm_session_carries_the_row(shop: Shop) -> None:
    if not shop.by_sqlalchemy:
        pytest.skip("a session is SQLAlchemy's")
    with closing(shop.connect()) as connection, Session(connection) as session:
        assert DatabaseInbox(GROUP).once_all(session, [message(1)])
        session.commit()
        connection.commit()

    assert not handle(shop, message(1))


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb", "sqlite"])
def test_command_prints_the_statement_that_makes_the_table(dialect: str) -> None:
    result = CliRunner().invoke(app, ["inbox-table", dialect, "--table", "shop_inbox"])

    assert result.exit_code == 0
    assert result.stdout.startswith("CREATE TABLE IF NOT EXISTS shop_inbox (")
    if dialect == "sqlite":
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute(result.stdout)
