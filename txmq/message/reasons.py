"""Reasons that are kept in a store: one bounded line; an operator's has the name of the OS user."""

from __future__ import annotations

import os
import unicodedata

from txmq.errors import InvalidReasonError

MAX_REASON_CHARACTERS = 500
MAX_USER_CHARACTERS = 64
# Before the reason of an operator who no longer waits for messages that cannot be read.
GIVE_UP = "GIVE_UP "
# Control characters, lone surrogates, line ends: they break a terminal, or cannot be stored.
_REFUSED_CATEGORIES = frozenset(["Cc", "Cs", "Zl", "Zp"])


def signed_reason(reason: object) -> str:
    """Return an operator's reason behind the name of the OS user. Raises: InvalidReasonError."""
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidReasonError("it must be text that is not blank; it is kept with the claim")
    text = reason.strip()
    if len(text) > MAX_REASON_CHARACTERS:
        limit = f"the limit is {MAX_REASON_CHARACTERS}; shorten it"
        raise InvalidReasonError(f"it is {len(text):,} characters long, {limit}")
    if not _is_plain(text):
        raise InvalidReasonError("it must be one line without control characters")
    return f"by {_os_user()}: {text}"


def one_line(text: str) -> str:
    """Return the text of a program as one bounded line without control characters."""
    # Cut first, because the text may have any size.
    characters = (c if _is_plain(c) else " " for c in text[:MAX_REASON_CHARACTERS])
    return " ".join("".join(characters).split())


def _is_plain(text: str) -> bool:
    return all(unicodedata.category(character) not in _REFUSED_CATEGORIES for character in text)


def _os_user() -> str:
    """Return the name of the user that owns the process; the environment could name anybody."""
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # A container may run under a user id without a name.
        return f"uid {os.getuid()}"
    return "".join(filter(_is_plain, name))[:MAX_USER_CHARACTERS]
