"""Masks as vertical strips, and the overlap of all pairs of masks of an image.

A strip is a stretch of pixels of one mask in one column of the image: COCO's run-length codes, which go down the
columns, cut at the borders of the columns. Two masks meet where strips of the same column meet, so the common pixels of
two masks are a sum over such pairs of strips: whole numbers, exact, and found without a search, because each mask knows
where the strips of each column of its box begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from map_metrics.detection.pairs import Integers, Overlaps, array, blocks, collect, image_pairs, ranges


class Strips(NamedTuple):
    """Vertical stretches of pixels.

    Attributes:
        mask: (strips,) int64, row of the mask.
        column: (strips,) int64.
        top: (strips,) int64, the first row of pixels.
        bottom: (strips,) int64, the row after the last.
    """

    mask: Integers
    column: Integers
    top: Integers
    bottom: Integers


@dataclass(frozen=True)
class Masks:
    """The masks of one side of a batch of images, one after the other.

    Attributes:
        counts: (images,) int64, masks of each image.
        size: (images, 2) int64, height and width of each image in pixels; 0 where an image without masks has none.
        pixels: (n,) int64, pixels of each mask.
        bounds: (n, 4) int64, x, y, width and height of the tight box, all 0 for a mask without a pixel.
        first: (n,) int64, the first slot of each mask. A mask has one slot for each column of its box.
        slot: (strips,) int64, slot of each strip, ascending: ``first + column - x``.
        top: (strips,) int64, the first row of each strip.
        bottom: (strips,) int64, the row after its last.
    """

    counts: Integers
    size: Integers
    pixels: Integers
    bounds: Integers
    first: Integers
    slot: Integers
    top: Integers
    bottom: Integers

    @classmethod
    def of_strips(cls, counts: Integers, size: Integers, strips: Strips) -> Masks:
        """Masks of strips ordered by (mask, column, top), none of them empty, those of a mask apart."""
        mask, column, top, bottom = strips
        count = np.bincount(mask, minlength=counts.sum())
        filled = np.flatnonzero(count)
        start = (count.cumsum() - count)[filled]
        bounds, pixels = np.zeros((len(count), 4), np.int64), np.zeros(len(count), np.int64)
        if len(filled):
            pixels[filled] = np.add.reduceat(bottom - top, start)
            left, right = column[start], column[start + count[filled] - 1] + 1
            upper, lower = np.minimum.reduceat(top, start), np.maximum.reduceat(bottom, start)
            bounds[filled] = np.stack([left, upper, right - left, lower - upper], 1)
        first = bounds[:, 2].cumsum() - bounds[:, 2]
        slot = column + np.repeat(first - bounds[:, 0], count)
        return cls(counts, size, pixels, bounds, first, slot, top, bottom)

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def area(self) -> Tensor:
        """(n,) float64, pixels of each mask."""
        return torch.from_numpy(self.pixels.astype(np.float64))

    @property
    def box(self) -> Tensor:
        """(n, 4) float64 x, y, width, height of the tight boxes, as pycocotools' ``toBbox``."""
        return torch.from_numpy(self.bounds.astype(np.float64))

    @cached_property
    def strips_before(self) -> Integers:
        """(slots + 1,) int64, the number of strips in the slots before each."""
        per_slot = np.bincount(self.slot, minlength=self.bounds[:, 2].sum())
        return np.concatenate([np.zeros(1, np.int64), per_slot.cumsum()])


def mask_overlaps(detections: Masks, truths: Masks, crowd: Tensor) -> Overlaps:
    """Intersection over union of the masks of each image; over the detection's own area where the truth is a crowd.

    Counts of pixels are whole numbers and divided once, in float64: the bits of pycocotools' ``mask.iou``. Masks
    without a common pixel do not overlap, empty ones neither.

    Args:
        detections: masks of all images of a batch.
        truths: the same of the ground truths.
        crowd: (g,) bool.

    Raises:
        ValueError: naming the image where the masks of the two sides differ in size.

    Example:
        >>> import torch
        >>> from map_metrics.detection.mask_inputs import read_masks
        >>> detected = read_masks("preds", [{"masks": torch.tensor([[[1, 1, 0], [1, 1, 0]]])}])
        >>> true = read_masks("target", [{"masks": torch.tensor([[[0, 1, 1], [0, 1, 1]]])}])
        >>> mask_overlaps(detected, true, torch.tensor([False])).value
        tensor([0.3333], dtype=torch.float64)
    """
    _same_sizes(detections, truths)
    is_crowd = array(crowd)
    parts = []
    for d, g in image_pairs(detections.counts, truths.counts):
        common = common_pixels(detections, truths, d, g)
        some = np.flatnonzero(common)
        d, g, common = d[some], g[some], common[some]
        own = detections.pixels[d]
        parts.append((d, g, common / np.where(is_crowd[g], own, own + truths.pixels[g] - common)))
    return collect(parts)


def common_pixels(detections: Masks, truths: Masks, d: Integers, g: Integers) -> Integers:
    """(P,) int64, pixels that both masks of each pair hold: detection ``d`` and truth ``g``, of one image."""
    common = np.zeros(len(d), np.int64)
    near = np.flatnonzero(_boxes_meet(detections.bounds, truths.bounds, d, g))
    for block in blocks(detections.bounds[d[near], 2]):
        common[near[block]] = _common_pixels(detections, truths, d[near[block]], g[near[block]])
    return common


def _boxes_meet(detected: Integers, true: Integers, d: Integers, g: Integers) -> NDArray[np.bool_]:
    """(P,) bool, whether the tight boxes share a pixel."""
    start, stop = detected[:, :2], detected[:, :2] + detected[:, 2:]
    true_start, true_stop = true[:, :2], true[:, :2] + true[:, 2:]
    x, y = ((stop[d, k] > true_start[g, k]) & (true_stop[g, k] > start[d, k]) for k in (0, 1))
    return x & y


def _common_pixels(detections: Masks, truths: Masks, d: Integers, g: Integers) -> Integers:
    """The same where the boxes meet."""
    (x, _, w, _), (tx, _, tw, _) = detections.bounds[d].T, truths.bounds[g].T
    to_slot = detections.first[d] - x  # of a column
    start = detections.strips_before[to_slot + np.maximum(x, tx)]
    count = detections.strips_before[to_slot + np.minimum(x + w, tx + tw)] - start
    strip = ranges(start, count)
    to_other = truths.first[g] - tx - to_slot  # from a column's slot in one mask to that in the other
    slot = detections.slot[strip] + np.repeat(to_other, count)
    top, bottom = detections.top[strip], detections.bottom[strip]
    other, stop = truths.strips_before[slot], truths.strips_before[slot + 1]
    met = np.zeros(len(strip) + 1, np.int64)
    left = np.flatnonzero(other < stop)
    while len(left):  # each strip with the first, second, ... strip of the same column
        at = other[left]
        shared = np.minimum(bottom[left], truths.bottom[at]) - np.maximum(top[left], truths.top[at])
        met[left] += np.maximum(shared, 0)
        other[left] += 1
        left = left[np.flatnonzero(other[left] < stop[left])]
    begin = count.cumsum() - count
    return np.where(count > 0, np.add.reduceat(met, begin), 0)


def _same_sizes(detections: Masks, truths: Masks) -> None:
    both = (detections.counts > 0) & (truths.counts > 0)
    different = np.flatnonzero(both & (detections.size != truths.size).any(1))
    if len(different):
        i = different[0]
        raise ValueError(
            f"preds[{i}]['masks'] and target[{i}]['masks'] must have one height and width, "
            f"got {tuple(detections.size[i].tolist())} and {tuple(truths.size[i].tolist())}"
        )
