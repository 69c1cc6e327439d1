"""Poses: keypoints of a batch of images, and their object keypoint similarity (OKS)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from map_metrics.checks import exact_integers, tensor
from map_metrics.detection.pairs import Floats, Integers, Overlaps, array, blocks, collect, image_pairs

_TENTHS = (0.26, 0.25, 0.25, 0.35, 0.35, 0.79, 0.79, 0.72, 0.72, 0.62, 0.62, 1.07, 1.07, 0.87, 0.87, 0.89, 0.89)
COCO_SIGMAS = tuple(sigma / 10 for sigma in _TENTHS)
"""How far annotators disagree on the 17 keypoints of a COCO person, in parts of the object's size."""


@dataclass(frozen=True)
class Poses:
    """The poses of one side of a batch of images, one after the other.

    Attributes:
        counts: (images,) int64, poses of each image.
        points: (n, K, 2) float64, x and y of the keypoints in pixels.
        labeled: (n, K) bool, which keypoints of a ground truth are labeled (a visibility above 0); all of a detection.
    """

    counts: Integers
    points: Floats
    labeled: np.ndarray[Any, np.dtype[np.bool_]]

    def __len__(self) -> int:
        return len(self.points)

    @property
    def empty(self) -> Tensor:
        """(n,) bool, without a labeled keypoint: COCO ignores such ground truths."""
        return torch.from_numpy(~self.labeled.any(1))

    @property
    def box(self) -> Tensor:
        """(n, 4) float64 x, y, width, height of the extent of all keypoints: the box COCO gives to a detected pose."""
        low, high = (torch.from_numpy(bound(self.points, axis=1)) for bound in (np.min, np.max))
        return torch.cat([low, high - low], 1)

    @property
    def area(self) -> Tensor:
        """(n,) float64, square pixels of that box: the area COCO gives to a detected pose."""
        return self.box[:, 2] * self.box[:, 3]


def keypoint_overlaps(
    detections: Poses, truths: Poses, area: Tensor, box: Tensor | None = None, sigmas: Sequence[float] = COCO_SIGMAS
) -> Overlaps:
    """Object keypoint similarity of all pairs of the poses of each image.

    The mean of ``exp(-d^2 / (2 (2 sigma)^2 area))`` over the labeled keypoints of the ground truth, where ``d`` is the
    distance of the detected keypoint. A ground truth without a labeled keypoint has a box instead: there, ``d`` is the
    distance of each detected keypoint to this box grown by its own width and height on each side. The arithmetic and
    its order are those of pycocotools (``COCOeval.computeOks``), so the bits are too. OKS has no rule for crowds.

    Args:
        detections: poses of all images of a batch, in pixels.
        truths: the same of the ground truths.
        area: (g,) float64, square pixels of the objects; in COCO that of the object's mask.
        box: (g, 4) float64, x, y, width and height of the objects; None: ground truths without a labeled keypoint
            overlap with nothing.
        sigmas: one per keypoint.

    Example:
        >>> import torch
        >>> pose = torch.tensor([[[10.0, 10, 2], [14, 10, 2]]])
        >>> truth = read_poses("target", [{"keypoints": pose}], 2)
        >>> moved = read_poses("preds", [{"keypoints": pose[..., :2] + torch.tensor([[2.0, 0], [0, 0]])}], 2)
        >>> keypoint_overlaps(moved, truth, torch.tensor([100.0]), sigmas=[0.1, 0.1]).value
        tensor([0.8033], dtype=torch.float64)
    """
    variance = (np.array(sigmas) * 2) ** 2
    size = array(area.double()) + np.spacing(1)
    first_labeled = np.argsort(~truths.labeled, axis=1, kind="stable")
    num_labeled = truths.labeled.sum(1)
    grown = None if box is None else _grown(array(box.double()))
    parts = []
    for d, g in image_pairs(detections.counts, truths.counts):
        for block in blocks(np.full(len(d), len(variance))):
            i, j = d[block], g[block]
            value = np.zeros(len(i))
            for number in np.unique(num_labeled[j]).tolist():  # as many terms a row: numpy's sum depends on it
                chosen = np.flatnonzero(num_labeled[j] == number)
                found, true = i[chosen], j[chosen]
                if number:
                    point = first_labeled[true, :number]
                    delta = detections.points[found[:, None], point] - truths.points[true[:, None], point]
                    value[chosen] = _similarity(delta, variance[point], size[true])
                elif grown is not None:
                    delta = _outside(detections.points[found], grown[true])
                    value[chosen] = _similarity(delta, variance, size[true])
            parts.append((i, j, value))
    return collect(parts)


def _similarity(delta: Floats, variance: Floats, size: Floats) -> Floats:
    """(P,) from (P, m, 2) differences of m keypoints."""
    exponent = (delta[..., 0] ** 2 + delta[..., 1] ** 2) / variance / size[:, None] / 2
    return np.exp(-exponent).sum(1) / exponent.shape[1]


def _grown(box: Floats) -> Floats:
    """(g, 2, 2) lower and upper corner of a box grown by its size on each side."""
    return np.stack([box[:, :2] - box[:, 2:], box[:, :2] + box[:, 2:] * 2], 1)


def _outside(points: Floats, bounds: Floats) -> Floats:
    """(P, K, 2), how far points lie outside a box in x and y."""
    low, high = bounds[:, None, 0], bounds[:, None, 1]
    return np.maximum(0, low - points) + np.maximum(0, points - high)


def read_poses(name: str, images: Sequence[Mapping[str, Any]], num_keypoints: int, *, values: bool = True) -> Poses:
    """The poses of the images, under the key ``keypoints`` of each: (n, K, 3) x, y and a visibility (above 0: labeled).

    Of detections the third column plays no part and may be missing.

    Args:
        name: ``"preds"`` or ``"target"``.
        images: one dict per image.
        num_keypoints: K.
        values: False leaves out the checks of values.

    Raises:
        ValueError: naming image and row, what was expected and what came.
    """
    parts = [np.zeros((0, num_keypoints, 3))]
    parts += [_pose(name, i, image, num_keypoints, values=values) for i, image in enumerate(images)]
    rows = np.concatenate(parts)
    counts = np.array([len(part) for part in parts[1:]], dtype=np.int64)
    return Poses(counts, np.ascontiguousarray(rows[..., :2]), rows[..., 2] > 0)


def _pose(name: str, i: int, image: Mapping[str, Any], num_keypoints: int, *, values: bool) -> Floats:
    """(n, K, 3) float64, with a visibility of 1 for detections."""
    if "keypoints" not in image:
        raise ValueError(f"{name}[{i}] must hold the key 'keypoints', got {sorted(map(str, image))}")
    value = tensor(f"{name}[{i}]['keypoints']", image["keypoints"])
    detected = name == "preds"
    if value.numel() == 0 and len(value) == 0:
        return np.zeros((0, num_keypoints, 3))
    if value.ndim != 3 or value.shape[1] != num_keypoints or value.shape[2] not in ((2, 3) if detected else (3,)):
        last = "2 or 3" if detected else "3"
        raise ValueError(
            f"{name}[{i}]['keypoints'] must have the shape (n, {num_keypoints}, {last}), got {tuple(value.shape)}"
        )
    if values:
        exact_integers(f"{name}[{i}]['keypoints']", value)
    rows = np.ones((*value.shape[:2], 3))
    rows[..., : 2 if detected else 3] = array(value[..., : 2 if detected else 3].cpu().double())
    if values:
        finite = np.isfinite(rows[..., :2]).all(2) | (rows[..., 2] <= 0)  # where nothing is labeled, anything may stand
        bad = ~(finite & np.isfinite(rows[..., 2]) & (rows[..., 2] >= 0)).all(1)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            wanted = "be finite" if detected else "be finite where labeled, with a visibility >= 0"
            raise ValueError(f"{name}[{i}]['keypoints'] must {wanted}, got {value[row].tolist()} in row {row}")
    return rows
