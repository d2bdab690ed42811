"""A dispatcher of the demo: `python -m txmq.ops.demo.dispatcher FOLDER NUMBER` works off its plan.

It may be killed and started again; its own tables tell it where to continue.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from txmq.errors import StorageError
from txmq.ground.handles import set_by_signals
from txmq.listeners.protocol import HalfMessage
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.demo.books import Books, FencedError
from txmq.ops.demo.crew import watch_parent
from txmq.ops.demo.folder import (
    DISPATCHER_PROPERTY,
    GROUP,
    NUMBER_PROPERTY,
    DemoFolder,
    DemoSettings,
)
from txmq.ops.demo.plan import Ending, Flight, PlannedTransaction
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

logger = logging.getLogger(__name__)

ATTEMPTS = 10
NICENESS = 10
PAUSE_S = 0.2
_STATES = {
    Ending.COMMIT: LocalTransactionState.COMMIT,
    Ending.ROLLBACK: LocalTransactionState.ROLLBACK,
}


class PlannedExceptionError(Exception):
    """Raised where the plan says that a transaction is left by an exception."""


class Departure:
    """The local transaction of one dispatcher, as a listener."""

    def __init__(self, books: Books) -> None:
        """Keep the dispatcher's own tables."""
        self._books = books

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        """Do a transaction of one message; `argument` is the planned transaction."""
        if not isinstance(argument, PlannedTransaction):
            raise TypeError(type(argument).__name__)
        return self.depart(message.transaction_id, argument)

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """Refuse: the broker asks its own listener."""
        raise NotImplementedError

    def depart(self, transaction_id: str, planned: PlannedTransaction) -> LocalTransactionState:
        """Write what the plan says, then answer, raise or be killed."""
        course = planned.course
        if course.written is None:
            self._books.note_attempt(planned, transaction_id)
        else:
            self._books.record(planned, transaction_id, course.written)
        if course.ending is Ending.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if course.ending is Ending.RAISE:
            raise PlannedExceptionError(planned.number)
        return _STATES.get(course.ending, LocalTransactionState.UNKNOWN)


class Dispatcher:
    """Sends the planned transactions with several threads."""

    def __init__(self, folder: DemoFolder, number: int, stopping: threading.Event) -> None:
        """Read the plan, and which part of it is done."""
        self._settings: DemoSettings = folder.settings()
        self._number = number
        self._stopping = stopping
        self._books = Books(folder.books(number))
        finished = self._books.finished()
        self._rest = [planned for planned in folder.plan(number) if planned.number not in finished]
        self._departure = Departure(self._books)
        self._producer = TransactionProducer(
            Store.open(folder.store), producer_group=GROUP, listener=self._departure
        )

    def run(self) -> None:
        """Return when the plan is done, or when `stopping` is set."""
        with ThreadPoolExecutor(self._settings.threads) as threads, self._producer:
            for _ in threads.map(self._handle, self._rest):
                pass

    def _handle(self, planned: PlannedTransaction) -> None:
        """Try a planned transaction until it is done; each try is a new transaction."""
        wait_s = self._settings.due_s(planned.number) - time.time()
        self._stopping.wait(max(0.0, wait_s))
        for _ in range(ATTEMPTS):
            if self._stopping.is_set() or self._is_done(planned):
                return
            self._stopping.wait(PAUSE_S)
        raise RuntimeError(f"transaction {planned.number} of the plan could not be done")

    def _is_done(self, planned: PlannedTransaction) -> bool:
        messages = [
            message for flight in planned.flights for message in self._messages(planned, flight)
        ]
        try:
            if len(messages) == 1:
                self._send_one(planned, messages[0])
            else:
                self._send_several(planned, messages)
        except PlannedExceptionError:
            logger.info("transaction %s of the plan was left by an exception", planned.number)
        except FencedError:
            return False
        except StorageError:
            logger.warning("transaction %s of the plan: no commit", planned.number, exc_info=True)
        return self._books.has_finished(planned.number)

    def _send_one(self, planned: PlannedTransaction, message: Message) -> None:
        result = self._producer.send_message_in_transaction(message, planned)
        if result.local_transaction_state is LocalTransactionState.COMMIT:
            self._books.note_commit(result.transaction_id, time.time())

    def _send_several(self, planned: PlannedTransaction, messages: Sequence[Message]) -> None:
        with self._producer.begin_transaction() as transaction:
            for message in messages:
                transaction.send(message)
            transaction.prepare()
            state = self._departure.depart(transaction.id, planned)
            if state is LocalTransactionState.UNKNOWN:
                # An exception that leaves the block leaves the end to the check service.
                raise PlannedExceptionError(planned.number)
            if state is LocalTransactionState.ROLLBACK:
                transaction.rollback()
                return
            transaction.commit()
            self._books.note_commit(transaction.id, time.time())

    def _messages(self, planned: PlannedTransaction, flight: Flight) -> list[Message]:
        properties = {
            DISPATCHER_PROPERTY: str(self._number),
            NUMBER_PROPERTY: str(planned.number),
        }
        body = json.dumps(asdict(flight)).encode()
        return [
            Message(
                topic,
                body,
                tags=flight.carrier,
                keys=str(flight.flight_id),
                properties=properties,
                sharding_key=flight.name,
            )
            for topic in flight.topics
        ]


def main(arguments: Sequence[str]) -> int:
    """Run the process; return 0 when the plan is done or it was told to stop."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # A restarting broker needs the processor more than dispatchers do.
    os.nice(NICENESS)
    stopping = threading.Event()
    watch_parent(stopping)
    with set_by_signals(stopping):
        Dispatcher(DemoFolder(Path(arguments[0])), int(arguments[1]), stopping).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
