"""One role of docs/security.md, in a process for which read-only is read-only, also for root."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable


def give_up_root() -> None:
    """Give up the capabilities by which root ignores the rights of files."""
    if os.geteuid() != 0:
        return
    # Version 3 of the interface; no process; no capability of 64 in any of three sets.
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, none):
        sys.exit(f"capset: errno {ctypes.get_errno()}")


if __name__ == "__main__":
    # Threads take the rights of their process when they begin, so other imports come later.
    give_up_root()

from txmq import (  # noqa: E402
    Admin,
    Broker,
    Config,
    LocalTransactionState,
    Message,
    Operator,
    PullConsumer,
    Store,
    TransactionProducer,
)

# Instead of a role: print the folders that this process may write.
WRITABLE = "--writable"
GROUP, TOPIC, READERS = "orders", "order-paid", "billing"


def producer(store: Store) -> None:
    with TransactionProducer(store, producer_group=GROUP) as made:
        made.send(Message(TOPIC, b"ordinary"))
        for end in ("commit", "rollback"):
            transaction = made.begin_transaction()
            transaction.send(Message(TOPIC, b"body"))
            transaction.prepare()
            getattr(transaction, end)()
        sent = made.send(Message(TOPIC, b"later", delay_s=3600))
        made.recall(sent.message_id)


def answering(store: Store) -> None:
    with TransactionProducer(store, producer_group=GROUP, listener=Listener()) as made:
        made.answer_checks()
    producer(store)


def broker(store: Store) -> None:
    result = Broker(store).run_once()
    if result.maintained.failed:
        raise RuntimeError(str(result.maintained.failed))
    if parked := Admin(store).status().parked:
        raise RuntimeError(str(parked))


def consumer(store: Store) -> None:
    with PullConsumer(store, consumer_group=READERS, topics={TOPIC: "*"}) as made:
        messages = made.poll(max_messages=1, timeout_s=10.0)
        if not messages:
            raise RuntimeError("nothing to read")
        made.send_back(messages[0], reason="try again")
        made.commit()


def operator(store: Store) -> None:
    for transaction in Operator(store).open_transactions():
        Operator(store).resolve(
            transaction.transaction_id, LocalTransactionState.ROLLBACK, reason="by hand", apply=True
        )


def reader(store: Store) -> None:
    from deltalake import DeltaTable

    # A thread of pyarrow that still holds a file of Python aborts a process that ends.
    DeltaTable(f"{store.location}/topics/{TOPIC}").to_pyarrow_dataset().to_table(use_threads=False)


def looker(store: Store) -> None:
    Admin(store).status()


class Listener:
    """Answers each check."""

    def execute_local_transaction(self, message: object, argument: object) -> object:  # noqa: ARG002
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: object) -> object:  # noqa: ARG002
        return LocalTransactionState.COMMIT


ROLES: dict[str, Callable[[Store], None]] = {
    "producer": producer,
    "producer that answers checks": answering,
    "broker": broker,
    "consumer": consumer,
    "operator": operator,
    "reader": reader,
    "status": looker,
}

if __name__ == "__main__":
    _, role, location = sys.argv
    if role == WRITABLE:
        folders = [root for root, _, _ in os.walk(location)]
        sys.stdout.write("\n".join(one for one in folders if os.access(one, os.W_OK)))
        sys.exit()
    # A reader opens no store, and may read no settings.
    ROLES[role](Store(location, Config()) if role == "reader" else Store.open(location))
