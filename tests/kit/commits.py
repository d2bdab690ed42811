"""Breaks in where commits of txmq's own tables are put, after their look at the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from txmq.delta.actions import LOG_FOLDER
from txmq.delta.folder import Objects


@contextmanager
def after_commit(action: Callable[[], object]) -> Iterator[None]:
    """Run `action` once, right after the next commit of this process, whose own commits do not."""
    waiting, put = [action], Objects.put_new

    def put_new(objects: Objects, path: str, content: bytes) -> bool:
        is_first = put(objects, path, content)
        if waiting and is_first and path.startswith(LOG_FOLDER):
            waiting.pop()()
        return is_first

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objects, "put_new", put_new)
        yield


@contextmanager
def before_put(action: Callable[[], object]) -> Iterator[None]:
    """Run `action` once, between a commit's look at the log and its put."""
    waiting, put = [action], Objects.put_new

    def put_new(objects: Objects, path: str, content: bytes) -> bool:
        if waiting and path.startswith(LOG_FOLDER):
            waiting.pop()()
        return put(objects, path, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objects, "put_new", put_new)
        yield


@contextmanager
def failing_put(error: Exception, *, after_put: bool = False) -> Iterator[list[str]]:
    """Make the next put of a commit fail, or lose its answer; yields the paths that failed."""
    failed: list[str] = []
    put = Objects.put_new

    def put_new(objects: Objects, path: str, content: bytes) -> bool:
        fails = not failed and path.startswith(LOG_FOLDER)
        is_first = put(objects, path, content) if after_put or not fails else False
        if fails:
            failed.append(path)
            raise error
        return is_first

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objects, "put_new", put_new)
        yield failed
