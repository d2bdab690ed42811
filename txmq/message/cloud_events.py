"""CloudEvents 1.0 in messages: binary mode, the body is the data, attributes are properties.

The properties are named as in CloudEvents' own RocketMQ SDK for Java: `CE_` and the name of the
attribute, but `CE_contenttype` for datacontenttype. So a bridge to RocketMQ copies properties as
they are, and no name collides with one that RocketMQ reserves. (That SDK writes extensions without
a prefix, then reads only those with one; here they have the prefix.)

The checks are our own: the Python SDK (`cloudevents` 2.2) checks types, names of extensions, and
that nothing is empty, but takes `my shop` as a source, `json` as a media type, control characters,
and extensions of any type. A consumer in another language would refuse such an event after it was
published, so it is refused before it is sent.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from txmq.errors import InvalidMessageError, shown
from txmq.ground.clock import moment_problem
from txmq.message.message import Message

PREFIX = "CE_"
SPEC_VERSION = "1.0"
_CONTENT_TYPE = "datacontenttype"
_STORED_AS = {_CONTENT_TYPE: "contenttype"}
_READ_AS = {stored: name for name, stored in _STORED_AS.items()}
_ATTRIBUTES = frozenset(
    ["id", "source", "specversion", "type", "subject", "time", "dataschema", _CONTENT_TYPE]
)
# data is the body; datacontenttype is stored as contenttype.
_RESERVED_NAMES = _ATTRIBUTES | {"data", "contenttype"}
_NAME = re.compile(r"[a-z0-9]+", re.ASCII)
# RFC 3986: the characters of a URI reference.
_REFERENCE = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+", re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:.", re.ASCII)
_WORD = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_PARAMETER = rf"\s*;\s*{_WORD}=(?:{_WORD}|\"[^\"]*\")"
_MEDIA_TYPE = re.compile(rf"{_WORD}/{_WORD}(?:{_PARAMETER})*", re.ASCII)
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?"
    r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)
# Control characters and Unicode's noncharacters; each plane ends with two more of these.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef]")
_END_OF_PLANE = 0xFFFE
_INTEGERS = range(-(2**31), 2**31)


def cloud_event(  # noqa: PLR0913 - the attributes of the specification
    topic: str,
    *,
    id: str,  # noqa: A002 - the specification's name
    source: str,
    type: str,  # noqa: A002 - the specification's name
    data: bytes = b"",
    subject: str | None = None,
    time: datetime | str | None = None,
    datacontenttype: str | None = None,
    dataschema: str | None = None,
    extensions: Mapping[str, object] | None = None,
    **fields: Any,
) -> Message:
    """Make a message that is a CloudEvent.

    Args:
        topic: the topic of the message.
        id: identifies the event together with `source`.
        source: URI reference of the producer of the event.
        type: the kind of event, for example com.example.order.paid.
        data: the body.
        subject: the thing that the event is about.
        time: when it happened; an aware datetime, or text as in RFC 3339.
        datacontenttype: media type of the data.
        dataschema: absolute URI of the schema of the data.
        extensions: more attributes; their values are str, bool, int of 32 bits, bytes or aware
            datetime.
        fields: fields of Message, such as keys, tags, properties, delay_s.

    Raises: InvalidMessageError for a value that the specification does not allow; the errors of
        Message.

    Example:
        >>> event = cloud_event("orders", id="7", source="/shop", type="order.paid", data=b"42")
        >>> attributes_of(event)["type"]
        'order.paid'
    """
    attributes = {
        "specversion": SPEC_VERSION,
        "id": _checked("id", id, _text),
        "source": _checked("source", source, _reference),
        "type": _checked("type", type, _text),
    }
    optional: Iterable[tuple[str, object, Callable[[object], str]]] = (
        ("subject", subject, _text),
        ("time", time, _moment),
        (_CONTENT_TYPE, datacontenttype, _media_type),
        ("dataschema", dataschema, _absolute_uri),
    )
    attributes |= {n: _checked(n, value, read) for n, value, read in optional if value is not None}
    attributes |= _extensions(_mapping("extensions", extensions))
    properties = _without_prefix(_mapping("properties", fields.pop("properties", None)))
    return Message(topic, data, properties=properties | _stored(attributes), **fields)


def attributes_of(message: Any) -> dict[str, str]:
    """Return the CloudEvents attributes of a Message or of a topic's row; empty without any."""
    attributes = {
        name.removeprefix(PREFIX): value
        for name, value in properties_of(message).items()
        if name.startswith(PREFIX)
    }
    if "specversion" not in attributes:
        return {}
    return {_READ_AS.get(name, name): value for name, value in attributes.items()}


def properties_of(message: Any) -> dict[str, str]:
    """Return the properties of a Message or of a row: Spark's Row, a mapping, pairs as in Arrow."""
    is_row = isinstance(message, Mapping) or hasattr(message, "asDict")
    return dict((message["properties"] if is_row else message.properties) or {})


# --- attributes -----------------------------------------------------------------------------------


def _mapping(name: str, value: object) -> Mapping[Any, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidMessageError(name, f"must be a mapping, not {type(value).__name__}")
    return value or {}


def _without_prefix(properties: Mapping[Any, Any]) -> dict[str, str]:
    for name in properties:
        if isinstance(name, str) and name.startswith(PREFIX):
            problem = f"{shown(name)} would be an attribute; pass it in extensions"
            raise InvalidMessageError("property", problem)
    return dict(properties)


def _stored(attributes: Mapping[str, str]) -> dict[str, str]:
    return {PREFIX + _STORED_AS.get(name, name): value for name, value in attributes.items()}


def _extensions(extensions: Mapping[Any, object]) -> dict[str, str]:
    for name in extensions:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidMessageError(
                "CloudEvents extension", f"{shown(name)} must be small letters and digits"
            )
        if name in _RESERVED_NAMES:
            problem = f"{shown(name)} is a name of CloudEvents itself; pass it as an argument"
            raise InvalidMessageError("CloudEvents extension", problem)
    return {name: _checked(name, value, _extension) for name, value in extensions.items()}


def _checked(name: str, value: object, read: Callable[[object], str]) -> str:
    try:
        return read(value)
    except (TypeError, ValueError) as error:
        raise InvalidMessageError(f"CloudEvents {name}", str(error)) from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"must be a str, not {type(value).__name__}")
    if not value.strip():
        raise ValueError("must not be blank")
    if _FORBIDDEN.search(value) or any(ord(c) & _END_OF_PLANE == _END_OF_PLANE for c in value):
        raise ValueError("must not hold control characters or Unicode noncharacters")
    return value


def _reference(value: object) -> str:
    text = _text(value)
    if not _REFERENCE.fullmatch(text):
        raise ValueError("must be a URI reference such as /shop or https://example.com/shop")
    return text


def _absolute_uri(value: object) -> str:
    text = _text(value)
    if not _REFERENCE.fullmatch(text) or not _SCHEME.match(text):
        raise ValueError("must be an absolute URI such as https://example.com/order.json")
    return text


def _media_type(value: object) -> str:
    text = _text(value)
    if not _MEDIA_TYPE.fullmatch(text):
        raise ValueError("must be a media type such as application/json")
    return text


def _moment(value: object) -> str:
    if isinstance(value, datetime):
        return _moment_text(value)
    text = _text(value)
    if not _MOMENT.fullmatch(text):
        raise ValueError("must be a time as in RFC 3339, such as 2026-01-31T12:00:00Z")
    return text


def _moment_text(value: datetime) -> str:
    problem = moment_problem(value)
    if problem is not None:
        raise ValueError(problem)
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _extension(value: object) -> str:
    """Return the text form that the specification gives a value of its types."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, bytes):
        return _text(base64.b64encode(value).decode())
    if isinstance(value, datetime):
        return _moment_text(value)
    return _text(value)


def _integer(value: int) -> str:
    if value not in _INTEGERS:
        raise ValueError("is an integer of more than 32 bits; pass it as text")
    return str(value)
