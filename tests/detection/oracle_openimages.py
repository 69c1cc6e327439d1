"""Open Images' average precision as plain loops over rows, and its hierarchy as sets."""

from __future__ import annotations

from typing import Any

from oracle_voc import Found, Truth, all_point, curve, iou, passes, sides


def flags(found: list[Found], truths: list[Truth], threshold: float, weight: int) -> list[tuple[float, bool]]:
    """(score, hit) of what counts in one image and class; detections come best first."""
    single, groups = ([row for row in truths if row.group == group] for group in (False, True))
    used: set[int] = set()
    best_of_group: dict[int, float] = {}
    points = []
    for detection in found:
        overlaps = [iou(detection.box, truth.box, 0) for truth in single]
        at = overlaps.index(max(overlaps)) if overlaps else -1
        if at >= 0 and passes(overlaps[at], threshold, False):
            if single[at].difficult:
                continue
            if at not in used:
                used.add(at)
                points.append((detection.score, True))
                continue
        shares = [share(detection.box, truth.box) for truth in groups]
        at = shares.index(max(shares)) if shares else -1
        if at >= 0 and passes(shares[at], threshold, False):
            best_of_group.setdefault(at, detection.score)
        else:
            points.append((detection.score, False))
    if weight:
        points += [(score, True) for at, score in best_of_group.items() if not groups[at].difficult]
    return points


def share(detection: Any, group: Any) -> float:
    own, _, shared = sides(detection, group, 0)
    return shared / own if shared else 0.0


def average_precision(
    found: list[Found],
    truths: list[Truth],
    label: int,
    *,
    threshold: float = 0.5,
    weight: int = 1,
    judged: set[tuple[int, int]] | None = None,
) -> float | None:
    """None without anything to find. ``judged``: (image, label) known of images; None: everything is judged.

    Equal scores must not occur among the detections of a class: their order is the evaluator's own.
    """
    truths = [row for row in truths if row.label == label]
    total = sum(not row.difficult and (not row.group or weight > 0) for row in truths)
    if not total:
        return None
    points = []
    for image in sorted({row.image for row in found}):
        if judged is not None and (image, label) not in judged | {(row.image, row.label) for row in truths}:
            continue
        here = sorted((row for row in found if (row.image, row.label) == (image, label)), key=lambda row: -row.score)
        points += flags(here, [row for row in truths if row.image == image], threshold, weight)
    points.sort(key=lambda point: -point[0])
    return all_point(*curve([hit for _, hit in points], total))


def above(label: int, parents: dict[int, list[int]]) -> set[int]:
    """Every label above one, by walking up."""
    result: set[int] = set()
    for parent in parents.get(label, []):
        result |= {parent} | above(parent, parents)
    return result
