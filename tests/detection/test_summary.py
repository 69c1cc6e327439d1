"""Tables and numbers against pycocotools and hotcoco, bit for bit, and the cases that break other tools."""

from __future__ import annotations

from dataclasses import replace

import hotcoco
import numpy as np
import pytest
import torch
from oracle_coco import annotations, found, images_and_categories, pycocotools, random_scene, scene, true

from map_metrics.detection.curves import needed_hits
from map_metrics.detection.matched import overlaps_by_cell
from map_metrics.detection.protocols import COCO, PROTOCOLS
from map_metrics.detection.summary import evaluate, per_class, summarize

B10 = (0, 0, 10, 10)
FAR = (50, 50, 10, 10)
SIZES = ("small", "medium", "large")


def numbers(detections, truths, average="macro", **changes) -> dict[str, float]:
    protocol = replace(COCO, **changes)
    tables = evaluate(*scene(detections, truths), protocol, average=average)
    return {name: float(number) for name, number in summarize(tables, protocol).items()}


def apart(n) -> list[tuple]:
    """Boxes that do not touch."""
    return [(20 * i, 0, 10, 10) for i in range(n)]


@pytest.mark.parametrize("seed", range(200))
def test_equals_pycocotools(seed):
    detections, truths, protocol, num_images, average = random_scene(seed)
    expected = pycocotools(detections, truths, protocol, num_images, average)
    tables = evaluate(detections, truths, protocol, average=average)
    for name in ("precision", "recall", "scores"):
        assert np.array_equal(getattr(tables, name).numpy(), getattr(expected, name)), name
    if expected.stats is not None:
        first = protocol.max_detections[-1] != 100  # pycocotools looks its first number up at a literal 100
        values = [float(number) for number in summarize(tables, protocol).values()]
        assert values[first:] == expected.stats.tolist()[first:]


@pytest.mark.parametrize("seed", [3, 14, 15, 92])
def test_equals_hotcoco(seed):
    detections, truths, _, num_images, _ = random_scene(seed)
    detections, truths = (rows._replace(label=rows.label.abs() + 1) for rows in (detections, truths))
    true_rows, found_rows = annotations(detections, truths)
    ground_truth = hotcoco.COCO({**images_and_categories(detections, truths, num_images), "annotations": true_rows})
    evaluation = hotcoco.COCOeval(ground_truth, ground_truth.load_res(found_rows), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    detections = detections._replace(area=detections.box[:, 2] * detections.box[:, 3])
    tables = evaluate(detections, truths, COCO)
    for name in ("precision", "recall", "scores"):
        assert np.array_equal(getattr(tables, name).numpy(), np.asarray(evaluation.eval[name])), name


def test_grids_are_those_of_pycocotools():
    assert PROTOCOLS["coco"] is COCO
    assert COCO.iou_thresholds[8] == 0.8999999999999999
    assert COCO.recall_thresholds[35] > 0.35


def test_needed_is_the_search_of_pycocotools():
    levels = np.array(COCO.recall_thresholds)
    counts = np.array([*range(1, 400), 1000, 1013, 4096, 20_000])
    expected = [np.maximum(np.searchsorted(np.arange(n + 1) / n, levels), 1) for n in counts.tolist()]
    assert np.array_equal(needed_hits(counts, levels), expected)


@pytest.mark.parametrize(("height", "passed"), [(12, 3), (11, 2), (10, 1), (9, 0)])
def test_an_overlap_exactly_at_a_threshold_passes(height, passed):  # D01: .6, .55, .5
    value = numbers(found(((0, 0, 20, height), 0.9)), true((0, 0, 20, 20)))["map"]
    assert value == pytest.approx(passed / 10, abs=1e-12)


@pytest.mark.parametrize(("n", "reached"), [((7, 10), 70), ((19, 20), 95), ((35, 100), 35), ((2, 3), 67)])
def test_recall_levels_are_float64(n, reached):  # D02, D20
    hits, total = n
    boxes = apart(total)
    value = numbers(found(*((box, 0.9) for box in boxes[:hits])), true(*boxes))["map"]
    assert value == pytest.approx(reached / 101, abs=1e-12)


def test_a_grid_without_the_usual_thresholds():  # D03
    values = numbers(found(((0, 0, 10, 2.5), 0.9)), true(B10), iou_thresholds=(0.2,))
    assert (round(values["map"], 12), values["map_50"], values["map_75"]) == (1.0, -1.0, -1.0)


@pytest.mark.parametrize("caps", [(1, 10, 300), (100,), (1, 5, 10, 50), (7,)])
def test_any_caps(caps):  # D04, D05
    values = numbers(found((B10, 0.9)), true(B10), max_detections=caps)
    assert (values["map"], values["map_50"]) == pytest.approx((1.0, 1.0))
    assert [key for key in values if key.startswith("mar_") and key[4:].isdigit()] == [f"mar_{cap}" for cap in caps]


def test_the_largest_cap_is_the_one_that_counts():  # D04
    boxes = apart(150)
    detections = found(*((box, 0.9) for box in boxes))
    values = numbers(detections, true(*boxes), max_detections=(1, 100, 500))
    assert values["map"] == pytest.approx(1.0)
    assert values["mar_100"] == pytest.approx(100 / 150)
    assert numbers(detections, true(*boxes))["mar_100"] == pytest.approx(100 / 150)


@pytest.mark.parametrize(
    ("detections", "truths", "value"), [([], true(B10), 0.0), (found((B10, 0.9)), [], -1.0), ([], [], -1.0)]
)
@pytest.mark.parametrize("average", ["macro", "micro"])
def test_nothing_to_find_and_nothing_found(detections, truths, value, average):  # D12
    values = numbers(detections, truths, average)
    maps = ["map", "map_50", "map_75", *(f"map_{size}" for size in SIZES)]
    assert list(values) == [*maps, "mar_1", "mar_10", "mar_100", *(f"mar_{size}" for size in SIZES)]
    assert values["map"] == values["mar_100"] == value
    assert values["map_large"] == -1.0


def test_false_positives_of_a_class_without_truths():  # D13
    rows = scene(found((B10, 0.5)) + found((B10, 0.9), (FAR, 0.8), label=2), true(B10))
    tables = evaluate(*rows, COCO)
    assert float(summarize(tables, COCO)["map"]) == pytest.approx(1.0)
    assert tables.classes.tolist() == [1, 2]
    assert (tables.num_truths.tolist(), tables.num_detections.tolist()) == ([1, 0], [1, 2])
    average_precision, average_recall = per_class(tables)
    assert average_precision.tolist() == [pytest.approx(1.0), -1.0]
    assert average_recall.tolist() == [1.0, -1.0]


def test_crowds_are_not_counted():
    tables = evaluate(*scene([], true(B10, FAR) + true(B10, crowd=True)), COCO)
    assert tables.num_truths.tolist() == [2]


@pytest.mark.parametrize(
    ("area", "ranges"),
    [(500, "small"), (0, "small"), (1024, "small medium"), (1024.5, "medium"), (9216, "medium large"), (9217, "large")],
)
def test_the_given_area_decides(area, ranges):  # D14
    values = numbers(found(((0, 0, 40, 40), 0.9)), true((0, 0, 40, 40), area=area))
    assert [name for name in SIZES if values[f"mar_{name}"] == 1.0] == ranges.split()
    assert [name for name in SIZES if values[f"map_{name}"] != -1.0] == ranges.split()


def test_equal_scores_rank_in_input_order():  # D18
    assert numbers(found((FAR, 0.5), (B10, 0.5)), true(B10))["map"] == pytest.approx(0.5)
    assert numbers(found((B10, 0.5), (FAR, 0.5)), true(B10))["map"] == pytest.approx(1.0)
    assert numbers(found((FAR, 0.5)) + found((B10, 0.5), image=1), true(B10, image=1))["map"] == pytest.approx(0.5)
    assert numbers(found((B10, 0.5)) + found((FAR, 0.5), image=1), true(B10))["map"] == pytest.approx(1.0)


def test_a_perfect_result_keeps_the_epsilon():  # D19
    tables = evaluate(*scene(found((B10, 0.9)), true(B10)), COCO)
    assert (tables.precision[..., 0, -1] == 1 - 2**-52).all()


def test_interpolation():  # D25
    boxes = apart(7)
    detections = found(*((box, 0.9 - i / 10) for i, box in enumerate(boxes)))
    truths = true(*(boxes[i] for i in (0, 2, 5)))
    assert numbers(detections, truths)["map"] == pytest.approx(0.7228, abs=5e-5)


def test_micro_orders_ties_by_label():  # D26
    rows = scene(
        found(((10, 30, 96, 96), 0.3), label=3) + found(((20, 0, 10, 10), 0.3), label=1), true((5, 30, 96, 96))
    )
    tables = evaluate(*rows, COCO, average="micro")
    assert np.array_equal(tables.precision.numpy(), pycocotools(*rows, COCO, 1, "micro").precision)
    assert tables.precision.shape[2] == 1
    assert tables.classes.tolist() == [1, 3]
    assert float(summarize(tables, COCO)["map"]) == pytest.approx(0.45)


def test_thresholds_and_levels_in_any_order():
    detections, truths, *_ = random_scene(3)
    whole = evaluate(detections, truths, COCO)
    t, r = [3, 0, 9], [70, 0, 100, 35]
    protocol = replace(
        COCO,
        iou_thresholds=tuple(COCO.iou_thresholds[i] for i in t),
        recall_thresholds=tuple(COCO.recall_thresholds[i] for i in r),
    )
    part = evaluate(detections, truths, protocol)
    assert torch.equal(part.precision, whole.precision[t][:, r])
    assert torch.equal(part.scores, whole.scores[t][:, r])
    assert torch.equal(part.recall, whole.recall[t])


@pytest.mark.parametrize("average", ["macro", "micro"])
def test_overlaps_by_cell_are_those_of_pycocotools(average):
    for seed in range(20):
        detections, truths, protocol, num_images, _ = random_scene(seed)
        expected = pycocotools(detections, truths, protocol, num_images, average).ious
        expected = {(image - 1, label): iou for (image, label), iou in expected.items() if len(iou)}
        overlaps = overlaps_by_cell(detections, truths, protocol, average=average)
        assert overlaps.keys() == expected.keys()
        assert all(np.array_equal(overlaps[key].numpy(), expected[key]) for key in expected)


def test_cost_does_not_follow_the_labels_or_the_product_of_images_and_classes():
    n = 20_000  # n images times n classes would be 3 GB of single bytes
    image = torch.arange(n)
    box = torch.tensor([B10], dtype=torch.float64).expand(n, 4)
    label = image * 2**40 - 2**50
    detections, truths = scene([], [])
    detections = type(detections)(image, label, torch.rand(n, dtype=torch.float64), box, box[:, 2] * box[:, 3])
    no = torch.zeros(n, dtype=torch.bool)
    truths = type(truths)(image, label, box, no, no, detections.area)
    tables = evaluate(detections, truths, replace(COCO, recall_thresholds=(0.0, 1.0), max_detections=(1,)))
    assert (tables.recall[:, :, 0, 0] == 1).all()
