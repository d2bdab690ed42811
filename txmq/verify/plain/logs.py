"""The checker's look at what was committed, version by version, and at the files behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from txmq.verify.plain.findings import Findings
from txmq.verify.plain.history import AddedFile, Commit, History
from txmq.verify.plain.store import PinnedStore
from txmq.verify.plain.tables import PinnedTable

# None of these changes a row in place; what a commit may remove is judged by its files.
LAWFUL_OPERATIONS = frozenset(
    ["CREATE TABLE", "WRITE", "STREAMING UPDATE", "OPTIMIZE", "VACUUM START", "VACUUM END",
     "SET TBLPROPERTIES", "ADD COLUMN", "DELETE"]
)  # fmt: skip
# How far a table follows the op log, and the next offset of a queue.
RISING_MARKS = ("txmq/", "txmq-offset/")
REBUILD_MARK = "txmq-rebuild"


class LogChecks:
    """I17, I21 and I26: nothing here looks at a message."""

    def __init__(self, pinned: PinnedStore, findings: Findings) -> None:
        """Nothing is read yet."""
        self._pinned, self._findings = pinned, findings

    def run(self) -> None:
        """Every check."""
        for table in (self._pinned.half, self._pinned.op):
            self._check_appended_only(table.name, table.history)
        for name, table in self._pinned.followers.items():
            self._check_marks_rise(name, table.history)
        self._check_marks_agree()
        self._check_readable()
        for name, table in self._pinned.tables.items():
            self._check_files(name, table)

    # --- I17 -----------------------------------------------------------------------------------

    def _check_appended_only(self, name: str, history: History) -> None:
        added = history.added()
        for commit in history.commits.values():
            problem = self._problem(commit, added)
            if problem:
                self._findings.add("I17", 1, [f"{name} version {commit.version}"], problem)

    def _problem(self, commit: Commit, added: Mapping[str, AddedFile]) -> str | None:
        if commit.operation not in LAWFUL_OPERATIONS:
            return f"is {commit.operation}, which txmq never does"
        if not commit.removed:
            return None
        if any(file.is_change for file in commit.added):
            return "altered rows"
        # Of a file whose own commit was cleaned away nothing is known.
        known = [added[path] for path in commit.removed if path in added]
        kept = [file for file in known if not self._may_go(file)]
        return "removed rows that retention has not reached" if kept else None

    def _may_go(self, file: AddedFile) -> bool:
        """By its ids; claims about nothing may name any id, so the day alone is enough too."""
        is_old = file.day is not None and file.day < self._pinned.forgotten_before_date
        return is_old or file.largest_id is None or self._pinned.forgets(file.largest_id)

    # --- I21 -----------------------------------------------------------------------------------

    def _check_marks_rise(self, name: str, history: History) -> None:
        for version, app_id in _falls(history):
            row_id = f"{name} version {version} {app_id}"
            self._findings.add("I21", 1, [row_id], "does not rise above the mark before it")

    def _check_marks_agree(self) -> None:
        """A table that was pinned earlier cannot be ahead of the one that it follows."""
        settled = self._pinned.settled.mark(self._pinned.mark_id)
        for name, table in self._pinned.topics.items():
            self._check_behind(f"topics/{name}", table.mark(self._pinned.mark_id), settled)
        self._check_behind("state/publisher", self._pinned.low_water_version, settled)
        self._check_behind("settled", settled, self._pinned.op.version)

    def _check_behind(self, name: str, mark: int, followed: int) -> None:
        if mark > followed:
            detail = f"its mark {mark} is beyond {followed}, which it follows"
            self._findings.add("I21", 1, [name], detail)

    def _check_readable(self) -> None:
        """Claims that are cleaned away before they were settled would be lost in silence."""
        settled = self._pinned.settled.mark(self._pinned.mark_id)
        first = self._pinned.op.readable_from
        if first > settled + 1:
            detail = f"is readable from version {first}, but settled only up to {settled}"
            self._findings.add("I21", 1, ["op"], detail)

    # --- I26 -----------------------------------------------------------------------------------

    def _check_files(self, name: str, table: PinnedTable) -> None:
        for path, problem in table.file_problems():
            self._findings.add("I26", 1, [f"{name}/{path}"], problem)


def _falls(history: History) -> Iterator[tuple[int, str]]:
    """Commits that set a mark to what it was already, or less; a rebuilt topic begins anew."""
    before: dict[str, int] = {}
    for commit in history.commits.values():
        is_rebuild = REBUILD_MARK in commit.marks
        for app_id, number in commit.marks.items():
            if not app_id.startswith(RISING_MARKS):
                continue
            if number <= before.get(app_id, number - 1) and not is_rebuild:
                yield commit.version, app_id
            before[app_id] = number
