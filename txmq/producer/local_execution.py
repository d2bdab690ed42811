"""Calls `execute_local_transaction` of a producer's listener (R7)."""

from __future__ import annotations

import logging

from txmq.clock import timestamp
from txmq.hooks import RunningOperations
from txmq.listeners.protocol import ExecutingListener, HalfMessage, answer_of
from txmq.message.ids import message_id
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import unwrapped

logger = logging.getLogger(__name__)


def local_state(
    listener: ExecutingListener, half: HalfMessage, argument: object, running: RunningOperations
) -> LocalTransactionState:
    """Run the local transaction and return the listener's answer; never raises an Exception."""
    running.answered(LocalTransactionState.UNKNOWN.value)
    try:
        answer = listener.execute_local_transaction(half, argument)
    except Exception as error:  # noqa: BLE001 - R7: an exception is UNKNOWN
        logger.warning(
            "transaction %s: listener raised %s", half.transaction_id, type(error).__name__
        )
        return LocalTransactionState.UNKNOWN
    state, problem = answer_of(answer)
    if problem:
        logger.warning("transaction %s: %s", half.transaction_id, problem)
    running.answered(state.value)
    return state


def half_message(
    transaction_id: str, producer_group: str, message: Message, now_ms: int
) -> HalfMessage:
    """The half of a transaction of one message, with the names as the user wrote them."""
    return HalfMessage(
        transaction_id=transaction_id,
        message_id=message_id(transaction_id, 0),
        producer_group=producer_group,
        topic=unwrapped(message.topic),
        body=message.body,
        tags=message.tags,
        keys=message.joined_keys,
        properties=message.properties,
        sharding_key=message.sharding_key,
        born_timestamp=timestamp(now_ms),
        message_count=1,
    )
