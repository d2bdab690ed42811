"""Why a person did something: one bounded line, with the name of the OS user."""

from __future__ import annotations

import os
import unicodedata

from txmq.errors import InvalidReasonError

MAX_REASON_CHARACTERS = 500
MAX_USER_CHARACTERS = 64
# Control characters, lone surrogates and line ends: they bend a terminal, or cannot be stored.
_REFUSED_CATEGORIES = frozenset(["Cc", "Cs", "Zl", "Zp"])


def signed_reason(reason: object) -> str:
    """The reason as it is kept, with the name of the OS user. Raises: InvalidReasonError."""
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidReasonError("say why, for it is kept with the claim")
    text = reason.strip()
    if len(text) > MAX_REASON_CHARACTERS:
        limit = f"the limit is {MAX_REASON_CHARACTERS}"
        raise InvalidReasonError(f"it is {len(text):,} characters long, {limit}")
    if not _is_plain(text):
        raise InvalidReasonError("it must be one line without control characters")
    return f"by {_os_user()}: {text}"


def one_line(text: str) -> str:
    """What a program says, fit to be kept: one bounded line without control characters."""
    # Cut first, for it may be of any size.
    kept = (each if _is_plain(each) else " " for each in text[:MAX_REASON_CHARACTERS])
    return " ".join("".join(kept).split())


def _is_plain(text: str) -> bool:
    return all(unicodedata.category(character) not in _REFUSED_CATEGORIES for character in text)


def _os_user() -> str:
    """By the process and not by its environment, which says whatever one likes."""
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # A container may run under a number without a name.
        return f"uid {os.getuid()}"
    return "".join(filter(_is_plain, name))[:MAX_USER_CHARACTERS]
