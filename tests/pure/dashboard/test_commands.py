"""Commands to copy: whatever others wrote stays one word, and nothing in it is obeyed."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.message.lifecycle import TransactionState
from txmq.ops.dashboard import rendering as commands

HOSTILE = [
    "plain", "with space", "$(rm -rf /)", "`id`", "a;b", "it's", "'", '"', "a\nb", "--apply", "",
    "\x1b[2J", "\u202eevil", "a\\b'\x07", "日本", "$HOME", "!!", "~",
]  # fmt: skip


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_word_is_printable_and_one_word(text: str) -> None:
    made = commands.word(text)

    assert made.isprintable()
    if text.isprintable():
        assert shlex.split(made) == [text]


def test_shell_reads_each_word_as_it_was() -> None:
    line = " ".join(["printf", "--", "'%s\\0'", *map(commands.word, HOSTILE)])
    read = subprocess.run(["/bin/bash", "-c", line], capture_output=True, check=True).stdout

    assert read.decode().split("\0")[:-1] == HOSTILE


@pytest.mark.parametrize(
    ("state", "is_set_aside", "verbs"),
    [
        (TransactionState.PENDING, False, ["recheck", "resolve", "resolve"]),
        (TransactionState.DISCARDED, False, ["resume"]),
        (TransactionState.INCOMPLETE, False, ["resume", "resolve"]),
        (TransactionState.COMMITTED, False, []),
        (TransactionState.COMMITTED, True, ["resolve"]),
        (None, False, []),
    ],
)
def test_acts_fit_the_state(
    state: TransactionState | None, verbs: list[str], *, is_set_aside: bool
) -> None:
    acts = commands.of_transaction("/store", "id", state, is_set_aside=is_set_aside)

    assert [shlex.split(act.text)[1] for act in acts] == verbs


def test_nothing_is_written_by_a_command_as_it_is_copied() -> None:
    acts = [
        *(act for state in TransactionState for act in
          commands.of_transaction("/s", "id", state, is_set_aside=False)),
        *commands.of_topic("/s", "t", parked="TopicBehindError: t: it had 5 messages"),
        *commands.of_topic("/s", "t", parked="ReadOnlyStoreError: topics/t: cannot be written"),
        *commands.of_group("/s", "g", ["t"]),
        *commands.of_dead_letters("/s", "g"),
    ]  # fmt: skip

    assert all("--apply" not in act.text for act in acts)
    at_once = {shlex.split(act.text)[1] for act in acts if act.acts_at_once}
    assert at_once == {"recheck"}
    (recall,) = commands.of_delayed("/s", "id:0", "ten.shop")
    assert shlex.split(recall.text)[2:] == [
        "/s", "id:0", "--group", "shop", "--namespace", "ten", "--dry-run"]  # fmt: skip
    assert any(act.is_changing for act in acts)
