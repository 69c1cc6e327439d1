"""Overlap, order and the greedy rule, by hand and against plain loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracle_coco import found, plain_loops, random_scene, scene, true
from pycocotools import mask as mask_utils

from map_metrics.detection import matching, pairs
from map_metrics.detection.overlap import box_overlap
from map_metrics.detection.protocols import COCO
from map_metrics.detection.summary import evaluate, summarize

B10, FAR = (0, 0, 10, 10), (50, 50, 10, 10)


def ap50(detections, truths, **changes) -> float:
    protocol = replace(COCO, **changes)
    return round(float(summarize(evaluate(*scene(detections, truths), protocol), protocol)["map_50"]), 6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_overlap_has_the_bits_of_pycocotools(seed, scale):
    rng = np.random.default_rng(seed)
    detections, truths = (np.concatenate([rng.integers(0, 9, (40, 2)), rng.integers(0, 7, (40, 2))], 1) for _ in "dt")
    detections, truths, crowd = detections * scale, truths * scale, rng.random(40) < 0.5
    expected = mask_utils.iou(detections, truths, crowd.tolist())
    d, g = (x.ravel() for x in np.indices(expected.shape))
    assert np.array_equal(box_overlap(detections[d].T, truths[g].T, crowd[g]), expected.ravel())


@pytest.mark.parametrize("single", [True, False])
def test_curve_order_is_label_then_score_then_input(single):
    rng = np.random.default_rng(0)
    score = np.concatenate([rng.choice([0.0, -0.0, -1.5, 0.1, 7.0, np.inf, -np.inf], 300), rng.normal(size=300)])
    score = score.astype(np.float32).astype(np.float64) if single else score
    label = rng.integers(0, 3, len(score))
    expected = np.lexsort((-score, label))
    assert matching.curve_order(torch.from_numpy(label), torch.from_numpy(score)).tolist() == expected.tolist()


def test_scores_a_float32_cannot_tell_apart_stay_apart():
    low, high = 0.5, 0.5 + 1e-12
    assert ap50(found(((50, 0, 5, 5), low), (B10, high)), true(B10)) == 1.0
    assert ap50(found((B10, low), ((50, 0, 5, 5), high)), true(B10)) == 0.5


def test_among_equal_overlaps_the_later_truth_is_taken():
    a, b = B10, (4, 0, 10, 10)
    detections = found(((2, 0, 10, 10), 0.9), (a, 0.8))  # the first overlaps a and b by 2/3 each
    assert ap50(detections, true(a, b)) == 1.0
    assert ap50(detections, true(b, a)) == round(51 / 101, 6)


def test_a_detection_falls_back_to_its_second_best_truth():  # D06: VOC's rule does not
    assert ap50(found((B10, 0.9), ((1, 0, 10, 10), 0.8)), true(B10, (4, 0, 10, 10))) == 1.0


def test_detections_come_in_any_order():  # D24
    assert ap50(found(((0, 0, 10, 6), 0.5), (B10, 0.99)), true(B10)) == 1.0
    assert ap50(found(((0, 0, 10, 6), 0.99), (B10, 0.5)), true(B10), iou_thresholds=(0.5,)) == 1.0


def test_crowds_absorb_any_number_of_detections():  # D09
    inside = found(((100, 100, 10, 10), 0.9), ((120, 100, 10, 10), 0.8))
    one = true(B10)
    assert ap50(inside + found((B10, 0.5)), one + true((100, 100, 60, 60), crowd=True)) == 1.0
    assert ap50(inside + found((B10, 0.5)), one) == pytest.approx(1 / 3, abs=1e-6)


@pytest.mark.parametrize("crowd_first", [True, False])
def test_a_truth_that_counts_beats_a_crowd(crowd_first):  # D10
    detection = (0, 0, 20, 11)  # .55 of the truth, .9 inside the crowd
    truths = [*true((0, 0, 20, 20)), *true((0, 0, 18, 20), crowd=True)]
    protocol = replace(COCO, iou_thresholds=(0.5, 0.55, 0.6))
    recall = evaluate(*scene(found((detection, 0.9)), truths[:: -1 if crowd_first else 1]), protocol).recall
    assert recall[:, 0, 0, -1].tolist() == [1.0, 1.0, 0.0]


def test_a_threshold_of_one_takes_an_overlap_one_rounding_below():
    box = (0.1, 0.1, 0.01, 0.7)  # its overlap with itself
    truths, detections = true(box), found((box, 0.9))
    rows = scene(detections, truths)
    assert box_overlap(rows[0].box.numpy().T, rows[1].box.numpy().T, rows[1].crowd.numpy()) < 1
    assert ap50(detections, truths, iou_thresholds=(0.5, 1.0)) == 1.0
    assert evaluate(*rows, replace(COCO, iou_thresholds=(1.0,))).recall[0, 0, 0, -1] == 1.0


def test_boxes_without_a_size_never_match():
    for box in ((5, 5, 0, 0), (5, 5, 4, 0)):
        assert ap50(found((box, 0.9)), true(box)) == 0.0


def test_blocks_of_pairs_do_not_show(monkeypatch):
    for seed in range(20):
        detections, truths, protocol, _, average = random_scene(seed)
        whole = evaluate(detections, truths, protocol, average=average)
        for size in (1, 7):
            monkeypatch.setattr(pairs, "PAIRS_AT_ONCE", size)
            parts = evaluate(detections, truths, protocol, average=average)
            monkeypatch.undo()
            assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_equals_plain_loops(seed):
    detections, truths, protocol, num_images, average = random_scene(seed)
    protocol = replace(protocol, recall_thresholds=protocol.recall_thresholds[::5])
    expected = plain_loops(detections, truths, protocol, num_images, average)
    tables = evaluate(detections, truths, protocol, average=average)
    for name in ("precision", "recall", "scores"):
        assert np.array_equal(getattr(tables, name).numpy(), getattr(expected, name)), name


@pytest.mark.parametrize("seed", range(60))
def test_stored_overlaps_give_the_tables_of_boxes(seed):
    detections, truths, protocol, _, average = random_scene(seed)
    if min(protocol.iou_thresholds) == 0:  # pairs without an overlap are not stored
        protocol = replace(protocol, iou_thresholds=(0.1, 0.5))
    rows = [
        (d, t, mask_utils.iou([box], [true_box], [crowd])[0, 0])
        for d, (image, box) in enumerate(zip(detections.image.tolist(), detections.box.numpy(), strict=True))
        for t, (other, true_box, crowd) in enumerate(
            zip(truths.image.tolist(), truths.box.numpy(), truths.crowd.int().tolist(), strict=True)
        )
        if image == other
    ]
    rows = [row for row in rows if row[2] > 0]
    np.random.default_rng(seed).shuffle(rows)
    d, t, value = zip(*rows, strict=True) if rows else ((), (), ())
    overlaps = matching.Overlaps(torch.tensor(d).long(), torch.tensor(t).long(), torch.tensor(value).double())
    nowhere = detections._replace(box=torch.zeros(len(detections.box), 4).double())
    expected = evaluate(detections, truths, protocol, average=average)
    for ours, column in zip(
        evaluate(nowhere, truths, protocol, average=average, overlaps=overlaps), expected, strict=True
    ):
        assert torch.equal(ours, column)


def test_an_ignored_truth_absorbs_one_detection_and_is_never_missed():
    detections, truths = scene(found((B10, 0.9), (B10, 0.8), (FAR, 0.7)), true(B10, FAR))
    truths = truths._replace(ignore=torch.tensor([True, False]))
    tables = evaluate(detections, truths, COCO)
    # the first copy is ignored, the second a false positive, then a hit: precision 1/2 at every recall
    assert tables.num_truths.tolist() == [1]
    assert summarize(tables, COCO)["map_50"] == pytest.approx(0.5)
    assert summarize(evaluate(detections, truths._replace(crowd=truths.ignore), COCO), COCO)["map_50"] == pytest.approx(
        1
    )
