"""Boundary IoU against masks eroded by scipy, and pycocotools' IoU of what is left."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pycocotools import mask as coco
from scipy import ndimage

from map_metrics.detection import pairs
from map_metrics.detection.boundary import boundary_overlaps
from map_metrics.detection.mask_inputs import read_masks


def encode(masks):
    return coco.encode(np.asfortranarray(masks.transpose(1, 2, 0).astype(np.uint8)))


def rims(masks, ratio):
    """Masks minus their erosion, as boundary-iou-api: a 3 x 3 kernel, again and again, zeros around the image."""
    times = max(1, round(ratio * math.sqrt(masks.shape[1] ** 2 + masks.shape[2] ** 2)))
    inner = [ndimage.binary_erosion(mask, np.ones((3, 3)), iterations=times) for mask in masks]
    return masks & ~np.array(inner)


def blobs(rng, n, height, width):
    """Masks with holes, bays and islands; some full, some empty."""
    noise = rng.normal(size=(n, height, width))
    smooth = np.array([ndimage.gaussian_filter(mask, rng.uniform(0.5, 4)) for mask in noise])
    masks = smooth > np.quantile(smooth, rng.choice([0.1, 0.5]), axis=(1, 2), keepdims=True)
    masks[rng.random(n) < 0.15] = True
    masks[rng.random(n) < 0.1] = False
    return masks


@pytest.mark.parametrize("seed", range(40))
def test_fuzz(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    if rng.random() < 0.5:
        monkeypatch.setattr(pairs, "PAIRS_AT_ONCE", int(rng.integers(1, 2000)))
    ratio = rng.choice([0.001, 0.02, 0.05, 0.2])
    preds, target, crowds, expected, d, g = [], [], [], [], 0, 0
    for _ in range(2):
        height, width = rng.integers(4, 60, 2)
        found, true = (blobs(rng, n, height, width) for n in (4, 3))
        crowd = rng.random(3) < 0.2
        plain = coco.iou(encode(found), encode(true), [0] * 3)
        rim = coco.iou(encode(rims(found, ratio)), encode(rims(true, ratio)), [0] * 3)
        over_detection = coco.iou(encode(found), encode(true), [1] * 3)
        value = np.where(crowd, over_detection, np.minimum(plain, rim))
        expected += [(d + i, g + j, value[i, j]) for i, j in np.argwhere(value > 0).tolist()]
        d, g = d + 4, g + 3
        preds.append({"masks": torch.from_numpy(found)})
        target.append({"masks": encode(true)})
        crowds += crowd.tolist()
    stored = boundary_overlaps(
        read_masks("preds", preds), read_masks("target", target), torch.tensor(crowds), dilation_ratio=ratio
    )
    assert list(zip(*(column.tolist() for column in stored), strict=True)) == expected
    assert len(expected) > 3


def test_runs_that_touch_are_one():
    """A code that stops and starts again between two pixels has no rim there."""
    apart, whole = ({"size": [9, 9], "counts": counts} for counts in ([0, 40, 0, 41], [0, 81]))
    one = torch.tensor([False])
    for ratio in (0.02, 0.2):
        sides = read_masks("preds", [{"masks": [apart]}]), read_masks("target", [{"masks": [whole]}])
        assert boundary_overlaps(*sides, one, dilation_ratio=ratio).value.tolist() == [1.0]


def test_nothing():
    empty = read_masks("preds", [{"masks": []}])
    assert len(boundary_overlaps(empty, empty, torch.zeros(0, dtype=torch.bool)).value) == 0
