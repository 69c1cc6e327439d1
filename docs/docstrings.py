"""What the docstrings need to become pages: an extension of griffe, which reads the sources for mkdocstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|attr|data|mod):`~?(?P<name>[\w.]+)`")


class Docstrings(griffe.Extension):
    """Roles become links, examples a section, and the comment above a constant its docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the text before it is parsed."""
        if obj.docstring is None and obj.is_attribute and obj.name.isupper() and obj.parent.is_module:
            text = _comment_above(obj)
            obj.docstring = griffe.Docstring(text, lineno=obj.lineno, parent=obj) if text else None
        if obj.docstring is not None:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.M)
            obj.docstring.value = ROLE.sub(lambda role: _link(role["name"], obj), text)


def _comment_above(obj: griffe.Object) -> str:
    lines = obj.module.source.splitlines()
    start = end = obj.lineno - 1
    while start and lines[start - 1].startswith("# "):
        start -= 1
    return " ".join(line.removeprefix("# ") for line in lines[start:end])


def _link(name: str, obj: griffe.Object) -> str:
    """Code, and a link where the name has a heading."""
    first, dot, rest = name.partition(".")
    try:
        path = obj.resolve(first) + dot + rest
    except griffe.NameResolutionError:
        path = name
    return f"<autoref identifier='{path}' optional>`{name}`</autoref>"
