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
from txmq.producer.commits import ProducerCommits
from txmq.producer.results import SendResult
from txmq.producer.routing import (
    MessageRouter,
    PlannedSend,
    QueueSelector,
    RoutedMessage,
    send_result,
)


class OrdinaryMessages:
    """Sends for one producer, from any thread."""

    def __init__(self, commits: ProducerCommits, router: MessageRouter) -> None:
        """Nothing is read or written yet."""
        self._commits, self._router = commits, router

    def send(self, sends: Sequence[PlannedSend]) -> SendResult:
        """All halves first, then all ends in one commit, shared with others.

        So a batch that was cut is acknowledged as a whole, or not at all.

        Raises: SendForbiddenError, ClosedError, StorageError; AlreadyResolvedError where the check
            was first: the sender took longer than `transaction_timeout_s`.
        """
        sending = self._commits.begin_send(sends, ordinary=True)
        try:
            self._send(sends)
        except BaseException as error:
            sending.done(error)
            raise
        sending.done()
        return send_result(sends)

    def _send(self, sends: Sequence[PlannedSend]) -> None:
        self._commits.append_halves(
            [[self._commits.half_of(send, ordinary=True)] for send in sends]
        )
        ends = [(send.transaction_id, ClaimKind.COMMIT) for send in sends]
        for (own_id, kind), found in zip(ends, self._commits.append_ends(ends), strict=True):
            found.confirm(own_id, kind)

    def planned(
        self,
        messages: object,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
    ) -> Sequence[PlannedSend]:
        """One message or a batch as transactions, cut where one would become too large; 0 commits.

        Raises: MessageError and its kinds, ClosedError.
        """
        routed = self._router.accept_all(
            _batch(messages), queue_id, queue_selector, is_transactional=False
        )
        self._commits.check_open()
        now_ms = self._commits.now_ms()
        return [PlannedSend(new_transaction_id(now_ms), own) for own in self._cut(routed)]

    def _cut(self, routed: Sequence[RoutedMessage]) -> Iterator[list[RoutedMessage]]:
        """The batch in its order, cut where a transaction would become too large."""
        limit = self._commits.store.config.max_transaction_size_bytes
        piece: list[RoutedMessage] = []
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
