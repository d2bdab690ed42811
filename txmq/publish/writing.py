"""Topics that are being written while their publisher settles the next claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txmq.publish.topic_writer import Goal, PublishResult

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class Writing:
    """One step of a publisher whose topics are being written, or have been.

    Attributes:
        facts: those that the step shows.
        begun_s: when the step began, by `time.monotonic`.
        tasks: the result of each topic.
        may_try_again: whether `TopicWriter.write` is still to be asked where a task failed.
    """

    facts: pa.Table
    goal: Goal
    begun_s: float
    tasks: Mapping[str, Future[PublishResult]]
    may_try_again: bool

    def wait(self) -> None:
        """Wait until no topic is written any more."""
        wait(self.tasks.values())

    def result_of(self, name: str, write: Callable[[str, Goal], PublishResult]) -> PublishResult:
        """What the task of a topic gave, or what `write` gives. Raises: what they raise."""
        try:
            return self.tasks[name].result()
        except Exception:
            if not self.may_try_again:
                raise
            return write(name, self.goal)
