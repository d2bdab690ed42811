"""The producer for asyncio: the same transactions, with `await` where others wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from txmq.errors import NotPreparedError
from txmq.ground.handles import OfOneProcess
from txmq.message.lifecycle import ClaimKind, TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.producer.routing import SendResult, TransactionSendResult
from txmq.producer.transaction import Transaction
from txmq.store.store import Store

if TYPE_CHECKING:
    from types import TracebackType

    from txmq.ground.sessions import DataFrame


class AsyncTransactionProducer(OfOneProcess):
    """A TransactionProducer for coroutines; all tasks of one event loop may share it.

    Each commit is shared by all that arrive while the one before it is made, so thousands of tasks
    cost a few commits. What has to read or compute runs in threads, never in the event loop.

    Attributes:
        producer: the producer that does the work.

    Args:
        store: the store to send to.
        producer_group: the group that owns these transactions.
        options: as those of TransactionProducer.

    Raises: as TransactionProducer.

    Example:
        >>> async with AsyncTransactionProducer(store, producer_group="orders") as producer:
        ...     async with producer.begin_transaction() as transaction:
        ...         transaction.send(Message("order-paid", b"42"))
        ...         await transaction.prepare()
        ...         await pay(order, transaction.id)
        ...         await transaction.commit()
    """

    def __init__(self, store: Store, *, producer_group: str, **options: Any) -> None:
        """Check the arguments; read and write nothing."""
        self.producer = TransactionProducer(store, producer_group=producer_group, **options)

    def begin_transaction(
        self,
        *,
        idempotency_key: str | None = None,
        key_timestamp: datetime | None = None,
        check_immunity_time_s: float = 0.0,
    ) -> AsyncTransaction:
        """Begin as `TransactionProducer.begin_transaction` does; `async with` begins it.

        Its errors come at `async with`.
        """
        immunity_s = check_immunity_time_s
        return AsyncTransaction(self.producer, idempotency_key, key_timestamp, immunity_s)

    async def send(self, messages: Message | Iterable[Message], **options: Any) -> SendResult:
        """Send as `TransactionProducer.send_async`; return when all is durable and committed."""
        sent = await asyncio.to_thread(self.producer.send_async, messages, **options)
        return await asyncio.wrap_future(sent)

    async def send_message_in_transaction(
        self, message: Message, argument: object = None
    ) -> TransactionSendResult:
        """Send as `send_message_in_transaction_async` of TransactionProducer does.

        Its listener runs the local transaction in a thread.
        """
        send = self.producer.send_message_in_transaction_async
        return await asyncio.wrap_future(await asyncio.to_thread(send, message, argument))

    async def end_transaction(self, transaction_id: str, state: LocalTransactionState) -> None:
        """End a transaction as `TransactionProducer.end_transaction` does."""
        await asyncio.to_thread(self.producer.end_transaction, transaction_id, state)

    async def close(self) -> None:
        """Close as `TransactionProducer.close` does."""
        await asyncio.to_thread(self.producer.close)

    async def __aenter__(self) -> Self:
        """Return the producer; the end of the block closes it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the producer, also after an exception."""
        await self.close()


class AsyncTransaction(OfOneProcess):
    """A Transaction for one coroutine; `AsyncTransactionProducer.begin_transaction` makes it.

    The order of calls is that of Transaction. A task that is cancelled while it awaits `commit()`
    has claimed the end all the same: nobody can take a commit back.
    """

    def __init__(
        self,
        producer: TransactionProducer,
        idempotency_key: str | None,
        key_timestamp: datetime | None,
        check_immunity_time_s: float = 0.0,
    ) -> None:
        """Begin nothing yet; `async with` does."""
        self._producer = producer
        self._key, self._key_timestamp = idempotency_key, key_timestamp
        self._immunity_s = check_immunity_time_s
        self._transaction: Transaction | None = None

    @property
    def transaction(self) -> Transaction:
        """The transaction that does the work; its marks, such as `delta_options`, are here too.

        Raises: NotPreparedError outside of `async with`.
        """
        if self._transaction is None:
            raise NotPreparedError("none")
        return self._transaction

    @property
    def id(self) -> str:
        """The transaction id."""
        return self.transaction.id

    async def state(self) -> TransactionState | None:
        """Return where it stands, as `Transaction.state`."""
        return await asyncio.to_thread(lambda: self.transaction.state)

    def send(self, message: Message, **options: Any) -> str:
        """Add a message as `Transaction.send` does; write nothing."""
        return self.transaction.send(message, **options)

    def send_dataframe(self, dataframe: DataFrame, *, topic: str) -> None:
        """Add the rows of a DataFrame as `Transaction.send_dataframe` does."""
        self.transaction.send_dataframe(dataframe, topic=topic)

    def write_options(self, topic: str) -> dict[str, str]:
        """Return options as `Transaction.write_options` does."""
        return self.transaction.write_options(topic)

    async def prepare(self) -> None:
        """Make all halves durable as `Transaction.prepare` does."""
        await asyncio.wrap_future(self.transaction.prepare_async())

    async def commit(self) -> None:
        """Commit as `Transaction.commit` does."""
        await asyncio.wrap_future(self.transaction.commit_async())

    async def rollback(self) -> None:
        """Roll back as `Transaction.rollback` does."""
        await asyncio.wrap_future(self.transaction.rollback_async())

    async def end(self, kind: ClaimKind) -> None:
        """Claim an end as `Transaction.end` does."""
        await asyncio.wrap_future(self.transaction.end_async(kind))

    async def __aenter__(self) -> Self:
        """Begin the transaction. Raises: as `TransactionProducer.begin_transaction`."""
        begin = partial(self._producer.begin_transaction, check_immunity_time_s=self._immunity_s)
        if self._key is None and self._key_timestamp is None:
            self._transaction = begin()
        else:
            self._transaction = await asyncio.to_thread(
                begin, idempotency_key=self._key, key_timestamp=self._key_timestamp
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the block as that of a Transaction."""
        self.transaction.__exit__(kind, error, traceback)
