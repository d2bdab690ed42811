"""What a store must show, told from its raw commits by the documents alone (docs/invariants.md).

Own small dictionaries and an own state machine: nothing here calls the code that decides.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.kit.memory_table import Log, MemoryStore

GROUP = "orders-service"
DEAD_LETTERS = "TRANS_CHECK_MAX_TIME_TOPIC"
FOR_GOOD = ("COMMITTED", "ROLLED_BACK", "EXPIRED")
# The table of states in docs/architecture.md: (state, kind) to the next state.
NEXT_STATE = {
    ("PENDING", "COMMIT"): "COMMITTED",
    ("PENDING", "ROLLBACK"): "ROLLED_BACK",
    ("PENDING", "DISCARD"): "DISCARDED",
    ("PENDING", "EXPIRE"): "EXPIRED",
    ("DISCARDED", "RESUME"): "PENDING",
    ("DISCARDED", "EXPIRE"): "EXPIRED",
    ("INCOMPLETE", "RESUME"): "PENDING",
    ("INCOMPLETE", "ROLLBACK"): "ROLLED_BACK",
    ("INCOMPLETE", "EXPIRE"): "EXPIRED",
}
# Kinds that fit one life only, and how far ahead of the current life that is.
BOUND_TO_LIFE = {"DISCARD": 0, "EXPIRE": 0, "RESUME": 1}

Fact = tuple[str, str, int, int, int]


@dataclass
class Fate:
    """One transaction: what was sent, and where the claims so far have led it."""

    sent: list[tuple[str, bytes]]
    is_torn: bool = False
    state: str = "PENDING"
    life: int = 0
    end: tuple[int, int] | None = None
    # Life to the claim that discarded it, or that let it expire.
    discards: dict[int, int] = field(default_factory=dict)
    # What the local transaction came to; None: not done yet.
    local: str | None = None
    # Somebody ended it who did not look at the local transaction.
    is_meddled: bool = False
    acknowledged: str | None = None
    half_ms: int = 0
    # Questions of each life, and the lives whose checks somebody counted by hand.
    asked: Counter[int] = field(default_factory=Counter)
    armed_by_hand: set[int] = field(default_factory=set)


class Model:
    """Follows the raw commits of a store and says what is wrong with it."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.check_max = store.config.transaction_check_max
        self.fates: dict[str, Fate] = {}
        self.facts: list[Fact] = []
        self._op_seen = 0
        self._history: dict[str, list[bytes]] = {"half": [], "op": []}
        self._rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._commits_checked = -1

    # --- following the claims ---------------------------------------------------------------------

    def follow(self) -> None:
        """Take in the claims that are new; their order is that of commits and ordinals."""
        op = self.store.log("op")
        for version in range(self._op_seen, len(op.commits)):
            rows = op.rows_of(op.commits[version]).to_pylist()
            for claim in sorted(rows, key=lambda row: int(row["ordinal"])):
                self._take(claim, version)
        self._op_seen = len(op.commits)

    def _take(self, claim: dict[str, Any], version: int) -> None:
        fate = self.fates.get(claim["transaction_id"])
        if fate is None or claim["producer_group"] != GROUP:
            return
        if claim["kind"] == "UNKNOWN" and claim["source"] == "operator":
            fate.armed_by_hand.add(claim["life"])
        kind, state = claim["kind"], NEXT_STATE.get((fate.state, claim["kind"]))
        ahead = BOUND_TO_LIFE.get(kind)
        if state is None or (ahead is not None and claim["life"] != fate.life + ahead):
            return
        if state == "COMMITTED" and fate.is_torn:
            state = "INCOMPLETE"
        fate.life += kind == "RESUME"
        fate.state = state
        if state == "EXPIRED":
            # A life that was discarded has its dead letters already.
            fate.discards.setdefault(fate.life, version)
        if state == "DISCARDED":
            fate.discards[fate.life] = version
            if claim["source"] == "recheck" and fate.life not in fate.armed_by_hand:
                assert fate.asked[fate.life] >= self.check_max, "I19: discarded before its checks"
        if state == "COMMITTED":
            fate.end = (version, claim["ordinal"])
        place = (version, claim["ordinal"])
        self.facts.append((claim["transaction_id"], state, *place, fate.life))

    # --- what must hold at any moment ---------------------------------------------------------

    def check(self) -> None:
        commits = sum(len(log.commits) for log in self.store.disk.logs.values())
        if commits == self._commits_checked:
            return
        self.follow()
        self._check_append_only()
        self._check_settled()
        self._check_topics()
        self._check_answers()
        self._commits_checked = commits

    def _check_append_only(self) -> None:
        """I17: no row of half and op disappears or changes."""
        for name, seen in self._history.items():
            log = self.store.log(name)
            contents = [commit.content for commit in log.commits]
            assert contents[: len(seen)] == seen, f"I17: {name} lost or changed a commit"
            added = sum(len(commit.added) for commit in log.commits)
            assert len(log.commits[-1].live) == added, f"I17: {name} lost a file"
            self._history[name] = contents

    def _check_settled(self) -> None:
        """I10: the facts up to the mark are those of the first ends, each once; I21."""
        log, mark = self.store.log("settled"), self.settled_mark()
        found = [
            (row["transaction_id"], row["state"], row["op_version"], row["ordinal"], row["life"])
            for row in self._all_rows(log)
        ]
        expected = [fact for fact in self.facts if fact[2] <= mark]
        assert sorted(found) == sorted(expected), "I10: the settled log is not what the claims say"

    def settled_mark(self) -> int:
        return self._mark(self.store.log("settled"))

    def _mark(self, log: Log) -> int:
        return log.commits[-1].marks.get(f"txmq/{self.store.log('op').id}", -1)

    def _check_topics(self) -> None:
        visible: Counter[str] = Counter()
        for topic in self.store.topics():
            rows = self.topic_rows(topic)
            self._check_queues(topic, rows)
            if topic == DEAD_LETTERS:
                self._check_dead_letters(rows)
            else:
                self._check_visible(topic, rows)
                visible.update(row["message_id"] for row in rows)
        assert all(count == 1 for count in visible.values()), "I3: a message is visible twice"

    def _check_queues(self, topic: str, rows: list[dict[str, Any]]) -> None:
        """I3 no offset twice, I23 no gap, I21 the mark is the next one, I14 order of the claims."""
        marks = self.store.log(f"topics/{topic}").commits[-1].marks
        queues: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            queues.setdefault(row["queue_id"], []).append(row)
        for queue, own in queues.items():
            own.sort(key=lambda row: int(row["queue_offset"]))
            offsets = [row["queue_offset"] for row in own]
            assert offsets == list(range(len(own))), f"I3, I23: offsets of {topic}/{queue}"
            assert marks[f"txmq-offset/{queue}"] == len(own), f"I21: mark of {topic}/{queue}"
            order = [self._order(topic, row) for row in own]
            assert order == sorted(order), f"I14: order of {topic}/{queue}"

    def _order(self, topic: str, row: dict[str, Any]) -> tuple[int, int, int]:
        version, own_id = row["op_version"], row["transaction_id"]
        shown_as = ("DISCARDED", "EXPIRED") if topic == DEAD_LETTERS else ("COMMITTED",)
        # One commit may discard a transaction, open it again, and discard it once more.
        ordinals = [
            f[3]
            for f in self.facts
            if (f[0], f[2], f[4]) == (own_id, version, row["life"]) and f[1] in shown_as
        ]
        return version, min(ordinals, default=-1), row["sequence"]

    def _check_visible(self, topic: str, rows: list[dict[str, Any]]) -> None:
        counts: Counter[str] = Counter()
        for row in rows:
            own_id, fate = row["transaction_id"], self.fates.get(row["transaction_id"])
            assert fate is not None, "I4: visible without a half"
            assert fate.sent[row["sequence"]] == (topic, row["body"]), "I4, I16: not what was sent"
            assert row["message_id"] == f"{own_id}:{row['sequence']}", "I4: another message id"
            # I2: ROLLED_BACK; I5: PENDING, INCOMPLETE; I11: DISCARDED, EXPIRED.
            assert fate.state == "COMMITTED", f"I2, I5, I11: visible although {fate.state}"
            assert fate.end is not None
            assert (row["op_version"], row["life"]) == (fate.end[0], fate.life), "I10: another end"
            counts[own_id] += 1
        for own_id, count in counts.items():
            sent = sum(name == topic for name, _ in self.fates[own_id].sent)
            assert count == sent, "I13: a part of a transaction is visible"

    def _check_dead_letters(self, rows: list[dict[str, Any]]) -> None:
        places = Counter((row["message_id"], row["life"]) for row in rows)
        assert all(count == 1 for count in places.values()), "I3: a dead letter twice in a life"
        counts: Counter[tuple[str, int]] = Counter()
        for row in rows:
            fate = self.fates.get(row["transaction_id"])
            assert fate is not None, "I4: a dead letter without a half"
            assert fate.discards.get(row["life"]) == row["op_version"], "I11, I19: not discarded"
            assert fate.sent[row["sequence"]] == (row["topic"], row["body"]), "I16"
            counts[row["transaction_id"], row["life"]] += 1
        for (own_id, _), count in counts.items():
            assert count == self._stored_count(self.fates[own_id]), "I13: some dead letters"

    def _stored_count(self, fate: Fate) -> int:
        """How many of its halves the log holds; a torn one lost the last of them."""
        return len(fate.sent) - fate.is_torn

    def _check_answers(self) -> None:
        for fate in self.fates.values():
            if fate.acknowledged is not None:
                assert fate.state == fate.acknowledged, "I7: an acknowledged end is not the end"
            if not fate.is_meddled and fate.state in ("COMMITTED", "ROLLED_BACK"):
                ended_as = {"COMMITTED": "COMMIT", "ROLLED_BACK": "ROLLBACK"}[fate.state]
                assert ended_as == fate.local, "I12: not what the local transaction came to"

    # --- what must hold once all is published ---------------------------------------------------

    def check_drained(self) -> None:
        self.check()
        assert self.settled_mark() == len(self.store.log("op").commits) - 1, "I21: not settled yet"
        shown = (row for name in self._user_topics() for row in self.topic_rows(name))
        visible = {row["message_id"] for row in shown}
        dead = Counter(
            (row["transaction_id"], row["life"]) for row in self.topic_rows(DEAD_LETTERS)
        )
        for own_id, fate in self.fates.items():
            expected = len(fate.sent) if fate.state == "COMMITTED" else 0
            found = sum(f"{own_id}:{number}" in visible for number in range(len(fate.sent)))
            assert found == expected, "I1, I13: a committed message is lost"
            for life in fate.discards:
                assert dead[own_id, life] == self._stored_count(fate), "I19: a dead letter is lost"

    def _user_topics(self) -> list[str]:
        return [name for name in self.store.topics() if name != DEAD_LETTERS]

    def topic_rows(self, topic: str) -> list[dict[str, Any]]:
        if topic not in self.store.topics():
            return []
        return self._all_rows(self.store.log(f"topics/{topic}"))

    def _all_rows(self, log: Log) -> list[dict[str, Any]]:
        """All live rows; commits of these tables never change, so each is read once."""
        found: list[dict[str, Any]] = []
        for version, commit in enumerate(log.commits):
            key = (log.location, version)
            if key not in self._rows:
                self._rows[key] = log.rows_of(commit).to_pylist() if commit.added else []
            found += self._rows[key]
        return found
