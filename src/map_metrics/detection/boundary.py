"""Boundary IoU: overlap of the rims of masks, which sees what mask IoU misses on large objects.

Cheng, Girshick, Dollar, Berg, Kirillov, "Boundary IoU", CVPR 2021, and its boundary-iou-api.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from map_metrics.detection.masks import Masks, Strips, common_pixels, mask_overlaps
from map_metrics.detection.pairs import Integers, Overlaps, array, blocks, collect, ranges


def boundary_overlaps(detections: Masks, truths: Masks, crowd: Tensor, dilation_ratio: float = 0.02) -> Overlaps:
    """The smaller of mask IoU and boundary IoU of the masks of each image; for crowds that of :func:`mask_overlaps`.

    The boundary of a mask are its pixels at most ``round(dilation_ratio * image diagonal)`` pixels, at least 1, from a
    pixel outside of it, in x and in y; what lies beyond the image is outside.

    Args:
        detections: masks of all images of a batch.
        truths: the same of the ground truths.
        crowd: (g,) bool.
        dilation_ratio: width of the boundary in parts of the image's diagonal.

    Raises:
        ValueError: naming the image where the masks of the two sides differ in size.

    Example:
        >>> import torch
        >>> from map_metrics.detection.mask_inputs import read_masks
        >>> square, ring = torch.ones(1, 5, 5), torch.ones(1, 5, 5)
        >>> ring[0, 2, 2] = 0
        >>> detected, true = read_masks("preds", [{"masks": ring}]), read_masks("target", [{"masks": square}])
        >>> boundary_overlaps(detected, true, torch.tensor([False])).value  # 24 / 25 of the masks, 16 / 24 of the rims
        tensor([0.6667], dtype=torch.float64)
    """
    overlaps = mask_overlaps(detections, truths, crowd)
    d, g, value = (array(column) for column in overlaps)
    inner, true_inner = eroded(detections, dilation_ratio), eroded(truths, dilation_ratio)
    common = common_pixels(detections, truths, d, g) + common_pixels(inner, true_inner, d, g)
    common -= common_pixels(inner, truths, d, g) + common_pixels(detections, true_inner, d, g)
    rim, true_rim = detections.pixels - inner.pixels, truths.pixels - true_inner.pixels
    rim_value = common / (rim[d] + true_rim[g] - common)
    return collect([(d, g, np.where(array(crowd)[g], value, np.minimum(value, rim_value)))])


def eroded(masks: Masks, dilation_ratio: float) -> Masks:
    """The pixels of masks that do not belong to their boundaries."""
    reach = np.array(
        [max(1, round(dilation_ratio * math.sqrt(h * h + w * w))) for h, w in masks.size.tolist()], np.int64
    )
    shrunk = _shrunk(_strips(masks), np.repeat(reach, masks.counts))
    width = 2 * np.repeat(reach, masks.counts) + 1
    parts = [Strips(*(np.zeros(0, np.int64) for _ in Strips._fields))]
    per_mask = np.bincount(shrunk.mask, minlength=len(masks))
    ends = per_mask.cumsum()
    for block in blocks(per_mask * width):
        low, high = ends[block.start] - per_mask[block.start], ends[block.stop - 1]
        parts.append(_met_by_all(Strips(*(column[low:high] for column in shrunk)), width))
    return Masks.of_strips(masks.counts, masks.size, Strips(*(np.concatenate(c) for c in zip(*parts, strict=True))))


def _strips(masks: Masks) -> Strips:
    """The strips of masks, those that touch joined."""
    joined = (masks.slot[1:] == masks.slot[:-1]) & (masks.top[1:] == masks.bottom[:-1])
    first, last = np.flatnonzero(np.r_[True, ~joined]), np.flatnonzero(np.r_[~joined, True])
    if not len(masks.slot):
        first = last = np.zeros(0, np.int64)
    slot = masks.slot[first]
    mask = np.searchsorted(masks.first + masks.bounds[:, 2], slot, side="right")
    column = slot - masks.first[mask] + masks.bounds[mask, 0]
    return Strips(mask, column, masks.top[first], masks.bottom[last])


def _shrunk(strips: Strips, reach: Integers) -> Strips:
    """Strips without their first and last pixels, ``reach`` of each mask; what is left of them."""
    top, bottom = strips.top + reach[strips.mask], strips.bottom - reach[strips.mask]
    left = np.flatnonzero(top < bottom)
    return Strips(strips.mask[left], strips.column[left], top[left], bottom[left])


def _met_by_all(strips: Strips, width: Integers) -> Strips:
    """The stretches of each column that lie in a strip of every one of the ``width`` columns around it."""
    mask, column, top, bottom = strips
    spread, margin = width[mask], width.max()  # columns left and right of the image, where no strip is
    columns, rows = column.max() + 2 * margin, bottom.max() + 1
    of = np.repeat(np.arange(len(mask)), spread)
    line = mask[of] * columns + margin + ranges(column - spread // 2, spread)
    key = np.concatenate([(line * rows + top[of]) * 2 + 1, (line * rows + bottom[of]) * 2])
    key.sort()  # by mask, column and row; where a strip ends, before one begins
    number = np.where(key % 2 == 1, 1, -1).cumsum()  # of strips from here to the next row
    line, row = key // 2 // rows, key // 2 % rows
    met = np.flatnonzero((number == width[line // columns])[:-1] & (row[1:] > row[:-1]))
    return Strips(line[met] // columns, line[met] % columns - margin, row[met], row[met + 1])
