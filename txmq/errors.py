"""All errors in one tree; each says what to do next and carries its facts as fields.

What the protocol foresees (an UNKNOWN answer, a lost race, an exhausted check) is a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOWN_CHARACTERS = 64


class TxmqError(Exception):
    """Root of all errors; `retryable` says whether the same call may succeed later."""

    retryable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[object, ...]:
        """Let an error that leaves its process arrive with its fields."""
        return _error_again, (type(self), self.args, self.__dict__)


def _error_again(
    kind: type[TxmqError], arguments: tuple[object, ...], fields: dict[str, object]
) -> TxmqError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(fields)
    return error


def shown(value: object) -> str:
    """Return a value as an error may show it: cut short, so that no body ever reaches a log."""
    # Cut first, for the value may be a body of any size.
    text = repr(value[:SHOWN_CHARACTERS] if isinstance(value, str | bytes) else value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


# --- What the caller passed in --------------------------------------------------------------------


class ConfigError(TxmqError, ValueError):
    """The settings cannot work; `faults` lists every one of them, by key."""

    def __init__(self, faults: Sequence[str]) -> None:
        """Keep all faults, so that one start shows all of them."""
        self.faults = tuple(faults)
        super().__init__("settings refused; correct this: " + "; ".join(self.faults))


class MessageError(TxmqError, ValueError):
    """A message or a name cannot be accepted; nothing was written."""


class InvalidNameError(MessageError):
    """A name of a topic or a group is not allowed: `rule` says what it must be.

    It is no text, has characters that no name may have, is too long, or belongs to txmq itself.
    """

    def __init__(self, kind: str, name: object, rule: str) -> None:
        """Say which rule `name` breaks; `kind` is topic, producer_group or consumer_group."""
        self.kind, self.name, self.rule = kind, name, rule
        super().__init__(f"{kind} {shown(name)} is refused: {rule}")


class TopicConflictError(InvalidNameError):
    """Another topic has the same name but for upper and lower case."""


class TopicExistsError(InvalidNameError):
    """The topic is there already."""


class TopicKindError(InvalidNameError):
    """The topic is of a kind that does not take this message."""


class TopicReadOnlyError(InvalidNameError):
    """An operator made the topic read-only: it takes no messages now."""


class InvalidMessageError(MessageError):
    """A field of a message, or an argument of a send, cannot be stored as it is.

    `field` is its name, such as body, property, delay_s or queue_id.
    """

    def __init__(self, field: str, problem: str) -> None:
        """Name the field; `problem` says what to pass instead."""
        self.field, self.problem = field, problem
        super().__init__(f"message refused: {field} {problem}")


class InvalidBodyError(InvalidMessageError):
    """A body does not have the schema of its topic."""


class TooLargeError(MessageError):
    """Something is larger than its limit; `size` and `limit` have the unit that `field` names."""

    def __init__(self, field: str, size: int, limit: int) -> None:
        """Show both numbers, so that the caller can split or raise the limit."""
        self.field, self.size, self.limit = field, size, limit
        super().__init__(
            f"{field} is {size:,}, the limit is {limit:,}: split it or raise the limit"
        )


class MessageTooLargeError(TooLargeError):
    """One message is larger than its limit: `field` says what of it.

    It is the body (`max_message_size_bytes`), or keys, tags and properties
    (`max_properties_size_bytes`).
    """


class BatchTooLargeError(TooLargeError):
    """The messages of one transaction are larger than `max_transaction_size_bytes`."""


class SchemaMismatchError(MessageError):
    """A DataFrame does not have the columns of a message; `faults` lists each difference."""

    def __init__(self, faults: Sequence[str]) -> None:
        """Keep all differences, so that one call shows all of them."""
        self.faults = tuple(faults)
        super().__init__("DataFrame refused: " + "; ".join(self.faults))


class BodySchemaError(TxmqError, ValueError):
    """The schema of a topic's bodies cannot be used; `faults` lists every one of them."""

    def __init__(self, faults: Sequence[str]) -> None:
        """Keep all faults, so that one call shows all of them."""
        self.faults = tuple(faults)
        super().__init__("body schema refused: " + "; ".join(self.faults))


class BodyCodecError(TxmqError):
    """A body codec cannot encode or decode a body; `problem` says why.

    It never shows a body or a key.
    """

    def __init__(self, message_id: str, key_id: str, what: str, problem: str) -> None:
        """Name the message and the key, "" for none; `what` is "encoded" or "decoded"."""
        self.message_id, self.key_id, self.problem = message_id, key_id, problem
        by_key = f" by key {shown(key_id)}" if key_id else ""
        super().__init__(f"the body of {shown(message_id)} cannot be {what}{by_key}: {problem}")


class InvalidReasonError(TxmqError, ValueError):
    """The reason of an operator cannot be kept; nothing was written."""

    def __init__(self, problem: str) -> None:
        """Say what to pass instead."""
        super().__init__(f"reason refused: {problem}")


class HookError(TxmqError, TypeError):
    """What was passed as a hook is none."""

    def __init__(self, hook: str, problem: str) -> None:
        """Name the hook; `problem` says what a hook needs."""
        self.hook, self.problem = hook, problem
        super().__init__(f"hook {shown(hook)}: {problem}")


class ListenerError(TxmqError):
    """A listener could not be loaded."""

    def __init__(self, reference: str, problem: str) -> None:
        """Name what the settings name; `problem` says what was looked for."""
        self.reference, self.problem = reference, problem
        super().__init__(f"listener {shown(reference)}: {problem}")


# --- The life of a transaction --------------------------------------------------------------------


class SendForbiddenError(TxmqError):
    """A CheckForbiddenHook refused a send; nothing was written."""

    def __init__(self, reason: str) -> None:
        """Keep the reason of the hook for the caller of the send."""
        self.reason = reason
        super().__init__(f"send refused: {reason}")


class NotAcceptedError(TxmqError):
    """The store does not take transactional messages now (`reject_transaction_message`, R25).

    Nothing was written.
    """

    def __init__(self) -> None:
        """Name the setting."""
        problem = "the store takes no transactions now (reject_transaction_message)"
        super().__init__(f"{problem}; try later")


class TransactionError(TxmqError):
    """A call does not fit the state of its transaction."""

    def __init__(self, transaction_id: str, problem: str) -> None:
        """Name the transaction; `problem` says what to do instead."""
        self.transaction_id = transaction_id
        super().__init__(f"transaction {shown(transaction_id)}: {problem}")


class NotPreparedError(TransactionError):
    """An end was asked for before `prepare()`."""

    def __init__(self, transaction_id: str) -> None:
        """Say what to call first: nothing is durable yet, so there is nothing to end."""
        super().__init__(transaction_id, "call prepare() before the local transaction and its end")


class AlreadyPreparedError(TransactionError):
    """A message was added after `prepare()` had fixed their number."""

    def __init__(self, transaction_id: str) -> None:
        """Say where more messages go: the halves are durable."""
        super().__init__(transaction_id, "is prepared; send before prepare(), or begin another")


class NotEndedError(TransactionError):
    """A `with` block was left normally without commit() or rollback()."""

    def __init__(self, transaction_id: str) -> None:
        """Say what was to be called; the check service asks for the end of durable halves."""
        super().__init__(transaction_id, "left without an end; call commit() or rollback()")


class ProducerGroupMismatchError(TransactionError):
    """Only the group that prepared a transaction may end it (R37)."""

    def __init__(self, transaction_id: str, expected: str, given: str) -> None:
        """Name the group of the half, and the group that was given."""
        self.expected, self.given = expected, given
        super().__init__(transaction_id, f"belongs to group {shown(expected)}, not {shown(given)}")


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
        """Name the state that took effect, and who asked for it."""
        self.resolution, self.source = resolution, source
        if resolution in _NEXT_STEPS:
            problem = f"is {resolution} (by {source}): {_NEXT_STEPS[resolution]}"
        else:
            next_step = "compare it with your local transaction"
            problem = f"is already {resolution} (ended by {source}); {next_step}"
        super().__init__(transaction_id, problem)


class ClaimWithoutEffectError(TransactionError):
    """A claim does not fit the state that its transaction is in; an end may come later."""

    def __init__(self, transaction_id: str, kind: str, state: str, next_step: str) -> None:
        """Show the claim and the state; `next_step` says what fits instead."""
        self.kind, self.state = kind, state
        super().__init__(transaction_id, f"is {state}, where {kind} has no effect; {next_step}")


class IncompleteTransactionError(TransactionError):
    """Halves are missing or contradict each other; nothing of the transaction is shown."""

    def __init__(self, transaction_id: str, expected: int | None, found: int) -> None:
        """Show both numbers; `expected` is None when the head itself is missing."""
        self.expected, self.found = expected, found
        wanted = "an unknown number" if expected is None else str(expected)
        super().__init__(transaction_id, f"has {found} of {wanted} messages; repair, then resume")


class DifferentMessagesError(TransactionError):
    """An earlier try with the same idempotency key has other messages, which stand."""

    def __init__(
        self, transaction_id: str, key: str, state: str, differences: Sequence[str]
    ) -> None:
        """Show the state of the earlier try; `differences` names fields, never a body."""
        self.key, self.state, self.differences = key, state, tuple(differences)
        super().__init__(
            transaction_id,
            f"an earlier try with the key {shown(key)} is {state} with other messages "
            f"({'; '.join(self.differences)}); nothing was written. Give every try the same "
            "messages, look at `state` before you send, or take another key for other work",
        )


class TransactionNotFoundError(TransactionError):
    """No half message of this id is durable."""

    def __init__(self, transaction_id: object, problem: str | None = None) -> None:
        """Name the id; `problem` says what else it may be than mistyped."""
        problem = problem or "check the id and the store"
        super().__init__(str(transaction_id), f"has no half message; {problem}")


class TransactionForgottenError(TransactionNotFoundError):
    """The transaction is so old that nothing of it is kept: it had its end long ago."""

    def __init__(self, transaction_id: str) -> None:
        """Say that its end stands; only its topics and its local data can tell which one."""
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
        """Name the id; `problem` says what else it may be than mistyped."""
        self.message_id = str(message_id)
        problem = problem or "check the id and the store"
        transaction_id = self.message_id.partition(":")[0]
        super().__init__(transaction_id, f"has no message {shown(message_id)}; {problem}")


class NotRecalledError(TransactionError):
    """A message cannot be recalled (any more)."""

    def __init__(self, message_id: str, state: str, problem: str) -> None:
        """Say in which state the message is; `problem` says what fits instead."""
        self.message_id, self.state = message_id, state
        super().__init__(message_id.partition(":")[0], f"message {shown(message_id)} {problem}")


class LocalTransactionError(TransactionError):
    """The local transaction cannot carry its marker, or did not take place."""

    def __init__(self, transaction_id: str, where: str, problem: str) -> None:
        """Name the table or the database that was to be marked."""
        self.where, self.problem = where, problem
        super().__init__(transaction_id, f"{where}: {problem}")


class LocalTransactionFencedError(LocalTransactionError):
    """The check was first: nothing of the local transaction is there, and nothing will be."""

    def __init__(self, transaction_id: str, where: str) -> None:
        """Say that it is over; its messages will not be shown."""
        problem = (
            "the check rolled it back and fenced it; nothing was changed, begin a new one. It asks "
            "when the producer is silent for producer_lease_s, and where nobody renews after "
            "transaction_timeout_s (docs/listeners.md: How long may a local transaction take?)"
        )
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


# --- Consumer groups, filters, inboxes and streams over topics ------------------------------------


class ConsumerGroupNotFoundError(TxmqError):
    """No consumer has ever joined a group of this name."""

    def __init__(self, group: str) -> None:
        """Name the group."""
        self.group = group
        super().__init__(f"consumer_group {shown(group)} is not there; check the name")


class ConsumerGroupConflictError(TxmqError, ValueError):
    """Members of a group differ in what they read; all of them must say the same."""

    def __init__(self, group: str, stored: str, given: str) -> None:
        """Name what the members that live read, and what this one would."""
        self.group, self.stored, self.given = group, stored, given
        super().__init__(
            f"consumer_group {shown(group)} reads {stored}, not {given}: use the same settings, "
            "another group, or end the other members first"
        )


class ConsumerGroupInUseError(TxmqError):
    """Members of the group live; its offsets are theirs."""

    retryable = True

    def __init__(self, group: str, members: Sequence[str], *, can_be_forced: bool = True) -> None:
        """Name the members whose lease is not over."""
        self.group, self.members = group, tuple(members)
        steps = "close them, wait for the end of their leases, or force it"
        if not can_be_forced:
            steps = "close them, or wait for the end of their leases"
        super().__init__(
            f"consumer_group {shown(group)} has {len(self.members)} members that live; {steps}"
        )


class ConsumerGroupFullError(TxmqError):
    """The group has as many members as one value can hold; nothing was written."""

    def __init__(self, group: str, limit: int, what: str) -> None:
        """Say of what there are as many as the limit."""
        self.group, self.limit, self.what = group, limit, what
        super().__init__(
            f"consumer_group {shown(group)} has {limit:,} {what}, which is the limit: end some, "
            "give members names that stay, or read with another group"
        )


class QueueNotOwnedError(TxmqError):
    """A queue belongs to another member of the group now."""

    retryable = True

    def __init__(self, topic: str, queue_id: int) -> None:
        """Name the queue; the group shares its queues out anew when members come and go."""
        self.topic, self.queue_id = topic, queue_id
        super().__init__(
            f"topic {shown(topic)}, queue {shown(queue_id)} is not read by this member; "
            "look at `assignment`"
        )


class InvalidReceiptError(TxmqError):
    """A message is not in the hands of who acknowledges it; the call counts for nothing."""

    def __init__(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Name the message; its content stays out."""
        self.topic, self.queue_id, self.queue_offset = topic, queue_id, queue_offset
        super().__init__(
            f"topic {shown(topic)}, queue {shown(queue_id)}, offset {shown(queue_offset)}: this "
            "message is not in hand any more: it was acknowledged before, was handed out again "
            "after its invisible time, or its queue has another member; whoever has it now "
            "acknowledges it. Receive with a longer invisible_duration_s, or call "
            "change_invisible_duration while you work"
        )


class ConcurrentUseError(TxmqError):
    """A consumer is used by two threads at the same time; nothing was done."""

    def __init__(self) -> None:
        """Say that each thread needs its own."""
        super().__init__("a consumer is for one thread at a time; make one for each thread")


class HandlerResultError(TxmqError, TypeError):
    """A handler returned something that is neither None nor a ConsumeStatus."""

    def __init__(self, result: object) -> None:
        """Show the type alone: the result may hold a body."""
        super().__init__(
            f"the handler returned {type(result).__name__}, which is no ConsumeStatus; "
            "return None, ConsumeStatus.SUCCESS or ConsumeStatus.RECONSUME_LATER"
        )


class ConsumeTimeoutError(TxmqError):
    """A handler took longer for one message than the consume timeout; the message is sent back."""

    def __init__(self, consume_timeout_s: float) -> None:
        """Show the limit."""
        self.consume_timeout_s = consume_timeout_s
        super().__init__(
            f"the handler took longer than {consume_timeout_s:g} s for a message, which is sent "
            "back; bound its waits, or raise consume_timeout_s"
        )


class InvalidFilterError(TxmqError, ValueError):
    """A filter is no text or cannot be read; nothing was read with it."""

    def __init__(self, text: object, problem: str, position: int) -> None:
        """Show the filter cut short; `position` counts from 0."""
        self.filter, self.problem, self.position = shown(text), problem, position
        super().__init__(f"filter {self.filter} is refused at position {position}: it {problem}")


class OffsetOutOfRangeError(TxmqError, ValueError):
    """A queue has no message of this offset, and will not have one next."""

    def __init__(
        self, topic: str, queue_id: int, *, offset: object, first_offset: int, end_offset: int
    ) -> None:
        """Show what can be read: `first_offset` to `end_offset`, that of the next message."""
        self.topic, self.queue_id, self.offset = topic, queue_id, offset
        self.first_offset, self.end_offset = first_offset, end_offset
        super().__init__(
            f"topic {shown(topic)}, queue {queue_id}: offset {shown(offset)} is not from "
            f"{first_offset:,} to {end_offset:,}; seek to one that is"
        )


class TopicRestoredError(OffsetOutOfRangeError):
    """A topic is not the one that a consumer group has read: an older copy, new, or rebuilt."""

    def __init__(  # noqa: PLR0913 - its facts
        self,
        topic: str,
        queue_id: int,
        *,
        offset: int,
        end_offset: int,
        version: int,
        is_rebuilt: bool = False,
    ) -> None:
        """Show the next offset of the group, and where the queue ends now.

        `version` is that of the commit that the group followed. The topic has another one, or none;
        or it `is_rebuilt` since, so that offsets name other messages.
        """
        super().__init__(topic, queue_id, offset=offset, first_offset=0, end_offset=end_offset)
        self.version = version
        restored = (
            f"restored from an older copy or made anew (its commit {version:,} is not the one that "
            "the group followed)"
        )
        rebuilt = f"rebuilt since the group followed it (up to its commit {version:,})"
        text = (
            f"topic {shown(topic)}, queue {queue_id}: it was "
            f"{rebuilt if is_rebuilt else restored}, so offset "
            f"{offset:,} of the group may lie beyond messages that nobody was given (the queue "
            f"ends at {end_offset:,}); say where to go on by `txmq offsets reset` or seek"
        )
        self.args = (text,)


class MessagesExpiredError(TxmqError):
    """Messages that a consumer has not read are gone: by retention, or by another program."""

    def __init__(  # noqa: PLR0913 - its facts
        self,
        topic: str,
        queue_id: int,
        *,
        next_offset: int,
        first_offset: int,
        missed: int,
        lost: int = 0,
        way_on: str = "",
    ) -> None:
        """Say where to go on: `missed` messages before `first_offset` are gone.

        `lost` is how many the whole topic lost by a program that is not txmq. `way_on` says how to
        go on without them, where nobody can seek.
        """
        self.topic, self.queue_id = topic, queue_id
        self.next_offset, self.first_offset, self.missed = next_offset, first_offset, missed
        self.lost = lost
        cause = f"another program removed {lost:,} messages of the topic by DELETE or RESTORE"
        by = f" ({cause}: txmq rebuild-topic brings them back)" if lost else ""
        super().__init__(
            f"topic {shown(topic)}, queue {queue_id}: {missed:,} messages from offset "
            f"{next_offset:,} on are gone{by}; "
            f"{way_on or f'to go on without them, seek to {first_offset:,}'}"
        )


class ReaderOvertakenError(TxmqError):
    """Retention or clean-up took what a stream had still to read; nothing is skipped."""

    def __init__(self, version: int | None) -> None:
        """Name the version of the topic that could not be read; Spark does not always say it."""
        self.version = version
        place = "" if version is None else f" from version {version} on"
        super().__init__(
            f"messages that the stream had not read{place} are gone by retention or clean-up; "
            "to go on without them, begin with a new checkpoint"
        )


class CheckpointMismatchError(TxmqError):
    """The checkpoint of a stream does not fit the topic that it reads, or what it has sent."""

    def __init__(self, problem: str | None = None) -> None:
        """Say what does not fit; by default that each topic and group needs its own."""
        super().__init__(
            problem
            or "the checkpoint belongs to another topic, or the topic was made anew or restored to "
            "an older copy; use a new checkpoint, as Consumer.checkpoint_location names it"
        )


class InboxError(TxmqError):
    """An inbox cannot say whether an effect took place; nothing was changed."""

    def __init__(self, where: str, problem: str) -> None:
        """Name the table; `problem` says what to do."""
        self.where, self.problem = where, problem
        super().__init__(f"inbox {where}: {problem}")


# --- The tables of a store, and where they lie ----------------------------------------------------


class StorageError(TxmqError):
    """A table could not be read or written."""

    def __init__(self, table: str, problem: str) -> None:
        """Name the table; `problem` says what to do."""
        self.table = table
        super().__init__(f"{table}: {problem}")


class StoreNotFoundError(StorageError):
    """There is no store at this location."""


class StoreExistsError(StorageError):
    """There is a store already at this location."""


class StoreFormatError(StorageError):
    """The location holds something that is not a txmq store."""


class IncompatibleVersionError(StorageError):
    """The store was written by a newer txmq."""


class ReadOnlyStoreError(StorageError):
    """The store refuses writes."""


class UnsupportedPlaceError(StorageError):
    """The file system cannot put a file in place once and for all, so it holds no store."""


class AccessDeniedError(StorageError):
    """The storage refuses the credentials, or they do not have the right to do this."""


class CredentialsExpiredError(AccessDeniedError):
    """The storage says that the credentials have expired; it did nothing."""

    retryable = True


class BucketNotFoundError(StorageError):
    """The storage has no bucket or container of this name."""


class StorageUnavailableError(StorageError):
    """The storage cannot be reached, or it refuses requests because there are too many."""

    retryable = True


class StoreFullError(StorageError):
    """No space is left; nothing was acknowledged."""

    retryable = True


class CommitConflictError(StorageError):
    """Other writers won every try; nothing was written."""

    retryable = True


class CommitRefusedError(StorageError):
    """A compare-and-swap lost against another writer; the caller computes again."""

    retryable = True


class FilesSweptError(CommitRefusedError):
    """Files waited so long for their commit that maintenance may have removed them.

    Nothing was committed; the same call writes new files.
    """


class UnknownCommitError(StorageError):
    """A commit got no answer and could not be looked up; it may or may not be there."""

    retryable = True


class UnreadableFileError(StorageError):
    """A data file is empty, damaged or gone."""

    def __init__(self, table: str, path: str, problem: str) -> None:
        """Name its place in the table; `problem` is the type of the failure, never a value."""
        self.path, self.problem = path, problem
        super().__init__(table, f"{path} cannot be read ({problem}); restore it")


class CheckpointCorruptError(StorageError):
    """A streaming checkpoint cannot be read."""


class PayloadMissingError(StorageError):
    """Committed messages cannot be found; their transactions wait and nothing is skipped."""


_WITHOUT_THEM = (
    "Drop them (ALTER TABLE ... DROP FEATURE), or use a table that was made without them"
)


class UnsupportedTableError(StorageError):
    """The table uses features of Delta that txmq's committer cannot write."""

    def __init__(self, table: str, features: Sequence[str], next_step: str = "") -> None:
        """List the features by the names that Delta's protocol gives them."""
        self.features = tuple(features)
        names = ", ".join(self.features) or "that it does not name"
        super().__init__(
            table,
            f"uses table features that txmq cannot write: {names}; nothing was written. "
            f"{next_step or _WITHOUT_THEM}",
        )


class CatalogError(StorageError):
    """A schema or a name in a catalog cannot be used."""


class TopicNotFoundError(StorageError):
    """The topic has no table: nothing was published to it yet."""


class TopicInUseError(StorageError):
    """Messages of the topic are on their way; `count` says of how many transactions."""

    retryable = True

    def __init__(self, topic: str, count: int, problem: str) -> None:
        """Name the topic; `problem` says what is on its way, and what to do."""
        self.count = count
        super().__init__(topic, problem)


class TopicChangedError(StorageError):
    """A topic became typed while a message was written to it, and the body does not fit."""

    def __init__(self, topic: str, transaction_id: str, problem: str) -> None:
        """Say who rolls it back; `problem` names a field and never shows the body."""
        self.topic, self.transaction_id = topic, transaction_id
        text = (
            f"the topic {shown(topic)} got another body schema while transaction "
            f"{shown(transaction_id)} was written, and its body does not fit: {problem}; it is "
            "rolled back (with a key by the check, or by end_transaction), send bodies that have "
            "the schema"
        )
        super().__init__("half", text)


class TopicBehindError(StorageError):
    """A topic lacks messages that it had: it was restored to an older copy, or its table is gone.

    It is parked, for what is published next would hide the gap. `txmq rebuild-topic` fills it.
    """


class TopicNotRebuiltError(StorageError):
    """The topic shows messages that nothing else holds any more; it was left as it is."""


class BodySchemaConflictError(StorageError):
    """The topic is there already, with other bodies than those it should get."""


class SourceRestoredError(StorageError):
    """A log was restored or made anew: it lacks what was settled, or what a producer wrote."""


class BackupError(StorageError):
    """A backup cannot be made or restored: its text says why, and the way out."""


class ErasureRefusedError(StorageError):
    """Messages that are to be erased are still on their way; nothing was erased."""

    retryable = True

    def __init__(self, transaction_ids: Sequence[str], problem: str) -> None:
        """Name their transactions; `problem` says what they are, and what to do."""
        self.transaction_ids = tuple(transaction_ids)
        super().__init__("half", problem)


# --- Processes and what is installed --------------------------------------------------------------


class ClosedError(TxmqError):
    """The producer or service was closed, or its process was forked."""


def step_for_extra(name: str) -> str:
    """Return the next step where the packages of an extra are missing."""
    # No index is named: a package of our name there would be somebody else's.
    return f"Install txmq with its extra {name} (docs/install.md)"


class EnvironmentProblemError(TxmqError):
    """Something outside txmq is missing: Java, Spark, a jar."""

    def __init__(self, what: str, next_step: str) -> None:
        """Say what is missing; `next_step` is a sentence a person can follow."""
        self.what, self.next_step = what, next_step
        super().__init__(f"{what}. {next_step}")
