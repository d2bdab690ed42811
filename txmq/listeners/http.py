"""A listener that asks a service over HTTP: one POST with a batch of heads, answers by id."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from txmq.errors import EnvironmentProblemError, ListenerError
from txmq.listeners.outcomes import OUTCOMES
from txmq.listeners.protocol import DEFAULT_HEAD_COLUMNS

MAX_ANSWER_BYTES = 16 * 1024 * 1024
CHUNK_BYTES = 65_536
RETRIED_STATUSES = (429, 502, 503, 504)
OK = 200


class HttpListener:
    """Answers of a service that knows the local transactions.

    Sends `{"heads": [{"transaction_id": …, "keys": …, …}, …]}`, times as ISO 8601, bodies (only
    where `head_columns` names them) in base64; expects
    `{"answers": [{"transaction_id": …, "state": "COMMIT" | "ROLLBACK" | "UNKNOWN"}, …]}`, each
    with a `reason` if wanted. An id that is missing in the answers is UNKNOWN.

    Args:
        url: http or https, without secrets.
        header: name of the header that carries the secret.
        header_variable: the environment variable that has its value; read at each call, and never
            written anywhere.
        batch_size: heads in one POST.
        timeout_s: for each try, to connect and between two pieces of the answer.
        retries: of a POST that got no answer, or 429, 502, 503, 504; questions may be repeated.
    """

    def __init__(  # noqa: PLR0913 - settings of a user's, each by its name
        self,
        url: str,
        *,
        header: str = "Authorization",
        header_variable: str | None = None,
        head_columns: Sequence[str] = DEFAULT_HEAD_COLUMNS,
        batch_size: int = 1_000,
        timeout_s: float = 2.0,
        retries: int = 2,
    ) -> None:
        """Send nothing yet. Raises: ListenerError; EnvironmentProblemError without requests."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
            problem = "url must be http(s)://host…, without a password; use header_variable"
            raise ListenerError(type(self).__name__, problem)
        self._url, self._header, self._variable = url, header, header_variable
        self._batch_size, self._timeout_s = batch_size, timeout_s
        self.head_columns = tuple(head_columns)
        self._session = _session(retries)

    def check_local_transactions_arrow(self, heads: pa.Table) -> pa.Table:
        """OUTCOMES of all heads. Raises: ListenerError, requests' own errors."""
        parts = [
            self._post(heads.slice(first, self._batch_size))
            for first in range(0, heads.num_rows, self._batch_size)
        ]
        return pa.concat_tables([OUTCOMES.empty_table(), *parts])

    def _post(self, heads: pa.Table) -> pa.Table:
        body = {"heads": [_json_head(row) for row in heads.to_pylist()]}
        # A redirect would carry the secret elsewhere.
        with self._session.post(
            self._url, json=body, headers=self._headers(), timeout=self._timeout_s,
            allow_redirects=False, stream=True,
        ) as response:  # fmt: skip
            if response.status_code != OK:
                raise self._problem(f"the service answered with HTTP {response.status_code}")
            return self._answers(_bounded(response))

    def _headers(self) -> dict[str, str]:
        if self._variable is None:
            return {}
        value = os.environ.get(self._variable)
        if value is None:
            raise self._problem(f"the environment variable {self._variable} is not set")
        return {self._header: value}

    def _answers(self, content: bytes | None) -> pa.Table:
        if content is None:
            raise self._problem(f"the service answered more than {MAX_ANSWER_BYTES:,} bytes")
        try:
            answers = json.loads(content)["answers"]
            rows = [[_text(answer.get(name)) for answer in answers] for name in OUTCOMES.names]
        except (ValueError, TypeError, KeyError, AttributeError):
            said = 'the service answered something else than {"answers": [{…}, …]}'
            raise self._problem(said) from None
        return pa.table([pa.array(column, pa.string()) for column in rows], OUTCOMES)

    def _problem(self, problem: str) -> ListenerError:
        return ListenerError(type(self).__name__, problem)


def _session(retries: int) -> Any:
    try:
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry
    except ImportError as error:
        problem = "requests is not installed, and HttpListener needs it"
        raise EnvironmentProblemError(problem, "pip install 'txmq[http]'") from error
    session = requests.Session()
    retry = Retry(
        total=retries, backoff_factor=0.1, status_forcelist=RETRIED_STATUSES,
        allowed_methods=None, raise_on_status=False,
    )  # fmt: skip
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    # Neither proxies nor .netrc of the machine's environment.
    session.trust_env = False
    return session


def _bounded(response: Any) -> bytes | None:
    content = bytearray()
    for chunk in response.iter_content(CHUNK_BYTES):
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            return None
    return bytes(content)


def _json_head(head: Mapping[str, Any]) -> dict[str, Any]:
    """A head as JSON has it."""
    return {name: _json_value(name, value) for name, value in head.items()}


def _json_value(name: str, value: Any) -> Any:
    match name:
        case "body":
            return base64.b64encode(value or b"").decode("ascii")
        case "properties":
            return dict(value or ())
        case "born_timestamp":
            return value.isoformat()
        case _:
            return value


def _text(value: object) -> str | None:
    return None if value is None else str(value)
