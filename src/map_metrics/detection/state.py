"""The state of the detection metric: tables of rows, image after image, and the way back to what is evaluated."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from map_metrics import rows
from map_metrics.detection import checks
from map_metrics.detection.matching import Detections, GroundTruths, ImageLabels
from map_metrics.detection.pairs import Overlaps
from map_metrics.detection.shapes import Shapes
from map_metrics.ranking import distinct_rows, fingerprints

# Columns of the tables. The rows of the images stand one after the other, in the order of ``images``. Where boxes are
# measured, detections and truths have a box behind these columns, x, y, width and height; where another shape is, its
# area, and the overlaps are kept instead of the shapes.
IMAGES = ("named", "image", "detections", "truths", "overlaps", "image_labels")
DETECTIONS = ("label", "score")
TRUTHS = ("label", "flags", "area")  # flags: sums of checks.FLAGS; area: as given, or NaN
OVERLAPS = ("detection", "truth", "value")  # by their places in the image
IMAGE_LABELS = ("kind", "label")
BOX = 4


def tables(iou_types: tuple[str, ...]) -> dict[str, int]:
    """Name and number of columns of each table."""
    shape = BOX * ("bbox" in iou_types) + (iou_types != ("bbox",))
    sizes = {"images": len(IMAGES), "detections": len(DETECTIONS) + shape, "truths": len(TRUTHS) + shape}
    sizes["image_labels"] = len(IMAGE_LABELS)
    return sizes if iou_types == ("bbox",) else sizes | {"overlaps": len(OVERLAPS)}


# --- input -> tables --------------------------------------------------------------------------------------------------


def image_blocks(
    detections: checks.Rows,
    truths: checks.Rows,
    boxes: tuple[Tensor, Tensor] | None,
    shapes: Shapes | None,
    ids: tuple[Tensor, Tensor],
    image_labels: tuple[Tensor, Tensor],
) -> dict[str, Tensor]:
    """Blocks of the tables from checked columns."""
    found = [detections.label, rows.bits(detections.score)]
    true = [truths.label, truths.flags, rows.bits(truths.area)]
    blocks = {"image_labels": image_labels[1]}
    num_overlaps = torch.zeros_like(ids[0])
    if boxes is not None:
        found.append(rows.bits(boxes[0]))
        true.append(rows.bits(boxes[1]))
    if shapes is not None:
        if shapes.empty is not None:
            true[1] = truths.flags.cpu() + checks.EMPTY * shapes.empty
        found.append(rows.bits(shapes.detection_area))
        true.append(rows.bits(shapes.truth_area))
        pairs = shapes.overlaps
        blocks["overlaps"] = torch.stack([pairs.detection, pairs.truth, rows.bits(pairs.value)], 1)
        num_overlaps = shapes.counts
    names, named = ids
    images = [named, names, detections.counts, truths.counts, num_overlaps, image_labels[0]]
    return blocks | {
        "images": torch.stack(images, 1),
        "detections": _side_by_side(found),
        "truths": _side_by_side(true),
    }


def _side_by_side(parts: list[Tensor]) -> Tensor:
    """(n, columns) from columns and blocks of columns, on the device of the last, which holds shapes."""
    device = parts[-1].device
    return torch.cat([(part if part.ndim == 2 else part[:, None]).to(device) for part in parts], 1)


# --- tables -> what is evaluated --------------------------------------------------------------------------------------


class Images(NamedTuple):
    """The images to evaluate, each once.

    Attributes:
        ids: (images,) int64, the id of each that has one.
        named: (images,) bool, which have one.
        detections: rows by (image, ...), in the columns of the table, and the image of each.
        truths: the same.
        overlaps: the same, or None.
        image_labels: image-level labels.
        duplicates: images left out because their ids had been seen.
        conflicts: how many of those differed from the copy that was kept.
    """

    ids: Tensor
    named: Tensor
    detections: tuple[Tensor, Tensor]
    truths: tuple[Tensor, Tensor]
    overlaps: tuple[Tensor, Tensor] | None
    image_labels: ImageLabels
    duplicates: int
    conflicts: int


def distinct_images(tables: dict[str, Tensor]) -> Images:
    """One copy of each image: by id, then those without one as they came."""
    images = tables["images"]
    parts = {name: column for column, name in enumerate(IMAGES) if name in tables}
    order, duplicates, conflicts = _distinct(images, [(tables[name], images[:, c]) for name, c in parts.items()])
    taken = {name: _take(tables[name], images[:, column], order) for name, column in parts.items()}
    labels, image = taken["image_labels"]
    return Images(
        images[order, 1],
        images[order, 0] == 1,
        taken["detections"],
        taken["truths"],
        taken.get("overlaps"),
        ImageLabels(image, labels[:, 1].contiguous(), labels[:, 0].contiguous()),
        duplicates,
        conflicts,
    )


def _distinct(images: Tensor, parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, int, int]:
    """Which images to evaluate, and the numbers of duplicates and conflicts among them."""
    with_id, others = images[:, 0].nonzero()[:, 0], (images[:, 0] == 0).nonzero()[:, 0]
    ids, content = images[with_id, 1], [counts[with_id] for _, counts in parts]
    if len(torch.unique(ids)) < len(ids):
        content += [fingerprints(table, counts)[with_id] for table, counts in parts]
    kept = distinct_rows([ids], content)
    return torch.cat([with_id[kept.rows], others]), kept.duplicates, kept.conflicts


def _take(table: Tensor, counts: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of the images in a new order, and the place of each row's image in it."""
    chosen = counts[order]
    image = torch.repeat_interleave(torch.arange(len(order)), chosen)
    if len(order) == len(counts) and bool((order[1:] > order[:-1]).all()):
        return table, image
    start = (counts.cumsum(0) - counts)[order]
    row = torch.arange(len(image)) - (chosen.cumsum(0) - chosen)[image] + start[image]
    return table[row], image


def rows_of(
    images: Images, iou_type: str, ignored: tuple[str, ...]
) -> tuple[Detections, GroundTruths, Overlaps | None]:
    """What to evaluate for one type of overlap.

    Args:
        images: from :func:`distinct_images`.
        iou_type: ``"bbox"``, or the type whose overlaps are kept.
        ignored: the keys of flags that make a ground truth an ignored one.
    """
    (found, image), (true, true_image) = images.detections, images.truths
    box, area = _shape(found[:, len(DETECTIONS) :], iou_type)
    detections = Detections(image, found[:, 0].contiguous(), rows.floats(found[:, 1]), box, area)
    box, area = _shape(true[:, len(TRUTHS) :], iou_type)
    given, flags = rows.floats(true[:, 2]), true[:, 1]
    ignore = flags & checks.EMPTY != 0
    for key in ignored:
        ignore |= flags & checks.FLAGS[key] != 0
    truths = GroundTruths(
        true_image,
        true[:, 0].contiguous(),
        box,
        flags & checks.CROWD != 0,
        ignore,
        torch.where(given.isnan(), area, given),
    )
    return detections, truths, None if iou_type == "bbox" else _overlaps(images, image, true_image)


def _shape(columns: Tensor, iou_type: str) -> tuple[Tensor, Tensor]:
    """Boxes (n, 4), or (n, 0) where another shape is meant, and areas."""
    if iou_type != "bbox":
        return torch.zeros((len(columns), 0), dtype=torch.float64), rows.floats(columns[:, -1])
    box = rows.floats(columns[:, :BOX])
    return box, box[:, 2] * box[:, 3]


def _overlaps(images: Images, detection_image: Tensor, truth_image: Tensor) -> Overlaps:
    """Pairs by the rows of all images."""
    assert images.overlaps is not None
    table, image = images.overlaps
    starts = [torch.searchsorted(rows_image, image) for rows_image in (detection_image, truth_image)]
    return Overlaps(table[:, 0] + starts[0], table[:, 1] + starts[1], rows.floats(table[:, 2]))
