"""Signatures of claims: who wrote them has the key of their group (decision 0050).

A signature is an HMAC-SHA256 over all that a claim says. It is valid in any place of the log: a
claim that somebody copies is the same claim, and a claim counts once.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.schemas import OP
from txmq.errors import ConfigError, shown
from txmq.store.config import Config
from txmq.store.config_faults import ACCEPT_UNSIGNED, VARIABLE

logger = logging.getLogger(__name__)

SIGNATURE = "signature"
KEY_CHARACTERS_MIN = 32
# Their order is part of the signature.
_SIGNED = (
    "transaction_id", "kind", "sequences", "source", "producer_group", "life", "check_times",
    "next_check_timestamp", "reason", "op_timestamp",
)  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class GroupKeys:
    """The keys of one producer group: the first one signs, each of them is believed."""

    keys: tuple[bytes, ...]
    accepts_unsigned: bool

    def signature(self, text: bytes) -> bytes:
        """The signature by the first key."""
        return hmac.digest(self.keys[0], text, "sha256")

    def trusts(self, text: bytes, signature: bytes | None) -> bool:
        """Whether one of the keys made this signature, or none is needed yet."""
        return self.accepts_unsigned or any(
            hmac.compare_digest(hmac.digest(key, text, "sha256"), signature or b"")
            for key in self.keys
        )


class ClaimKeys:
    """The keys of the producer groups whose claims are signed."""

    def __init__(self, by_group: Mapping[str, GroupKeys]) -> None:
        """Keep the keys by the stored name of their group."""
        self._by_group = by_group
        self._groups = pa.array(list(by_group), pa.string())

    @classmethod
    def of(cls, config: Config, environ: Mapping[str, str] | None = None) -> ClaimKeys:
        """The keys that the settings name, from the variables that hold them.

        Raises: ConfigError where a variable is not set or holds a key that is too short.
        """
        variables = os.environ if environ is None else environ
        faults: list[str] = []
        by_group = {
            group: _keys_of(group, entry, variables, faults)
            for group, entry in config.claim_keys.items()
        }
        if faults:
            raise ConfigError(faults)
        return cls(by_group)

    def required(self) -> dict[str, list[str]]:
        """The keys of the groups whose unsigned claims do not count."""
        return {
            group: [key.decode() for key in keys.keys]
            for group, keys in self._by_group.items()
            if not keys.accepts_unsigned
        }

    def __bool__(self) -> bool:
        """Whether any group has keys."""
        return bool(self._by_group)

    def signed(self, rows: pa.Table) -> pa.Table:
        """Claims, as OP, with the signatures of those whose group has a key."""
        if not self._of_groups(rows):
            return rows
        signatures = [
            None if keys is None else keys.signature(text) for keys, text, _ in self._each(rows)
        ]
        place, field = rows.schema.get_field_index(SIGNATURE), OP.columns.field(SIGNATURE)
        return rows.set_column(place, field, pa.array(signatures, field.type))

    def trusted(self, rows: pa.Table, *, warns: bool = False) -> pa.Table:
        """The claims that their group's key signed, and those of groups without a key.

        Args:
            rows: the columns of a signature and SIGNATURE.
            warns: whether a warning counts the others.
        """
        if not self._of_groups(rows):
            return rows
        is_trusted = [
            keys is None or keys.trusts(text, signature)
            for keys, text, signature in self._each(rows)
        ]
        mask = pa.array(is_trusted, pa.bool_())
        if warns:
            _warn_of(rows.filter(pc.invert(mask)))
        return rows.filter(mask)

    def _of_groups(self, rows: pa.Table) -> bool:
        """Whether any claim is of a group with keys; else nothing is computed."""
        return bool(self) and bool(
            pc.any(pc.is_in(rows["producer_group"], value_set=self._groups)).as_py()
        )

    def _each(self, rows: pa.Table) -> Iterator[tuple[GroupKeys | None, bytes, bytes | None]]:
        """Of each claim its keys, the text that is signed, and its signature."""
        places = pc.index_in(rows["producer_group"], value_set=self._groups)
        keys = list(self._by_group.values())
        # Nothing is computed of claims in the name of other groups.
        texts = signed_texts(rows.filter(pc.is_valid(places)))
        for place, signature in zip(places.to_pylist(), rows[SIGNATURE].to_pylist(), strict=True):
            yield (None, b"", signature) if place is None else (keys[place], next(texts), signature)


def required_keys(config: Config) -> dict[str, list[str]]:
    """As `ClaimKeys.required`, for the settings of a process. Raises: as `ClaimKeys.of`."""
    return ClaimKeys.of(config).required()


def signed_texts(rows: pa.Table) -> Iterator[bytes]:
    """What signatures are made of: a claim's fields in their order, times in microseconds."""
    plain = pa.table({name: _plain(rows[name]) for name in _SIGNED})
    for row in plain.to_pylist():
        yield json.dumps([_text(row[name]) for name in _SIGNED]).encode()


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as numbers and texts as bytes, which may be no UTF-8."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


def _text(value: object) -> object:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


def _keys_of(
    group: str, entry: str | Mapping[str, Any], variables: Mapping[str, str], faults: list[str]
) -> GroupKeys:
    settings = {VARIABLE: entry} if isinstance(entry, str) else entry
    variable = str(settings[VARIABLE])
    keys = tuple(key.encode() for key in variables.get(variable, "").split())
    if not keys:
        faults.append(f"claim_keys: {shown(group)} needs the variable {variable}; set it")
    elif min(map(len, keys)) < KEY_CHARACTERS_MIN:
        problem = f"a key in {variable} is shorter than {KEY_CHARACTERS_MIN} characters"
        faults.append(f"claim_keys: {shown(group)}: {problem}; make one by `openssl rand -hex 32`")
    return GroupKeys(keys, bool(settings.get(ACCEPT_UNSIGNED, False)))


def _warn_of(refused: pa.Table) -> None:
    if refused.num_rows:
        first = refused.slice(0, 1).select(["transaction_id", "producer_group"]).to_pylist()[0]
        logger.warning(
            "%d claims have no valid signature of their group and do not count; the first is "
            "about transaction %s in the name of group %s",
            refused.num_rows, shown(first["transaction_id"]), shown(first["producer_group"]),
        )  # fmt: skip
