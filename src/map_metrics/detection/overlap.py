"""Overlap of enumerated pairs of boxes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def box_overlap(detections: Floats, truths: Floats, crowd: NDArray[np.bool_]) -> Floats:
    """Intersection over union of boxes, pair by pair; over the detection's own area where the ground truth is a crowd.

    The arithmetic and its order are those of pycocotools (``bbIou`` in maskApi.c), so the bits are too: corners are
    recomputed as x + w, sizes are continuous (no + 1), and an empty intersection is exactly 0.

    Args:
        detections: (4, P): x, y, width, height in pixels.
        truths: (4, P), the same.
        crowd: (P,)

    Returns:
        (P,)
    """
    dx, dy, dw, dh = detections
    gx, gy, gw, gh = truths
    width = np.minimum(dx + dw, gx + gw) - np.maximum(dx, gx)
    height = np.minimum(dy + dh, gy + gh) - np.maximum(dy, gy)
    intersection = width * height
    area = dw * dh
    union = np.where(crowd, area, area + gw * gh - intersection)
    overlap: Floats = np.divide(intersection, union, out=np.zeros_like(union), where=(width > 0) & (height > 0))
    return overlap
