"""Errors about the life of a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmq.errors.base import TxmqError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence


class TransactionError(TxmqError):
    """A call does not fit the state of its transaction."""

    def __init__(self, transaction_id: str, problem: str) -> None:
        """`problem` says what to do instead."""
        self.transaction_id = transaction_id
        super().__init__(f"transaction {shown(transaction_id)}: {problem}")


_NEXT_STEPS = {
    "DISCARDED": (
        "no listener gave an end in time, and its messages are dead letters; `txmq resume` opens "
        "it again, then ask for the end again"
    ),
    "INCOMPLETE": "half messages are missing or differ; repair them, then `txmq resume`",
    "PENDING": "an operator has resumed it meanwhile; ask for the end again",
}


class AlreadyResolvedError(TransactionError):
    """The transaction does not have the end that was asked for.

    COMMITTED, ROLLED_BACK and EXPIRED stand for good; a DISCARDED transaction can be resumed.
    """

    def __init__(self, transaction_id: str, resolution: str, source: str) -> None:
        """`resolution` is the state that took effect, `source` who asked for it."""
        self.resolution, self.source = resolution, source
        if resolution in _NEXT_STEPS:
            problem = f"is {resolution} (by {source}): {_NEXT_STEPS[resolution]}"
        else:
            next_step = "compare it with your local transaction"
            problem = f"is already {resolution} (ended by {source}); {next_step}"
        super().__init__(transaction_id, problem)


class TransactionNotFoundError(TransactionError):
    """No half message of this id is durable."""

    def __init__(self, transaction_id: object, problem: str | None = None) -> None:
        """`problem` says what else it may be than a mistyped id."""
        problem = problem or "check the id and the store"
        super().__init__(str(transaction_id), f"has no half message; {problem}")


class TransactionForgottenError(TransactionNotFoundError):
    """The transaction is so old that nothing of it is kept: it had its end long ago."""

    def __init__(self, transaction_id: str) -> None:
        """The first end stands; which one it was, only its topics and its local data can tell."""
        TransactionError.__init__(
            self,
            transaction_id,
            "had its end, and retention has removed its rows since (file_reserved_time_h); that "
            "end stands, so compare its topics with your local transaction",
        )


class MessageIdError(TransactionNotFoundError):
    """A text that no send has returned was given as the id of a message."""

    def __init__(self, message_id: object) -> None:
        """Say what an id looks like."""
        self.transaction_id = str(message_id)
        form = "it is TRANSACTION_ID:NUMBER, as a send returned it"
        step = "all messages of a transaction: txmq message --transaction"
        TxmqError.__init__(self, f"{shown(message_id)} is no message id: {form}; {step}")


class MessageNotFoundError(TransactionError):
    """No message of this id is there."""

    def __init__(self, message_id: object, problem: str | None = None) -> None:
        """`problem` says what else it may be than a mistyped id."""
        self.message_id = str(message_id)
        problem = problem or "check the id and the store"
        transaction_id = self.message_id.partition(":")[0]
        super().__init__(transaction_id, f"has no message {shown(message_id)}; {problem}")


class ProducerGroupMismatchError(TransactionError):
    """Only the group that prepared a transaction may end it (R37)."""

    def __init__(self, transaction_id: str, expected: str, given: str) -> None:
        """`expected` is the group of the half."""
        self.expected, self.given = expected, given
        super().__init__(transaction_id, f"belongs to group {shown(expected)}, not {shown(given)}")


class NotPreparedError(TransactionError):
    """An end was asked for before `prepare()`."""

    def __init__(self, transaction_id: str) -> None:
        """Nothing is durable yet, so there is nothing to end."""
        super().__init__(transaction_id, "call prepare() before the local transaction and its end")


class AlreadyPreparedError(TransactionError):
    """A message was added after `prepare()` had fixed their number."""

    def __init__(self, transaction_id: str) -> None:
        """The halves are durable; more messages need another transaction."""
        super().__init__(transaction_id, "is prepared; send before prepare(), or begin another")


class NotEndedError(TransactionError):
    """A `with` block was left normally without commit() or rollback()."""

    def __init__(self, transaction_id: str) -> None:
        """If the halves are durable, the check service asks for its end."""
        super().__init__(transaction_id, "left without an end; call commit() or rollback()")


class IncompleteTransactionError(TransactionError):
    """Halves are missing or contradict each other; nothing of the transaction is shown."""

    def __init__(self, transaction_id: str, expected: int | None, found: int) -> None:
        """`expected` is None when the head itself is missing."""
        self.expected, self.found = expected, found
        wanted = "an unknown number" if expected is None else str(expected)
        super().__init__(transaction_id, f"has {found} of {wanted} messages; repair, then resume")


class DifferentMessagesError(TransactionError):
    """An earlier try with the same idempotency key has other messages, which stand."""

    def __init__(
        self, transaction_id: str, key: str, state: str, differences: Sequence[str]
    ) -> None:
        """`state` is that of the earlier try; `differences` names fields and never shows a body."""
        self.key, self.state, self.differences = key, state, tuple(differences)
        super().__init__(
            transaction_id,
            f"an earlier try with the key {shown(key)} is {state} with other messages "
            f"({'; '.join(self.differences)}); nothing was written. Give every try the same "
            "messages, look at `state` before you send, or take another key for other work",
        )


class LocalTransactionError(TransactionError):
    """The local transaction cannot carry its marker, or did not take place."""

    def __init__(self, transaction_id: str, where: str, problem: str) -> None:
        """`where` is the table or the database that was to be marked."""
        self.where, self.problem = where, problem
        super().__init__(transaction_id, f"{where}: {problem}")


class LocalTransactionFencedError(LocalTransactionError):
    """The check was first: nothing of the local transaction is there, and nothing will be."""

    def __init__(self, transaction_id: str, where: str) -> None:
        """Say that it is over; its messages will not be shown."""
        problem = "the check rolled it back and fenced it; nothing was changed, begin a new one"
        super().__init__(transaction_id, where, problem)


class LocalTransactionDoneError(LocalTransactionError):
    """An earlier try of this transaction made the change already."""

    def __init__(self, transaction_id: str, where: str) -> None:
        """Say that only its end is missing."""
        problem = "an earlier try did it already; do not do it again, go on with commit()"
        super().__init__(transaction_id, where, problem)


class LocalTransactionMissingError(LocalTransactionError):
    """No write with the marker is there, so the messages must not be shown."""

    def __init__(self, transaction_id: str, where: str) -> None:
        """Say what may have happened."""
        problem = (
            "no write with the marker of this transaction is there; was it run and committed, "
            "here? Without it, roll back. A write without the marker (delta_options(), "
            "delta_sql(), delta_rs(), database() put it there) stays, and its message will not "
            "be shown"
        )
        super().__init__(transaction_id, where, problem)


class ClaimWithoutEffectError(TransactionError):
    """A claim does not fit the state that its transaction is in; an end may come later."""

    def __init__(self, transaction_id: str, kind: str, state: str, next_step: str) -> None:
        """`next_step` says what fits in its place."""
        self.kind, self.state = kind, state
        super().__init__(transaction_id, f"is {state}, where {kind} has no effect; {next_step}")


class NotRecalledError(TransactionError):
    """A message cannot be recalled (any more); what happens to it instead is in `state`."""

    def __init__(self, message_id: str, state: str, problem: str) -> None:
        """`state` is where the message stands, `problem` says what fits instead."""
        self.message_id, self.state = message_id, state
        super().__init__(message_id.partition(":")[0], f"message {shown(message_id)} {problem}")


class SendForbiddenError(TxmqError):
    """A CheckForbiddenHook refused a send; nothing was written."""

    def __init__(self, reason: str) -> None:
        """`reason` is for the caller of the send."""
        self.reason = reason
        super().__init__(f"send refused: {reason}")


class NotAcceptedError(TxmqError):
    """The store does not take transactional messages now (`reject_transaction_message`, R25)."""

    def __init__(self) -> None:
        """Nothing was written."""
        problem = "the store takes no transactions now (reject_transaction_message)"
        super().__init__(f"{problem}; try later")
