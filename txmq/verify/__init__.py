"""The independent checker: do the tables keep what docs/invariants.md promises?

Shares no code with producer, settle or publish: it reads by itself and folds by itself, so one
mistake cannot hide in both.
"""

from txmq.verify.checker import verify
from txmq.verify.report import InvariantResult, VerifyReport, Violation

__all__ = ["InvariantResult", "VerifyReport", "Violation", "verify"]
