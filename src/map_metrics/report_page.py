"""HTML and SVG of a report. Text is escaped where it enters an element; only elements are markup."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
import uuid
from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

Number = float | int | None

MOST_ROWS = 10_000  # of the table on the page
MOST_CELLS = 100_000  # so that the page stays under 5 MB
WORST = 10

# --- what stands on a page --------------------------------------------------------------------------------------------


class Figure(NamedTuple):
    """A headline number; None where it is undefined."""

    key: str
    what: str
    value: Number


class Fact(NamedTuple):
    """A name, its value and what it means."""

    name: str
    value: str
    meaning: str


class Column(NamedTuple):
    """A column of a table: ``"id"`` holds whole numbers of any size as text, ``"score"`` and ``"count"`` numbers."""

    key: str
    label: str
    kind: Literal["text", "id", "score", "count"]


class Table(NamedTuple):
    """Rows, the worst first by the column ``by``."""

    of: str
    columns: list[Column]
    rows: list[list[Any]]
    by: int
    note: str


class Line(NamedTuple):
    """A line of a chart, and points on it that are marked."""

    name: str
    x: list[float]
    y: list[float]
    marks: tuple[list[float], list[float]] = ([], [])


class Chart(NamedTuple):
    """Lines of values in [0, 1], or bars: the edges (n + 1) and the counts (n)."""

    title: str
    x_name: str
    y_name: str
    lines: list[Line]
    bars: tuple[list[float], list[int]] = ([], [])


class Page(NamedTuple):
    """All that a report says."""

    title: str
    headline: list[Figure]
    conventions: list[Fact]
    counts: list[Fact]
    environment: list[Fact]
    notes: list[str]
    charts: list[Chart]
    table: Table
    worst: list[Table]  # of which the first rows are shown


# --- elements ---------------------------------------------------------------------------------------------------------


class Markup(str):
    """Text that is HTML."""


def tag(name: str, /, *content: str, **attributes: Any) -> Markup:
    """An element. Content that is not markup is escaped; so are attributes, named as in Python (``class_``)."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    head = "".join(f' {key}="{html.escape(str(value))}"' for key, value in given.items())
    return Markup(f"<{name}{head}>{joined(*content)}" + ("" if name in ("meta", "link", "input") else f"</{name}>"))


def joined(*content: str) -> Markup:
    """Content in a row, escaped where it is not markup."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(part) for part in content))


def shown(value: Number, kind: str = "score") -> str:
    """A number as the page shows it, rounded half up as its script does; a dash where there is none."""
    if value is None or value != value:
        return "\N{EN DASH}"
    digits = 4 if kind == "score" else 0 if float(value).is_integer() else 2
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def number(value: Number, kind: str = "score") -> Markup:
    """A number as the page shows it, with all its digits for machines and for the mouse that rests on it."""
    exact = None if value is None or value != value else repr(value)
    return tag("data", shown(value, kind), value=exact or "", title=exact)


# --- charts -----------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400, 260, 52, 14, 12, 44


class _Scale(NamedTuple):
    """From values to places, with the values to write at the axis."""

    high: float
    start: float
    end: float
    ticks: list[float]

    def __call__(self, value: float) -> str:
        return f"{self.start + (self.end - self.start) * value / self.high:.2f}".rstrip("0").rstrip(".")


def _scale(high: float, start: float, end: float, most: int) -> _Scale:
    """From 0 to ``high``, with ``most`` ticks or fewer beside that of 0, at 1, 2 or 5 times a power of ten."""
    steps = (m * 10.0**e for e in range(-3, 19) for m in (1, 2, 5))
    step = next(step for step in steps if high / step <= most + 1e-9)
    return _Scale(high, start, end, [i * step for i in range(int(high / step + 1e-9) + 1)])


def drawing(chart: Chart) -> Markup:
    """A chart as SVG, with what its lines are below it."""
    edges, counts = chart.bars
    wide = edges[-1] if edges else max((x for line in chart.lines for x in line.x), default=1.0)
    x = _scale(wide or 1.0, LEFT, WIDTH - RIGHT, 8)
    y = _scale(max(counts, default=1) or 1, HEIGHT - BOTTOM, TOP, 5)
    parts = [*_axes(chart, x, y)]
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        name = tag("title", f"{low:.2f} to {high:.2f}: {count}")
        span = f"{float(x(high)) - float(x(low)) - 1:.2f}"
        tall = f"{float(y(0)) - float(y(count)):.2f}"
        parts.append(tag("rect", name, class_="bar", x=x(low), y=y(count), width=span, height=tall))
    for i, line in enumerate(chart.lines):
        path = "L".join(f"{x(a)} {y(b)}" for a, b in zip(line.x, line.y, strict=True))
        parts.append(tag("path", class_=f"line line{i}", d=f"M{path}"))
        for a, b in zip(*line.marks, strict=True):
            name = tag("title", f"{chart.x_name} {a:g}: {chart.y_name} {b:.4f}")
            parts.append(tag("circle", name, class_=f"mark{i}", cx=x(a), cy=y(b), r=3))
    svg = tag("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=chart.title)
    key = [tag("li", _sample(i), tag("span", line.name)) for i, line in enumerate(chart.lines)]
    return tag("figure", tag("figcaption", chart.title), svg, *([tag("ul", *key, class_="key")] if key else []))


def _sample(i: int) -> Markup:
    """What the i-th line looks like."""
    return tag("svg", tag("path", class_=f"line line{i}", d="M0 5H26"), viewBox="0 0 26 10", aria_hidden="true")


def _axes(chart: Chart, x: _Scale, y: _Scale) -> Iterator[Markup]:
    for value in y.ticks:
        yield tag("path", class_="grid", d=f"M{LEFT} {y(value)}H{WIDTH - RIGHT}")
        yield tag("text", f"{value:g}", x=LEFT - 6, y=y(value), text_anchor="end", dominant_baseline="middle")
    for value in x.ticks:
        yield tag("path", class_="tick", d=f"M{x(value)} {HEIGHT - BOTTOM}v4")
        yield tag("text", f"{value:g}", x=x(value), y=HEIGHT - BOTTOM + 18, text_anchor="middle")
    middle = (HEIGHT - BOTTOM + TOP) / 2
    yield tag("text", chart.x_name, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 6, text_anchor="middle")
    turned = f"rotate(-90 12 {middle:g})"
    yield tag("text", chart.y_name, x=12, y=f"{middle:g}", text_anchor="middle", transform=turned)


# --- the page ---------------------------------------------------------------------------------------------------------


def render(page: Page) -> str:
    """The page as HTML."""
    style, script = (
        resources.files("map_metrics").joinpath(f"report.{kind}").read_text("utf-8") for kind in ("css", "js")
    )
    policy = f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", page.title),
        tag("style", Markup(style)),
    )
    cards = [
        tag("div", tag("dt", figure.key), tag("dd", number(figure.value)), tag("dd", figure.what, class_="what"))
        for figure in page.headline
    ]
    kept = page.table.rows[: _capacity(page.table)]
    facts = [
        _section(title, _facts(given)) for title, given in (("Counts", page.counts), ("Environment", page.environment))
    ]
    body = tag(
        "body",
        tag("header", tag("h1", page.title)),
        tag(
            "main",
            *(tag("p", tag("strong", "Note: "), note, class_="note") for note in page.notes),
            tag("dl", *cards, class_="cards"),
            tag("div", *(drawing(chart) for chart in page.charts), class_="charts"),
            _section("Worst cases", *(part for table in page.worst for part in _worst(table))),
            tag("div", _section("Conventions", _facts(page.conventions)), tag("div", *facts), class_="pair"),
            _section(f"All {page.table.of}", *_interactive(page.table, len(kept))),
        ),
        tag("script", _data(page.table, kept), id="data", type="application/json"),
        tag("script", Markup(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _digest(text: str) -> str:
    """How the page's policy names the one script, or style sheet, that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _section(title: str, *content: str) -> Markup:
    return tag("section", tag("h2", title), *content)


def _facts(facts: Sequence[Fact]) -> Markup:
    rows = []
    for fact in facts:
        meaning = [tag("p", fact.meaning, class_="what")] if fact.meaning else []
        rows.append(tag("tr", tag("th", fact.name, scope="row"), tag("td", fact.value, *meaning)))
    return tag("table", tag("tbody", *rows), class_="facts")


def _capacity(table: Table) -> int:
    return max(1, min(MOST_ROWS, MOST_CELLS // len(table.columns)))


def _wide(table: Markup, label: str) -> Markup:
    """A table that scrolls by itself where the page is too narrow for it, by key as well."""
    return tag("div", table, class_="wide", role="region", aria_label=label, tabindex="0")


def _worst(table: Table) -> list[Markup]:
    rows = [row for row in table.rows if row[table.by] is not None][:WORST]
    if not rows:
        return [tag("p", f"No {table.of} with an AP.")]
    head = tag("tr", *(tag("th", column.label, scope="col", class_=column.kind) for column in table.columns))
    body = [tag("tr", *(_cell(value, c) for value, c in zip(row, table.columns, strict=True))) for row in rows]
    caption = f"The {table.of} of the lowest {table.columns[table.by].label}, the lowest first. {table.note}".rstrip()
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body))
    return [_wide(whole, f"Worst {table.of}")]


def _cell(value: Any, column: Column) -> Markup:
    if column.kind in ("text", "id"):
        return tag("td", value, class_=column.kind)
    return tag("td", number(value, column.kind), class_=column.kind)


def _interactive(table: Table, kept: int) -> list[Markup]:
    """The table that the script fills, sorts and filters."""
    head = tag(
        "tr",
        *(tag("th", tag("button", c.label, type="button"), scope="col", class_=c.kind) for c in table.columns),
    )
    name = table.columns[table.by].label
    caption = f"{len(table.rows):,} {table.of}."
    if kept < len(table.rows):
        caption = (
            f"The {kept:,} of the lowest {name} of {len(table.rows):,} {table.of}: the others are not on this page."
        )
    caption = " ".join(filter(None, (caption, table.note)))
    columns = ", ".join(column.key for column in table.columns if column.kind in ("score", "count"))
    box = tag("input", type="search", id="filter", autocomplete="off", spellcheck="false", aria_describedby="help")
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody"), id="rows")
    return [
        tag("p", tag("label", "Filter ", box, for_="filter"), class_="filter"),
        tag(
            "p",
            f"Part of a name or id, or a condition such as {table.columns[table.by].key} < 0.2, on {columns}.",
            id="help",
            class_="what",
        ),
        tag("noscript", tag("p", "Without JavaScript this table stays empty.")),
        _wide(whole, f"All {table.of}"),
        tag(
            "p",
            tag("span", id="status", role="status"),
            " ",
            tag("button", "Show all", id="more", type="button"),
            class_="filter",
        ),
    ]


def _data(table: Table, rows: list[list[Any]]) -> Markup:
    """The rows as JSON. Without a < nothing in it can end the element, or begin another."""
    data = {"columns": [column._asdict() for column in table.columns], "by": table.by, "rows": plain(rows)}
    return Markup(json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))


def plain(value: Any) -> Any:
    """The same with None for what JSON has no word for: infinities, and values that are not a number."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_atomically(path: Path, text: str) -> None:
    """Write a file under another name beside it, then move it there: no reader sees half of it."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        part.write_text(text, encoding="utf-8", errors="replace", newline="\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
