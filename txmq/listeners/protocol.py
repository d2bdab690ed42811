"""Listeners: who runs a local transaction and who answers when its end is not known (R1, R81)."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from txmq.errors import ListenerError
from txmq.message.message import LocalTransactionState
from txmq.store.config_faults import LISTENER_CLASS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
import numpy as np
import pyarrow as pa

from txmq.clock import Clock

EXECUTE = "execute_local_transaction"
CHECK = "check_local_transaction"
CHECK_SET = "check_local_transactions"
CHECK_ARROW_SET = "check_local_transactions_arrow"
HEAD_COLUMNS_ATTRIBUTE = "head_columns"
Kind = TypeVar("Kind")


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


HEAD_COLUMNS = tuple(HalfMessage.__dataclass_fields__)
# A hundred thousand bodies fill a memory; a set listener that needs them says so.
DEFAULT_HEAD_COLUMNS = tuple(name for name in HEAD_COLUMNS if name != "body")


class ExecutingListener(Protocol):
    """What `send_message_in_transaction` needs."""

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        """Change the user's own data; called after the half is durable."""
        ...


@runtime_checkable
class TransactionListener(Protocol):
    """RocketMQ's TransactionListener: one question at a time.

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


class SetListener(Protocol):
    """Answers for many transactions in one call, such as one join; needs a Spark session.

    A class attribute `head_columns` may name the columns that it wants; without it they are all
    but `body`.
    """

    def check_local_transactions(self, heads: DataFrame) -> DataFrame:
        """Say what became of the local transactions; may be called more than once.

        Args:
            heads: one row a transaction, with the fields of HalfMessage as columns.

        Returns:
            `transaction_id`, `state` (COMMIT, ROLLBACK or UNKNOWN as text) and, if wanted,
            `reason` (text that is kept with the claim). A transaction that is missing, twice with
            different states, or has any other state is UNKNOWN; so are all of them after an
            exception or a timeout. Others than those of `heads` are ignored.
        """
        ...


class ArrowSetListener(Protocol):
    """As SetListener, without Spark."""

    def check_local_transactions_arrow(self, heads: pa.Table) -> Any:
        """As `check_local_transactions`.

        The answer may be all that speaks Arrow's stream interface: a pyarrow Table, a pandas or
        Polars DataFrame, a DuckDB relation.
        """
        ...


CheckListener = TransactionListener | SetListener | ArrowSetListener


def answer_of(value: object) -> tuple[LocalTransactionState, str | None]:
    """A listener's answer, and why it counts as UNKNOWN where it is not an answer."""
    if isinstance(value, LocalTransactionState):
        return value, None
    reason = f"the listener returned {type(value).__name__}, not a LocalTransactionState"
    return LocalTransactionState.UNKNOWN, reason


def load_listeners(named: Mapping[str, str | Mapping[str, Any]]) -> dict[str, CheckListener]:
    """The listeners that the settings name, by group, each made with the arguments given there.

    Raises: ListenerError.
    """
    return {group: _load(group, listener) for group, listener in named.items()}


def check_listener(group: str, listener: Kind) -> Kind:
    """The listener as given, or ListenerError for what cannot answer a check."""
    if not _can_answer(listener):
        problem = (
            f"for group {group} must be an object with the methods {EXECUTE} and {CHECK}, or with "
            f"{CHECK_SET} or {CHECK_ARROW_SET}, none of them async"
        )
        raise ListenerError(type(listener).__name__, problem)
    head_columns(listener)
    return listener


def executing_listener(group: str, listener: object) -> ExecutingListener:
    """The listener as one that runs local transactions. Raises: ListenerError."""
    if listener is None:
        raise ListenerError("none", "send_message_in_transaction needs one; pass listener=")
    if not _has(listener, EXECUTE):
        problem = f"for group {group} must be an object with the method {EXECUTE}, not async"
        raise ListenerError(type(listener).__name__, problem)
    return cast("ExecutingListener", listener)


def answers_rows(listener: object) -> bool:
    """Whether it can be asked one by one."""
    return _has(listener, EXECUTE) and _has(listener, CHECK)


def answers_sets(listener: object, *, with_spark: bool) -> bool:
    """Whether it can be asked about many transactions in one call."""
    return _has(listener, CHECK_ARROW_SET) or (with_spark and _has(listener, CHECK_SET))


def head_columns(listener: object) -> tuple[str, ...]:
    """The columns that a set listener wants, `transaction_id` first. Raises: ListenerError."""
    named: Sequence[str] = getattr(listener, HEAD_COLUMNS_ATTRIBUTE, DEFAULT_HEAD_COLUMNS)
    if isinstance(named, str) or not isinstance(named, Sequence):
        problem = f"{HEAD_COLUMNS_ATTRIBUTE} must be a tuple of names"
        raise ListenerError(type(listener).__name__, problem)
    for name in named:
        if name not in HEAD_COLUMNS:
            nearest = difflib.get_close_matches(str(name), HEAD_COLUMNS, n=1, cutoff=0.5)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            problem = f"{HEAD_COLUMNS_ATTRIBUTE}: {name!r} is no column of a head{hint}"
            raise ListenerError(type(listener).__name__, problem)
    return tuple(dict.fromkeys(["transaction_id", *named]))


def _can_answer(listener: object) -> bool:
    if isinstance(listener, type):
        return False
    return answers_rows(listener) or answers_sets(listener, with_spark=True)


def _has(listener: object, name: str) -> bool:
    # A coroutine would be taken for an answer that is not one, and never run.
    method = getattr(listener, name, None)
    return callable(method) and not inspect.iscoroutinefunction(method)


def _load(group: str, named: str | Mapping[str, Any]) -> CheckListener:
    arguments = {LISTENER_CLASS: named} if isinstance(named, str) else dict(named)
    reference = str(arguments.pop(LISTENER_CLASS))
    module_name, _, class_name = reference.partition(":")
    try:
        kind = getattr(importlib.import_module(module_name), class_name)
        _check_arguments(reference, kind, arguments)
        made: CheckListener = kind(**arguments)
    except ListenerError:
        raise
    except Exception as error:
        problem = f"cannot be made ({type(error).__name__}: {error}); check the module and class"
        raise ListenerError(reference, problem) from error
    return check_listener(group, made)


def _check_arguments(reference: str, kind: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse a name that the class does not take, with the nearest one that it does."""
    known = inspect.signature(kind).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):
        return
    for name in arguments:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise ListenerError(reference, f"takes no argument {name!r}{hint}")


def ages_s(heads: pa.Table, clock: Clock) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds since each was born, by a producer's clock and ours."""
    born_us = heads["born_timestamp"].cast(pa.int64()).to_numpy()
    return np.asarray(clock.now_ms() / 1000 - born_us / 1e6, dtype=np.float64)
