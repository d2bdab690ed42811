"""`txmq groups`, `lag`, `consume`, `offsets reset`: output, effects, exit codes."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.kit.builders import table_versions
from tests.kit.delay_world import TOPIC, DelayWorld
from txmq.consumer.offsets import ConsumeFromWhere, StartPoint
from txmq.consumer.peek import TopicPeek
from txmq.consumer.pull import PullConsumer
from txmq.message.message import Message
from txmq.message.received import ReceivedMessage
from txmq.ops.cli.app import _whole, app
from txmq.ops.cli.groups import Ending

GROUP = "billing"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DelayWorld]:
    made = DelayWorld(tmp_path)
    for number in range(6):
        tags = "even" if number % 2 == 0 else "odd"
        made.producer.send(Message(TOPIC, b"%d" % number, tags=tags), queue_id=0)
    made.publisher.run_once()
    yield made
    made.producer.close()


@pytest.fixture
def location(world: DelayWorld) -> str:
    return world.store.location


@pytest.fixture
def _ctrl_c() -> Iterator[None]:
    """Take Ctrl-C as at a terminal: a run of the tests in the background may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"TXMQ_LOCATION": None})


def told(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def lines(*arguments: str) -> list[dict[str, Any]]:
    result = run("consume", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def bodies(*arguments: str) -> list[str]:
    return [one["body"] for one in lines(*arguments)]


def test_consume_prints_each_message_as_a_line_of_json(location: str) -> None:
    found = lines(location, TOPIC)

    assert [one["body"] for one in found] == list("012345")
    assert found[0]["topic"] == TOPIC
    assert [one["queue_offset"] for one in found] == list(range(6))


def test_consume_without_a_group_remembers_nothing(world: DelayWorld, location: str) -> None:
    before = table_versions(world.store)
    assert bodies(location, TOPIC) == bodies(location, TOPIC)
    assert table_versions(world.store) == before


def test_consume_with_a_group_goes_on_where_it_was(location: str) -> None:
    assert bodies(location, TOPIC, "--group", GROUP, "--max-count", "4") == list("0123")
    assert bodies(location, TOPIC, "--group", GROUP) == list("45")
    assert bodies(location, TOPIC, "--group", GROUP) == []


def test_consume_filters_counts_and_hides(location: str) -> None:
    assert bodies(location, TOPIC, "--filter", "odd") == list("135")
    assert bodies(location, TOPIC, "--filter", "sql:TAGS = 'even'") == list("024")
    assert bodies(location, TOPIC, "--max-count", "2") == list("01")
    assert "body" not in lines(location, TOPIC, "--no-body")[0]


def test_consume_begins_where_it_is_told(location: str) -> None:
    assert bodies(location, TOPIC, "--from", "last") == []
    assert bodies(location, TOPIC, "--from", "2020-01-01T00:00:00Z") == list("012345")
    assert bodies(location, TOPIC, "--from", "2200-01-01T00:00:00Z") == []


def test_bytes_that_are_no_text_are_printed_as_base64(world: DelayWorld, location: str) -> None:
    world.producer.send(Message("raw", b"\xff\x00"))
    world.publisher.run_once()

    assert lines(location, "raw")[0]["body_base64"] == "/wA="


def test_follower_gets_what_comes_later(world: DelayWorld) -> None:
    peek = TopicPeek(world.store, TOPIC, StartPoint(ConsumeFromWhere.LAST_OFFSET))
    assert list(peek.messages()) == []
    world.producer.send(Message(TOPIC, b"new"), queue_id=0)
    world.producer.send(Message(TOPIC, b"other queue"), queue_id=3)
    world.publisher.run_once()

    assert [one.body for one in peek.messages()] == [b"new", b"other queue"]


def test_groups_and_lag_tell_what_the_tables_say(world: DelayWorld, location: str) -> None:
    with PullConsumer(world.store, consumer_group=GROUP, topics={TOPIC: "even"}) as consumer:
        consumer.poll(1)
        consumer.commit()
        (group,) = told("groups", location)["groups"]
        found = told("lag", location, "--group", GROUP)

    assert group["subscription"] == {TOPIC: "even"}
    assert len(group["members"]) == 1
    assert group["lag"] == found["lag"] == 4
    behind = [one for one in found["queues"] if one["lag"]]
    assert [(one["queue_id"], one["next_offset"], one["end_offset"]) for one in behind] == [
        (0, 2, 6)
    ]
    text = run("groups", location).stdout + run("lag", location).stdout
    assert "billing" in text
    assert "even" in text


def test_store_that_nobody_has_read_says_so(location: str) -> None:
    assert "no consumer group" in run("groups", location).stdout
    assert told("lag", location) == {"lag": 0, "queues": []}


@pytest.mark.parametrize("command", ["groups", "lag"])
def test_damaged_group_is_named_and_all_others_are_listed(location: str, command: str) -> None:
    for group in ("a", "b", "c"):
        bodies(location, TOPIC, "--group", group, "--max-count", "2")
    for file in Path(location, "state", "group_b").glob("*.parquet"):
        file.write_bytes(b"")

    result, asked = run(command, location), run(command, location, "--json")

    assert result.exit_code == asked.exit_code == 1
    assert [line.split()[0] for line in result.stdout.splitlines()[1:3]] in (
        ["a", "a"], ["a", "c"],
    )  # fmt: skip
    assert "c " in result.stdout
    assert result.stderr.startswith("group b cannot be read: ")
    values = json.loads(asked.stdout)
    assert {one["group"] for one in values.get("groups", values.get("queues"))} == {"a", "c"}
    assert [*values["damaged"]] == ["b"]
    assert run("lag", location, "--group", "b").exit_code == 2
    assert run("lag", location, "--group", "a").exit_code == 0


def broken(number: signal.Signals | None) -> None:
    if number is None:
        raise BrokenPipeError
    signal.raise_signal(number)


@pytest.mark.usefixtures("_ctrl_c")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (None, 1)]
)
def test_line_that_was_not_written_is_not_consumed_and_those_before_it_are(
    location: str, monkeypatch: pytest.MonkeyPatch, number: signal.Signals | None, code: int
) -> None:
    echo, lines_left = typer.echo, iter("012")

    def echo_two(text: str) -> None:
        if next(lines_left) == "2":
            broken(number)
        echo(text)

    with monkeypatch.context() as patched:
        patched.setattr(typer, "echo", echo_two)
        result = run("consume", location, TOPIC, "--group", GROUP)

    assert (result.exit_code, len(result.stdout.splitlines())) == (code, 2)
    assert told("groups", location)["groups"][0]["members"] == []
    assert bodies(location, TOPIC, "--group", GROUP) == list("2345")


@pytest.mark.usefixtures("_ctrl_c")
@pytest.mark.parametrize("polls", [0, 1])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_while_messages_are_taken_loses_none_and_repeats_none(
    location: str, monkeypatch: pytest.MonkeyPatch, polls: int, number: signal.Signals, code: int
) -> None:
    poll, calls = PullConsumer.poll, iter(range(9))

    def interrupted(*arguments: Any, **more: Any) -> list[ReceivedMessage]:
        taken = poll(*arguments, **more)
        if next(calls) == polls:
            signal.raise_signal(number)
        return taken

    with monkeypatch.context() as patched:
        patched.setattr(PullConsumer, "poll", interrupted)
        result = run("consume", location, TOPIC, "--group", GROUP, "--follow")

    assert result.exit_code == code
    assert told("groups", location)["groups"][0]["members"] == []
    assert bodies(location, TOPIC, "--group", GROUP) == ([] if polls else list("012345"))


def test_second_signal_ends_at_once_what_the_first_one_waits_for() -> None:
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(SystemExit), Ending() as ending, ending.held():
        signal.raise_signal(signal.SIGTERM)
        assert ending._number == signal.SIGTERM
        signal.raise_signal(signal.SIGTERM)

    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("options", [(), ("--group", GROUP), ("--follow",)])
def test_mistyped_topic_is_refused_with_the_nearest_name(
    world: DelayWorld, location: str, options: tuple[str, ...]
) -> None:
    before = table_versions(world.store)
    result = run("consume", location, TOPIC[:-1], *options)

    assert result.exit_code == 2
    assert f"nobody has made or written it; did you mean {TOPIC}?" in result.stderr
    assert "--wait reads it from its first message on" in result.stderr
    assert table_versions(world.store) == before


@pytest.mark.parametrize("name", ["%DLQ%nobody", "%RETRY%nobody"])
def test_topic_of_a_group_that_is_none_is_refused(location: str, name: str) -> None:
    result = run("consume", location, name)

    assert (result.exit_code, "nobody has made or written it" in result.stderr) == (2, True)


def test_topic_that_is_made_and_empty_or_awaited_shows_nothing_yet(
    world: DelayWorld, location: str
) -> None:
    assert run("topics", "create", location, "made").exit_code == 0

    assert lines(location, "made") == lines(location, "made", "--group", GROUP) == []
    assert lines(location, "awaited", "--group", "other", "--wait") == []
    world.producer.send(Message("awaited", b"1"))
    world.publisher.run_once()
    assert bodies(location, "awaited", "--group", "other") == ["1"]


def test_reset_is_dry_unless_it_is_applied(world: DelayWorld, location: str) -> None:
    bodies(location, TOPIC, "--group", GROUP)
    before = table_versions(world.store)
    dry = told("offsets", "reset", location, GROUP, "--topic", TOPIC, "--to", "first")
    assert (dry["is_written"], dry["before"]["0"], dry["after"]["0"]) == (False, 6, 0)
    assert table_versions(world.store) == before

    wet = run("offsets", "reset", location, GROUP, "--topic", TOPIC, "--to", "first", "--apply")
    assert wet.exit_code == 0
    assert "written" in wet.stdout
    assert bodies(location, TOPIC, "--group", GROUP) == list("012345")


def test_a_dry_reset_shows_the_moment_that_it_means(location: str) -> None:
    bodies(location, TOPIC, "--group", GROUP)

    dry = run(
        "offsets", "reset", location, GROUP, "--topic", TOPIC, "--to", "2026-07-01T14:00:00+02:00"
    )

    assert "from 2026-07-01 12:00:00Z on; dry run" in dry.stdout


@pytest.mark.parametrize(
    ("zone", "code"), [("Europe/Berlinn", 2), ("UTC", 0), ("CET-1CEST", 0), ("", 0)]
)
def test_a_local_time_in_a_zone_that_nobody_knows_is_refused(
    location: str, monkeypatch: pytest.MonkeyPatch, zone: str, code: int
) -> None:
    bodies(location, TOPIC, "--group", GROUP)
    monkeypatch.setenv("TZ", zone)
    asked = ("offsets", "reset", location, GROUP, "--topic", TOPIC, "--to")

    assert run(*asked, "2026-07-01T14:00:00").exit_code == code
    assert run(*asked, "2026-07-01T14:00:00Z").exit_code == 0


def test_group_is_deleted_only_with_apply(world: DelayWorld, location: str) -> None:
    bodies(location, TOPIC, "--group", GROUP)
    before = table_versions(world.store)
    dry = told("groups", "delete", location, GROUP)
    assert (dry["is_written"], dry["subscription"]) == (False, {TOPIC: "*"})
    assert table_versions(world.store) == before

    wet = run("groups", "delete", location, GROUP, "--apply")
    assert (wet.exit_code, "deleted" in wet.stdout) == (0, True)
    assert told("groups", "list", location)["groups"] == []
    assert run("groups", "delete", location, GROUP, "--apply").exit_code == 2


def test_group_gets_settings_only_with_apply(world: DelayWorld, location: str) -> None:
    before = table_versions(world.store)
    changes = ("--set", "max_reconsume_times=3", "--set", "consume_message_orderly=true")
    dry = told("groups", "alter", location, GROUP, *changes)
    wanted = {"max_reconsume_times": 3, "consume_message_orderly": True}
    assert (dry["before"], dry["after"], dry["is_written"]) == ({}, wanted, False)
    assert table_versions(world.store) == before

    wet = run("groups", "alter", location, GROUP, *changes, "--apply")
    assert (wet.exit_code, "as the store -> 3" in wet.stdout) == (0, True)
    last = told("groups", "alter", location, GROUP, "--unset", "max_reconsume_times", "--apply")
    assert last["after"] == {"consume_message_orderly": True}
    bodies(location, TOPIC, "--group", GROUP)
    (summary,) = told("groups", "list", location)["groups"]
    assert (summary["own"], summary["is_orderly"]) == (last["after"], True)


def test_groups_without_a_command_lists_them_and_helps(location: str) -> None:
    bodies(location, TOPIC, "--group", GROUP)

    listed = [run("groups", location, "--json"), run("groups", "--json", location)]
    assert [json.loads(one.stdout)["count"] for one in listed] == [1, 1]
    assert "delete" in run("groups", "--help").stdout


def test_reset_to_an_offset_of_one_queue(location: str) -> None:
    bodies(location, TOPIC, "--group", GROUP)
    asked = ("offsets", "reset", location, GROUP, "--topic", TOPIC, "--to", "4")
    assert run(*asked).exit_code == 2
    assert run(*asked, "--queue-id", "0", "--apply").exit_code == 0

    assert bodies(location, TOPIC, "--group", GROUP) == list("45")


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "no-such-topic"),
        ("consume", TOPIC, "--filter", "a || "),
        ("consume", TOPIC, "--filter", "sql:1 = 1; DROP TABLE x"),
        ("consume", TOPIC, "--from", "yesterday"),
        ("consume", TOPIC, "--group", "../../etc"),
        ("lag", "--group", "nobody"),
        ("groups", "delete", "nobody", "--apply"),
        ("groups", "alter", "nobody", "--set", "max_reconsume_times"),
        ("groups", "alter", "nobody", "--set", "max_reconsume_times=[1]"),
        ("groups", "alter", "nobody", "--set", "max_reconsume_times=[1"),
        ("groups", "alter", "nobody", "--set", "nothing=1"),
        ("groups", "alter", "../../etc", "--set", "max_reconsume_times=1"),
        ("offsets", "reset", "nobody", "--topic", TOPIC, "--to", "first"),
    ],
    ids=" ".join,
)
def test_bad_input_is_an_error_and_changes_nothing(
    world: DelayWorld, location: str, arguments: tuple[str, ...]
) -> None:
    before = table_versions(world.store)
    command = arguments[:2] if arguments[0] == "offsets" else arguments[:1]
    result = run(*command, location, *arguments[len(command) :])

    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert table_versions(world.store) == before


def test_reset_is_refused_while_a_member_lives(world: DelayWorld, location: str) -> None:
    asked = ("offsets", "reset", location, GROUP, "--topic", TOPIC, "--to", "first", "--apply")
    with PullConsumer(world.store, consumer_group=GROUP, topics=TOPIC):
        assert run(*asked).exit_code == 2
        assert run(*asked, "--force").exit_code == 0


@pytest.mark.parametrize(
    "command",
    [("list",), ("show", "0:0"), *((c, "--all", "--reason", "r") for c in ("replay", "purge"))],
)
def test_dead_letters_of_a_group_that_is_not_there_are_an_error(
    location: str, command: tuple[str, ...]
) -> None:
    name, *others = command
    place = [location, *others] if name == "show" else [*others, location]
    result = run("dead-letters", name, *place, "--group", "typo")

    assert result.exit_code == 2
    assert "check the name" in result.stderr


def test_group_without_dead_letters_has_none(world: DelayWorld, location: str) -> None:
    PullConsumer(world.store, consumer_group=GROUP, topics=TOPIC).close()

    assert "0 dead letters" in run("dead-letters", "list", location, "--group", GROUP).stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_follower_that_is_told_to_end_leaves_its_group(
    location: str, number: signal.Signals, code: int
) -> None:
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from txmq.ops.cli.app import main; main()"
    )
    options = ["consume", location, TOPIC, "--group", GROUP, "--follow"]
    command = [sys.executable, "-c", program, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert told("groups", location)["groups"][0]["members"]
        process.send_signal(number)
        errors = process.communicate()[1]

    assert (process.returncode, errors) == (code, b"")
    assert told("groups", location)["groups"][0]["members"] == []


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_nothing_is_consumed_that_a_full_disk_did_not_take_whole(
    location: str, tmp_path: Path, unbuffered: str
) -> None:
    command = [sys.executable, "-m", "txmq", "consume", location, TOPIC, "--group", GROUP]
    # A disk with room for three lines after a file that is larger than any of the store.
    taken, before = tmp_path / "taken", b" " * 100_000
    taken.write_bytes(before)

    def until_full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (101_000, 101_000))

    with taken.open("ab") as out:
        ran = subprocess.run(
            command, stdout=out, stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, preexec_fn=until_full,
        )  # fmt: skip

    whole = taken.read_text().count("\n")
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1), ran.stderr
    assert "cannot be written" in ran.stderr
    assert bodies(location, TOPIC, "--group", GROUP) == list("012345")[whole:]


def test_an_argument_that_is_no_text_for_the_terminal_is_told(location: str) -> None:
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "txmq", "message", location, "--key", "gr\u00fcn"]

    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **ascii_alone}
    )

    assert ran.returncode == 2
    assert "no text in the encoding of this terminal (ascii). Set LC_ALL=C.UTF-8" in ran.stderr


def test_what_a_terminal_has_no_character_for_is_escaped() -> None:
    written = io.BytesIO()
    stream = _whole(io.TextIOWrapper(written, "ascii", "surrogateescape"))

    print("gr\u00fcn", file=stream, flush=True)

    assert written.getvalue() == b"gr\\xfcn\n"
