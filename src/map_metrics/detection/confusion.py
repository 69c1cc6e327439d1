"""Which class is taken for which."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from map_metrics.detection.evidence import Evidence
from map_metrics.detection.judged import judge
from map_metrics.detection.protocols import Protocol


def confusion_matrix(evidence: Evidence, protocol: Protocol, iou: float, score: float) -> Tensor:
    """Count (true class, predicted class): see :meth:`map_metrics.detection.result.DetectionResult.confusion_matrix`.

    Returns:
        (C + 1, C + 1) int64 over the classes of all rows, ascending; the last row and column are the background.
    """
    classes = torch.cat([evidence.detections.label, evidence.truths.label]).unique()
    certain = evidence.above(score)
    rule = replace(protocol, iou_thresholds=(iou,), max_detections=(), cap_per="class", assign="coco", group_weight=0)
    matched = certain.match(rule, "micro")
    judged = judge(matched, rule.cuts[-1])

    to_all = torch.searchsorted(classes, matched.classes)
    background = len(classes)
    predicted = to_all[matched.detection_class[matched.ranking.row[judged.place]]]
    true = to_all[matched.truth_class]
    found = torch.full_like(predicted, background)
    found[judged.hit] = true[judged.truth[judged.hit]]
    missed = judged.true.clone()
    missed[judged.truth[judged.hit]] = False
    rows = torch.cat([found[judged.counts], true[missed]])
    columns = torch.cat([predicted[judged.counts], torch.full_like(true[missed], background)])
    size = background + 1
    return torch.bincount(rows * size + columns, minlength=size * size).view(size, size)
