"""Compares bodies with the schema of their topic once more, when their halves are committed.

A producer accepts messages by settings that may be `topic_refresh_s` old, so a topic may have
become typed since (decision 0034).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from txmq.errors import InvalidBodyError, TopicChangedError, TxmqError, shown
from txmq.message.body_schema import BodySchema
from txmq.store.catalog import TopicCatalog
from txmq.store.half import HalfTransaction


class FrameTopic(NamedTuple):
    """A DataFrame's topic, and the schema by which its bodies are checked."""

    topic: str
    body_schema: BodySchema | None


# The DataFrames of transactions, by id.
Frames = Mapping[str, Sequence[FrameTopic]]
NO_FRAMES: Frames = {}
# The errors of transactions, by id.
Refused = Mapping[str, TxmqError]
NONE_REFUSED: Refused = {}


class BodyWatch:
    """Refuses bodies at their commit. Safe for many threads."""

    def __init__(self, catalog: TopicCatalog) -> None:
        """Read nothing yet."""
        self._catalog = catalog

    def before(
        self, halves: Iterable[HalfTransaction], frames: Frames = NO_FRAMES
    ) -> tuple[Refused, int]:
        """Return the errors of what must not be committed, and the number that `after` needs.

        Costs one lookup of a file name.
        """
        retypings = self._catalog.look()
        return self._problems(halves, frames, _invalid), retypings

    def after(
        self, halves: Iterable[HalfTransaction], retypings: int, frames: Frames = NO_FRAMES
    ) -> Refused:
        """Return the errors of what is committed and must not be used; one lookup of a file name.

        A topic cannot become typed while an open transaction names it, so nothing slips between.
        """
        if self._catalog.look() == retypings:
            return NONE_REFUSED
        return self._problems(halves, frames, _changed)

    def _problems(
        self,
        halves: Iterable[HalfTransaction],
        frames: Frames,
        error: Callable[[str, str, str], TxmqError],
    ) -> Refused:
        if not self._catalog.retyped:
            return NONE_REFUSED
        refused: dict[str, TxmqError] = {}
        for half in halves:
            transaction_id = half.origin.transaction_id
            for topic, problem in self._faults(half, frames.get(transaction_id, ())):
                refused.setdefault(transaction_id, error(topic, transaction_id, problem))
        return refused

    def _faults(
        self, half: HalfTransaction, frames: Sequence[FrameTopic]
    ) -> Iterator[tuple[str, str]]:
        for message in half.messages:
            if message.topic in self._catalog.retyped:
                schema = self._catalog.body_schema(message.topic)
                problem = schema.problem(message.body) if schema else None
                if problem:
                    yield message.topic, problem
        for topic, checked_by in frames:
            schema = self._catalog.body_schema(topic)
            if topic not in self._catalog.retyped or schema is None:
                continue
            if checked_by is None or schema.differences(checked_by):
                yield topic, "its DataFrame was not checked by it"


def _invalid(topic: str, _: str, problem: str) -> TxmqError:
    return InvalidBodyError("body", f"does not match the schema of topic {shown(topic)}: {problem}")


def _changed(topic: str, transaction_id: str, problem: str) -> TxmqError:
    return TopicChangedError(topic, transaction_id, problem)
