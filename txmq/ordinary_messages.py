"""Messages without a local transaction: durable and acknowledged, or never shown.

Each is a half and a COMMIT, as any other. One whose COMMIT never came was never acknowledged: the
check rolls it back without asking anybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from threading import Lock

from txmq.errors import (
    AlreadyResolvedError,
    InvalidMessageError,
    InvalidMessageTypeError,
    TxmqError,
)
from txmq.half_log import HalfRow
from txmq.lifecycle import ClaimKind
from txmq.message import Message, message_id, new_transaction_id
from txmq.message_checks import check_message
from txmq.producer_commits import ProducerCommits, QueueSelector, Routed
from txmq.resolution import Resolution
from txmq.send_results import SendResult, running_future


class OrdinaryMessages:
    """Sends for one producer, from any thread."""

    def __init__(self, commits: ProducerCommits) -> None:
        """Nothing is read or written yet."""
        self._commits = commits

    def send(
        self,
        messages: object,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
        *,
        is_patient: bool = False,
    ) -> Future[SendResult]:
        """Two commits, shared with others; the future fails where nothing will be shown.

        Raises at once: MessageError and its kinds, SendForbiddenError, ClosedError.
        """
        routed = self._routed(messages, queue_id, queue_selector)
        self._commits.check_open()
        return _Send(self._commits, list(self._pieces(routed)), is_patient=is_patient).begin()

    def _routed(
        self, messages: object, queue_id: int | None, queue_selector: QueueSelector | None
    ) -> list[Routed]:
        commits = self._commits
        config, now_ms = commits.store.config, commits.now_ms()
        checked = [check_message(each, config, now_ms) for each in _batch(messages)]
        given = [each.to_stored_topic(commits.stored_topic(each.topic)) for each in checked]
        for message in given:
            commits.queues.check_message(message, is_transactional=False)
        return [commits.queues.routed(each, queue_id, queue_selector) for each in given]

    def _pieces(self, routed: Sequence[Routed]) -> Iterator[list[Routed]]:
        """The batch in its order, cut where a transaction would become too large."""
        limit = self._commits.store.config.max_transaction_size_bytes
        piece: list[Routed] = []
        size_bytes = 0
        for each in routed:
            own_bytes = each.message.body_size_bytes
            if piece and size_bytes + own_bytes > limit:
                yield piece
                piece, size_bytes = [], 0
            piece.append(each)
            size_bytes += own_bytes
        yield piece


class _Send:
    """One batch on its way: all halves first, then all ends in one commit.

    So a batch of several pieces is acknowledged as a whole, or not at all.
    """

    def __init__(
        self, commits: ProducerCommits, pieces: Sequence[list[Routed]], *, is_patient: bool
    ) -> None:
        self._commits, self._is_patient = commits, is_patient
        now_ms = commits.now_ms()
        self._pieces = {new_transaction_id(now_ms): piece for piece in pieces}
        self._left, self._lock = len(pieces), Lock()
        self._failure: BaseException | None = None
        own = {key: [each.message for each in piece] for key, piece in self._pieces.items()}
        self._sending = commits.hooks.begin_send(own, ordinary=True)
        self._future: Future[SendResult] = running_future()

    def begin(self) -> Future[SendResult]:
        halves = [self._half_rows(own_id, piece) for own_id, piece in self._pieces.items()]
        for rows in halves:
            try:
                self._commits.prepare_then(rows, self._prepared, is_patient=self._is_patient)
            except TxmqError as error:
                # Closed meanwhile: the pieces before this one are rolled back by the check.
                self._prepared(error)
        return self._future

    def _half_rows(self, transaction_id: str, piece: list[Routed]) -> list[HalfRow]:
        return self._commits.half_rows(transaction_id, piece, in_turn=True, ordinary=True)

    def _prepared(self, error: BaseException | None) -> None:
        with self._lock:
            self._left -= 1
            self._failure = self._failure or error
            is_last = not self._left
        if not is_last:
            return
        if self._failure is None:
            self._end()
        else:
            self._fail(self._failure)

    def _end(self) -> None:
        try:
            self._commits.end_then(
                [(transaction_id, ClaimKind.COMMIT) for transaction_id in self._pieces],
                self._ended,
                is_patient=self._is_patient,
            )
        except TxmqError as error:
            self._fail(error)

    def _ended(self, resolutions: Sequence[Resolution], error: BaseException | None) -> None:
        failure = error or self._refusal(resolutions)
        if failure is None:
            self._sending.done()
            self._future.set_result(self._result())
        else:
            self._fail(failure)

    def _fail(self, error: BaseException) -> None:
        self._sending.done(error)
        self._future.set_exception(error)

    def _refusal(self, resolutions: Sequence[Resolution]) -> BaseException | None:
        """Where the check was first: the sender took longer than `transaction_timeout_s`."""
        try:
            for transaction_id, resolution in zip(self._pieces, resolutions, strict=True):
                resolution.confirm(transaction_id, ClaimKind.COMMIT)
        except AlreadyResolvedError as error:
            return error
        return None

    def _result(self) -> SendResult:
        ids = tuple(
            message_id(transaction_id, sequence)
            for transaction_id, piece in self._pieces.items()
            for sequence in range(len(piece))
        )
        return SendResult(ids, tuple(self._pieces))


def _batch(messages: object) -> list[Message]:
    """One message, or several to one topic (R96)."""
    if isinstance(messages, Message):
        return [messages]
    if isinstance(messages, str | bytes) or not hasattr(messages, "__iter__"):
        problem = f"must be a Message or several of them, not {type(messages).__name__}"
        raise InvalidMessageTypeError("messages", problem)
    several = list(messages)
    if not several:
        raise InvalidMessageError("messages", "must hold at least one message")
    topics = {message.topic for message in several if isinstance(message, Message)}
    if len(topics) > 1:
        problem = "of a batch must go to one topic; for several use begin_transaction()"
        raise InvalidMessageError("messages", problem)
    return several
