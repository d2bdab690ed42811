"""The checker's look at the questions: their numbers, their times, and what they led to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.message.ids import HEAD_SEQUENCE
from txmq.verify.arrays import ABSENT, Flags, Integers, integers, microseconds, positions
from txmq.verify.fates import of_right_group, readable
from txmq.verify.fold import DISCARDED, PENDING, STATES
from txmq.verify.picture import Picture, RowIds

_ASKERS = ("check", "recheck")
_ANSWERS = ("COMMIT", "ROLLBACK")
_NEVER = np.iinfo(np.int64).max
_UNSAID = np.iinfo(np.int64).min
# A longer time is none that a check waits for.
_MOST_SECONDS = 1e12


@dataclass(frozen=True, slots=True)
class _Questions:
    """Counted questions, sorted: one entry for each transaction, life and number.

    Attributes:
        place: of its first row in the order of all claims.
        asked_us: the earliest time that a row of it names.
        next_us: when the next one may be asked, by the earliest row.
        follows: whether the entry before it is the number before it.
    """

    transaction: Integers
    life: Integers
    times: Integers
    place: Integers
    asked_us: Integers
    next_us: Integers
    follows: Flags


class CheckDiscipline:
    """I18, and the part of I19 that nothing is discarded before enough questions."""

    def __init__(self, picture: Picture) -> None:
        """Take the claims whose order is known; nothing is judged yet."""
        self._picture = picture
        self._halves, self._fates = picture.halves, picture.fates
        claims = readable(picture.claims)
        numbers = self._halves.numbers_of(claims["transaction_id"])
        has_half = numbers != ABSENT
        own = of_right_group(claims.filter(pa.array(has_half)), numbers[has_half], self._halves)
        judged = self._judged[own["transaction"].to_numpy()]
        self._claims = own.filter(pa.array(judged))
        ordinals = (integers(rows["ordinal"]) for rows in (self._claims, self._fates.facts))
        self._width = max(int(column.max(initial=0)) for column in ordinals) + 1
        self._questions = self._asked()
        self._limits = self._allowed()

    @property
    def _judged(self) -> Flags:
        # Of halves that name several groups none decides whose questions count.
        flags: Flags = ~self._halves.disputed & ~self._picture.without_claims[:-1]
        flags &= ~self._halves.by_schedule
        return flags

    @property
    def count(self) -> int:
        """Counted questions."""
        return len(self._questions.times)

    def run(self) -> None:
        """Run every check."""
        self._check_numbers()
        self._check_times()
        self._check_immunity()
        self._check_discards()

    # --- numbers -------------------------------------------------------------------------------

    def _check_numbers(self) -> None:
        """Report numbers that do not rise by one, exceed the maximum or follow the end."""
        q = self._questions
        risen = q.follows & (np.roll(q.place, 1) < q.place)
        self._report((q.times > 1) & ~risen, "comes without the one before it")
        self._report(q.times > self._limits[q.transaction], "is one more than are allowed")
        ends, lives = self._ends(), self._lives(q.transaction, q.life)
        end = np.array([ends.get(key, _NEVER) for key in lives], dtype=np.int64)
        late = q.follows & (np.roll(q.place, 1) > end)
        self._report(late, "was asked though the one before it stands behind the end")

    def _check_times(self) -> None:
        """Report early questions; only rising times count, for a clock may be set back."""
        q = self._questions
        before_us, next_us = np.roll(q.asked_us, 1), np.roll(q.next_us, 1)
        is_comparable = q.follows & (next_us != _NEVER) & (before_us != _UNSAID)
        early = is_comparable & (q.asked_us >= before_us) & (q.asked_us < next_us)
        self._report(early, "was asked before it was due")

    def _ends(self) -> dict[tuple[int, int], int]:
        """Find the place of the first end of each life, for transactions with questions."""
        facts, with_questions = self._fates.facts, pa.array(np.unique(self._questions.transaction))
        is_end = pc.not_equal(facts["state"], STATES.index(PENDING))
        facts = facts.filter(
            pc.and_(is_end, pc.is_in(facts["transaction"], value_set=with_questions))
        )
        lives = self._lives(facts["transaction"].to_numpy(), facts["life"].to_numpy())
        ends: dict[tuple[int, int], int] = {}
        for key, place in zip(lives, self._places(facts, "op_version").tolist(), strict=True):
            ends[key] = min(place, ends.get(key, place))
        return ends

    # --- the first question --------------------------------------------------------------------

    def _check_immunity(self) -> None:
        """Report questions before the first half was old enough, by the store's clock."""
        first = self._first_asked()
        due = self._due_ms(list(first))
        early = [number for number, asked_ms in first.items() if asked_ms < due.get(number, 0)]
        ids = [f"{self._halves.ids[number]} life 0 check 1" for number in early]
        self._picture.findings.add("I18", len(ids), ids, "was asked before its immunity was over")

    def _first_asked(self) -> dict[int, int]:
        """Find when each transaction was first asked about in its first life, in milliseconds."""
        claims = self._claims.filter(pc.is_in(self._claims["source"], value_set=pa.array(_ASKERS)))
        numbers = claims["transaction"].to_numpy()
        counted = pc.and_(pc.equal(claims["kind"], "UNKNOWN"), pc.equal(claims["life"], 0))
        counted = pc.and_(counted, pc.greater_equal(claims["check_times"], 1))
        answered = pc.is_in(claims["kind"], value_set=pa.array(_ANSWERS)).to_numpy()
        is_question = pc.fill_null(counted, False).to_numpy()  # noqa: FBT003
        is_question = is_question | (answered & (self._fates.life[numbers] == 0))
        moments = microseconds(claims["op_timestamp"])
        is_question &= moments != _UNSAID
        first: dict[int, int] = {}
        pairs = zip(
            numbers[is_question].tolist(), (moments[is_question] // 1000).tolist(), strict=True
        )
        for number, moment in pairs:
            first[number] = min(moment, first.get(number, moment))
        return first

    def _due_ms(self, numbers: Sequence[int]) -> dict[int, int]:
        """Find when the immunity of these transactions ends, as far as the log still says it."""
        immunity = self._immunity_ms(numbers)
        if not immunity:
            return {}
        half = self._picture.pinned.half
        rows = half.appended(["transaction_id", "sequence", "_commit_version"])
        heads = rows.filter(pc.equal(rows["sequence"], HEAD_SEQUENCE))
        owners = self._halves.numbers_of(heads["transaction_id"]).tolist()
        due: dict[int, int] = {}
        for number, version in zip(owners, heads["_commit_version"].to_pylist(), strict=True):
            if number in immunity:
                moment = half.history.commits[version].moment_ms + immunity[number]
                due[number] = min(moment, due.get(number, moment))
        return due

    def _immunity_ms(self, numbers: Sequence[int]) -> dict[int, int]:
        rows, half = self._halves.rows, self._picture.pinned.half
        is_head = rows["sequence"].to_numpy() == HEAD_SEQUENCE
        # Of a head that was appended twice, once before the log begins, the first time is unknown.
        whole = self._halves.agreed if half.readable_from == 0 else self._halves.once
        wanted = is_head & whole & np.isin(self._halves.transaction, numbers)
        seconds = pc.fill_null(rows["check_immunity_time_s"], np.nan).to_numpy()
        wanted &= np.isfinite(seconds) & (seconds > 0)
        owners = self._halves.transaction[wanted].tolist()
        # Another program may write any number.
        immunity_ms = np.round(np.minimum(seconds[wanted], _MOST_SECONDS) * 1000).astype(int)
        return dict(zip(owners, immunity_ms.tolist(), strict=True))

    # --- discards ------------------------------------------------------------------------------

    def _check_discards(self) -> None:
        discards = self._fates.facts_in(DISCARDED)
        discards = discards.filter(pa.array(self._judged[discards["transaction"].to_numpy()]))
        counts = self._asked_before(discards)
        for row, times in zip(discards.to_pylist(), counts, strict=True):
            limit = self._limits[row["transaction"]]
            if limit != _NEVER and times < limit:
                row_id = f"{self._halves.ids[row['transaction']]} life {row['life']}"
                detail = f"was discarded after {times} checks of {limit}"
                self._picture.findings.add("I19", 1, [row_id], detail)

    def _asked_before(self, discards: pa.Table) -> list[int]:
        """Find the largest number of a question in the same life before each of these facts."""
        q = self._questions
        numbers = zip(q.place.tolist(), q.times.tolist(), strict=True)
        by_life: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for key, place_and_times in zip(self._lives(q.transaction, q.life), numbers, strict=True):
            by_life.setdefault(key, []).append(place_and_times)
        lives = self._lives(discards["transaction"].to_numpy(), discards["life"].to_numpy())
        places = self._places(discards, "op_version").tolist()
        return [
            max((times for at, times in by_life.get(key, ()) if at < place), default=0)
            for key, place in zip(lives, places, strict=True)
        ]

    # --- helpers -------------------------------------------------------------------------------

    def _asked(self) -> _Questions:
        """Collect the questions of lives that there were; rows with one number are one question."""
        claims = self._claims.filter(pc.equal(self._claims["kind"], "UNKNOWN"))
        life, times = (pc.fill_null(claims[n], ABSENT).to_numpy() for n in ("life", "check_times"))
        transaction = claims["transaction"].to_numpy()
        counted = (times >= 1) & (life >= 0) & (life <= self._fates.life[transaction])
        next_us = microseconds(claims["next_check_timestamp"])
        rows = pa.table(
            {
                "transaction": transaction,
                "life": life,
                "times": times,
                "place": self._places(claims, "_commit_version"),
                "asked_us": microseconds(claims["op_timestamp"]),
                "next_us": np.where(next_us == _UNSAID, _NEVER, next_us),
            }
        ).filter(pa.array(counted))
        return _grouped(rows)

    def _allowed(self) -> Integers:
        """Return how often each transaction may be asked about; _NEVER if nothing says it."""
        limits = self._picture.pinned.check_limits
        names, numbers = list(limits), [*limits.values(), limits.get("", _NEVER)]
        place = positions(pa.chunked_array([self._halves.groups]), pa.array(names, pa.string()))
        # ABSENT is the last one.
        allowed: Integers = np.array(numbers, dtype=np.int64)[place]
        return allowed

    def _places(self, rows: pa.Table, version: str) -> Integers:
        places: Integers = rows[version].to_numpy() * self._width + rows["ordinal"].to_numpy()
        return places

    @staticmethod
    def _lives(transaction: Integers, life: Integers) -> list[tuple[int, int]]:
        return list(zip(transaction.tolist(), life.tolist(), strict=True))

    def _report(self, wrong: Flags, detail: str) -> None:
        self._picture.report("I18", self._row_ids(), wrong, detail)

    def _row_ids(self) -> RowIds:
        q = self._questions
        return lambda places: [
            f"{self._halves.ids[q.transaction[at]]} life {q.life[at]} check {q.times[at]}"
            for at in places.tolist()
        ]


def _grouped(rows: pa.Table) -> _Questions:
    key = ["transaction", "life", "times"]
    questions = rows.group_by(key).aggregate(
        [("place", "min"), ("asked_us", "min"), ("next_us", "min")]
    )
    questions = questions.sort_by([(name, "ascending") for name in key])
    names = [*key, "place_min", "asked_us_min", "next_us_min"]
    transaction, life, times, place, asked_us, next_us = (questions[n].to_numpy() for n in names)
    same = (np.roll(transaction, 1) == transaction) & (np.roll(life, 1) == life)
    follows = same & (np.roll(times, 1) == times - 1)
    return _Questions(transaction, life, times, place, asked_us, next_us, follows)
