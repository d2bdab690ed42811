"""Operations that hooks see besides sends and ends: what each is about, without bodies. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

# Of the messages of one commit or one question, so many are told one by one.
TOLD_MAX = 128
# And for so long: slow hooks hold up the commits after it.
TOLD_S = 0.1


class OperationName(enum.StrEnum):
    """The operations, by the names that spans begin with."""

    LOCAL_TRANSACTION = "local_transaction"
    CHECK = "check"
    PUBLISH = "publish"
    SCHEDULE = "schedule"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on messages of one transaction, or of one trace.

    Names are the user's names, without the namespace.

    Attributes:
        topic: where the messages go, or come from; None where the half holds no message.
        message_id: of the one message that it is about, or of the first.
        message_count: how many messages it is about.
        group: the producer group; of PROCESS the consumer group.
        context: the trace context in the properties of the messages.
        begun_ns: when it began, in nanoseconds since 1970-01-01 UTC, where it is over already; None
            where it begins now.
    """

    name: OperationName
    topic: str | None
    message_id: str
    transaction_id: str
    message_count: int = 1
    group: str | None = None
    namespace: str | None = None
    context: Mapping[str, str] = field(default_factory=dict)
    begun_ns: int | None = None


class RunningOperation(Protocol):
    """What a hook returns for an operation that it wants to see end."""

    def end(self, error: BaseException | None, outcome: str | None) -> None:
        """Called once: with the error that it ended by, or with its answer."""
        ...
