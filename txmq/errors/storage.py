"""Errors about the tables of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmq.errors.base import TxmqError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence


# --- storage:


class StorageError(TxmqError):
    """A table could not be read or written."""

    def __init__(self, table: str, problem: str) -> None:
        """`problem` says what to do."""
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


class TopicNotFoundError(StorageError):
    """The topic has no table: nothing was published to it yet."""


class BodySchemaConflictError(StorageError):
    """The topic is there already, with other bodies than those it should get."""


class TopicChangedError(StorageError):
    """A topic became typed while a message was written to it, and the body does not fit."""

    def __init__(self, topic: str, transaction_id: str, problem: str) -> None:
        """The transaction is rolled back; `problem` names a field and never shows the body."""
        self.topic, self.transaction_id = topic, transaction_id
        text = (
            f"the topic {shown(topic)} got another body schema while transaction "
            f"{shown(transaction_id)} was written, and its body does not fit: {problem}; it is "
            "rolled back, send bodies that have the schema"
        )
        super().__init__("half", text)


class TopicInUseError(StorageError):
    """Messages of the topic are on their way; `count` says of how many transactions."""

    retryable = True

    def __init__(self, topic: str, count: int, problem: str) -> None:
        """`problem` says what is on its way, and what to do."""
        self.count = count
        super().__init__(topic, problem)


class ErasureRefusedError(StorageError):
    """Messages that are to be erased are still on their way; nothing was erased.

    `transaction_ids` are their transactions.
    """

    retryable = True

    def __init__(self, transaction_ids: Sequence[str], problem: str) -> None:
        """`problem` says what they are, and what to do."""
        self.transaction_ids = tuple(transaction_ids)
        super().__init__("half", problem)


class TopicNotRebuiltError(StorageError):
    """The topic shows messages that nothing else holds any more; it was left as it is."""


class CommitConflictError(StorageError):
    """Other writers won every try; nothing was written."""

    retryable = True


class UnknownCommitError(StorageError):
    """A commit got no answer and could not be looked up; it may or may not be there."""

    retryable = True


class StoreFullError(StorageError):
    """No space is left; nothing was acknowledged."""

    retryable = True


class UnsupportedPlaceError(StorageError):
    """The file system cannot put a file in place once and for all, so it holds no store."""


class ReadOnlyStoreError(StorageError):
    """The store refuses writes."""


class AccessDeniedError(StorageError):
    """The storage refuses the credentials, or they do not have the right to do this."""


class BucketNotFoundError(StorageError):
    """The storage has no bucket or container of this name."""


class StorageUnavailableError(StorageError):
    """The storage cannot be reached, or it refuses requests because there are too many."""

    retryable = True


_WITHOUT_THEM = (
    "Drop them (ALTER TABLE ... DROP FEATURE), or use a table that was made without them"
)


class UnsupportedTableError(StorageError):
    """The table uses features of Delta that txmq's committer cannot write."""

    def __init__(self, table: str, features: Sequence[str], next_step: str = "") -> None:
        """`features` are the names that Delta's protocol gives them."""
        self.features = tuple(features)
        names = ", ".join(self.features) or "that it does not name"
        super().__init__(
            table,
            f"uses table features that txmq cannot write: {names}; nothing was written. "
            f"{next_step or _WITHOUT_THEM}",
        )


class CatalogError(StorageError):
    """A schema or a name in a catalog cannot be used."""


class SourceRestoredError(StorageError):
    """The op log was restored or made anew: its history is not the one already settled."""


class TopicBehindError(StorageError):
    """A topic lacks messages that it had: it was restored to an older copy, or its table is gone.

    It is parked, for what is published next would hide the gap. `txmq rebuild-topic` fills it.
    """


class BackupError(StorageError):
    """A backup cannot be made or restored: its text says why, and the way out."""


class PayloadMissingError(StorageError):
    """Committed messages cannot be found; their transactions wait and nothing is skipped."""


class UnreadableFileError(StorageError):
    """A data file is empty, damaged or gone; `path` is its place in the table."""

    def __init__(self, table: str, path: str, problem: str) -> None:
        """`problem` is the type of the failure, never a value."""
        self.path = path
        super().__init__(table, f"{path} cannot be read ({problem}); restore it")


class CheckpointCorruptError(StorageError):
    """A streaming checkpoint cannot be read."""


class CommitRefusedError(StorageError):
    """A compare-and-swap lost against another writer; the caller computes again."""

    retryable = True


class FilesSweptError(CommitRefusedError):
    """Files waited so long for their commit that maintenance may have removed them.

    Nothing was committed; the same call writes new files.
    """


# --- services:


class ClosedError(TxmqError):
    """The producer or service was closed, or its process was forked."""


class ListenerError(TxmqError):
    """A listener could not be loaded; `reference` is what the settings name."""

    def __init__(self, reference: str, problem: str) -> None:
        """`problem` says what was looked for."""
        self.reference, self.problem = reference, problem
        super().__init__(f"listener {shown(reference)}: {problem}")


class HookError(TxmqError, TypeError):
    """What was passed as a hook is none."""

    def __init__(self, hook: str, problem: str) -> None:
        """`problem` says what a hook needs."""
        self.hook, self.problem = hook, problem
        super().__init__(f"hook {shown(hook)}: {problem}")


class EnvironmentProblemError(TxmqError):
    """Something outside txmq is missing: Java, Spark, a jar."""

    def __init__(self, what: str, next_step: str) -> None:
        """`next_step` is a sentence a person can follow."""
        self.what, self.next_step = what, next_step
        super().__init__(f"{what}. {next_step}")
