"""DetectionMAP and detection_map from their inputs to their numbers: CASES.md at the level of the class."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import BIG, assert_same, state_of
from torch import Tensor

from map_metrics import DetectionMAP
from map_metrics.detection.protocols import COCO
from map_metrics.functional import detection_map

KEYS = [  # as torchmetrics documents them
    *("map", "map_50", "map_75", "map_small", "map_medium", "map_large"),
    *("mar_1", "mar_10", "mar_100", "mar_small", "mar_medium", "mar_large"),
]
B10 = (0, 0, 10, 10)
DATA = Path(__file__).parents[1] / "data" / "detection"


def found(*rows: tuple, label: int = 1) -> dict[str, Tensor]:
    """Detections of one image from (box, score) or (box, score, label)."""
    return {
        "boxes": torch.tensor([row[0] for row in rows], dtype=torch.float64).view(-1, 4),
        "scores": torch.tensor([row[1] for row in rows], dtype=torch.float64),
        "labels": torch.tensor([row[2] if len(row) > 2 else label for row in rows], dtype=torch.int64),
    }


def true(*boxes: tuple, label: Any = 1, **more: Any) -> dict[str, Any]:
    """Ground truths of one image; ``label`` of all of them or of each."""
    labels = label if isinstance(label, list) else [label] * len(boxes)
    more = {key: torch.tensor(value) if isinstance(value, list) else value for key, value in more.items()}
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float64).view(-1, 4),
        "labels": torch.tensor(labels).long(),
        **more,
    }


def value(preds: Any, target: Any, **kwargs: Any) -> Any:
    """By the class, after a check that the function gives the same; boxes are xywh."""
    kwargs = {"box_format": "xywh"} | kwargs
    metric = DetectionMAP(**kwargs)
    metric.update(preds, target)
    computed = metric.compute()
    assert_same(computed, detection_map(preds, target, **kwargs))
    return computed


# --- the table of CASES.md -------------------------------------------------------------------------------------------

FAR = (50, 50, 10, 10)
STRIP = [(20 * i, 0, 10, 10) for i in range(150)]
NUMBERS = {  # preds, target, arguments, what the numbers are
    "D01 an overlap of 0.6": ([found(((0, 0, 10, 6), 0.9))], [true(B10)], {}, {"map": 0.3, "map_50": 1}),
    "D01 an overlap of 0.55": ([found(((0, 0, 10, 5.5), 0.9))], [true(B10)], {}, {"map": 0.2}),
    "D02 seven of ten": ([found(*((b, 0.9) for b in STRIP[:7]))], [true(*STRIP[:10])], {}, {"map": 70 / 101}),
    "D03 thresholds without 0.5": (
        [found(((0, 0, 10, 2.5), 0.9))],
        [true(B10)],
        {"iou_thresholds": [0.2]},
        {"map": 1, "map_50": -1, "map_75": -1},
    ),
    "D04 the largest cap is 300": (
        [found((B10, 0.9))],
        [true(B10)],
        {"max_detection_thresholds": [1, 10, 300]},
        {"map": 1, "mar_300": 1},
    ),
    "D04 150 found, the largest cap is 500": (
        [found(*((b, 0.9) for b in STRIP))],
        [true(*STRIP)],
        {"max_detection_thresholds": [1, 100, 500]},
        {"map": 1, "mar_1": 1 / 150, "mar_100": 100 / 150, "mar_500": 1},
    ),
    "D09 detections inside a crowd": (
        [found((B10, 0.5), ((40, 40, 9, 9), 0.9), ((60, 60, 9, 9), 0.8))],
        [true(B10, (40, 40, 100, 100), iscrowd=[0, 1])],
        {},
        {"map": 1},
    ),
    "D10 a regular truth beats a crowd": (
        [found((B10, 0.9))],
        [true((0, 0, 10, 5.5), (0, 0, 9, 10), iscrowd=[0, 1])],
        {},
        {"map": 0.2},
    ),
    "D12 no detections": ([found()], [true(B10)], {}, {"map": 0, "map_small": 0, "map_large": -1, "mar_100": 0}),
    "D12 no ground truth": ([found((B10, 0.9))], [true()], {}, dict.fromkeys(KEYS, -1)),
    "D12 nothing at all": ([found()], [true()], {}, dict.fromkeys(KEYS, -1)),
    "D12 no image": ([], [], {}, dict.fromkeys(KEYS, -1)),
    "D13 false positives of a class without ground truth": (
        [found((B10, 0.5, 1), (B10, 0.9, 2))],
        [true(B10)],
        {},
        {"map": 1},
    ),
    "D14 a given area is used": (
        [found(((0, 0, 40, 40), 0.9))],
        [true((0, 0, 40, 40), area=[500.0])],
        {},
        {"map_small": 1, "map_medium": -1},
    ),
    "D14 an area of 0 too": (
        [found(((0, 0, 40, 40), 0.9))],
        [true((0, 0, 40, 40), area=[0])],
        {},
        {"map_small": 1, "map_medium": -1},
    ),
    "D14 no area is the area of the box": (
        [found(((0, 0, 40, 40), 0.9))],
        [true((0, 0, 40, 40), area=None, iscrowd=None)],
        {},
        {"map_small": -1, "map_medium": 1},
    ),
    "D18 the false positive first": ([found((FAR, 0.5), (B10, 0.5))], [true(B10)], {}, {"map": 0.5}),
    "D18 the true positive first": ([found((B10, 0.5), (FAR, 0.5))], [true(B10)], {}, {"map": 1}),
    "D20 two of three": ([found((B10, 0.9), (FAR, 0.8))], [true(B10, FAR, STRIP[9])], {}, {"map": 67 / 101}),
    "D22 a false positive on an image without ground truth": (
        [found((B10, 0.5)), found((B10, 0.9))],
        [true(B10), true()],
        {},
        {"map": 0.5},
    ),
    "D24 not in the order of scores": (
        [found(((0, 0, 10, 6), 0.5), (B10, 0.99))],
        [true(B10)],
        {},
        {"map_50": 1, "map_75": 1},
    ),
    "D25 101 points": (
        [found((B10, 0.9), (FAR, 0.8), (STRIP[1], 0.7), (FAR, 0.6), (FAR, 0.5), (STRIP[2], 0.4), (FAR, 0.3))],
        [true(*STRIP[:3])],
        {},
        {"map": 0.7228},
    ),
    "D26 ties of classes under micro": (
        [found(((10, 30, 96, 96), 0.3, 3), ((20, 0, 10, 10), 0.3, 1))],
        [true((5, 30, 96, 96))],
        {"average": "micro"},
        {"map": 0.45, "map_50": 0.5, "mar_1": 0, "mar_10": 0.9},
    ),
    "a class of its own each": (
        [found((B10, 0.9, 1), (FAR, 0.8, 2))],
        [true(B10, FAR, STRIP[9], label=[1, 2, 2])],
        {},
        {"map": (1 + 51 / 101) / 2},
    ),
    "a detection of another class finds nothing": ([found((B10, 0.9, 2))], [true(B10)], {}, {"map": 0}),
    "unless classes are one": ([found((B10, 0.9, 2))], [true(B10)], {"average": "micro"}, {"map": 1}),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    preds, target, kwargs, expected = NUMBERS[name]
    computed = value(preds, target, **kwargs)
    precision = 5e-5 if name.startswith("D25") else 1e-12
    assert {key: float(computed[key]) for key in expected} == pytest.approx(expected, abs=precision)


@pytest.mark.parametrize("caps", [[100], [1, 5, 10, 50], [7, 3], (2,), torch.tensor([1, 2]), np.array([4])], ids=str)
def test_any_number_of_caps_and_the_keys_follow(caps):
    """D05"""
    computed = value([found((B10, 0.9))], [true(B10)], max_detection_thresholds=caps)
    asked = sorted(int(cap) for cap in caps)
    assert [key for key in computed if key[4:].isdigit() and key[:4] == "mar_"] == [f"mar_{cap}" for cap in asked]
    defined = [float(v) for k, v in computed.items() if "medium" not in k and "large" not in k]
    assert defined == pytest.approx([1.0] * (5 + len(asked)))


def test_keys_are_always_the_same():
    """D12, and torchmetrics' names in its order."""
    metric = DetectionMAP(box_format="xywh")
    with pytest.warns(UserWarning, match="was called before the ``update``"):
        values = [metric.compute()]
    assert_same(values[0], dict.fromkeys(KEYS, torch.tensor(-1.0, dtype=torch.float64)))
    for preds, target in (([], []), ([found()], [true()]), ([found((B10, 0.9))], [true(B10)])):
        values.append(metric(preds, target))
        values.append(metric.compute())
    for computed in values:
        assert list(computed) == KEYS
        assert all((v.dtype, v.shape) == (torch.float64, ()) for v in computed.values())


@pytest.mark.parametrize("average", ["macro", "micro"])
@pytest.mark.parametrize("classes", [[], [5], [3, 7]], ids=str)
def test_class_metrics_are_vectors(average, classes):
    """D17"""
    preds, target = found(*((B10, 0.9, c) for c in classes)), true(*[B10] * len(classes), label=classes)
    computed = value([preds], [target], class_metrics=True, average=average)
    assert list(computed) == [*KEYS, "map_per_class", "mar_100_per_class", "classes"]
    assert computed["classes"].tolist() == classes
    assert computed["classes"].dtype == torch.int64
    for key in ("map_per_class", "mar_100_per_class"):
        assert (computed[key].shape, computed[key].dtype) == ((len(classes),), torch.float64)
        assert computed[key].tolist() == pytest.approx([1.0] * len(classes))


def test_class_metrics_name_classes_that_are_only_true_or_only_found():
    preds, target = [found((B10, 0.9, 9), (B10, 0.9, 4))], [true(B10, B10, label=[4, 2])]
    for average in ("macro", "micro"):
        computed = value(preds, target, class_metrics=True, average=average, max_detection_thresholds=[3])
        assert computed["classes"].tolist() == [2, 4, 9]
        assert computed["map_per_class"].tolist() == pytest.approx([0, 1, -1])
        assert computed["mar_3_per_class"].tolist() == pytest.approx([0, 1, -1])


def test_a_perfect_result_is_what_pycocotools_has():
    """D19"""
    computed = value([found((B10, 0.9))], [true(B10)], extended_summary=True)
    assert computed["precision"].max() == 1 / (1 + np.spacing(1)) == 1 - 2**-52
    assert round(float(computed["map"]), 15) == 1.0


# --- order and copies of images --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "expected"), [(1, 0.5), (BIG + 7, 1.0), (-5, 0.5), (0, 0.5)])
def test_equal_scores_of_images_follow_the_ids(first, expected):
    """D18: the image of the false positive is ``first``, that of the true one 5; in whatever order they come."""
    preds, target = [found((FAR, 0.5)), found((B10, 0.5))], [true(image_id=first), true(B10, image_id=5)]
    for order in (slice(None), slice(None, None, -1)):
        assert float(value(preds[order], target[order])["map"]) == pytest.approx(expected)


def test_equal_scores_of_images_without_ids_follow_the_input():
    preds, target = [found((FAR, 0.5)), found((B10, 0.5))], [true(), true(B10)]
    assert float(value(preds, target)["map"]) == pytest.approx(0.5)
    assert float(value(preds[::-1], target[::-1])["map"]) == pytest.approx(1)


@pytest.mark.parametrize(
    "image_id",
    [3, torch.tensor(3), torch.tensor([3]), torch.tensor([[3]], dtype=torch.int32), torch.tensor(3, dtype=torch.uint8)],
    ids=repr,
)
def test_an_image_whose_id_was_seen_counts_once(image_id):
    metric = DetectionMAP(box_format="xywh")
    for i in (image_id, 3, image_id):
        metric.update([found((B10, 0.9))], [true(B10, FAR, image_id=i)])
    assert metric.result().num_images == 1
    assert metric.result().num_duplicates == 2
    assert metric.result().num_ground_truths.tolist() == [2]


def test_the_id_0_is_an_id_and_none_is_not():
    preds = [found((B10, 0.9))] * 4
    result = made(preds, [true(B10, image_id=0), true(B10), true(B10, image_id=0), true(B10, image_id=None)]).result()
    assert (result.num_images, result.num_duplicates, result.num_conflicts) == (3, 1, 0)


def made(preds: Any, target: Any, **kwargs: Any) -> DetectionMAP:
    metric = DetectionMAP(**{"box_format": "xywh"} | kwargs)
    metric.update(preds, target)
    return metric


CONFLICTS = {  # another copy of the image, which must not be the one that is kept if it is the larger
    "a score": (found((B10, 0.8)), true(B10)),
    "a box": (found(((0, 0, 10, 7), 0.9)), true(B10)),
    "a label": (found((B10, 0.9, 2)), true(B10)),
    "more detections": (found((B10, 0.9), (FAR, 0.95)), true(B10)),
    "a truth": (found((B10, 0.9)), true(FAR)),
    "a crowd": (found((B10, 0.9)), true(B10, iscrowd=[1])),
    "an area": (found((B10, 0.9)), true(B10, area=[5000.0])),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_of_copies_that_differ_the_same_one_is_kept_in_any_order(name):
    copies = [(found((B10, 0.9)), true(B10)), CONFLICTS[name]]
    values = []
    for order in ((0, 1), (1, 0), (0, 1, 0), (1, 1, 0)):
        metric = DetectionMAP(box_format="xywh")
        for i in order:
            preds, target = copies[i]
            metric.update([preds], [target | {"image_id": 8}])
        with pytest.warns(UserWarning, match="1 images repeat an image_id with another content"):
            values.append(metric.compute())
        assert metric.result().num_duplicates == len(order) - 1  # and no second warning
        assert_same(values[-1], values[0])


# --- what is accepted ------------------------------------------------------------------------------------------------

EMPTY = {
    "(0,)": torch.zeros(0),
    "(0, 4)": torch.zeros(0, 4),
    "(1, 0)": torch.zeros(1, 0),
    "(0, 4) of int64": torch.zeros(0, 4, dtype=torch.int64),
}


@pytest.mark.parametrize("shape", EMPTY)
def test_images_without_boxes(shape):
    """D15"""
    none = {"boxes": EMPTY[shape], "scores": torch.zeros(0), "labels": torch.tensor([])}
    preds, target = [none, found((B10, 0.9)), none], [true(B10), none, none]
    assert value(preds, target)["map"] == 0
    assert value([none], [none])["map"] == -1
    assert made(preds, target).result().num_images == 3


@pytest.mark.parametrize(
    "labels", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str
)
@pytest.mark.parametrize("boxes", [torch.int32, torch.int64, torch.uint8, torch.float16, torch.float32], ids=str)
def test_dtypes(labels, boxes):
    """D15"""
    preds, target = found((B10, 0.5), (FAR, 0.25)), true(B10, (0, 0, 5, 5))
    expected = value([preds], [target])
    for side in (preds, target):
        side["labels"], side["boxes"] = side["labels"].to(labels), side["boxes"].to(boxes)
    preds["scores"] = preds["scores"].half()
    assert_same(value([preds], [target]), expected)


def test_labels_of_any_size_and_sign():
    labels = [-(2**62), -1, 0, 2**53, 2**53 + 1, 2**62]
    preds, target = found(*((B10, 0.9, label) for label in labels)), true(*[B10] * 6, label=labels)
    computed = value([preds], [target], class_metrics=True)
    assert computed["classes"].tolist() == labels
    assert float(computed["map"]) == pytest.approx(1)


def test_dtypes_of_one_batch_do_not_meet_in_the_smaller_one():
    """Whole pixels beyond 2^24 beside float32 boxes, a float64 score beside float32 ones."""
    far = 2**24 + 1
    truth = {"boxes": torch.tensor([[far, 0, 3, 8]]), "labels": torch.tensor([1])}
    whole = {
        "boxes": torch.tensor([[far, 0, 3, 8]]),
        "scores": torch.tensor([0.1]).double(),
        "labels": torch.tensor([1]),
    }
    whole["scores"] = torch.tensor([0.1], dtype=torch.float64)
    small = {"boxes": torch.tensor([[0.5, 0, 3, 8]]), "scores": torch.tensor([0.1]), "labels": torch.tensor([1]).byte()}
    assert float(value([whole, small], [truth, true()])["map"]) == pytest.approx(0.5)  # 0.1f > 0.1
    shifted = whole | {"boxes": whole["boxes"] + torch.tensor([1, 0, 0, 0])}
    computed = value([shifted, small | {"scores": torch.tensor([0.01])}], [truth, true()])
    assert float(computed["map"]) == pytest.approx(0.1)  # an overlap of 2 / 4


@pytest.mark.parametrize("average", ["macro", "micro"])
def test_box_formats(average):
    preds, target = found(((4, 8, 10, 6), 0.9), ((20, 20, 8, 16), 0.8)), true((4, 8, 10, 10), (21, 20, 8, 16))
    expected = value([preds], [target], average=average)
    assert 0.3 < float(expected["map"]) < 0.9
    for box_format in ("xyxy", "cxcywh"):
        a, b = ({**side, "boxes": converted(side["boxes"], box_format)} for side in (preds, target))
        assert_same(value([a], [b], box_format=box_format, average=average), expected)


def converted(box: Tensor, box_format: str) -> Tensor:
    first, size = box[:, :2], box[:, 2:]
    return torch.cat([first, first + size] if box_format == "xyxy" else [first + size / 2, size], 1)


def test_xyxy_is_the_default_and_the_width_of_float32_boxes_is_exact():
    preds = found(((0.1, 0, 16777216.1, 10), 0.9))
    preds["boxes"] = preds["boxes"].float()
    left, _, right, _ = preds["boxes"][0].double().tolist()
    metric = DetectionMAP()
    metric.update([preds], [true((left, 0, right, 10))])
    assert float(metric.compute()["map"]) == pytest.approx(1)


def test_tuples_of_images_and_other_keys_are_fine():
    preds, target = found((B10, 0.9)) | {"masks": None, "file": "a.png"}, true(B10) | {"size": (3, 4)}
    assert float(value((preds,), (target,))["map"]) == pytest.approx(1)


@pytest.mark.parametrize(("dtype", "edge"), [(torch.bfloat16, 256), (torch.float16, 2048)], ids=["bfloat16", "float16"])
def test_half_precision_boxes_beyond_whole_pixels_warn_once(dtype, edge):
    """D23: (1001, 1001, 1011, 1011) in bfloat16 is (1000, 1000, 1008, 1008)."""
    metric = DetectionMAP()
    for beyond in (False, True, True):
        preds = found(((edge - 11, 0, edge + beyond * 16, 10), 0.9))
        preds["boxes"] = preds["boxes"].to(dtype)
        if beyond and "half" not in metric._warned:
            with pytest.warns(UserWarning, match=f"Boxes came as {dtype}, beyond the range"):
                metric.update([preds], [true((0, 0, 10, 10))])
        else:
            metric.update([preds], [true((0, 0, 10, 10))])
    target = true((0, 0, 10, 10)) | {"boxes": torch.tensor([[1001, 1001, 1011, 1011]], dtype=torch.bfloat16)}
    with pytest.warns(UserWarning, match="Boxes came as"):
        DetectionMAP().update([found()], [target])


@pytest.mark.parametrize(
    "thresholds",
    [(0.75, 0.5), [0.5, 0.75, 0.5], torch.tensor([0.75, 0.5], dtype=torch.float64), np.array([0.9, 0.5, 0.75])],
    ids=str,
)
def test_thresholds_in_any_order_and_of_any_kind(thresholds):
    """An overlap of 0.6: each threshold has its own value, whatever its place in the list."""
    computed = value([found(((0, 0, 10, 6), 0.9))], [true(B10)], iou_thresholds=thresholds)
    numbers = [float(t) for t in thresholds]
    assert float(computed["map"]) == pytest.approx(sum(t <= 0.6 for t in numbers) / len(numbers))
    assert (float(computed["map_50"]), float(computed["map_75"])) == pytest.approx((1, 0))


def test_recall_thresholds_in_any_order():
    preds, target = [found((B10, 0.9), (FAR, 0.8))], [true(B10, STRIP[5])]
    values = [float(value(preds, target, rec_thresholds=grid)["map"]) for grid in ([0.9, 0.1, 0.5], [0.1, 0.5, 0.9])]
    assert values == pytest.approx([2 / 3, 2 / 3])


def test_validate_args_false_leaves_out_the_values_but_not_the_shapes():
    metric = DetectionMAP(box_format="xywh", validate_args=False)
    metric.update([found((B10, math.inf))], [true(B10)])
    with pytest.raises(ValueError, match=r"preds\[0\]\['boxes'\] must have the shape"):
        metric.update([found() | {"boxes": torch.zeros(1, 5)}], [true()])
    assert metric.update_count == 1


# --- what is refused -------------------------------------------------------------------------------------------------

LARGE = (20, 20, 40, 40)  # a box in every format, as B10 is
GOOD = (found((B10, 0.9), (LARGE, 0.8)), true(B10, LARGE))


def one(**changes: Any) -> tuple[Any, Any]:
    """Two good images, the second of the detections changed."""
    return [GOOD[0], GOOD[0] | changes], [GOOD[1], GOOD[1]]


def other(**changes: Any) -> tuple[Any, Any]:
    """Two good images, the second of the ground truths changed."""
    return [GOOD[0], GOOD[0]], [GOOD[1], GOOD[1] | changes]


def lacking(side: int, key: str) -> tuple[Any, Any]:
    images = [[GOOD[0]] * 2, [GOOD[1]] * 2]
    images[side][1] = {k: v for k, v in images[side][1].items() if k != key}
    return tuple(images)


def boxes(*rows: tuple, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(rows, dtype=dtype)


NAN, INF = math.nan, math.inf
P, T = r"preds\[1\]\['", r"target\[1\]\['"
REFUSED = {  # arguments of update, message, arguments of the class
    "a dict": ((GOOD[0], [GOOD[1]]), r"`preds` must be a list of dicts, one per image, got dict"),
    "no list": (([GOOD[0]], None), r"`target` must be a list of dicts, one per image, got NoneType"),
    "a list of tensors": (([torch.ones(1)], [GOOD[1]]), r"`preds` must be a list of dicts, got Tensor for image 0"),
    "a list of lists": (([GOOD[0]] * 2, [GOOD[1], []]), r"`target` must be a list of dicts, got list for image 1"),
    "lengths": (([GOOD[0]] * 2, [GOOD[1]]), r"one dict per image each, got 2 and 1"),
    "lengths, no target": (([GOOD[0]], []), r"one dict per image each, got 1 and 0"),
    **{f"no {key} found": (lacking(0, key), rf"preds\[1\] must hold the key '{key}', got \[") for key in GOOD[0]},
    **{f"no {key} true": (lacking(1, key), rf"target\[1\] must hold the key '{key}', got \[") for key in GOOD[1]},
    "boxes as a list": (one(boxes=[[0, 0, 1, 1]]), P + r"boxes'\]` must be a torch.Tensor, got list"),
    "boxes as an array": (other(boxes=np.zeros((2, 4))), T + r"boxes'\]` must be a torch.Tensor, got ndarray"),
    "complex boxes": (one(boxes=torch.zeros(2, 4, dtype=torch.complex64)), P + r"boxes'\]` must be of a real dtype"),
    "sparse boxes": (one(boxes=torch.eye(4)[:2].to_sparse()), P + r"boxes'\]` must be a dense tensor, got layout"),
    "five columns": (one(boxes=torch.zeros(2, 5)), P + r"boxes'\] must have the shape \(n, 4\), got \(2, 5\)"),
    "no row": (one(boxes=torch.zeros(4)), P + r"boxes'\] must have the shape \(n, 4\), got \(4,\)"),
    "batched": (other(boxes=torch.zeros(1, 2, 4)), T + r"boxes'\] must have the shape \(n, 4\), got \(1, 2, 4\)"),
    "empty with 5 columns": (one(boxes=torch.zeros(0, 5)), P + r"boxes'\] must have the shape \(n, 4\), got \(0, 5\)"),
    "scores (n, 1)": (one(scores=torch.zeros(2, 1)), P + r"scores'\] must have the shape \(2,\) .* got \(2, 1\)"),
    "too few scores": (
        one(scores=torch.zeros(1)),
        P + r"scores'\] must have the shape \(2,\) of its labels, got \(1,\)",
    ),
    "one score": (one(scores=torch.tensor(0.5)), P + r"scores'\] must have the shape \(2,\) of its labels, got \(\)"),
    "too many labels": (
        other(labels=torch.ones(3).long()),
        T + r"boxes'\] must have one row for each of the 3 labels, got 2",
    ),
    "float labels found": (one(labels=torch.ones(2)), P + r"labels'\] must be of an integer dtype, got torch.float32"),
    "float labels true": (
        other(labels=torch.ones(2).half()),
        T + r"labels'\] must be of an integer dtype, got torch.f",
    ),
    "a NaN box": (one(boxes=boxes(B10, (0, NAN, 1, 1))), P + r"boxes'\] must be finite, got \[0.0, nan, .* in row 1"),
    "an infinite box": (other(boxes=boxes((0, 0, INF, 1), B10)), T + r"boxes'\] must be finite, got .* in row 0"),
    "a NaN score": (one(scores=torch.tensor([0.5, NAN])), P + r"scores'\] must be finite, got nan in row 1"),
    "an infinite score": (one(scores=torch.tensor([-INF, 1])), P + r"scores'\] must be finite, got -inf in row 0"),
    "x2 < x1": (
        one(boxes=boxes(B10, (5, 0, 4, 1))),
        P + r"boxes'\] must have x2 >= x1 and y2 >= y1, got \[5.0, 0.0, 4.0, 1.0\] in row 1",
    ),
    "y2 < y1": (
        other(boxes=boxes((0, 5, 4, 1), B10)),
        T + r"boxes'\] must have x2 >= x1 and y2 >= y1, got .* in row 0",
    ),
    "a negative width": (
        one(boxes=boxes(B10, (0, 0, -1, 1))),
        P + r"boxes'\] must have a width and a height >= 0, got \[0.0, 0.0, -1.0, 1.0\] in row 1",
        {"box_format": "xywh"},
    ),
    "a negative height": (
        other(boxes=boxes((0, 0, 1, -1), B10, dtype=torch.int64)),
        T + r"boxes'\] must have a width and a height >= 0, got \[0.0, 0.0, 1.0, -1.0\] in row 0",
        {"box_format": "cxcywh"},
    ),
    "iscrowd 2": (other(iscrowd=torch.tensor([0, 2])), T + r"iscrowd'\] must be 0 or 1, got 2(\.0)? in row 1"),
    "iscrowd -1": (other(iscrowd=torch.tensor([-1, 0])), T + r"iscrowd'\] must be 0 or 1, got -1(\.0)? in row 0"),
    "iscrowd 0.5": (other(iscrowd=torch.tensor([0, 0.5])), T + r"iscrowd'\] must be 0 or 1, got 0.5 in row 1"),
    "iscrowd NaN": (other(iscrowd=torch.tensor([0, NAN])), T + r"iscrowd'\] must be 0 or 1, got nan in row 1"),
    "iscrowd as a bool": (other(iscrowd=True), T + r"iscrowd'\]` must be a torch.Tensor, got bool"),
    "iscrowd of one": (
        other(iscrowd=torch.tensor([1])),
        T + r"iscrowd'\] must have the shape \(2,\) of its labels, got \(1,\)",
    ),
    "a negative area": (other(area=torch.tensor([1, -1])), T + r"area'\] must be finite and >= 0, got -1.0 in row 1"),
    "a NaN area": (other(area=torch.tensor([NAN, 1])), T + r"area'\] must be finite and >= 0, got nan in row 0"),
    "an infinite area": (other(area=torch.tensor([1, INF])), T + r"area'\] must be finite and >= 0, got inf in row 1"),
    "areas (n, 1)": (
        other(area=torch.ones(2, 1)),
        T + r"area'\] must have the shape \(2,\) of its labels, got \(2, 1\)",
    ),
    "scores without values": (
        one(scores=torch.ones(2, device="meta")),
        P + r"scores'\]` must hold values, got a tensor",
    ),
    "areas without values": (other(area=torch.ones(2, device="meta")), T + r"area'\]` must hold values, got a tensor"),
    "iscrowd without values": (
        other(iscrowd=torch.ones(2, device="meta")),
        T + r"iscrowd'\]` must hold values, got a tensor",
    ),
    "areas as a list": (other(area=[1.0, 2.0]), T + r"area'\]` must be a torch.Tensor, got list"),
    **{
        f"image_id {bad!r}": (
            other(image_id=bad),
            T + r"image_id'\] must be an int or an integer tensor of one element, got ",
        )
        for bad in ("a", 1.5, True, 2**63, torch.tensor([1, 2]), torch.tensor(1.0), torch.tensor(True), [1])
    },
    "a label without a name found": (
        one(labels=torch.tensor([1, 3])),
        P + r"labels'\] must be one of the labels of `class_names`, got 3 in row 1",
        {"class_names": ["a", "b", "c"]},
    ),
    "a label without a name true": (
        other(labels=torch.tensor([-1, 1])),
        T + r"labels'\] must be one of the labels of `class_names`, got -1 in row 0",
        {"class_names": {1: "a", 5: "b"}},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_batch_is_refused_and_changes_nothing(name):
    """D16"""
    (preds, target), message, *rest = REFUSED[name]
    kwargs = rest[0] if rest else {}
    metric = DetectionMAP(**kwargs)
    box = torch.tensor([[0.0, 0, 10, 10]])
    metric.update(
        [{"boxes": box, "scores": torch.tensor([0.5]), "labels": torch.tensor([1])}],
        [{"boxes": box, "labels": torch.tensor([1]), "image_id": 4}],
    )
    metric.compute()
    before = state_of(metric)
    for refuse in (metric.update, metric.forward, lambda *args: detection_map(*args, **kwargs)):
        with pytest.raises(ValueError, match=message):
            refuse(preds, target)
        assert_same(state_of(metric), before)


def test_what_is_refused_is_otherwise_good():
    """The two images of the table above, without a change."""
    for preds, target in (one(), other()):
        assert float(value(preds, target)["map"]) == pytest.approx(1)


ARGUMENTS = {
    "box_format": ["xyyx", None, 1, ("xyxy",)],
    "iou_type": ["boxes", "box", None, ("bbox", "obb"), (), ("segm", "segm"), ["keypoints", "bbox"], {"segm"}],
    "class_groups": ["abc", 3, [1], {"a": "b"}, {1: 2}, {2**63: "a"}],
    "hierarchy": [3, "ab", {1: 1.0}, {"a": 1}, {True: 1}, {1: [2, "a"]}, {2**63: 1}, {1: [-(2**63) - 1]}],
    "iou_thresholds": [[], [1.1], [-0.1], 0.5, "0.5", [True], ["a"], [NAN], [None], {0.5: 1}],
    "rec_thresholds": [[], [1.1], [-0.1], 0.5, "01", [True], [NAN]],
    "max_detection_thresholds": [[], [0], [-1], [1, 1], [1.5], [True], 100, "100", [None]],
    "class_metrics": [1, None, "yes"],
    "extended_summary": [0, None],
    "average": ["weighted", None, True],
    "protocol": ["voc", None, 3],
    "class_names": ["abc", 3, [1], {"a": "b"}, {1: 2}, {2**63: "a"}],
    "output": ["maps", "mar_7", 1, "map_per_class"],
}


@pytest.mark.parametrize(
    ("name", "bad"), [(name, bad) for name, values in ARGUMENTS.items() for bad in values], ids=repr
)
def test_bad_arguments_are_refused(name, bad):
    for make in (DetectionMAP, lambda **kwargs: detection_map([], [], **kwargs)):
        with pytest.raises(ValueError, match=rf"Argument `{name}` must be .*got") as caught:
            make(**{name: bad})
        assert repr(bad) in str(caught.value)


@pytest.mark.parametrize("group", ["50", "75", "per_class", "all", "large"])
def test_groups_with_the_names_of_other_keys_are_refused(group):
    with pytest.raises(ValueError, match=f"`class_groups` must not name a group '{group}'"):
        DetectionMAP(class_groups={1: group})


def test_a_cycle_is_named_by_its_argument():
    with pytest.raises(ValueError, match=r"Argument `hierarchy` must be .*without cycles"):
        DetectionMAP(hierarchy={1: 2, 2: [3], 3: 1})


# --- arguments that shape the answer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_output_is_that_number_alone(key):
    preds, target = [found(((0, 0, 10, 6), 0.9), ((0, 0, 50, 50), 0.3))], [true(B10, (0, 0, 50, 60), (0, 0, 200, 200))]
    assert_same(value(preds, target, output=key, class_metrics=True), value(preds, target)[key])


def test_output_of_a_cap_of_ones_own():
    computed = value([found((B10, 0.9))], [true(B10, FAR)], output="mar_7", max_detection_thresholds=[7])
    assert (computed.shape, float(computed)) == ((), 0.5)


@pytest.mark.parametrize("names", [["zero", "one", "two"], {1: "one", 2: "two"}, ("zero", "one", "two")], ids=str)
def test_class_names_name_the_rows(names):
    metric = made([found((B10, 0.9, 1))], [true(B10, FAR, label=[1, 2])], class_names=names)
    rows = metric.result().per_class()
    assert [(row["label"], row["name"], row["ground_truths"], row["detections"]) for row in rows] == [
        (1, "one", 1, 1),
        (2, "two", 1, 0),
    ]
    assert [row["ap"] for row in rows] == pytest.approx([1, 0])


def test_a_protocol_of_ones_own():
    """Other area ranges bring other keys; given grids take the place of its own."""
    protocol = replace(COCO, name="tiny", areas=(("all", 0.0, 1e10), ("tiny", 0.0, 100.0)), max_detections=(5,))
    computed = value([found((B10, 0.9))], [true(B10, (0, 0, 30, 30))], protocol=protocol)
    assert list(computed) == ["map", "map_50", "map_75", "map_tiny", "mar_5", "mar_tiny"]
    assert float(computed["map_tiny"]) == pytest.approx(1)
    assert float(computed["mar_5"]) == pytest.approx(0.5)


def test_extended_summary():
    preds = [found((B10, 0.9), ((0, 0, 5, 10), 0.8)), found((FAR, 0.7, 2)), found()]
    target = [true(B10, (40, 0, 10, 10), image_id=70), true(B10, label=3, image_id=-7), true(image_id=9)]
    kwargs = {"iou_thresholds": [0.5, 0.75, 0.9], "rec_thresholds": [0, 0.5], "max_detection_thresholds": [1, 10]}
    computed = value(preds, target, extended_summary=True, **kwargs)
    assert list(computed)[-4:] == ["ious", "precision", "recall", "scores"]
    assert computed["precision"].shape == computed["scores"].shape == (3, 2, 3, 4, 2)
    assert computed["recall"].shape == (3, 3, 4, 2)
    for key in ("precision", "recall", "scores"):
        assert computed[key].dtype == torch.float64
    overlaps = {key: overlap for key, overlap in computed["ious"].items() if overlap.numel()}
    assert list(overlaps) == [(70, 1)]
    assert_same(overlaps[70, 1], torch.tensor([[1.0, 0.0], [0.5, 0.0]], dtype=torch.float64))


def test_overlaps_of_one_by_one_stay_matrices():
    computed = value([found((B10, 0.9))], [true(B10)], extended_summary=True)
    assert_same(computed["ious"][0, 1], torch.ones(1, 1, dtype=torch.float64))


def test_overlaps_of_images_with_and_without_ids_do_not_collide():
    """The second image has no id and is the one at place 1; the first has the id 1."""
    preds, target = [found((B10, 0.9)), found((FAR, 0.8))], [true(B10, image_id=1), true(B10)]
    overlaps = value(preds, target, extended_summary=True)["ious"]
    assert sorted(overlap.item() for overlap in overlaps.values()) == [0.0, 1.0]


# --- the result ------------------------------------------------------------------------------------------------------


def test_the_result_knows_its_counts():
    preds = [found((B10, 0.9, 1), (FAR, 0.8, 1), (B10, 0.7, 2)), found((B10, 0.9, 2))]
    target = [true(B10, FAR, label=[1, 1], iscrowd=[0, 1], image_id=1), true(B10, label=3, image_id=1 + BIG)]
    result = made(preds, target).result()
    assert result.classes.tolist() == [1, 2, 3]
    assert result.num_ground_truths.tolist() == [1, 0, 1]
    assert result.num_detections.tolist() == [2, 2, 0]
    assert (result.num_unjudged, result.num_images, result.num_duplicates) == (2, 2, 0)  # D13
    assert json.loads(json.dumps(result.to_dict()))["value"]["map"] == float(result.numbers["map"])


def test_the_summary_is_the_table_of_pycocotools():
    lines = made([found((B10, 0.9))], [true(B10)]).result().summary().splitlines()
    assert len(lines) == 12
    assert lines[0] == " Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 1.000"
    assert lines[1] == " Average Precision  (AP) @[ IoU=0.50      | area=   all | maxDets=100 ] = 1.000"
    assert lines[5] == " Average Precision  (AP) @[ IoU=0.50:0.95 | area= large | maxDets=100 ] = -1.000"
    assert lines[6] == " Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets=  1 ] = 1.000"


@pytest.mark.parametrize(
    ("thresholds", "shown"),
    [
        ([0.9, 0.5], "0.50:0.90"),
        ([0.75, 0.5, 0.9, 0.5], "0.50:0.90"),
        ([0.9], "0.90"),
        ([0.5, 0.5], "0.50"),
        ([1, 0], "0.00:1.00"),
        ([0.505], "0.505"),
        ([1.0, 0.625], "0.625:1.00"),
        (list(COCO.iou_thresholds)[::-1], "0.50:0.95"),
        (COCO.iou_thresholds[8:9], "0.90"),  # 0.8999999999999999
    ],
)
def test_the_summary_shows_the_thresholds_in_order(thresholds, shown):
    result = made([found((B10, 0.9))], [true(B10)], iou_thresholds=thresholds).result()
    lines = result.summary().splitlines()
    assert [line.split("IoU=")[1].split(" ")[0] for line in lines] == [shown, "0.50", "0.75", *[shown] * 9]


# --- a real set ------------------------------------------------------------------------------------------------------


def coco100() -> tuple[list[dict], list[dict]]:
    """100 images of COCO val2014 with the official fake results, in the order of the files."""
    truth = json.loads((DATA / "coco100" / "instances_val2014_100.json").read_text())
    results = json.loads((DATA / "coco100" / "instances_val2014_fakebbox100_results.json").read_text())
    preds, target = [], []
    for image in truth["images"]:
        detected = [row for row in results if row["image_id"] == image["id"]]
        marked = [row for row in truth["annotations"] if row["image_id"] == image["id"]]
        preds.append(found(*((row["bbox"], row["score"], row["category_id"]) for row in detected)))
        target.append(
            true(
                *(row["bbox"] for row in marked),
                label=[row["category_id"] for row in marked],
                iscrowd=[row["iscrowd"] for row in marked],
                area=[row["area"] for row in marked],
                image_id=image["id"],
            )
        )
    return preds, target


@pytest.mark.parametrize("seed", [None, 0])
def test_coco100_in_batches(seed):
    """D21: all twelve numbers to the last bit, in any order of the images, some of them twice."""
    preds, target = coco100()
    order = (
        list(range(100)) if seed is None else torch.randperm(100, generator=torch.Generator().manual_seed(0)).tolist()
    )
    metric = DetectionMAP(box_format="xywh")
    for start in range(0, 100, 16):
        batch = order[start : start + 16] + order[: start % 3]
        metric.update([preds[i] for i in batch], [target[i] for i in batch])
    names = ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"]
    expected = json.loads((DATA / "expected_values.json").read_text())["coco100/bbox"]
    assert [float(number) for number in metric.compute().values()] == [expected[name] for name in names]
    assert float(metric.compute()["map"]) == 0.5045806987249628
    assert (metric.result().num_images, int(metric.result().num_ground_truths.sum())) == (100, 839 - 9)


def test_output_takes_exactly_the_keys_of_compute():
    protocol = replace(COCO, areas=(("all", 0.0, 1e10), ("tiny", 0.0, 100.0)), max_detections=(5, 7))
    numbers = value([found((B10, 0.9))], [true(B10)], protocol=protocol)
    for key, number in numbers.items():
        assert_same(value([found((B10, 0.9))], [true(B10)], protocol=protocol, output=key), number)
    with pytest.raises(ValueError, match="`output`"):
        DetectionMAP(protocol=protocol, output="map_small")
