"""What others wrote into a store is shown on a terminal, and obeyed by none."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.kit.check_world import CheckWorld
from txmq.ground.printable import PrintableFormatter, printable
from txmq.message.lifecycle import ClaimKind
from txmq.ops.cli.app import app
from txmq.ops.cli.shared import console, rows_view
from txmq.publish.publisher import Publisher
from txmq.store.schemas import HALF

# Clears the screen, sets the title, writes into the clipboard; 8-bit forms of the same.
COMMANDS = ["\x1b[2J", "\x1b]0;title\x07", "\x1b]52;c;ZXZpbA==\x07", "\x9b2J", "\x90q\x9c"]
EVIL = "".join(COMMANDS) + "\u202ereversed"


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments, env={"TXMQ_LOCATION": None}, color=True)
    assert "Traceback" not in result.output
    return result


def assert_harmless(text: str) -> None:
    for character in "\x1b\x07\x9b\x90\x9c\u202e":
        assert character not in text


@pytest.fixture
def world(tmp_path: Path) -> CheckWorld:
    """Write evil text wherever a row of half or op can have it."""
    made = CheckWorld(tmp_path)
    (own_id,) = made.prepare(group=f"group{EVIL}")
    made.claim(
        [own_id], ClaimKind.UNKNOWN, group=f"group{EVIL}", check_times=1, reason=EVIL, life=0
    )
    (visible,) = made.prepare(change=evil)
    made.claim([visible], ClaimKind.COMMIT)
    made.prepare(change=lambda rows: [(f"id{EVIL}", *row[1:]) for row in rows])
    Publisher(made.store).run_once()
    return made


def evil(rows: list[tuple[object, ...]]) -> Iterator[tuple[object, ...]]:
    """Yield the rows with text that no message of txmq may have."""
    texts = {"keys": f"key {EVIL}", "tags": EVIL, "properties": [(EVIL, EVIL)], "message_id": EVIL}
    for row in rows:
        named = dict(zip(HALF.columns.names, row, strict=True))
        yield tuple({**named, **texts}.values())


def test_no_command_prints_what_a_terminal_obeys(world: CheckWorld) -> None:
    location = world.store.location
    (own_id, *_) = [row["transaction_id"] for row in world.claims()]
    commands = (
        ["status", location], ["open", location], ["discarded", "list", location],
        ["show", location, own_id], ["recheck", location], ["doctor", location],
        ["topics", "list", location], ["topics", "describe", location, "paid"],
        ["message", location, "--key", "key"], ["groups", location], ["verify", location],
        ["consume", location, "paid"], ["dead-letters", "list", location, "--group", "g"],
        ["show", location, f"no id {EVIL}"], ["message", location, "--key", EVIL],
        ["resolve", location, own_id, "--rollback", "--reason", EVIL],
    )  # fmt: skip

    for command in commands:
        assert_harmless(run(*command).output)


def test_text_is_shown_as_escapes(world: CheckWorld) -> None:
    result = run("open", world.store.location)

    assert "\\x1b[2J" in "".join(result.stdout.split())


def test_cells_are_as_wide_as_they_look() -> None:
    made = console()
    made.file = io.StringIO()
    made.print(rows_view(["id", "reason"], [["a\x1b[2Jb", "\x1b[31m"], ["plain", "x"]], "2"))

    assert_harmless(made.file.getvalue())
    assert "a\\x1b[2Jb" in made.file.getvalue()


@pytest.mark.parametrize("text", ["plain", "été", "日本語", "a b", "👩\u200d💻", "a\u200cb", "tab"])
def test_text_of_people_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_log_record_cannot_add_a_line_of_its_own() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PrintableFormatter("%(levelname)s %(message)s"))
    logger = logging.getLogger(__name__)
    logger.propagate = False
    logger.addHandler(handler)

    logger.warning("group %s", f"x\nERROR forged {EVIL}")
    logger.error("failed", exc_info=ValueError(EVIL))
    logger.removeHandler(handler)

    assert_harmless(stream.getvalue())
    assert [line for line in stream.getvalue().splitlines() if line.startswith("ERROR")] == [
        "ERROR failed"
    ]
