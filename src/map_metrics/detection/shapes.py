"""What is measured in `update` and kept instead of the shapes: of masks, oriented boxes and keypoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from map_metrics.detection import checks
from map_metrics.detection.keypoints import Poses, keypoint_overlaps, read_poses
from map_metrics.detection.mask_inputs import read_masks
from map_metrics.detection.masks import Masks, mask_overlaps
from map_metrics.detection.oriented import OrientedBoxes, oriented_overlaps, read_oriented
from map_metrics.detection.pairs import Overlaps

Images: TypeAlias = Sequence[Mapping[str, Any]]
KEYS = {"segm": "masks", "obb": "boxes", "keypoints": "keypoints"}


class Shapes(NamedTuple):
    """The measures of a batch of images.

    Attributes:
        detection_area: (n,) float64, square pixels.
        truth_area: (g,) float64, square pixels; where an area is given, it counts instead.
        empty: (g,) bool, ground truths without anything to find; None: there are none.
        overlaps: all pairs with an overlap, image after image, by the places of the rows in their image.
        counts: (images,) int64, pairs of each image.
    """

    detection_area: Tensor
    truth_area: Tensor
    empty: Tensor | None
    overlaps: Overlaps
    counts: Tensor


def measure(
    iou_type: str,
    preds: Images,
    target: Images,
    detections: checks.Rows,
    truths: checks.Rows,
    *,
    box_format: str,
    sigmas: Sequence[float],
    values: bool,
) -> Shapes:
    """Read the shapes of a batch and measure them against each other.

    Args:
        iou_type: ``"segm"``, ``"obb"`` or ``"keypoints"``.
        preds: one dict per image.
        target: one dict per image.
        detections: their other columns.
        truths: their other columns.
        box_format: of the boxes beside keypoints.
        sigmas: one per keypoint.
        values: False leaves out the checks of values.

    Raises:
        ValueError: naming image and row, what was expected and what came.
    """
    found, true = (_read(iou_type, *side, len(sigmas), values) for side in (("preds", preds), ("target", target)))
    for name, shapes, labels in (("preds", found, detections.counts), ("target", true, truths.counts)):
        _same_counts(name, KEYS[iou_type], shapes.counts, labels)
    crowd, area, empty = truths.flags & checks.CROWD != 0, true.area, None
    if isinstance(found, Masks) and isinstance(true, Masks):
        pairs = mask_overlaps(found, true, crowd)
    elif isinstance(found, OrientedBoxes) and isinstance(true, OrientedBoxes):
        pairs = oriented_overlaps(found, true, crowd)
    elif isinstance(found, Poses) and isinstance(true, Poses):
        box = _boxes_of_poses(target, truths, box_format, values=values)
        area = torch.where(truths.area.cpu().isnan(), box[:, 2] * box[:, 3], truths.area.cpu())
        _need_areas(area, truths.counts)
        pairs, empty = keypoint_overlaps(found, true, area, box, sigmas), true.empty
    return Shapes(found.area, area, empty, *_by_image(pairs, detections.counts, truths.counts))


def _read(iou_type: str, name: str, images: Images, num_keypoints: int, values: bool) -> Masks | OrientedBoxes | Poses:
    if iou_type == "segm":
        return read_masks(name, images, values=values)
    if iou_type == "obb":
        return read_oriented(name, images, values=values)
    return read_poses(name, images, num_keypoints, values=values)


def _same_counts(name: str, key: str, counts: np.ndarray[Any, Any], labels: Tensor) -> None:
    different = np.flatnonzero(counts != labels.numpy())
    if len(different):
        i = int(different[0])
        raise ValueError(
            f"{name}[{i}]['{key}'] must have one entry for each of the {labels[i]} labels, got {counts[i]}"
        )


def _by_image(pairs: Overlaps, detections: Tensor, truths: Tensor) -> tuple[Overlaps, Tensor]:
    """Pairs by the places in their image, and how many each image has; rows of a batch come image after image."""
    ends = detections.cumsum(0)
    image = torch.searchsorted(ends, pairs.detection, right=True)
    first, first_truth = ends - detections, truths.cumsum(0) - truths
    placed = Overlaps(pairs.detection - first[image], pairs.truth - first_truth[image], pairs.value)
    return placed, torch.bincount(image, minlength=len(detections))


def _boxes_of_poses(target: Images, truths: checks.Rows, box_format: str, *, values: bool) -> Tensor:
    """(g, 4) boxes of the objects, NaN in images without."""
    have = [image.get("boxes") is not None for image in target]
    box = torch.full((len(truths.label), 4), torch.nan, dtype=torch.float64)
    if any(have):
        nothing = {"boxes": torch.zeros(0, 4)}
        counts = torch.where(torch.tensor(have), truths.counts, 0)
        given = [image if has else nothing for image, has in zip(target, have, strict=True)]
        box[torch.tensor(have).repeat_interleave(truths.counts)] = checks.boxes(
            "target", given, counts, box_format, values=values
        ).box.cpu()
    return box


def _need_areas(area: Tensor, counts: Tensor) -> None:
    if bool(area.isnan().any()):
        row = int(area.isnan().nonzero()[0])
        image = int(torch.searchsorted(counts.cumsum(0), torch.tensor(row), right=True))
        raise ValueError(f"target[{image}] must hold 'area' or 'boxes' beside 'keypoints': their scale, got neither")
