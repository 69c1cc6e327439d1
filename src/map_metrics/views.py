"""What of a result goes into a log beside its mAP: scalars by name, pictures and tables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from map_metrics import plots
from map_metrics.detection.metric import DetectionMAP
from map_metrics.detection.result import DetectionResult, value_of
from map_metrics.hashing import HashingMAPAtK
from map_metrics.results import RetrievalResult
from map_metrics.rows import RowMetric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = RetrievalResult | DetectionResult | Mapping[str, DetectionResult]

_RANKED: dict[str, Callable[[RetrievalResult, int], Tensor]] = {
    "precision": RetrievalResult.precision_at,
    "recall": RetrievalResult.recall_at,
    "precision_within": RetrievalResult.precision_within,
}
_MOST_CLASSES = 20  # with a curve of their own
_WORST = 20  # queries or images in the table


class Picture(NamedTuple):
    """A picture to draw; ``curves``, if any, are its lines: name -> (recall, precision)."""

    name: str
    draw: Callable[[], tuple[Figure, Any]]
    curves: plots.Curves | None = None


class Table(NamedTuple):
    """Rows of plain values."""

    name: str
    columns: list[str]
    rows: list[list[Any]]


def numbers(result: Result, extra: Sequence[str] = ()) -> dict[str, Any]:
    """Key -> what ``compute()`` returns, ``map`` where that is one value, and the scalars beside it."""
    if isinstance(result, RetrievalResult):
        value: Any = result.value()
    else:
        value = value_of({result.iou_type: result} if isinstance(result, DetectionResult) else result)
    return named(value) | scalars(result, extra)


def named(value: Any) -> dict[str, Any]:
    """Key -> value; what is one number is a float, vectors and tables are as they were."""
    items = value if isinstance(value, Mapping) else {"map": value}
    return {
        key: item.item() if isinstance(item, Tensor) and item.ndim == 0 and item.is_floating_point() else item
        for key, item in items.items()
    }


def defined(value: Any) -> bool:
    """Whether this is a number to log: NaN, and -1 in these metrics, say that there was nothing to measure."""
    return isinstance(value, float) and value != -1 and not math.isnan(value)


def check_extra(names: Any, metric: Any) -> tuple[str, ...]:
    """The names of scalars beside the mAP, if this metric has them.

    Raises:
        ValueError: naming those it has.
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ValueError(f"Argument `extra` must be a sequence of names, got {names!r}")
    known = {"classes": r"classes"} if isinstance(metric, DetectionMAP) else {}
    if isinstance(metric, RowMetric) and not known:
        known = {"chance": "chance", "precision@K": r"precision@[1-9]\d*", "recall@K": r"recall@[1-9]\d*"}
    if isinstance(metric, HashingMAPAtK):
        known["precision_within@RADIUS"] = r"precision_within@\d+"
    for name in names:
        if not (isinstance(name, str) and any(re.fullmatch(pattern, name) for pattern in known.values())):
            have = f"{type(metric).__name__} has {list(known)}"
            raise ValueError(f"Argument `extra` must hold names that the metric has, got {name!r}; {have}")
    return tuple(names)


def scalars(result: Result, names: Sequence[str]) -> dict[str, float]:
    """Name -> value, in the mean over the queries that count in the mAP; NaN or -1 where there is none."""
    found: dict[str, float] = {}
    for name in names:
        if isinstance(result, RetrievalResult):
            found[name] = float(result.chance) if name == "chance" else _mean_over_queries(result, name)
        else:
            for prefix, part in _parts(result):
                found |= {f"{prefix}ap/{row['name']}": row["ap"] for row in part.per_class()}
    return found


def _mean_over_queries(result: RetrievalResult, name: str) -> float:
    what, _, number = name.partition("@")
    ap = result.ap.reshape(len(result.query), -1)[:, 0]
    values = _RANKED[what](result, int(number))[~ap.isnan()].tolist()
    return math.fsum(values) / len(values) if values else math.nan


def pictures(result: Result) -> Iterator[Picture]:
    """Those that show something."""
    if isinstance(result, RetrievalResult):
        yield from _ranking_pictures(result)
        return
    for prefix, part in _parts(result):
        lines = plots.curves(part)
        if lines:
            yield Picture(f"{prefix}pr_curve", partial(plots.draw_lines, part, lines), lines | _class_curves(part))
        if any(row["ap"] > -1 for row in part.per_class()):
            yield Picture(f"{prefix}ap_per_class", part.plot_per_class)


def _ranking_pictures(result: RetrievalResult) -> Iterator[Picture]:
    lines = plots.curves(result)
    if lines:
        yield Picture("pr_curve", partial(plots.draw_lines, result, lines), lines)
    if not bool(result.ap.isnan().all()):
        yield Picture("ap_per_query", result.plot_per_query)
    if result.distances is not None and len(result.query):
        yield Picture("hamming_radius", lambda: plots.plot_radius(result))


def _class_curves(result: DetectionResult) -> dict[str, tuple[Tensor, Tensor]]:
    """A curve for each class, in the mean over the thresholds, where the classes are few."""
    judged = [row for row in result.per_class() if row["ap"] > -1]
    if not 1 < len(judged) <= _MOST_CLASSES:
        return {}
    return {row["name"]: next(iter(plots.curves(result, row["label"]).values())) for row in judged}


def tables(result: Result) -> Iterator[Table]:
    """Of detections the classes and the images of the lowest AP, of rankings such queries; none without rows."""
    parts: list[tuple[str, list[dict[str, Any]]]]
    if isinstance(result, RetrievalResult):
        parts = [("worst_queries", [] if bool(result.ap.isnan().all()) else result.worst(_WORST))]
    else:
        parts = []
        for prefix, part in _parts(result):
            parts.append((f"{prefix}classes", part.per_class()))
            parts.append((f"{prefix}worst_images", part.worst_images(_WORST) if part.evidence else []))
    for name, rows in parts:
        flat = [_flat(row, result) for row in rows]
        if flat:
            yield Table(name, list(flat[0]), [list(row.values()) for row in flat])


def _flat(row: dict[str, Any], result: Result) -> dict[str, Any]:
    """A column for each cut-off where there are several."""
    cells: dict[str, Any] = {}
    for key, cell in row.items():
        if isinstance(cell, list) and isinstance(result, RetrievalResult):
            cells |= {f"{key}@{k}": item for k, item in zip(result.conventions.cutoffs, cell, strict=True)}
        else:
            cells[key] = cell
    return cells


def _parts(result: DetectionResult | Mapping[str, DetectionResult]) -> list[tuple[str, DetectionResult]]:
    """The results by type of overlap, with the prefix of their keys."""
    if isinstance(result, DetectionResult):
        return [("", result)]
    return [(part.options.prefix(iou_type), part) for iou_type, part in result.items()]
