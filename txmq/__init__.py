"""Transactional messages for the lakehouse: visible if and only if the local change took place."""

from txmq.admin import Admin
from txmq.batch_transactions import BatchTransactions
from txmq.body_schema import BodySchema
from txmq.broker import Broker, BrokerHandle, run_until_signal
from txmq.check_service import CheckService
from txmq.cloud_events import attributes_of, cloud_event
from txmq.config import Config
from txmq.consumer import Consumer
from txmq.consumer_groups import ConsumerGroups
from txmq.consumer_lag import ConsumerLag
from txmq.consumer_rules import ConsumeFromWhere, ConsumeMode, ConsumeStatus
from txmq.database_inbox import DatabaseInbox, inbox_table_ddl
from txmq.database_listener import DatabaseListener
from txmq.delay_levels import DelayLevel
from txmq.delay_service import DelayService
from txmq.delta_listener import DeltaListener
from txmq.errors import TxmqError
from txmq.hooks import (
    CheckForbiddenHook,
    EndContext,
    EndTransactionHook,
    SendContext,
    SendMessageHook,
)
from txmq.http_listener import HttpListener
from txmq.jdbc_listener import JdbcListener
from txmq.listeners import ArrowSetListener, HalfMessage, SetListener, TransactionListener
from txmq.maintenance import Maintenance
from txmq.message import LocalTransactionState, Message
from txmq.message_filter import MessageFilter, parse_filter
from txmq.message_query import FoundMessage, MessageQuery
from txmq.operator_claims import Operator
from txmq.producer import TransactionProducer
from txmq.publisher import Publisher
from txmq.pull_consumer import PullConsumer
from txmq.query_listener import QueryListener
from txmq.received_message import ReceivedMessage
from txmq.recheck import RecheckJob
from txmq.send_results import SendResult, TransactionSendResult
from txmq.store import Store
from txmq.topic_admin import Topics
from txmq.topic_settings import TopicKind, TopicSettings
from txmq.trace import TraceHook
from txmq.trace_context import with_trace_context
from txmq.transaction import Transaction
from txmq.verify import verify

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "ArrowSetListener",
    "BatchTransactions",
    "BodySchema",
    "Broker",
    "BrokerHandle",
    "CheckForbiddenHook",
    "CheckService",
    "Config",
    "ConsumeFromWhere",
    "ConsumeMode",
    "ConsumeStatus",
    "Consumer",
    "ConsumerGroups",
    "ConsumerLag",
    "DatabaseInbox",
    "DatabaseListener",
    "DelayLevel",
    "DelayService",
    "DeltaListener",
    "EndContext",
    "EndTransactionHook",
    "FoundMessage",
    "HalfMessage",
    "HttpListener",
    "JdbcListener",
    "LocalTransactionState",
    "Maintenance",
    "Message",
    "MessageFilter",
    "MessageQuery",
    "Operator",
    "Publisher",
    "PullConsumer",
    "QueryListener",
    "ReceivedMessage",
    "RecheckJob",
    "SendContext",
    "SendMessageHook",
    "SendResult",
    "SetListener",
    "Store",
    "TopicKind",
    "TopicSettings",
    "Topics",
    "TraceHook",
    "Transaction",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "TxmqError",
    "__version__",
    "attributes_of",
    "cloud_event",
    "inbox_table_ddl",
    "parse_filter",
    "run_until_signal",
    "verify",
    "with_trace_context",
]
