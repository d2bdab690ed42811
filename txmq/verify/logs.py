"""The checker's look at the tables as such: commits, marks, files, and how far groups have read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.history import AddedFile, Commit, History
from txmq.verify.report import SHOWN_ROWS, Findings
from txmq.verify.store import OPEN_SET, PinnedStore
from txmq.verify.tables import COMMIT_VERSION, PinnedTable

# None of these changes a row in place; what a commit may remove is judged by its files.
LAWFUL_OPERATIONS = frozenset(
    ["CREATE TABLE", "WRITE", "STREAMING UPDATE", "OPTIMIZE", "VACUUM START", "VACUUM END",
     "SET TBLPROPERTIES", "ADD COLUMN", "DELETE"]
)  # fmt: skip
# How far a table follows the op log, and the next offset of a queue.
RISING_MARKS = ("txmq/", "txmq-offset/")
REBUILD_MARK = "txmq-rebuild"


class LogChecks:
    """I17, I21, I26 and I29: nothing here looks at a message."""

    def __init__(self, pinned: PinnedStore, findings: Findings) -> None:
        """Take the store; nothing is read yet."""
        self._pinned, self._findings = pinned, findings

    def run(self) -> None:
        """Run every check."""
        for table in (self._pinned.half, self._pinned.op):
            self._check_appended_only(table.name, table.history)
        for name, table in self._pinned.followers.items():
            self._check_marks_rise(name, table.history)
        self._check_marks_agree()
        self._check_readable()
        for name, table in self._pinned.tables.items():
            self._check_files(name, table)
        self._check_groups()

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
        removed = [added[path] for path in commit.removed if path in added]
        if all(map(self._may_go, removed)):
            return None
        return "removed rows that retention has not reached"

    def _may_go(self, file: AddedFile) -> bool:
        """Tell whether retention may take a file: by its ids, or by its day alone."""
        # Claims about nothing may name any id.
        is_old = file.day is not None and file.day < self._pinned.forgotten_before_date
        return is_old or file.largest_id is None or self._pinned.forgets(file.largest_id)

    # --- I21 -----------------------------------------------------------------------------------

    def _check_marks_rise(self, name: str, history: History) -> None:
        for version, app_id in _falls(history):
            row_id = f"{name} version {version} {app_id}"
            self._findings.add("I21", 1, [row_id], "does not rise above the mark before it")

    def _check_marks_agree(self) -> None:
        """Report tables that are ahead of the one that they follow, which was pinned later."""
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
        """Report claims that were cleaned away before they were settled: lost in silence."""
        settled = self._pinned.settled.mark(self._pinned.mark_id)
        first = self._pinned.op.readable_from
        if first > settled + 1:
            detail = f"is readable from version {first}, but settled only up to {settled}"
            self._findings.add("I21", 1, ["op"], detail)

    # --- I26 -----------------------------------------------------------------------------------

    def _check_files(self, name: str, table: PinnedTable) -> None:
        for path, problem in table.file_problems():
            self._findings.add("I26", 1, [f"{name}/{path}"], problem)

    # --- I29 -----------------------------------------------------------------------------------

    def _check_groups(self) -> None:
        """Report groups whose next offset lies beyond the end of the queue."""
        for group, offsets in self._pinned.group_offsets.items():
            for topic, queue, offset in offsets:
                table = self._pinned.topics.get(topic)
                end = 0 if table is None else max(table.mark(f"txmq-offset/{queue}"), 0)
                if offset > end and topic not in self._pinned.unread:
                    detail = f"its next offset {offset} is beyond {end}, where the queue ends"
                    self._findings.add("I29", 1, [f"{group} {topic}/{queue}"], detail)


# --- I30 ------------------------------------------------------------------------------------------


def check_open_set(pinned: PinnedStore, open_ids: pa.ChunkedArray, findings: Findings) -> None:
    """Report open transactions that the kept open set lacks: nobody would ask about them.

    Those that were appended after it was read are in no set yet.
    """
    kept, half = pinned.open_set, pinned.half
    if kept is None or not kept.is_of((half, pinned.op, pinned.settled)):
        return
    missing = open_ids.filter(pc.invert(pc.is_in(open_ids, value_set=kept.ids)))
    version = kept.versions[half.name]
    # Where commits are gone, rechecks search all halves anew.
    if not len(missing) or half.readable_from > version + 1:
        return
    newer = half.appended(("transaction_id", COMMIT_VERSION), version)["transaction_id"]
    missing = missing.filter(pc.invert(pc.is_in(missing, value_set=pc.unique(newer))))
    if len(missing):
        detail = f"is open, and {OPEN_SET} does not name it: nobody would ask about it"
        findings.add("I30", len(missing), missing.slice(0, SHOWN_ROWS).to_pylist(), detail)


def _falls(history: History) -> Iterator[tuple[int, str]]:
    """Yield commits that do not raise a mark that they set; a rebuilt topic begins anew."""
    before: dict[str, int] = {}
    for commit in history.commits.values():
        is_rebuild = REBUILD_MARK in commit.marks
        for app_id, number in commit.marks.items():
            if not app_id.startswith(RISING_MARKS):
                continue
            if number <= before.get(app_id, number - 1) and not is_rebuild:
                yield commit.version, app_id
            before[app_id] = number
