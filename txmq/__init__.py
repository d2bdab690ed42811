"""Transactional messages for the lakehouse: visible if and only if the local change took place."""

from txmq.admin.consumer_groups import ConsumerGroups
from txmq.admin.dead_letters import DeadLetters
from txmq.admin.found_message import FoundMessage
from txmq.admin.messages import MessageQuery
from txmq.admin.operator import Operator
from txmq.admin.status import Admin
from txmq.admin.topics import Topics
from txmq.broker import Broker, BrokerHandle, run_until_signal
from txmq.check.recheck import RecheckJob
from txmq.check.service import CheckService
from txmq.consumer.lag import ConsumerLag
from txmq.consumer.pull import PullConsumer
from txmq.consumer.rules import ConsumeFromWhere, ConsumeMode, ConsumeStatus
from txmq.consumer.send_back import SendBack
from txmq.consumer.stream import Consumer
from txmq.errors import TxmqError
from txmq.hooks import (
    CheckForbiddenHook,
    EndContext,
    EndTransactionHook,
    SendContext,
    SendMessageHook,
)
from txmq.listeners.database import DatabaseListener
from txmq.listeners.delta import DeltaListener
from txmq.listeners.http import HttpListener
from txmq.listeners.jdbc import JdbcListener
from txmq.listeners.protocol import ArrowSetListener, HalfMessage, SetListener, TransactionListener
from txmq.listeners.query import QueryListener
from txmq.maintenance.service import Maintenance
from txmq.message.body_schema import BodySchema
from txmq.message.cloud_events import attributes_of, cloud_event
from txmq.message.delay_levels import DelayLevel
from txmq.message.filter import MessageFilter, parse_filter
from txmq.message.message import LocalTransactionState, Message
from txmq.message.received import ReceivedMessage
from txmq.message.trace_context import with_trace_context
from txmq.producer.micro_batches import BatchTransactions
from txmq.producer.producer import TransactionProducer
from txmq.producer.results import SendResult, TransactionSendResult
from txmq.producer.trace import TraceHook
from txmq.producer.transaction import Transaction
from txmq.publish.delay import DelayService
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.store.topic_settings import TopicKind, TopicSettings
from txmq.user_data.database_inbox import DatabaseInbox, inbox_table_ddl
from txmq.user_data.delta_inbox import DeltaInbox
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
    "DeadLetters",
    "DelayLevel",
    "DelayService",
    "DeltaInbox",
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
    "SendBack",
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
