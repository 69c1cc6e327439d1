"""Plain loops for the answers of a detection result: rows are judged one by one, numbers counted from the rows."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from oracle_coco import annotations, box_iou, curve


def judge(detections, truths, protocol, iou, average="macro", cap=None) -> tuple[list[dict], list[dict]]:
    """Every detection and every ground truth as a dict with what became of it, over the first area range.

    Detections: ``state`` is "hit", "false", "ignored" or "capped", ``took`` the id of the ground truth. Ground truths:
    ``counts`` and ``found``.
    """
    true, found = annotations(detections, truths)
    _, low, high = protocol.areas[0]
    cap = max(protocol.max_detections) if cap is None else cap
    if average == "micro":
        true, found = (sorted(rows, key=lambda row: row["category_id"]) for rows in (true, found))
    for truth in true:
        truth |= {"counts": not truth["iscrowd"] and low <= truth["area"] <= high, "found": False}
    cells = defaultdict(lambda: ([], []))
    for side, rows in enumerate((found, true)):
        for row in rows:
            cells[row["image_id"], row["category_id"] if average == "macro" else None][side].append(row)
    for some_found, some_true in cells.values():
        taken = set()
        for rank, row in enumerate(sorted(some_found, key=lambda row: -row["score"])):
            row |= {"state": "capped", "took": None}
            if rank >= cap:
                continue
            best = None
            for truth in sorted(some_true, key=lambda truth: not truth["counts"]):
                if truth["id"] in taken and not truth["iscrowd"]:
                    continue
                overlap = box_iou(row["bbox"], truth["bbox"], truth["iscrowd"])
                better = best is None or overlap >= best[0]
                if overlap >= min(iou, 1 - 1e-10) and better and not (best and best[1]["counts"] > truth["counts"]):
                    best = overlap, truth
            if best is None:
                row["state"] = "false" if low <= row["area"] <= high else "ignored"
                continue
            taken.add(best[1]["id"])
            row["took"] = best[1]["id"]
            row["state"] = "hit" if best[1]["counts"] else "ignored"
            best[1]["found"] |= best[1]["counts"]
    found.sort(key=lambda row: (row["image_id"], row["category_id"] if average == "micro" else 0, row["id"]))
    found.sort(key=lambda row: -row["score"])
    return found, true


def average_precision(rows, num_truths, protocol) -> float:
    """Of (score, hit), in the order of images."""
    _, precision, _ = curve([(score, hit, False) for score, hit in rows], num_truths, protocol.recall_thresholds)
    return float(np.mean(precision))


def mean_ap(rows, num_truths, protocol) -> float:
    """Mean over the classes with ground truth, of (label, score, hit) rows and counts by label."""
    values = [
        average_precision([(score, hit) for own, score, hit in rows if own == label], number, protocol)
        for label, number in num_truths.items()
        if number
    ]
    return float(np.mean(values)) if values else -1.0


def points(found, true, label=None) -> list[tuple[float, float, float]]:
    """Precision, recall and score at every detection that counts."""
    num_truths = sum(truth["counts"] and label in (None, truth["category_id"]) for truth in true)
    tp, curve_points = 0, []
    rows = [r for r in found if r["state"] in ("hit", "false") and label in (None, r["category_id"])]
    for n, row in enumerate(rows, 1):
        tp += row["state"] == "hit"
        curve_points.append((tp / n, tp / num_truths if num_truths else np.nan, row["score"]))
    return curve_points


def f_scores(found, true, beta, label=None) -> dict[float, tuple[float, float, float]]:
    """Score threshold -> F, precision, recall of the detections at or above it."""
    rows = [r for r in found if r["state"] in ("hit", "false") and label in (None, r["category_id"])]
    num_truths = sum(truth["counts"] and label in (None, truth["category_id"]) for truth in true)
    values = {}
    for threshold in {row["score"] for row in rows}:
        kept = [row for row in rows if row["score"] >= threshold]
        tp = sum(row["state"] == "hit" for row in kept)
        fp, fn = len(kept) - tp, num_truths - tp
        f = (1 + beta**2) * tp / ((1 + beta**2) * tp + beta**2 * fn + fp)
        values[threshold] = f, tp / len(kept), tp / num_truths
    return values


def confusion(detections, truths, protocol, iou, score) -> np.ndarray:
    labels = sorted({*detections.label.tolist(), *truths.label.tolist()})
    keep = detections.score >= score
    found, true = judge(type(detections)(*(c[keep] for c in detections)), truths, protocol, iou, "micro", 10**9)
    matrix = np.zeros((len(labels) + 1,) * 2, dtype=np.int64)
    label_of = {truth["id"]: truth["category_id"] for truth in true}
    for row in found:
        if row["state"] in ("hit", "false"):
            at = labels.index(label_of[row["took"]]) if row["state"] == "hit" else -1
            matrix[at, labels.index(row["category_id"])] += 1
    for truth in true:
        if truth["counts"] and not truth["found"]:
            matrix[labels.index(truth["category_id"]), -1] += 1
    return matrix


def errors(detections, truths, protocol, iou, background) -> tuple[dict, dict]:
    """Counts of TIDE's kinds and what each costs, with "ap", "false_positives" and "false_negatives" beside them."""
    found, true = judge(detections, truths, protocol, iou)
    in_image = defaultdict(list)
    for truth in sorted(true, key=lambda truth: truth["id"]):
        if truth["counts"]:
            in_image[truth["image_id"]].append(truth)
    reach = min(iou, 1 - 1e-10)
    for row in found:
        row |= {"kind": None, "target": None}
        if row["state"] != "false":
            continue
        best = {True: (0.0, None), False: (0.0, None)}
        for truth in in_image[row["image_id"]]:
            overlap, same = box_iou(row["bbox"], truth["bbox"], 0), truth["category_id"] == row["category_id"]
            if overlap > best[same][0]:
                best[same] = overlap, truth
        (own, own_truth), (other, other_truth) = best[True], best[False]
        if background <= own < reach:
            row |= {"kind": "localisation", "target": own_truth}
        elif other >= reach:
            row |= {"kind": "classification", "target": other_truth}
        elif own >= reach:
            row["kind"] = "duplicate"
        elif max(own, other) < background:
            row["kind"] = "background"
        else:
            row["kind"] = "both"
    aimed = {row["target"]["id"] for row in found if row["target"]}
    missed = [t for t in true if t["counts"] and not t["found"] and t["id"] not in aimed]
    counts = {kind: sum(row["kind"] == kind for row in found) for kind in KINDS}
    counts["missed"] = len(missed)

    labels = sorted({truth["category_id"] for truth in true})

    def number(keep) -> dict:
        return {label: sum(t["category_id"] == label and t["counts"] and keep(t) for t in true) for label in labels}

    def plain(keep=lambda row: True) -> list[tuple]:
        kept = [row for row in found if row["state"] in ("hit", "false") and keep(row)]
        return [(row["category_id"], row["score"], row["state"] == "hit") for row in kept]

    everything = number(lambda truth: True)
    value = {"ap": mean_ap(plain(), everything, protocol)}
    for kind in KINDS[:5]:
        rows, mended = [], set()
        for row in found:  # best score first
            target = row["target"]
            if row["kind"] != kind:
                rows += [(row["category_id"], row["score"], row["state"] == "hit")] * (row["state"] in ("hit", "false"))
            elif target and not target["found"] and target["id"] not in mended:
                mended.add(target["id"])
                rows.append((target["category_id"], row["score"], True))
        value[kind] = mean_ap(rows, everything, protocol)
    value["missed"] = mean_ap(plain(), number(lambda truth: truth not in missed), protocol)
    value["false_positives"] = mean_ap(plain(lambda row: row["state"] == "hit"), everything, protocol)
    value["false_negatives"] = mean_ap(plain(), number(lambda truth: truth["found"]), protocol)
    return counts, value


KINDS = ("classification", "localisation", "both", "duplicate", "background", "missed")
