"""From rows to COCO's tables, and from the tables to numbers.

The tables are bit for bit those of pycocotools 2.0.11 (``COCOeval.accumulate``), but only true positives are looked at:
between two of them precision falls, so no maximum and no sample lies there.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from map_metrics.detection.matching import (
    Detections,
    GroundTruths,
    Matches,
    Overlaps,
    Ranking,
    box_pairs,
    cell_of,
    effective,
    match,
    rank_detections,
    stored_pairs,
)
from map_metrics.detection.protocols import Protocol
from map_metrics.ranking import dense_ids, first_of_runs, lexsort

Average = Literal["macro", "micro"]
Rows = TypeVar("Rows", Detections, GroundTruths)
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

EPSILON = 2.0**-52  # in the denominator of precision: a lone leading true positive has precision 1 - 2^-52


class Tables(NamedTuple):
    """Precision and recall on the grids of a protocol, -1 where a class has no ground truth in an area range.

    C is the number of classes, or 1 with ``average="micro"``.

    Attributes:
        classes: (number of classes,) int64, every detected or true label, ascending.
        precision: [T, R, C, A, M] float64, the largest precision at or beyond a recall; 0 beyond the last recall.
        scores: [T, R, C, A, M] float64, the score at which that recall is reached; 0 beyond the last recall.
        recall: [T, C, A, M] float64, the last recall.
        num_truths: (number of classes,) int64, ground truths that count, whatever their area.
        num_detections: (number of classes,) int64.
    """

    classes: Tensor
    precision: Tensor
    scores: Tensor
    recall: Tensor
    num_truths: Tensor
    num_detections: Tensor


class Matched(NamedTuple):
    """All images matched: what every table, curve and count is made of.

    Detections and ground truths stand in the order of the evaluation, their ``label`` the rank of the curve they belong
    to: that of their class, or 0 with ``average="micro"``.

    Attributes:
        classes: (number of classes,) int64, every detected or true label, ascending.
        num_curves: the number of classes, or 1 with ``average="micro"``.
        detections: the rows.
        detection_class: (n,) int64, rank of each one's class.
        detection_row: (n,) int64, the row that each one came as.
        truths: the rows, sorted by cell.
        truth_class: (g,) int64, rank of each one's class.
        truth_row: (g,) int64, the row that each one came as.
        ranking: the detections in curve order.
        matches: who takes whom, at ascending thresholds.
        order: (T,) int64, where each of the ascending thresholds stands in the protocol.
        ignored: (A, g) bool, ground truths that do not count in an area range.
        outside: (A, n) bool, places whose detection is left out where it is unmatched.
    """

    classes: Tensor
    num_curves: int
    detections: Detections
    detection_class: Tensor
    detection_row: Tensor
    truths: GroundTruths
    truth_class: Tensor
    truth_row: Tensor
    ranking: Ranking
    matches: Matches
    order: Tensor
    ignored: Tensor
    outside: Tensor


def evaluate(
    detections: Detections,
    truths: GroundTruths,
    protocol: Protocol,
    *,
    average: Average = "macro",
    overlaps: Overlaps | None = None,
) -> Tables:
    """Match all images and tabulate precision and recall: the arguments are those of :func:`match_images`."""
    return tabulate(match_images(detections, truths, protocol, average=average, overlaps=overlaps), protocol)


def match_images(
    detections: Detections,
    truths: GroundTruths,
    protocol: Protocol,
    *,
    average: Average = "macro",
    overlaps: Overlaps | None = None,
) -> Matched:
    """Match all images.

    Args:
        detections: rows of all images.
        truths: rows of all images.
        protocol: thresholds, area ranges and caps.
        average: ``"macro"`` evaluates every class on its own; ``"micro"`` all classes as one (pycocotools' useCats=0),
            the rows of an image in the order of (label, input position) and the caps per image.
        overlaps: of these rows, where they are not those of the boxes.
    """
    classes, detections, truths = _rank_labels(detections, truths)
    num_curves = len(classes)
    detection_class, truth_class = detections.label, truths.label
    detection_row, truth_row = torch.arange(len(detections.label)), torch.arange(len(truths.label))
    if average == "micro":
        detections, detection_row = _one_class(detections)
        truths, truth_row = _one_class(truths)
        num_curves = 1
    truths, by_cell = _by_cell(truths, num_curves)
    truth_row = truth_row[by_cell]
    detection_class, truth_class = detection_class[detection_row], truth_class[truth_row]
    ranking = rank_detections(detections, num_curves)

    cell = cell_of(truths, num_curves)
    thresholds, order = effective(protocol.iou_thresholds).sort(stable=True)
    cap, lowest = max(protocol.max_detections), float(thresholds[0])
    if overlaps is None:
        pairs = box_pairs(detections, ranking, truths, cell, cap, lowest)
    else:
        pairs = stored_pairs(overlaps, ranking, detection_row, truth_row, cell, cap, lowest)
    ignored = truths.crowd | truths.ignore | _outside(truths.area, protocol)
    matches = match(pairs, cell, truths.crowd, ignored, thresholds)
    outside = _outside(detections.area[ranking.row], protocol)
    sides = (detections, detection_class, detection_row, truths, truth_class, truth_row)
    return Matched(classes, num_curves, *sides, ranking, matches, order, ignored, outside)


def tabulate(matched: Matched, protocol: Protocol) -> Tables:
    """The tables of matched images, on the grids of the protocol they were matched under."""
    truths, num_classes = matched.truths, len(matched.classes)
    num_truths = torch.bincount(matched.truth_class[~(truths.crowd | truths.ignore)], minlength=num_classes)
    num_detections = torch.bincount(matched.detection_class, minlength=num_classes)
    counts = [torch.bincount(truths.label[~row], minlength=matched.num_curves) for row in matched.ignored]
    precision, scores, recall = _tabulate(matched, torch.stack(counts), protocol)
    return Tables(matched.classes, precision, scores, recall, num_truths, num_detections)


def overlaps_by_cell(
    detections: Detections, truths: GroundTruths, protocol: Protocol, *, average: Average = "macro"
) -> dict[tuple[int, int], Tensor]:
    """Overlap of every detection with every ground truth of its cell, as in pycocotools' ``COCOeval.ious``.

    Returns:
        (D, G) float64 by (image, label), for the cells that hold both; the label is -1 with ``average="micro"``.
            Detections by descending score, at most the largest cap of them; ground truths in input order.
    """
    classes, detections, truths = _rank_labels(detections, truths)
    if average == "micro":
        detections, truths, classes = _one_class(detections)[0], _one_class(truths)[0], torch.tensor([-1])
    truths, _ = _by_cell(truths, len(classes))
    ranking = rank_detections(detections, len(classes))
    cell = cell_of(truths, len(classes))
    pairs = box_pairs(detections, ranking, truths, cell, max(protocol.max_detections), lowest=0.0)  # that is, all pairs
    cells, num_pairs = cell[pairs.truth].unique_consecutive(return_counts=True)
    widths = torch.searchsorted(cell, cells, right=True) - torch.searchsorted(cell, cells)
    keys = zip((cells // len(classes)).tolist(), classes[cells % len(classes)].tolist(), strict=True)
    blocks = zip(pairs.overlap.split(num_pairs.tolist()), widths.tolist(), strict=True)
    return {key: block.view(-1, width) for key, (block, width) in zip(keys, blocks, strict=True)}


def _rank_labels(detections: Detections, truths: GroundTruths) -> tuple[Tensor, Detections, GroundTruths]:
    """The labels that occur, ascending, and the rows with each label replaced by its rank among them."""
    classes, rank = dense_ids(torch.cat([detections.label, truths.label]))
    n = len(detections.label)
    return classes, detections._replace(label=rank[:n]), truths._replace(label=rank[n:])


def _one_class(rows: Rows) -> tuple[Rows, Tensor]:
    """All labels made one, the rows of an image in the order of (label, input position); and that order."""
    order = lexsort(rows.image, rows.label)
    return type(rows)(*(column[order] for column in rows._replace(label=torch.zeros_like(rows.label)))), order


def _by_cell(truths: GroundTruths, num_classes: int) -> tuple[GroundTruths, Tensor]:
    """Rows sorted by (image, class), in input order inside a cell; and that order."""
    order = lexsort(cell_of(truths, num_classes))
    return GroundTruths(*(column[order] for column in truths)), order


def _outside(area: Tensor, protocol: Protocol) -> Tensor:
    """(A, n) bool: rows outside each area range."""
    bounds = torch.tensor([bounds for _, *bounds in protocol.areas], dtype=torch.float64)
    low, high = bounds[:, :1], bounds[:, 1:]
    return (area < low) | (area > high)


class Takers(NamedTuple):
    """Matches that matter in one area range under one cap, in curve order.

    Attributes:
        first: (E,) int64, index of the lowest threshold at which the match stands.
        stop: (E,) int64, the first above at which it does not.
        hit: (E,) bool, a true positive; otherwise the ground truth is an ignored one.
        seen: (E,) int64, detections of the class up to here that count as long as none is matched.
        changers: (X,) int64, matches that change that number.
        change: (X,) int64, by how much: 1 or -1.
        num_changers: (E,) int64, how many of these there are up to each match.
        score: (E + 1,) float64, and one entry of padding.
        bounds: (C + 1,) int64, where each class starts, and the end.
    """

    first: Ints
    stop: Ints
    hit: Bools
    seen: Ints
    changers: Ints
    change: Ints
    num_changers: Ints
    score: Floats
    bounds: Ints


def _tabulate(matched: Matched, counts: Tensor, protocol: Protocol) -> tuple[Tensor, Tensor, Tensor]:
    """Fill the tables.

    Args:
        matched: who takes whom.
        counts: (A, C) int64, ground truths that count.
        protocol: the grids.

    Returns:
        precision and scores [T, R, C, A, M], recall [T, C, A, M].
    """
    detections, ranking, matches, order = matched.detections, matched.ranking, matched.matches, matched.order
    ignored, outside = matched.ignored, matched.outside.numpy()
    levels = np.array(protocol.recall_thresholds)
    by_level = np.argsort(levels, kind="stable")
    # Areas and caps first in memory: what a summary reads at once lies together.
    shape = (len(counts), len(protocol.max_detections), len(order), len(levels), counts.shape[1])
    precision, scores, recall = np.empty(shape), np.empty(shape), np.empty((*shape[:3], shape[4]))
    best_score = _best_scores(detections, ranking, shape[4])
    score = detections.score[ranking.row[matches.detection]].numpy()
    for area, count in enumerate(counts.numpy()):
        needed = _needed(count, levels[by_level])
        for m, cap in enumerate(protocol.max_detections):
            takers = _takers(ranking, matches, score, ~ignored[area].numpy(), outside[area], area, cap, shape[4])
            for t, row in enumerate(order.tolist()):
                at = area, m, row
                number, precision[at][by_level], scores[at][by_level] = _sample(takers, t, needed)
                recall[at] = number / np.maximum(count, 1)
            scores[area, m][:, levels <= 0] = best_score  # the first detection reaches recall 0, hit or not
            for table in (recall, precision, scores):
                table[area, m][..., count == 0] = -1
    return _axes_last(precision), _axes_last(scores), _axes_last(recall)


def _axes_last(table: Floats) -> Tensor:
    """[A, M, ...] seen as [..., A, M]."""
    return torch.from_numpy(np.moveaxis(table, (0, 1), (-2, -1)))


def _best_scores(detections: Detections, ranking: Ranking, num_classes: int) -> Floats:
    """(C,) the largest score of each class, 0 without detections."""
    first = first_of_runs(ranking.label).nonzero()[:, 0]
    best = np.zeros(num_classes)
    best[ranking.label[first].numpy()] = detections.score[ranking.row[first]].numpy()
    return best


def _needed(count: Ints, levels: Floats) -> Ints:
    """The least number of true positives, 1 or more, with number / count >= level in float64: (C, R) int64."""
    total = np.maximum(count, 1)[:, None]
    number = np.ceil(levels * total)  # off by one at most
    number += number / total < levels
    number -= (number - 1) / total >= levels
    return np.maximum(number, 1).astype(np.int64)


def _takers(
    ranking: Ranking,
    matches: Matches,
    score: Floats,
    counts: Bools,
    outside: Bools,
    area: int,
    cap: int,
    num_classes: int,
) -> Takers:
    """The matches that matter in one area range under one cap.

    Args:
        ranking: the detections.
        matches: who takes whom.
        score: (E,) float64, of each match.
        counts: (g,) bool, ground truths that count in this area range.
        outside: (n,) bool, detections outside of it: ignored where unmatched.
        area: index of the range.
        cap: detections of a cell that take part.
        num_classes: C.
    """
    label, position = ranking.label.numpy(), ranking.position.numpy()
    detection, truth, first, stop = (column.numpy() for column in matches[:4])
    hit, out = counts[truth], outside[detection]
    stands = matches.areas[area].numpy() & (position[detection] < cap)
    rows = np.flatnonzero(stands & (hit | ~out))  # an ignored truth taken from outside the range changes nothing
    hit, out, detection = hit[rows], out[rows], detection[rows]
    change = (hit & out).astype(np.int64) - ~(hit | out)
    seen = np.cumsum(~outside & (position < cap))
    starts = np.searchsorted(label, np.arange(num_classes + 1))
    seen_before = np.insert(seen, 0, 0)[starts]
    bounds = np.searchsorted(detection, starts)
    changers = np.flatnonzero(change)
    return Takers(
        first[rows],
        stop[rows],
        hit,
        seen[detection] - np.repeat(seen_before[:-1], np.diff(bounds)),
        changers,
        change[changers],
        np.cumsum(change != 0),
        np.append(score[rows], 0.0),
        bounds,
    )


def _sample(takers: Takers, threshold: int, needed: Ints) -> tuple[Ints, Floats, Floats]:
    """One threshold's curves of all classes, sampled where each recall level is first reached.

    Args:
        takers: the matches.
        threshold: its index.
        needed: (C, R) int64, how many true positives each recall level takes, ascending along R.

    Returns:
        Number of true positives (C,) int64; envelope of precision and score, (R, C) each, 0 where no curve comes.
    """
    stands = (takers.first <= threshold) & (threshold < takers.stop)
    hits = np.flatnonzero(stands & takers.hit)
    bounds = np.searchsorted(hits, takers.bounds)
    start, number = bounds[:-1], np.diff(bounds)
    changed = np.concatenate([[0], np.cumsum(takers.change * stands[takers.changers])])
    changed_before = changed[np.searchsorted(takers.changers, takers.bounds[:-1])]
    total = takers.seen[hits] + changed[takers.num_changers[hits]] - np.repeat(changed_before, number)
    precision = (np.arange(1, len(hits) + 1) - np.repeat(start, number)) / (total + EPSILON)

    start, number = start[:, None], number[:, None]
    reached = needed <= number
    place = start + np.minimum(needed - 1, number)
    # The maximum between one level and the next, then over the levels above. The start of each curve is a bound too:
    # without it the last stretch would run into the next curve. Where two bounds coincide, reduceat returns what
    # stands there, which belongs to the next stretch and does no harm.
    bounds = np.concatenate([start, place], axis=1)
    best = np.maximum.reduceat(np.append(precision, 0.0), bounds.ravel()).reshape(bounds.shape)[:, 1:]
    envelope = np.maximum.accumulate(np.where(reached, best, 0.0)[:, ::-1], axis=1)[:, ::-1]
    score = np.where(reached, takers.score[np.append(hits, -1)[place]], 0.0)
    return number[:, 0], envelope.T, score.T


def summarize(tables: Tables, protocol: Protocol) -> dict[str, Tensor]:
    """The COCO numbers under torchmetrics' names, 0-d float64, -1 where nothing is defined.

    The unnamed ones are over the first area range; all but ``mar_{cap}`` are at the largest cap; ``map_50`` and
    ``map_75`` are -1 unless the protocol has exactly that threshold.
    """
    precision, recall = tables.precision.numpy()[..., -1], tables.recall.numpy()
    thresholds = np.array(protocol.iou_thresholds)
    numbers = {"map": _mean(precision[..., 0])}
    for percent in (50, 75):
        numbers[f"map_{percent}"] = _mean(precision[thresholds == percent / 100, ..., 0])
    names = [name for name, _, _ in protocol.areas]
    numbers |= {f"map_{name}": _mean(precision[..., a]) for a, name in enumerate(names) if a}
    numbers |= {f"mar_{cap}": _mean(recall[..., 0, m]) for m, cap in enumerate(protocol.max_detections)}
    numbers |= {f"mar_{name}": _mean(recall[..., a, -1]) for a, name in enumerate(names) if a}
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}


def per_class(tables: Tables) -> tuple[Tensor, Tensor]:
    """AP and AR of each class at the largest cap over the first area range: (C,) float64 each, -1 where undefined."""
    precision, recall = tables.precision.numpy()[..., 0, -1], tables.recall.numpy()[..., 0, -1]
    classes = range(recall.shape[1])
    average_precision = torch.tensor([_mean(precision[:, :, c]) for c in classes], dtype=torch.float64)
    average_recall = torch.tensor([_mean(recall[:, c]) for c in classes], dtype=torch.float64)
    return average_precision, average_recall


def precision_at(tables: Tables, protocol: Protocol, iou: float) -> Tensor:
    """AP of each class at one threshold, as :func:`per_class`; -1 where the protocol does not have exactly that one."""
    precision = tables.precision.numpy()[np.array(protocol.iou_thresholds) == iou][..., 0, -1]
    return torch.tensor([_mean(precision[:, :, c]) for c in range(precision.shape[2])], dtype=torch.float64)


def _mean(table: Floats) -> float:
    """NumPy's mean, in NumPy's order of summation, over what is defined."""
    defined = table[table > -1]
    return float(defined.mean()) if len(defined) else -1.0
