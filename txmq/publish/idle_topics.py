"""Looks from time to time at topics that nobody writes: one that went back would not be noticed."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Container, Iterator

from txmq.errors import SourceRestoredError, StorageError, TopicBehindError
from txmq.message.names import SCHEDULE_TOPIC
from txmq.publish.topic_writer import TopicWriter

logger = logging.getLogger(__name__)

# A start looks at so many; then one is looked at after each interval, in turns.
FIRST_TOPICS = 16
INTERVAL_S = 1.0
# On an object store a look costs some requests.
REMOTE_INTERVAL_S = 60.0


class IdleTopics:
    """The turns of one publisher. An operator who restores a topic starts a publisher after it."""

    def __init__(self, topics: TopicWriter, *, is_remote: bool) -> None:
        """Look at once, and after each interval."""
        self._topics = topics
        self._interval_s = REMOTE_INTERVAL_S if is_remote else INTERVAL_S
        self._names: deque[str] = deque()
        self._count, self._next_s = FIRST_TOPICS, time.monotonic()

    def behind(self, parked: Container[str]) -> Iterator[tuple[str, TopicBehindError]]:
        """The topics that were further before, of those whose turn it is.

        Raises: SourceRestoredError.
        """
        if time.monotonic() < self._next_s:
            return
        for name in self._next_names():
            try:
                if name not in parked:
                    self._topics.check(name)
            except TopicBehindError as error:
                yield name, error
            except SourceRestoredError:
                raise
            except StorageError as error:
                # Who writes it has to act; a look can wait.
                logger.warning("topic %s could not be looked at: %s", name, error)
        self._count, self._next_s = 1, time.monotonic() + self._interval_s

    def _next_names(self) -> list[str]:
        if not self._names:
            # What waits in the schedule is missed by nobody until it is due.
            names = sorted(self._topics.ends, key=lambda name: (name != SCHEDULE_TOPIC, name))
            self._names.extend(names)
        return [self._names.popleft() for _ in range(min(self._count, len(self._names)))]
