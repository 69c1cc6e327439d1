"""Detection protocols: the numbers and rules that define a benchmark, as data.

A protocol is a frozen record; derive your own with ``dataclasses.replace(COCO, max_detections=(1, 10, 300))``.
Contested points are fields too: ``replace(COCO, ignored=("ignore",))`` honours the flag that pycocotools overwrites,
``replace(COCO, absent="zero")`` counts a class that was detected but has no ground truth as AP 0, as TIDE does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal

import numpy as np

from map_metrics.checks import entries, number, numbers
from map_metrics.conventions import flag, one_of
from map_metrics.detection.checks import FLAGS

TAKEN = ("50", "75", "per_class")
"""What stands behind ``map_`` in keys that are no area range and no group of classes."""


def fractions(name: str, values: Any) -> tuple[float, ...]:
    """Numbers in [0, 1], one or more."""
    levels = numbers(name, values)
    if not levels or not all(0 <= x <= 1 for x in levels):
        raise ValueError(f"Argument `{name}` must be a list of numbers in [0, 1], got {values!r}")
    return levels


def caps(name: str, values: Any) -> tuple[int, ...]:
    """Distinct positive ints, ascending."""
    given = entries(name, values)
    valid = all(isinstance(x, Integral) and not isinstance(x, bool) and 0 < int(x) < 2**63 for x in given)
    if not given or not valid or len(set(given)) < len(given):
        raise ValueError(f"Argument `{name}` must be a list of distinct positive ints, got {values!r}")
    return tuple(sorted(int(x) for x in given))


def _areas(values: Any, max_detections: tuple[int, ...]) -> tuple[tuple[str, float, float], ...]:
    """Area ranges whose keys are their own."""
    given = [entry if isinstance(entry, list | tuple) else () for entry in entries("areas", values)]
    if not given or not all(len(entry) == 3 and isinstance(entry[0], str) for entry in given):
        raise ValueError(f"Argument `areas` must hold (name, low, high), got {values!r}")
    ranges = tuple((name, number(low), number(high)) for name, low, high in given)
    if any(not low <= high for _, low, high in ranges):
        raise ValueError(f"Argument `areas` must hold (name, low, high) with low <= high, got {values!r}")
    names, taken = [name for name, _, _ in ranges], {*TAKEN, *map(str, max_detections)}
    if len(set(names)) < len(names) or taken.intersection(names[1:]):
        raise ValueError(
            f"Argument `areas` must hold distinct names, none of them one of {sorted(taken)} as those keys are taken, "
            f"got {names}"
        )
    return ranges


@dataclass(frozen=True)
class Protocol:
    """What is evaluated, on which grids, by which rules. The defaults of the rules are COCO's.

    Attributes:
        name: the key in ``PROTOCOLS``.
        iou_thresholds: overlaps from which a detection matches a ground truth, (T,) float64.
        recall_thresholds: recall levels at which precision is sampled, (R,) float64. Empty: every recall, that is, the
            area under the envelope of precision (VOC 2010 and later); the tables then have R = 1 and hold that area.
        areas: ``(name, low, high)`` in square pixels, both ends included, (A,). The first range is the overall one;
            each of the others adds ``map_{name}`` and ``mar_{name}`` to the summary.
        max_detections: how many of the best detections of an (image, class) count, ascending, (M,). Empty: all of
            them; the tables then have M = 1 and the summary ``mar``.
        cap_per: what ``max_detections`` caps: each ``"class"`` of an image, or the ``"image"`` over all classes, ties
            in input order (LVIS).
        assign: ``"coco"``: a detection takes the best ground truth that is still free and falls back to the next.
            ``"best"``: it looks at nothing but the ground truth of its class with the largest overlap, the first among
            equals: a false positive if that was taken before (VOC, Open Images).
        strict: an overlap must exceed the threshold; False: reaching it is enough.
        inclusive: corners are pixels that belong to the box: a width is x2 - x1 + 1. Overlaps of boxes only.
        ignored: keys of the target that mark a single object as not counting: neither found nor missed.
        epsilon: added to the denominator of precision.
        federated: classes are judged only in images whose ground truths or image-level labels name them; detections of
            other classes are dropped, and those of classes that are not exhaustively annotated are no false positives.
        group_weight: what a crowd (a group-of box) counts: 0, never missed; 1, one object, found by the first detection
            it absorbs. Only with ``assign="best"``.
        absent: a class that was detected but has no ground truth anywhere: ``"skip"`` leaves it out of the mean,
            ``"zero"`` counts it as AP 0.
        ties: the order of equal scores on the curve of a class: ``"stable"``, by image and input position, or the
            bounds over all orders: ``"optimistic"``, true positives first, and ``"pessimistic"``, true positives last.
            Matching itself is always in stable order.

    Raises:
        ValueError: naming the field, what was expected and what came.

    Example:
        >>> from dataclasses import replace
        >>> from map_metrics.detection.protocols import VOC2012
        >>> replace(VOC2012, strict=True).iou_thresholds  # py-faster-rcnn's reading of the devkit
        (0.5,)
    """

    name: str
    iou_thresholds: tuple[float, ...]
    recall_thresholds: tuple[float, ...]
    areas: tuple[tuple[str, float, float], ...]
    max_detections: tuple[int, ...]
    cap_per: Literal["class", "image"] = "class"
    assign: Literal["coco", "best"] = "coco"
    strict: bool = False
    inclusive: bool = False
    ignored: tuple[str, ...] = ()
    epsilon: float = 2.0**-52
    federated: bool = False
    group_weight: int = 0
    absent: Literal["skip", "zero"] = "skip"
    ties: Literal["stable", "optimistic", "pessimistic"] = "stable"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"Argument `name` must be a str, got {self.name!r}")
        for name, check in (("iou_thresholds", fractions), ("recall_thresholds", fractions), ("max_detections", caps)):
            values = getattr(self, name)
            empty = name != "iou_thresholds" and isinstance(values, list | tuple) and not values
            object.__setattr__(self, name, () if empty else check(name, values))
        object.__setattr__(self, "areas", _areas(self.areas, self.max_detections))
        one_of("cap_per", self.cap_per, ("class", "image"))
        one_of("assign", self.assign, ("coco", "best"))
        one_of("absent", self.absent, ("skip", "zero"))
        one_of("ties", self.ties, ("stable", "optimistic", "pessimistic"))
        for name in ("strict", "inclusive", "federated"):
            flag(name, getattr(self, name))
        keys = self.ignored if isinstance(self.ignored, list | tuple) else [None]
        if not all(isinstance(key, str) and key in FLAGS for key in keys):
            raise ValueError(
                f"Argument `ignored` must be a tuple of keys of the target, out of {tuple(FLAGS)}, got {self.ignored!r}"
            )
        object.__setattr__(self, "ignored", tuple(self.ignored))
        if not 0 <= number(self.epsilon) < math.inf:
            raise ValueError(f"Argument `epsilon` must be a number of at least 0, got {self.epsilon!r}")
        object.__setattr__(self, "epsilon", number(self.epsilon))
        weight = self.group_weight
        if number(weight) not in (0, 1) or (weight and self.assign != "best"):
            raise ValueError(f"Argument `group_weight` must be 0, or 1 with assign='best', got {weight!r}")

    @property
    def cuts(self) -> tuple[int, ...]:
        """The caps, ascending; one that never bites where the protocol has none."""
        return self.max_detections or (2**62,)

    @property
    def mar_keys(self) -> tuple[str, ...]:
        """The names of average recall at each cap, ``mar`` where there is none."""
        return tuple(f"mar_{cap}" for cap in self.max_detections) or ("mar",)


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

# cocoeval.Params.setKpParams: persons that are small have no keypoints.
COCO_KEYPOINTS = replace(COCO, name="coco-keypoints", areas=(COCO.areas[0], *COCO.areas[2:]), max_detections=(20,))

# The devkit's rule with its pixel-inclusive boxes. Whether an overlap of exactly .5 passes is contested: mmdetection's,
# Padilla's and Cartucho's tools say yes, py-faster-rcnn and detectron2 no (``strict=True``).
VOC2012 = Protocol(
    name="voc2012",
    iou_thresholds=(0.5,),
    recall_thresholds=(),
    areas=(("all", 0.0, math.inf),),
    max_detections=(),
    assign="best",
    inclusive=True,
    ignored=("difficult",),
    epsilon=0.0,
)

# Precision at 11 recalls. The levels are numpy's, as in the Python ports: 3 of 10 found score 3/11.
VOC2007 = replace(VOC2012, name="voc2007", recall_thresholds=grid(0.0, 1.0, 11))

# lvis-api 0.5.3, lvis.eval.Params and LVISResults: 300 detections of an image over all classes. One difference: an
# annotation or result of area 0 counts here and is never loaded there.
LVIS = replace(COCO, name="lvis", max_detections=(300,), cap_per="image", ignored=("ignore",), federated=True)

# TensorFlow's OpenImagesDetectionChallengeEvaluator; weight 0 is its "detection metric 2018".
OPEN_IMAGES = replace(VOC2012, name="openimages", inclusive=False, ignored=(), federated=True, group_weight=1)

PROTOCOLS: dict[str, Protocol] = {p.name: p for p in (COCO, COCO_KEYPOINTS, VOC2007, VOC2012, LVIS, OPEN_IMAGES)}
