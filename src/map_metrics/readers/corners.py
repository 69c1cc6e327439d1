"""Four corners as an oriented box: the smallest rectangle around them."""

from __future__ import annotations

import numpy as np

from map_metrics.readers.images import Floats

PAIRS = ((0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3))  # of corners; a side of the rectangle lies along one of them
SAME = 1e-9  # areas as close as this, relative, are equal


def rectangles(corners: Floats) -> Floats:
    """(n, 5) center x and y, width, height and angle in radians, as ``DetectionMAP(iou_type="obb")`` takes them.

    The width lies along the first side, from corner 1 to corner 2, unless a rectangle along another is smaller.

    Args:
        corners: (n, 8) x1, y1, ..., x4, y4.

    Example:
        >>> import numpy as np
        >>> rectangles(np.array([[1.0, 1, 5, 1, 5, 3, 1, 3]])).tolist()
        [[3.0, 2.0, 4.0, 2.0, 0.0]]
    """
    points = corners.reshape(-1, 4, 2)
    first, second = np.array(PAIRS).T
    along = points[:, second] - points[:, first]  # (n, pairs, 2)
    length = np.hypot(along[..., 0], along[..., 1])[..., None]
    along = np.where(length > 0, along / np.where(length > 0, length, 1), [1.0, 0.0])
    across = np.stack([-along[..., 1], along[..., 0]], -1)
    axes = np.stack([along, across], 2)  # (n, pairs, 2, 2)
    places = np.einsum("npak,nck->npac", axes, points)  # of the corners, along and across
    low, high = places.min(-1), places.max(-1)
    size = high - low
    area = size.prod(-1)
    best = (area <= area.min(1, keepdims=True) * (1 + SAME)).argmax(1)
    row = np.arange(len(points))
    center = np.einsum("na,nak->nk", (low + high)[row, best] / 2, axes[row, best])
    x, y = along[row, best].T
    return np.column_stack([center, size[row, best], np.arctan2(y, x)])
