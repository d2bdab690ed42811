"""Errors about services, listeners, hooks and the environment."""

from __future__ import annotations

from txmq.errors.base import TxmqError, shown


class ClosedError(TxmqError):
    """The producer or service was closed, or its process was forked."""


class ListenerError(TxmqError):
    """A listener could not be loaded; `reference` is what the settings name."""

    def __init__(self, reference: str, problem: str) -> None:
        """`problem` says what was looked for."""
        self.reference, self.problem = reference, problem
        super().__init__(f"listener {shown(reference)}: {problem}")


class HookError(TxmqError, TypeError):
    """What was passed as a hook is none."""

    def __init__(self, hook: str, problem: str) -> None:
        """`problem` says what a hook needs."""
        self.hook, self.problem = hook, problem
        super().__init__(f"hook {shown(hook)}: {problem}")


class EnvironmentProblemError(TxmqError):
    """Something outside txmq is missing: Java, Spark, a jar."""

    def __init__(self, what: str, next_step: str) -> None:
        """`next_step` is a sentence a person can follow."""
        self.what, self.next_step = what, next_step
        super().__init__(f"{what}. {next_step}")
