"""Storage options that are lent: when they are renewed, what goes on where they cannot be."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake.exceptions import DeltaError

from txmq.delta import credentials
from txmq.delta.credentials import (
    LentOptions,
    Loan,
    Provider,
    Renewable,
    options_now,
    storage_options_of,
    with_options,
)
from txmq.delta.failures import failed_read, in_one_line
from txmq.errors import (
    AccessDeniedError,
    ConfigError,
    CredentialsExpiredError,
    EnvironmentProblemError,
    StorageUnavailableError,
    TxmqError,
)
from txmq.listeners.delta import DeltaListener

PLACE = "s3://lake/store"
HOUR_MS = 3_600_000
GONE = OSError(
    "Generic S3 error: Error performing GET http://s3/lake/store/a in 5ms - Server returned "
    "non-2xx status code: 400 Bad Request: <Error><Code>ExpiredToken</Code>"
    "<Token-0>lent-token</Token-0></Error>"
)
BARE_HEAD = OSError(
    "Generic S3 error: Error performing HEAD http://s3/lake/store/a in 7ms - Server returned "
    "non-2xx status code: 400 Bad Request: "
)


class Lender:
    """Lends numbered tokens for an hour, on a clock that the test sets."""

    def __init__(self) -> None:
        self.now_ms, self.life_ms, self.asked = 0, HOUR_MS, 0
        self.failure: TxmqError | None = None

    def lend(self, *_: object) -> Loan:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return Loan({"aws_session_token": f"lent-token-{self.asked}"}, self.life_ms)

    def options(self, given: Mapping[str, str] | None = None) -> LentOptions:
        return LentOptions(
            PLACE, given or {}, Provider.UNITY_CATALOG, lend=self.lend, now_ms=lambda: self.now_ms
        )


@pytest.fixture
def lender() -> Lender:
    return Lender()


def token(options: LentOptions) -> int:
    """The number of those of now."""
    return int(options["aws_session_token"].removeprefix("lent-token-"))


UNAVAILABLE = StorageUnavailableError(PLACE, "no answer")


def test_options_are_renewed_before_their_end_and_the_same_until_then(lender: Lender) -> None:
    options = lender.options({"aws_region": "eu-central-1"})
    first = options.current()
    lender.now_ms = HOUR_MS - credentials.RENEWED_BEFORE_MS - 1

    assert first == {"aws_region": "eu-central-1", "aws_session_token": "lent-token-1"}
    assert options.current() is first
    lender.now_ms += 1
    assert token(options) == 2
    assert lender.asked == 2


def test_short_loans_are_renewed_in_their_last_quarter(lender: Lender) -> None:
    lender.life_ms = 4_000
    options = lender.options()
    options.current()
    lender.now_ms = 2_999
    assert token(options) == 1
    lender.now_ms = 3_000
    assert token(options) == 2


def test_what_has_ended_when_it_is_lent_is_asked_for_once_a_second(lender: Lender) -> None:
    lender.life_ms = -HOUR_MS
    options = lender.options()

    assert options.current() is options.current()
    assert lender.asked == 1


def test_old_options_serve_while_the_catalog_is_down_and_it_is_asked_after_pauses(
    lender: Lender, caplog: pytest.LogCaptureFixture
) -> None:
    options = lender.options()
    first = options.current()
    lender.now_ms, lender.failure = HOUR_MS - credentials.RENEWED_BEFORE_MS, UNAVAILABLE

    assert [options.current() is first for _ in range(3)] == [True] * 3
    assert lender.asked == 2
    assert "those that are in use hold for now" in caplog.text
    lender.now_ms += credentials.PAUSE_MS
    lender.failure = None
    assert token(options) == 3


def test_where_nothing_holds_any_more_the_failure_is_told_and_asking_again_helps(
    lender: Lender,
) -> None:
    options = lender.options()
    options.current()
    lender.now_ms, lender.failure = HOUR_MS, UNAVAILABLE

    for _ in range(2):
        with pytest.raises(StorageUnavailableError):
            options.current()
    lender.failure = None
    assert token(options) == 4


def test_one_thread_renews_and_nobody_waits_while_the_old_ones_hold(lender: Lender) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> Loan:
        if lender.asked:
            began.set()
            assert go_on.wait(60)
        return lender.lend()

    options = LentOptions(
        PLACE, {}, Provider.UNITY_CATALOG, lend=slow, now_ms=lambda: lender.now_ms
    )
    first = options.current()
    lender.now_ms = HOUR_MS - 1
    renewing = threading.Thread(target=options.current)
    renewing.start()
    assert began.wait(60)

    assert options.current() is first
    go_on.set()
    renewing.join()
    assert token(options) == 2


def test_threads_that_find_nothing_share_one_loan(lender: Lender) -> None:
    options = lender.options()
    threads = [threading.Thread(target=options.current) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert lender.asked == 1


# --- what is opened with them ---------------------------------------------------------------------


@pytest.mark.parametrize("error", [GONE, BARE_HEAD, DeltaError(str(GONE))])
def test_expired_options_are_asked_for_anew_and_the_call_made_once_more(
    lender: Lender, error: Exception
) -> None:
    seen: list[str] = []

    def call(options: dict[str, str] | None) -> str:
        assert options is not None
        seen.append(options["aws_session_token"])
        if len(seen) == 1:
            raise error
        return "read"

    assert with_options(lender.options(), call) == "read"
    assert seen == ["lent-token-1", "lent-token-2"]


def test_storage_that_always_says_expired_is_asked_twice_and_no_more(lender: Lender) -> None:
    def call(_: str) -> None:
        raise GONE

    handle = Renewable(lender.options(), lambda options: options["aws_session_token"])
    with pytest.raises(OSError, match="ExpiredToken"):
        handle.use(call)

    assert lender.asked == 2


def test_handle_is_opened_anew_for_new_options_only(lender: Lender) -> None:
    opened: list[str] = []

    def open_with(options: Mapping[str, str]) -> str:
        opened.append(options["aws_session_token"])
        return opened[-1]

    handle = Renewable(lender.options(), open_with)
    assert [handle.use(str.upper) for _ in range(2)] == ["LENT-TOKEN-1"] * 2
    lender.now_ms = HOUR_MS
    assert handle.use(str.upper) == "LENT-TOKEN-2"
    assert opened == ["lent-token-1", "lent-token-2"]


def test_other_errors_and_options_of_ones_own_are_passed_on_at_once(lender: Lender) -> None:
    def missing(_: object) -> None:
        raise FileNotFoundError("a")

    def expired(_: object) -> None:
        raise GONE

    with pytest.raises(FileNotFoundError):
        with_options(lender.options(), missing)
    with pytest.raises(OSError, match="ExpiredToken"):
        with_options({"aws_session_token": "mine"}, expired)
    assert lender.asked == 1


@pytest.mark.parametrize("error", [GONE, BARE_HEAD])
def test_expired_credentials_are_an_error_of_their_own_without_their_token(
    error: Exception,
) -> None:
    told = failed_read("op", error)

    assert type(told) is CredentialsExpiredError
    assert isinstance(told, AccessDeniedError)
    assert told.retryable
    assert "expired" in str(told)
    assert "lent-token" not in f"{told} {in_one_line(error)}"


# --- where they come from -------------------------------------------------------------------------


def test_provider_is_named_by_an_option_or_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {credentials.KEY: "unity-catalog", "aws_region": "r"}
    by_option = storage_options_of(PLACE, named)

    assert isinstance(by_option, LentOptions)
    assert storage_options_of(PLACE, by_option) is by_option
    # A transaction opens the user's table anew: it must not cost a loan.
    assert storage_options_of(PLACE, named) is by_option
    assert storage_options_of(PLACE, {"aws_region": "r"}) == {"aws_region": "r"}
    assert storage_options_of("/lake/store", named) == {"aws_region": "r"}
    monkeypatch.setenv(credentials.VARIABLE, "unity-catalog-read")
    by_variable = storage_options_of(PLACE, None)
    assert repr(by_variable) == f"LentOptions({PLACE!r}, 'unity-catalog-read')"
    assert storage_options_of(PLACE, {credentials.KEY: "", "aws_region": "r"}) == {
        "aws_region": "r"
    }


def test_options_of_a_store_given_to_another_table_ask_for_that_table(lender: Lender) -> None:
    of_store = lender.options({"aws_region": "r"})

    assert storage_options_of(f"{PLACE}/half", of_store) is of_store
    for other in ("s3://lake/store-2", "s3://lake", "s3://lake/orders"):
        others = storage_options_of(other, of_store)
        assert repr(others) == f"LentOptions({other!r}, 'unity-catalog')"
        assert DeltaListener(other, storage_options=of_store).storage_options is others
    assert lender.asked == 0


def test_provider_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="must be one of unity-catalog, unity-catalog-read, not"):
        storage_options_of(PLACE, {credentials.KEY: "vault"})


def test_no_secret_is_shown_or_sent_to_another_process(lender: Lender) -> None:
    options = lender.options({"aws_region": "r"})
    options.current()

    assert "lent-token" not in f"{options!r} {options} {vars(options)} {pickle.dumps(options)!r}"
    assert bool(options)
    copy = pickle.loads(pickle.dumps(options))  # noqa: S301 - of this process
    assert repr(copy) == repr(options)


# --- what the catalog answers ---------------------------------------------------------------------


class Answers:
    """In the place of `requests` and `databricks.sdk.core`."""

    RequestException = OSError

    def __init__(self, status: int, content: Any, **headers: str) -> None:
        self.answer = SimpleNamespace(
            status_code=status, headers=headers, json=lambda: _checked(content)
        )

    def post(self, url: str, **_: Any) -> SimpleNamespace:
        if self.answer.status_code == 0:
            raise OSError("token=secret")
        assert url == f"https://dbc.example{credentials.PATH}"
        return self.answer

    @staticmethod
    def Config() -> SimpleNamespace:  # noqa: N802 - the SDK's
        return SimpleNamespace(host="https://dbc.example/", authenticate=dict)


def _checked(content: Any) -> Any:
    if isinstance(content, Exception):
        raise content
    return content


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Loan]:
    def ask(status: int, content: Any, **headers: str) -> Loan:
        answers = Answers(status, content, **headers)
        monkeypatch.setattr(credentials, "_package", lambda _: answers)
        return credentials.UnityCatalog().lend(PLACE, Provider.UNITY_CATALOG)

    return ask


KEYS = {"access_key_id": "a", "secret_access_key": "b", "session_token": "c"}
S3_OPTIONS = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_session_token": "c"}


@pytest.mark.parametrize(
    ("part", "options"),
    [
        ({"aws_temp_credentials": {**KEYS, "access_point": ""}}, S3_OPTIONS),
        ({"r2_temp_credentials": KEYS, "aws_temp_credentials": None}, S3_OPTIONS),
        ({"azure_user_delegation_sas": {"sas_token": "s"}}, {"azure_storage_sas_token": "s"}),
        ({"azure_aad": {"aad_token": "t"}}, {"azure_storage_token": "t"}),
    ],
)
def test_answer_of_each_cloud_becomes_options(
    asked: Callable[..., Loan], part: dict[str, Any], options: dict[str, str]
) -> None:
    date = "Thu, 01 Jan 1970 01:00:00 GMT"
    loan = asked(200, {**part, "expiration_time": 2 * HOUR_MS}, Date=date)

    # By the catalog's clock, whatever this machine's says.
    assert loan == Loan(options, HOUR_MS - credentials.SECOND_MS)


@pytest.mark.parametrize(
    ("status", "content", "kind", "said"),
    [
        (403, {"message": "no grant"}, AccessDeniedError, "403 .*no grant.*EXTERNAL USE LOCATION"),
        (401, ValueError("no JSON"), AccessDeniedError, "it answered 401"),
        (429, {}, StorageUnavailableError, "it answered 429"),
        (503, "x", StorageUnavailableError, "it answered 503"),
        (302, {}, StorageUnavailableError, "it answered 302"),
        (0, {}, StorageUnavailableError, r"no answer \(OSError\)"),
        (200, {"expiration_time": 1}, AccessDeniedError, "has none that delta-rs takes"),
        (200, {"gcp_oauth_token": {"oauth_token": "g"}, "expiration_time": 1}, AccessDeniedError,
         "takes no token of Google's"),
        (200, {"aws_temp_credentials": KEYS}, StorageUnavailableError, "is it a Unity Catalog"),
        (200, ["secret"], StorageUnavailableError, "is it a Unity Catalog"),
        (200, ValueError("secret"), StorageUnavailableError, "is it a Unity Catalog"),
        (200, {"aws_temp_credentials": "x", "expiration_time": 1}, StorageUnavailableError,
         "is it a Unity Catalog"),
    ],
)  # fmt: skip
def test_answer_that_is_none_says_why_and_shows_no_secret(
    asked: Callable[..., Loan], status: int, content: Any, kind: type[TxmqError], said: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        asked(status, content)

    assert "secret" not in str(caught.value)


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "databricks.sdk.core", None)

    with pytest.raises(EnvironmentProblemError, match=r"extra databricks"):
        credentials.UnityCatalog().lend(PLACE, Provider.UNITY_CATALOG)


def test_without_an_identity_the_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> None:
        raise ValueError("default auth: cannot configure default credentials")

    monkeypatch.setattr(credentials, "_package", lambda _: SimpleNamespace(Config=nobody))
    with pytest.raises(AccessDeniedError, match=r"knows no identity here .*DATABRICKS_HOST"):
        credentials.UnityCatalog().lend(PLACE, Provider.UNITY_CATALOG)


def test_options_of_ones_own_are_copied() -> None:
    given = {"aws_region": "r"}

    assert options_now(given) == given
    assert options_now({}) is None
