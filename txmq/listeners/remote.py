"""Questions to the live producers of a group, by one value in the store.

The value is `Requests`; `RemoteAsker` is the check service's side of it. The producers' side is in
`remote_member`.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from txmq.errors import CommitRefusedError, InvalidNameError
from txmq.ground.clock import Clock
from txmq.listeners.protocol import (
    OUTCOMES,
    TIMED_OUT,
    UNASKED_REASONS,
    Collect,
    Reason,
    one_line,
    outcome_table,
)
from txmq.message.message import LocalTransactionState
from txmq.message.names import check_stored_group
from txmq.store.config import CheckSettings
from txmq.store.register import Register, SharedValue
from txmq.store.store import Store
from txmq.store.tables import REMOTE

if TYPE_CHECKING:
    import pyarrow as pa


MEMBER_SILENCE_MAX_S = 3600.0
POLL_INTERVAL_S = 0.05
# If no member has taken a question by then, no member is alive.
FIRST_TAKE_S = 5.0
# Of one round: each take and each answer writes the whole value again.
QUESTIONS_MAX = 10_000
_STATES = frozenset(state.value for state in LocalTransactionState)
# The client that asks its listener, and the number of its take: 1 for the first take of a question.
Take = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RemoteQuestion:
    """One transaction of a round; `client_id` is the producer that sent it and is asked first."""

    check_times: int
    client_id: str | None


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """The answer of a member; a null state says that its listener was not reached."""

    state: str | None
    reason: str | None


_NO_LISTENER = RemoteAnswer(None, Reason.NO_LISTENER.value)
_TIMED_OUT = RemoteAnswer(TIMED_OUT.state.value, str(TIMED_OUT.reason))


@dataclass(frozen=True, slots=True)
class Requests:
    """The newest round of a group, and the members that may answer.

    `asked`, `taken` and `answers` are by transaction id. `members` are by client id, with the time
    of their last sign of life in milliseconds.
    """

    round_id: str = ""
    asked: Mapping[str, RemoteQuestion] = field(default_factory=dict)
    taken: Mapping[str, Take] = field(default_factory=dict)
    answers: Mapping[str, RemoteAnswer] = field(default_factory=dict)
    members: Mapping[str, int] = field(default_factory=dict)

    # --- the check service ----------------------------------------------------------------

    def begun(self, round_id: str, asked: Mapping[str, RemoteQuestion]) -> Requests:
        """Begin a round with these questions; the members stay."""
        return Requests(round_id, asked, members=self.members)

    def over(self, round_id: str) -> Requests:
        """End the round; another round is left as it is."""
        return Requests(members=self.members) if self.round_id == round_id else self

    @property
    def is_answered(self) -> bool:
        """Whether every question has an answer."""
        return len(self.answers) == len(self.asked)

    def member_count(self, now_ms: int) -> int:
        """Count the members with a sign of life within MEMBER_SILENCE_MAX_S."""
        return len(self._alive(now_ms))

    # --- members --------------------------------------------------------------------------

    def joined(self, client_id: str, now_ms: int) -> Requests:
        """Let the client join, or give a sign of life; members that were silent too long leave."""
        return replace(self, members={**self._alive(now_ms), client_id: now_ms})

    def left(self, client_id: str) -> Requests:
        """Let the client leave; its questions are free."""
        members = {name: ms for name, ms in self.members.items() if name != client_id}
        taken = {key: take for key, take in self.taken.items() if take[0] != client_id}
        return replace(self, members=members, taken=taken)

    def free_for(self, client_id: str, *, after_others: bool, lost: Iterable[str]) -> list[str]:
        """List the questions that a client may take, oldest first.

        They are the free questions that the client itself sent. If there are none, they are its
        share of the other free questions.

        Args:
            client_id: the client that wants to take them.
            after_others: whether the other senders had enough time to take their own questions.
            lost: taken questions whose client had enough time to answer.
        """
        lost_keys = set(lost)
        free = [
            key
            for key in self.asked
            if key not in self.answers and (key not in self.taken or key in lost_keys)
        ]
        sent_by_client = [key for key in free if self.asked[key].client_id == client_id]
        if sent_by_client:
            return sent_by_client
        waiting = [key for key in free if after_others or not self._sender_lives(key)]
        return waiting[: -(-len(waiting) // max(1, len(self.members)))]

    def taken_by(self, client_id: str, keys: Iterable[str]) -> Requests:
        """Let the client take questions; a take of a taken question has the next number."""
        takes = {key: (client_id, self._take_number(key) + 1) for key in keys}
        return replace(self, taken={**self.taken, **takes})

    def answered(self, takes: Mapping[str, Take], answers: Mapping[str, RemoteAnswer]) -> Requests:
        """Add the answers whose take is still the newest of its question."""
        valid = {
            key: answer
            for key, answer in answers.items()
            if key not in self.answers and self.taken.get(key) == takes.get(key)
        }
        return replace(self, answers={**self.answers, **valid})

    def _take_number(self, key: str) -> int:
        return self.taken[key][1] if key in self.taken else 0

    def _sender_lives(self, key: str) -> bool:
        return self.asked[key].client_id in self.members

    def _alive(self, now_ms: int) -> dict[str, int]:
        oldest_ms = now_ms - MEMBER_SILENCE_MAX_S * 1000
        return {name: ms for name, ms in self.members.items() if ms >= oldest_ms}


class RemoteRequests(SharedValue[Requests]):
    """The requests of one group in the store. Not safe for several threads."""

    def __init__(self, register: Register) -> None:
        """Use the register `state/remote_<group>`; the first member of a group makes it."""
        super().__init__(register, "remote requests", _from_value, _to_value)


def _to_value(requests: Requests) -> dict[str, Any]:
    return asdict(requests)


def _from_value(value: Mapping[str, Any]) -> Requests:
    if not value:
        return Requests()
    return Requests(
        round_id=value["round_id"],
        asked={key: RemoteQuestion(**question) for key, question in value["asked"].items()},
        taken={key: (take[0], take[1]) for key, take in value["taken"].items()},
        answers={key: RemoteAnswer(**answer) for key, answer in value["answers"].items()},
        members=dict(value["members"]),
    )


def requests_in(store: Store, producer_group: str, *, create: bool = False) -> RemoteRequests:
    """Return the questions to the live producers of a group; `create` makes their table if needed.

    Raises: InvalidNameError.
    """
    name = check_stored_group(producer_group)
    return RemoteRequests(store.tables.register(REMOTE + name, Requests, create=create))


def remote_groups(store: Store) -> list[str]:
    """List the producer groups that ever had a member."""
    return store.tables.groups_with(REMOTE)


# --- the check service's side ---------------------------------------------------------------------


def remote_asker(store: Store, clock: Clock, group: str) -> RemoteAsker | None:
    """Make the asker of a group's live producers; None if no producer was alive lately."""
    try:
        requests = requests_in(store, group)
    except InvalidNameError:
        # A half written by hand may name any group.
        return None
    if not requests.exists or not requests.read().member_count(clock.now_ms()):
        return None
    return RemoteAsker(requests, clock, store.config.of_group(group))


class RemoteAsker:
    """Asks the live producers of a group through the store (R77 to R80, decision 0013).

    A question that no producer took does not count. A question that a producer took and did not
    answer in time counts.
    """

    columns = ("transaction_id", "check_times", "client_id")

    def __init__(self, requests: RemoteRequests, clock: Clock, settings: CheckSettings) -> None:
        """Write nothing."""
        self.limit = min(settings.check_queue_size, QUESTIONS_MAX)
        self._requests, self._clock = requests, clock
        self._timeout_s = settings.listener_timeout_s

    def ask(self, heads: pa.Table) -> Collect:
        """Begin a round with these questions: one commit; its end is another."""
        questions = {
            row["transaction_id"]: RemoteQuestion(row["check_times"], row["client_id"])
            for row in heads.select(["transaction_id", "check_times", "client_id"]).to_pylist()
        }
        wait = _Wait(str(uuid.uuid4()), time.monotonic(), self._timeout_s)
        self._requests.change(lambda now: now.begun(wait.round_id, questions), self._clock.now_ms())
        return Collect(partial(self._waited, wait), lambda: self._collected(wait, questions))

    def late(self) -> pa.Table:
        """Return no rows: an answer after its round changes nothing; the next round asks."""
        return OUTCOMES.empty_table()

    def close(self) -> None:
        """End nothing: the threads are those of the producers."""

    def _collected(self, wait: _Wait, questions: Mapping[str, RemoteQuestion]) -> pa.Table:
        """Wait for the answers, end the round, and return OUTCOMES."""
        self._waited(wait, math.inf)
        requests = self._requests.read()
        if requests.round_id != wait.round_id:
            requests = Requests()
        with suppress(CommitRefusedError):
            # An answer between the last read and the end of the round is not lost.
            requests = self._ended(wait.round_id, requests)
        return _outcomes(questions, requests)

    def _waited(self, wait: _Wait, until_s: float) -> bool:
        """Wait until the monotonic time `until_s` at the latest; whether the round is over."""
        requests = self._requests.read()
        while requests.round_id == wait.round_id and not wait.is_over(requests):
            if time.monotonic() >= until_s:
                return False
            time.sleep(POLL_INTERVAL_S)
            if self._requests.has_news():
                requests = self._requests.read()
        return True

    def _ended(self, round_id: str, requests: Requests) -> Requests:
        """End the round: one commit. Returns the round as it was right before its end."""
        last: list[Requests] = [requests]

        def end(now: Requests) -> Requests:
            last[0] = now if now.round_id == round_id else requests
            return now.over(round_id)

        self._requests.change(end, self._clock.now_ms())
        return last[0]


# Finds the asker of a group without a listener in this process.
RemoteAskers = Callable[[str], RemoteAsker | None]


@dataclass(frozen=True, slots=True)
class _Wait:
    """How long a round is waited for."""

    round_id: str
    since_s: float
    timeout_s: float

    def is_over(self, requests: Requests) -> bool:
        waited_s = time.monotonic() - self.since_s
        is_untouched = not requests.taken and not requests.answers
        return (
            requests.is_answered
            or waited_s >= self.timeout_s
            or (is_untouched and waited_s >= min(FIRST_TAKE_S, self.timeout_s))
        )


def _outcomes(questions: Mapping[str, RemoteQuestion], requests: Requests) -> pa.Table:
    answers = {
        key: requests.answers.get(key, _TIMED_OUT if key in requests.taken else _NO_LISTENER)
        for key in questions
    }
    return outcome_table((key, *_believed(answer)) for key, answer in answers.items())


def _believed(answer: RemoteAnswer) -> tuple[str | None, str | None]:
    """Check state and reason of an answer that another process wrote, maybe none of txmq."""
    reason = one_line(None if answer.reason is None else str(answer.reason))
    if answer.state is None:
        return None, reason if reason in UNASKED_REASONS else Reason.NO_LISTENER.value
    if answer.state not in _STATES:
        return LocalTransactionState.UNKNOWN.value, Reason.NO_STATE.value
    return answer.state, reason
