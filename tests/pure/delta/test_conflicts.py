"""Which commits may follow each other: the rule alone, by its cases and by properties."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.delta.actions import (
    AddedFile,
    CommitActions,
    Conflict,
    NewCommit,
    RemovedFile,
    clash,
    commit_actions,
)

NAMES = st.sampled_from(["a", "b", "c", "d"])
MARKS = st.dictionaries(NAMES, st.integers(0, 9), max_size=3)
PATHS = st.frozensets(st.sampled_from(["1.parquet", "2.parquet", "a b%.parquet"]), max_size=3)


def added(path: str) -> AddedFile:
    return AddedFile(path, 1, {"queue_id": "0"}, 1, is_news=True, stats_json="{}")


def removed(path: str) -> RemovedFile:
    return RemovedFile(path, 1, {"queue_id": "0"}, 1, is_news=True)


def a_commit(
    adds: frozenset[str] = frozenset(),
    removes: frozenset[str] = frozenset(),
    marks: dict[str, int] | None = None,
) -> NewCommit:
    return NewCommit(
        [added(path) for path in sorted(adds)],
        [removed(path) for path in sorted(removes)],
        marks or {},
        token="t",  # noqa: S106 - names the commit
    )


def as_read(commit: NewCommit) -> CommitActions:
    return commit_actions(commit.content(now_ms=5))


COMMITS = st.builds(a_commit, PATHS, PATHS, MARKS)


@given(COMMITS, COMMITS)
def test_two_commits_clash_only_by_a_mark_or_a_file_that_both_remove(
    first: NewCommit, second: NewCommit
) -> None:
    shares_mark = bool(first.marks.keys() & second.marks.keys())
    files = [{file.path for file in commit.removed} for commit in (first, second)]

    conflict = clash(second, as_read(first))

    assert (conflict is not None) == (shares_mark or bool(files[0] & files[1]))


@given(COMMITS, COMMITS)
def test_whoever_is_first_makes_no_difference(first: NewCommit, second: NewCommit) -> None:
    assert (clash(second, as_read(first)) is None) == (clash(first, as_read(second)) is None)


@given(PATHS, PATHS)
def test_appends_without_marks_pass_each_other(one: frozenset[str], other: frozenset[str]) -> None:
    assert clash(a_commit(adds=one), as_read(a_commit(adds=other))) is None


@pytest.mark.parametrize(
    ("action", "conflict"),
    [
        ({"metaData": {"id": "x"}}, Conflict.METADATA),
        ({"protocol": {"minReaderVersion": 1}}, Conflict.PROTOCOL),
        ({"domainMetadata": {"domain": "delta.clustering"}}, Conflict.UNKNOWN),
        ({"somethingNew": {}}, Conflict.UNKNOWN),
    ],
)
def test_winner_that_changed_the_table_is_no_winner_to_follow(
    action: dict[str, object], conflict: Conflict
) -> None:
    winner = commit_actions(json.dumps(action).encode())

    problem = clash(a_commit(adds=frozenset({"1.parquet"})), winner)

    assert problem is not None
    assert problem.conflict is conflict


@pytest.mark.parametrize("kind", ["commitInfo", "cdc", "checkpointMetadata", "sidecar"])
def test_actions_beside_files_and_marks_are_passed(kind: str) -> None:
    winner = commit_actions(json.dumps({kind: {"path": "x"}}).encode())

    assert clash(a_commit(adds=frozenset({"1.parquet"})), winner) is None


def test_how_files_lie_matters_to_commits_with_files_alone() -> None:
    lie = {"domain": "delta.rowTracking", "configuration": "{}", "removed": False}
    winner = commit_actions(json.dumps({"domainMetadata": lie}).encode())

    assert clash(a_commit(marks={"app": 2}), winner) is None
    for commit in (a_commit(frozenset({"1.parquet"})), a_commit(removes=frozenset({"1.parquet"}))):
        conflict = clash(commit, winner)
        assert conflict is not None
        assert conflict.conflict is Conflict.UNKNOWN


@given(st.integers(0, 9), st.integers(0, 9))
def test_times_in_commits_rise(now_ms: int, before_ms: int) -> None:
    content = a_commit(marks={"app": 2}).content(now_ms, before_ms)

    named_ms = commit_actions(content).in_commit_ms
    # A commit that changes no row takes no time from a clock, which may be ahead.
    assert named_ms == before_ms + 1
    with_rows = a_commit(frozenset({"1.parquet"})).content(now_ms, before_ms)
    assert commit_actions(with_rows).in_commit_ms == max(now_ms, before_ms + 1)
    assert content.startswith(b'{"commitInfo"')
    assert commit_actions(a_commit().content(now_ms)).in_commit_ms is None


@pytest.mark.parametrize("time", ["abc", "5", 1.5, True, None, [], {}, -1, 10**30])
def test_time_of_another_writer_that_is_none_is_no_time(time: object) -> None:
    content = json.dumps({"commitInfo": {"inCommitTimestamp": time}}).encode()

    assert commit_actions(content).in_commit_ms is None


def test_each_conflict_names_what_it_is_about() -> None:
    winner = as_read(a_commit(removes=frozenset({"1.parquet"}), marks={"app": 1}))

    by_mark = clash(a_commit(marks={"app": 2}), winner)
    by_file = clash(a_commit(removes=frozenset({"1.parquet"})), winner)

    assert by_mark is not None
    assert by_mark.problem == "another writer moved the mark app"
    assert by_file is not None
    assert by_file.problem == "another writer removed 1.parquet"


# --- a commit file ------------------------------------------------------------------------------


@given(COMMITS)
def test_commit_is_read_as_it_was_written(commit: NewCommit) -> None:
    actions = as_read(commit)

    assert actions.marks == commit.marks
    assert actions.token == commit.token
    assert actions.removed_paths == {file.path for file in commit.removed}
    assert [action["stats"] for action in actions.added] == ["{}"] * len(commit.added)
    assert actions.kinds == frozenset()


@pytest.mark.parametrize(
    "content", [b"", b"\n \n", b"{", b"[]", b'"text"', b"\xff\xfe", b"3", b'{"commitInfo": 3}']
)
def test_file_without_actions_is_no_commit(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        commit_actions(content)
