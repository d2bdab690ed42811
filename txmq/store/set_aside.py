"""Transactions that are set aside, because messages or claims cannot be read (decision 0027).

Their claims are kept here and folded later, and their messages are published later. All others go
on. A transaction is registered here before the commit that leaves it out, so it is never lost.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NotRequired, Protocol, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import PayloadMissingError, SourceRestoredError
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.reasons import GIVE_UP
from txmq.store.op import CLAIMS, Judged, OpLog, is_after
from txmq.store.register import Register, SharedValue
from txmq.store.schemas import SIGNATURE
from txmq.store.shapes import LATER, Moment, json_text, number, sequence, shape_of

REGISTER = "set_aside"
# With more of them the store has lost whole tables, and to go on would do more harm than good.
MAX_TRANSACTIONS = 50_000
_TIMES = ("op_timestamp", "next_check_timestamp")
_PLAIN_TYPES = {**dict.fromkeys(_TIMES, pa.int64()), SIGNATURE: pa.string()}
_PLAIN_CLAIMS = pa.schema(
    [pa.field(column.name, _PLAIN_TYPES.get(column.name, column.type)) for column in CLAIMS]
)


class Registers(Protocol):
    """The registers of a store, and its op log, which judges claims."""

    def op_log(self) -> OpLog:
        """See `StoreTables.op_log`."""
        ...

    def register(self, name: str, form: Any = None, *, create: bool = False) -> Register:
        """See `StoreTables.register`."""
        ...


class WaitingClaim(TypedDict):
    """A claim as a row of JSON: times in microseconds, the signature in hexadecimal digits."""

    transaction_id: str
    ordinal: int
    kind: str
    source: str
    producer_group: str
    life: int | None
    check_times: int | None
    next_check_timestamp: int | None
    reason: str | None
    op_timestamp: int | None
    sequences: Sequence[int] | None
    signature: NotRequired[str | None]
    _commit_version: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """A transaction that waits.

    Attributes:
        from_version: its facts beyond this version of the op log may not be published yet.
        problem: what cannot be read, and why.
        since_ms: when it was set aside, by the publisher's clock; for display only.
        claims: the claims that are not folded yet, as rows of JSON.
        unknown: those among them that keys signed which this process does not know. The register
            keeps both as `claims`: another process may know these keys.
    """

    from_version: int
    problem: str
    since_ms: Moment
    claims: Annotated[tuple[str, ...], sequence(json_text(shape_of(WaitingClaim)))] = ()
    unknown: Annotated[tuple[str, ...], LATER] = ()

    @property
    def giver_up(self) -> str | None:
        """The producer group in the claim of an operator who gave the transaction up."""
        for claim in map(json.loads, self.claims):
            is_end = claim["kind"] == ClaimKind.ROLLBACK and claim["source"] == ClaimSource.OPERATOR
            if is_end and (claim["reason"] or "").startswith(GIVE_UP):
                return str(claim["producer_group"])
        return None

    @property
    def life(self) -> int:
        """The last life that a claim of an operator who waits opens; 0 where none does."""
        claims = map(json.loads, self.claims)
        resumes = (claim for claim in claims if claim["kind"] == ClaimKind.RESUME)
        return max((claim["life"] or 0 for claim in resumes), default=0)

    @property
    def producer_group(self) -> str | None:
        """The group of the first claim that waits; None where none does."""
        claims = map(json.loads, self.claims)
        return next((str(claim["producer_group"]) for claim in claims), None)


@dataclass(frozen=True, slots=True)
class SetAsideTransactions:
    """The value of the register.

    Attributes:
        transactions: those that wait, by id.
        late: those that waited once; their messages may lie behind later ones.
        count: of the changes; the settled log says which of them it has seen. None in the value of
            an earlier txmq, which kept none.
    """

    transactions: Mapping[str, SetAside] = field(default_factory=dict)
    late: tuple[str, ...] = ()
    count: Annotated[int | None, number, LATER] = None

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> SetAsideTransactions:
        """Invert `to_value`; an empty value is a store where nothing was set aside."""
        transactions = {
            name: SetAside(
                entry["from_version"], entry["problem"], entry["since_ms"], tuple(entry["claims"])
            )
            for name, entry in value.get("transactions", {}).items()
        }
        count = value.get("count") if value else 0
        return cls(transactions, tuple(value.get("late", ())), count)

    def judged_by(self, op: OpLog) -> SetAsideTransactions:
        """Drop the claims that the keys of their group have not signed: anybody may write them."""
        if not op.judges:
            return self
        judged = op.judge(waiting_claims(self.transactions.values()).counted, warns=True)
        claims, unknown = map(claim_rows, judged)
        transactions = {
            name: replace(entry, claims=claims.get(name, ()), unknown=unknown.get(name, ()))
            for name, entry in self.transactions.items()
        }
        return replace(self, transactions=transactions)

    def to_value(self) -> dict[str, Any]:
        """Return the value for the register."""
        transactions = {
            name: {
                "from_version": entry.from_version,
                "problem": entry.problem,
                "since_ms": entry.since_ms,
                "claims": [*entry.claims, *entry.unknown],
            }
            for name, entry in self.transactions.items()
        }
        value = {"transactions": transactions, "late": list(self.late)}
        return value if self.count is None else {**value, "count": self.count}

    def check_count(self, seen: int) -> SetAsideTransactions:
        """Return the value itself, if it is as new as the settled log says by its count.

        Raises: SourceRestoredError if the settled log has seen a later one.
        """
        if self.count is not None and self.count < seen:
            problem = f"has change {self.count}, but the settled log has seen change {seen}"
            harm = "what was set aside since would be forgotten"
            cure = "stop, then restore its newest copy, or the whole store from one copy"
            raise SourceRestoredError(f"state/{REGISTER}", f"{problem}: {harm}; {cure}")
        return self

    def counted(self, seen: int) -> SetAsideTransactions:
        """Count one more change; `seen` is the count that the settled log has seen."""
        return replace(self, count=max(self.count or 0, seen) + 1)

    def with_problems(
        self, problems: Mapping[str, str], from_version: int, now_ms: int
    ) -> SetAsideTransactions:
        """Add transactions; one that waits already keeps its place.

        Raises: PayloadMissingError for more than MAX_TRANSACTIONS.
        """
        entries = dict(self.transactions)
        for name, problem in problems.items():
            entry = entries.get(name, SetAside(from_version, problem, now_ms))
            first = min(entry.from_version, from_version)
            entries[name] = replace(entry, from_version=first)
        if len(entries) > MAX_TRANSACTIONS:
            problem = next(iter(problems.values()))
            count = f"{len(entries):,} transactions cannot be read, the last because of {problem}"
            limit = f"the limit is {MAX_TRANSACTIONS:,}; restore the files, nothing is skipped"
            raise PayloadMissingError("half", f"{count}; {limit}")
        return replace(self, transactions=entries)

    def with_claims(
        self, waiting: Judged, problems: Mapping[str, str], from_version: int, now_ms: int
    ) -> SetAsideTransactions:
        """Add claims that wait: of these transactions, and of those that wait already."""
        claims, unknown = map(claim_rows, waiting)
        names = [name for name in {**claims, **unknown} if name not in self.transactions]
        new = {name: problems.get(name, "") for name in names}
        value = self.with_problems(new, from_version, now_ms)
        changed = {
            name: replace(
                entry,
                claims=_united(entry.claims, claims.get(name, ())),
                unknown=_united(entry.unknown, unknown.get(name, ())),
            )
            for name, entry in value.transactions.items()
            if name in claims or name in unknown
        }
        return replace(value, transactions={**value.transactions, **changed})

    def without(self, done: Mapping[str, SetAside]) -> SetAsideTransactions:
        """Remove those that are done, but for any that changed meanwhile."""
        gone = {name for name, entry in done.items() if self.transactions.get(name) == entry}
        left = {name: entry for name, entry in self.transactions.items() if name not in gone}
        late = dict.fromkeys([*self.late, *sorted(gone)])
        return replace(self, transactions=left, late=tuple(late)[-MAX_TRANSACTIONS:])


NOTHING_SET_ASIDE = SetAsideTransactions(count=0)


def set_aside_register(
    tables: Registers, *, create: bool = False
) -> SharedValue[SetAsideTransactions]:
    """Return the register as a shared value; `create` makes its table (one commit) if needed."""
    op = tables.op_log()
    return SharedValue(
        tables.register(REGISTER, SetAsideTransactions, create=create),
        f"state/{REGISTER}",
        lambda value: SetAsideTransactions.from_value(value).judged_by(op),
        SetAsideTransactions.to_value,
    )


def read_set_aside(tables: Registers, seen: int = 0) -> SetAsideTransactions:
    """Read the newest value; it is empty if nothing was ever set aside; 0 commits.

    `seen` is the count that the settled log has seen. Raises: SourceRestoredError if the value is
    older.
    """
    register = set_aside_register(tables)
    value = register.read() if register.exists else NOTHING_SET_ASIDE
    return value.check_count(seen)


def claims_set_aside(tables: Registers, seen: int = 0) -> Judged:
    """Read the claims that wait; 0 commits. `seen`, raises: as `read_set_aside`."""
    return waiting_claims(read_set_aside(tables, seen).transactions.values())


def claim_rows(claims: pa.Table) -> dict[str, tuple[str, ...]]:
    """Return claims as rows of JSON, by transaction, in the order of their commits."""
    plain = claims.select(CLAIMS.names)
    for name in _TIMES:
        column = plain[name].cast(pa.int64())
        plain = plain.set_column(plain.schema.get_field_index(name), name, column)
    rows: dict[str, list[str]] = {}
    for row in plain.to_pylist():
        row[SIGNATURE] = None if row[SIGNATURE] is None else row[SIGNATURE].hex()
        rows.setdefault(row["transaction_id"], []).append(json.dumps(row, sort_keys=True))
    return {name: tuple(texts) for name, texts in rows.items()}


def waiting_claims(entries: Collection[SetAside]) -> Judged:
    """Return all claims of these transactions, as SIGNED_COLUMNS and `_commit_version`."""
    return Judged(
        _claims_of_rows([text for entry in entries for text in entry.claims]),
        _claims_of_rows([text for entry in entries for text in entry.unknown]),
    )


def _claims_of_rows(texts: Sequence[str]) -> pa.Table:
    """Invert `claim_rows`."""
    plain = pa.Table.from_pylist(list(map(json.loads, texts)), schema=_PLAIN_CLAIMS)
    signatures = [text and bytes.fromhex(text) for text in plain[SIGNATURE].to_pylist()]
    place = plain.schema.get_field_index(SIGNATURE)
    return plain.set_column(place, SIGNATURE, pa.array(signatures, pa.binary())).cast(CLAIMS)


def after_their_facts(claims: pa.Table, facts: pa.Table) -> pa.Table:
    """Return the claims that come after the last fact of their transaction; others were folded."""
    return claims.filter(pc.fill_null(is_after(claims, facts), True))  # noqa: FBT003


def _united(claims: Collection[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*claims, *more]))
