"""Listeners: who runs a local transaction and who answers when its end is not known (R1, R81)."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from txmq.errors import ListenerError
from txmq.message import LocalTransactionState

_METHODS = ("execute_local_transaction", "check_local_transaction")


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """The first message of a transaction, as a listener sees it.

    `check_times` counts the questions asked before this one in the transaction's current life.
    """

    transaction_id: str
    message_id: str
    producer_group: str
    topic: str | None
    body: bytes = field(repr=False)
    tags: str | None
    keys: str | None
    properties: Mapping[str, str]
    sharding_key: str | None
    born_timestamp: datetime
    message_count: int
    check_times: int = 0


@runtime_checkable
class TransactionListener(Protocol):
    """RocketMQ's TransactionListener.

    An exception, a timeout, None or any other value is UNKNOWN, never COMMIT.
    """

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        """Change the user's own data; called after the half is durable."""
        ...

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """Say what became of the local transaction; may be called more than once."""
        ...


def answer_of(value: object) -> tuple[LocalTransactionState, str | None]:
    """A listener's answer, and why it counts as UNKNOWN where it is not an answer."""
    if isinstance(value, LocalTransactionState):
        return value, None
    reason = f"the listener returned {type(value).__name__}, not a LocalTransactionState"
    return LocalTransactionState.UNKNOWN, reason


def load_listeners(references: Mapping[str, str]) -> dict[str, TransactionListener]:
    """The listeners that the settings name, by group; each class is made without arguments.

    Raises: ListenerError.
    """
    return {group: _load(reference) for group, reference in references.items()}


def check_listener(group: str, listener: Any) -> TransactionListener:
    """The listener as given, or ListenerError for what cannot answer."""
    answers = all(_is_callable(listener, name) for name in _METHODS)
    if isinstance(listener, type) or not answers or not isinstance(listener, TransactionListener):
        problem = (
            f"for group {group} must be an object with the methods execute_local_transaction "
            "and check_local_transaction, neither of them async"
        )
        raise ListenerError(type(listener).__name__, problem)
    return listener


def _is_callable(listener: object, name: str) -> bool:
    # A coroutine would be taken for an answer that is not one, and never run.
    method = getattr(listener, name, None)
    return callable(method) and not inspect.iscoroutinefunction(method)


def _load(reference: str) -> TransactionListener:
    module_name, _, class_name = reference.partition(":")
    try:
        made = getattr(importlib.import_module(module_name), class_name)()
    except Exception as error:
        problem = f"cannot be made ({type(error).__name__}: {error}); check the module and class"
        raise ListenerError(reference, problem) from error
    return check_listener(reference, made)
