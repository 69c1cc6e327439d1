"""Overlaps of oriented boxes against shapely, hotcoco and values by hand."""

from __future__ import annotations

import contextlib
import io
import math

import hotcoco
import numpy as np
import pytest
import torch
from shapely.geometry import Polygon

from map_metrics.detection import pairs
from map_metrics.detection.oriented import common_area, oriented_overlaps, read_oriented

TURN = math.pi / 4


def polygon(row):
    x, y, w, h, angle = row
    along, across = w / 2 * np.exp(1j * angle), 1j * h / 2 * np.exp(1j * angle)
    corners = [complex(x, y) + a * along + b * across for a, b in ((1, 1), (-1, 1), (-1, -1), (1, -1))]
    return Polygon([(c.real, c.imag) for c in corners])


def boxes(*rows):
    return torch.from_numpy(np.array(rows, dtype=np.float64)).view(-1, 5)


def overlaps(detections, truths, crowd=None):
    """Rows of the overlaps of lists of boxes, one entry per image."""
    found = read_oriented("preds", [{"boxes": rows} for rows in detections])
    true = read_oriented("target", [{"boxes": rows} for rows in truths])
    crowd = torch.zeros(len(true), dtype=torch.bool) if crowd is None else torch.tensor(crowd)
    return list(zip(*(column.tolist() for column in oriented_overlaps(found, true, crowd)), strict=True))


def random_boxes(rng, n):
    """Any angle and the special ones, whole and broken sizes, no area, many that share corners or sides."""
    angles = rng.choice([0, math.pi / 2, -math.pi / 2, math.pi, TURN, 0.3, rng.uniform(-7, 7)], n)
    rows = np.column_stack([rng.normal(size=(n, 2)) * 2, rng.exponential(size=(n, 2)) * 3, angles])
    if rng.random() < 0.5:
        rows[:, :4] = np.round(rows[:, :4])
    copies = rng.random(n) < 0.3
    rows[copies] = rows[rng.integers(0, n, copies.sum())]
    moved = rng.random(n) < 0.3
    length = rows[moved, 2:3] * rng.choice([0.5, 1], (moved.sum(), 1))  # along the own side: sides lie on one line
    rows[moved, :2] += length * np.column_stack([np.cos(rows[moved, 4]), np.sin(rows[moved, 4])])
    return rows


@pytest.mark.parametrize("seed", range(60))
def test_fuzz_against_shapely(seed):
    """Within 1e-11 of the smaller box's area, at any scale and far from the origin."""
    rng = np.random.default_rng(seed)
    first, second = random_boxes(rng, 40), random_boxes(rng, 40)
    second[:20] = first[rng.permutation(40)[:20]]
    expected = np.array([polygon(a).intersection(polygon(b)).area for a, b in zip(first, second, strict=True)])
    scale = 10.0 ** rng.integers(-3, 5)
    small = np.minimum(first[:, 2] * first[:, 3], second[:, 2] * second[:, 3])
    for rows in (first, second):
        rows[:, :4] *= scale
    area = common_area(first, second)
    assert (np.abs(area / scale**2 - expected) <= 1e-11 * small + 1e-15).all()
    np.testing.assert_array_equal(area, common_area(second, first))
    for rows in (first, second):
        rows[:, :2] = np.round(rows[:, :2] * 2**10) / 2**10  # so that moving is exact
    near = common_area(first, second)
    for rows in (first, second):
        rows[:, :2] += 2.0**20
    np.testing.assert_array_equal(common_area(first, second), near)


@pytest.mark.parametrize("seed", range(20))
def test_all_pairs_of_images(seed, monkeypatch):
    """Which pairs are stored, their order, the crowd rule; each has the bits it has alone, whatever the blocks."""
    rng = np.random.default_rng(seed)
    found = [random_boxes(rng, n) if n else np.zeros((0, 5)) for n in rng.choice([0, 1, 7], 3)]
    true = [random_boxes(rng, n) if n else np.zeros((0, 5)) for n in rng.choice([0, 1, 5], 3)]
    crowd = rng.random(sum(map(len, true))) < 0.3
    stored = overlaps([boxes(*rows) for rows in found], [boxes(*rows) for rows in true], crowd)
    expected, d, g = {}, 0, 0
    for detections, truths in zip(found, true, strict=True):
        for i, j in np.ndindex(len(detections), len(truths)):
            a, b = polygon(detections[i]), polygon(truths[j])
            common = a.intersection(b).area
            if common > 0:
                union = a.area if crowd[g + j] else a.area + b.area - common
                expected[d + i, g + j] = common / union
                if common > 1e-12:
                    pair = overlaps([boxes(detections[i])], [boxes(truths[j])], [crowd[g + j]])
                    assert pair == [(0, 0, next(v for k, m, v in stored if (k, m) == (d + i, g + j)))]
        d, g = d + len(detections), g + len(truths)
    assert [row[:2] for row in stored] == sorted(row[:2] for row in stored)
    values = {(i, j): value for i, j, value in stored}
    for key in {*values, *expected}:
        assert values.get(key, 0) == pytest.approx(expected.get(key, 0), rel=1e-9, abs=1e-12)
    monkeypatch.setattr(pairs, "PAIRS_AT_ONCE", 3)
    assert overlaps([boxes(*rows) for rows in found], [boxes(*rows) for rows in true], crowd) == stored


def test_fuzz_against_hotcoco():
    """One pair an image, a grid of thresholds: how many of them an overlap reaches."""
    rng = np.random.default_rng(0)
    n = 300
    found, true = random_boxes(rng, n), random_boxes(rng, n)
    true[:, :2] = found[:, :2] + rng.normal(size=(n, 2)) * rng.choice([0, 0.2], (n, 1))
    true[:, 2:4] = found[:, 2:4] * rng.uniform(0.7, 1.4, (n, 2))
    crowd = rng.random(n) < 0.2
    grid = np.linspace(0.013, 0.993, 99)
    rows = overlaps([boxes(row) for row in found], [boxes(row) for row in true], crowd)
    value = np.zeros(n)
    value[[i for i, _, _ in rows]] = [overlap for _, _, overlap in rows]
    assert np.abs(value[:, None] - grid).min() > 1e-9
    images = [{"id": i + 1, "width": 100, "height": 100} for i in range(n)]
    annotations = [
        {"id": i + 1, "image_id": i + 1, "category_id": 1, "bbox": [0, 0, 1, 1], "area": 1, "iscrowd": int(crowd[i])}
        | {"obb": true[i].tolist()}
        for i in range(n)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = hotcoco.COCO({"images": images, "categories": [{"id": 1, "name": "a"}], "annotations": annotations})
        results = [{"image_id": i + 1, "category_id": 1, "score": 0.5, "obb": found[i].tolist()} for i in range(n)]
        evaluation = hotcoco.COCOeval(truth, truth.loadRes(results), "obb")
        evaluation.params.iouThrs = grid
        evaluation.evaluate()
    reached = np.zeros(n)
    for cell in evaluation.eval_imgs:
        if cell is not None and cell["aRng"] == [0.0, 1e10]:
            reached[cell["image_id"] - 1] = np.sum(cell["dtMatched"])
    np.testing.assert_array_equal(reached, (value[:, None] >= grid).sum(1))
    assert len(np.unique(reached)) > 30


SQUARE, TURNED = (0, 0, 1, 1, 0), (0, 0, 1, 1, TURN)
HAND = {  # detection, truth, overlap
    "a regular octagon": (SQUARE, TURNED, math.sqrt(0.5)),
    "the diamond on the middles of the sides": ((0, 0, 2, 2, 0), (0, 0, math.sqrt(2), math.sqrt(2), TURN), 0.5),
    "a corner cut off": ((0, 0, 2, 2, 0), (1, 1, math.sqrt(2), math.sqrt(2), TURN), 0.5 / 5.5),
    "a cross": ((0, 0, 6, 2, 0), (0, 0, 6, 2, math.pi / 2), 4 / 20),
    "half of it, turned by 30 degrees": ((0, 0, 4, 2, math.pi / 6), (math.sqrt(0.75), 0.5, 2, 2, math.pi / 6), 0.5),
    "width and height change places": ((3, 4, 6, 2, 0.4), (3, 4, 2, 6, 0.4 + math.pi / 2), 1),
    "upright boxes": ((5, 5, 4, 4, 0), (7, 6, 4, 4, 0), 6 / 26),
    "inside": ((0, 0, 8, 8, 0.2), (0.5, 0.5, 1, 2, 1.1), 2 / 64),
}


@pytest.mark.parametrize(("detection", "truth", "expected"), HAND.values(), ids=HAND)
def test_values_by_hand(detection, truth, expected):
    ((_, _, value),) = overlaps([boxes(detection)], [boxes(truth)])
    assert value == pytest.approx(expected, rel=1e-14)
    assert overlaps([boxes(truth)], [boxes(detection)]) == [(0, 0, value)]


def test_crowd_divides_by_the_detection():
    found, crowd = (0.5, 0, 1, 1, 0), (1, 0, 1, 4, 0)
    assert overlaps([boxes(found)], [boxes(crowd)], [True]) == [(0, 0, 0.5)]
    ((_, _, value),) = overlaps([boxes((3e4, 1e4, 1e-3, 1e-3, 0.3))], [boxes((0, 0, 1e5, 1e5, 1.0))], [True])
    assert value == pytest.approx(1, rel=1e-7)


def test_equal_boxes_overlap_by_exactly_one():
    rng = np.random.default_rng(1)
    rows = np.column_stack([rng.normal(size=(200, 2)) * 1e6, rng.exponential(size=(200, 2)), rng.uniform(-9, 9, 200)])
    images = [boxes(row) for row in rows]
    assert overlaps(images, images) == [(i, i, 1.0) for i in range(200)]
    rows = rows[:, [0, 1, 3, 2, 4]] + [0, 0, 0, 0, math.pi / 2]  # the same boxes, their sides named the other way
    values = np.array([value for _, _, value in overlaps(images, [boxes(row) for row in rows])])
    assert len(values) == 200
    assert ((values > 1 - 1e-12) & (values <= 1)).all()


def test_no_overlap():
    """Upright boxes that touch, boxes without an area, boxes apart whose upright boxes meet."""
    box = (0, 0, 2, 2, 0)
    for other in (
        (2, 0, 2, 2, 0),
        (2, 2, 2, 2, 0),
        (0, 0, 0, 2, 0.3),
        (0, 0, 2, 0, 0),
        (0, 0, 0, 0, 0),
        (9, 9, 2, 2, 1),
    ):
        assert overlaps([boxes(box)], [boxes(other)]) == []
        assert overlaps([boxes(other)], [boxes(box)]) == []
    assert overlaps([boxes((0, 0, 0, 0, 0))], [boxes((0, 0, 0, 0, 0))]) == []
    assert overlaps([boxes((0, 0, 10, 1, TURN))], [boxes((3, -3, 10, 1, TURN))]) == []


def test_boxes_that_touch_share_at_most_rounding():
    for angle in np.linspace(0, 3, 50):
        step = 2 * np.array([math.cos(angle), math.sin(angle)])
        rows = overlaps([boxes((0, 0, 2, 2, angle))], [boxes((*step, 2, 2, angle))])
        assert all(value < 1e-14 for _, _, value in rows)


def test_area_and_upright_box():
    read = read_oriented("preds", [{"boxes": boxes((1, 2, 4, 2, 0), (0, 0, 2, 2, TURN), (0, 0, 4, 2, math.pi / 2))}])
    assert read.area.tolist() == [8, 4, 8]
    expected = torch.tensor([[-1, 1, 4, 2], [-(2**0.5), -(2**0.5), 8**0.5, 8**0.5], [-1, -2, 2, 4]])
    torch.testing.assert_close(read.box, expected.double())


def test_dtypes_and_empty_images():
    images = [
        torch.zeros(0),
        torch.zeros(0, 5),
        torch.tensor([[0, 0, 2, 2, 0]]),
        torch.tensor([[0, 0, 2, 2, 0.0]]).half(),
    ]
    read = read_oriented("preds", [{"boxes": value} for value in images])
    assert read.counts.tolist() == [0, 0, 1, 1]
    assert read.rows.dtype == np.float64
    assert overlaps(images, images) == [(0, 0, 1.0), (1, 1, 1.0)]


BAD = {
    "no key": ({}, r"must hold the key 'boxes', got \[\]"),
    "an array": ({"boxes": np.zeros((1, 5))}, "must be a torch.Tensor, got ndarray"),
    "four columns": ({"boxes": torch.zeros(1, 4)}, r"must have the shape \(n, 5\), got \(1, 4\)"),
    "NaN": ({"boxes": boxes((0, 0, 1, 1, 0), (0, 0, 1, 1, math.nan))}, "must be finite, .* in row 1"),
    "infinite": ({"boxes": boxes((math.inf, 0, 1, 1, 0))}, "must be finite, .* in row 0"),
    "negative width": ({"boxes": boxes((0, 0, -1, 1, 0))}, "a width and a height >= 0, got .* in row 0"),
    "rounded integers": ({"boxes": torch.tensor([[2**53 + 1, 0, 1, 1, 0]])}, r"of at most 2\^53"),
}


@pytest.mark.parametrize(("image", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused(image, message):
    with pytest.raises(ValueError, match=message) as error:
        read_oriented("target", [{"boxes": boxes((0, 0, 1, 1, 0))}, image])
    assert "target[1]" in str(error.value)
