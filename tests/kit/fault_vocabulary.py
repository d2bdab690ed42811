"""The faults that tests can do to a store, in one vocabulary, and the places where they strike.

The generator draws from all of it; the state machine and the torture use the same words and places.
"""

from __future__ import annotations

import enum

from txmq.ground.fail_points import FailPoint


class Fault(enum.StrEnum):
    """What may happen to a process, to a clock or to a file."""

    KILL = "a process is killed"
    STOP = "a process stands still while others work"
    CLOCK = "the clock of one process jumps"
    NO_SPACE = "a table finds no space"
    IO_ERROR = "a table cannot be written"
    LOST_ANSWER = "a commit is made and its answer lost"
    FILE_EMPTIED = "a file becomes empty"
    FILE_REMOVED = "a file is removed"
    OLDER_STORE = "the store is an older copy"
    OLDER_TABLE = "one table is an older copy"
    KEYED_AT_ONCE = "two tries under one key at once"
    USER_CODE = "the user's code is slow or ends between two calls"
    BASE_EXCEPTION = "the user's code raises a BaseException"
    RETENTION = "retention works meanwhile"
    PARKED_TOPIC = "a topic is parked"
    REBUILD = "an operator rebuilds a topic"
    COMMAND_IN_COMMAND = "a command of an operator comes between two steps of another"
    CONFIGURATION = "processes have different settings and keys"
    OTHER_ENGINE = "another engine changes a table"
    FOREIGN_ROW = "another program appends a row"
    PAUSE_IN_COMMIT = "a process stands still between two requests of one commit"
    STORE_BACK = "the store goes back under live processes"
    WITNESSES = "verify and the doctor look on"
    SLOW_CHANGE = "a change takes long, and its producer renews it, hangs, or is gone"
    FORK = "a process forks"


# Only processes of the system can do these.
OF_PROCESSES = frozenset([Fault.FORK])
CLOCK_JUMPS_S = (-86_400, -3_600, -60, 60, 3_600, 86_400)
TABLES = (
    "half", "op", "settled", "topics/", "state/publisher", "state/delay", "state/check_lease",
    "state/group_", "state/maintenance",
)  # fmt: skip
# The tables that each kind of process writes, in the order of its work.
WRITTEN_BY = {
    "producer": ("half", "op"),
    "publisher": ("settled", "topics/", "state/publisher"),
    "delay": ("op", "state/delay"),
    "check": ("state/check_lease", "op"),
    "maintenance": ("half", "op", "settled", "topics/", "state/maintenance"),
    "member": ("half", "op", "state/group_"),
    "inbox": ("effects", "half", "op", "state/group_"),
    "ordered": ("state/group_",),
    "packer": ("half", "op", "state/group_"),
    "operator": ("half", "op", "topics/", "state/"),
}
# The fail points that each of them passes.
PASSED_BY = {
    "producer": (
        FailPoint.HALF_READY, FailPoint.FILES_WRITTEN, FailPoint.HALF_COMMITTED,
        FailPoint.END_READY, FailPoint.END_COMMITTED, FailPoint.END_CONFIRMED,
    ),
    "publisher": (
        FailPoint.CLAIMS_READ, FailPoint.FACTS_DECIDED, FailPoint.FACTS_COMMITTED,
        FailPoint.PLAN_MADE, FailPoint.TOPIC_CREATED, FailPoint.PAYLOAD_WRITTEN,
        FailPoint.TOPIC_COMMITTED, FailPoint.TOPICS_DONE, FailPoint.TOPIC_PARKED,
        FailPoint.PROGRESS_KEPT,
    ),
    "delay": (
        FailPoint.DUE_MESSAGES_FOUND, FailPoint.DELIVERIES_CLAIMED, FailPoint.DELAY_PROGRESS_KEPT,
    ),
    "check": (
        FailPoint.DUE_FOUND, FailPoint.LEASE_TAKEN, FailPoint.CHECKS_DECIDED,
        FailPoint.CHECKS_ANSWERED, FailPoint.CHECKS_COMMITTED, FailPoint.LEASE_RETURNED,
    ),
    "maintenance": (
        FailPoint.FILES_MERGED, FailPoint.FILES_REPLACED, FailPoint.LOG_CLEANED,
        FailPoint.EXPIRY_CLAIMED, FailPoint.DAYS_FORGOTTEN, FailPoint.HALF_DAYS_REMOVED,
        FailPoint.DUE_DAYS_REMOVED,
    ),
    "member": (FailPoint.HALF_READY, FailPoint.HALF_COMMITTED, FailPoint.REGISTER_SWAPPED),
    "inbox": (FailPoint.HALF_READY, FailPoint.HALF_COMMITTED, FailPoint.REGISTER_SWAPPED),
    "ordered": (FailPoint.REGISTER_SWAPPED,),
    "packer": (FailPoint.HALF_READY, FailPoint.HALF_COMMITTED, FailPoint.REGISTER_SWAPPED),
    "operator": (
        FailPoint.PAYLOAD_WRITTEN, FailPoint.TOPIC_COMMITTED, FailPoint.FILES_MERGED,
        FailPoint.FILES_REPLACED, FailPoint.REGISTER_SWAPPED,
    ),
}  # fmt: skip
# Where the user's own code runs in a process: a member may poll, send back, apply and commit by it.
_BY_HAND = ("handler", "polled", "sent back", "applied")
USER_CODE = {
    "check": ("listener",), "member": _BY_HAND, "inbox": _BY_HAND, "payer": ("prepared", "paid"),
    "ordered": ("handler",), "packer": ("received", "packed", "acknowledged"),
}  # fmt: skip


def places_of(role: str) -> tuple[str, ...]:
    """Every place where a process of this role may be hit."""
    commits = [f"{when} {table}" for table in WRITTEN_BY[role] for when in ("before", "after")]
    return (*commits, *map(str, PASSED_BY[role]), *USER_CODE.get(role, ()))


def requests_of(role: str) -> tuple[str, ...]:
    """Between the requests of one commit: after the look before the put, and after the put."""
    return tuple(f"{last} {table}" for table in WRITTEN_BY[role] for last in ("looked", "put"))
