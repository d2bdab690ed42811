"""The checker's look at the dead letters: one for each message and life that was discarded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.verify.plain.addresses import ids_in
from txmq.verify.plain.arrays import ABSENT, Flags, Integers, repeats
from txmq.verify.plain.fold import COMMITTED, DISCARDED, EXPIRED, ROLLED_BACK
from txmq.verify.plain.picture import Picture
from txmq.verify.plain.placed import PlacedRows
from txmq.verify.report import SHOWN_ROWS


class DeadLetterChecks:
    """I3, I11, I13 and I19.

    Attributes:
        row_count: of the topic.
        in_this_life: messages with a dead letter of their transaction's last life, or whose dead
            letter retention may have taken.
    """

    def __init__(self, picture: Picture) -> None:
        """Nothing is seen yet."""
        self._picture, self._pinned, self._drained = picture, picture.pinned, picture.drained
        self._halves, self._fates = picture.halves, picture.fates
        self._findings, self._report = picture.findings, picture.report
        self.row_count = 0
        self.in_this_life = np.zeros(len(picture.topic_of), dtype=bool)

    def check_none(self) -> None:
        """There is no such topic."""
        nothing = np.empty(0, np.int64)
        self._check_complete(nothing, nothing)

    def check(self, placed: PlacedRows, ordinals: Integers) -> None:
        """`ordinals` are ABSENT where no DISCARD or EXPIRE explains a row."""
        self.row_count = len(placed.place)
        lives, known = placed.column("life"), placed.known
        explained = known & (ordinals != ABSENT)
        ended = self._fates.in_state(COMMITTED) | self._fates.in_state(ROLLED_BACK)
        two_fates = known & ~explained & ended[placed.numbers]
        detail = "dead letter of a transaction with another end"
        self._report("I11", placed.row_ids, two_fates, detail)
        others = known & ~explained & ~two_fates
        detail = "dead letter that no DISCARD or EXPIRE led to"
        self._report("I19", placed.row_ids, others, detail)
        doubled = known & repeats(placed.place, lives)
        self._report("I3", placed.row_ids, doubled, "dead letter that is there already")
        self._check_complete(placed.place[known], lives[known])

    def _check_complete(self, place: Integers, lives: Integers) -> None:
        """I19, I13: each message of a discarded life has its dead letter, or none has yet."""
        letters = pa.table({"message": place, "life": lives})
        keys = ["message", "life"]
        wanted = self._messages_with(DISCARDED)
        missing = wanted.join(letters, keys=keys, join_type="left anti")
        there = wanted.join(letters, keys=keys, join_type="left semi")
        taken = self._may_lack(missing)
        self._note_dead(pa.concat_tables([there, missing.filter(pa.array(taken))]))
        missing = missing.filter(pa.array(~taken))
        self._check_torn(missing, there)
        # What expired may be among the dead letters since an earlier life.
        expired = self._messages_with(EXPIRED)
        expired = expired.join(letters, keys=["message"], join_type="left anti")
        self._report_missing(missing)
        self._report_missing(expired.filter(pa.array(~self._may_lack(expired))))

    def _may_lack(self, missing: pa.Table) -> Flags:
        op_versions = missing["op_version"].to_numpy()
        return self._pinned.may_lack(TRANS_CHECK_MAX_TIME_TOPIC, op_versions)

    def _messages_with(self, state: str) -> pa.Table:
        """Each message beside each fact of its transaction that led to a state."""
        messages = {
            "transaction": self._halves.transaction[self._halves.carries],
            "message": np.flatnonzero(self._halves.carries),
        }
        facts = self._fates.facts_in(state).select(["transaction", "life", "op_version"])
        return pa.table(messages).join(facts, "transaction", join_type="inner")

    def _report_missing(self, missing: pa.Table) -> None:
        if not self._drained:
            reached = self._pinned.reached(TRANS_CHECK_MAX_TIME_TOPIC)
            missing = missing.filter(pc.less_equal(missing["op_version"], reached))
        row_ids = ids_in(self._halves.rows["message_id"].take(missing["message"]))
        self._report("I19", row_ids, np.ones(missing.num_rows, dtype=bool), "has no dead letter")

    def _check_torn(self, missing: pa.Table, there: pa.Table) -> None:
        keys = ["transaction", "life"]
        torn = missing.join(there.select(keys), keys=keys, join_type="left semi")
        torn = torn.group_by(keys).aggregate([])
        ids = [
            f"{self._halves.ids[row['transaction']]} in {TRANS_CHECK_MAX_TIME_TOPIC} "
            f"life {row['life']}"
            for row in torn.slice(0, SHOWN_ROWS).to_pylist()
        ]
        self._findings.add("I13", torn.num_rows, ids, "is shown in part")

    def _note_dead(self, there: pa.Table) -> None:
        messages = there["message"].to_numpy()
        numbers = self._halves.transaction[messages]
        in_this_life = self._fates.life[numbers] == there["life"].to_numpy()
        self.in_this_life[messages[in_this_life]] = True
