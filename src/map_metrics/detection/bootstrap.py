"""How much a number depends on which images were drawn: the percentile bootstrap over images (Efron, 1979).

Nothing is matched again, as a match never leaves its image: an image that is drawn twice is a row that counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from map_metrics.detection.curves import Ints, tie_limits
from map_metrics.detection.interpolated import interpolated
from map_metrics.detection.judged import judge
from map_metrics.detection.matched import Matched
from map_metrics.detection.protocols import Protocol
from map_metrics.detection.summary import absent_curves, mean_of_defined


class Interval(NamedTuple):
    """A number and its bootstrap interval.

    Attributes:
        value: the number over all images.
        low: the lower end; NaN where no resample defines the number.
        high: the upper end.
        samples: (num_resamples,) float64, the number in each resample; -1 where it is undefined there.
    """

    value: float
    low: float
    high: float
    samples: Tensor


class Choice(NamedTuple):
    """What a headline number is made of.

    Attributes:
        recall: the last recall instead of the mean precision.
        thresholds: indices among the ascending thresholds, in the order of the protocol.
        area: index of the area range.
        cap: detections of a cell that take part.
        group: name of the group of classes, or None: all classes.
    """

    recall: bool
    thresholds: list[int]
    area: int
    cap: int
    group: str | None = None


def choice(key: str, protocol: Protocol, class_groups: Mapping[int, str]) -> Choice:
    """What ``key`` is made of.

    Raises:
        ValueError: if it is not one of the headline numbers.
    """
    names = [name for name, _, _ in protocol.areas]
    thresholds, largest = np.array(protocol.iou_thresholds), protocol.cuts[-1]
    every = np.argsort(np.argsort(thresholds, kind="stable"), kind="stable").tolist()
    choices = {"map": Choice(False, every, 0, largest)}
    for percent in (50, 75):
        exact = [t for t, iou in zip(every, thresholds.tolist(), strict=True) if iou == percent / 100]
        choices[f"map_{percent}"] = Choice(False, exact, 0, largest)
    choices |= {f"map_{name}": Choice(False, every, a, largest) for a, name in enumerate(names) if a}
    choices |= {f"map_{name}": Choice(False, every, 0, largest, name) for name in class_groups.values()}
    choices |= {name: Choice(True, every, 0, cap) for name, cap in zip(protocol.mar_keys, protocol.cuts, strict=True)}
    choices |= {f"mar_{name}": Choice(True, every, a, largest) for a, name in enumerate(names) if a}
    if not isinstance(key, str) or key not in choices:
        raise ValueError(f"Argument `key` must be one of {', '.join(map(repr, choices))}, got {key!r}")
    return choices[key]


class Weighable(NamedTuple):
    """Hits of all thresholds, and the images whose weights add up to what stands above each.

    The curves are those of the first threshold, then those of the second, ...

    Attributes:
        hit_image: (H,) image of each hit.
        bounds: (T * C + 1,) where the hits of each curve start, and the end.
        seen_image: (N,) image of each detection that counts as long as none is matched, in curve order.
        seen: (H,) how many of those stand at or above each hit, over all curves.
        seen_before: (H,) how many of those stand in the curves before.
        changer_image: (X,) image of each detection whose match changes whether it counts.
        change: (X,) 1 or -1.
        changed: (H,) how many of those stand at or above each hit, over all curves.
        changed_before: (H,) how many of those stand in the curves before.
        until: (H,) how many hits, over all curves, stand above the place up to which ``seen`` and ``changed`` count.
        true_image: (G,) image of each ground truth that counts.
        true_curve: (G,) its curve, in 0 .. C - 1.
        chosen: (C,) bool, the curves whose precision is averaged.
    """

    hit_image: Ints
    bounds: Ints
    seen_image: Ints
    seen: Ints
    seen_before: Ints
    changer_image: Ints
    change: Ints
    changed: Ints
    changed_before: Ints
    until: Ints
    true_image: Ints
    true_curve: Ints
    chosen: NDArray[np.bool_]


def weighable(matched: Matched, picked: Choice, protocol: Protocol, class_groups: Mapping[int, str]) -> Weighable:
    """Everything about the matches that no weight of an image changes."""
    rows = [judge(matched, picked.cap, t, picked.area) for t in picked.thresholds]
    first, num_curves = rows[0], matched.num_curves
    hit, counts = torch.stack([row.hit for row in rows]), torch.stack([row.counts for row in rows])  # (T, n)
    seen = ~matched.outside[picked.area, first.place]
    threshold, place = hit.nonzero(as_tuple=True)
    changers = (counts != seen).view(-1).nonzero()[:, 0]
    changer = changers % max(len(first.place), 1)
    start = torch.searchsorted(first.curve, first.curve[place])  # of the curve of each hit
    of_threshold = threshold * len(first.place)
    limit = tie_limits(first.curve, first.score, protocol)[place]
    seen_to = torch.cat([torch.zeros(1, dtype=torch.int64), seen.cumsum(0)])
    curves = torch.arange(len(rows) * num_curves + 1)
    true = first.true
    found = [
        first.image[place],
        torch.searchsorted(first.curve[place] + threshold * num_curves, curves),
        first.image[seen],
        seen_to[limit],
        seen_to[start],
        first.image[changer],
        counts.view(-1)[changers].long() * 2 - 1,
        torch.searchsorted(changers, of_threshold + limit),
        torch.searchsorted(changers, of_threshold + start),
        torch.searchsorted(of_threshold + place, of_threshold + limit),
        matched.truths.image[true],
        matched.truths.label[true],
    ]
    chosen = np.ones(num_curves, dtype=bool)
    if picked.group is not None:  # there are groups with one curve per class only
        chosen[:] = [class_groups.get(label) == picked.group for label in matched.classes.tolist()]
    return Weighable._make([*(column.numpy() for column in found), chosen])


def weighted(rows: Weighable, weight: Ints, picked: Choice, matched: Matched, protocol: Protocol) -> float:
    """The number with every image counted ``weight`` times, -1 where it is undefined."""
    num_curves = matched.num_curves
    positives = np.bincount(rows.true_curve, weight[rows.true_image], num_curves).astype(np.int64)
    true = np.cumsum(weight[rows.hit_image])
    num_thresholds = len(picked.thresholds)
    if picked.recall:
        found = np.diff(np.concatenate([[0], true])[rows.bounds]).reshape(num_thresholds, num_curves)
        recall = found / np.maximum(positives, 1)
        return mean_of_defined(np.where(positives > 0, recall, -1.0))
    seen = np.concatenate([[0], np.cumsum(weight[rows.seen_image])])
    changed = np.concatenate([[0], np.cumsum(rows.change * weight[rows.changer_image])])
    total = seen[rows.seen] - seen[rows.seen_before] + changed[rows.changed] - changed[rows.changed_before]
    total += true - np.concatenate([[0], true])[rows.until]  # true positives count up to the hit itself
    envelope = interpolated(true, total, rows.bounds, np.tile(positives, num_thresholds), protocol)
    table = envelope.reshape(num_thresholds, num_curves, -1).swapaxes(1, 2)
    precision = np.where(positives > 0, table, -1.0)
    if protocol.absent == "zero":
        precision[..., absent_curves(matched, picked.area, torch.from_numpy(weight)).numpy()] = 0.0
    return mean_of_defined(precision[..., rows.chosen])


def bootstrap(
    matched: Matched,
    protocol: Protocol,
    image_ids: list[int],
    *,
    num_resamples: int,
    confidence: float,
    seed: int,
    key: str,
    class_groups: Mapping[int, str] | None = None,
) -> Interval:
    """Resample the images: see :meth:`map_metrics.detection.result.DetectionResult.bootstrap`."""
    picked = choice(key, protocol, class_groups or {})
    size = len(image_ids)
    if not picked.thresholds or not matched.num_curves:
        return Interval(-1.0, np.nan, np.nan, torch.full((num_resamples,), -1.0, dtype=torch.float64))
    rows = weighable(matched, picked, protocol, class_groups or {})
    by_id = np.argsort(np.array(image_ids, dtype=np.int64), kind="stable")
    rng = np.random.default_rng(seed)
    weight = np.ones(size, dtype=np.int64)
    value = weighted(rows, weight, picked, matched, protocol)
    samples = np.empty(num_resamples)
    for i in range(num_resamples):
        weight[by_id] = np.bincount(rng.integers(0, size, size), minlength=size)
        samples[i] = weighted(rows, weight, picked, matched, protocol)
    defined = samples[samples > -1]
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    low, high = np.quantile(defined, ends).tolist() if len(defined) else (np.nan, np.nan)
    return Interval(value, low, high, torch.from_numpy(samples))
