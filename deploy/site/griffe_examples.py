"""Docstrings say "Example:"; the reader of docstrings takes only "Examples:" for code."""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Give each example the heading that is read as code."""

    def on_instance(self, *, obj: griffe.Object, **_others: Any) -> None:
        """Before the docstring is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")
