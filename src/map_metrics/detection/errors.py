"""Why the score is not higher: the six kinds of error of TIDE, and what each of them costs.

Bolya, Foley, Hays and Hoffman, "TIDE: A General Toolbox for Identifying Object Detection Errors", ECCV 2020. The kinds
and their order are those of the paper and its code; matching and average precision are COCO's, as everywhere in here:
the numbers need not be those of ``tidecv`` to the last digit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from map_metrics.detection.evidence import Evidence
from map_metrics.detection.interpolated import average_precision
from map_metrics.detection.judged import Judged, judge
from map_metrics.detection.matched import Matched
from map_metrics.detection.matching import curve_order, effective
from map_metrics.detection.pairs import Overlaps
from map_metrics.detection.protocols import Protocol
from map_metrics.detection.summary import absent_curves, mean_of_defined

KINDS = ("classification", "localisation", "both", "duplicate", "background", "missed")
CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, BACKGROUND, MISSED = range(6)


@dataclass(frozen=True, repr=False, eq=False)
class ErrorBreakdown:
    """Errors by kind, and the average precision that would be gained without each kind.

    Attributes:
        ap: mean average precision over the classes with ground truth at this IoU, -1 without ground truth.
        counts: how many errors of each kind: false positives of five kinds, and missed ground truths.
        cost: what ``ap`` gains when one kind alone is corrected.
        cost_false_positives: what it gains when no false positive stands above a true one.
        cost_false_negatives: what it gains when ground truths that were not found do not count.
        detection_kind: (n,) int64, the index in ``KINDS`` of each detection that is an error, by the row it came as;
            -1 for the others.
    """

    ap: float
    counts: dict[str, int]
    cost: dict[str, float]
    cost_false_positives: float
    cost_false_negatives: float
    detection_kind: Tensor

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single detections as plain Python values."""
        return {name: value for name, value in vars(self).items() if name != "detection_kind"}

    def __repr__(self) -> str:
        kinds = ", ".join(f"{kind}={self.counts[kind]} ({self.cost[kind]:+.4f})" for kind in KINDS)
        return f"ErrorBreakdown(ap={self.ap:.6f}, {kinds})"


def error_breakdown(evidence: Evidence, protocol: Protocol, iou: float, background: float) -> ErrorBreakdown:
    """Sort errors into kinds: see :meth:`map_metrics.detection.result.DetectionResult.errors`."""
    matched = evidence.match(replace(protocol, iou_thresholds=(iou,)))
    judged, row = _in_input_order(matched, judge(matched, protocol.cuts[-1]))
    reach = float(effective([iou], strict=protocol.strict)[0])
    reach = math.nextafter(reach, 2) if protocol.strict else reach  # the least overlap that counts
    pairs = evidence.image_pairs(background, protocol)
    kind, target = _kinds(matched, judged, row, len(evidence.detections.label), pairs, reach, background)
    found = torch.zeros_like(judged.true)
    found[judged.truth[judged.hit]] = True
    open_target = (target >= 0) & ~torch.cat([found, found.new_zeros(1)])[target]
    missed = judged.true & ~found
    missed[target[open_target]] = False

    def value(curve: Tensor, hit: Tensor, counts: Tensor, true: Tensor) -> float:
        order = curve_order(curve, judged.score)
        positives = torch.bincount(matched.truths.label[true], minlength=matched.num_curves)
        precision = average_precision(curve[order], judged.score[order], hit[order], counts[order], positives, protocol)
        if protocol.absent == "zero":
            precision[absent & (torch.bincount(curve[counts], minlength=matched.num_curves) > 0)] = 0.0
        return mean_of_defined(precision.numpy())

    absent = absent_curves(matched, 0)

    ap = value(judged.curve, judged.hit, judged.counts, judged.true)
    gains = []
    for number in (CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, BACKGROUND):
        wrong = kind == number
        mended = _best_of_each(target, wrong & open_target, judged.score)
        curve, hit = judged.curve.clone(), judged.hit.clone()
        curve[mended], hit[mended] = matched.truths.label[target[mended]], True
        gains.append(value(curve, hit, judged.counts & (hit | ~wrong), judged.true))
    gains.append(value(judged.curve, judged.hit, judged.counts, judged.true & ~missed))
    perfect = value(judged.curve, judged.hit, judged.hit, judged.true)
    complete = value(judged.curve, judged.hit, judged.counts, found)
    counts = torch.bincount(kind[kind >= 0], minlength=5).tolist()
    return ErrorBreakdown(
        ap=ap,
        counts=dict(zip(KINDS, [*counts, int(missed.sum())], strict=True)),
        cost=dict(zip(KINDS, [_gain(gain, ap) for gain in gains], strict=True)),
        cost_false_positives=_gain(perfect, ap),
        cost_false_negatives=_gain(complete, ap),
        detection_kind=torch.full((len(evidence.detections.label),), -1).index_put((row,), kind),
    )


def _gain(fixed: float, ap: float) -> float:
    """0 where either is undefined."""
    return fixed - ap if min(fixed, ap) > -1 else 0.0


def _in_input_order(matched: Matched, judged: Judged) -> tuple[Judged, Tensor]:
    """Detections in the order in which equal scores rank, whatever class they are given; and the row of each."""
    row, order = torch.sort(matched.detection_row[matched.ranking.row[judged.place]])
    return Judged(*[*(column[order] for column in judged[:-1]), judged.true]), row


def _kinds(
    matched: Matched, judged: Judged, row: Tensor, num_rows: int, pairs: Overlaps, iou: float, background: float
) -> tuple[Tensor, Tensor]:
    """The kind of error that each detection is, -1 for none, and the ground truth it points at, or -1."""
    number_of_row = torch.full((num_rows,), -1)
    number_of_row[row] = torch.arange(len(row))
    truth_of_row = torch.empty_like(matched.truth_row)
    truth_of_row[matched.truth_row] = torch.arange(len(matched.truth_row))
    detection, truth = number_of_row[pairs.detection], truth_of_row[pairs.truth]
    wrong = judged.counts & ~judged.hit
    keep = (detection >= 0) & judged.true[truth] & torch.cat([wrong, wrong.new_zeros(1)])[detection]
    rows = detection[keep], truth[keep], pairs.value[keep], pairs.truth[keep]
    same = matched.truths.label[rows[1]] == judged.curve[rows[0]]
    own, own_truth = _largest(len(wrong), *(column[same] for column in rows))
    other, other_truth = _largest(len(wrong), *(column[~same] for column in rows))

    kind = torch.full_like(own_truth, BACKGROUND)
    kind[other >= background] = BOTH
    kind[own >= iou] = DUPLICATE  # everything that overlaps so far was taken before
    kind[other >= iou] = CLASSIFICATION
    near = (own >= background) & (own < iou)
    kind[near] = LOCALISATION
    kind[~wrong] = -1
    target = torch.full_like(kind, -1)
    target[kind == CLASSIFICATION] = other_truth[kind == CLASSIFICATION]
    target[kind == LOCALISATION] = own_truth[kind == LOCALISATION]
    return kind, target


def _largest(size: int, detection: Tensor, truth: Tensor, value: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """The largest overlap of each detection, 0 without one, and its ground truth: the first by ``row`` among equals."""
    order = torch.from_numpy(np.lexsort((-row.numpy(), value.numpy(), detection.numpy())))
    detection, truth, value = detection[order], truth[order], value[order]
    last = torch.ones(len(detection), dtype=torch.bool)
    last[:-1] = detection[1:] != detection[:-1]
    largest, which = torch.zeros(size, dtype=torch.float64), torch.full((size,), -1)
    largest[detection[last]], which[detection[last]] = value[last], truth[last]
    return largest, which


def _best_of_each(target: Tensor, candidates: Tensor, score: Tensor) -> Tensor:
    """Of the candidates for each target the one with the largest score, the first among equals."""
    rows = candidates.nonzero()[:, 0]
    rows = rows[curve_order(target[rows], score[rows])]
    first = torch.ones(len(rows), dtype=torch.bool)
    first[1:] = target[rows[1:]] != target[rows[:-1]]
    return rows[first]
