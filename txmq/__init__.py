"""Transactional messages for the lakehouse: visible if and only if the local change took place.

Names are loaded when they are first used, so a producer does not wait for Spark's or a consumer's.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from txmq.errors import (
    AccessDeniedError,
    AlreadyPreparedError,
    AlreadyResolvedError,
    BackupError,
    BatchTooLargeError,
    BodyCodecError,
    BodySchemaConflictError,
    BodySchemaError,
    BucketNotFoundError,
    CatalogError,
    CheckpointCorruptError,
    CheckpointMismatchError,
    ClaimWithoutEffectError,
    ClosedError,
    CommitConflictError,
    CommitRefusedError,
    ConcurrentUseError,
    ConfigError,
    ConsumerGroupConflictError,
    ConsumerGroupFullError,
    ConsumerGroupInUseError,
    ConsumerGroupNotFoundError,
    ConsumeTimeoutError,
    DifferentMessagesError,
    EnvironmentProblemError,
    ErasureRefusedError,
    FilesSweptError,
    HandlerResultError,
    HookError,
    InboxError,
    IncompatibleVersionError,
    IncompleteTransactionError,
    InvalidBodyError,
    InvalidDelayError,
    InvalidDelayTypeError,
    InvalidFilterError,
    InvalidFilterTypeError,
    InvalidMessageError,
    InvalidMessageTypeError,
    InvalidNameError,
    InvalidNameTypeError,
    InvalidPropertyError,
    InvalidQueueError,
    InvalidReasonError,
    ListenerError,
    LocalTransactionDoneError,
    LocalTransactionError,
    LocalTransactionFencedError,
    LocalTransactionMissingError,
    MessageError,
    MessageIdError,
    MessageNotFoundError,
    MessagesExpiredError,
    MessageTooLargeError,
    NotAcceptedError,
    NotEndedError,
    NotPreparedError,
    NotRecalledError,
    OffsetOutOfRangeError,
    PayloadMissingError,
    ProducerGroupMismatchError,
    PropertyLimitError,
    QueueNotOwnedError,
    ReaderOvertakenError,
    ReadOnlyStoreError,
    ReservedNameError,
    ReservedPropertyError,
    SchemaMismatchError,
    SendForbiddenError,
    SourceRestoredError,
    StorageError,
    StorageUnavailableError,
    StoreExistsError,
    StoreFormatError,
    StoreFullError,
    StoreNotFoundError,
    TooLargeError,
    TopicChangedError,
    TopicConflictError,
    TopicExistsError,
    TopicInUseError,
    TopicKindError,
    TopicNotFoundError,
    TopicNotRebuiltError,
    TopicReadOnlyError,
    TopicRestoredError,
    TransactionError,
    TransactionForgottenError,
    TransactionNotFoundError,
    TxmqError,
    UnknownCommitError,
    UnreadableFileError,
    UnsupportedPlaceError,
    UnsupportedTableError,
)
from txmq.public_names import NAMES
from txmq.verify import verify
from txmq.version import __version__

if TYPE_CHECKING:
    from txmq.check.recheck import RecheckJob
    from txmq.check.service import CheckService
    from txmq.consumer.awaitable import AsyncPullConsumer
    from txmq.consumer.handlers import ConsumeStatus
    from txmq.consumer.lag import ConsumerLag
    from txmq.consumer.offsets import ConsumeFromWhere
    from txmq.consumer.pull import PullConsumer
    from txmq.consumer.rules import ConsumeMode
    from txmq.consumer.send_back import SendBack
    from txmq.listeners.database import DatabaseListener
    from txmq.listeners.delta import DeltaListener
    from txmq.listeners.hooks import (
        CheckForbiddenHook,
        EndContext,
        EndTransactionHook,
        Operation,
        OperationHook,
        OperationName,
        RunningOperation,
        SendContext,
        SendMessageHook,
    )
    from txmq.listeners.http import HttpListener
    from txmq.listeners.protocol import (
        ArrowSetListener,
        HalfMessage,
        SetListener,
        TransactionListener,
    )
    from txmq.maintenance.service import Maintenance
    from txmq.message.body_schema import BodySchema
    from txmq.message.cloud_events import attributes_of, cloud_event
    from txmq.message.codec import AesGcmCodec, BodyCodec, BodyContext
    from txmq.message.delay_levels import DelayLevel
    from txmq.message.filter import MessageFilter, parse_filter
    from txmq.message.lifecycle import TransactionState
    from txmq.message.message import LocalTransactionState, Message
    from txmq.message.received import ReceivedMessage
    from txmq.message.trace_context import with_trace_context
    from txmq.ops.admin.dead_letters import DeadLetters
    from txmq.ops.admin.erasure import ErasedTable, Erasure, ErasureReport
    from txmq.ops.admin.groups import ConsumerGroups
    from txmq.ops.admin.messages import FoundMessage, MessageQuery
    from txmq.ops.admin.operator import Operator
    from txmq.ops.admin.status import Admin
    from txmq.ops.admin.topics import Topics
    from txmq.ops.admin.upgrade import UpgradeResult, upgrade
    from txmq.ops.backup.backup import BackupResult, back_up
    from txmq.ops.backup.restore import RestoreResult, restore
    from txmq.ops.broker import Broker, BrokerHandle, run_until_signal
    from txmq.ops.metrics.formats import OpenTelemetryMetrics
    from txmq.ops.metrics.server import MetricsEndpoint
    from txmq.ops.metrics.service import MetricsService
    from txmq.ops.tracing import OpenTelemetryHook
    from txmq.producer.awaitable import AsyncTransaction, AsyncTransactionProducer
    from txmq.producer.producer import TransactionProducer
    from txmq.producer.routing import SendResult, TransactionSendResult
    from txmq.producer.trace import TraceHook
    from txmq.producer.transaction import Transaction
    from txmq.publish.delay import DelayService
    from txmq.publish.publisher import Publisher
    from txmq.spark.catalogs import CatalogTables
    from txmq.spark.listeners import JdbcListener, QueryListener
    from txmq.spark.micro_batches import BatchTransactions
    from txmq.spark.session import local_session
    from txmq.spark.streams import Consumer
    from txmq.store.config import Config
    from txmq.store.store import Store
    from txmq.store.topic_settings import TopicKind, TopicSettings
    from txmq.user_data.database_inbox import DatabaseInbox, inbox_table_ddl
    from txmq.user_data.database_marker import marker_table_ddl
    from txmq.user_data.delta_inbox import DeltaInbox
    from txmq.user_data.s3_log_store import s3_log_store_jar, s3_log_store_settings

_MODULES = {name: module for module, names in NAMES.items() for name in names}

__all__ = [
    "AccessDeniedError",
    "Admin",
    "AesGcmCodec",
    "AlreadyPreparedError",
    "AlreadyResolvedError",
    "ArrowSetListener",
    "AsyncPullConsumer",
    "AsyncTransaction",
    "AsyncTransactionProducer",
    "BackupError",
    "BackupResult",
    "BatchTooLargeError",
    "BatchTransactions",
    "BodyCodec",
    "BodyCodecError",
    "BodyContext",
    "BodySchema",
    "BodySchemaConflictError",
    "BodySchemaError",
    "Broker",
    "BrokerHandle",
    "BucketNotFoundError",
    "CatalogError",
    "CatalogTables",
    "CheckForbiddenHook",
    "CheckService",
    "CheckpointCorruptError",
    "CheckpointMismatchError",
    "ClaimWithoutEffectError",
    "ClosedError",
    "CommitConflictError",
    "CommitRefusedError",
    "ConcurrentUseError",
    "Config",
    "ConfigError",
    "ConsumeFromWhere",
    "ConsumeMode",
    "ConsumeStatus",
    "ConsumeTimeoutError",
    "Consumer",
    "ConsumerGroupConflictError",
    "ConsumerGroupFullError",
    "ConsumerGroupInUseError",
    "ConsumerGroupNotFoundError",
    "ConsumerGroups",
    "ConsumerLag",
    "DatabaseInbox",
    "DatabaseListener",
    "DeadLetters",
    "DelayLevel",
    "DelayService",
    "DeltaInbox",
    "DeltaListener",
    "DifferentMessagesError",
    "EndContext",
    "EndTransactionHook",
    "EnvironmentProblemError",
    "ErasedTable",
    "Erasure",
    "ErasureRefusedError",
    "ErasureReport",
    "FilesSweptError",
    "FoundMessage",
    "HalfMessage",
    "HandlerResultError",
    "HookError",
    "HttpListener",
    "InboxError",
    "IncompatibleVersionError",
    "IncompleteTransactionError",
    "InvalidBodyError",
    "InvalidDelayError",
    "InvalidDelayTypeError",
    "InvalidFilterError",
    "InvalidFilterTypeError",
    "InvalidMessageError",
    "InvalidMessageTypeError",
    "InvalidNameError",
    "InvalidNameTypeError",
    "InvalidPropertyError",
    "InvalidQueueError",
    "InvalidReasonError",
    "JdbcListener",
    "ListenerError",
    "LocalTransactionDoneError",
    "LocalTransactionError",
    "LocalTransactionFencedError",
    "LocalTransactionMissingError",
    "LocalTransactionState",
    "Maintenance",
    "Message",
    "MessageError",
    "MessageFilter",
    "MessageIdError",
    "MessageNotFoundError",
    "MessageQuery",
    "MessageTooLargeError",
    "MessagesExpiredError",
    "MetricsEndpoint",
    "MetricsService",
    "NotAcceptedError",
    "NotEndedError",
    "NotPreparedError",
    "NotRecalledError",
    "OffsetOutOfRangeError",
    "OpenTelemetryHook",
    "OpenTelemetryMetrics",
    "Operation",
    "OperationHook",
    "OperationName",
    "Operator",
    "PayloadMissingError",
    "ProducerGroupMismatchError",
    "PropertyLimitError",
    "Publisher",
    "PullConsumer",
    "QueryListener",
    "QueueNotOwnedError",
    "ReadOnlyStoreError",
    "ReaderOvertakenError",
    "ReceivedMessage",
    "RecheckJob",
    "ReservedNameError",
    "ReservedPropertyError",
    "RestoreResult",
    "RunningOperation",
    "SchemaMismatchError",
    "SendBack",
    "SendContext",
    "SendForbiddenError",
    "SendMessageHook",
    "SendResult",
    "SetListener",
    "SourceRestoredError",
    "StorageError",
    "StorageUnavailableError",
    "Store",
    "StoreExistsError",
    "StoreFormatError",
    "StoreFullError",
    "StoreNotFoundError",
    "TooLargeError",
    "TopicChangedError",
    "TopicConflictError",
    "TopicExistsError",
    "TopicInUseError",
    "TopicKind",
    "TopicKindError",
    "TopicNotFoundError",
    "TopicNotRebuiltError",
    "TopicReadOnlyError",
    "TopicRestoredError",
    "TopicSettings",
    "Topics",
    "TraceHook",
    "Transaction",
    "TransactionError",
    "TransactionForgottenError",
    "TransactionListener",
    "TransactionNotFoundError",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionState",
    "TxmqError",
    "UnknownCommitError",
    "UnreadableFileError",
    "UnsupportedPlaceError",
    "UnsupportedTableError",
    "UpgradeResult",
    "__version__",
    "attributes_of",
    "back_up",
    "cloud_event",
    "errors",
    "inbox_table_ddl",
    "local_session",
    "marker_table_ddl",
    "parse_filter",
    "restore",
    "run_until_signal",
    "s3_log_store_jar",
    "s3_log_store_settings",
    "upgrade",
    "verify",
    "with_trace_context",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'txmq' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
