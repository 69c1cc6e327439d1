"""What a command found, as text: a table for people, tsv and json for programs, which keep every digit."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

DIGITS = 4  # of a table

Row = dict[str, Any]


@dataclass
class Output:
    """What a command found.

    Attributes:
        value: the headline numbers.
        counts: how many of what.
        settings: what made the numbers: conventions, or a protocol.
        tables: title -> rows; the first column of each names the row.
        heading: how a table shows the headline numbers; empty: a line each.
        footing: text behind a table.
        comparison: of two systems, as plain values.
    """

    value: dict[str, float]
    counts: dict[str, int]
    settings: dict[str, Any]
    tables: dict[str, list[Row]] = field(default_factory=dict)
    heading: str = ""
    footing: str = ""
    comparison: dict[str, Any] | None = None

    def text(self, form: str) -> str:
        """As ``"table"``, ``"tsv"`` or ``"json"``."""
        return {"table": self._table, "tsv": self._tsv, "json": self._json}[form]()

    def _table(self) -> str:
        width = max(map(len, self.value))
        numbers = "\n".join(f"{name:<{width}}  {_shown(value)}" for name, value in self.value.items())
        counts = ", ".join(f"{name.removeprefix('num_')} {count}" for name, count in self.counts.items())
        parts = [self.heading or numbers, counts]
        parts += [f"{title}\n{_columns(rows)}" for title, rows in self.tables.items()]
        if self.comparison is not None:
            parts.append(f"hardest of the other\n{_columns(self.comparison['hardest'])}")
        return "\n\n".join(part for part in [*parts, self.footing] if part)

    def _tsv(self) -> str:
        """Lines ``measure, of what, value``, as trec_eval's; what has no value has no line."""
        lines = [(name, "all", value) for name, value in {**self.value, **self.counts}.items()]
        for rows in self.tables.values():
            for row in rows:
                name, *values = row.items()
                lines += [(key, name[1], value) for key, value in values]
        if self.comparison is not None:
            lines += [("difference", row["query"], row["difference"]) for row in self.comparison["queries"]]
            lines += [(f"difference_{key}", "all", value) for key, value in _scalars(self.comparison).items()]
        return "\n".join("\t".join(_cell(cell) for cell in line) for line in lines if line[2] is not None)

    def _json(self) -> str:
        content = {"value": self.value, **self.counts, "settings": self.settings, **self.tables}
        if self.comparison is not None:
            content["comparison"] = self.comparison
        return json.dumps(_finite(content), indent=1, ensure_ascii=False)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.{DIGITS}f}" if isinstance(value, float) else str(value)


def _columns(rows: list[Row]) -> str:
    """Aligned: names to the left, numbers to the right."""
    if not rows:
        return "(none)"
    cells = [list(rows[0]), *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        padded = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        lines.append("  ".join([line[0].ljust(widths[0]), *padded]))
    return "\n".join(lines)


def _cell(value: Any) -> str:
    """Tabs and line ends would make other cells."""
    return str(value).replace("\t", " ").replace("\n", " ")


def _scalars(values: dict[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in values.items() if not isinstance(value, list | str)}
    low, high = values["interval"]
    return flat | {"low": low, "high": high}


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
