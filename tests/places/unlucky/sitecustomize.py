"""What Python runs first on executors whose tasks run more than once, each after it has written.

The first attempt of each task fails. The second one of a job's first task waits until a speculative
copy has written too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from txmq.spark import executors

LIMIT_S = 120.0
_outcome = executors.file_outcome


def unlucky_outcome(table: str, write: Callable[[], Any], *others: Any) -> Any:
    outcome = _outcome(table, write, *others)
    task = TaskContext.get()
    assert task is not None
    place = f"{table.rpartition('/')[2]}.{task.stageId()}.{task.partitionId()}"
    attempts = Path(os.environ["ATTEMPTS"])
    (attempts / f"{place}.{task.attemptNumber()}").touch()
    if task.attemptNumber() == 0:
        raise RuntimeError("this attempt fails after it wrote")
    deadline_s = time.monotonic() + LIMIT_S
    while task.partitionId() == 0 and not (attempts / f"{place}.2").exists():
        assert time.monotonic() < deadline_s, "no speculative copy has written"
        time.sleep(0.05)
    return outcome


executors.file_outcome = unlucky_outcome
