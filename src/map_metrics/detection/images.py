"""What each image contributes: counts, and the mean average precision of the image alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from map_metrics.detection.interpolated import average_precision
from map_metrics.detection.judged import judge
from map_metrics.detection.matched import Matched
from map_metrics.detection.protocols import Protocol


class ImageCounts(NamedTuple):
    """Counts of each image at one threshold.

    Attributes:
        ground_truths: (images,) int64, those that count.
        true_positives: (images,) int64.
        false_positives: (images,) int64.
        missed: (images,) int64, ground truths that were not found.
    """

    ground_truths: Tensor
    true_positives: Tensor
    false_positives: Tensor
    missed: Tensor


def image_counts(matched: Matched, cap: int, num_images: int, threshold: int = 0) -> ImageCounts:
    """Count over all curves at one of the ascending thresholds, in the first area range."""
    judged = judge(matched, cap, threshold)

    def count(images: Tensor) -> Tensor:
        return torch.bincount(images, minlength=num_images)

    true, hits = count(matched.truths.image[judged.true]), count(judged.image[judged.hit])
    return ImageCounts(true, hits, count(judged.image[judged.counts & ~judged.hit]), true - hits)


def image_precision(matched: Matched, protocol: Protocol, num_images: int) -> Tensor:
    """COCO's mean average precision of each image alone, (images,) float64, -1 without ground truth.

    A match never leaves its cell, an image and a curve, so the matches stand as they are: every cell that holds ground
    truth is ranked as a curve of its own, at the first threshold, and again where one of its matches begins or ends.
    """
    cap, ranking, matches = protocol.cuts[-1], matched.ranking, matched.matches
    cells, cell_of_truth = torch.unique(
        matched.truths.image * matched.num_curves + matched.truths.label, return_inverse=True
    )
    positives = torch.bincount(cell_of_truth[~matched.ignored[0]], minlength=len(cells))
    cell = torch.searchsorted(cells, ranking.cell)
    held = (torch.cat([cells, cells.new_tensor([-1])])[cell] == ranking.cell) & (
        ranking.position[ranking.by_cell] < cap
    )
    place, cell = ranking.by_cell[held], cell[held]
    taken = cell_of_truth[matches.truth]
    changed, ap = torch.ones(len(cells), dtype=torch.bool), torch.zeros(len(cells), dtype=torch.float64)
    sums = torch.zeros_like(ap)
    for threshold in range(len(protocol.iou_thresholds)):
        if threshold:
            changed = torch.zeros_like(changed)
            changed[taken[(matches.first == threshold) | (matches.stop == threshold)]] = True
        rows = changed[cell]
        judged = judge(matched, cap, threshold, among=place[rows])
        fresh = average_precision(cell[rows], judged.score, judged.hit, judged.counts, positives * changed, protocol)
        ap = torch.where(changed, fresh, ap)
        sums += ap
    held = positives > 0
    image = cells[held] // max(matched.num_curves, 1)
    total = torch.zeros(num_images, dtype=torch.float64).index_add_(0, image, sums[held])
    number = torch.bincount(image, minlength=num_images)
    if protocol.absent == "zero":
        detected = torch.unique(matched.ranking.cell[~matched.outside[0, matched.ranking.by_cell]])
        absent = detected[~torch.isin(detected, cells)]
        number += torch.bincount(absent // max(matched.num_curves, 1), minlength=num_images)
    mean = total / (number.clamp(min=1).double() * len(protocol.iou_thresholds))
    return torch.where(number > 0, mean, -1.0)
