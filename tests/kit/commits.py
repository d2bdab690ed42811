"""Breaks in right after commits of txmq's own tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from txmq.delta.actions import LOG_FOLDER
from txmq.delta.objects import Objects


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
