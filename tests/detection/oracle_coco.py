"""Scenes, and two oracles for COCO's tables: pycocotools on the same rows, and plain loops over the rule as written.

Of ``map_metrics`` only the records of rows and protocols are used here, none of its code.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from map_metrics.detection import protocols
from map_metrics.detection.matching import Detections, GroundTruths


class Expected(NamedTuple):
    precision: np.ndarray
    recall: np.ndarray
    scores: np.ndarray
    stats: np.ndarray | None = None
    ious: dict[tuple[int, int], Any] | None = None


def found(*rows, image=0, label=1) -> list[tuple]:
    """Detections (image, label, score, box) from (box, score)."""
    return [(image, label, score, box) for box, score in rows]


def true(*boxes, image=0, label=1, crowd=False, area=None) -> list[tuple]:
    """Ground truths (image, label, box, crowd, area) from boxes."""
    return [(image, label, box, crowd, box[2] * box[3] if area is None else area) for box in boxes]


def scene(detections, truths) -> tuple[Detections, GroundTruths]:
    """Rows of ``found`` and ``true`` as tensors."""
    image, label, score, box = zip(*detections, strict=True) if detections else [()] * 4
    box = torch.tensor(box, dtype=torch.float64).view(-1, 4)
    rows = Detections(*_integers(image, label), torch.tensor(score, dtype=torch.float64), box, box[:, 2] * box[:, 3])
    image, label, box, crowd, area = zip(*truths, strict=True) if truths else [()] * 5
    box, area = torch.tensor(box, dtype=torch.float64).view(-1, 4), torch.tensor(area, dtype=torch.float64)
    crowd = torch.tensor(crowd, dtype=torch.bool)
    return rows, GroundTruths(*_integers(image, label), box, crowd, torch.zeros_like(crowd), area)


def _integers(*columns) -> list[torch.Tensor]:
    return [torch.tensor(column, dtype=torch.int64) for column in columns]


def random_scene(seed) -> tuple[Detections, GroundTruths, protocols.Protocol, int, str]:
    """Rows, protocol, number of images and average that meet the corners of the rule more often than chance would."""
    rng = np.random.default_rng(seed)
    num_images = int(rng.integers(1, 7))
    labels = rng.choice([-(2**40), -1, 0, 1, 2, 7, 2**52], rng.integers(1, 5), replace=False)
    scale = rng.choice([1.0, 8.0, 0.37])  # at 8, areas meet 32 ** 2 and 96 ** 2 exactly
    sizes = rng.choice([0, 2, 4, 4, 8, 10, 12, 20], 60) if rng.random() < 0.3 else rng.choice([4, 10, 12, 20], 60)

    def sorted_by_image(n) -> tuple[np.ndarray, np.ndarray]:
        occupied = rng.choice(num_images, max(1, num_images - 1))  # often an image without anything
        return np.sort(rng.choice(occupied, n)), rng.choice(labels, n)

    num_truths = int(rng.choice([0, 1, 6, 25], p=[0.04, 0.06, 0.4, 0.5]))
    image, label = sorted_by_image(num_truths)
    label = np.where(label == labels[-1], labels[0], label) if rng.random() < 0.5 else label  # one only detected
    box = np.concatenate([rng.integers(0, 12, (num_truths, 2)), rng.choice(sizes, (num_truths, 2))], 1) * scale
    area = box[:, 2] * box[:, 3]
    if rng.random() < 0.5:
        given = rng.choice([0.0, 100.0, 1024.0, 1024.5, 5000.0, 9216.0, 10000.0], num_truths)
        area = np.where(rng.random(num_truths) < 0.5, given, area)
    crowd = rng.random(num_truths) < rng.choice([0.0, 0.1, 0.5])
    truths = GroundTruths(*(torch.from_numpy(x) for x in (image, label, box, crowd, np.zeros_like(crowd), area)))

    n = int(rng.choice([0, 1, 20, 90], p=[0.04, 0.06, 0.4, 0.5]))
    image, label = sorted_by_image(n)
    box = np.concatenate([rng.integers(0, 12, (n, 2)), rng.choice(sizes, (n, 2))], 1) * scale
    for i in range(n):  # most are a true box of that image, moved or cut to a twentieth: overlaps meet thresholds
        near = np.flatnonzero(truths.image.numpy() == image[i])
        if len(near) and rng.random() < 0.8:
            source = rng.choice(near)
            label[i] = truths.label[source] if rng.random() < 0.9 else label[i]
            cut = rng.integers(8, 21) / 20 if rng.random() < 0.7 else 1.0
            same = near[(truths.label[near] == truths.label[source]).numpy()]
            middle = truths.box[rng.choice(same, 2)].mean(0).numpy()  # as far from the one as from the other
            start = middle if rng.random() < 0.3 else truths.box[source].numpy()
            box[i] = start * [1, 1, 1, cut] + [rng.choice([0, 0, 1, 2]) * scale, 0, 0, 0]
    levels = rng.choice([2, 5, 10**9])
    score = rng.integers(-levels // 4, levels + 1, n) / levels
    score = score.astype(np.float32).astype(np.float64) if rng.random() < 0.5 else score
    area = box[:, 2] * box[:, 3] * rng.choice([1.0, 1.0, 0.7])  # the last as with masks
    detections = Detections(*(torch.from_numpy(x) for x in (image, label, score, box, area)))

    def pick(*choices):
        return choices[rng.integers(len(choices))]

    grids = protocols.COCO
    protocol = replace(
        grids,
        max_detections=pick((1, 10, 100), (1, 10, 100), (1, 10, 300), (100,), (1, 5, 10, 50), (2, 3, 4), (1,)),
        iou_thresholds=pick(
            grids.iou_thresholds,
            grids.iou_thresholds,
            (0.5, 0.55, 0.6, 1.0),
            (0.9, 0.5, 0.75, 0.75),
            (0.2,),
            (0.0, 0.5),
        ),
        recall_thresholds=pick(grids.recall_thresholds, grids.recall_thresholds, (0.0, 0.5, 1.0), (0.31, 0.7), (0.1,)),
        areas=pick(
            grids.areas,
            grids.areas,
            (("all", 0.0, 1e10), ("small", 0.0, 160.0), ("medium", 16.0, 400.0), ("large", 160.0, 1e10)),
        ),
    )
    return detections, truths, protocol, num_images, pick("macro", "macro", "macro", "micro")


def annotations(detections, truths, first_id=1) -> tuple[list[dict], list[dict]]:
    """Rows as COCO annotations; image ids from 1, labels as category ids."""
    ground_truth = [
        {"id": i, "image_id": image + 1, "category_id": label, "bbox": box, "iscrowd": int(crowd), "area": area}
        for i, (image, label, box, crowd, _, area) in enumerate(
            zip(*(c.tolist() for c in truths), strict=True), first_id
        )
    ]
    results = [
        {"id": i, "image_id": image + 1, "category_id": label, "bbox": box, "score": score, "area": area, "iscrowd": 0}
        for i, (image, label, score, box, area) in enumerate(zip(*(c.tolist() for c in detections), strict=True), 1)
    ]
    return ground_truth, results


def images_and_categories(detections, truths, num_images) -> dict[str, list[dict]]:
    labels = sorted({*detections.label.tolist(), *truths.label.tolist()})
    return {
        "images": [{"id": i + 1, "width": 640, "height": 640} for i in range(num_images)],
        "categories": [{"id": label, "name": str(label)} for label in labels],
    }


def pycocotools(detections, truths, protocol, num_images, average="macro") -> Expected:
    """``COCOeval`` on the rows; stats where the protocol has three caps, the first of them at a literal 100."""
    shared = images_and_categories(detections, truths, num_images)
    with contextlib.redirect_stdout(io.StringIO()):
        sides = []
        for rows in annotations(detections, truths):
            side = COCO()
            side.dataset = {**shared, "annotations": rows}
            side.createIndex()
            sides.append(side)
        evaluation = COCOeval(*sides, "bbox")
        params = evaluation.params
        params.iouThrs, params.recThrs = np.array(protocol.iou_thresholds), np.array(protocol.recall_thresholds)
        params.areaRngLbl = [name for name, _, _ in protocol.areas]
        params.areaRng = [[low, high] for _, low, high in protocol.areas]
        params.maxDets, params.useCats = list(protocol.max_detections), int(average == "macro")
        evaluation.evaluate()
        evaluation.accumulate()
        if len(protocol.max_detections) == 3:
            evaluation.summarize()
    tables = (evaluation.eval[name] for name in ("precision", "recall", "scores"))
    return Expected(*tables, evaluation.stats if len(protocol.max_detections) == 3 else None, evaluation.ious)


def box_iou(detection, truth, crowd) -> float:
    (dx, dy, dw, dh), (gx, gy, gw, gh) = detection, truth
    w, h = min(dx + dw, gx + gw) - max(dx, gx), min(dy + dh, gy + gh) - max(dy, gy)
    if w <= 0 or h <= 0:
        return 0.0
    return w * h / (dw * dh if crowd else dw * dh + gw * gh - w * h)


def match_cell(found, true, area, threshold) -> list[tuple[float, bool, bool]]:
    """(score, matched, ignored) of the detections of one image and class, which come best first."""
    _, low, high = area
    true = [(truth, truth["iscrowd"] or not low <= truth["area"] <= high) for truth in true]
    true = [entry for entry in true if not entry[1]] + [entry for entry in true if entry[1]]
    taken: set[int] = set()
    rows = []
    for detection in found:
        best, chosen = min(threshold, 1 - 1e-10), None
        for truth, ignored in true:
            if truth["id"] in taken and not truth["iscrowd"]:
                continue
            if chosen and not chosen[1] and ignored:
                break
            iou = box_iou(detection["bbox"], truth["bbox"], truth["iscrowd"])
            if iou >= best:
                best, chosen = iou, (truth, ignored)
        if chosen:
            taken.add(chosen[0]["id"])
        rows.append((detection["score"], bool(chosen), chosen[1] if chosen else not low <= detection["area"] <= high))
    return rows


def curve(rows, num_truths, levels) -> tuple[float, list[float], list[float]]:
    """Last recall, and precision and score at each recall level, of (score, matched, ignored) in image order."""
    rows = sorted(rows, key=lambda row: -row[0])
    tp = fp = 0
    recalls, precisions = [], []
    for _, matched, ignored in rows:
        tp += matched and not ignored
        fp += not matched and not ignored
        recalls.append(tp / num_truths)
        precisions.append(tp / (fp + tp + 2.0**-52))
    precision, score = [], []
    for level in levels:
        reached = next((i for i, recall in enumerate(recalls) if recall >= level), None)
        precision.append(0.0 if reached is None else max(precisions[reached:]))
        score.append(0.0 if reached is None else rows[reached][0])
    return (recalls[-1] if rows else 0.0), precision, score


def plain_loops(detections, truths, protocol, num_images, average="macro") -> Expected:
    """The rule of the COCO challenge, written as loops."""
    true, found = annotations(detections, truths)
    labels = sorted({row["category_id"] for row in true + found})
    if average == "micro":
        true, found = (sorted(rows, key=lambda row: row["category_id"]) for rows in (true, found))
        for row in true + found:
            row["category_id"] = -1
        labels = [-1]
    found.sort(key=lambda row: -row["score"])
    shape = (len(protocol.iou_thresholds), len(labels), len(protocol.areas), len(protocol.max_detections))
    recall = np.full(shape, -1.0)
    precision = np.full((shape[0], len(protocol.recall_thresholds), *shape[1:]), -1.0)
    scores = precision.copy()

    def cell(rows: list[dict[str, Any]], image: int, label: int) -> list[dict[str, Any]]:
        return [row for row in rows if row["image_id"] == image + 1 and row["category_id"] == label]

    for t, c, a, m in np.ndindex(shape):
        _, low, high = area = protocol.areas[a]
        num_truths = sum(
            row["category_id"] == labels[c] and not row["iscrowd"] and low <= row["area"] <= high for row in true
        )
        if num_truths == 0:
            continue
        rows = []
        for i in range(num_images):
            best = cell(found, i, labels[c])[: protocol.max_detections[m]]
            rows += match_cell(best, cell(true, i, labels[c]), area, protocol.iou_thresholds[t])
        recall[t, c, a, m], precision[t, :, c, a, m], scores[t, :, c, a, m] = curve(
            rows, num_truths, protocol.recall_thresholds
        )
    return Expected(precision, recall, scores)
