"""W3C trace context in messages: `traceparent` and `tracestate` are properties of these names.

OpenTelemetry's own propagator writes the context of its current span. Values that a caller passes
are checked here: the propagator drops what is wrong without an error, and a message that is refused
must be refused without OpenTelemetry too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from txmq.errors import InvalidMessageError
from txmq.message.message import Message, stored_with

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
MAX_MEMBERS = 32
# Versions above 00 may add fields after another dash; ff is not a version.
_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
    r"(?P<rest>-[\x21-\x7e]{0,255})?",
    re.ASCII,
)
_SIMPLE_KEY = r"[a-z][a-z0-9_*/-]{0,255}"
_TENANT_KEY = r"[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13}"
# Printable ASCII without comma and equals sign; the last character is not a space.
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(rf"(?P<key>{_SIMPLE_KEY}|{_TENANT_KEY})={_VALUE}", re.ASCII)


def with_trace_context(
    message: Message, traceparent: str | None = None, tracestate: str | None = None
) -> Message:
    """Return the message with a trace context, which consumers find in its properties.

    Args:
        message: a context that it has already is replaced.
        traceparent: the default is OpenTelemetry's current span. Without a span, or without
            OpenTelemetry (extra `trace`), the message stays as it is.
        tracestate: what vendors add to the context; only together with `traceparent`.

    Raises: InvalidMessageError for a value that is not a str or that the W3C's form does not
        allow; MessageTooLargeError at send.
    """
    if traceparent is None:
        if tracestate is not None:
            raise InvalidMessageError(TRACESTATE, "needs a traceparent beside it")
        context = _context_of_current_span()
    else:
        context = checked_context(traceparent, tracestate)
    if not context:
        return message
    others = {n: v for n, v in message.properties.items() if n not in (TRACEPARENT, TRACESTATE)}
    return replace(message, properties={**others, **context})


def _context_of_current_span() -> dict[str, str]:
    try:
        from opentelemetry.trace import get_current_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return {}
    context: dict[str, str] = {}
    if get_current_span().get_span_context().is_valid:
        TraceContextTextMapPropagator().inject(context)
    return context


def context_of(properties: Mapping[str, str] | Iterable[tuple[str, str]] | None) -> dict[str, str]:
    """Return the trace context in the properties of a message; empty if it has none."""
    values = dict(properties or ())
    if TRACEPARENT not in values:
        return {}
    return {name: values[name] for name in (TRACEPARENT, TRACESTATE) if name in values}


def carrying(
    messages: Sequence[Message], context: Mapping[str, str], max_properties_size_bytes: int
) -> Sequence[Message]:
    """Return messages with a checked context; one that has its own, or no room for it, stays."""
    if not context:
        return messages
    return [_carrying(message, context, max_properties_size_bytes) for message in messages]


def _carrying(message: Message, context: Mapping[str, str], max_bytes: int) -> Message:
    if TRACEPARENT in message.properties:
        return message
    others = {name: value for name, value in message.properties.items() if name != TRACESTATE}
    carrier = stored_with(message, properties={**others, **context})
    return carrier if carrier.properties_size_bytes <= max_bytes else message


def checked_context(traceparent: object, tracestate: object = None) -> dict[str, str]:
    """Return a context whose values have the W3C's form. Raises: as `with_trace_context`."""
    context = {TRACEPARENT: _checked_parent(traceparent)}
    members = _checked_members(tracestate)
    return {**context, TRACESTATE: members} if members else context


def _checked_parent(traceparent: object) -> str:
    if not isinstance(traceparent, str):
        problem = f"must be a str, not {type(traceparent).__name__}"
        raise InvalidMessageError(TRACEPARENT, problem)
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or (match["version"] == "00" and match["rest"] is not None):
        problem = "must be version-trace id-parent id-flags in small hexadecimal digits (W3C)"
        raise InvalidMessageError(TRACEPARENT, problem)
    # Of a subclass of str its text alone.
    return match[0]


def _checked_members(tracestate: object) -> str:
    """Join the members by commas without spaces; empty members are allowed and left out."""
    if tracestate is None:
        return ""
    if not isinstance(tracestate, str):
        problem = f"must be a str, not {type(tracestate).__name__}"
        raise InvalidMessageError(TRACESTATE, problem)
    members = [member.strip(" \t") for member in tracestate.split(",")]
    members = [member for member in members if member]
    matches = [_MEMBER.fullmatch(member) for member in members]
    keys = [match["key"] for match in matches if match is not None]
    if len(keys) != len(members) or len(set(keys)) != len(keys) or len(keys) > MAX_MEMBERS:
        problem = f"must be up to {MAX_MEMBERS} members key=value, each key once (W3C)"
        raise InvalidMessageError(TRACESTATE, problem)
    return ",".join(members)
