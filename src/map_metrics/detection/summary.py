"""From rows to tables, and from the tables to numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from map_metrics.detection.admission import admit
from map_metrics.detection.best_overlap import match_best
from map_metrics.detection.curves import Floats, tabulate
from map_metrics.detection.matching import (
    Detections,
    GroundTruths,
    ImageLabels,
    Overlaps,
    box_pairs,
    cell_of,
    effective,
    match,
    rank_detections,
    stored_pairs,
)
from map_metrics.detection.protocols import Protocol
from map_metrics.ranking import dense_ids, lexsort

Average = Literal["macro", "micro"]
Rows = TypeVar("Rows", Detections, GroundTruths)

RULES = {"coco": match, "best": match_best}


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
    """Match all images and tabulate precision and recall.

    Args:
        detections: rows of all images.
        truths: rows of all images.
        protocol: grids and rules.
        average: ``"macro"`` evaluates every class on its own; ``"micro"`` all classes as one (pycocotools' useCats=0),
            the rows of an image in the order of (label, input position) and the caps per image.
        overlaps: of these rows, where they are not those of the boxes.
        image_labels: what is known of whole images, for protocols with ``federated``.
    """
    classes, detections, truths = _rank_labels(detections, truths)
    num_classes = len(classes)
    uncounted = truths.ignore | (truths.crowd & (protocol.group_weight == 0))
    num_truths = torch.bincount(truths.label[~uncounted], minlength=num_classes)
    num_detections = torch.bincount(detections.label, minlength=num_classes)
    standing = None
    if protocol.federated or protocol.cap_per == "image":
        labels = None if image_labels is None else _rank_image_labels(image_labels, classes)
        detections, overlaps, standing = admit(detections, truths, overlaps, labels, num_classes, protocol)
    detection_rows, truth_rows = torch.arange(len(detections.label)), torch.arange(len(truths.label))
    if average == "micro":
        detections, detection_rows = _one_class(detections)
        truths, truth_rows = _one_class(truths)
        num_classes = 1
    truths, by_cell = _by_cell(truths, num_classes)
    truth_rows = truth_rows[by_cell]
    ranking = rank_detections(detections, num_classes)
    rows = detection_rows[ranking.row]
    outside = _outside(detections.area[ranking.row], protocol)
    if standing is not None:
        ranking = ranking if standing.position is None else ranking._replace(position=standing.position[rows])
        outside |= standing.excused[rows]

    cell = cell_of(truths, num_classes)
    thresholds, order = effective(protocol.iou_thresholds, strict=protocol.strict).sort(stable=True)
    cap, lowest = protocol.cuts[-1], float(thresholds[0])
    if overlaps is None:
        pairs = box_pairs(_pixels(detections, protocol), ranking, _pixels(truths, protocol), cell, cap, lowest)
    else:
        pairs = stored_pairs(overlaps, ranking, detection_rows, truth_rows, cell, cap, lowest)
    ignored = uncounted[truth_rows] | _outside(truths.area, protocol)
    matches = RULES[protocol.assign](pairs, cell, truths.crowd, ignored, thresholds, strict=protocol.strict)
    counts = torch.stack([torch.bincount(truths.label[~row], minlength=num_classes) for row in ignored])
    precision, scores, recall = tabulate(detections, ranking, matches, ignored, outside, counts, order, protocol)
    if protocol.absent == "zero":
        absent = torch.bincount(truths.label, minlength=num_classes) == 0
        for area, out in enumerate(outside):
            precision[:, :, absent & (torch.bincount(ranking.label[~out], minlength=num_classes) > 0), area] = 0.0
    return Tables(classes, precision, scores, recall, num_truths, num_detections)


def overlaps_by_cell(
    detections: Detections, truths: GroundTruths, protocol: Protocol, *, average: Average = "macro"
) -> dict[tuple[int, int], Tensor]:
    """Overlap of every detection with every ground truth of its cell, as in pycocotools' ``COCOeval.ious``.

    Returns:
        (D, G) float64 by (image, label), for the cells that hold both; the label is -1 with ``average="micro"``.
            Detections by descending score, at most the largest cap of them; ground truths in input order.
    """
    classes, detections, truths = _rank_labels(detections, truths)
    if average == "micro":
        detections, truths, classes = _one_class(detections)[0], _one_class(truths)[0], torch.tensor([-1])
    detections, truths = _pixels(detections, protocol), _pixels(truths, protocol)
    truths, _ = _by_cell(truths, len(classes))
    ranking = rank_detections(detections, len(classes))
    cell = cell_of(truths, len(classes))
    pairs = box_pairs(detections, ranking, truths, cell, protocol.cuts[-1], lowest=0.0)  # that is, all pairs
    cells, num_pairs = cell[pairs.truth].unique_consecutive(return_counts=True)
    widths = torch.searchsorted(cell, cells, right=True) - torch.searchsorted(cell, cells)
    keys = zip((cells // len(classes)).tolist(), classes[cells % len(classes)].tolist(), strict=True)
    blocks = zip(pairs.overlap.split(num_pairs.tolist()), widths.tolist(), strict=True)
    return {key: block.view(-1, width) for key, (block, width) in zip(keys, blocks, strict=True)}


def _rank_labels(detections: Detections, truths: GroundTruths) -> tuple[Tensor, Detections, GroundTruths]:
    """The labels that occur, ascending, and the rows with each label replaced by its rank among them."""
    classes, rank = dense_ids(torch.cat([detections.label, truths.label]))
    n = len(detections.label)
    return classes, detections._replace(label=rank[:n]), truths._replace(label=rank[n:])


def _rank_image_labels(labels: ImageLabels, classes: Tensor) -> ImageLabels:
    """Those of classes that occur, with each label replaced by its rank among them."""
    rank = torch.searchsorted(classes, labels.label.contiguous())
    occurs = torch.isin(labels.label, classes)
    return ImageLabels(*(column[occurs] for column in labels._replace(label=rank)))


def _pixels(rows: Rows, protocol: Protocol) -> Rows:
    """Boxes with their last row and column of pixels, where the protocol counts these in."""
    return rows._replace(box=rows.box + rows.box.new_tensor([0, 0, 1, 1])) if protocol.inclusive else rows


def _one_class(rows: Rows) -> tuple[Rows, Tensor]:
    """All labels made one, the rows of an image in the order of (label, input position); and that order."""
    order = lexsort(rows.image, rows.label)
    return type(rows)(*(column[order] for column in rows._replace(label=torch.zeros_like(rows.label)))), order


def _by_cell(truths: GroundTruths, num_classes: int) -> tuple[GroundTruths, Tensor]:
    """Rows sorted by (image, class), in input order inside a cell; and that order."""
    order = lexsort(cell_of(truths, num_classes))
    return GroundTruths(*(column[order] for column in truths)), order


def _outside(area: Tensor, protocol: Protocol) -> Tensor:
    """(A, n) bool: rows outside each area range."""
    bounds = torch.tensor([bounds for _, *bounds in protocol.areas], dtype=torch.float64)
    low, high = bounds[:, :1], bounds[:, 1:]
    return (area < low) | (area > high)


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
    numbers = {"map": _mean(precision[..., 0])}
    for percent in (50, 75):
        numbers[f"map_{percent}"] = _mean(precision[thresholds == percent / 100, ..., 0])
    names = [name for name, _, _ in protocol.areas]
    numbers |= {f"map_{name}": _mean(precision[..., a]) for a, name in enumerate(names) if a}
    groups = class_groups or {}
    group_of_class = np.array([groups.get(label) for label in tables.classes.tolist()], dtype=object)
    for group in sorted(set(groups.values())):
        numbers[f"map_{group}"] = _mean(precision[:, :, group_of_class == group, 0])
    numbers |= {name: _mean(recall[..., 0, m]) for m, name in enumerate(protocol.mar_keys)}
    numbers |= {f"mar_{name}": _mean(recall[..., a, -1]) for a, name in enumerate(names) if a}
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}


def per_class(tables: Tables) -> tuple[Tensor, Tensor]:
    """AP and AR of each class at the largest cap over the first area range: (C,) float64 each, -1 where undefined."""
    precision, recall = tables.precision.numpy()[..., 0, -1], tables.recall.numpy()[..., 0, -1]
    classes = range(recall.shape[1])
    average_precision = torch.tensor([_mean(precision[:, :, c]) for c in classes], dtype=torch.float64)
    average_recall = torch.tensor([_mean(recall[:, c]) for c in classes], dtype=torch.float64)
    return average_precision, average_recall


def _mean(table: Floats) -> float:
    """NumPy's mean, in NumPy's order of summation, over what is defined."""
    defined = table[table > -1]
    return float(defined.mean()) if len(defined) else -1.0
