"""Commits of ends, and the look at what each end led to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from txmq.delta.table_log import TableLog
from txmq.ground.clock import Clock
from txmq.ground.fail_points import FailPoint, reached
from txmq.message.lifecycle import ClaimKind, ClaimSource, TransactionState
from txmq.producer.routing import PlannedSend
from txmq.store.brokers import SigningKey
from txmq.store.claim_writer import OWN_ENDS, ClaimWriter, PassingClaims
from txmq.store.known import Forgotten
from txmq.store.logs import EndReader, Resolution
from txmq.store.op import end_table

if TYPE_CHECKING:
    import pyarrow as pa

    from txmq.store.store import Store

Ends = Sequence[tuple[str, ClaimKind]]


class AskedEnds(NamedTuple):
    """Ends that one caller asks for.

    Attributes:
        is_doubtful: more logs are read before the ends are believed.
        since: the op version that this process had followed when it began the transactions, and
            this is the first end that it asks for; None where somebody else may have begun them.
    """

    ends: Ends
    is_doubtful: bool = False
    since: int | None = None


def asked_ends(sends: Sequence[PlannedSend], kinds: Sequence[ClaimKind]) -> AskedEnds:
    """Return the ends of sends that have no other end, each of its kind."""
    sinces = [send.since for send in sends if send.since is not None]
    since = min(sinces) if len(sinces) == len(sends) and sends else None
    ids = [send.transaction_id for send in sends]
    return AskedEnds(list(zip(ids, kinds, strict=True)), since=since)


def trusted_s(reserved_h: float) -> float:
    """Return the age below which retention cannot have removed a claim about a transaction."""
    return reserved_h * 3600 / 3


class EndCommits:
    """Ends that one producer group asks for. Not safe for several threads."""

    def __init__(
        self, store: Store, producer_group: str, clock: Clock, half: TableLog | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            store: the store to write to.
            producer_group: the stored name.
            clock: gives the time of claims.
            half: the log through which this process appended the halves that it ends; without it
                whoever asks for an end has just seen its halves.
        """
        self._half = half
        logs = store.tables.logs()
        self.reader = EndReader(logs)
        # A handle of its own: a look at the whole log would move it past commits of others.
        op = store.tables.op_log()
        self._claims = ClaimWriter(op, "producer", store.config.half_queues)
        self._passing = PassingClaims(op.table)
        self._group, self._clock = producer_group, clock
        self.signing = SigningKey(store.tables, producer_group, clock)
        self._forgotten = Forgotten(store)
        # Heads carry the session, and halves go to the same queue as their ends.
        self.session, self.queue_id = self._claims.session, self._claims.queue_id

    @property
    def followed(self) -> int | None:
        """The op version that was followed so far; what is begun now is claimed after it."""
        return self._passing.followed

    def commit(self, ends: Ends, *, operator_reason: str | None = None) -> list[Resolution]:
        """Claim the ends of one caller, as `commit_all` does."""
        return self.commit_all([AskedEnds(ends)], operator_reason=operator_reason)

    def commit_all(
        self, asked: Sequence[AskedEnds], *, operator_reason: str | None = None
    ) -> list[Resolution]:
        """Claim these ends: one commit, and one more for signed ends of resumed transactions.

        For an end that is doubtful or forgotten the settled log and the halves are read too:
        retention may have removed the claim that was first, and the op log alone would then show
        no other.

        Args:
            asked: transactions of this group, each with COMMIT or ROLLBACK.
            operator_reason: makes them claims of an operator, with this reason.

        Returns:
            Where each transaction stands after the commit; another end may have been first.

        Raises: as ClaimWriter.append_table and SigningKey.check; StorageError also where the claims
            are written but the look after them failed.
        """
        self.signing.check()
        ends = [end for caller in asked for end in caller.ends]
        rows = self._rows(ends, operator_reason)
        reached(FailPoint.END_READY)
        is_own = all(caller.since is not None for caller in asked)
        self._claims.append_table(rows, OWN_ENDS if is_own else "")
        reached(FailPoint.END_COMMITTED)
        resolutions = [
            there if there.is_kept else self._forgotten.explained(end[0], there)
            for end, there in zip(
                ends, self.reader.ends_after_claims(ends, self._doubtful(asked)), strict=True
            )
        ]
        if self.signing.is_needed:
            resolutions = self._of_resumed(ends, resolutions, operator_reason)
        reached(FailPoint.END_CONFIRMED)
        return resolutions

    def _rows(
        self, ends: Ends, operator_reason: str | None, lives: Sequence[int] | None = None
    ) -> pa.Table:
        return end_table(
            ends, producer_group=self._group, now_ms=self._clock.now_ms(),
            source=ClaimSource.OPERATOR if operator_reason else ClaimSource.PRODUCER,
            reason=operator_reason, lives=lives,
        )  # fmt: skip

    def _of_resumed(
        self, ends: Ends, resolutions: Sequence[Resolution], operator_reason: str | None
    ) -> list[Resolution]:
        """Claim the ends of resumed transactions once more, in the life that they have now.

        A signed end counts in its own life alone, and was claimed for the first one.
        """
        lives = {
            end[0]: there.life
            for end, there in zip(ends, resolutions, strict=True)
            if there.life and there.state is TransactionState.PENDING and there.doubt is None
        }
        if not lives:
            return list(resolutions)
        again = [end for end in ends if end[0] in lives]
        rows = self._rows(again, operator_reason, [lives[end[0]] for end in again])
        self._claims.append_table(rows)
        new = zip(again, self.reader.ends_after_claims(again, list(lives)), strict=True)
        by_end = dict(new)
        return [by_end.get(end, there) for end, there in zip(ends, resolutions, strict=True)]

    def _doubtful(self, asked: Sequence[AskedEnds]) -> list[str]:
        """Return the transactions whose claims in the op log alone prove nothing."""
        passing, claimed, unseen = self._passing, list[str](), list[str]()
        passing.note([end[0] for caller in asked if caller.since is None for end in caller.ends])
        is_followed = passing.followed == self._claims.last_version()
        keeps_halves = None if self._half is None else self._half.keeps_own_commits()
        for ends, _, asked_since in asked:
            since = asked_since if is_followed else None
            claimed += passing.claimed(ends, since)
            if keeps_halves is False or not passing.is_followed(since):
                unseen += [name for name, kind in ends if kind is ClaimKind.COMMIT]
        contested = self.reader.contested(claimed)
        # After the claims were read, so that those of the others were all there.
        forgotten = self._forgotten.among(claimed)
        doubtful = [end[0] for caller in asked if caller.is_doubtful for end in caller.ends]
        # The store may have gone back since, be it to the same op log.
        is_unsure = bool(unseen) and self._half is not None and not keeps_halves
        without_halves = self.reader.without_halves(unseen) if is_unsure else []
        return [*contested, *forgotten, *doubtful, *without_halves]
