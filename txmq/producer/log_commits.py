"""The committing threads of one producer: for halves, for ends and for recalls."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from txmq.clock import Clock
from txmq.delta.parquet import NewFile
from txmq.errors import InvalidMessageError
from txmq.fail_points import FailPoint, reached
from txmq.producer.answers import Answer
from txmq.producer.body_watch import NONE_REFUSED, BodyWatch, FrameTopic, Refused
from txmq.producer.dataframe import SEQUENCES_PER_DATAFRAME, DataFrameSend, SendLimits
from txmq.producer.ends import AskedEnds, EndCommits
from txmq.producer.group_commit import GroupCommitter, Item
from txmq.producer.keyed import KeyedHalves
from txmq.store.claim_writer import ClaimWriter
from txmq.store.half import HalfTransaction, half_table
from txmq.store.numbered import NumberedCommits
from txmq.store.op import OpRow
from txmq.store.resolution import Resolution

if TYPE_CHECKING:
    from txmq.message.body_codec import BodyCodec
    from txmq.store.store import Store


class LogCommits:
    """The committing threads of one producer; each starts with its first commit."""

    def __init__(
        self,
        store: Store,
        producer_group: str,
        clock: Clock,
        watch: BodyWatch,
        codec: BodyCodec | None = None,
    ) -> None:
        """Open nothing yet."""
        self._half = store.tables.half_log()
        self._store, self._producer_group, self._watch = store, producer_group, watch
        self._half_commits = NumberedCommits(self._half.table, "producer")
        self._end_commits = EndCommits(store, producer_group, clock)
        self._recall_claims = ClaimWriter(
            store.tables.op_log(), "producer", store.config.half_queues
        )
        self.client_id = str(self._end_commits.session)
        self.queue_id = self._end_commits.queue_id
        # DataFrames commit in their callers' threads, so they count under a session of their own.
        # With a shared counter, a commit of one thread would be taken for the lost commit of
        # another.
        self._frame_session = f"txmq-producer/{uuid.uuid4()}"
        self._frame_numbers, self._frame_lock = itertools.count(1), threading.Lock()
        self.halves: GroupCommitter[Sequence[HalfTransaction], Refused] = self._committer(
            self._commit_halves, "txmq-half"
        )
        self.ends: GroupCommitter[AskedEnds, list[Resolution]] = self._committer(
            self._commit_ends, "txmq-op"
        )
        # Recalls are rare; a thread and a table handle of their own keep the code of ends simple.
        self.recalls: GroupCommitter[OpRow, None] = self._committer(
            self._commit_recalls, "txmq-recall"
        )
        self.keyed = KeyedHalves(store, producer_group, watch, codec)

    @property
    def followed(self) -> int | None:
        """The op version that the ends have followed so far."""
        return self._end_commits.followed

    def _committer(
        self, commit: Callable[[list[Item]], Sequence[Answer]], name: str
    ) -> GroupCommitter[Item, Answer]:
        config = self._store.config
        return GroupCommitter(
            commit,
            name=f"{name}-{self._producer_group}",
            owner=f"the producer of group {self._producer_group}",
            max_rows=config.group_commit_max_rows,
            max_bytes=config.group_commit_max_bytes,
            may_pass=self.is_giver,
        )

    def is_giver(self) -> bool:
        """Whether the calling thread commits halves or ends, and runs the callbacks of these."""
        return self.halves.is_own_thread or self.ends.is_own_thread

    def close(self) -> None:
        """Wait for running commits and end the threads."""
        self.halves.close()
        self.keyed.close()
        self.ends.close()
        self.recalls.close()

    def _commit_halves(self, items: list[Sequence[HalfTransaction]]) -> list[Refused]:
        halves = list(chain.from_iterable(items))
        refused, retypings = self._watch.before(halves)
        if refused:
            halves = [half for half in halves if half.origin.transaction_id not in refused]
        if halves:
            self._append(halves)
            refused = {**refused, **self._watch.after(halves, retypings)}
        if not refused:
            return [NONE_REFUSED] * len(items)
        return [_refused_of(item, refused) for item in items]

    def _append(self, halves: Sequence[HalfTransaction]) -> None:
        rows, half = half_table(halves), self._half.table
        reached(FailPoint.HALF_READY)
        self._half_commits.commit(
            rows, lambda app_id, number: half.append(rows, app_id=app_id, number=number)
        )
        reached(FailPoint.HALF_COMMITTED)

    # --- DataFrames ---------------------------------------------------------------------------

    def frame_files(
        self,
        single: HalfTransaction,
        sends: Sequence[DataFrameSend],
        limits_of: Callable[[str], SendLimits],
    ) -> tuple[HalfTransaction, list[NewFile]]:
        """Compute DataFrames into files, and `single` with the number of all messages; 0 commits.

        Args:
            single: the messages that were sent one by one, with the head.
            sends: the DataFrames.
            limits_of: the limits of a topic.
        """
        half, first = self._store.tables.half_log().table, single.rows
        files = [
            file
            for place, send in enumerate(sends)
            for file in send.write(
                half, single.origin, first + place * SEQUENCES_PER_DATAFRAME, limits_of(send.topic)
            )
        ]
        count = single.message_count + sum(file.num_records for file in files)
        if count == 0:
            raise InvalidMessageError("transaction", "has no message; the DataFrame is empty")
        return single._replace(message_count=count), files

    def commit_frames(
        self,
        single: HalfTransaction,
        files: Sequence[NewFile],
        frames: Sequence[FrameTopic],
    ) -> Refused:
        """Commit the halves of a transaction with DataFrames; the file of the head is last."""
        by_id = {single.origin.transaction_id: frames}
        refused, retypings = self._watch.before([single], by_id)
        if refused:
            return refused
        half = self._store.tables.half_log().table
        head = half.new_files(half_table([single]))
        reached(FailPoint.FRAMES_WRITTEN)
        with self._frame_lock:
            number = next(self._frame_numbers)
            half.append_files([*files, *head], app_id=self._frame_session, number=number)
        reached(FailPoint.FRAMES_COMMITTED)
        return self._watch.after([single], retypings, by_id)

    # --- claims -------------------------------------------------------------------------------

    def _commit_ends(self, items: list[AskedEnds]) -> list[list[Resolution]]:
        answers = iter(self._end_commits.commit_all(items))
        return [list(islice(answers, len(item.ends))) for item in items]

    def _commit_recalls(self, rows: list[OpRow]) -> list[None]:
        self._recall_claims.append(rows)
        return [None] * len(rows)


def _refused_of(item: Sequence[HalfTransaction], refused: Refused) -> Refused:
    ids = [half.origin.transaction_id for half in item]
    return {key: refused[key] for key in ids if key in refused}
