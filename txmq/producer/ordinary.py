"""Sends ordinary messages, which have no local transaction.

An ordinary message is a half and a COMMIT, as any other message. If its COMMIT never came, it was
never acknowledged, and the check rolls it back without asking a listener.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from txmq.errors import InvalidMessageError
from txmq.message.ids import new_transaction_id
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import Message
from txmq.producer.commits import ProducerCommits, half_size
from txmq.producer.contexts import Sending
from txmq.producer.ends import asked_ends
from txmq.producer.routing import (
    MessageRouter,
    PlannedSend,
    QueueSelector,
    RoutedMessage,
    SendResult,
    send_result,
)
from txmq.store.half import HalfTransaction


class OrdinaryMessages:
    """Sends the ordinary messages of one producer. Safe for many threads."""

    def __init__(self, commits: ProducerCommits, router: MessageRouter) -> None:
        """Read and write nothing yet."""
        self._commits, self._router = commits, router

    def send(self, sends: Sequence[PlannedSend]) -> SendResult:
        """Append all halves, then all COMMITs in one commit; both are shared.

        So a batch that was split is acknowledged as a whole, or not at all.

        Raises: SendForbiddenError, InvalidBodyError, ClosedError, StorageError;
            AlreadyResolvedError if the send took longer than `transaction_timeout_s` and the check
            rolled it back.
        """
        sending = self._commits.begin_send(sends, ordinary=True)
        try:
            self._send(sends, sending)
        except BaseException as error:
            sending.done(error)
            raise
        sending.done()
        return send_result(sends)

    def _send(self, sends: Sequence[PlannedSend], sending: Sending) -> None:
        refused = self._commits.append_halves(
            [([self._half_of(send, sending)], half_size(send)) for send in sends]
        )
        for error in refused.values():
            raise error
        resolutions = self._commits.append_ends(asked_ends(sends, [ClaimKind.COMMIT] * len(sends)))
        for send, resolution in zip(sends, resolutions, strict=True):
            resolution.confirm(send.transaction_id, ClaimKind.COMMIT)

    def _half_of(self, send: PlannedSend, sending: Sending) -> HalfTransaction:
        return self._commits.carrying(self._commits.half_of(send, ordinary=True), sending)

    def planned(
        self,
        messages: object,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
    ) -> Sequence[PlannedSend]:
        """Plan one message or a batch as transactions within the size limit; 0 commits.

        Raises: MessageError and its kinds, ClosedError.
        """
        batch = self._router.accept_all(
            _batch(messages), queue_id, queue_selector, is_transactional=False
        )
        self._commits.check_open()
        since, now_ms = self._commits.followed, self._commits.now_ms()
        sends = [
            PlannedSend(new_transaction_id(now_ms), split, since) for split in self._split(batch)
        ]
        return [self._router.encoding(send) for send in sends]

    def _split(self, batch: Sequence[RoutedMessage]) -> Iterator[list[RoutedMessage]]:
        """Split a batch, in its order, into transactions of at most the allowed size."""
        limit = self._commits.store.config.max_transaction_size_bytes
        transaction: list[RoutedMessage] = []
        size_bytes = 0
        for routed in batch:
            message_bytes = routed.size_bytes
            if transaction and size_bytes + message_bytes > limit:
                yield transaction
                transaction, size_bytes = [], 0
            transaction.append(routed)
            size_bytes += message_bytes
        yield transaction


def _batch(messages: object) -> list[Message]:
    """The messages as a list; all must go to one topic (R96)."""
    if isinstance(messages, Message):
        return [messages]
    if isinstance(messages, str | bytes) or not hasattr(messages, "__iter__"):
        problem = f"must be a Message or several of them, not {type(messages).__name__}"
        raise InvalidMessageError("messages", problem)
    batch = list(messages)
    if not batch:
        raise InvalidMessageError("messages", "must hold at least one message")
    topics = {message.topic for message in batch if isinstance(message, Message)}
    if len(topics) > 1:
        problem = "of a batch must go to one topic; for several use begin_transaction()"
        raise InvalidMessageError("messages", problem)
    return batch
