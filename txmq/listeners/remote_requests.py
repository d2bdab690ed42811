"""Questions to the live producers of a group: one value that they and the check service share.

Each change is one compare-and-swap of `state/remote_<group>`: two members never take one question
at the same moment, and a change of an older value is refused (decision 0013). Everything but
RemoteRequests is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from txmq.message.names import check_stored_group
from txmq.store.register import Register, SharedValue
from txmq.store.store import Store
from txmq.store.tables import REMOTE

MEMBER_SILENCE_MAX_S = 3600.0
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
        """A new round with these questions; the members stay."""
        return Requests(round_id, asked, members=self.members)

    def over(self, round_id: str) -> Requests:
        """The end of the round; another round is left as it is."""
        return Requests(members=self.members) if self.round_id == round_id else self

    @property
    def is_answered(self) -> bool:
        """Whether every question has an answer."""
        return len(self.answers) == len(self.asked)

    def member_count(self, now_ms: int) -> int:
        """The number of members with a sign of life within MEMBER_SILENCE_MAX_S."""
        return len(self._alive(now_ms))

    # --- members --------------------------------------------------------------------------

    def joined(self, client_id: str, now_ms: int) -> Requests:
        """The client joins, or gives a sign of life; members that were silent too long leave."""
        return replace(self, members={**self._alive(now_ms), client_id: now_ms})

    def left(self, client_id: str) -> Requests:
        """The client leaves, and its questions are free."""
        members = {name: ms for name, ms in self.members.items() if name != client_id}
        taken = {key: take for key, take in self.taken.items() if take[0] != client_id}
        return replace(self, members=members, taken=taken)

    def free_for(self, client_id: str, *, after_others: bool, lost: Iterable[str]) -> list[str]:
        """The questions that a client may take, oldest first.

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
        """The client takes these questions; a take of a taken question has the next number."""
        takes = {key: (client_id, self._take_number(key) + 1) for key in keys}
        return replace(self, taken={**self.taken, **takes})

    def answered(self, takes: Mapping[str, Take], answers: Mapping[str, RemoteAnswer]) -> Requests:
        """With the answers whose take is still the newest of its question."""
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
        """`register` is `state/remote_<group>`; the first member of a group makes it."""
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
    """The questions to the live producers of a group; `create` makes their table if needed.

    Raises: InvalidNameError.
    """
    name = check_stored_group(producer_group)
    return RemoteRequests(store.tables.register(REMOTE + name, create=create))


def remote_groups(store: Store) -> list[str]:
    """The producer groups that ever had a member."""
    return store.tables.groups_with(REMOTE)
