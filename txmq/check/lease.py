"""The right to ask: one service at a time, and each group by one service."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from txmq.errors import CommitRefusedError
from txmq.store.register import Register, Registered

_ASKING = "asking"
# A token: the holder, its revision, the time.
_TOKEN = re.compile(r"[^/]*/[^/]*/([0-9]{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Silence:
    """The last renewal of another holder, and since when this observer has seen it."""

    revision: int
    since_ms: int


class CheckLease:
    """The right to ask. A round takes it, asks, makes the answers durable, and gives it back.

    A group whose listener is slow stays with the round that asked it, while the lease is free for
    the other groups: the value names these groups until their answers are durable, for the length
    of a lease at the longest.

    So a transaction is asked at most its maximum, plus once for each round that died before it
    wrote its claims. A holder whose clock is ahead cannot block other services for ever: to an
    observer no time of others is later than its own now.
    """

    def __init__(self, register: Register, holder: str, lease_s: float) -> None:
        """`holder` is the unique id of this object."""
        self._register = register
        self._holder = holder
        self._lease_ms = round(lease_s * 1000)
        self._held: Registered | None = None
        self._silence: _Silence | None = None
        self._asking: dict[str, str] = {}
        # The groups that the value names for this holder.
        self._named: set[str] = set()
        # Since when a group is asked by another service, as far as this observer knows.
        self._since_ms: dict[tuple[str, str], int] = {}

    def take(self, now_ms: int) -> bool:
        """Take the lease if it is free or its holder is silent: one commit. Never waits."""
        seen = self._register.read()
        if not self._may_take(seen, now_ms):
            return False
        try:
            value = self._value(self._holder, now_ms, self._of_others(seen, now_ms))
            self._held = self._register.swap(seen, value, now_ms)
        except CommitRefusedError:
            return False
        return True

    def busy_groups(self, now_ms: int) -> frozenset[str]:
        """The groups that other services still ask, as of the last `take`."""
        return frozenset(self._of_others(self._held, now_ms)) if self._held else frozenset()

    def finish(self, still_asked: Collection[str], now_ms: int) -> None:
        """The answers of all but these groups are durable: one commit.

        No commit if nothing has changed, or while a round holds the lease; then call it again.
        """
        if self._named <= set(still_asked):
            return
        self._asking = {key: token for key, token in self._asking.items() if key in still_asked}
        seen = self._register.read()
        if seen.value.get("holder") is not None:
            return
        value = self._value(None, now_ms, self._of_others(seen, now_ms))
        try:
            self._register.swap(seen, value, now_ms)
        except CommitRefusedError:
            return
        self._named = set(self._asking)

    def give_back(self, now_ms: int, asking: Collection[str] = ()) -> None:
        """Free the lease, and name the groups that are still asked: one commit.

        No commit if another service has taken the lease over.
        """
        seen, held = self._register.read(), self._held
        self._held = None
        if held is None or seen.revision != held.revision:
            return
        self._asking |= dict.fromkeys(asking, f"{self._holder}/{held.revision}/{now_ms}")
        try:
            value = self._value(None, now_ms, self._of_others(seen, now_ms))
            self._register.swap(seen, value, now_ms)
        except CommitRefusedError:
            return
        self._named = set(self._asking)

    def _may_take(self, seen: Registered, now_ms: int) -> bool:
        if seen.value.get("holder") in (None, self._holder):
            return True
        return now_ms - self._silent_since_ms(seen, now_ms) >= self._lease_ms

    def _silent_since_ms(self, seen: Registered, now_ms: int) -> int:
        silence = self._silence
        if silence is None or silence.revision != seen.revision:
            silence = _Silence(seen.revision, int(seen.value["renewed_ms"]))
        # A time in the future comes from another clock, or this clock was set back.
        self._silence = _Silence(silence.revision, min(silence.since_ms, now_ms))
        return self._silence.since_ms

    def _value(
        self, holder: str | None, now_ms: int, of_others: Mapping[str, str]
    ) -> dict[str, object]:
        asking = {**of_others, **self._asking}
        named: dict[str, object] = {_ASKING: asking} if asking else {}
        return {"holder": holder, "renewed_ms": now_ms, **named}

    def _of_others(self, seen: Registered, now_ms: int) -> dict[str, str]:
        """The groups that others ask, and have not asked for longer than a lease."""
        others = {pair for pair in _asking(seen).items() if not self._is_own(pair[1])}
        # A scheduled recheck looks once, so the time at which they were named counts from the
        # start. One in the future comes from another clock, or this clock was set back.
        self._since_ms = {
            pair: min(self._since_ms.get(pair, _named_ms(pair[1], seen)), now_ms) for pair in others
        }
        return {
            group: token
            for (group, token), since_ms in self._since_ms.items()
            if now_ms - since_ms < self._lease_ms
        }

    def _is_own(self, token: str) -> bool:
        return token.partition("/")[0] == self._holder


def _named_ms(token: str, seen: Registered) -> int:
    """When a group was named; an earlier txmq wrote no time, and the last change counts."""
    has_time = _TOKEN.fullmatch(token)
    return int(has_time[1] if has_time else seen.value["renewed_ms"])


def _asking(seen: Registered) -> dict[str, str]:
    groups = seen.value.get(_ASKING)
    return dict(groups) if isinstance(groups, dict) else {}
