"""PASCAL VOC's average precision as plain loops over rows, as the devkit describes it.

Of ``map_metrics`` nothing is used; rows are those of ``oracle_coco.found`` and ``oracle_coco.true`` or like them.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Truth(NamedTuple):
    image: int
    label: int
    box: tuple[float, float, float, float]  # x, y, width, height
    group: bool = False
    difficult: bool = False


class Found(NamedTuple):
    image: int
    label: int
    score: float
    box: tuple[float, float, float, float]


def rows(detections: Any, truths: Any) -> tuple[list[Found], list[Truth]]:
    """Plain rows of the tensors under test."""
    image, label, score, box, _ = (column.tolist() for column in detections)
    found = [Found(*row) for row in zip(image, label, score, box, strict=True)]
    image, label, box, crowd, ignore, _ = (column.tolist() for column in truths)
    return found, [Truth(*row) for row in zip(image, label, box, crowd, ignore, strict=True)]


def sides(a: Any, b: Any, pixel: int) -> tuple[float, float, float]:
    """Areas of two boxes and of what they share; ``pixel`` 1 counts the last row and column in."""
    (ax, ay, aw, ah), (bx, by, bw, bh) = a, b
    width = min(ax + aw, bx + bw) - max(ax, bx) + pixel
    height = min(ay + ah, by + bh) - max(ay, by) + pixel
    shared = width * height if width > 0 and height > 0 else 0.0
    return (aw + pixel) * (ah + pixel), (bw + pixel) * (bh + pixel), shared


def iou(a: Any, b: Any, pixel: int) -> float:
    first, second, shared = sides(a, b, pixel)
    return shared / (first + second - shared) if shared else 0.0


def passes(overlap: float, threshold: float, strict: bool) -> bool:
    return overlap > threshold if strict else overlap >= threshold


def flags(found: list[Found], truths: list[Truth], threshold: float, strict: bool, pixel: int) -> list[bool | None]:
    """Of the detections of one class, best first: True a hit, False a false positive, None ignored."""
    used: set[int] = set()
    result: list[bool | None] = []
    for detection in found:
        best, chosen = -1.0, -1
        for i, truth in enumerate(truths):
            overlap = iou(detection.box, truth.box, pixel)
            if truth.image == detection.image and overlap > best:
                best, chosen = overlap, i
        if chosen < 0 or not passes(best, threshold, strict):
            result.append(False)
        elif truths[chosen].difficult:
            result.append(None)
        else:
            result.append(chosen not in used)
            used.add(chosen)
    return result


def curve(hits: list[bool | None], total: int) -> tuple[list[float], list[float]]:
    recall, precision = [], []
    tp = fp = 0
    for hit in hits:
        if hit is not None:
            tp, fp = tp + hit, fp + (not hit)
            recall.append(tp / total)
            precision.append(tp / (tp + fp))
    return recall, precision


def all_point(recall: list[float], precision: list[float]) -> float:
    recall, precision = [0.0, *recall, 1.0], [0.0, *precision, 0.0]
    for i in range(len(precision) - 2, -1, -1):
        precision[i] = max(precision[i], precision[i + 1])
    return sum((recall[i] - recall[i - 1]) * precision[i] for i in range(1, len(recall)))


def at_levels(recall: list[float], precision: list[float], levels: Any) -> float:
    best = [max([p for r, p in zip(recall, precision, strict=True) if r >= level], default=0.0) for level in levels]
    return sum(best) / len(best)


def average_precision(
    found: list[Found],
    truths: list[Truth],
    label: int,
    *,
    threshold: float = 0.5,
    levels: Any = (),
    strict: bool = False,
    inclusive: bool = True,
) -> float | None:
    """None without a ground truth that counts; area under the envelope without levels."""
    found = sorted((row for row in found if row.label == label), key=lambda row: -row.score)
    truths = [row for row in truths if row.label == label]
    total = sum(not row.difficult for row in truths)
    if not total:
        return None
    points = curve(flags(found, truths, threshold, strict, int(inclusive)), total)
    return at_levels(*points, levels) if len(levels) else all_point(*points)
