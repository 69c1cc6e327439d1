"""Overlap of enumerated pairs of boxes."""

from __future__ import annotations

import torch
from torch import Tensor


def box_overlap(detections: Tensor, truths: Tensor, crowd: Tensor) -> Tensor:
    """Intersection over union of boxes, pair by pair; over the detection's own area where the ground truth is a crowd.

    The arithmetic and its order are those of pycocotools (``bbIou`` in maskApi.c), so the bits are too: corners are
    recomputed as x + w, sizes are continuous (no + 1), and an empty intersection is exactly 0.

    Args:
        detections: (P, 4) float64, x, y, width, height in pixels.
        truths: (P, 4) float64, the same.
        crowd: (P,) bool.

    Returns:
        (P,) float64.
    """
    dx, dy, dw, dh = detections.unbind(1)
    gx, gy, gw, gh = truths.unbind(1)
    width = torch.minimum(dx + dw, gx + gw) - torch.maximum(dx, gx)
    height = torch.minimum(dy + dh, gy + gh) - torch.maximum(dy, gy)
    intersection = width * height
    area = dw * dh
    union = torch.where(crowd, area, area + gw * gh - intersection)
    return torch.where((width > 0) & (height > 0), intersection / union, 0.0)
