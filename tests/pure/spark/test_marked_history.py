"""What a history says of markers and fences, the newest commit first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.spark.marked_table import MADE_LATER_MS, PastWrite, Standings, quoted
from txmq.user_data.markers import (
    DONE,
    FENCED,
    NAMED_IDS,
    done_by,
    done_text,
    fence_options,
    fence_text,
    fenced_by,
    marker_options,
    marker_settings,
)

IDS = ("a", "b")


def history(*said: str, restores: dict[int, str | None] | None = None) -> list[PastWrite]:
    """Commits by what they say, the oldest first; some are a RESTORE to a version or a time."""
    commits = [
        PastWrite(version, version, "RESTORE" if version in (restores or {}) else "WRITE", text,
                  (restores or {}).get(version))
        for version, text in enumerate(said)
    ]  # fmt: skip
    return commits[::-1]


def standing(commits: list[PastWrite], own_id: str = "a") -> tuple[int | None, str | None]:
    outcome = Standings.of_history(commits, IDS).outcome(own_id, None)
    return outcome.mark, outcome.reason


@pytest.mark.parametrize(
    ("said", "mark"),
    [
        ([""], None),
        ([done_text("a")], DONE),
        ([done_text("a", "and my own words")], DONE),
        ([fence_text(["a"])], FENCED),
        ([fence_text(["b", "a"])], FENCED),
        # The second one is passed over by Delta, or it is the number that was raised.
        ([fence_text(["a"]), "", fence_text(["a"])], FENCED),
        ([done_text("a"), fence_text(["a"])], DONE),
        ([fence_text(["a"]), done_text("a")], FENCED),
        ([done_text("ab")], None),
        (["nightly txmq done a"], None),
        ([done_text("b", "a")], None),
        (["txmq done "], None),
        (['txmq {"read": 3}'], None),
    ],
)
def test_the_first_that_names_the_transaction_stands(said: list[str], mark: int | None) -> None:
    assert standing(history(*said)) == (mark, None)


@pytest.mark.parametrize("operation", ["TRUNCATE", "OPTIMIZE", "SET TBLPROPERTIES", "RESTORE"])
def test_words_without_a_mark_are_no_marker(operation: str) -> None:
    commit = PastWrite(3, 3, operation, done_text("a"), None)

    assert standing([commit]) == (None, None)


@pytest.mark.parametrize(
    ("restores", "is_undone"),
    [({2: "0"}, True), ({2: "1"}, False), ({2: None}, True), ({2: "0", 3: "1"}, False)],
)
def test_marker_before_a_restore_counts_by_where_it_leads(
    restores: dict[int, str | None], *, is_undone: bool
) -> None:
    commits = history("", done_text("a"), "", "", restores=restores)

    mark, reason = standing(commits)

    assert (mark is None) == is_undone
    assert ("is undone" in str(reason)) == is_undone


def test_fence_before_a_restore_stays() -> None:
    assert standing(history("", fence_text(["a"]), "", restores={2: "0"})) == (FENCED, None)


def test_table_is_younger_only_where_its_first_commit_is_seen() -> None:
    born_ms, made_ms = 10_000, 10_000 + MADE_LATER_MS + 1
    first, later = (PastWrite(version, made_ms, "WRITE", "", None) for version in (0, 7))

    assert Standings.of_history([first], IDS).is_made_after(born_ms)
    assert not Standings.of_history([first], IDS).is_made_after(born_ms + 1)
    assert not Standings.of_history([later], IDS).is_made_after(born_ms)
    assert not Standings.of_history([], IDS).is_made_after(born_ms)


@given(st.from_regex(r"[0-9a-f-]{1,36}", fullmatch=True), st.text(max_size=20))
def test_words_name_who_they_are_of(own_id: str, users_text: str) -> None:
    assert done_by(done_text(own_id, users_text)) == [own_id]
    assert fenced_by(fence_text([own_id])) == [own_id]
    assert fenced_by(done_text(own_id, users_text)) == done_by(fence_text([own_id])) == []


def test_fence_names_its_transactions_up_to_a_number() -> None:
    ids = [str(number) for number in range(NAMED_IDS)]

    assert fenced_by(fence_text(ids)) == ids
    assert fence_text([*ids, "one more"]) == ""


def test_settings_say_what_options_say() -> None:
    options, settings = marker_options("a", "mine"), marker_settings("a", "mine")

    assert list(options.values()) == list(settings.values()) == ["a", "1", "txmq done a mine"]
    assert fence_options("a", 1) | {"userMetadata": ""} == marker_options("a") | {
        "userMetadata": ""
    }


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("main.sales.orders", "`main`.`sales`.`orders`"),
        ("`my-lake`.sales.`the.orders`", "`my-lake`.`sales`.`the.orders`"),
        ("/lake/orders", "delta.`/lake/orders`"),
        ("s3://lake/a`; DROP TABLE x; --", "delta.`s3://lake/a``; DROP TABLE x; --`"),
        ("main.sales.orders; DROP TABLE x", "delta.`main.sales.orders; DROP TABLE x`"),
    ],
)
def test_names_and_paths_are_quoted(location: str, name: str) -> None:
    assert quoted(location) == name
