"""What operators do with dead letters: shown first, signed, once, and verify stays clean."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner, Result

from tests.kit.bodies import ORDER
from tests.kit.builders import table_versions
from tests.kit.dead_world import CONSUMERS, DEAD, RETRY, DeadWorld
from tests.kit.delay_world import TOPIC
from tests.kit.handed_out import received
from tests.kit.reading import log_rows
from txmq.consumer.send_back import FIRST_DELAY_LEVEL
from txmq.delta.parquet import write_file
from txmq.errors import (
    CommitConflictError,
    InvalidBodyError,
    InvalidMessageError,
    InvalidNameError,
    InvalidReasonError,
    MessageNotFoundError,
    TopicNotRebuiltError,
    TransactionNotFoundError,
)
from txmq.ground.clock import SystemClock
from txmq.maintenance.service import Maintenance
from txmq.message import reasons
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.dead_letter_notes import Chosen
from txmq.ops.admin.dead_letters import DeadLetters, ReplayTarget, groups_with_dead_letters
from txmq.ops.admin.topics import Topics
from txmq.ops.cli.app import app
from txmq.testing import before_commit, failing_commits
from txmq.user_data.database_inbox import DatabaseInbox
from txmq.user_data.delta_inbox import DeltaInbox
from txmq.verify import verify

WHY = "asked the shop"
ALL = Chosen(everything=True)


@pytest.fixture(autouse=True)
def _known_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "_os_user", lambda: "ada")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DeadWorld]:
    made = DeadWorld(tmp_path)
    yield made
    made.producer.close()


def ids(world: DeadWorld) -> list[str]:
    return [one.message_id for one in world.letters.all()]


def is_clean(world: DeadWorld) -> bool:
    world.publisher.run_once()
    report = verify(world.store.location)
    assert report.is_clean, report
    return report.is_clean


# --- looks ----------------------------------------------------------------------------------------


def test_dead_letters_say_where_they_come_from(world: DeadWorld) -> None:
    first, second = world.bury("a", "b", keys="order-1")

    letters = world.letters.all()

    assert [one.message_id for one in letters] == [first, second]
    assert letters[0].origin_topic == TOPIC
    assert letters[0].origin_message_id == world.rows()[0]["message_id"]
    assert (letters[0].keys, letters[0].reason, letters[0].body) == ("order-1", "no customer", None)
    assert not letters[0].is_replayed
    assert letters[0].reconsume_times == 1
    assert [one.message_id for one in world.letters.all(max_count=1)] == [first]
    assert world.letters.count() == 2


def test_one_is_shown_with_its_body_where_that_is_asked_for(world: DeadWorld) -> None:
    _, second = world.bury("a", "b")

    assert world.letters.show(second).body is None
    found = world.letters.show(second, with_body=True)

    assert found.body == b"b"
    assert "b'b'" not in repr(found)
    assert found.to_dict()["body"] == "b"


def test_group_without_dead_letters_has_none(world: DeadWorld) -> None:
    assert world.letters.all() == ()
    assert world.letters.count() == 0
    assert groups_with_dead_letters(world.store) == []
    assert world.letters.replay(ALL, reason=WHY, apply=True).messages == 0
    assert world.letters.purge(ALL, reason=WHY, apply=True).messages == 0


# --- replay ---------------------------------------------------------------------------------------


def test_replay_is_shown_before_it_is_done(world: DeadWorld) -> None:
    world.bury("a", "b")
    before = table_versions(world.store)

    result = world.letters.replay(ALL, reason=WHY)

    assert (result.messages, dict(result.topics)) == (2, {"%RETRY%billing": 2})
    assert not result.is_written
    assert table_versions(world.store) == before


def test_replayed_message_has_all_its_tries_again(world: DeadWorld) -> None:
    own_id, _ = world.bury("a", "b")

    result = world.letters.replay(Chosen((own_id,)), reason=WHY, apply=True)
    world.publisher.run_once()

    assert (result.messages, result.is_written) == (1, True)
    (again,) = world.received(RETRY)
    assert (again.body, again.reconsume_times) == (b"a", 0)
    assert again.origin_topic == TOPIC
    assert "DLQ_ORIGIN_TOPIC" not in again.properties
    assert [one.is_replayed for one in world.letters.all()] == [True, False]
    assert is_clean(world)


def test_replay_that_fails_again_comes_again(world: DeadWorld) -> None:
    (own_id,) = world.bury("a")
    world.letters.replay(Chosen((own_id,)), reason=WHY, apply=True)
    world.publisher.run_once()
    (again,) = world.received(RETRY)

    sent = world.send_back.send_back(again, reason="still none")
    world.publisher.run_once()
    world.clock.advance(10)
    world.deliver()

    assert (sent.reconsume_times, FIRST_DELAY_LEVEL) == (1, 3)
    assert len(world.rows(RETRY)) == 2
    assert is_clean(world)


def test_replay_to_the_topic_goes_to_the_queue_where_it_was(world: DeadWorld) -> None:
    world.bury("a", "b", "c", properties={"region": "eu"})
    queues = [row["queue_id"] for row in world.rows()]

    result = world.letters.replay(ALL, reason=WHY, to=ReplayTarget.TOPIC, apply=True)
    world.publisher.run_once()

    assert dict(result.topics) == {TOPIC: 3}
    by_origin = {r["message_id"]: r for r in world.rows() if r["producer_group"] != "rmq_sys_retry"}
    again = [row for row in world.rows() if row["message_id"] not in by_origin]
    for row in again:
        properties = dict(row["properties"])
        origin = by_origin[properties.pop("ORIGIN_MESSAGE_ID")]
        place = f"{CONSUMERS}/{origin['queue_id']}/{origin['queue_offset']}"
        assert properties == {"region": "eu", "FIRST_PLACES": place}
        assert (row["queue_id"], row["body"]) == (origin["queue_id"], origin["body"])
    assert sorted(row["queue_id"] for row in again) == sorted(queues)
    assert is_clean(world)


def test_replay_to_the_topic_keeps_the_queue_of_its_sharding_key(world: DeadWorld) -> None:
    world.bury("a", sharding_key="customer-1")
    (first,) = world.rows()

    world.letters.replay(ALL, reason=WHY, to=ReplayTarget.TOPIC, apply=True)
    world.publisher.run_once()

    assert [row["queue_id"] for row in world.rows()] == [first["queue_id"]] * 2
    assert is_clean(world)


def test_effect_of_a_call_that_hung_until_its_message_was_dead_is_not_repeated_by_a_replay(
    world: DeadWorld, tmp_path: Path
) -> None:
    write_deltalake(tmp_path / "effects", pa.table({"body": pa.array([], pa.binary())}))
    world.bury("a")
    (dead,) = world.received(TOPIC)
    inbox = DeltaInbox(CONSUMERS, tmp_path / "effects")
    assert inbox.apply([dead], effects_of) == 1, "its handler has hung until now"

    world.letters.replay(ALL, reason=WHY, to=ReplayTarget.TOPIC, apply=True)
    world.publisher.run_once()
    *_, again = world.received(TOPIC)
    other = DeltaInbox("other", tmp_path / "effects")

    assert again.message_id != dead.message_id
    assert inbox.apply([again], effects_of) == 0
    assert other.apply([again], effects_of) == 1, "another group has not had it there"


def test_effect_in_a_database_is_not_repeated_by_the_retry_of_a_replay(world: DeadWorld) -> None:
    """The replay took effect, and its handler failed after it."""
    inbox, database = DatabaseInbox(CONSUMERS), sqlite3.connect(":memory:")
    inbox.create_table(database)
    world.bury("a")
    world.letters.replay(ALL, reason=WHY, to=ReplayTarget.TOPIC, apply=True)
    world.publisher.run_once()
    first, replayed = world.received(TOPIC)
    assert inbox.once_all(database, [replayed])

    world.send_back.send_back(replayed, reason="no ink")
    world.publisher.run_once()
    world.after(10)

    (retry,) = world.received(RETRY)
    assert retry.origin_message_id == first.message_id
    assert not inbox.once_all(database, [retry])


def effects_of(messages: Sequence[ReceivedMessage]) -> pa.Table:
    return pa.table({"body": pa.array([message.body for message in messages], pa.binary())})


def test_each_is_sent_again_once_by_whomever(world: DeadWorld) -> None:
    world.bury("a", "b")
    world.letters.replay(ALL, reason=WHY, apply=True)

    again = world.letters.replay(ALL, reason=WHY, to=ReplayTarget.TOPIC, apply=True)
    world.publisher.run_once()

    assert (again.messages, again.skipped) == (0, 2)
    assert (len(world.rows(RETRY)), len(world.rows())) == (2, 2)


def test_replay_that_died_before_it_was_noted_is_not_sent_twice(world: DeadWorld) -> None:
    world.bury("a", "b")
    with (
        failing_commits(99, error=OSError("gone"), table=f"dead_letters_{CONSUMERS}"),
        pytest.raises(Exception, match="gone"),
    ):
        world.letters.replay(ALL, reason=WHY, apply=True)

    result = world.letters.replay(ALL, reason=WHY, apply=True)
    world.publisher.run_once()

    assert result.messages == 2
    assert len(world.rows(RETRY)) == 2
    assert all(one.is_replayed for one in world.letters.all())
    assert is_clean(world)


def test_large_replay_is_a_few_commits(world: DeadWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txmq.ops.admin.dead_letters.MESSAGES_A_COMMIT", 2)
    world.bury(*"abcde")
    Maintenance(world.store, clock=world.clock).run_once()

    world.letters.replay(ALL, reason=WHY, apply=True)
    world.publisher.run_once()

    assert [row["body"] for row in world.rows(RETRY)] == [b"a", b"b", b"c", b"d", b"e"]
    assert is_clean(world)


def test_who_replayed_and_why_is_kept_with_the_claim(world: DeadWorld) -> None:
    world.bury("a")
    world.letters.replay(ALL, reason=WHY, apply=True)

    (claim,) = [row for row in log_rows(world.store, "op") if row["source"] == "operator"]
    (entry,) = world.letters.audit()

    assert (claim["kind"], claim["reason"]) == ("COMMIT", f"by ada: {WHY}")
    assert (entry["what"], entry["messages"], entry["reason"]) == ("replayed", 1, f"by ada: {WHY}")


def test_body_that_its_topic_does_not_take_any_more_is_refused(world: DeadWorld) -> None:
    world.send("no order")
    Topics(world.store).create("typed", body={"encoding": "json", "schema": ORDER})
    moved = received(world.rows()[0], topic="typed")
    world.send_back.send_back(moved, reason="x", delay_level=-1)
    world.publisher.run_once()
    before = table_versions(world.store)

    with pytest.raises(InvalidBodyError):
        world.letters.replay(ALL, reason=WHY, to=ReplayTarget.TOPIC, apply=True)

    assert table_versions(world.store) == before


# --- purge ----------------------------------------------------------------------------------------


def test_purge_is_shown_before_it_is_done(world: DeadWorld) -> None:
    world.bury("a", "b")
    before = table_versions(world.store)

    result = world.letters.purge(ALL, reason=WHY)

    assert (result.messages, result.files, result.is_written) == (2, 0, False)
    assert table_versions(world.store) == before


def test_purged_message_is_gone_and_no_offset_is_missing(world: DeadWorld) -> None:
    first, second, third = world.bury("a", "b", "c")

    result = world.letters.purge(Chosen((second,)), reason=WHY, apply=True)

    assert (result.messages, result.files) == (1, 0)
    assert ids(world) == [first, third]
    assert len(world.rows(DEAD)) == 3
    with pytest.raises(MessageNotFoundError):
        world.letters.show(second)
    with pytest.raises(MessageNotFoundError):
        world.letters.replay(Chosen((second,)), reason=WHY)
    assert is_clean(world)


def test_files_leave_the_table_once_all_before_them_is_purged(world: DeadWorld) -> None:
    first, second, third, fourth = world.bury("a", "b", "c", "d")
    world.send("later")
    world.letters.purge(Chosen((second,)), reason=WHY, apply=True)

    result = world.letters.purge(Chosen((first,)), reason=WHY, apply=True)

    assert result.files == 2
    assert [row["message_id"] for row in world.rows(DEAD)] == [third, fourth]
    assert ids(world) == [third, fourth]
    assert is_clean(world)
    assert world.bury("e") == ids(world)[-1:]
    assert world.rows(DEAD)[-1]["queue_offset"] == 4
    assert is_clean(world)


def test_all_that_is_older_goes(world: DeadWorld) -> None:
    world.bury("a", "b")
    world.clock.advance(3600)
    (young,) = world.bury("c")

    chosen = Chosen(before=world.now - timedelta(minutes=30))
    result = world.letters.purge(chosen, reason=WHY, apply=True)

    assert result.messages == 2
    assert ids(world) == [young]
    assert is_clean(world)


def test_purged_file_that_compaction_merges_stays_hidden(world: DeadWorld) -> None:
    first, second = world.bury("a", "b")
    world.letters.purge(Chosen((second,)), reason=WHY, apply=True)
    Maintenance(world.store, clock=world.clock).run_once()

    assert ids(world) == [first]
    world.letters.purge(ALL, reason=WHY, apply=True)
    assert ids(world) == []
    assert is_clean(world)


def test_operators_at_once_purge_all_that_both_chose(world: DeadWorld) -> None:
    first, second, third = world.bury("a", "b", "c")
    with failing_commits(2, table=f"dead_letters_{CONSUMERS}"):
        world.letters.purge(Chosen((third,)), reason=WHY, apply=True)
    world.letters.purge(Chosen((second,)), reason=WHY, apply=True)

    assert ids(world) == [first]
    with (
        failing_commits(999, table=f"dead_letters_{CONSUMERS}"),
        pytest.raises(CommitConflictError),
    ):
        world.letters.purge(Chosen((first,)), reason=WHY, apply=True)
    assert ids(world) == [first]


def test_rebuilt_topic_keeps_what_was_purged_and_replayed(world: DeadWorld) -> None:
    first, second, third = world.bury("a", "b", "c")
    world.letters.purge(Chosen((second,)), reason=WHY, apply=True)
    world.letters.replay(Chosen((third,)), reason=WHY, apply=True)

    Topics(world.store).rebuild("%DLQ%billing", apply=True)

    assert ids(world) == [first, third]
    assert [one.is_replayed for one in world.letters.all()] == [False, True]


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["", "a/b", "DLQ_billing", None, "x" * 121])
def test_what_is_no_group_is_refused(world: DeadWorld, group: Any) -> None:
    with pytest.raises(InvalidNameError):
        DeadLetters(world.store, group)


@pytest.mark.parametrize(
    "options",
    [{}, {"message_ids": ("a",), "everything": True}, {"before": datetime.now()}],  # noqa: DTZ005
)
def test_choice_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError):
        Chosen(**options)


@pytest.mark.parametrize("reason", ["", "a\nb", "x" * 501])
def test_nothing_is_done_without_a_reason(world: DeadWorld, reason: str) -> None:
    world.bury("a")
    before = table_versions(world.store)

    for change in (world.letters.replay, world.letters.purge):
        with pytest.raises(InvalidReasonError):
            change(ALL, reason=reason, apply=True)

    assert table_versions(world.store) == before


def test_unknown_id_is_told_before_anything_is_written(world: DeadWorld) -> None:
    (own_id,) = world.bury("a")
    other = world.rows()[0]["message_id"]
    before = table_versions(world.store)

    for change in (world.letters.replay, world.letters.purge):
        with pytest.raises(MessageNotFoundError):
            change(Chosen((own_id, other)), reason=WHY, apply=True)
        with pytest.raises(TransactionNotFoundError):
            change(Chosen(("'; DROP TABLE x",)), reason=WHY, apply=True)

    assert table_versions(world.store) == before


# --- the command ----------------------------------------------------------------------------------


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["dead-letters", *arguments], env={"TXMQ_LOCATION": None})


def told(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_commands_list_show_replay_and_purge(world: DeadWorld) -> None:
    first, second = world.bury("alpha", "beta", keys="order-1")
    place, of_group = world.store.location, ("--group", CONSUMERS)
    why = ("--reason", WHY)

    assert told("list", place) == {"groups": {CONSUMERS: 2}}
    assert "billing" in run("list", place).stdout
    listed = told("list", place, *of_group, "--limit", "1")
    assert (listed["total"], listed["dead_letters"][0]["message_id"]) == (2, first)
    assert first in run("list", place, *of_group).stdout
    assert "1 more" in run("list", place, *of_group, "--limit", "1").stdout
    assert told("show", place, first, *of_group, "--body")["body"] == "alpha"
    assert "alpha" not in run("show", place, first, *of_group).stdout
    assert "dry run" in run("replay", place, *of_group, "--id", first, *why).stdout
    assert told("replay", place, *of_group, "--id", first, *why, "--apply")["messages"] == 1
    assert "sent again" in run("list", place, *of_group).stdout
    again = run("replay", place, *of_group, "--id", first, *why, "--apply")
    assert "nothing to send again" in again.stdout
    assert "dry run" in run("purge", place, *of_group, "--all", *why).stdout
    assert told("purge", place, *of_group, "--older-than-h", "1", *why)["messages"] == 0
    assert told("purge", place, *of_group, "--id", second, *why, "--apply")["is_written"]
    assert told("list", place, *of_group)["audit"][-1]["what"] == "purged"


def test_clock_of_the_operator_makes_no_letter_older(
    world: DeadWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.bury("alpha")
    days_ahead_ms = time.time_ns() // 1_000_000 + 2 * 86_400_000
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: days_ahead_ms)

    asked = ("purge", world.store.location, "--group", CONSUMERS, "--older-than-h", "24")
    assert told(*asked, "--reason", WHY)["messages"] == 0


def test_commands_say_what_is_wrong_in_one_line(world: DeadWorld) -> None:
    (own_id,) = world.bury("a")
    place, of_group = world.store.location, ("--group", CONSUMERS)

    for arguments in (
        ("purge", place, *of_group, "--reason", WHY),
        ("purge", place, *of_group, "--all", "--id", own_id, "--reason", WHY),
        ("replay", place, *of_group, "--all", "--to", "nowhere", "--reason", WHY),
        ("show", place, world.rows()[0]["message_id"], *of_group),
        ("list", place, "--group", "a/b"),
        ("replay", place, *of_group, "--all", "--reason", " "),
    ):
        result = run(*arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert "Traceback" not in result.output


def lose(world: DeadWorld, body: str) -> None:
    """A publisher left it out: the letters behind it have its offset and those that follow."""
    log = world.store.tables.topic_log(DEAD, world.store.tables.op_log().table_id)
    table = log.table
    rows = table.rows.read(table.files.all(), table.log.columns.names).sort_by("queue_offset")
    left = rows.filter(pc.not_equal(rows["body"], body.encode()))
    place = left.column_names.index("queue_offset")
    left = left.set_column(place, left.schema.field(place), pa.array(range(left.num_rows)))
    file = write_file(
        [left], table.log.columns, table.folder.filesystem, table.schema.statistics_columns
    )
    log.replace_files([file], log.mark, {0: left.num_rows})


def rebuilt(world: DeadWorld, **options: bool) -> None:
    assert Topics(world.store, clock=world.clock).rebuild(DEAD, apply=True, **options).is_written


@pytest.mark.parametrize("what", ["purge", "replay"])
def test_rebuild_gives_no_note_to_another_letter(world: DeadWorld, what: str) -> None:
    letters = world.bury("a", "b", "c")
    lose(world, "b")
    getattr(world.letters, what)(Chosen((letters[2],)), reason=WHY, apply=True)

    assert Topics(world.store).rebuild(DEAD).groups == (CONSUMERS,)
    with pytest.raises(TopicNotRebuiltError, match="purged or replayed; force it"):
        rebuilt(world)
    rebuilt(world, force=True)

    assert [(one.message_id, one.is_replayed) for one in world.letters.all()] == [
        (letter, False) for letter in letters
    ]
    world.letters.replay(ALL, reason=WHY, apply=True)
    world.publisher.run_once()
    assert sorted(world.visible(RETRY)) == ["a", "b", "c"]


@pytest.mark.parametrize("what", ["purge", "replay"])
def test_letter_that_a_rebuild_moves_meanwhile_is_not_noted(world: DeadWorld, what: str) -> None:
    letters = world.bury("a", "b", "c")
    lose(world, "b")

    with (
        before_commit(lambda: rebuilt(world), table=f"dead_letters_{CONSUMERS}"),
        pytest.raises(CommitConflictError, match="rebuilt meanwhile; run it again"),
    ):
        getattr(world.letters, what)(Chosen((letters[2],)), reason=WHY, apply=True)
    getattr(world.letters, what)(Chosen((letters[2],)), reason=WHY, apply=True)

    waiting = [one.message_id for one in world.letters.all() if not one.is_replayed]
    assert waiting == letters[:2]
    world.letters.replay(ALL, reason=WHY, apply=True)
    world.publisher.run_once()
    sent = ["a", "b"] if what == "purge" else ["a", "b", "c"]
    assert sorted(world.visible(RETRY)) == sent
