"""What stands behind the detection numbers: tables, classes and counts. Scalars and texts are views of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from map_metrics import plots
from map_metrics.detection.options import DetectionOptions
from map_metrics.detection.summary import Tables, per_class, summarize


@dataclass(frozen=True, repr=False)
class DetectionResult:
    """The tables behind a mean average precision of detections.

    Attributes:
        tables: precision and recall on the grids of the protocol.
        by_class: the same class by class; other tables than ``tables`` only with ``average="micro"`` and class metrics.
        options: how the rows became numbers.
        iou_type: whose overlaps these are.
        num_images: images evaluated.
        num_duplicates: images left out because their ids had been seen.
        num_conflicts: how many of those differed from the copy that was kept.
        ious: overlaps by (image, label) with ``extended_summary=True``.
    """

    tables: Tables
    by_class: Tables
    options: DetectionOptions
    iou_type: str
    num_images: int
    num_duplicates: int = 0
    num_conflicts: int = 0
    ious: dict[tuple[int, int], Tensor] | None = None

    @property
    def classes(self) -> Tensor:
        """(C,) int64: every detected or true label, ascending."""
        return self.tables.classes

    @property
    def precision(self) -> Tensor:
        """[thresholds, recalls, classes, areas, caps] float64, -1 where undefined: the axes of pycocotools."""
        return self.tables.precision

    @property
    def scores(self) -> Tensor:
        """[thresholds, recalls, classes, areas, caps] float64: the score at which each recall is reached."""
        return self.tables.scores

    @property
    def recall(self) -> Tensor:
        """[thresholds, classes, areas, caps] float64, -1 where undefined."""
        return self.tables.recall

    @property
    def num_ground_truths(self) -> Tensor:
        """(C,) int64: ground truths that are no crowd."""
        return self.tables.num_truths

    @property
    def num_detections(self) -> Tensor:
        """(C,) int64: detections."""
        return self.tables.num_detections

    @property
    def num_unjudged(self) -> int:
        """Detections of classes without ground truth: COCO's mean leaves such classes out, whatever is detected."""
        return int(self.num_detections[self.num_ground_truths == 0].sum())

    @functools.cached_property
    def numbers(self) -> dict[str, Tensor]:
        """The headline numbers under torchmetrics' names, 0-d float64, -1 where undefined."""
        return summarize(self.tables, self.options.protocol, self.options.class_groups)

    def per_class(self) -> list[dict[str, Any]]:
        """One row per class: label, name, AP and AR over the first area range (-1 where undefined), and counts."""
        ap, ar = per_class(self.by_class)
        names = self.options.class_names or {}
        if len(ap) != len(self.classes):  # micro without class metrics: there is one curve for all
            ap = ar = torch.full((len(self.classes),), -1.0)
        columns = [x.tolist() for x in (self.classes, ap, ar, self.num_ground_truths, self.num_detections)]
        return [
            {
                "label": label,
                "name": names.get(label, str(label)),
                "ap": p,
                "ar": r,
                "ground_truths": g,
                "detections": d,
            }
            for label, p, r, g, d in zip(*columns, strict=True)
        ]

    def values(self) -> dict[str, Any]:
        """The headline numbers, and what the options add to them."""
        value: dict[str, Any] = dict(self.numbers)
        if self.options.class_metrics:
            value["map_per_class"], value[f"{self.options.protocol.mar_keys[-1]}_per_class"] = per_class(self.by_class)
            value["classes"] = self.classes
        if self.options.extended_summary:
            value["ious"] = self.ious
            value |= {"precision": self.precision, "recall": self.recall, "scores": self.scores}
        return value

    def summary(self) -> str:
        """The table that pycocotools prints, one line per number."""
        protocol = self.options.protocol
        spans = {"50": "0.50", "75": "0.75"}
        whole = f"{protocol.iou_thresholds[0]:.2f}:{protocol.iou_thresholds[-1]:.2f}"
        areas = [name for name, _, _ in protocol.areas]
        largest = str(protocol.max_detections[-1]) if protocol.max_detections else "all"
        lines = []
        for key, value in self.numbers.items():
            kind, _, part = key.partition("_")
            title = "Average Precision  (AP)" if kind == "map" else "Average Recall     (AR)"
            area = part if part in areas else areas[0]
            cap = part if kind == "mar" and part.isdigit() else largest
            iou = spans.get(part, whole) if kind == "map" else whole
            group = f"| group={part} " if part in (self.options.class_groups or {}).values() else ""
            where = f"IoU={iou:<9} | area={area:>6s} | maxDets={cap:>3s} {group}"
            lines.append(f" {title} @[ {where}] = {float(value):0.3f}")
        return "\n".join(lines)

    def notes(self) -> dict[str, str]:
        """What a reader of the numbers should know: topic -> sentence. The metric warns of each once."""
        if not self.num_conflicts:
            return {}
        return {
            "conflicts": f"{self.num_conflicts} images repeat an image_id with another content; of each id one copy is "
            "kept (the smallest, the same on any number of ranks)."
        }

    def plot_curve(self, label: int | None = None, ax: Any = None) -> Any:
        """The mean precision at each recall, or of one class: see :func:`map_metrics.plots.plot_curve`."""
        return plots.plot_curve(self, label, ax)

    def plot_per_class(self, n: int = 20, ax: Any = None) -> Any:
        """A bar for the AP of each class: figure and axes of :func:`map_metrics.plots.plot_per_class`."""
        return plots.plot_per_class(self, n, ax)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the tables as plain Python values."""
        return {
            "value": {key: float(value) for key, value in self.numbers.items()},
            "protocol": vars(self.options.protocol) | {},
            "average": self.options.average,
            "num_images": self.num_images,
            "num_duplicates": self.num_duplicates,
            "num_conflicts": self.num_conflicts,
            "num_unjudged": self.num_unjudged,
            "classes": self.per_class(),
        }

    def __repr__(self) -> str:
        value = float(self.numbers["map"])
        return (
            f"DetectionResult(map={value:.6f}, images={self.num_images}, classes={len(self.classes)}, "
            f"protocol={self.options.protocol.name!r}, average={self.options.average!r})"
        )


def value_of(results: Mapping[str, DetectionResult]) -> dict[str, Any] | Tensor:
    """What ``compute()`` returns of the results by type of overlap: with two of them, under prefixed keys."""
    value: dict[str, Any] = {}
    for iou_type, result in results.items():
        prefix = result.options.prefix(iou_type)
        value |= {key if key == "classes" else prefix + key: item for key, item in result.values().items()}
    output = next(iter(results.values())).options.output
    return value if output is None else value[output]
