"""Commits to a table by txmq itself: puts the next commit file, if nobody else has put it.

A writer that finds its version taken reads the winner's commit file, decides by `clash` whether
its own commit may follow, and tries the next version. No snapshot is read, and no log is listed.
Who loses again and again asks the others by a file to wait for its turn.
"""

from __future__ import annotations

import math
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.fs as pa_fs

from txmq.delta.actions import (
    DAMAGES,
    CommitActions,
    NewCommit,
    Seen,
    clash,
    commit_actions,
    commit_path,
    stamp_of,
)
from txmq.delta.failures import STORAGE_ERRORS, failed_write, read_errors
from txmq.delta.folder import Objects
from txmq.delta.replay import LogNames
from txmq.errors import CommitRefusedError, StorageError
from txmq.ground.random_names import new_uuid

if TYPE_CHECKING:
    from txmq.delta.folder import TableFolder

# Who is further behind opens the table anew; on an object store each commit is a request.
PASSED_MAX_LOCAL, PASSED_MAX_REMOTE = 100_000, 1_000
# So many commits of others are handed on; beyond them nobody is told which came between.
KEPT_MAX = 1_000
TURN_AFTER_REFUSALS = 6
REFUSALS_MAX = 60
PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.02
TURN_FILE = "_turn"
_LONG = b"long "


@dataclass(frozen=True, slots=True)
class Passed:
    """A commit of another writer that came between."""

    version: int
    actions: CommitActions


class Written(NamedTuple):
    """A commit that was made, and the commits of others since the writer's last look.

    Attributes:
        passed: None where there were more than KEPT_MAX.
    """

    seen: Seen
    passed: list[Passed] | None


class _Between:
    """The commits of others that came between."""

    def __init__(self) -> None:
        self.count = 0
        self._commits: list[Passed] = []

    def add(self, passed: Passed) -> None:
        self.count += 1
        if self.count > KEPT_MAX:
            self._commits.clear()
        else:
            self._commits.append(passed)

    @property
    def passed(self) -> list[Passed] | None:
        return None if self.count > KEPT_MAX else self._commits


class CommitWriter:
    """Commits to one table. Not safe for several threads."""

    def __init__(self, folder: TableFolder) -> None:
        """Look at nothing yet."""
        self._folder, self._objects = folder, folder.objects
        self._turns = Turns(self._objects, folder.file_bytes)

    @property
    def location(self) -> str:
        """Where the table is."""
        return self._folder.location

    def commit(self, since: Seen, commit: NewCommit) -> Written:
        """Commit after `since`; compare the commits of others in between one by one.

        Raises: CommitRefusedError where another writer's commit does not go together with this
            one, or the log was cleaned or replaced meanwhile; StorageError.
        """
        try:
            return self._race(since, commit)
        finally:
            self._turns.give_back()

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Let other writers wait while the block computes a commit, or until they lose patience."""
        self._turns.ask(is_long=True)
        try:
            yield
        finally:
            self._turns.give_back()

    def _race(self, since: Seen, commit: NewCommit) -> Written:
        between, seen = _Between(), since
        # Without a stamp nobody could tell later whether the commit before this one is the same.
        looks_first = not self._objects.is_remote or since.stamp is None
        for refusal in range(REFUSALS_MAX):
            if looks_first or refusal:
                seen, is_there = self._follow(seen, commit, between)
                if is_there:
                    # The put had landed, and its answer was lost.
                    return Written(seen, between.passed)
            self._turns.wait()
            if self._put(seen, commit):
                return Written(self._confirm(seen, commit), between.passed)
            self._pause(refusal)
        seen, is_there = self._follow(seen, commit, between)
        if is_there:
            return Written(seen, between.passed)
        problem = f"other writers were faster {REFUSALS_MAX} times; computing again"
        raise CommitRefusedError(self._folder.name, problem)

    def _pause(self, refusal: int) -> None:
        if refusal >= TURN_AFTER_REFUSALS:
            self._turns.ask()
        elif refusal:
            # Random pauses keep two losers from meeting again.
            longest_s = min(PAUSE_S * 2**refusal, LONGEST_PAUSE_S)
            time.sleep(random.random() * longest_s)  # noqa: S311

    # Follow what others commit.

    def _follow(self, seen: Seen, commit: NewCommit, between: _Between) -> tuple[Seen, bool]:
        """Return the newest commit, and whether it is the own one; compare those after `seen`."""
        while True:
            base, following = self._folder.commit_infos(seen.version, seen.version + 1)
            self._check_same(seen, base)
            if following.type is pa_fs.FileType.NotFound:
                is_gone = base.type is pa_fs.FileType.NotFound
                return seen._replace(stamp=None if is_gone else stamp_of(base)), False
            actions = self._actions(seen.version + 1)
            named_ms = actions.in_commit_ms or seen.in_commit_ms
            # Times in commits begin and end with a change of the properties, which is a conflict.
            in_commit_ms = None if seen.in_commit_ms is None else named_ms
            seen = Seen(seen.version + 1, stamp_of(following), in_commit_ms)
            if actions.token == commit.token:
                return seen, True
            self._check_passable(commit, actions, between)
            between.add(Passed(seen.version, actions))

    def _check_passable(self, commit: NewCommit, actions: CommitActions, between: _Between) -> None:
        conflict = clash(commit, actions)
        if conflict is not None:
            raise self._refused(f"{conflict.problem}; computing again")
        limit = PASSED_MAX_REMOTE if self._objects.is_remote else PASSED_MAX_LOCAL
        if between.count >= limit:
            raise self._refused(f"{limit:,} commits came between; opening again")

    def _check_same(self, seen: Seen, base: pa_fs.FileInfo) -> None:
        if base.type is pa_fs.FileType.NotFound and not self._begins_at(seen):
            raise self._refused("the log was cleaned since it was opened; opening again")
        if seen.stamp is not None and seen.stamp != stamp_of(base):
            raise self._refused("the log was replaced since it was opened; opening again")

    def _begins_at(self, seen: Seen) -> bool:
        """Tell whether the log begins at a checkpoint whose own commit file is gone."""
        return seen.stamp is None and self._newest_checkpoint() == seen.version

    def _newest_checkpoint(self) -> int:
        with read_errors(self._folder.name):
            names = self._folder.log_names()
        return max(LogNames.of(names).checkpoints, default=-1)

    def _actions(self, version: int) -> CommitActions:
        content = self._folder.commit_bytes(version)
        try:
            return commit_actions(content or b"")
        except DAMAGES as error:
            raise self._refused(f"commit {version} cannot be read; opening again") from error

    def _refused(self, problem: str) -> CommitRefusedError:
        return CommitRefusedError(self._folder.name, problem)

    # Put the own commit.

    def _put(self, seen: Seen, commit: NewCommit) -> bool:
        version = seen.version + 1
        content = commit.content(time.time_ns() // 1_000_000, seen.in_commit_ms)
        try:
            return self._objects.put_new(commit_path(version), content)
        except STORAGE_ERRORS as error:
            if self._is_there(version, commit):
                return True
            raise failed_write(self._folder.name, error) from error

    def _is_there(self, version: int, commit: NewCommit) -> bool:
        try:
            return self._actions(version).token == commit.token
        except StorageError:
            return False

    def _confirm(self, before: Seen, commit: NewCommit) -> Seen:
        """Return the own commit after `before`, once it counts.

        Where `before` is gone, its writer slept beside the put. If log clean-up passed while it
        slept before the put, no reader looks at this commit. Another such writer may have put its
        own commit in the place of `before`, which the stamp tells. Where the log went back, the
        commit stands behind a gap, and nobody could read on. So it is taken back; but if it slept
        after the put, a checkpoint may have been made of this very commit, which then counts.
        Who computes again finds that by the marks.
        """
        try:
            base, own = self._folder.commit_infos(before.version, before.version + 1)
        except StorageError:
            # A failed look must not hide that the commit before it succeeded.
            return Seen(before.version + 1)
        if base.type is pa_fs.FileType.NotFound and not self._begins_at(before):
            version = before.version + 1
            if self._newest_checkpoint() != version and self._is_there(version, commit):
                self._objects.delete(commit_path(version))
            raise self._refused("the log was cleaned while it was committed to; looking again")
        if own.type is pa_fs.FileType.NotFound or before.stamp not in (None, stamp_of(base)):
            raise self._refused("the log was replaced while it was committed to; looking again")
        return Seen(before.version + 1, stamp_of(own))


def new_token() -> str:
    """Make a name for one commit."""
    return new_uuid().hex


# --- turns ----------------------------------------------------------------------------------------


class _Pace(NamedTuple):
    """How often a writer looks for the turn of another, and how long it waits for it."""

    look_s: float
    poll_s: float
    patience_s: float
    # For who computes its commit anew in its turn, such as a rebuild.
    long_patience_s: float


_LOCAL = _Pace(look_s=0.01, poll_s=0.002, patience_s=0.5, long_patience_s=5.0)
# Each look is a request.
_REMOTE = _Pace(look_s=1.0, poll_s=0.1, patience_s=5.0, long_patience_s=15.0)


class Turns:
    """The turns of one table, as one writer sees them. Not safe for several threads."""

    def __init__(self, objects: Objects, read: Callable[[str], bytes | None]) -> None:
        """Look at nothing yet; `read` gives the content of a file, None where there is none."""
        self._objects, self._read = objects, read
        self._pace = _REMOTE if objects.is_remote else _LOCAL
        self._own = b""
        # A turn that took longer than our patience; its owner may be dead.
        self._ignored = b""
        self._looked_s = -math.inf
        self._is_asked = False

    def ask(self, *, is_long: bool = False) -> None:
        """Ask the others to wait, unless another writer has its turn."""
        if not self._is_asked:
            # A new name each time: who lost patience with a turn ignores it for good.
            self._own = (_LONG if is_long else b"") + uuid.uuid4().hex.encode()
            # Who may not write this file, or has no room for it, goes on without a turn.
            with suppress(Exception):
                self._is_asked = self._objects.put_new(TURN_FILE, self._own)

    def give_back(self) -> None:
        """Let the others go on."""
        if self._is_asked:
            self._is_asked = False
            self._end(self._own)

    def wait(self) -> None:
        """Wait while another writer has its turn; most calls look at nothing."""
        now_s = time.monotonic()
        if self._is_asked or now_s - self._looked_s < self._pace.look_s:
            return
        turn = self._turn()
        is_long = turn is not None and turn.startswith(_LONG)
        patience_s = self._pace.long_patience_s if is_long else self._pace.patience_s
        until_s = now_s + patience_s
        while turn is not None and time.monotonic() < until_s:
            time.sleep(self._pace.poll_s)
            after = self._turn()
            if after != turn:
                break
        else:
            self._ignore(turn)
        self._looked_s = time.monotonic()

    def _turn(self) -> bytes | None:
        """Return the turn that another writer has; None also if the look fails."""
        with suppress(Exception):
            turn = self._read(TURN_FILE)
            return None if turn in {self._own, self._ignored} else turn
        return None

    def _ignore(self, turn: bytes | None) -> None:
        if turn is not None:
            self._ignored = turn
            self._end(turn)

    def _end(self, turn: bytes) -> None:
        """Remove a turn; a file that stays costs each writer its patience once."""
        with suppress(Exception):
            if self._read(TURN_FILE) == turn:
                self._objects.delete(TURN_FILE)
