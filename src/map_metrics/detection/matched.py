"""All images matched under a protocol: rows put in order, candidates found, detections assigned."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from map_metrics.detection.admission import admit
from map_metrics.detection.best_overlap import match_best
from map_metrics.detection.matching import (
    Detections,
    GroundTruths,
    ImageLabels,
    Matches,
    Pairs,
    Ranking,
    box_pairs,
    cell_of,
    effective,
    match,
    rank_detections,
    stored_pairs,
)
from map_metrics.detection.pairs import Overlaps
from map_metrics.detection.protocols import Protocol
from map_metrics.ranking import dense_ids, inverse, lexsort, take

Average = Literal["macro", "micro"]
Rows = TypeVar("Rows", Detections, GroundTruths)

RULES = {"coco": match, "best": match_best}


class Matched(NamedTuple):
    """All images matched: what every table, curve and count is made of.

    Detections and ground truths stand in the order of the evaluation, their ``label`` the rank of the curve they belong
    to: that of their class, or 0 with ``average="micro"``.

    Attributes:
        classes: (number of classes,) int64, every detected or true label, ascending.
        num_truths: (number of classes,) int64, ground truths that count, whatever their area.
        num_detections: (number of classes,) int64.
        num_curves: the number of classes, or 1 with ``average="micro"``.
        detections: the rows that take part.
        detection_class: (n,) int64, rank of each one's class.
        detection_row: (n,) int64, the row that each one came as.
        truths: the rows, sorted by cell.
        truth_class: (g,) int64, rank of each one's class.
        truth_row: (g,) int64, the row that each one came as.
        cell: (g,) int64, the cell of each.
        ranking: the detections in curve order.
        matches: who takes whom, at ascending thresholds.
        order: (T,) int64, where each of the ascending thresholds stands in the protocol.
        ignored: (A, g) bool, ground truths that do not count in an area range.
        outside: (A, n) bool, places whose detection is left out where it is unmatched.
    """

    classes: Tensor
    num_truths: Tensor
    num_detections: Tensor
    num_curves: int
    detections: Detections
    detection_class: Tensor
    detection_row: Tensor
    truths: GroundTruths
    truth_class: Tensor
    truth_row: Tensor
    cell: Tensor
    ranking: Ranking
    matches: Matches
    order: Tensor
    ignored: Tensor
    outside: Tensor


def match_images(
    detections: Detections,
    truths: GroundTruths,
    protocol: Protocol,
    *,
    average: Average = "macro",
    overlaps: Overlaps | None = None,
    image_labels: ImageLabels | None = None,
) -> Matched:
    """Match all images.

    Args:
        detections: rows of all images.
        truths: rows of all images.
        protocol: thresholds, area ranges, caps and rules.
        average: ``"macro"`` evaluates every class on its own; ``"micro"`` all classes as one (pycocotools' useCats=0),
            the rows of an image in the order of (label, input position) and the caps per image.
        overlaps: of these rows, where they are not those of the boxes.
        image_labels: of these images, for a federated protocol.
    """
    cells = _cells(detections, truths, protocol, average, overlaps, image_labels)
    truths, ranking = cells.truths, cells.ranking
    thresholds, order = effective(protocol.iou_thresholds, strict=protocol.strict).sort(stable=True)
    pairs = _pairs(cells, protocol, float(thresholds[0]))
    outside = _outside(take(cells.detections.area, ranking.row), protocol)
    if cells.excused is not None:
        outside |= take(cells.excused, ranking.row)
    ignored = uncounted(truths, protocol) | _outside(truths.area, protocol)
    return Matched(
        classes=cells.classes,
        num_truths=cells.num_truths,
        num_detections=cells.num_detections,
        num_curves=cells.num_curves,
        detections=cells.detections,
        detection_class=cells.detection_class,
        detection_row=cells.detection_row,
        truths=truths,
        truth_class=cells.truth_class,
        truth_row=cells.truth_row,
        cell=cells.cell,
        ranking=ranking,
        matches=RULES[protocol.assign](pairs, cells.cell, truths.crowd, ignored, thresholds, strict=protocol.strict),
        order=order,
        ignored=ignored,
        outside=outside,
    )


def overlaps_by_cell(
    detections: Detections,
    truths: GroundTruths,
    protocol: Protocol,
    *,
    average: Average = "macro",
    overlaps: Overlaps | None = None,
) -> dict[tuple[int, int], Tensor]:
    """Overlap of every detection with every ground truth of its cell, as in pycocotools' ``COCOeval.ious``.

    Returns:
        (D, G) float64 by (image, label), for the cells that hold both; the label is -1 with ``average="micro"``.
            Detections by descending score, at most the largest cap of them; ground truths in input order.
    """
    cells = _cells(detections, truths, protocol, average, overlaps, None)
    classes = torch.tensor([-1]) if average == "micro" else cells.classes
    pairs = _pairs(cells, protocol, lowest=0.0)
    occupied = torch.unique(cells.cell[torch.isin(cells.cell, cells.ranking.cell)])
    first = torch.searchsorted(cells.cell, occupied)
    width = torch.searchsorted(cells.cell, occupied, right=True) - first
    bounds = [torch.searchsorted(cells.ranking.cell, occupied, right=right) for right in (False, True)]
    height = (bounds[1] - bounds[0]).clamp(max=protocol.cuts[-1])
    size = height * width
    which = torch.searchsorted(occupied, cells.cell[pairs.truth])
    ranked = cells.ranking.cell
    row = inverse(cells.ranking.by_cell, torch.arange(len(ranked)) - torch.searchsorted(ranked, ranked))
    place = take(row, pairs.detection) * width[which] + pairs.truth - first[which]  # ``position`` may be in the image
    flat = torch.zeros(int(size.sum()), dtype=torch.float64)
    flat[(size.cumsum(0) - size)[which] + place] = pairs.overlap
    keys = zip((occupied // len(classes)).tolist(), classes[occupied % len(classes)].tolist(), strict=True)
    blocks = zip(flat.split(size.tolist()), height.tolist(), width.tolist(), strict=True)
    return {key: block.view(d, g) for key, (block, d, g) in zip(keys, blocks, strict=True)}


class Cells(NamedTuple):
    """Rows in the order in which they are matched, under the names of :class:`Matched`.

    Attributes:
        excused: (n,) bool, detections that are no false positives, or None where there are none.
        overlap_row: (n,) int64, the row of each in the overlaps: among those that take part.
        overlaps: or None: those of the boxes.
    """

    classes: Tensor
    num_truths: Tensor
    num_detections: Tensor
    num_curves: int
    detections: Detections
    detection_class: Tensor
    detection_row: Tensor
    truths: GroundTruths
    truth_class: Tensor
    truth_row: Tensor
    cell: Tensor
    ranking: Ranking
    excused: Tensor | None
    overlap_row: Tensor
    overlaps: Overlaps | None


def _cells(
    detections: Detections,
    truths: GroundTruths,
    protocol: Protocol,
    average: Average,
    overlaps: Overlaps | None,
    image_labels: ImageLabels | None,
) -> Cells:
    classes, detections, truths = _rank_labels(detections, truths)
    num_curves = len(classes)
    num_truths = torch.bincount(truths.label[~uncounted(truths, protocol)], minlength=num_curves)
    num_detections = torch.bincount(detections.label, minlength=num_curves)
    standing = None
    if protocol.federated or protocol.cap_per == "image":
        labels = None if image_labels is None else _rank_image_labels(image_labels, classes)
        detections, overlaps, standing = admit(detections, truths, overlaps, labels, num_curves, protocol)
    detection_class, truth_class = detections.label, truths.label
    detection_row, truth_row = torch.arange(len(detections.label)), torch.arange(len(truths.label))
    came_as, excused, position = standing or (detection_row, None, None)
    if average == "micro":
        detections, detection_row = _one_class(detections)
        truths, truth_row = _one_class(truths)
        detection_class, came_as = take(detection_class, detection_row), take(came_as, detection_row)
        num_curves = 1
    truths, by_cell = _by_cell(truths, num_curves)
    truth_row = take(truth_row, by_cell)
    ranking = rank_detections(detections, num_curves)
    if position is not None:
        ranking = ranking._replace(position=take(take(position, detection_row), ranking.row))
    return Cells(
        classes,
        num_truths,
        num_detections,
        num_curves,
        detections,
        detection_class,
        came_as,
        truths,
        take(truth_class, truth_row),
        truth_row,
        cell_of(truths, num_curves),
        ranking,
        None if excused is None else take(excused, detection_row),
        detection_row,
        overlaps,
    )


def _pairs(cells: Cells, protocol: Protocol, lowest: float) -> Pairs:
    """Candidates from boxes, or from overlaps that were measured before."""
    cap = protocol.cuts[-1]
    if cells.overlaps is not None:
        return stored_pairs(cells.overlaps, cells.ranking, cells.overlap_row, cells.truth_row, cells.cell, cap, lowest)
    detections, truths = in_pixels(cells.detections, protocol), in_pixels(cells.truths, protocol)
    return box_pairs(detections, cells.ranking, truths, cells.cell, cap, lowest)


def uncounted(truths: GroundTruths, protocol: Protocol) -> Tensor:
    """(g,) bool: ground truths that count in no area range."""
    return truths.ignore | (truths.crowd & (protocol.group_weight == 0))


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


def in_pixels(rows: Rows, protocol: Protocol) -> Rows:
    """Boxes with their last row and column of pixels, where the protocol counts these in."""
    return rows._replace(box=rows.box + rows.box.new_tensor([0, 0, 1, 1])) if protocol.inclusive else rows


def _one_class(rows: Rows) -> tuple[Rows, Tensor]:
    """All labels made one, the rows of an image in the order of (label, input position); and that order."""
    order = lexsort(rows.image, rows.label)
    return type(rows)(*(take(column, order) for column in rows._replace(label=torch.zeros_like(rows.label)))), order


def _by_cell(truths: GroundTruths, num_classes: int) -> tuple[GroundTruths, Tensor]:
    """Rows sorted by (image, class), in input order inside a cell; and that order."""
    order = lexsort(cell_of(truths, num_classes))
    return GroundTruths(*(take(column, order) for column in truths)), order


def _outside(area: Tensor, protocol: Protocol) -> Tensor:
    """(A, n) bool: rows outside each area range."""
    bounds = torch.tensor([bounds for _, *bounds in protocol.areas], dtype=torch.float64)
    low, high = bounds[:, :1], bounds[:, 1:]
    return (area < low) | (area > high)
