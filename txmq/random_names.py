"""Names that nobody else chooses, without a call of the system.

`os.urandom`, of which `uuid.uuid4` is made, releases the interpreter's lock: a committing thread
beside busy ones then waits up to 5 ms for it, for each name.
"""

from __future__ import annotations

import os
import random
import uuid

# Not the module's generator, which users may seed.
_random = random.Random()  # noqa: S311 - names are no secrets
os.register_at_fork(after_in_child=_random.seed)

random_bits = _random.getrandbits


def new_uuid() -> uuid.UUID:
    """As `uuid.uuid4`."""
    return uuid.UUID(int=random_bits(128), version=4)
