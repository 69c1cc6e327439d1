"""Detection protocols: the numbers that define a benchmark, as data.

A protocol is a frozen record; derive your own with ``dataclasses.replace(COCO, max_detections=(1, 10, 300))``.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np


def _entries(values: Any) -> list[Any]:
    """The entries of a list, tuple, array or tensor; empty for anything else."""
    entries = values.tolist() if hasattr(values, "tolist") else values
    return list(entries) if isinstance(entries, list | tuple) else []


def fractions(name: str, values: Any) -> tuple[float, ...]:
    """Numbers in [0, 1], one or more."""
    numbers = _entries(values)
    valid = all(isinstance(x, Real) and not isinstance(x, bool) and 0 <= float(x) <= 1 for x in numbers)
    if not numbers or not valid:
        raise ValueError(f"Argument `{name}` must be a list of numbers in [0, 1], got {values!r}")
    return tuple(float(x) for x in numbers)


def caps(name: str, values: Any) -> tuple[int, ...]:
    """Distinct positive ints, ascending."""
    numbers = _entries(values)
    valid = all(isinstance(x, Integral) and not isinstance(x, bool) and 0 < int(x) < 2**63 for x in numbers)
    if not numbers or not valid or len(set(numbers)) < len(numbers):
        raise ValueError(f"Argument `{name}` must be a list of distinct positive ints, got {values!r}")
    return tuple(sorted(int(x) for x in numbers))


@dataclass(frozen=True)
class Protocol:
    """What is evaluated, on which grids.

    Attributes:
        name: the key in ``PROTOCOLS``.
        iou_thresholds: overlaps at or above which a detection matches a ground truth, (T,) float64.
        recall_thresholds: recall levels at which precision is sampled, (R,) float64.
        areas: ``(name, low, high)`` in square pixels, both ends included, (A,). The first range is the overall one;
            each of the others adds ``map_{name}`` and ``mar_{name}`` to the summary.
        max_detections: how many of the best detections of an (image, class) count, ascending, (M,).
        ignored: keys of the targets whose flag makes a ground truth an ignored one; COCO has none.
    """

    name: str
    iou_thresholds: tuple[float, ...]
    recall_thresholds: tuple[float, ...]
    areas: tuple[tuple[str, float, float], ...]
    max_detections: tuple[int, ...]
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "iou_thresholds", fractions("iou_thresholds", self.iou_thresholds))
        object.__setattr__(self, "recall_thresholds", fractions("recall_thresholds", self.recall_thresholds))
        object.__setattr__(self, "max_detections", caps("max_detections", self.max_detections))
        if not self.areas or any(not low <= high for _, low, high in self.areas):
            raise ValueError(f"Argument `areas` must hold (name, low, high) with low <= high, got {self.areas!r}")


def grid(start: float, stop: float, num: int) -> tuple[float, ...]:
    """``numpy.linspace`` in float64, as in pycocotools: ``torch.linspace`` and k/100 differ in the last bit, AP too."""
    return tuple(np.linspace(start, stop, num).tolist())


# pycocotools 2.0.11, cocoeval.Params.setDetParams. An area of exactly 1024 is both small and medium.
COCO = Protocol(
    name="coco",
    iou_thresholds=grid(0.5, 0.95, 10),
    recall_thresholds=grid(0.0, 1.0, 101),
    areas=(("all", 0.0, 1e10), ("small", 0.0, 32.0**2), ("medium", 32.0**2, 96.0**2), ("large", 96.0**2, 1e10)),
    max_detections=(1, 10, 100),
)

PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in (COCO,)}
