"""Messages without a local transaction: durable and acknowledged, or never shown.

Each is a half and a COMMIT, as any other. One whose COMMIT never came was never acknowledged: the
check rolls it back without asking anybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from txmq.errors import InvalidMessageError, InvalidMessageTypeError
from txmq.lifecycle import ClaimKind
from txmq.message.ids import new_transaction_id
from txmq.message.message import Message
from txmq.producer.commits import Piece, ProducerCommits, send_result
from txmq.producer.results import SendResult
from txmq.producer.routing import QueueSelector, Routed, check_message


class OrdinaryMessages:
    """Sends for one producer, from any thread."""

    def __init__(self, commits: ProducerCommits) -> None:
        """Nothing is read or written yet."""
        self._commits = commits

    def send(self, pieces: Sequence[Piece]) -> SendResult:
        """All halves first, then all ends in one commit, shared with others.

        So a batch of several pieces is acknowledged as a whole, or not at all.

        Raises: SendForbiddenError, ClosedError, StorageError; AlreadyResolvedError where the check
            was first: the sender took longer than `transaction_timeout_s`.
        """
        sending = self._commits.begin_send(pieces, ordinary=True)
        try:
            self._send(pieces)
        except BaseException as error:
            sending.done(error)
            raise
        sending.done()
        return send_result(pieces)

    def _send(self, pieces: Sequence[Piece]) -> None:
        self._commits.append_halves(
            [[self._commits.half_of(piece, ordinary=True)] for piece in pieces]
        )
        ends = [(piece.transaction_id, ClaimKind.COMMIT) for piece in pieces]
        for (own_id, kind), found in zip(ends, self._commits.append_ends(ends), strict=True):
            found.confirm(own_id, kind)

    def pieces(
        self,
        messages: object,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
    ) -> Sequence[Piece]:
        """One message or a batch as transactions, cut where one would become too large; 0 commits.

        Raises: MessageError and its kinds, ClosedError.
        """
        routed = self._routed(messages, queue_id, queue_selector)
        self._commits.check_open()
        now_ms = self._commits.now_ms()
        return [Piece(new_transaction_id(now_ms), own) for own in self._cut(routed)]

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

    def _cut(self, routed: Sequence[Routed]) -> Iterator[list[Routed]]:
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
