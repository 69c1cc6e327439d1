"""What the docstrings need to become pages: an extension of griffe, which reads the sources for mkdocstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|attr|data|mod):`~?(?P<name>[\w.]+)`")


class Docstrings(griffe.Extension):
    """Roles become links where the name has a page, examples a section; a comment above a constant is its docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the text, before it is parsed."""
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
    """Code, as a link if the name has a heading (the optional kind of reference: a name without one stays code)."""
    try:
        path = obj.resolve(name.partition(".")[0]) + name[len(name.partition(".")[0]) :]
    except griffe.NameResolutionError:
        path = name
    return f"<autoref identifier='{path}' optional>`{name}`</autoref>"
