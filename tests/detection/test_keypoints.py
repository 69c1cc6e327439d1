"""Object keypoint similarity against pycocotools, bit for bit, and values by hand."""

from __future__ import annotations

import contextlib
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from map_metrics.detection import pairs
from map_metrics.detection.keypoints import COCO_SIGMAS, keypoint_overlaps, read_poses

DATA = Path(__file__).parents[1] / "data" / "detection" / "keypoints"


def evaluator(truths, results, sigmas=None):
    """``COCOeval`` of lists of annotations, prepared for ``computeOks``; results in the order of falling scores."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = truths
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "keypoints")
        evaluation.params.maxDets = [10**6]
        if sigmas is not None:
            evaluation.params.kpt_oks_sigmas = np.array(sigmas)
        evaluation._prepare()
    return evaluation


def expected_overlaps(evaluation, counts):
    """(detection, truth, OKS) above 0 of all images; ``counts`` of detections and truths of each image."""
    rows, d, g = [], 0, 0
    for image, (found, true) in counts.items():
        oks = np.array(evaluation.computeOks(image, 1)).reshape(-1, max(1, true))
        rows += [(d + i, g + j, oks[i, j]) for i, j in np.argwhere(oks > 0).tolist()]
        d, g = d + found, g + true
    return rows


def rows_of(overlaps):
    return list(zip(*(column.tolist() for column in overlaps), strict=True))


def by_image(images, annotations):
    groups = {image: [] for image in images}
    for row in annotations:
        groups[row["image_id"]].append(row)
    return groups


def poses(name, groups, num_keypoints):
    values = [torch.tensor([row["keypoints"] for row in rows], dtype=torch.float64) for rows in groups.values()]
    return read_poses(name, [{"keypoints": value.view(-1, num_keypoints, 3)} for value in values], num_keypoints)


def compare(truths, results, sigmas=COCO_SIGMAS, *, box=True):
    """Read both sides, check overlaps, areas and boxes of detections; returns the rows of the overlaps."""
    images = [row["id"] for row in truths["images"]]
    found, true = by_image(images, results), by_image(images, truths["annotations"])
    detections, ground_truths = (poses(n, side, len(sigmas)) for n, side in (("preds", found), ("target", true)))
    flat = [row for rows in true.values() for row in rows]
    area = torch.tensor([row["area"] for row in flat], dtype=torch.float64)
    boxes = torch.tensor([row["bbox"] for row in flat], dtype=torch.float64).view(-1, 4)
    stored = rows_of(keypoint_overlaps(detections, ground_truths, area, boxes if box else None, sigmas))
    if not results:
        return stored
    evaluation = evaluator(truths, results, sigmas)
    expected = expected_overlaps(evaluation, {image: (len(found[image]), len(true[image])) for image in images})
    if not box:
        expected = [row for row in expected if any(v > 0 for v in flat[row[1]]["keypoints"][2::3])]
    assert stored == expected
    loaded = [row for rows in by_image(images, evaluation.cocoDt.dataset["annotations"]).values() for row in rows]
    assert detections.area.tolist() == [row["area"] for row in loaded]
    assert detections.box.tolist() == [list(row["bbox"]) for row in loaded]
    assert ground_truths.empty.tolist() == [not any(v > 0 for v in row["keypoints"][2::3]) for row in flat]
    return stored


def test_coco_sample_equals_pycocotools():
    truths = json.loads((DATA / "example_coco_val.json").read_text())
    results = json.loads((DATA / "example_coco_preds.json").read_text())
    results.sort(key=lambda row: -row["score"])
    rows = compare(truths, results)
    assert len(rows) == 241
    assert max(value for _, _, value in rows) > 0.95


def random_scene(rng, num_keypoints):
    """Images whose detections lie near the true poses, at any distance; some truths without a labeled keypoint."""
    images = [{"id": i + 1} for i in range(rng.integers(1, 4))]
    annotations, results = [], []
    for image in images:
        shapes = []
        for _ in range(rng.integers(0, 5)):
            size = rng.uniform(5, 200)
            xy = np.round(rng.uniform(0, 300, 2) + rng.uniform(0, size, (num_keypoints, 2)), int(rng.choice([0, 2])))
            visible = rng.integers(0, 3, num_keypoints) * (rng.random() < 0.8)
            low, high = xy.min(0), xy.max(0)
            area = float(rng.choice([0.0, size**2 / 3, float(int(size))]))
            shapes.append((xy, size))
            annotations.append(
                {"id": len(annotations) + 1, "image_id": image["id"], "category_id": 1, "iscrowd": 0, "area": area}
                | {"bbox": [*low.tolist(), *(high - low).tolist()], "num_keypoints": int((visible > 0).sum())}
                | {"keypoints": np.column_stack([xy * (visible > 0)[:, None], visible]).ravel().tolist()}
            )
        for _ in range(rng.integers(0, 6)):
            xy, size = shapes[rng.integers(len(shapes))] if shapes else (np.zeros((num_keypoints, 2)), 50.0)
            xy = xy + rng.normal(size=xy.shape) * size * rng.choice([0, 0.02, 0.1, 2])
            score = 1 - len(results) / 100
            flat = np.column_stack([xy, rng.random(num_keypoints)]).ravel().tolist()
            results.append({"image_id": image["id"], "category_id": 1, "score": score, "keypoints": flat})
    return {"images": images, "categories": [{"id": 1}], "annotations": annotations}, results


@pytest.mark.parametrize("seed", range(150))
def test_fuzz_equals_pycocotools(seed, monkeypatch):
    """Any number of keypoints: numpy adds up to 7, 8 to 128 and more terms in different orders."""
    rng = np.random.default_rng(seed)
    num_keypoints = int(rng.choice([1, 2, 5, 14, 17, 17, 17, 40, 133]))
    sigmas = COCO_SIGMAS if num_keypoints == 17 else rng.uniform(0.02, 0.2, num_keypoints).tolist()
    if rng.random() < 0.5:
        monkeypatch.setattr(pairs, "PAIRS_AT_ONCE", int(rng.integers(1, 100)))
    truths, results = random_scene(rng, num_keypoints)
    compare(truths, results, sigmas, box=bool(rng.random() < 0.7))


def pose(*points):
    return torch.tensor([[(*point, 2.0) if len(point) == 2 else point for point in points]], dtype=torch.float64)


def similarity(found, true, area, box=None, sigmas=(0.1, 0.1)):
    detections = read_poses("preds", [{"keypoints": found}], 2)
    truths = read_poses("target", [{"keypoints": true}], 2)
    box = None if box is None else torch.tensor([box])
    return rows_of(keypoint_overlaps(detections, truths, torch.tensor([area]), box, sigmas))


def test_values_by_hand():
    """exp(-d^2 / (2 (2 sigma)^2 area)): a distance of 2 at sigma 0.1 and area 50 is exp(-1)."""
    true = pose((10, 10), (20, 10))
    assert similarity(true, true, 50.0) == [(0, 0, 1.0)]
    ((_, _, value),) = similarity(pose((12, 10), (20, 12)), true, 50.0)
    assert value == pytest.approx(math.exp(-1), rel=1e-14)
    ((_, _, value),) = similarity(pose((12, 10), (999, 999)), pose((10, 10), (0, 0, 0)), 50)
    assert value == pytest.approx(math.exp(-1), rel=1e-14)  # what is not labeled plays no part
    assert similarity(pose((999, 999), (999, 0)), true, 50.0) == []  # too far for float64


def test_a_truth_without_labeled_keypoint_has_its_grown_box():
    """The box (10, 10, 10, 10) grows to 0..30; outside it the distance counts, inside it is 0."""
    true = pose((0, 0, 0), (0, 0, 0))
    box = [10.0, 10, 10, 10]
    assert similarity(pose((0, 30), (15, 15)), true, 50, box) == [(0, 0, 1.0)]
    ((_, _, value),) = similarity(pose((32, 15), (15, -2)), true, 50, box)
    assert value == pytest.approx(math.exp(-1), rel=1e-14)
    assert similarity(pose((15, 15), (15, 15)), true, 50, None) == []


def test_detections_of_two_columns_and_any_dtype():
    true = pose((10, 10), (20, 10))
    for found in (true[..., :2], true[..., :2].int(), true.half(), torch.cat([true[..., :2], -true[..., 2:]], 2)):
        assert similarity(found, true.float(), 50.0) == [(0, 0, 1.0)]


def test_nan_may_stand_where_nothing_is_labeled():
    true = pose((10, 10), (math.nan, math.nan, 0))
    assert similarity(pose((10, 10), (5, 5)), true, 50.0) == [(0, 0, 1.0)]


def test_images_without_poses():
    empty = [torch.zeros(0), torch.zeros(0, 2, 3), torch.zeros(0, 0)]
    read = read_poses("preds", [{"keypoints": value} for value in empty], 2)
    assert (read.counts.tolist(), read.box.shape, read.area.shape) == ([0, 0, 0], (0, 4), (0,))
    assert rows_of(keypoint_overlaps(read, read, torch.zeros(0), None, (0.1, 0.1))) == []


BAD = {
    "no key": ({}, "preds", r"must hold the key 'keypoints', got \[\]"),
    "a list": ({"keypoints": [[1, 2, 3]]}, "preds", "must be a torch.Tensor, got list"),
    "flat": ({"keypoints": torch.zeros(1, 6)}, "preds", r"must have the shape \(n, 2, 2 or 3\), got \(1, 6\)"),
    "three keypoints": ({"keypoints": torch.zeros(1, 3, 3)}, "target", r"shape \(n, 2, 3\), got \(1, 3, 3\)"),
    "truths without visibility": ({"keypoints": torch.zeros(1, 2, 2)}, "target", r"shape \(n, 2, 3\), got \(1, 2, 2\)"),
    "NaN": ({"keypoints": pose((1, 1), (1, math.nan))}, "preds", "must be finite, got .* in row 0"),
    "NaN where labeled": (
        {"keypoints": pose((1, 1), (1, math.nan))},
        "target",
        "must be finite where labeled, .* row 0",
    ),
    "integers beyond float64": (
        {"keypoints": torch.full((1, 2, 3), 2**53 + 1)},
        "preds",
        r"must hold integers of at most 2\^53, got 9007199254740993 at position \(0, 0, 0\)",
    ),
    "negative visibility": (
        {"keypoints": pose((1, 1), (1, 1, -1))},
        "target",
        "with a visibility >= 0, got .* in row 0",
    ),
    "visibility of NaN": ({"keypoints": pose((1, 1), (1, 1, math.nan))}, "target", "visibility >= 0, got .* in row 0"),
}


@pytest.mark.parametrize(("image", "name", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused(image, name, message):
    with pytest.raises(ValueError, match=message) as error:
        read_poses(name, [{"keypoints": pose((1, 1), (1, 1))}, image], 2)
    assert f"{name}[1]" in str(error.value)
