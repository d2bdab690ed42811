from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from txmq.errors import InvalidMessageError
from txmq.message.message import Message
from txmq.message.trace_context import with_trace_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
PAID = Message("orders", b"42", keys="order-7", properties={"own": "1"})


def test_context_is_found_in_the_properties() -> None:
    made = with_trace_context(PAID, PARENT, "congo=t61rcWkgMzE, rojo=00f067aa0ba902b7,")

    assert dict(made.properties) == {
        "own": "1",
        "traceparent": PARENT,
        "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
    }
    assert (made.topic, made.body, made.keys) == (PAID.topic, PAID.body, PAID.keys)


def test_context_replaces_the_one_before_it() -> None:
    before = with_trace_context(PAID, PARENT, "congo=t61")

    made = with_trace_context(before, f"00-{TRACE}-{'1' * 16}-00")

    assert made.properties["traceparent"] == f"00-{TRACE}-{'1' * 16}-00"
    assert "tracestate" not in made.properties


@pytest.mark.parametrize(
    "parent", [PARENT, f"cc-{TRACE}-{SPAN}-ff", f"01-{TRACE}-{SPAN}-00-what-comes-later"]
)
def test_w3c_form_is_taken(parent: str) -> None:
    assert with_trace_context(PAID, parent).properties["traceparent"] == parent


@pytest.mark.parametrize(
    "parent",
    [
        "",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + "-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"01-{TRACE}-{SPAN}-00more",
        f" {PARENT}",
    ],
)
def test_other_forms_are_refused(parent: str) -> None:
    with pytest.raises(InvalidMessageError, match="traceparent"):
        with_trace_context(PAID, parent)


@pytest.mark.parametrize(
    "state",
    [
        "a",
        "a=",
        "A=1",
        "a=1,a=2",
        "a=b=c",
        "1a=2",
        "a=ž",
        "a" * 257 + "=1",
        "a=" + "b" * 257,
        ",".join(f"a{number}=1" for number in range(33)),
        "tenant@toolongsystemid=1",
    ],
)
def test_tracestate_of_another_form_is_refused(state: str) -> None:
    with pytest.raises(InvalidMessageError, match="tracestate"):
        with_trace_context(PAID, PARENT, state)


@pytest.mark.parametrize(
    "state",
    ["a=" + "b" * 256, "1tenant@system=x y", ",".join(f"a{n}=1" for n in range(32)), "a/b_c*-=!~"],
)
def test_tracestate_of_the_w3c_form_is_taken(state: str) -> None:
    assert with_trace_context(PAID, PARENT, state).properties["tracestate"] == state


def test_empty_tracestate_is_left_out() -> None:
    assert "tracestate" not in with_trace_context(PAID, PARENT, " , ").properties


@pytest.mark.parametrize(("parent", "state"), [(7, None), (PARENT, 7)])
def test_other_types_are_refused(parent: Any, state: Any) -> None:
    with pytest.raises(InvalidMessageError, match="must be a str, not int"):
        with_trace_context(PAID, parent, state)


def test_tracestate_alone_is_refused() -> None:
    with pytest.raises(InvalidMessageError, match="needs a traceparent"):
        with_trace_context(PAID, None, "a=1")


def hide_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules, "opentelemetry"]:
        if name.partition(".")[0] == "opentelemetry":
            monkeypatch.setitem(sys.modules, name, None)


def test_without_opentelemetry_the_message_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_opentelemetry(monkeypatch)

    assert with_trace_context(PAID) is PAID


def test_passed_context_is_checked_the_same_without_opentelemetry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hide_opentelemetry(monkeypatch)

    assert with_trace_context(PAID, PARENT, "congo=t61").properties["traceparent"] == PARENT
    with pytest.raises(InvalidMessageError, match="traceparent"):
        with_trace_context(PAID, PARENT.upper())


def test_opentelemetry_is_loaded_where_the_current_span_is_asked_for_alone() -> None:
    program = (
        "import sys, txmq; m = txmq.Message('orders', b'');"
        f"txmq.with_trace_context(m, '{PARENT}', 'a=1');"
        "sys.exit('opentelemetry' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_context_of_the_current_span_is_taken() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    context = trace.SpanContext(
        int(TRACE, 16), int(SPAN, 16), is_remote=False, trace_flags=trace.TraceFlags(1),
        trace_state=trace.TraceState([("congo", "t61")]),
    )  # fmt: skip

    with trace.use_span(trace.NonRecordingSpan(context)):
        made = with_trace_context(PAID)

    assert (made.properties["traceparent"], made.properties["tracestate"]) == (PARENT, "congo=t61")
    assert with_trace_context(PAID) is PAID


def test_context_of_the_current_span_replaces_the_one_before_it() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    context = trace.SpanContext(int(TRACE, 16), int("1" * 16, 16), is_remote=False)

    with trace.use_span(trace.NonRecordingSpan(context)):
        made = with_trace_context(with_trace_context(PAID, PARENT, "congo=t61"))

    assert dict(made.properties) == {"own": "1", "traceparent": f"00-{TRACE}-{'1' * 16}-00"}


def test_span_without_a_valid_context_leaves_the_message_as_it_is() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    context = trace.SpanContext(0, int(SPAN, 16), is_remote=False)

    with trace.use_span(trace.NonRecordingSpan(context)):
        assert with_trace_context(PAID) is PAID
