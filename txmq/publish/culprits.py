"""Finds the few transactions that make work on many of them fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from txmq.errors import TxmqError

# Each try repeats the work for a part of the transactions.
MAX_TRIES = 64
# Errors of the table, the disk or the machine: no transaction is to blame.
NOBODYS_FAULT = (TxmqError, OSError, MemoryError)


def culprits(
    transaction_ids: Sequence[str], work: Callable[[Sequence[str]], object]
) -> dict[str, str]:
    """The transactions for which `work` fails by themselves, each with the type of its error.

    Args:
        transaction_ids: for all of them together it failed.
        work: is called for halves of them, and for halves of these; what it does must not last.

    Returns: none where MAX_TRIES did not find them all.

    Raises: what is nobody's fault, such as a full disk.
    """
    problems: dict[str, str] = {}
    waiting = [list(transaction_ids)]
    for _ in range(MAX_TRIES):
        if not waiting:
            return problems
        part = waiting.pop()
        try:
            work(part)
        except NOBODYS_FAULT:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a strange row leads to
            middle = len(part) // 2
            if middle:
                waiting += [part[:middle], part[middle:]]
            else:
                problems[part[0]] = f"it cannot be processed ({type(error).__name__})"
    return {}
