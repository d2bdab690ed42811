"""A listener that asks a service over HTTP: one POST with a batch of heads, answers by id."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from txmq.errors import EnvironmentProblemError, ListenerError, step_for_extra
from txmq.listeners.protocol import (
    DEFAULT_HEAD_COLUMNS,
    MAX_REASON_CHARACTERS,
    OUTCOMES,
    outcome_table,
)

# Of one response, and of all responses of one call after their texts are cut.
MAX_ANSWER_BYTES = 16 * 1024 * 1024
MAX_ANSWERS_BYTES = 16 * MAX_ANSWER_BYTES
# Of the heads of one POST in memory; as JSON with base64 they are about twice as large.
MAX_POST_BYTES = 8 * 1024 * 1024
CHUNK_BYTES = 65_536
RETRIED_STATUSES = (429, 502, 503, 504)
OK = 200


class HttpListener:
    """Asks a service that knows the local transactions.

    The service is asked by POST, with at most `batch_size` heads and MAX_POST_BYTES each:
    `{"heads": [{"transaction_id": …, "keys": …, …}, …]}`. Times are ISO 8601. Bodies are sent only
    if `head_columns` names `body`, in base64. The service answers with status 200 and
    `{"answers": [{"transaction_id": …, "state": "COMMIT" | "ROLLBACK" | "UNKNOWN"}, …]}`; each
    answer may have a `reason`. An id without an answer is UNKNOWN. There is no fence: what the
    service answers holds, also if a local transaction is still on its way.

    Proxies and .netrc of the environment are ignored, and redirects are not followed.

    Args:
        url: http or https, without secrets: it stands in settings files and in errors.
        header: name of the header that carries the secret.
        header_variable: the environment variable that holds the value of the header. It is read at
            each call and is in no setting, table, log or error.
        head_columns: the columns of a head to send, see HalfMessage.
        batch_size: heads in one POST.
        timeout_s: of each try, to connect and between two pieces of the response.
        retries: how often a POST is repeated if it got no response, or 429, 502, 503 or 504. So the
            service may get a question more than once.

    Commits: 0.

    Example:
        >>> HttpListener("https://orders.example/check", header_variable="ORDERS_TOKEN")
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
        """Send nothing.

        Raises:
            ListenerError: the URL is not http(s), or holds a password.
            EnvironmentProblemError: requests is not installed.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
            problem = "url must be http(s)://host…, without a password; use header_variable"
            raise ListenerError(type(self).__name__, problem)
        self._url, self._header, self._variable = url, header, header_variable
        self._batch_size, self._timeout_s = batch_size, timeout_s
        self.head_columns = tuple(head_columns)
        self._session = _session(retries)

    def check_local_transactions_arrow(self, heads: pa.Table) -> pa.Table:
        """Ask the service about all heads, one POST for each `batch_size` of them or fewer.

        Returns: transaction_id, state and reason, one row for each answer of the service.

        Raises:
            ListenerError: another status than 200, no `answers`, a response above
                MAX_ANSWER_BYTES, all of them above MAX_ANSWERS_BYTES, or a header variable that
                is not set.
            requests.RequestException: the service cannot be reached, or is too slow.
        """
        answers = [OUTCOMES.empty_table()]
        size_bytes = 0
        for batch in parts_of(heads, self._batch_size, MAX_POST_BYTES):
            answers.append(self._post(batch))
            size_bytes += answers[-1].nbytes
            if size_bytes > MAX_ANSWERS_BYTES:
                problem = f"the service answered more than {MAX_ANSWERS_BYTES:,} bytes in one call"
                raise self._problem(problem)
        return pa.concat_tables(answers)

    def _post(self, heads: pa.Table) -> pa.Table:
        body = {"heads": [_json_head(row) for row in heads.to_pylist()]}
        # A redirect would carry the secret to another place.
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
        if not value.isprintable() or value != value.strip():
            # The library would show the value in its error.
            problem = f"the environment variable {self._variable} holds text that no header carries"
            raise self._problem(problem)
        return {self._header: value}

    def _answers(self, content: bytes | None) -> pa.Table:
        if content is None:
            raise self._problem(f"the service answered more than {MAX_ANSWER_BYTES:,} bytes")
        try:
            answers = json.loads(content)["answers"]
            rows = [_row(answer) for answer in answers]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            problem = 'the service answered something else than {"answers": [{…}, …]}'
            raise self._problem(problem) from None
        return outcome_table(rows)

    def _problem(self, problem: str) -> ListenerError:
        return ListenerError(type(self).__name__, problem)


def parts_of(heads: pa.Table, max_rows: int, max_bytes: int) -> Iterator[pa.Table]:
    """Cut the heads into parts of bounded rows and bytes; a larger head is a part of its own."""
    first = 0
    while first < heads.num_rows:
        rows = min(max_rows, heads.num_rows - first)
        while rows > 1 and heads.slice(first, rows).nbytes > max_bytes:
            rows //= 2
        yield heads.slice(first, rows)
        first += rows


def _session(retries: int) -> Any:
    try:
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry
    except ImportError as error:
        problem = "requests is not installed, and HttpListener needs it"
        raise EnvironmentProblemError(problem, step_for_extra("http")) from error
    session = requests.Session()
    retry = Retry(
        total=retries, backoff_factor=0.1, status_forcelist=RETRIED_STATUSES,
        allowed_methods=None, raise_on_status=False,
    )  # fmt: skip
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    # Ignore proxies and .netrc of the environment.
    session.trust_env = False
    return session


def _bounded(response: Any) -> bytes | None:
    """Read the content of a response; None if it is above MAX_ANSWER_BYTES."""
    content = bytearray()
    for chunk in response.iter_content(CHUNK_BYTES):
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            return None
    return bytes(content)


def _json_head(head: Mapping[str, Any]) -> dict[str, Any]:
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


def _row(answer: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    transaction_id, state, reason = (_text(answer.get(name)) for name in OUTCOMES.names)
    return transaction_id, _cut(state), _cut(reason)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _cut(text: str | None) -> str | None:
    """Cut states and reasons to a length; an id is not cut, or it could become another one."""
    return None if text is None else text[:MAX_REASON_CHARACTERS]
