"""What a detection result answers beyond its numbers, against plain loops, pycocotools, hotcoco and by hand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import hotcoco
import numpy as np
import oracle_answers as oracle
import pytest
import torch
from oracle_coco import annotations, box_iou, found, images_and_categories, pycocotools, random_scene, scene, true

from map_metrics import DetectionMAP
from map_metrics.comparison import paired_comparison
from map_metrics.detection.evidence import Evidence
from map_metrics.detection.hierarchy import expand
from map_metrics.detection.options import DetectionOptions
from map_metrics.detection.protocols import COCO
from map_metrics.detection.result import DetectionResult
from map_metrics.detection.summary import evaluate

B10 = (0, 0, 10, 10)
FAR = (50, 50, 10, 10)
SEEDS = range(40)


def result_of(detections, truths, protocol=COCO, num_images=1, average="macro", stored=False):
    """The result of rows; ``stored``: from the overlaps of the boxes, which are then useless."""
    ids, named = torch.arange(num_images) + 100, torch.ones(num_images, dtype=torch.bool)
    evidence = Evidence(detections, truths, None, ids, named)
    # overlaps of 0, which a threshold of 0 lets through, are not stored
    if stored and min(protocol.iou_thresholds) > 0:
        overlaps = evidence.image_pairs()
        shuffled = torch.randperm(len(overlaps.value), generator=torch.Generator().manual_seed(0))
        overlaps = type(overlaps)(*(column[shuffled] for column in overlaps))
        detections = detections._replace(box=torch.full_like(detections.box, torch.nan))
        truths = truths._replace(box=torch.full_like(truths.box, torch.nan))
        evidence = replace(evidence, detections=detections, truths=truths, overlaps=overlaps)
    tables = evaluate(detections, truths, protocol, average=average, overlaps=evidence.overlaps)
    options = DetectionOptions.of(
        "xywh", "bbox", None, None, None, False, False, average, protocol, {1: "one", 2: "two"}, *[None] * 4
    )
    return DetectionResult(tables, tables, options, num_images, evidence=evidence)


def of_scene(detections, truths, num_images=1, **kwargs):
    return result_of(*scene(detections, truths), num_images=num_images, **kwargs)


def part(rows, keep):
    return type(rows)(*(column[keep] for column in rows))


# --- curves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_curves_equal_plain_loops(seed):
    detections, truths, protocol, num_images, average = random_scene(seed)
    iou = (0.5, 0.35, 0.9, 1.0)[seed % 4]
    result = result_of(detections, truths, protocol, num_images, average, stored=seed % 3 == 0)
    rows = oracle.judge(detections, truths, protocol, iou)
    for label in result.classes.tolist():
        expected = np.array(oracle.points(*rows, label)).reshape(-1, 3).T
        curve = result.pr_curve(label, iou)
        for column, values in zip(curve, expected, strict=True):
            assert column.dtype == torch.float64
            np.testing.assert_array_equal(column.numpy(), values)
    for label in (None, *result.classes.tolist()):
        best = result.best_f(label, iou, beta := (1.0, 2, 0.5)[seed % 3])
        values = (
            oracle.f_scores(*rows, beta, label)
            if any(t["counts"] for t in rows[1] if label in (None, t["category_id"]))
            else {}
        )
        if not values:
            assert all(math.isnan(x) for x in best)
            continue
        f, precision, recall = values[best.score]
        assert (best.f, best.precision, best.recall) == pytest.approx((f, precision, recall), abs=1e-12)
        assert best.f == pytest.approx(max(value[0] for value in values.values()), abs=1e-12)


@pytest.mark.parametrize("seed", [1, 2, 3, 5, 8])
def test_the_curve_holds_the_average_precision(seed):
    detections, truths, _, num_images, _ = random_scene(seed)
    result = result_of(detections, truths, COCO, num_images)
    for row in result.per_class():
        if row["ground_truths"]:
            curve = result.pr_curve(row["label"])
            sampled = [
                max(curve.precision[curve.recall >= level].tolist(), default=0.0) for level in COCO.recall_thresholds
            ]
            assert row["ap_50"] == pytest.approx(np.mean(sampled), abs=1e-12)


def test_a_best_threshold_takes_equal_scores_together():
    result = of_scene(found((B10, 0.5), (FAR, 0.5), ((20, 0, 10, 10), 0.25)), true(B10, (20, 0, 10, 10)))
    assert result.best_f(1) == (0.25, pytest.approx(2 / 3), 1.0, pytest.approx(0.8))
    assert result.best_f(1, beta=1e-6)[:3] == (0.25, pytest.approx(2 / 3), 1.0)
    result = of_scene(found((B10, 0.75), (FAR, 0.5)), true(B10))
    assert result.best_f() == (0.75, 1.0, 1.0, 1.0)


def test_of_equal_f_the_highest_score_is_the_best():
    """3 of 4 found by 5, and all 4 by 8 detections: F = 6 / 9 = 8 / 12, though P and R round differently."""
    boxes = [(20 * i, 0, 10, 10) for i in range(4)]
    away = [(20 * i, 90, 10, 10) for i in range(4)]
    order = [*away[:2], *boxes[:3], *away[2:], boxes[3]]
    result = of_scene(found(*((box, 0.9 - i / 10) for i, box in enumerate(order))), true(*boxes))
    assert result.best_f(1) == (0.9 - 4 / 10, 3 / 5, 3 / 4, pytest.approx(2 / 3))
    nothing = of_scene(found((away[0], 0.9), (away[1], 0.5)), true(*boxes))
    assert nothing.best_f(1) == (0.9, 0.0, 0.0, 0.0)


# --- confusion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_confusion_equals_plain_loops(seed):
    detections, truths, protocol, num_images, average = random_scene(seed)
    result = result_of(detections, truths, protocol, num_images, average, stored=seed % 3 == 0)
    for iou, score in ((0.5, 0.25), (0.75, -10.0), (1.0, 0.5)):
        matrix = result.confusion_matrix(iou, score)
        assert matrix.dtype == torch.int64
        np.testing.assert_array_equal(matrix.numpy(), oracle.confusion(detections, truths, protocol, iou, score))


def as_hotcoco(detections, truths, num_images):
    true_rows, found_rows = annotations(detections, truths)
    ground_truth = hotcoco.COCO({**images_and_categories(detections, truths, num_images), "annotations": true_rows})
    evaluation = hotcoco.COCOeval(ground_truth, ground_truth.load_res(found_rows), "bbox")
    evaluation.evaluate()
    return evaluation


def loose_scene(seed):
    """Boxes of continuous sizes: no overlap stands exactly at a threshold, no two are equal; no crowds."""
    detections, truths, _, num_images, _ = random_scene(seed)
    rng = np.random.default_rng(seed)
    sides = []
    for rows in (detections, truths):
        box = rows.box + torch.from_numpy(rng.uniform(0.01, 1.5, tuple(rows.box.shape)))
        sides.append(rows._replace(box=box, label=rows.label.abs() + 1, area=box[:, 2] * box[:, 3]))
    detections, truths = sides
    score = torch.from_numpy(rng.permutation(len(detections.score)) / max(len(detections.score), 1))
    return detections._replace(score=score), truths._replace(crowd=torch.zeros_like(truths.crowd)), num_images


HOTCOCO_SEEDS = [seed for seed in range(30) if all(len(rows.label) for rows in loose_scene(seed)[:2])]


@pytest.mark.parametrize("seed", HOTCOCO_SEEDS)
def test_confusion_equals_hotcoco(seed):
    detections, truths, num_images = loose_scene(seed)
    theirs = as_hotcoco(detections, truths, num_images).confusion_matrix(0.5, max_det=10**6, min_score=0.25)
    matrix = result_of(detections, truths, COCO, num_images).confusion_matrix()
    np.testing.assert_array_equal(matrix.numpy(), theirs["matrix"].astype(np.int64))


def test_confusion_by_hand():
    detections = found((B10, 0.9), label=2) + found((FAR, 0.8), (B10, 0.2), ((20, 0, 10, 10), 0.6))
    truths = true(B10) + true((80, 0, 10, 10), label=2) + true((20, 0, 50, 10), crowd=True, label=2)
    assert of_scene(detections, truths).confusion_matrix().tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100))
def test_errors_equal_plain_loops(seed):
    detections, truths, protocol, num_images, average = random_scene(seed)
    result = result_of(detections, truths, protocol, num_images, average, stored=seed % 3 == 0)
    iou, background = ((0.5, 0.1), (0.75, 0.3), (1.0, 0.5), (0.5, 0.5))[seed % 4]
    errors = result.errors(iou, background)
    counts, value = oracle.errors(detections, truths, protocol, iou, background)
    assert errors.counts == counts
    assert errors.ap == pytest.approx(value["ap"], abs=1e-12)
    gains = {
        **errors.cost,
        "false_positives": errors.cost_false_positives,
        "false_negatives": errors.cost_false_negatives,
    }
    for kind, gain in gains.items():
        expected = value[kind] - value["ap"] if min(value[kind], value["ap"]) > -1 else 0.0
        assert gain == pytest.approx(expected, abs=1e-12), kind
    kinds = torch.bincount(errors.detection_kind[errors.detection_kind >= 0], minlength=5).tolist()
    assert kinds == list(counts.values())[:5]


@pytest.mark.parametrize("seed", HOTCOCO_SEEDS)
def test_errors_are_counted_as_in_hotcoco(seed):
    detections, truths, num_images = loose_scene(seed)
    theirs = as_hotcoco(detections, truths, num_images).tide_errors()
    errors = result_of(detections, truths, COCO, num_images).errors()
    names = dict(zip(oracle.KINDS, ("Cls", "Loc", "Both", "Dupe", "Bkg", "Miss"), strict=True))
    assert errors.counts == {kind: theirs["counts"][name] for kind, name in names.items()}
    assert max(errors.ap, 0.0) == pytest.approx(theirs["ap_base"], abs=1e-12)
    for kind in ("both", "duplicate", "background"):  # hotcoco mends several detections of one ground truth at once
        assert errors.cost[kind] == pytest.approx(theirs["delta_ap"][names[kind]], abs=1e-12)


LOW = (0, 7, 10, 10)  # overlaps B10 by 3/17
ONE_ERROR = {  # detections, truths, AP, the kind, what it costs
    "classification": (found((B10, 0.9), label=2), true(B10), 0, 1),
    "localisation": (found((LOW, 0.9)), true(B10), 0, 1),
    "both": (found((LOW, 0.9), label=2) + found((FAR, 0.8), label=2), true(B10) + true(FAR, label=2), 0.25, 0.25),
    "duplicate": (found((B10, 0.9), (B10, 0.8), (FAR, 0.7)), true(B10, FAR), (51 + 50 * 2 / 3) / 101, 50 / 303),
    "background": (found((FAR, 0.9), (B10, 0.8)), true(B10), 0.5, 0.5),
    "missed": (found((B10, 0.9)), true(B10, FAR), 51 / 101, 50 / 101),
}


@pytest.mark.parametrize("kind", ONE_ERROR)
def test_one_error_of_each_kind(kind):
    detections, truths, ap, cost = ONE_ERROR[kind]
    errors = of_scene(detections, truths).errors()
    also = {"missed": 1} if kind == "both" else {}  # nothing points at its ground truth
    assert errors.counts == {name: int(name == kind) for name in oracle.KINDS} | also
    assert errors.ap == pytest.approx(ap)
    assert errors.cost[kind] == pytest.approx(cost)
    assert all(errors.cost[name] == pytest.approx(0) for name in oracle.KINDS if name != kind and name not in also)
    assert errors.to_dict()["counts"] == errors.counts
    assert kind in repr(errors)


def test_an_error_at_a_found_ground_truth_is_removed_when_it_is_mended():
    detections = found((LOW, 0.9), (B10, 0.8))
    errors = of_scene(detections, true(B10)).errors()
    assert (errors.counts["localisation"], errors.counts["missed"]) == (1, 0)
    assert (errors.ap, errors.cost["localisation"]) == (pytest.approx(0.5), pytest.approx(0.5))
    errors = of_scene(found((LOW, 0.9), (LOW, 0.8), (FAR, 0.7)), true(B10, FAR)).errors()  # the first of two is mended
    assert errors.ap + errors.cost["localisation"] == pytest.approx(1)


# --- images and groups -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_images_equal_each_image_evaluated_alone(seed):
    detections, truths, protocol, num_images, average = random_scene(seed)
    result = result_of(detections, truths, protocol, num_images, average, stored=seed % 3 == 0)
    iou = (0.5, 0.8)[seed % 2]
    rows = result.per_image(iou)
    judged, true_rows = oracle.judge(detections, truths, protocol, iou, average)
    assert [row["image"] for row in rows] == [100 + i for i in range(num_images)]
    for i, row in enumerate(rows):
        own = [r for r in judged if r["image_id"] == i + 1]
        counted = [t for t in true_rows if t["image_id"] == i + 1 and t["counts"]]
        hits = sum(r["state"] == "hit" for r in own)
        assert row["ground_truths"] == len(counted)
        assert row["detections"] == len(own)
        assert (row["true_positives"], row["missed"]) == (hits, len(counted) - hits)
        assert row["false_positives"] == sum(r["state"] == "false" for r in own)
        alone = part(detections, detections.image == i), part(truths, truths.image == i)
        precision = pycocotools(*alone, protocol, num_images, average).precision[..., 0, -1]
        defined = precision[precision > -1]
        assert row["ap"] == pytest.approx(defined.mean() if len(defined) else -1, abs=1e-12)
    worst = result.worst_images(3)
    assert [row["ap"] for row in worst] == sorted(row["ap"] for row in rows if row["ap"] > -1)[:3]


@pytest.mark.parametrize("seed", range(5))
def test_counts_of_images_at_a_threshold_of_the_protocol(seed, monkeypatch):
    """Wherever it stands there; the matches are those of the tables, and nothing is matched again."""
    detections, truths, protocol, num_images, average = random_scene(seed)
    protocol = replace(protocol, iou_thresholds=(0.75, 0.5, 0.9))
    calls, match = [], Evidence.match
    monkeypatch.setattr(Evidence, "match", lambda *args: calls.append(args) or match(*args))
    result = result_of(detections, truths, protocol, num_images, average)
    for iou in protocol.iou_thresholds:
        judged, _ = oracle.judge(detections, truths, protocol, iou, average)
        hits = [sum(r["state"] == "hit" for r in judged if r["image_id"] == i + 1) for i in range(num_images)]
        assert [row["true_positives"] for row in result.per_image(iou)] == hits
    assert len(calls) == 1
    calls.clear()
    metric, boxes = DetectionMAP(), torch.tensor([[0.0, 0, 10, 10]])
    target = {"boxes": boxes, "labels": torch.tensor([1]), "image_id": 7}
    metric.update([{"boxes": boxes * 0.6, "scores": torch.ones(1), "labels": torch.tensor([1])}], [target])
    assert metric.result().worst_images()[0]["missed"] == 1  # an overlap of 0.36
    assert len(calls) == 1


@pytest.mark.parametrize("seed", range(40))
def test_slices_equal_their_images_evaluated_alone(seed):
    detections, truths, protocol, num_images, average = random_scene(seed)
    result = result_of(detections, truths, protocol, num_images, average, stored=seed % 3 == 0)
    names = [(None, "day", "night")[i % 3] for i in range(num_images)]
    by_id = {100 + i: name for i, name in enumerate(names)} | {-5: "elsewhere"}
    slices = result.by_slice(names)
    assert slices == result.by_slice(by_id)
    assert list(slices) == [name for name in ("day", "night") if name in names]
    for name, numbers in slices.items():
        images = torch.tensor([i for i in range(num_images) if names[i] == name])
        assert numbers["count"] == len(images)
        kept = [part(rows, torch.isin(rows.image, images)) for rows in (detections, truths)]
        expected = pycocotools(*kept, protocol, num_images, average)
        precision, recall = expected.precision[..., -1], expected.recall
        for a, (area, _, _) in enumerate(protocol.areas):
            suffix = f"_{area}" if a else ""
            assert numbers[f"map{suffix}"] == mean(precision[..., a])
            assert numbers[f"mar{suffix}" if a else f"mar_{protocol.max_detections[-1]}"] == mean(recall[..., a, -1])
        fresh = result_of(*kept, protocol, num_images, average).numbers
        assert {key: float(value) for key, value in fresh.items()} | {"count": len(images)} == numbers


def mean(table):
    defined = table[table > -1]
    return defined.mean() if len(defined) else -1.0


@pytest.mark.parametrize("stored", [False, True])
def test_evidence_of_some_images(stored):
    detections, truths, protocol, num_images, _ = random_scene(7)
    result = result_of(detections, truths, protocol, num_images, stored=stored)
    keep = torch.arange(num_images) % 2 == 0
    some = result.evidence.of_images(keep)
    assert some.image_ids == [100 + i for i in range(num_images) if i % 2 == 0]
    by_id = result.evidence.of_images(some.image_ids)
    slices = result.by_slice([bool(flag) for flag in keep])
    for evidence in (some, by_id):
        tables = evaluate(evidence.detections, evidence.truths, protocol, overlaps=evidence.overlaps)
        alone = DetectionResult(tables, tables, result.options, int(keep.sum()), evidence=evidence)
        assert slices[True] == {k: float(v) for k, v in alone.numbers.items()} | {"count": int(keep.sum())}
        assert alone.per_image() == [row for row, kept in zip(result.per_image(), keep, strict=True) if kept]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("lowest", [0.0, 0.5])
def test_pairs_of_an_image(lowest, stored):
    detections, truths, _, num_images, _ = random_scene(7)
    pairs = result_of(detections, truths, COCO, num_images, stored=stored).evidence.image_pairs(lowest)
    expected = {}
    for d, (image, box) in enumerate(zip(detections.image.tolist(), detections.box.tolist(), strict=True)):
        for t, (other, *truth) in enumerate(
            zip(truths.image.tolist(), truths.box.tolist(), truths.crowd.tolist(), strict=True)
        ):
            overlap = box_iou(box, *truth)
            if image == other and overlap > 0 and overlap >= lowest:
                expected[d, t] = overlap
    rows = zip(*(column.tolist() for column in pairs), strict=True)
    assert {(d, t): overlap for d, t, overlap in rows} == expected
    assert len(pairs.value) == len(expected) > 0


# --- intervals and comparisons ---------------------------------------------------------------------------------------


def with_classes_above(detections, truths):
    """Every row again in the class above its own: rows of one image and one score."""
    labels = sorted({*detections.label.tolist(), *truths.label.tolist()})
    return expand(detections, truths, None, dict.fromkeys(labels[1:], labels[:1]), expand_detections=True)[:2]


@pytest.mark.parametrize("ties", ["stable", "optimistic", "pessimistic"])
@pytest.mark.parametrize("seed", range(24))
def test_resamples_equal_images_drawn_again(seed, ties):
    detections, truths, protocol, num_images, average = random_scene(seed)
    protocol = replace(protocol, ties=ties)
    if ties == "stable":  # copies of an image tie with each other alone
        order = torch.sort(detections.score, stable=True).indices
        detections.score[order] = torch.arange(len(order)).double()
    elif seed % 3 == 0:
        detections, truths = with_classes_above(detections, truths)
    result = result_of(detections, truths, protocol, num_images, average, stored=seed % 3 == 0)
    rng = np.random.default_rng(seed)
    draws = [np.sort(rng.integers(0, num_images, num_images)) for _ in range(3)]
    expected = []
    for draw in draws:
        sides = []
        for rows in (detections, truths):
            copies = [
                part(rows, rows.image == i)._replace(image=rows.image[rows.image == i] * 0 + new)
                for new, i in enumerate(draw)
            ]
            sides.append(type(rows)(*(torch.cat(column) for column in zip(*copies, strict=True))))
        expected.append(result_of(*sides, protocol, num_images, average).numbers)
    for key, value in result.numbers.items():
        interval = result.bootstrap(3, seed=seed, key=key)
        assert interval.value == float(value)
        assert interval.samples.tolist() == [float(numbers[key]) for numbers in expected], key


@pytest.mark.parametrize("average", ["macro", "micro"])
@pytest.mark.parametrize("seed", range(24))
def test_the_rows_of_an_image_drawn_twice_count_twice(seed, average):
    """Equal scores too: in their stable order, each with its copies."""
    detections, truths, protocol, num_images, _ = random_scene(seed)
    if seed % 2:
        detections, truths = with_classes_above(detections, truths)
    rng = np.random.default_rng(seed)
    weights = [np.bincount(rng.integers(0, num_images, num_images), minlength=num_images) for _ in range(3)]
    expected: list[list[float]] = [[] for _ in weights]
    for iou in protocol.iou_thresholds:
        rows, true_rows = oracle.judge(detections, truths, protocol, iou, average)
        judged = [row for row in rows if row["state"] in ("hit", "false")]
        for weight, values in zip(weights, expected, strict=True):
            label = (lambda row: row["category_id"]) if average == "macro" else (lambda row: "all")
            drawn = [row for row in judged for _ in range(weight[row["image_id"] - 1])]
            number = Counter(label(t) for t in true_rows if t["counts"] for _ in range(weight[t["image_id"] - 1]))
            values.append(
                oracle.mean_ap([(label(r), r["score"], r["state"] == "hit") for r in drawn], number, protocol)
            )
    samples = result_of(detections, truths, protocol, num_images, average).bootstrap(3, seed=seed).samples
    assert samples.tolist() == pytest.approx([np.mean(values) for values in expected], abs=1e-12)


def test_an_interval_is_made_of_percentiles():
    detections, truths, _, num_images, _ = random_scene(4)
    result = result_of(detections, truths, COCO, num_images)
    interval = result.bootstrap(200, confidence=0.9, seed=3)
    samples = interval.samples[interval.samples > -1].numpy()
    assert len(interval.samples) == 200
    assert (interval.low, interval.high) == (np.percentile(samples, 5), np.percentile(samples, 95))
    assert interval.low < interval.value < interval.high
    assert torch.equal(result.bootstrap(200, seed=3).samples, interval.samples)
    assert not torch.equal(result.bootstrap(200, seed=4).samples, interval.samples)


def test_nothing_to_resample():
    interval = of_scene([], []).bootstrap(5)
    assert interval.value == -1
    assert math.isnan(interval.low)
    assert math.isnan(
        of_scene(found((B10, 0.9)), true(B10), protocol=replace(COCO, iou_thresholds=(0.3,)))
        .bootstrap(5, key="map_50")
        .low
    )
    assert of_scene(found((B10, 0.9)), []).bootstrap(5).samples.tolist() == [-1.0] * 5


def test_compare_pairs_the_images():
    detections, truths, _, num_images, _ = random_scene(4)
    first = result_of(detections, truths, COCO, num_images)
    weaker = detections._replace(box=detections.box * 1.0625)
    second = result_of(weaker, truths, COCO, num_images)
    comparison = first.compare(second, hardest=2, seed=1)
    rows = [(a["image"], a["ap"], b["ap"]) for a, b in zip(first.per_image(), second.per_image(), strict=True)]
    kept = [row for row in rows if row[1] > -1]
    assert comparison.num_skipped == len(rows) - len(kept)
    keys, mine, theirs = (torch.tensor(column, dtype=torch.float64) for column in zip(*kept, strict=True))
    expected = paired_comparison(keys.long(), mine, theirs, hardest=2, seed=1)
    assert {**comparison.to_dict(), "num_skipped": 0} == expected.to_dict()
    assert comparison.mean > 0
    with pytest.raises(ValueError, match="same protocol"):
        first.compare(result_of(detections, truths, replace(COCO, max_detections=(1,)), num_images))
    with pytest.raises(ValueError, match="same images"):
        first.compare(result_of(detections, truths, COCO, num_images + 1))
    with pytest.raises(ValueError, match="DetectionResult"):
        first.compare(None)


# --- through the metric ----------------------------------------------------------------------------------------------


def answers(result) -> dict[str, Any]:
    curve = result.pr_curve(1, 0.4)
    return {
        "classes": result.per_class(),
        "curve": [column.tolist() for column in curve],
        "best": result.best_f(),
        "confusion": result.confusion_matrix(score=0.1).tolist(),
        "errors": result.errors().to_dict(),
        "images": result.per_image(),
        "worst": result.worst_images(2),
        "slices": result.by_slice({id_: id_ % 2 for id_ in (9, -4, 70, 12, 5)}),
        "interval": result.bootstrap(20, key="map_50").samples.tolist(),
    }


@pytest.mark.parametrize("average", ["macro", "micro"])
def test_the_order_of_images_with_ids_does_not_matter(average):
    rng = np.random.default_rng(0)
    ids, batches = [9, -4, 70, 12, 5], []
    for id_ in ids:
        boxes = torch.from_numpy(rng.integers(0, 40, (6, 4)).astype(np.float64)) + torch.tensor([0, 0, 20, 20])
        moved = torch.cat([boxes + torch.tensor([2, 0, 0, 0]), boxes[:3]])
        scores = torch.from_numpy(rng.integers(0, 8, 9) / 8)
        labels = torch.from_numpy(rng.integers(1, 4, 6))
        guessed = torch.cat([labels, torch.from_numpy(rng.integers(1, 4, 3))])
        preds = {"boxes": moved, "scores": scores, "labels": guessed}
        batches.append((preds, {"boxes": boxes, "labels": labels, "image_id": id_}))
    seen = []
    for order in ([0, 1, 2, 3, 4], [3, 1, 4, 0, 2], [4, 3, 2, 1, 0, 0]):
        metric = DetectionMAP("xywh", average=average, class_metrics=True)
        for i in order:
            metric.update([batches[i][0]], [batches[i][1]])
        seen.append(answers(metric.result()))
    assert seen[0]["images"][0]["image"] == -4
    assert seen[0] == seen[1] == seen[2]
    assert 0 < seen[0]["errors"]["ap"] < 1


def test_classes_of_a_result():
    result = of_scene(
        found((B10, 0.9)) + found((B10, 0.9), (FAR, 0.8), label=2), true(B10, FAR) + true(B10, crowd=True)
    )
    one, two = result.per_class()
    assert one == {
        "label": 1,
        "name": "one",
        "ap": pytest.approx(51 / 101),
        "ap_50": pytest.approx(51 / 101),
        "ar": 0.5,
        "ground_truths": 2,
        "detections": 1,
        "unjudged": 0,
    }
    assert two == {
        "label": 2,
        "name": "two",
        "ap": -1,
        "ap_50": -1,
        "ar": -1,
        "ground_truths": 0,
        "detections": 2,
        "unjudged": 2,
    }
    assert result.num_unjudged == 2
    other = of_scene(found((B10, 0.9)), true(B10), protocol=replace(COCO, iou_thresholds=(0.3, 0.7)))
    assert (other.per_class()[0]["ap"], other.per_class()[0]["ap_50"]) == (pytest.approx(1), -1)


BAD = {
    "pr_curve": [
        ({"label": 7}, "`label`.*7"),
        ({"label": 1, "iou": 0}, "`iou`.*above 0 and at most 1.*0"),
        ({"label": 1.0}, "`label`"),
        ({"label": True}, "`label`"),
        ({"label": 2**64}, "`label`"),
    ],
    "best_f": [
        ({"beta": 0}, "`beta`"),
        ({"beta": math.inf}, "`beta`.*at most 1e.100"),
        ({"iou": 1.5}, "`iou`"),
        ({"label": "cat"}, "`label`"),
    ],
    "confusion_matrix": [
        ({"iou": float("nan")}, "`iou`.*nan"),
        ({"score": "high"}, "`score`"),
        ({"score": 10**400}, "`score`"),
    ],
    "errors": [
        ({"background": 0.6}, "`background`.*at most 0.5"),
        ({"background": 0}, "`background`"),
        ({"iou": True}, "`iou`"),
    ],
    "per_image": [({"iou": 2}, "`iou`")],
    "worst_images": [({"n": -1}, "`n`"), ({"n": 1.5}, "`n`")],
    "by_slice": [
        ({"groups": ["a", "b"]}, "`groups`.*one group per image, 1, got 2"),
        ({"groups": {7: "a"}}, "`groups`.*image 100"),
        ({"groups": 5}, "`groups` must be a dict or a list of one group per image, got 5"),
        ({"groups": torch.tensor(5)}, "`groups` must be a dict or a list"),
        ({"groups": [["a"]]}, "`groups` must hold names that can be keys"),
        ({"groups": {100: ["a"]}}, "`groups` must hold names that can be keys"),
    ],
    "bootstrap": [
        ({"key": "map_60"}, "`key`.*'map_60'"),
        ({"key": ["map"]}, "`key`"),
        ({"confidence": 1.0}, "`confidence`"),
        ({"num_resamples": 0}, "`num_resamples`"),
        ({"seed": -1}, "`seed`"),
    ],
}


@pytest.mark.parametrize(
    ("method", "kwargs", "message"), [(name, *case) for name, cases in BAD.items() for case in cases]
)
def test_refused(method, kwargs, message):
    result = of_scene(found((B10, 0.9)), true(B10))
    with pytest.raises(ValueError, match=message):
        getattr(result, method)(**kwargs)


@pytest.mark.parametrize("average", ["macro", "micro"])
@pytest.mark.parametrize("images", [0, 2])
def test_answers_about_nothing(images, average):
    metric = DetectionMAP(average=average)
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    if images:
        metric.update([empty | {"scores": torch.zeros(0)}] * images, [empty | {"image_id": i} for i in range(images)])
        result = metric.result()
    else:
        result = of_scene([], [], num_images=0, average=average)
    assert all(math.isnan(x) for x in result.best_f())
    assert result.confusion_matrix().tolist() == [[0]]
    errors = result.errors()
    assert (errors.ap, set(errors.counts.values()), set(errors.cost.values())) == (-1, {0}, {0.0})
    assert [row["ap"] for row in result.per_image()] == [-1] * images
    assert result.worst_images() == result.per_class() == []
    assert [numbers["map"] for numbers in result.by_slice(["a"] * images).values()] == [-1] * min(images, 1)
    assert result.bootstrap(3).samples.tolist() == [-1.0] * 3


def test_a_result_without_rows_says_so():
    result = replace(of_scene(found((B10, 0.9)), true(B10)), evidence=None)
    with pytest.raises(ValueError, match="without its rows"):
        result.errors()
    with pytest.raises(ValueError, match="one flag per image"):
        of_scene([], []).evidence.of_images(torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="ids of this result's images, got 7"):
        of_scene([], []).evidence.of_images([7])


def test_bounds_over_the_orders_of_equal_scores():
    """One class: a hit and a false positive of one score; another hit of a score of its own."""
    result = of_scene(found((FAR, 0.5), (B10, 0.5)) + found((B10, 0.9), image=1), true(B10) + true(B10, image=1), 2)
    low, high = result.bounds["map_50"]
    assert low == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert high == pytest.approx(1)
    assert result.bounds["mar_1"] == (0.5, 0.5)  # the cap takes the first of each image, whatever the order
    assert result.bounds["map_large"] == (-1, -1)
    assert low <= float(result.numbers["map_50"]) <= high
    assert list(result.bounds) == list(result.numbers)


def test_bounds_hold_at_each_threshold_by_itself():
    """The first finds it at 0.5, the second at 0.9: each order is right at one of them, so no order changes `map`."""
    rows = found(((0, 0, 10, 6), 0.5), (B10, 0.5)), true(B10)
    result = of_scene(*rows, protocol=replace(COCO, iou_thresholds=(0.5, 0.9)))
    assert float(result.numbers["map"]) == pytest.approx(0.75)
    assert result.bounds["map"] == (pytest.approx(0.5), pytest.approx(1))
