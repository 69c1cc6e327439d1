"""Oriented boxes of a batch of images, and the overlap of all pairs of an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from map_metrics.checks import exact_integers, tensor
from map_metrics.detection.pairs import Floats, Integers, Overlaps, array, collect, image_pairs


@dataclass(frozen=True)
class OrientedBoxes:
    """The oriented boxes of one side of a batch of images, one after the other.

    Attributes:
        counts: (images,) int64, boxes of each image.
        rows: (n, 5) float64, x and y of the center, width and height in pixels, and the angle in radians from the x
            axis to the side along which the width is measured, growing towards the y axis (clockwise on a screen).
    """

    counts: Integers
    rows: Floats

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def area(self) -> Tensor:
        """(n,) float64, square pixels."""
        return torch.from_numpy(self.rows[:, 2] * self.rows[:, 3])

    @property
    def box(self) -> Tensor:
        """(n, 4) float64 x, y, width, height of the upright boxes around them."""
        half = _half_extent(self.rows)
        return torch.from_numpy(np.concatenate([self.rows[:, :2] - half, 2 * half], 1))


def oriented_overlaps(detections: OrientedBoxes, truths: OrientedBoxes, crowd: Tensor) -> Overlaps:
    """Intersection over union of the boxes of each image; over the detection's own area where the truth is a crowd.

    The area of the common polygon is exact up to rounding, and a pair has the same bits whichever of the two is the
    detection. Equal boxes overlap by exactly 1, boxes without an area by nothing. Boxes that only touch may share what
    rounding leaves, some 1e-16 of their area.

    Args:
        detections: boxes of all images of a batch.
        truths: the same of the ground truths.
        crowd: (g,) bool.

    Example:
        >>> import math, torch
        >>> square = read_oriented("preds", [{"boxes": torch.tensor([[5.0, 5, 2, 2, 0]])}])
        >>> turned = read_oriented("target", [{"boxes": torch.tensor([[5.0, 5, 2, 2, math.pi / 4]])}])
        >>> oriented_overlaps(square, turned, torch.tensor([False])).value  # a regular octagon in common
        tensor([0.7071], dtype=torch.float64)
    """
    found, true = detections.rows, truths.rows
    half, true_half = _half_extent(found), _half_extent(true)
    area, true_area = found[:, 2] * found[:, 3], true[:, 2] * true[:, 3]
    is_crowd = array(crowd)
    parts = []
    for d, g in image_pairs(detections.counts, truths.counts):
        x, y = (np.abs(found[d, k] - true[g, k]) < half[d, k] + true_half[g, k] for k in (0, 1))
        near = np.flatnonzero(x & y)
        d, g = d[near], g[near]
        common = np.minimum(common_area(found[d], true[g]), np.minimum(area[d], true_area[g]))
        some = np.flatnonzero(common > 0)
        d, g, common = d[some], g[some], common[some]
        parts.append((d, g, common / np.where(is_crowd[g], area[d], area[d] + true_area[g] - common)))
    return collect(parts)


def common_area(first: Floats, second: Floats) -> Floats:
    """(P,) area of the intersection of (P, 5) oriented boxes.

    In the frame of the smaller box, of half width W and half height H, it is the integral of ``clamp(x, -W, W) dy``
    along the sides of the larger one, without their parts where ``|y| > H`` (Green's theorem for the indicator of the
    smaller box). No polygon is built, so no corner can be lost or counted twice: each side adds a continuous function
    of the coordinates, and what can go wrong is rounding, in units of the smaller box.
    """
    swap = _is_after(first, second)[:, None]
    small, large = np.where(swap, second, first), np.where(swap, first, second)
    half_width, half_height = small[:, 2] / 2, small[:, 3] / 2
    x, y = _corners(small, large)
    total = np.zeros(len(small))
    for k in range(4):
        total += _along(x[k - 1], y[k - 1], x[k], y[k], half_width, half_height)
    return total


def _along(x0: Floats, y0: Floats, x1: Floats, y1: Floats, width: Floats, height: Floats) -> Floats:
    """Integral of ``clamp(x, -width, width) dy`` along segments, where ``|y| <= height``."""
    low, high = np.clip(y0, -height, height), np.clip(y1, -height, height)
    start = x0 + _share(low - y0, y1 - y0) * (x1 - x0)
    stop = x1 - _share(y1 - high, y1 - y0) * (x1 - x0)
    bends = _share(-width - start, stop - start), _share(width - start, stop - start)
    at = [np.zeros_like(start), np.minimum(*bends), np.maximum(*bends), np.ones_like(start)]
    value = [np.clip(x, -width, width) for x in (start, *(start + t * (stop - start) for t in at[1:3]), stop)]
    mean = sum((at[k + 1] - at[k]) * (value[k] + value[k + 1]) for k in range(3)) / 2
    return mean * (high - low)


def _share(part: Floats, whole: Floats) -> Floats:
    """Part / whole within [0, 1]; 0 where the whole is 0."""
    return np.clip(part / np.where(whole == 0, np.inf, whole), 0, 1)


def _corners(small: Floats, large: Floats) -> tuple[Floats, Floats]:
    """(4, P) x and y of the corners of one box in the frame of another, in the order in which angles grow."""
    x, y = large[:, 0] - small[:, 0], large[:, 1] - small[:, 1]
    cos, sin = np.cos(small[:, 4]), np.sin(small[:, 4])
    x, y = x * cos + y * sin, y * cos - x * sin
    cos, sin = np.cos(large[:, 4] - small[:, 4]), np.sin(large[:, 4] - small[:, 4])
    along_x, along_y = large[:, 2] / 2 * cos, large[:, 2] / 2 * sin
    across_x, across_y = -large[:, 3] / 2 * sin, large[:, 3] / 2 * cos
    signs = ((1, 1), (-1, 1), (-1, -1), (1, -1))
    return (
        np.stack([x + a * along_x + b * across_x for a, b in signs]),
        np.stack([y + a * along_y + b * across_y for a, b in signs]),
    )


def _is_after(first: Floats, second: Floats) -> NDArray[np.bool_]:
    """(P,) bool, whether the first box is the larger one; the other columns decide among equals, so swapping swaps."""
    after, decided = np.zeros((2, len(first)), np.bool_)
    area = first[:, 2] * first[:, 3], second[:, 2] * second[:, 3]
    for a, b in (area, *zip(first.T, second.T, strict=True)):
        after |= ~decided & (a > b)
        decided |= a != b
    return after


def _half_extent(rows: Floats) -> Floats:
    """(n, 2) half width and height of the upright boxes around oriented ones."""
    cos, sin = np.abs(np.cos(rows[:, 4:])), np.abs(np.sin(rows[:, 4:]))
    half = rows[:, 2:4] / 2
    return half * cos + half[:, ::-1] * sin


def read_oriented(name: str, images: Sequence[Mapping[str, Any]], *, values: bool = True) -> OrientedBoxes:
    """The oriented boxes of the images, under the key ``boxes`` of each: (n, 5) x, y, width, height, angle.

    Args:
        name: ``"preds"`` or ``"target"``, for messages.
        images: one dict per image.
        values: False leaves out the checks of values.

    Raises:
        ValueError: naming image and row, what was expected and what came.
    """
    parts = [np.zeros((0, 5))]
    for i, image in enumerate(images):
        where = f"{name}[{i}]['boxes']"
        if "boxes" not in image:
            raise ValueError(f"{name}[{i}] must hold the key 'boxes', got {sorted(map(str, image))}")
        value = tensor(where, image["boxes"])
        if value.numel() == 0 and value.ndim <= 2 and value.shape[-1] in (0, 5):
            value = value.reshape(0, 5)
        if value.ndim != 2 or value.shape[1] != 5:
            raise ValueError(f"{where} must have the shape (n, 5), got {tuple(value.shape)}")
        if values:
            exact_integers(where, value)
        rows = array(value.cpu().double())
        bad = ~np.isfinite(rows).all(1) | (rows[:, 2:4] < 0).any(1)
        if values and bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"{where} must be finite, with a width and a height >= 0, got {rows[row].tolist()} in row {row}"
            )
        parts.append(rows)
    return OrientedBoxes(np.array([len(part) for part in parts[1:]], dtype=np.int64), np.concatenate(parts))
