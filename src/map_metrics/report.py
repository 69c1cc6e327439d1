"""A result as one HTML page that needs nothing else: what stands on it. How it looks is in ``report_page``."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timezone
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchmetrics
from torch import Tensor

from map_metrics.conventions import Conventions
from map_metrics.detection.protocols import Protocol
from map_metrics.detection.result import DetectionResult
from map_metrics.detection.summary import per_class
from map_metrics.report_page import WORST, Chart, Column, Fact, Figure, Line, Page, Table, render, write_atomically
from map_metrics.results import RetrievalResult

# What a field means, or what one value of it does.
MEANINGS = {
    "top_k": "the cut-off: how many of the first items count",
    "denominator": "what the sum of precisions is divided by",
    "denominator=relevant": "divided by the relevant items of the query, found or not",
    "denominator=min": "divided by the relevant items, but by k at most",
    "denominator=hits": "divided by the relevant items found in the first k",
    "denominator=k": "divided by k",
    "ties=expected": "the mean over all orders of items with equal scores",
    "ties=optimistic": "the best order of items with equal scores",
    "ties=pessimistic": "the worst order of items with equal scores",
    "ties=stable": "equal scores in the order of ids, or of input without ids",
    "ties=threshold": "one point for each distinct score",
    "interpolation=step": "precision at the relevant items, as it is",
    "interpolation=trapezoid": "the area under straight lines between the points",
    "interpolation=envelope": "the area under the largest precision at or beyond each recall",
    "interpolation=11-point": "the mean of that largest precision at 11 recall levels",
    "interpolation=40-point": "the mean of that largest precision at 40 recall levels",
    "interpolation=101-point": "the mean of that largest precision at 101 recall levels",
    "empty_target_action=neg": "a query without a relevant item counts as 0",
    "empty_target_action=pos": "a query without a relevant item counts as 1",
    "empty_target_action=skip": "a query without a relevant item is left out",
    "empty_target_action=error": "a query without a relevant item is an error",
    "aggregation": "how the values of the queries become one",
    "protocol": "the rules of evaluation",
    "iou_type": "whose overlaps are measured",
    "average": "classes one by one (macro), or all as one (micro)",
    "iou_thresholds": "overlaps from which a detection matches",
    "recall_thresholds": "recall levels at which precision is read; none: every one",
    "areas": "ranges of object size, in square pixels",
    "max_detections": "how many of the best detections count; none: all",
    "cap_per": "what that number is for: a class of an image, or an image",
    "assign": "which ground truth a detection takes",
    "strict": "whether an overlap must exceed the threshold",
    "inclusive": "whether the last row and column of pixels belong to a box",
    "ignored": "keys that mark an object as not counting",
    "epsilon": "added to the denominator of precision",
    "federated": "whether classes are judged only where an image names them",
    "group_weight": "what a group of objects counts",
    "absent": "what a class without ground truth counts",
}

MANY_QUERIES = 10_000
PLACE = "# stands before the place of {} that has no id."

COUNTS = {
    "num_queries": "Queries",
    "num_images": "Images",
    "num_empty": "Queries without a relevant item",
    "num_duplicates": "Duplicates left out",
    "num_duplicate_queries": "of these, queries",
    "num_duplicate_items": "of these, items",
    "num_self": "Queries that also stand in the gallery",
    "num_conflicts": "Duplicates that differed from the copy that was kept",
    "num_unjudged": "Detections of classes without ground truth",
}


def to_html(result: RetrievalResult | DetectionResult, path: str | PathLike[str], *, title: str | None = None) -> None:
    """Write a result as one self-contained HTML page: headline numbers, conventions, curves, a table, worst cases.

    The page loads nothing, from the network or elsewhere, and its policy allows no script but its own. It is written
    under another name first and then moved, so that a reader never sees half of it. Of very many queries the table
    holds those of the lowest AP, and says so: 10,000, or fewer with many cut-offs.

    Args:
        result: of a retrieval, hashing, embedding or detection metric.
        path: the file; it is replaced if there is one.
        title: the heading.

    Raises:
        ValueError: if an argument is not as said, or the result has no value (``empty_target_action="error"``).
        OSError: if the file cannot be written.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from map_metrics import RetrievalMAP
        >>> metric = RetrievalMAP()
        >>> metric.update(torch.tensor([[3.0, 2, 1], [1, 2, 3]]), torch.tensor([[1, 0, 0], [1, 0, 1]]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = Path(folder) / "report.html"
        ...     metric.result().to_html(page, title="Two queries")
        ...     page.read_text(encoding="utf-8")[:15]
        '<!doctype html>'
    """
    if title is not None and not isinstance(title, str):
        raise ValueError(f"Argument `title` must be None or a string, got {title!r}")
    if isinstance(result, RetrievalResult):
        page = retrieval_page(result)
    elif isinstance(result, DetectionResult):
        page = detection_page(result)
    else:
        raise ValueError(
            f"Argument `result` must be a RetrievalResult or a DetectionResult, got {type(result).__name__}"
        )
    write_atomically(Path(path), render(page if title is None else page._replace(title=title)))


# --- retrieval --------------------------------------------------------------------------------------------------------


def retrieval_page(result: RetrievalResult) -> Page:
    """What stands on the page of a retrieval, hashing or embedding result."""
    told = result.to_dict()
    value = told["value"] if isinstance(told["value"], dict) else {"map": told["value"]}
    headline = [
        Figure(key, f"{_aggregation(result.conventions)} over the queries", number) for key, number in value.items()
    ]
    if len(result.query):
        headline.append(Figure("chance", "the same of a random order", float(result.chance)))
    table = _queries(result, told["queries"])
    return Page(
        "Mean average precision of rankings",
        headline,
        _facts(told["conventions"], Conventions),
        _counts(told),
        _environment(),
        list(result.notes().values()),
        _retrieval_charts(result),
        table,
        [table],
    )


def _aggregation(conventions: Conventions) -> str:
    named = conventions.aggregation
    return named if isinstance(named, str) else getattr(named, "__name__", "aggregate")


def _queries(result: RetrievalResult, queries: list[dict[str, Any]]) -> Table:
    """One row per query, the lowest AP (at the first ``top_k``) first, those that are skipped last."""
    several = isinstance(result.conventions.top_k, tuple)
    cutoffs = ["" if k is None else f"@{k}" for k in result.conventions.cutoffs]
    columns = [
        Column("query", "Query", "id"),
        *(Column(f"ap{k}", f"AP{k}", "score") for k in cutoffs),
        Column("num_relevant", "Relevant", "count"),
        *(Column(f"num_hits{k}", f"Found{k}", "count") for k in cutoffs),
        Column("num_items", "Ranked", "count"),
        Column("first_hit", "First hit", "count"),
    ]
    rows = []
    for query, first in zip(queries, result.first_hit.tolist(), strict=True):
        ap, hits = ((query[key] if several else [query[key]]) for key in ("ap", "num_hits"))
        name = str(query["query"]) if query["named"] else f"#{query['query']}"
        rows.append([name, *ap, query["num_relevant"], *hits, query["num_items"], _defined(first)])
    note = "" if bool(result.named.all()) else PLACE.format("a query")
    return Table("queries", columns, _lowest_first(rows, 1), 1, note)


def _retrieval_charts(result: RetrievalResult) -> list[Chart]:
    charts = []
    if bool((result.num_relevant > 0).any()):
        coarse = result.curve(11)
        fine = result.curve(101) if len(result.query) <= MANY_QUERIES else coarse  # which takes seconds for 100,000
        line = Line("largest precision at or beyond each recall", *_points(*fine), marks=_points(*coarse))
        charts.append(Chart("Precision and recall, mean over the queries", "recall", "precision", [line]))
    if result.distances is not None:
        precision, recall = result.radius_curve()
        radius = torch.arange(len(precision))
        lines = [Line("precision", *_points(radius, precision)), Line("recall", *_points(radius, recall))]
        charts.append(Chart("Items within a Hamming radius, mean over the queries", "radius in bits", "", lines))
    ap = result.ap if result.ap.ndim == 1 else result.ap[:, 0]
    return [*charts, *_histogram("queries", ap[~ap.isnan()])]


# --- detection --------------------------------------------------------------------------------------------------------


def detection_page(result: DetectionResult) -> Page:
    """What stands on the page of a detection result."""
    told = result.to_dict()
    where = [" ".join(line.split("@[")[1].split("]")[0].split()) for line in result.summary().splitlines()]
    headline = [
        Figure(key, what.replace("= ", "=").replace(" | ", ", "), number if number != -1 else None)
        for (key, number), what in zip(told["value"].items(), where, strict=True)
    ]
    rules = {"protocol": told["protocol"]["name"], "iou_type": result.iou_type, "average": told["average"]}
    counts = [
        *_counts(told),
        Fact("Ground truths", str(int(result.num_ground_truths.sum())), ""),
        Fact("Detections", str(int(result.num_detections.sum())), ""),
        Fact("Classes", str(len(told["classes"])), ""),
    ]
    table = _classes(result, told["classes"])
    return Page(
        "Mean average precision of detections",
        headline,
        _facts(rules) + _facts({k: v for k, v in told["protocol"].items() if k != "name"}, Protocol),
        counts,
        _environment(),
        list(result.notes().values()),
        _detection_charts(result),
        table,
        [table, *([_images(result)] if result.evidence else [])],
    )


def _classes(result: DetectionResult, classes: list[dict[str, Any]]) -> Table:
    """One row per class, the lowest AP first, those without one last."""
    thresholds = result.options.protocol.iou_thresholds
    single = [t for t in (0.5, 0.75) if t in thresholds and len(thresholds) > 1]
    columns = [
        Column("name", "Class", "text"),
        Column("label", "Label", "id"),
        Column("ap", "AP", "score"),
        *(Column(f"ap_{round(100 * t)}", f"AP {t:.2f}", "score") for t in single),
        Column("ar", "AR", "score"),
        Column("ground_truths", "Objects", "count"),
        Column("detections", "Detections", "count"),
    ]
    at = [_class_ap(result, thresholds.index(t), len(classes)) for t in single]
    rows = []
    for i, row in enumerate(classes):
        scores = [row["ap"], *(ap[i] for ap in at), row["ar"]]
        counts = [row["ground_truths"], row["detections"]]
        rows.append([row["name"], str(row["label"]), *(None if x == -1 else x for x in scores), *counts])
    return Table("classes", columns, _lowest_first(rows, 2), 2, "")


def _images(result: DetectionResult) -> Table:
    """The worst images."""
    columns = [
        Column("image", "Image", "id"),
        Column("ap", "AP", "score"),
        Column("ground_truths", "Objects", "count"),
        Column("true_positives", "Found", "count"),
        Column("missed", "Missed", "count"),
        Column("false_positives", "False", "count"),
        Column("detections", "Detections", "count"),
    ]
    worst = result.worst_images(WORST)
    named = dict(zip(result.evidence.image_ids, result.evidence.named.tolist(), strict=True)) if result.evidence else {}
    rows = [[row[column.key] for column in columns] for row in worst]
    for row in rows:
        row[0] = f"{'' if named[row[0]] else '#'}{row[0]}"
    note = "Found, missed and false are counted at an IoU of 0.50."
    unnamed = "" if all(named.values()) else f" {PLACE.format('an image')}"
    return Table("images", columns, rows, 1, note + unnamed)


def _class_ap(result: DetectionResult, threshold: int, num_classes: int) -> list[float]:
    """AP of each class at one threshold; -1 where one curve stands for all classes."""
    one, tables = slice(threshold, threshold + 1), result.by_class
    ap, _ = per_class(tables._replace(precision=tables.precision[one], recall=tables.recall[one]))
    return ap.tolist() if len(ap) == num_classes else [-1.0] * num_classes


def _detection_charts(result: DetectionResult) -> list[Chart]:
    charts, protocol = [], result.options.protocol
    precision, thresholds = result.precision[..., 0, -1], protocol.iou_thresholds
    precision = precision[:, :, (precision > -1).all(0).all(0)]  # [T, R, classes with ground truth]
    if len(protocol.recall_thresholds) > 1 and precision.shape[2]:
        recall, order = torch.tensor(protocol.recall_thresholds, dtype=torch.float64).sort()
        tables = {f"IoU {t:.2f}": precision[i] for i, t in enumerate(thresholds) if t in (0.5, 0.75)}
        if len(thresholds) > 1 or not tables:
            tables[f"mean over IoU {min(thresholds):.2f} to {max(thresholds):.2f}"] = precision.mean(0)
        lines = [Line(name, *_points(recall, table[order].mean(1))) for name, table in tables.items()]
        charts.append(Chart("Precision and recall, mean over the classes", "recall", "precision", lines))
    ap, _ = per_class(result.by_class)
    return [*charts, *_histogram("classes" if len(ap) == len(result.classes) else "curves", ap[ap > -1])]


# --- what both share --------------------------------------------------------------------------------------------------


def _points(x: Tensor, y: Tensor) -> tuple[list[float], list[float]]:
    return x.tolist(), y.tolist()


def _defined(value: float) -> float | None:
    return None if value != value else value


def _lowest_first(rows: list[list[Any]], column: int) -> list[list[Any]]:
    """Sorted by one column, in the given order among equals; None last."""
    return sorted(rows, key=lambda row: (row[column] is None, row[column] or 0.0))


def _histogram(of: str, ap: Tensor) -> list[Chart]:
    """How many have which AP, in 20 steps; nothing for less than two of them."""
    if len(ap) < 2:
        return []
    counts, edges = np.histogram(ap.numpy(), bins=20, range=(0.0, max(1.0, float(ap.max()))))
    title = f"Average precision of the {of}"
    return [Chart(title, "average precision", f"number of {of}", [], (edges.tolist(), counts.tolist()))]


def _facts(values: dict[str, Any], record: type[Conventions] | type[Protocol] | None = None) -> list[Fact]:
    """Each convention, its value and what it means; of a record those that are fields of it."""
    names = values if record is None else [field.name for field in fields(record)]
    facts = []
    for name in names:
        if name in values:
            text = _text(values[name])
            facts.append(Fact(name, text, MEANINGS.get(f"{name}={text}", MEANINGS.get(name, ""))))
    return facts


def _text(value: Any) -> str:
    """A convention in few characters: of a long grid the ends and the length."""
    if isinstance(value, tuple | list):
        if value and isinstance(value[0], tuple):
            return "; ".join(f"{name} {low:g} to {high:g}" for name, low, high in value)
        shown = [_text(v) for v in value]
        return (
            ", ".join(shown) or "none" if len(shown) < 7 else f"{shown[0]}, {shown[1]}, ..., {shown[-1]} ({len(shown)})"
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _counts(told: dict[str, Any]) -> list[Fact]:
    return [Fact(label, str(told[key]), "") for key, label in COUNTS.items() if key in told]


def _environment() -> list[Fact]:
    own: Callable[[str], str] = importlib.metadata.version
    try:
        version = own("torchmetrics-map")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        version = "not installed"
    versions = {
        "map_metrics": version,
        "torch": torch.__version__,
        "torchmetrics": torchmetrics.__version__,
        "numpy": np.__version__,
        "Python": platform.python_version(),
        "System": f"{platform.system()} {platform.machine()}",
        "Written": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }
    return [Fact(name, str(value), "") for name, value in versions.items()]
