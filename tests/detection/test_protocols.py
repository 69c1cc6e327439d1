"""VOC, LVIS and Open Images against plain loops, published numbers and other tools; the protocol record itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import oracle_voc
import pytest
import torch
from oracle_coco import found, random_scene, scene, true

from map_metrics.detection.matching import Overlaps
from map_metrics.detection.overlap import box_overlap
from map_metrics.detection.protocols import COCO, LVIS, OPEN_IMAGES, PROTOCOLS, VOC2007, VOC2012, Protocol
from map_metrics.detection.summary import evaluate, overlaps_by_cell, per_class, summarize

B10, FAR = (0, 0, 10, 10), (50, 50, 10, 10)
DATA = Path(__file__).parents[1] / "data" / "detection"
EXPECTED = json.loads((DATA / "expected_values.json").read_text())


def mark(truths, difficult):
    return truths._replace(ignore=torch.tensor(difficult, dtype=torch.bool))


def value(protocol, detections, truths, key="map", **kwargs) -> float:
    return float(summarize(evaluate(detections, truths, protocol, **kwargs), protocol)[key])


def measured(detections, truths, *, inclusive=False) -> Overlaps:
    """Every overlap above 0 of two rows of one image."""
    d, t = (detections.image[:, None] == truths.image).nonzero(as_tuple=True)
    more = torch.tensor([0, 0, 1, 1]) * inclusive
    overlap = box_overlap(detections.box[d] + more, truths.box[t] + more, truths.crowd[t])
    return Overlaps(d[overlap > 0], t[overlap > 0], overlap[overlap > 0])


def assert_same_tables(ours, theirs):
    for column, other in zip(ours, theirs, strict=True):
        assert torch.equal(column, other)


# --- the record -------------------------------------------------------------------------------------------------------


def test_protocols_by_name():
    assert {name: record.name for name, record in PROTOCOLS.items()} == {
        name: name for name in ("coco", "coco-keypoints", "voc2007", "voc2012", "lvis", "openimages")
    }


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("iou_thresholds", ()),
        ("recall_thresholds", (1.5,)),
        ("recall_thresholds", "x"),
        ("max_detections", (0,)),
        ("max_detections", None),
        ("cap_per", "batch"),
        ("assign", "greedy"),
        ("strict", 1),
        ("inclusive", None),
        ("federated", "yes"),
        ("ignored", "difficult"),
        ("ignored", (1,)),
        ("epsilon", -1.0),
        ("epsilon", float("nan")),
        ("epsilon", True),
        ("group_weight", 0.5),
        ("group_weight", 1),  # COCO's assignment knows no groups that count
        ("absent", "one"),
    ],
)
def test_a_wrong_field_is_named(field, wrong):
    with pytest.raises(ValueError, match=f"`{field}`"):
        replace(COCO, **{field: wrong})


def test_keys_are_constant():
    def keys(protocol: Protocol) -> list[str]:
        return list(summarize(evaluate(*scene([], []), protocol), protocol))

    assert keys(VOC2007) == keys(VOC2012) == keys(OPEN_IMAGES) == ["map", "map_50", "map_75", "mar"]
    sizes = ["small", "medium", "large"]
    maps, mars = ([f"{kind}_{size}" for size in sizes] for kind in ("map", "mar"))
    assert keys(LVIS) == ["map", "map_50", "map_75", *maps, "mar_300", *mars]


# --- PASCAL VOC -------------------------------------------------------------------------------------------------------


def test_no_second_best_truth():  # D06
    rows = scene(found((B10, 0.9), ((1, 0, 10, 10), 0.8)), true(B10, (4, 0, 10, 10)))
    assert value(VOC2012, *rows) == 0.5
    assert value(VOC2007, *rows) == pytest.approx(6 / 11, abs=1e-12)
    assert value(COCO, *rows, key="map_50") == pytest.approx(1.0, abs=1e-12)


def test_inclusive_pixels():  # D07, by corners (10, 10, 19, 19) and (10, 10, 19, 14)
    rows = scene(found(((10, 10, 9, 4), 0.9)), true((10, 10, 9, 9)))
    assert value(VOC2012, *rows) == 1.0
    assert value(replace(VOC2012, strict=True), *rows) == 0.0
    assert value(replace(VOC2012, inclusive=False), *rows) == 0.0
    [overlap] = overlaps_by_cell(*rows, VOC2012).values()
    assert float(overlap) == 0.5
    [overlap] = overlaps_by_cell(*rows, replace(VOC2012, inclusive=False)).values()
    assert float(overlap) == pytest.approx(4 / 9)


def test_difficult():  # D08
    detections, truths = scene(found((B10, 0.9), (B10, 0.8), (FAR, 0.7)), true(B10, FAR))
    tables = evaluate(detections, mark(truths, [True, False]), VOC2012)
    assert tables.precision.tolist() == [[[[[1.0]]]]]
    assert tables.num_truths.tolist() == [1]
    assert value(VOC2012, detections, truths) == pytest.approx(5 / 6)


def test_interpolations():  # D25
    boxes = [(20 * i, 0, 10, 10) for i in range(7)]
    rows = scene(found(*((box, 0.9 - i / 10) for i, box in enumerate(boxes))), true(*(boxes[i] for i in (0, 2, 5))))
    assert value(VOC2007, *rows) == pytest.approx(8 / 11, abs=1e-12)
    assert value(VOC2012, *rows) == pytest.approx((1 + 2 / 3 + 1 / 2) / 3, abs=1e-12)
    assert value(COCO, *rows) == pytest.approx(0.7228, abs=5e-5)


def test_eleven_levels_are_those_of_numpy():
    boxes = [(20 * i, 0, 10, 10) for i in range(10)]
    rows = scene(found(*((box, 0.9) for box in boxes[:3])), true(*boxes))
    assert value(VOC2007, *rows) == pytest.approx(3 / 11, abs=1e-12)


def test_scores_without_levels_are_those_of_the_last_hit():
    rows = scene(found((B10, 0.9), (FAR, 0.4), ((90, 0, 5, 5), 0.1)), true(B10, FAR))
    assert evaluate(*rows, VOC2012).scores.tolist() == [[[[[0.4]]]]]
    assert evaluate(*scene([], true(B10)), VOC2012).scores.tolist() == [[[[[0.0]]]]]


def test_no_cap():
    boxes = [(20 * i, 0, 10, 10) for i in range(400)]
    rows = scene(found(*((box, 0.9) for box in boxes)), true(*boxes))
    assert value(VOC2012, *rows) == value(VOC2012, *rows, key="mar") == 1.0


@pytest.mark.parametrize("seed", range(200))
def test_voc_equals_plain_loops(seed):
    rng = np.random.default_rng([seed, 1])
    detections, truths, *_ = random_scene(seed)
    truths = truths._replace(crowd=torch.zeros_like(truths.crowd))
    truths = mark(truths, (rng.random(len(truths.label)) < rng.choice([0, 0.3])).tolist())
    levels = [VOC2007.recall_thresholds, ()][seed % 2]
    thresholds = [(0.5,), (0.5, 0.3), (0.1, 0.6, 0.75), (0.0, 0.5)][rng.integers(4)]
    strict, inclusive = (bool(x) for x in rng.integers(0, 2, 2))
    protocol = replace(VOC2012, recall_thresholds=levels, iou_thresholds=thresholds, strict=strict, inclusive=inclusive)
    tables = evaluate(detections, truths, protocol)
    plain = oracle_voc.rows(detections, truths)
    for t, threshold in enumerate(thresholds):
        for c, label in enumerate(tables.classes.tolist()):
            expected = oracle_voc.average_precision(
                *plain, label, threshold=threshold, levels=levels, strict=strict, inclusive=inclusive
            )
            ours = float(tables.precision[t, :, c, 0, 0].mean())
            assert ours == pytest.approx(-1.0 if expected is None else expected, abs=1e-12)
    if min(thresholds) > 0 or strict:
        nowhere = detections._replace(box=torch.zeros_like(detections.box))
        overlaps = measured(detections, truths, inclusive=inclusive)
        assert_same_tables(evaluate(nowhere, truths, protocol, overlaps=overlaps), tables)


def read(folder: Path, scored: bool) -> list[list[Any]]:
    """[file name, class, score, four numbers] of each line."""
    lines = [(path.stem, line.split()) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
    return [[name, words[0], float(words[1]) if scored else 1.0, *map(float, words[-4:])] for name, words in lines]


def published(name: str, truths: str, detections: str, *, corners: bool) -> tuple[Any, Any, list[str]]:
    """Rows of a folder of text files, and the names of the classes by label."""
    found_rows, true_rows = read(DATA / name / detections, True), read(DATA / name / truths, False)
    images, names = (sorted({row[i] for row in found_rows + true_rows}) for i in (0, 1))

    def place(row: list[Any]) -> tuple[int, int, tuple[float, ...]]:
        x, y, w, h = row[3:]
        return images.index(row[0]), names.index(row[1]), (x, y, w - x, h - y) if corners else (x, y, w, h)

    detected = [(image, label, row[2], box) for row in found_rows for image, label, box in [place(row)]]
    truth = [(*place(row), False, 1.0) for row in true_rows]
    return *scene(detected, truth), names


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.75])
def test_padilla(threshold):
    detections, truths, _ = published("padilla7", "groundtruths", "detections", corners=False)
    assert (len(detections.label), len(truths.label)) == (24, 15)
    for protocol, key in ((VOC2012, "all"), (VOC2007, "p11")):
        expected = EXPECTED["padilla7/voc_plus1"][str(threshold)][key]
        ours = value(replace(protocol, iou_thresholds=(threshold,)), detections, truths)
        assert ours == pytest.approx(expected, abs=1e-12)


def test_cartucho():
    detections, truths, names = published("cartucho", "ground-truth", "detection-results", corners=True)
    expected = EXPECTED["cartucho/voc_plus1_all"]
    tables = evaluate(detections, truths, VOC2012)
    assert float(summarize(tables, VOC2012)["map"]) == pytest.approx(expected["mAP"], abs=1e-12)
    by_name = dict(zip((names[label] for label in tables.classes), per_class(tables)[0].tolist(), strict=True))
    ours = {name: ap for name, ap in by_name.items() if ap != -1}  # the tool never lists a class without ground truth
    assert ours == pytest.approx(expected["per_class"], abs=1e-12)
