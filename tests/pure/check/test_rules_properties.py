"""A model of several services and one op log, in which only `decide` is the real thing."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from txmq.check.standing import (
    Ask,
    CheckStanding,
    Discard,
    Drop,
    DueRow,
    Rearm,
    decide,
    next_check_ms,
    next_try_ms,
)
from txmq.message.lifecycle import Standing, TransactionState
from txmq.store.config import CheckSettings, Config

IMMUNITY_MS = 6_000
SERVICES = 3


@dataclass
class Model:
    """The op log of one transaction and, for each service, the rows that its join still holds."""

    settings: CheckSettings
    now_ms: int = 0
    asked_ms: list[int] = field(default_factory=list)
    arming: list[DueRow] = field(default_factory=list)
    discarded: bool = False
    held: list[list[DueRow]] = field(default_factory=list)

    def __post_init__(self) -> None:
        head = DueRow("id", "orders", IMMUNITY_MS)
        self.held = [[head] for _ in range(SERVICES)]

    def standing(self) -> CheckStanding:
        if self.discarded:
            return CheckStanding(Standing(TransactionState.DISCARDED))
        times = max((row.check_times for row in self.arming), default=0)
        last = [row for row in self.arming if row.check_times == times]
        next_ms = max((row.deadline_ms for row in last), default=None)
        standing = Standing(TransactionState.PENDING, 0, times, next_ms)
        return CheckStanding(standing, max(len(last) - (times > 0), 0))

    def emit(self, service: int, *, is_heard: bool) -> None:
        """What passed its deadline comes out of one join; each row is handled under the lease."""
        out = [row for row in self.held[service] if row.deadline_ms <= self.now_ms]
        self.held[service] = [row for row in self.held[service] if row not in out]
        for row in out:
            self.handle(row, is_heard=is_heard)

    def handle(self, row: DueRow, *, is_heard: bool) -> None:
        now = self.standing()
        times = now.standing.check_times
        match decide(row, now, self.now_ms, self.settings):
            case Ask() if is_heard:
                self.asked_ms.append(self.now_ms)
                self.arm(times + 1, next_check_ms(self.now_ms, self.settings))
            case Ask():
                self.arm(times, next_try_ms(self.now_ms, now.uncounted, self.settings))
            case Rearm(next_check_timestamp_ms=at_ms):
                self.arm(times, at_ms)
            case Discard():
                self.discarded = True
            case Drop():
                pass

    def arm(self, check_times: int, deadline_ms: int) -> None:
        """One row of the op log, which every service reads."""
        row = DueRow("id", "orders", deadline_ms, check_times)
        self.arming.append(row)
        for held in self.held:
            held.append(row)


steps = st.lists(
    st.tuples(st.integers(0, 90_000), st.integers(0, SERVICES - 1), st.booleans(), st.booleans()),
    max_size=120,
)


def run(moves: list[tuple[int, int, bool, bool]], check_max: int) -> Model:
    model = Model(Config(transaction_check_max=check_max).of_group("orders"))
    for passed_ms, service, is_heard, is_recheck in moves:
        model.now_ms += passed_ms
        if is_recheck:
            now = model.standing().standing
            deadline_ms = now.next_check_timestamp_ms or IMMUNITY_MS
            if deadline_ms <= model.now_ms:
                row = DueRow("id", "orders", deadline_ms, now.check_times)
                model.handle(row, is_heard=is_heard)
        else:
            model.emit(service, is_heard=is_heard)
    return model


@given(steps, st.integers(1, 5))
def test_no_mix_of_services_and_rechecks_asks_more_than_the_maximum(
    moves: list[tuple[int, int, bool, bool]], check_max: int
) -> None:
    assert len(run(moves, check_max).asked_ms) <= check_max


@given(steps, st.integers(1, 5))
def test_nobody_is_asked_inside_immunity_or_interval(
    moves: list[tuple[int, int, bool, bool]], check_max: int
) -> None:
    asked_ms = run(moves, check_max).asked_ms

    assert all(at_ms >= IMMUNITY_MS for at_ms in asked_ms)
    assert all(b - a >= 30_000 for a, b in itertools.pairwise(asked_ms))


@given(steps, st.integers(1, 5))
def test_rows_do_not_multiply_with_the_services(
    moves: list[tuple[int, int, bool, bool]], check_max: int
) -> None:
    model = run(moves, check_max)
    waiting = [row for row in model.arming if row.deadline_ms > model.now_ms]

    assert len(waiting) <= 1


@given(st.integers(1, 5), st.integers(1_000, 45_000))
def test_transaction_that_nobody_answers_is_asked_the_maximum_and_discarded(
    check_max: int, round_ms: int
) -> None:
    moves = [(round_ms, 0, True, False)] * (2 + (check_max + 2) * (30_000 // round_ms + 1))
    model = run(moves, check_max)

    assert model.discarded
    assert len(model.asked_ms) == check_max
