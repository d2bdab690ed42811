"""Names that nobody else chooses, without a call of the system.

`os.urandom`, of which `uuid.uuid4` is made, releases the interpreter's lock: a committing thread
beside busy ones then waits up to 5 ms for it, for each name.

Two processes that are restored from one image of a process or of a machine go on with the same
random numbers, so the time of the name is in it too.
"""

from __future__ import annotations

import os
import random
import time
import uuid

# Not the module's generator, which users may seed.
_random = random.Random()  # noqa: S311 - names are no secrets
os.register_at_fork(after_in_child=_random.seed)


def random_bits(count: int) -> int:
    """Return a number of so many bits, at least 64."""
    return _random.getrandbits(count) ^ time.time_ns()


def new_uuid() -> uuid.UUID:
    """Return a random UUID, as `uuid.uuid4` does."""
    return uuid.UUID(int=random_bits(128), version=4)
