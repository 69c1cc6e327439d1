"""From matched images to tables, and from the tables to numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from map_metrics.detection.curves import Floats, sample_tables
from map_metrics.detection.matched import Average, Matched, match_images
from map_metrics.detection.matching import Detections, GroundTruths, ImageLabels
from map_metrics.detection.pairs import Overlaps
from map_metrics.detection.protocols import Protocol


class Tables(NamedTuple):
    """Precision and recall on the grids of a protocol, -1 where a class has no ground truth in an area range.

    C is the number of classes, or 1 with ``average="micro"``. Without recall levels R is 1 and ``precision`` the area
    under its envelope; without caps M is 1.

    Attributes:
        classes: (number of classes,) int64, every detected or true label, ascending.
        precision: [T, R, C, A, M] float64, the largest precision at or beyond a recall; 0 beyond the last recall.
        scores: [T, R, C, A, M] float64, the score at which that recall is reached (without levels, the last one);
            0 beyond the last recall.
        recall: [T, C, A, M] float64, the last recall.
        num_truths: (number of classes,) int64, ground truths that count, whatever their area.
        num_detections: (number of classes,) int64.
    """

    classes: Tensor
    precision: Tensor
    scores: Tensor
    recall: Tensor
    num_truths: Tensor
    num_detections: Tensor


def evaluate(
    detections: Detections,
    truths: GroundTruths,
    protocol: Protocol,
    *,
    average: Average = "macro",
    overlaps: Overlaps | None = None,
    image_labels: ImageLabels | None = None,
) -> Tables:
    """Match all images and tabulate precision and recall: the arguments are those of :func:`match_images`."""
    matched = match_images(detections, truths, protocol, average=average, overlaps=overlaps, image_labels=image_labels)
    return tabulate(matched, protocol)


def tabulate(matched: Matched, protocol: Protocol) -> Tables:
    """The tables of matched images, on the grids of the protocol they were matched under."""
    label, ranking = matched.truths.label, matched.ranking
    counts = torch.stack([torch.bincount(label[~row], minlength=matched.num_curves) for row in matched.ignored])
    precision, scores, recall = sample_tables(
        matched.detections, ranking, matched.matches, matched.ignored, matched.outside, counts, matched.order, protocol
    )
    if protocol.absent == "zero":
        for area in range(len(matched.outside)):
            precision[:, :, absent_curves(matched, area), area] = 0.0
    return Tables(matched.classes, precision, scores, recall, matched.num_truths, matched.num_detections)


def absent_curves(matched: Matched, area: int, weight: Tensor | None = None) -> Tensor:
    """(C,) bool: curves with detections that could count in an area range, but without any ground truth.

    Args:
        matched: the images.
        area: index of the area range.
        weight: (images,) int64, how often each image counts.
    """
    places = (~matched.outside[area]).nonzero()[:, 0]
    found, true = matched.detections.image[matched.ranking.row[places]], matched.truths.image
    true_label = matched.truths.label
    if weight is not None:
        places, true_label = places[weight[found] > 0], true_label[weight[true] > 0]
    present = torch.bincount(true_label, minlength=matched.num_curves) > 0
    return ~present & (torch.bincount(matched.ranking.label[places], minlength=matched.num_curves) > 0)


def summarize(tables: Tables, protocol: Protocol, class_groups: Mapping[int, str] | None = None) -> dict[str, Tensor]:
    """The COCO numbers under torchmetrics' names, 0-d float64, -1 where nothing is defined.

    The unnamed ones are over the first area range; all but ``mar_{cap}`` are at the largest cap; ``map_50`` and
    ``map_75`` are -1 unless the protocol has exactly that threshold. A protocol without caps has one ``mar``.

    Args:
        tables: of macro averaging, where groups are given.
        protocol: of the tables.
        class_groups: label -> name of its group (LVIS: how frequent a class is); adds ``map_{group}``, by name.
    """
    precision, recall = tables.precision.numpy()[..., -1], tables.recall.numpy()
    thresholds = np.array(protocol.iou_thresholds)
    numbers = {"map": mean_of_defined(precision[..., 0])}
    for percent in (50, 75):
        numbers[f"map_{percent}"] = mean_of_defined(precision[thresholds == percent / 100, ..., 0])
    names = [name for name, _, _ in protocol.areas]
    numbers |= {f"map_{name}": mean_of_defined(precision[..., a]) for a, name in enumerate(names) if a}
    groups = class_groups or {}
    group_of_class = np.array([groups.get(label) for label in tables.classes.tolist()], dtype=object)
    for group in sorted(set(groups.values())):
        numbers[f"map_{group}"] = mean_of_defined(precision[:, :, group_of_class == group, 0])
    numbers |= {name: mean_of_defined(recall[..., 0, m]) for m, name in enumerate(protocol.mar_keys)}
    numbers |= {f"mar_{name}": mean_of_defined(recall[..., a, -1]) for a, name in enumerate(names) if a}
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}


def per_class(tables: Tables) -> tuple[Tensor, Tensor]:
    """AP and AR of each class at the largest cap over the first area range: (C,) float64 each, -1 where undefined."""
    precision, recall = tables.precision.numpy()[..., 0, -1], tables.recall.numpy()[..., 0, -1]
    classes = range(recall.shape[1])
    average_precision = torch.tensor([mean_of_defined(precision[:, :, c]) for c in classes], dtype=torch.float64)
    average_recall = torch.tensor([mean_of_defined(recall[:, c]) for c in classes], dtype=torch.float64)
    return average_precision, average_recall


def precision_at(tables: Tables, protocol: Protocol, iou: float) -> Tensor:
    """AP of each class at one threshold, as :func:`per_class`; -1 where the protocol does not have exactly that one."""
    precision = tables.precision.numpy()[np.array(protocol.iou_thresholds) == iou][..., 0, -1]
    return torch.tensor([mean_of_defined(precision[:, :, c]) for c in range(precision.shape[2])], dtype=torch.float64)


def mean_of_defined(table: Floats) -> float:
    """NumPy's mean, in NumPy's order of summation, over what is defined."""
    defined = table[table > -1]
    return float(defined.mean()) if len(defined) else -1.0
