"""W3C trace context in messages: `traceparent` and `tracestate` are properties of these names."""

from __future__ import annotations

import re
from dataclasses import replace

from txmq.errors import InvalidMessageTypeError, InvalidPropertyError
from txmq.message.message import Message

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
MAX_MEMBERS = 32
# Versions above 00 may say more behind a dash; ff is none.
_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
    r"(?P<rest>-.*)?",
    re.ASCII,
)
_SIMPLE_KEY = r"[a-z][a-z0-9_*/-]{0,255}"
_TENANT_KEY = r"[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13}"
# Printable ASCII without comma and equals sign, the last one no space.
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(rf"(?P<key>{_SIMPLE_KEY}|{_TENANT_KEY})={_VALUE}", re.ASCII)


def with_trace_context(
    message: Message, traceparent: str | None = None, tracestate: str | None = None
) -> Message:
    """The same message with a trace context, which consumers find in its properties.

    Args:
        message: a context that it has already is replaced.
        traceparent: without one, that of OpenTelemetry's current span; where there is none, or
            OpenTelemetry is not installed, the message stays as it is.
        tracestate: what vendors add to it; only together with `traceparent`.

    Raises: InvalidPropertyError for what is not of the W3C's form; PropertyLimitError at send.
    """
    if traceparent is None:
        if tracestate is not None:
            raise InvalidPropertyError(TRACESTATE, "needs a traceparent beside it")
        traceparent, tracestate = _of_current_span()
    if traceparent is None:
        return message
    others = {n: v for n, v in message.properties.items() if n not in (TRACEPARENT, TRACESTATE)}
    context = {TRACEPARENT: _checked_parent(traceparent)}
    members = _checked_members(tracestate)
    if members:
        context[TRACESTATE] = members
    return replace(message, properties={**others, **context})


def _of_current_span() -> tuple[str | None, str | None]:
    try:
        from opentelemetry.trace import get_current_span
    except ImportError:
        return None, None
    span = get_current_span().get_span_context()
    if not span.is_valid:
        return None, None
    parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    return parent, span.trace_state.to_header()


def _checked_parent(traceparent: object) -> str:
    if not isinstance(traceparent, str):
        problem = f"must be a str, not {type(traceparent).__name__}"
        raise InvalidMessageTypeError(TRACEPARENT, problem)
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or (found["version"] == "00" and found["rest"] is not None):
        problem = "must be version-trace id-parent id-flags in small hexadecimal digits (W3C)"
        raise InvalidPropertyError(TRACEPARENT, problem)
    return traceparent


def _checked_members(tracestate: object) -> str:
    """The members joined by commas alone; empty ones are allowed and left out."""
    if tracestate is None:
        return ""
    if not isinstance(tracestate, str):
        problem = f"must be a str, not {type(tracestate).__name__}"
        raise InvalidMessageTypeError(TRACESTATE, problem)
    members = [member.strip(" \t") for member in tracestate.split(",")]
    members = [member for member in members if member]
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = [member["key"] for member in found if member is not None]
    if len(keys) != len(members) or len(set(keys)) != len(keys) or len(keys) > MAX_MEMBERS:
        problem = f"must be up to {MAX_MEMBERS} members key=value, each key once (W3C)"
        raise InvalidPropertyError(TRACESTATE, problem)
    return ",".join(members)
