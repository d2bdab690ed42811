"""The columns of the tables of a store; their descriptions are stored in the tables."""

from __future__ import annotations

import pyarrow as pa

from txmq.delta.schemas import TableSchema

MICROSECONDS_UTC = pa.timestamp("us", tz="UTC")
# Tables of schema version 1 lack this column.
SIGNATURE = "signature"
# What the version of a commit and a place in it are below; other programs may write any number.
PLACE_LIMITS = {"op_version": 1 << 40, "ordinal": 1 << 31}
PROPERTIES = pa.map_(pa.string(), pa.string())


def _column(name: str, kind: pa.DataType, comment: str, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"comment": comment})


_TRANSACTION_ID = _column("transaction_id", pa.string(), "UUIDv7; sorts by time")
_GROUP = _column("producer_group", pa.string(), "who may end the transaction")
_LIFE = _column("life", pa.int32(), "number of RESUMEs before")
_PAYLOAD = (
    _column("tags", pa.string(), "one tag, for filters"),
    _column("keys", pa.string(), "keys, joined by a space"),
    _column("body", pa.binary(), "the message"),
    _column("properties", PROPERTIES, "user properties"),
    _column("sharding_key", pa.string(), "same key, same queue"),
    _column("born_timestamp", MICROSECONDS_UTC, "producer's clock"),
)

HALF = TableSchema(
    "half",
    pa.schema(
        [
            _TRANSACTION_ID,
            _column("sequence", pa.int64(), "place in the transaction; 0 is the head"),
            _column("message_id", pa.string(), "transaction_id:sequence"),
            _column("queue_id", pa.int32(), "partition of the log; locality only"),
            _GROUP,
            _column("real_topic", pa.string(), "null: a head without payload"),
            _column("real_queue_id", pa.int32(), "queue of the topic"),
            *_PAYLOAD,
            _column("delay_s", pa.int64(), "pause after the commit"),
            _column("deliver_timestamp", MICROSECONDS_UTC, "not visible before"),
            _column("ordinary", pa.bool_(), "not transactional"),
            _column("message_count", pa.int64(), "head only: messages of the transaction"),
            _column("check_immunity_time_s", pa.float64(), "head only: age before a check"),
            _column("client_id", pa.string(), "head only: the producer that sent it"),
            _column("store_date", pa.date32(), "UTC date of the id's time"),
        ]
    ),
    partition_by=("queue_id", "store_date"),
    change_data_feed=True,
    statistics_columns=("transaction_id", "sequence", "real_topic"),
)

OP = TableSchema(
    "op",
    pa.schema(
        [
            _TRANSACTION_ID,
            _column("queue_id", pa.int32(), "partition of the log; locality only"),
            _column("ordinal", pa.int64(), "place in its commit"),
            _column("kind", pa.string(), "ClaimKind"),
            _column("sequences", pa.list_(pa.int64()), "null: all messages"),
            _column("source", pa.string(), "ClaimSource"),
            _GROUP,
            _LIFE,
            _column("check_times", pa.int32(), "UNKNOWN: counted checks so far"),
            _column("next_check_timestamp", MICROSECONDS_UTC, "UNKNOWN: not due before"),
            _column("reason", pa.string(), "why"),
            _column("op_timestamp", MICROSECONDS_UTC, "writer's clock"),
            _column(SIGNATURE, pa.binary(), "HMAC-SHA256 by the group's key; null: none"),
            _column("store_date", pa.date32(), "UTC date of the writer's clock"),
        ]
    ),
    partition_by=("queue_id", "store_date"),
    change_data_feed=True,
    statistics_columns=("transaction_id", "kind"),
)

SETTLED = TableSchema(
    "settled",
    pa.schema(
        [
            _TRANSACTION_ID,
            _column("state", pa.string(), "TransactionState after the change"),
            _column("sequences", pa.list_(pa.int64()), "null: all messages"),
            _column("op_version", pa.int64(), "commit of the claim in the op log"),
            _column("ordinal", pa.int64(), "its place in that commit"),
            _column("settled_timestamp", MICROSECONDS_UTC, "store's time of the settling"),
            _column("source", pa.string(), "ClaimSource"),
            _GROUP,
            _LIFE,
            _column("reason", pa.string(), "why"),
            _column(
                "op_timestamp", MICROSECONDS_UTC, "claimer's clock; store's, if a pause counts"
            ),
            _column("store_date", pa.date32(), "UTC date of settled_timestamp"),
        ]
    ),
    partition_by=("store_date",),
    statistics_columns=("transaction_id", "op_version", "state"),
)

TOPIC = TableSchema(
    "topic",
    pa.schema(
        [
            _column("message_id", pa.string(), "transaction_id:sequence"),
            _column("topic", pa.string(), "where the message was sent"),
            _column("queue_id", pa.int32(), "unit of order"),
            _column("queue_offset", pa.int64(), "without gaps in its queue"),
            *_PAYLOAD,
            _GROUP,
            _TRANSACTION_ID,
            _column("sequence", pa.int64(), "place in the transaction"),
            _LIFE,
            _column("op_version", pa.int64(), "commit of the op log that ended it"),
            _column("store_timestamp", MICROSECONDS_UTC, "store's time of the publishing"),
        ]
    ),
    statistics_columns=("transaction_id", "queue_id", "queue_offset", "op_version"),
    is_one_of_many=True,
)

SCHEDULE = TableSchema(
    "schedule",
    pa.schema(
        [
            *TOPIC.columns,
            _column("deliver_timestamp", MICROSECONDS_UTC, "when it is due"),
            _column("due_date", pa.date32(), "UTC date of deliver_timestamp"),
        ]
    ),
    partition_by=("due_date",),
    statistics_columns=("transaction_id", "queue_id", "queue_offset", "op_version"),
)

REGISTER = TableSchema(
    "register",
    pa.schema(
        [
            _column("revision", pa.int64(), "number of swaps"),
            _column("value", pa.string(), "JSON"),
            _column("updated_timestamp", MICROSECONDS_UTC, "writer's clock"),
        ]
    ),
    is_one_of_many=True,
)

# Rows of several kinds in one table, so that they are replaced in one commit.
PART = "part"
OPEN_SET = TableSchema(
    "open_transactions",
    pa.schema(
        [
            _column(PART, pa.string(), "half, topic, claim, fact or unread"),
            _TRANSACTION_ID,
            _GROUP,
            _column("first_sequence", pa.int64(), "half: the first of neighbours"),
            _column("last_sequence", pa.int64(), "half: the last of neighbours"),
            _column("is_payload", pa.bool_(), "half: not a head without payload"),
            _column("half_version", pa.int64(), "half: the commit that brought it; null: unknown"),
            *(HALF.columns.field(name) for name in
              ("message_count", "check_immunity_time_s", "ordinary", "real_topic")),
            _column("messages", pa.int64(), "topic: of the transaction"),
            *(OP.columns.field(name) for name in
              ("ordinal", "kind", "source", "life", "check_times", "next_check_timestamp",
               "reason", "op_timestamp", "sequences", SIGNATURE)),
            *(SETTLED.columns.field(name) for name in ("state", "op_version")),
        ]
    ),
    statistics_columns=(PART,),
)  # fmt: skip
