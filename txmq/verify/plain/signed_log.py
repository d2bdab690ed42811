"""The op log without the claims that their group's key has not signed (decision 0050)."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import ConfigError
from txmq.verify.plain.tables import PinnedTable

SIGNED = (
    "transaction_id", "kind", "sequences", "source", "producer_group", "life", "check_times",
    "next_check_timestamp", "reason", "op_timestamp",
)  # fmt: skip
SIGNATURE = "signature"


def checked_keys(keys: object) -> Mapping[str, Sequence[str]]:
    """The keys of groups as they came. Raises: ConfigError if a text stands for a list of keys."""
    entries = keys.items() if isinstance(keys, Mapping) else [(None, None)]
    for group, of_group in entries:
        is_list = isinstance(of_group, list | tuple) and all(isinstance(k, str) for k in of_group)
        if not isinstance(group, str) or not is_list:
            # Nothing of a value is shown: it may be the secret.
            raise ConfigError(["claim_keys must map a producer group to a list of keys"])
    return cast("Mapping[str, Sequence[str]]", keys)


class SignedLog(PinnedTable):
    """An op log whose rows are the claims that count."""

    def __init__(
        self, location: str, options: Mapping[str, str], keys: Mapping[str, Sequence[str]]
    ) -> None:
        """Open it; `keys` has the keys of each group whose claims are signed."""
        super().__init__(location, options)
        self._keys = keys
        # A store of an earlier txmq has no such column.
        self._types.setdefault(SIGNATURE, pa.binary())

    def _file(
        self, path: str, partition: Mapping[str, Any], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        if not self._keys:
            yield from super()._file(path, partition, columns)
            return
        names = [*dict.fromkeys([*columns, *SIGNED, SIGNATURE])]
        for batch in super()._file(path, partition, names):
            mask = pa.array([self._counts(claim) for claim in _claims(batch)], pa.bool_())
            yield batch.filter(mask).select(list(columns))

    def _counts(self, claim: Mapping[str, Any]) -> bool:
        keys = self._keys.get(claim["producer_group"])
        if keys is None:
            return True
        text = json.dumps([claim[name] for name in SIGNED]).encode()
        made = (hmac.new(key.encode(), text, hashlib.sha256).digest() for key in keys)
        return any(hmac.compare_digest(one, claim[SIGNATURE] or b"") for one in made)


def _claims(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The claims as plain values; times in microseconds, text that is no UTF-8 as it is kept."""
    plain = pa.table({name: _plain(batch[name]) for name in (*SIGNED, SIGNATURE)})
    for row in plain.to_pylist():
        signature = row.pop(SIGNATURE)
        texts = {
            name: value.decode(errors="surrogateescape") if isinstance(value, bytes) else value
            for name, value in row.items()
        }
        yield {**texts, SIGNATURE: signature}


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return pc.cast(column, pa.int64())
    return pc.cast(column, pa.binary()) if pa.types.is_string(column.type) else column
