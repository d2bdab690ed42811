"""Who may ask now: one lease for all check services and rechecks of a store."""

from __future__ import annotations

from dataclasses import dataclass

from txmq.errors import CommitRefusedError
from txmq.store.register import Register, Registered


@dataclass(frozen=True, slots=True)
class _Silence:
    """A holder's last sign of life as this observer knows it."""

    revision: int
    since_ms: int


class CheckLease:
    """A round takes it, asks, makes the answers durable and gives it back.

    So a transaction is asked at most its maximum, plus one for each take-over from a round that
    died. Only the observer's clock is read: a holder whose clock is ahead cannot block for ever.
    """

    def __init__(self, register: Register, holder: str, lease_s: float) -> None:
        """`holder` names this object alone."""
        self._register = register
        self._holder = holder
        self._lease_ms = round(lease_s * 1000)
        self._held: Registered | None = None
        self._silence: _Silence | None = None

    def take(self, now_ms: int) -> bool:
        """Whether it is ours now; one commit if so. Never waits."""
        seen = self._register.read()
        if not self._may_take(seen, now_ms):
            return False
        try:
            self._held = self._register.swap(seen, self._value(self._holder, now_ms), now_ms)
        except CommitRefusedError:
            return False
        return True

    def give_back(self, now_ms: int) -> None:
        """Let others go on at once; one commit, or none where another took over meanwhile."""
        seen, held = self._register.read(), self._held
        self._held = None
        if held is None or seen.revision != held.revision:
            return
        try:
            self._register.swap(seen, self._value(None, now_ms), now_ms)
        except CommitRefusedError:
            return

    def _may_take(self, seen: Registered, now_ms: int) -> bool:
        if seen.value.get("holder") in (None, self._holder):
            return True
        return now_ms - self._silent_since_ms(seen, now_ms) >= self._lease_ms

    def _silent_since_ms(self, seen: Registered, now_ms: int) -> int:
        known = self._silence
        if known is None or known.revision != seen.revision:
            known = _Silence(seen.revision, int(seen.value["renewed_ms"]))
        # A time in the future is another clock, or ours was set back.
        self._silence = _Silence(known.revision, min(known.since_ms, now_ms))
        return self._silence.since_ms

    def _value(self, holder: str | None, now_ms: int) -> dict[str, object]:
        return {"holder": holder, "renewed_ms": now_ms}
