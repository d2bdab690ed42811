"""The methods of a listener, and what its answers mean (R1, R81).

A listener runs local transactions and answers checks.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import logging
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import pyarrow as pa

from txmq.errors import EnvironmentProblemError, ListenerError, TxmqError
from txmq.ground.clock import Clock
from txmq.message.message import LocalTransactionState
from txmq.store.config_faults import LISTENER_CLASS, nearest_name

if TYPE_CHECKING:
    from txmq.ground.sessions import DataFrame


logger = logging.getLogger(__name__)
EXECUTE = "execute_local_transaction"
CHECK = "check_local_transaction"
CHECK_SET = "check_local_transactions"
CHECK_ARROW_SET = "check_local_transactions_arrow"
HEAD_COLUMNS_ATTRIBUTE = "head_columns"
MAX_REASON_CHARACTERS = 200
SHOWN_CHARACTERS = 64
# A null state: no listener saw the question.
OUTCOMES = pa.schema(
    [
        pa.field("transaction_id", pa.string()),
        pa.field("state", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
# txmq writes their texts; a subclass may be a user's, whose text may hold a body.
_OWN_ERRORS = (ListenerError, EnvironmentProblemError)
Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """The first message of a transaction, as a listener sees it; frozen.

    Args:
        transaction_id: the id of the transaction.
        message_id: the id of this message.
        producer_group: the group of the producer, without its namespace (R94).
        topic: the topic of the message, without its namespace (R94); None if the transaction
            begins with a DataFrame and the head holds no message.
        body: the bytes that were sent, empty if the head holds no message; not shown by `repr`.
        tags: the tag, or None.
        keys: the keys, joined by a space, or None.
        properties: the user's properties.
        sharding_key: the sharding key, or None.
        born_timestamp: when the producer made the message, by its own clock, in UTC.
        message_count: the number of messages in the transaction.
        check_times: how many questions counted before this one in the current life of the
            transaction.
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
# 100,000 bodies may fill the memory, so a set listener gets them only if it names `body`.
DEFAULT_HEAD_COLUMNS = tuple(name for name in HEAD_COLUMNS if name != "body")


class ExecutingListener(Protocol):
    """The listener that `send_message_in_transaction` needs."""

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        """Run the local transaction; see TransactionListener."""
        ...


class AnsweringListener(Protocol):
    """The listener that a check needs; one question is about one transaction."""

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """Say whether the local transaction took place; see TransactionListener."""
        ...


@runtime_checkable
class TransactionListener(Protocol):
    """RocketMQ's TransactionListener: one question is about one transaction (R1, R81).

    An exception, a timeout, None or any value but a LocalTransactionState counts as UNKNOWN.

    Example:
        >>> class OrderListener:
        ...     def execute_local_transaction(self, message, argument):
        ...         orders.pay(message.keys)
        ...         return LocalTransactionState.COMMIT
        ...
        ...     def check_local_transaction(self, message):
        ...         is_paid = orders.is_paid(message.keys)
        ...         state = LocalTransactionState
        ...         return state.COMMIT if is_paid else state.UNKNOWN
    """

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        """Run the local transaction: change the user's own data.

        It is called once, after the half is durable (R6): by `send_message_in_transaction` in the
        caller's thread, by `send_message_in_transaction_async` in another thread.

        Args:
            message: the half that was sent.
            argument: what the caller of `send_message_in_transaction` passed.

        Returns: COMMIT or ROLLBACK ends the transaction, UNKNOWN leaves its end to the check. An
            Exception counts as UNKNOWN and is not raised again (R7).
        """
        ...

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """Say whether the local transaction took place.

        It may be called more than once, from several threads, and while the local transaction is
        still running: then answer UNKNOWN.

        Args:
            message: the first message of the transaction.

        Returns: COMMIT or ROLLBACK ends the transaction, UNKNOWN counts a check.
        """
        ...


class SetListener(Protocol):
    """Answers for many transactions in one call, for example by a join; needs a Spark session.

    The attribute `head_columns` may name the columns of the heads that the listener gets. Without
    it they are all but `body` (decision 0010).

    Example:
        >>> class PaidOrders:
        ...     head_columns = ("transaction_id", "keys")
        ...
        ...     def check_local_transactions(self, heads):
        ...         paid = spark.table("orders").where("paid").select("order_id").distinct()
        ...         return heads.join(paid, heads.keys == paid.order_id).selectExpr(
        ...             "transaction_id", "'COMMIT' AS state"
        ...         )
    """

    def check_local_transactions(self, heads: DataFrame) -> DataFrame:
        """Say which local transactions took place; it may be called more than once.

        Args:
            heads: one row for each transaction; its columns are fields of HalfMessage.

        Returns: `transaction_id`, `state` (COMMIT, ROLLBACK or UNKNOWN as text) and, if wanted,
            `reason` (text that is kept with the claim). A transaction is UNKNOWN if it has no row,
            rows with different states, or any other state. After an exception or a timeout all
            transactions are UNKNOWN. Rows about other transactions are ignored.
        """
        ...


class ArrowSetListener(Protocol):
    """As SetListener, but without Spark (decision 0010)."""

    def check_local_transactions_arrow(self, heads: pa.Table) -> Any:
        """Say which local transactions took place; it may be called more than once.

        Args:
            heads: one row for each transaction; its columns are fields of HalfMessage.

        Returns: as `SetListener.check_local_transactions`, in any object with Arrow's stream
            interface: a pyarrow Table, a pandas or Polars DataFrame, a DuckDB relation.
        """
        ...


CheckListener = AnsweringListener | SetListener | ArrowSetListener


def load_listeners(settings: Mapping[str, str | Mapping[str, Any]]) -> dict[str, CheckListener]:
    """Make the listeners of the setting `listeners`, by group, with the arguments given there.

    Raises: ListenerError if a class cannot be imported or made, or cannot answer a check.
    """
    return {group: _load(group, setting) for group, setting in settings.items()}


def _load(group: str, setting: str | Mapping[str, Any]) -> CheckListener:
    arguments = {LISTENER_CLASS: setting} if isinstance(setting, str) else dict(setting)
    reference = str(arguments.pop(LISTENER_CLASS))
    module_name, _, class_name = reference.partition(":")
    try:
        kind = getattr(importlib.import_module(module_name), class_name)
        _check_arguments(reference, kind, arguments)
        listener: CheckListener = kind(**arguments)
    except ListenerError:
        raise
    except Exception as error:
        problem = f"cannot be made ({type(error).__name__}: {error}){_step_after(error)}"
        raise ListenerError(reference, problem) from error
    return check_listener(group, listener)


def _step_after(error: Exception) -> str:
    """Say what to do about a listener that cannot be made; an error of txmq says it itself."""
    if isinstance(error, TxmqError):
        return ""
    if isinstance(error, ModuleNotFoundError):
        return "; install it, or put the folder that it is in into PYTHONPATH"
    return "; check the module and class"


def _check_arguments(reference: str, kind: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse an argument that the class does not take, and name the nearest one."""
    parameters = inspect.signature(kind).parameters
    if any(spec.kind is inspect.Parameter.VAR_KEYWORD for spec in parameters.values()):
        return
    for name in arguments:
        if name not in parameters:
            all_names = f"; it takes {', '.join(parameters) or 'none'}"
            hint = nearest_name(name, parameters) or all_names
            raise ListenerError(reference, f"takes no argument {name!r}{hint}")


def check_listener(group: str, listener: Kind) -> Kind:
    """Return the listener. Raises: ListenerError if it cannot answer a check."""
    if not _can_answer(listener):
        name = getattr(listener, "__name__", "an object")
        hint = f"; this is a class: pass {name}(…)" if isinstance(listener, type) else ""
        problem = (
            f"for group {group} must be an object with the method {CHECK}, {CHECK_SET} or "
            f"{CHECK_ARROW_SET}, none of them async{hint}"
        )
        raise ListenerError(type(listener).__name__, problem)
    head_columns(listener)
    return listener


def executing_listener(group: str, listener: object) -> ExecutingListener:
    """Return the listener. Raises: ListenerError if it cannot run local transactions."""
    if listener is None:
        problem = "send_message_in_transaction needs a listener; pass listener="
        raise ListenerError("none", problem)
    if not _has(listener, EXECUTE):
        problem = f"for group {group} must be an object with the method {EXECUTE}, not async"
        raise ListenerError(type(listener).__name__, problem)
    return cast("ExecutingListener", listener)


def answers_rows(listener: object) -> bool:
    """Tell whether the listener answers one question at a time."""
    return _has(listener, CHECK)


def answers_sets(listener: object, *, with_spark: bool) -> bool:
    """Tell whether the listener answers for many transactions in one call."""
    return _has(listener, CHECK_ARROW_SET) or (with_spark and _has(listener, CHECK_SET))


def head_columns(listener: object) -> tuple[str, ...]:
    """Return the columns that a set listener gets, `transaction_id` first.

    Raises: ListenerError if `head_columns` of the listener is no tuple of columns of a head.
    """
    names: Sequence[str] = getattr(listener, HEAD_COLUMNS_ATTRIBUTE, DEFAULT_HEAD_COLUMNS)
    if isinstance(names, str) or not isinstance(names, Sequence):
        problem = f"{HEAD_COLUMNS_ATTRIBUTE} must be a tuple of names"
        raise ListenerError(type(listener).__name__, problem)
    for name in names:
        if name not in HEAD_COLUMNS:
            hint = nearest_name(name, HEAD_COLUMNS)
            problem = f"{HEAD_COLUMNS_ATTRIBUTE}: {name!r} is no column of a head{hint}"
            raise ListenerError(type(listener).__name__, problem)
    return tuple(dict.fromkeys(["transaction_id", *names]))


def _can_answer(listener: object) -> bool:
    if isinstance(listener, type) or _is_no_method(listener, EXECUTE):
        return False
    return answers_rows(listener) or answers_sets(listener, with_spark=True)


def _is_no_method(listener: object, name: str) -> bool:
    return hasattr(listener, name) and not _has(listener, name)


def _has(listener: object, name: str) -> bool:
    # The coroutine of an async method would never run, and count as UNKNOWN.
    method = getattr(listener, name, None)
    return callable(method) and not inspect.iscoroutinefunction(method)


def ages_s(heads: pa.Table, clock: Clock) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the age of each head: the time of `clock` less the producer's born_timestamp."""
    born_us = heads["born_timestamp"].cast(pa.int64()).to_numpy()
    return np.asarray(clock.now_ms() / 1000 - born_us / 1e6, dtype=np.float64)


# --- outcomes -------------------------------------------------------------------------------------


class Reason(enum.StrEnum):
    """Why the check wrote a claim, if the state in the claim does not say it."""

    CHECK_MAX = "CHECK_MAX"
    NO_LISTENER = "NO_LISTENER"
    BUSY = "BUSY"
    TIMEOUT = "TIMEOUT"
    UNREADABLE = "UNREADABLE"
    NOT_DUE = "NOT_DUE"
    PRODUCER_LIVES = "PRODUCER_LIVES"
    NOT_ACKNOWLEDGED = "NOT_ACKNOWLEDGED"
    LATE = "LATE"
    NO_ANSWER = "NO_ANSWER"
    CONTRADICTION = "CONTRADICTION"
    NO_STATE = "NO_STATE"


# No listener saw the question, so it does not count; an operator may have to help.
UNASKED_REASONS = (Reason.NO_LISTENER, Reason.BUSY, Reason.UNREADABLE)
_REASONS = {reason.value: reason for reason in Reason}


@dataclass(frozen=True, slots=True)
class Answered:
    """A question that reached its listener: it counts, whatever the answer is."""

    state: LocalTransactionState
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class NotReached:
    """A question that no listener saw: it does not count."""

    reason: Reason


Outcome = Answered | NotReached
# A set listener says this instead of a state: it had no time for this one in this call.
LEFT = "LEFT"
TIMED_OUT = Answered(LocalTransactionState.UNKNOWN, Reason.TIMEOUT)
BUSY = NotReached(Reason.BUSY)


@dataclass(frozen=True, slots=True)
class Collect:
    """The questions to one listener, on their way.

    Attributes:
        wait: waits until a monotonic time at the latest; whether all is answered or too late.
        outcomes: waits for the deadline of the questions and returns OUTCOMES; call it once.
    """

    wait: Callable[[float], bool]
    outcomes: Callable[[], pa.Table]

    def __call__(self) -> pa.Table:
        """Return answers, as `outcomes`."""
        return self.outcomes()


def answer_of(value: object) -> tuple[LocalTransactionState, str | None]:
    """Return the state that a listener returned, or UNKNOWN and the reason for any other value."""
    if isinstance(value, LocalTransactionState):
        return value, None
    reason = f"the listener returned {type(value).__name__}, not a LocalTransactionState"
    return LocalTransactionState.UNKNOWN, reason


def raised(error: BaseException) -> Answered:
    """Return UNKNOWN for a listener that raised, and show its type alone: its text may hold a body.

    The texts of ListenerError and EnvironmentProblemError are txmq's own and are shown (R81).
    """
    if type(error) in _OWN_ERRORS:
        return Answered(LocalTransactionState.UNKNOWN, str(error)[:MAX_REASON_CHARACTERS])
    name = type(error).__name__[:SHOWN_CHARACTERS]
    return Answered(LocalTransactionState.UNKNOWN, f"the listener raised {name}")


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """Return a row of OUTCOMES as a value."""
    if row["state"] is None:
        return NotReached(_REASONS[row["reason"]])
    return Answered(LocalTransactionState(row["state"]), row["reason"])


def outcome_table(rows: Iterable[tuple[str | None, str | None, str | None]]) -> pa.Table:
    """Make OUTCOMES from the id, state and reason of each question."""
    listed = list(rows)
    columns = zip(*listed, strict=True) if listed else [[] for _ in OUTCOMES]
    return pa.table([pa.array(column, pa.string()) for column in columns], OUTCOMES)


def same_outcome(transaction_ids: Any, outcome: Outcome) -> pa.Table:
    """Make OUTCOMES with one outcome for all questions."""
    state = outcome.state.value if isinstance(outcome, Answered) else None
    count = len(transaction_ids)
    columns = [transaction_ids, *(_repeated(text, count) for text in (state, outcome.reason))]
    return pa.table(columns, OUTCOMES)


def _repeated(text: str | None, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(None if text is None else str(text), pa.string()), count)


def one_line(text: str | None) -> str | None:
    """Cut a listener's reason, and put it on one line."""
    if text is None:
        return None
    characters = text[:MAX_REASON_CHARACTERS]
    return "".join(" " if unicodedata.category(c)[0] == "C" else c for c in characters)


def warn_of_open(group: str, count: int) -> None:
    """Log how many questions a listener has not answered at the deadline."""
    if count:
        logger.warning("group %s: its listener hangs in %d questions", group, count)
