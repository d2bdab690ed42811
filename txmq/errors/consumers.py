"""Errors about consumer groups, filters, inboxes and streams over topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmq.errors.base import TxmqError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence


class ConsumerGroupConflictError(TxmqError, ValueError):
    """Members of a group differ in what they read; all of them must say the same."""

    def __init__(self, group: str, stored: str, given: str) -> None:
        """`stored` is what the members that live read, `given` what this one would."""
        self.group, self.stored, self.given = group, stored, given
        super().__init__(
            f"consumer_group {shown(group)} reads {stored}, not {given}: use the same settings, "
            "another group, or end the other members first"
        )


class ConsumerGroupNotFoundError(TxmqError):
    """No consumer has ever joined a group of this name."""

    def __init__(self, group: str) -> None:
        """The name may be mistyped."""
        self.group = group
        super().__init__(f"consumer_group {shown(group)} is not there; check the name")


class ConsumerGroupInUseError(TxmqError):
    """Members of the group live; its offsets are theirs."""

    retryable = True

    def __init__(self, group: str, members: Sequence[str], *, can_be_forced: bool = True) -> None:
        """`members` are those whose lease is not over."""
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
        """`what` says of which there are as many as the `limit`."""
        self.group, self.limit, self.what = group, limit, what
        super().__init__(
            f"consumer_group {shown(group)} has {limit:,} {what}, which is the limit: end some, "
            "give members names that stay, or read with another group"
        )


class HandlerResultError(TxmqError, TypeError):
    """A handler returned something that is neither None nor a ConsumeStatus."""

    def __init__(self, result: object) -> None:
        """Only the type is shown: the result may hold a body."""
        super().__init__(
            f"the handler returned {type(result).__name__}, which is no ConsumeStatus; "
            "return None, ConsumeStatus.SUCCESS or ConsumeStatus.RECONSUME_LATER"
        )


class ConsumeTimeoutError(TxmqError):
    """A handler took longer for one message than the consume timeout; the message is sent back."""

    def __init__(self, consume_timeout_s: float) -> None:
        """`consume_timeout_s` is the limit."""
        self.consume_timeout_s = consume_timeout_s
        super().__init__(
            f"the handler took longer than {consume_timeout_s:g} s for a message, which is sent "
            "back; bound its waits, or raise consume_timeout_s"
        )


class MessagesExpiredError(TxmqError):
    """Retention was faster than a consumer: messages that it has not read are gone."""

    def __init__(
        self, topic: str, queue_id: int, *, next_offset: int, first_offset: int, missed: int
    ) -> None:
        """`missed` messages before `first_offset` are gone; nothing was skipped."""
        self.topic, self.queue_id = topic, queue_id
        self.next_offset, self.first_offset, self.missed = next_offset, first_offset, missed
        super().__init__(
            f"topic {shown(topic)}, queue {queue_id}: {missed:,} messages from offset "
            f"{next_offset:,} on are gone; to go on without them, seek to {first_offset:,}"
        )


class OffsetOutOfRangeError(TxmqError, ValueError):
    """A queue has no message of this offset, and will not have one next."""

    def __init__(
        self, topic: str, queue_id: int, *, offset: object, first_offset: int, end_offset: int
    ) -> None:
        """Offsets from `first_offset` to `end_offset`, that of the next message, can be read."""
        self.topic, self.queue_id, self.offset = topic, queue_id, offset
        self.first_offset, self.end_offset = first_offset, end_offset
        super().__init__(
            f"topic {shown(topic)}, queue {queue_id}: offset {shown(offset)} is not from "
            f"{first_offset:,} to {end_offset:,}; seek to one that is"
        )


class TopicRestoredError(OffsetOutOfRangeError):
    """A topic is not the one that a consumer group has read: it is an older copy, or a new one."""

    def __init__(
        self, topic: str, queue_id: int, *, offset: int, end_offset: int, version: int
    ) -> None:
        """`version` is of the commit that the group followed; the topic has another one, or none.

        The next offset of the group is `offset`; the queue ends at `end_offset` now.
        """
        super().__init__(topic, queue_id, offset=offset, first_offset=0, end_offset=end_offset)
        self.version = version
        text = (
            f"topic {shown(topic)}, queue {queue_id}: it was restored from an older copy or made "
            f"anew (its commit {version:,} is not the one that the group followed), so offset "
            f"{offset:,} of the group may lie beyond messages that nobody was given (the queue "
            f"ends at {end_offset:,}); say where to go on by `txmq offsets reset` or seek"
        )
        self.args = (text,)


class QueueNotOwnedError(TxmqError):
    """A queue belongs to another member of the group now."""

    retryable = True

    def __init__(self, topic: str, queue_id: int) -> None:
        """The group shares its queues out anew when members come and go."""
        self.topic, self.queue_id = topic, queue_id
        super().__init__(
            f"topic {shown(topic)}, queue {shown(queue_id)} is not read by this member; "
            "look at `assignment`"
        )


class ConcurrentUseError(TxmqError):
    """A consumer is used by two threads at the same time."""

    def __init__(self) -> None:
        """Nothing was done."""
        super().__init__("a consumer is for one thread at a time; make one for each thread")


class InvalidFilterError(TxmqError, ValueError):
    """A filter cannot be read; nothing was read with it."""

    def __init__(self, text: object, problem: str, position: int) -> None:
        """`position` is the place in the filter, counted from 0."""
        self.filter, self.problem, self.position = shown(text), problem, position
        super().__init__(f"filter {self.filter} is refused at position {position}: it {problem}")


class InvalidFilterTypeError(InvalidFilterError, TypeError):
    """A filter is no text at all."""


class InboxError(TxmqError):
    """An inbox cannot say whether an effect took place; nothing was changed."""

    def __init__(self, where: str, problem: str) -> None:
        """`where` is the table, `problem` says what to do."""
        self.where, self.problem = where, problem
        super().__init__(f"inbox {where}: {problem}")


class ReaderOvertakenError(TxmqError):
    """Retention or clean-up took what a stream over a topic had still to read; nothing is skipped.

    `version` is the version of the topic that it could not read, where Spark says it.
    """

    def __init__(self, version: int | None) -> None:
        """Begin anew with another checkpoint, from where the group shall go on."""
        self.version = version
        place = "" if version is None else f" from version {version} on"
        super().__init__(
            f"messages that the stream had not read{place} are gone by retention or clean-up; "
            "to go on without them, begin with a new checkpoint"
        )


class CheckpointMismatchError(TxmqError):
    """The checkpoint of a stream is that of another topic, or of a topic that was made anew."""

    def __init__(self) -> None:
        """Each topic and group needs its own."""
        super().__init__(
            "the checkpoint belongs to another topic, or the topic was made anew; "
            "use a new checkpoint, as Consumer.checkpoint_location names it"
        )
