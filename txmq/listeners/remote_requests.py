"""Questions to the producers of a group, as one value that they and the check service share.

Each change is one compare-and-swap of `state/remote_<group>`, so no question is taken twice at the
same moment, and what was computed from an older value changes nothing. Pure but for RemoteRequests.
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


@dataclass(frozen=True, slots=True)
class Question:
    """One transaction of a round, and who is preferred: the client that sent it."""

    check_times: int
    client_id: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a member's listener said; a null state: the listener was not reached."""

    state: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Requests:
    """The newest round of a group, and the members that may answer.

    `taken` says which client asks its listener now, and in which take: a question that is taken
    again has another number.
    """

    round_id: str = ""
    asked: Mapping[str, Question] = field(default_factory=dict)
    taken: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    members: Mapping[str, int] = field(default_factory=dict)

    # --- the check service ----------------------------------------------------------------

    def begun(self, round_id: str, asked: Mapping[str, Question]) -> Requests:
        """Another round in place of this one; the members stay."""
        return Requests(round_id, asked, members=self.members)

    def over(self, round_id: str) -> Requests:
        """Nothing is asked any more, if it is still that round."""
        return Requests(members=self.members) if self.round_id == round_id else self

    @property
    def is_answered(self) -> bool:
        """Whether nothing is left to wait for."""
        return len(self.answers) == len(self.asked)

    def member_count(self, now_ms: int) -> int:
        """How many were alive in the last hour."""
        return len(self._alive(now_ms))

    # --- members --------------------------------------------------------------------------

    def joined(self, client_id: str, now_ms: int) -> Requests:
        """The client is a member; those who have long been silent are not any more."""
        return replace(self, members={**self._alive(now_ms), client_id: now_ms})

    def left(self, client_id: str) -> Requests:
        """The client is no member, and what it took is free."""
        members = {name: ms for name, ms in self.members.items() if name != client_id}
        taken = {key: take for key, take in self.taken.items() if take[0] != client_id}
        return replace(self, members=members, taken=taken)

    def free_for(self, client_id: str, *, after_others: bool, lost: Iterable[str]) -> list[str]:
        """What this client may take, oldest first: its share of what nobody has.

        Args:
            client_id: who asks.
            after_others: whether clients that sent them had their time to take them.
            lost: taken questions whose client had time enough.
        """
        gone = set(lost)
        free = [
            key
            for key in self.asked
            if key not in self.answers and (key not in self.taken or key in gone)
        ]
        own = [key for key in free if self.asked[key].client_id == client_id]
        if own:
            return own
        waiting = [key for key in free if after_others or not self._sender_lives(key)]
        return waiting[: -(-len(waiting) // max(1, len(self.members)))]

    def taken_by(self, client_id: str, keys: Iterable[str]) -> Requests:
        """The client asks its listener about these."""
        again = {key: (client_id, self._takes(key) + 1) for key in keys}
        return replace(self, taken={**self.taken, **again})

    def answered(
        self, takes: Mapping[str, tuple[str, int]], told: Mapping[str, Answer]
    ) -> Requests:
        """What the takes brought; a question that was taken from the client meanwhile is left."""
        valid = {
            key: answer
            for key, answer in told.items()
            if key not in self.answers and self.taken.get(key) == takes.get(key)
        }
        return replace(self, answers={**self.answers, **valid})

    def _takes(self, key: str) -> int:
        return self.taken[key][1] if key in self.taken else 0

    def _sender_lives(self, key: str) -> bool:
        return self.asked[key].client_id in self.members

    def _alive(self, now_ms: int) -> dict[str, int]:
        oldest_ms = now_ms - MEMBER_SILENCE_MAX_S * 1000
        return {name: ms for name, ms in self.members.items() if ms >= oldest_ms}


class RemoteRequests(SharedValue[Requests]):
    """The requests of one group in the store. Not safe for several threads."""

    def __init__(self, register: Register) -> None:
        """The register is `state/remote_<group>`; a member's first join makes it."""
        super().__init__(register, "remote requests", _from_value, _to_value)


def _to_value(requests: Requests) -> dict[str, Any]:
    return asdict(requests)


def _from_value(value: Mapping[str, Any]) -> Requests:
    if not value:
        return Requests()
    return Requests(
        round_id=value["round_id"],
        asked={key: Question(**question) for key, question in value["asked"].items()},
        taken={key: (take[0], take[1]) for key, take in value["taken"].items()},
        answers={key: Answer(**answer) for key, answer in value["answers"].items()},
        members=dict(value["members"]),
    )


def requests_in(store: Store, producer_group: str, *, create: bool = False) -> RemoteRequests:
    """Questions to the live producers of a group."""
    name = check_stored_group(producer_group)
    return RemoteRequests(store.tables.register(REMOTE + name, create=create))


def remote_groups(store: Store) -> list[str]:
    """Producer groups whose producers have ever answered checks."""
    return store.tables.groups_with(REMOTE)
