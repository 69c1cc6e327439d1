"""VOC, LVIS and Open Images against plain loops, published numbers and other tools; the protocol record itself."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import hotcoco
import numpy as np
import oracle_openimages
import oracle_voc
import pytest
import torch
from oracle_coco import annotations, found, images_and_categories, random_scene, scene, true
from oracle_lvis import dataset, hotcoco_lvis, lvis_api

from map_metrics.detection.hierarchy import ancestors, expand
from map_metrics.detection.matched import overlaps_by_cell
from map_metrics.detection.matching import NEGATIVE, NOT_EXHAUSTIVE, POSITIVE, ImageLabels, Overlaps
from map_metrics.detection.overlap import box_overlap
from map_metrics.detection.protocols import COCO, LVIS, OPEN_IMAGES, PROTOCOLS, VOC2007, VOC2012, Protocol
from map_metrics.detection.summary import evaluate, per_class, summarize

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
    boxes = ((rows.box[row] + more).numpy().T for rows, row in ((detections, d), (truths, t)))
    overlap = torch.from_numpy(box_overlap(*boxes, truths.crowd[t].numpy()))
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
        ("ties", "expected"),
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


# --- LVIS -------------------------------------------------------------------------------------------------------------


def federated_scene(seed):
    """Rows of a random scene without crowds; negative and not exhaustive classes by image; a frequency by class."""
    rng = np.random.default_rng([seed, 2])
    detections, truths, _, num_images, _ = random_scene(seed)
    detections, truths = (rows._replace(label=rows.label.abs() + 1) for rows in (detections, truths))
    detections = detections._replace(area=detections.box[:, 2] * detections.box[:, 3])
    truths = truths._replace(crowd=torch.zeros_like(truths.crowd))
    truths = mark(truths, (rng.random(len(truths.label)) < rng.choice([0, 0.3])).tolist())
    classes = sorted({*detections.label.tolist(), *truths.label.tolist()})
    negative, open_ended = ([[c for c in classes if rng.random() < 0.4] for _ in range(num_images)] for _ in "no")
    frequency = {label: "rcf"[rng.integers(3)] for label in classes}
    return detections, truths, num_images, negative, open_ended, frequency


def image_labels(negative, open_ended) -> ImageLabels:
    rows = [
        (image, label, kind)
        for kind, lists in ((NEGATIVE, negative), (NOT_EXHAUSTIVE, open_ended))
        for image, labels in enumerate(lists)
        for label in [*labels, 2**60]  # and one of a class that does not occur
    ]
    return ImageLabels(*torch.tensor(rows, dtype=torch.int64).view(-1, 3).unbind(1))


def assert_equals_tool(tool, detections, truths, num_images, negative, open_ended, frequency, cap):
    protocol = replace(LVIS, max_detections=(cap,))
    tables = evaluate(detections, truths, protocol, image_labels=image_labels(negative, open_ended))
    if not len(detections.label):  # which lvis-api cannot load
        assert set(tables.precision.unique().tolist()) <= {-1.0, 0.0}
        return
    data = dataset(detections, truths, num_images, negative, open_ended, frequency)
    precision, recall, printed = tool(*data, protocol)
    assert np.array_equal(tables.precision[..., -1].numpy(), precision)
    assert np.array_equal(tables.recall[..., -1].numpy(), recall)
    numbers = {name: float(number) for name, number in summarize(tables, protocol, frequency).items()}
    names = {"AP": "map", "AP50": "map_50", "AP75": "map_75", "APs": "map_small", "APm": "map_medium"}
    names |= {"APl": "map_large"} | {f"AP{group}": f"map_{group}" for group in set(frequency.values())}
    names |= {"AR@300": "mar_300", "ARs@300": "mar_small", "ARm@300": "mar_medium", "ARl@300": "mar_large"}
    for theirs, ours in names.items():
        if ours in numbers:
            assert numbers[ours] == pytest.approx(printed[theirs], abs=1e-12), theirs


@pytest.mark.parametrize("seed", range(150))
def test_lvis_equals_lvis_api(seed):
    detections, truths, *rest = federated_scene(seed)
    # the tool loads nothing of area 0, neither annotations nor results; here they count
    detections = type(detections)(*(column[detections.area > 0] for column in detections))
    truths = type(truths)(*(column[truths.area > 0] for column in truths))
    assert_equals_tool(lvis_api, detections, truths, *rest, [300, 300, 1, 4, 12][seed % 5])


@pytest.mark.parametrize("seed", range(150))
def test_lvis_equals_hotcoco(seed):
    detections, truths, *rest = federated_scene(seed)
    truths = mark(truths, [False] * len(truths.label))  # hotcoco does not honour the flag
    assert_equals_tool(hotcoco_lvis, detections, truths, *rest, [300, 300, 1, 4, 12][seed % 5])


@pytest.mark.parametrize("seed", range(40))
def test_caps_per_image_are_prefixes(seed):
    detections, truths, _, *lists, _ = federated_scene(seed)
    labels = image_labels(*lists)
    several = evaluate(detections, truths, replace(LVIS, max_detections=(2, 5, 300)), image_labels=labels)
    for m, cap in enumerate((2, 5, 300)):
        one = evaluate(detections, truths, replace(LVIS, max_detections=(cap,)), image_labels=labels)
        for name in ("precision", "scores", "recall"):
            assert torch.equal(getattr(several, name)[..., m], getattr(one, name)[..., 0])
    nowhere = detections._replace(box=torch.zeros_like(detections.box))
    overlaps = measured(detections, truths)
    stored = evaluate(
        nowhere, truths, replace(LVIS, max_detections=(2, 5, 300)), overlaps=overlaps, image_labels=labels
    )
    assert_same_tables(stored, several)


def test_federated_by_hand():
    other = ((80, 80, 5, 5), 0.95)
    rows = scene(found((B10, 0.5)) + found(other, label=2) + found(other, label=3), true(B10) + true(FAR, label=2))
    labels = ImageLabels(*torch.tensor([[0, 2, NOT_EXHAUSTIVE], [0, 4, NEGATIVE]]).unbind(1))
    tables = evaluate(*rows, LVIS, image_labels=labels)
    assert tables.classes.tolist() == [1, 2, 3]
    assert per_class(tables)[0].tolist() == pytest.approx([1.0, 0.0, -1.0], abs=1e-12)
    assert tables.num_detections.tolist() == [1, 1, 1]  # all that came, judged or not
    labels = ImageLabels(*torch.tensor([[1, 1, NOT_EXHAUSTIVE]]).unbind(1))
    rows = scene(found((B10, 0.5)) + found((B10, 0.9), image=1), true(B10))
    assert (evaluate(*rows, LVIS, image_labels=labels).scores[0, :, 0, 0, 0] == 0.5).all()  # dropped, not ignored


def test_a_detection_that_is_dropped_still_fills_the_cap():
    detections, truths = scene(found((FAR, 0.9), label=2) + found((B10, 0.8)), true(B10))
    assert value(replace(LVIS, max_detections=(1,)), detections, truths) == 0.0
    assert value(replace(LVIS, max_detections=(2,)), detections, truths) == pytest.approx(1.0)


def test_micro_caps_an_image_before_it_merges_classes():
    rows = scene(found((B10, 0.9), label=2) + found((B10, 0.9)), true(B10) + true(FAR, label=2))
    protocol = replace(LVIS, max_detections=(1,))
    assert evaluate(*rows, protocol, average="micro").recall[0, 0, 0, 0] == 0.5
    labelled = evaluate(*rows, protocol)
    assert (labelled.classes.tolist(), labelled.recall[0, :, 0, 0].tolist()) == ([1, 2], [0.0, 0.0])


def test_groups_of_classes():
    rows = scene(found((B10, 0.9)), true(B10) + true(FAR, label=2) + true(FAR, label=3))
    numbers = summarize(evaluate(*rows, LVIS), LVIS, {1: "r", 2: "r", 3: "f", 9: "c"})
    expected = {"map_c": -1.0, "map_f": 0.0, "map_r": 0.5}
    assert {name: round(float(numbers[name]), 12) for name in expected} == expected
    assert list(numbers)[6:9] == sorted(expected)


# --- Open Images ------------------------------------------------------------------------------------------------------

GROUP = (100, 100, 60, 60)


def grouped_scene(seed):
    """Rows of a random scene with groups and difficult ones; the scores of a class are distinct."""
    rng = np.random.default_rng([seed, 3])
    detections, truths, _, num_images, _ = random_scene(seed)
    truths = mark(truths, (rng.random(len(truths.label)) < rng.choice([0, 0.3])).tolist())
    ladder = torch.from_numpy(rng.permutation(len(detections.label)) / 100)
    return rng, detections._replace(score=ladder), truths, num_images


def known(rng, labels, num_images) -> tuple[ImageLabels, set[tuple[int, int]]]:
    rows = [
        (image, label, int(rng.integers(3))) for image in range(num_images) for label in labels if rng.random() < 0.5
    ]
    columns = torch.tensor(rows, dtype=torch.int64).view(-1, 3).unbind(1)
    return ImageLabels(*columns), {(image, label) for image, label, kind in rows if kind != NOT_EXHAUSTIVE}


@pytest.mark.parametrize("seed", range(200))
def test_open_images_equals_plain_loops(seed):
    rng, detections, truths, num_images = grouped_scene(seed)
    labels = sorted({*detections.label.tolist(), *truths.label.tolist()})
    image_labels, judged = known(rng, labels, num_images)
    image_labels = ImageLabels(*(column[image_labels.kind != NOT_EXHAUSTIVE] for column in image_labels))
    weight, thresholds = seed % 2, [(0.5,), (0.75, 0.2, 0.5)][seed % 3 == 0]
    protocol = replace(OPEN_IMAGES, group_weight=weight, iou_thresholds=thresholds, federated=seed % 4 < 3)
    tables = evaluate(detections, truths, protocol, image_labels=image_labels)
    plain = oracle_voc.rows(detections, truths)
    for t, threshold in enumerate(thresholds):
        for c, label in enumerate(tables.classes.tolist()):
            known_classes = judged if protocol.federated else None
            expected = oracle_openimages.average_precision(
                *plain, label, threshold=threshold, weight=weight, judged=known_classes
            )
            ours = float(tables.precision[t, 0, c, 0, 0])
            assert ours == pytest.approx(-1.0 if expected is None else expected, abs=1e-12)
    nowhere, overlaps = detections._replace(box=torch.zeros_like(detections.box)), measured(detections, truths)
    stored = evaluate(nowhere, truths, protocol, overlaps=overlaps, image_labels=image_labels)
    assert_same_tables(stored, tables)


def test_a_group_is_found_once_and_missed_once():
    inside = found(((105, 105, 10, 10), 0.9), ((120, 105, 10, 10), 0.8))
    group = true(GROUP, crowd=True)
    rows = scene(inside + found((B10, 0.7)), true(B10) + group)
    assert value(OPEN_IMAGES, *rows) == 1.0
    tables = evaluate(*rows, OPEN_IMAGES)
    assert (tables.num_truths.tolist(), tables.recall.flatten().tolist()) == ([2], [1.0])
    assert value(OPEN_IMAGES, *scene(found((B10, 0.7)), true(B10) + group)) == 0.5
    free = replace(OPEN_IMAGES, group_weight=0)
    assert value(free, *scene(found((B10, 0.7)), true(B10) + group)) == value(free, *rows) == 1.0


def test_a_single_object_comes_before_a_group():
    around = true((0, 0, 40, 40), crowd=True)
    twice = scene(found((B10, 0.9), (B10, 0.8)), true(B10) + around)
    assert evaluate(*twice, OPEN_IMAGES).recall.flatten().tolist() == [1.0]  # the second copy finds the group
    once = scene(found((B10, 0.9)), true(B10) + around)
    assert evaluate(*once, OPEN_IMAGES).recall.flatten().tolist() == [0.5]


def test_classes_that_were_not_verified_are_dropped():
    rows = scene(
        found((FAR, 0.9), image=0) + found((FAR, 0.8), image=1) + found((B10, 0.7), image=2), true(B10, image=2)
    )
    for kind, ap in ((NEGATIVE, 0.5), (POSITIVE, 0.5), (NOT_EXHAUSTIVE, 1.0)):
        labels = ImageLabels(*torch.tensor([[0, 1, kind], [1, 2, kind]]).unbind(1))
        assert value(OPEN_IMAGES, *rows, image_labels=labels) == ap
    assert value(OPEN_IMAGES, *rows) == 1.0
    assert value(replace(OPEN_IMAGES, federated=False), *rows) == pytest.approx(1 / 3)


def apart(truths):
    """The rows without those that touch an earlier one of their image."""
    kept: list[int] = []
    for i, image in enumerate(truths.image.tolist()):
        others = [k for k in kept if truths.image[k] == image]
        own = truths.box[[i]].expand(len(others), 4)
        if not box_overlap(own.numpy().T, truths.box[others].numpy().T, truths.crowd[others].numpy()).any():
            kept.append(i)
    return type(truths)(*(column[kept] for column in truths))


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.filterwarnings("ignore:hotcoco")  # that it knows no image-level labels
def test_open_images_equals_hotcoco(seed):
    rng, detections, truths, num_images = grouped_scene(seed)
    detections, truths = (rows._replace(label=rows.label.abs() + 1) for rows in (detections, truths))
    truths = mark(truths, [False] * len(truths.label))
    # Against TensorFlow's rule hotcoco falls back to the second best object, and its copies of groups come last.
    truths = apart(truths)
    labels = sorted({*detections.label.tolist(), *truths.label.tolist()})
    parents = {label: [other] for label, other in pairwise(labels) if rng.random() < 0.6}
    data = images_and_categories(detections, truths, num_images)
    true_rows, found_rows = annotations(detections, truths)
    for row in true_rows:
        row["is_group_of"] = row["iscrowd"]
    ground_truth = hotcoco.COCO({**data, "annotations": true_rows})
    hierarchy = hotcoco.Hierarchy.from_parent_map({label: above[0] for label, above in parents.items()})
    evaluation = hotcoco.COCOeval(
        ground_truth, ground_truth.load_res(found_rows), "bbox", oid_style=True, hierarchy=hierarchy
    )
    params = evaluation.params
    params.expand_dt, params.max_dets = bool(seed % 2), [10**6]
    evaluation.run()
    rows = expand(detections, truths, None, parents, expand_detections=bool(seed % 2))
    protocol = replace(OPEN_IMAGES, federated=False)
    tables = evaluate(rows.detections, rows.truths, protocol)
    ours = dict(zip(tables.classes.tolist(), per_class(tables)[0].tolist(), strict=True))
    theirs = {int(name): ap for name, ap in evaluation.results(per_class=True)["per_class"].items()}
    assert {label: ap for label, ap in ours.items() if ap != -1} == pytest.approx(theirs, abs=1e-12)


# --- the hierarchy ----------------------------------------------------------------------------------------------------


def test_ancestors_of_the_real_hierarchy():
    tree = json.loads((DATA / "oid" / "bbox_labels_600_hierarchy_mini.json").read_text())
    names: list[str] = []
    parents: dict[int, list[int]] = {}

    def walk(node: dict[str, Any], path: list[int]) -> None:
        if node["LabelName"] not in names:
            names.append(node["LabelName"])
        label = names.index(node["LabelName"])
        parents.setdefault(label, []).extend(path[-1:])
        for child in node.get("Subcategory", []):
            walk(child, [*path, label])

    for child in tree["Subcategory"]:  # without the root
        walk(child, [])
    found_above = ancestors(parents)
    assert len(names) > 20
    assert {label: set(above) for label, above in found_above.items()} == {
        label: oracle_openimages.above(label, parents) for label in range(len(names))
    }
    toy, bear = names.index("/m/0138tl"), names.index("/m/0kmg4")
    assert found_above[bear] == [toy]


def test_expansion_by_hand():
    parents = {3: [2], 4: [2, 1], 2: [1]}  # 4 stands under 1 twice
    detections, truths = scene(found((B10, 0.9), label=3) + found((FAR, 0.8), label=9), true(B10, label=4, crowd=True))
    labels = ImageLabels(*torch.tensor([[0, 3, POSITIVE], [0, 2, NEGATIVE], [1, 4, NOT_EXHAUSTIVE]]).unbind(1))
    rows = expand(detections, truths, labels, parents, expand_detections=True)
    assert rows.detections.label.tolist() == [3, 1, 2, 9]
    assert rows.detections.score.tolist() == [0.9, 0.9, 0.9, 0.8]
    assert (rows.truths.label.tolist(), rows.truths.crowd.tolist()) == ([4, 1, 2], [True] * 3)
    assert sorted(zip(*(column.tolist() for column in rows.image_labels), strict=True)) == sorted(
        [
            *((0, label, POSITIVE) for label in (3, 2, 1)),
            *((0, label, NEGATIVE) for label in (2, 3, 4)),
            (1, 4, NOT_EXHAUSTIVE),
        ]
    )
    kept = expand(detections, truths, None, parents)
    assert_same_tables(kept.detections, detections)
    assert kept.image_labels is None
    assert kept.overlaps is None


@pytest.mark.parametrize("parents", [{1: [1]}, {1: [2], 2: [3], 3: [1], 4: [1]}])
def test_a_cycle_is_refused(parents):
    with pytest.raises(ValueError, match="`parents` must be a hierarchy without cycles"):
        expand(*scene([], []), None, parents)


@pytest.mark.parametrize("seed", range(60))
def test_overlaps_expand_with_their_rows(seed):
    rng, detections, truths, num_images = grouped_scene(seed)
    labels = sorted({*detections.label.tolist(), *truths.label.tolist()})
    parents = {label: labels[i + 1 :][: rng.integers(3)] for i, label in enumerate(labels)}
    image_labels, _ = known(rng, labels, num_images)
    overlaps = measured(detections, truths)
    kwargs = {"expand_detections": bool(seed % 2)}
    rows = expand(detections, truths, image_labels, parents, **kwargs)
    nowhere = detections._replace(box=torch.zeros_like(detections.box))
    stored = expand(nowhere, truths, image_labels, parents, **kwargs, overlaps=overlaps)
    assert_same_tables(
        evaluate(*stored[:2], OPEN_IMAGES, overlaps=stored.overlaps, image_labels=stored.image_labels),
        evaluate(*rows[:2], OPEN_IMAGES, image_labels=rows.image_labels),
    )
    for label in labels:  # each image holds a class as often as it holds what stands below
        expected = sum(label == own or label in oracle_openimages.above(own, parents) for own in truths.label.tolist())
        assert int((rows.truths.label == label).sum()) == expected
    expected = {
        (image, other, kind)
        for image, label, kind in zip(*(column.tolist() for column in image_labels), strict=True)
        for other in labels
        if other == label
        or (kind == POSITIVE and other in oracle_openimages.above(label, parents))
        or (kind == NEGATIVE and label in oracle_openimages.above(other, parents))
    }
    assert {*zip(*(column.tolist() for column in rows.image_labels), strict=True)} == expected


# --- contested points -------------------------------------------------------------------------------------------------


def test_a_class_without_truths_can_count_as_zero():
    big = found(((0, 0, 40, 40), 0.9), label=2)
    rows = scene(found((B10, 0.5)) + big + found((B10, 0.9), label=3), true(B10) + true(FAR, crowd=True, label=3))
    zero = replace(COCO, absent="zero")
    assert value(COCO, *rows) == pytest.approx(1.0)
    assert value(zero, *rows) == pytest.approx(0.5)  # class 3 has a ground truth, if only a crowd
    assert value(zero, *rows, key="map_small") == pytest.approx(1.0)  # no detection of class 2 is small
    assert value(zero, *rows, key="map_medium") == 0.0
    assert value(zero, *rows, key="mar_100") == 1.0
    assert value(zero, *scene(big, [])) == 0.0
    assert value(replace(VOC2012, absent="zero"), *rows) == pytest.approx(0.5)


def test_strict_thresholds_under_the_rule_of_coco():
    rows = scene(found(((0, 0, 20, 10), 0.9), ((30, 0, 20, 11), 0.8)), true((0, 0, 20, 20), (30, 0, 20, 20)))
    strict = replace(COCO, iou_thresholds=(0.5, 0.55), strict=True)
    assert evaluate(*rows, strict).recall[:, 0, 0, -1].tolist() == [0.5, 0.0]
    assert evaluate(*rows, replace(strict, strict=False)).recall[:, 0, 0, -1].tolist() == [1.0, 0.5]


def test_nothing_exceeds_a_threshold_of_one():
    rows = scene(found((B10, 0.9)), true(B10))
    assert value(replace(COCO, iou_thresholds=(1.0,)), *rows) == pytest.approx(1.0)
    assert value(replace(COCO, iou_thresholds=(1.0,), strict=True), *rows) == 0.0


def tied_scene(seed):
    """One detection an image, which finds it or not, small or large, some on a crowd: no order changes a match."""
    rng = np.random.default_rng([seed, 4])
    found_rows, true_rows, points = [], [], []
    for image in range(int(rng.integers(1, 8))):
        score, kind = rng.integers(1, 4) / 4, rng.choice(["hit", "miss", "crowd"], p=[0.4, 0.4, 0.2])
        true_rows += true(B10, image=image, crowd=kind == "crowd") if kind != "miss" or rng.random() < 0.5 else []
        found_rows += found((FAR if kind == "miss" else B10, score), image=image)
        points += [(score, kind == "hit")] if kind != "crowd" else []
    return found_rows, true_rows, points


@pytest.mark.parametrize("seed", range(80))
def test_ties_are_bounds_over_all_orders(seed):
    found_rows, true_rows, points = tied_scene(seed)
    total = sum(not crowd for *_, crowd, _ in true_rows)
    orders = [sorted(order, key=lambda point: -point[0]) for order in permutations(points)]
    for protocol in (VOC2012, VOC2007, replace(COCO, epsilon=0.0)):
        levels = protocol.recall_thresholds
        aps = [-1.0]
        if total:
            curves = [oracle_voc.curve([hit for _, hit in order], total) for order in orders]
            aps = [oracle_voc.at_levels(*c, levels) if levels else oracle_voc.all_point(*c) for c in curves]
        rows = scene(found_rows, true_rows)
        for ties, bound in (("optimistic", max(aps)), ("pessimistic", min(aps))):
            assert value(replace(protocol, ties=ties), *rows) == pytest.approx(bound, abs=1e-12)


def test_ties_end_with_their_class():
    rows = scene(found((B10, 0.5)) + found((FAR, 0.5), (B10, 0.5), label=2), true(B10) + true(B10, label=2))
    for ties, second in (("optimistic", 1.0), ("pessimistic", 0.5)):
        assert per_class(evaluate(*rows, replace(VOC2012, ties=ties)))[0].tolist() == [1.0, second]


@pytest.mark.parametrize("seed", range(60))
def test_bounds_enclose_the_stable_order(seed):
    detections, truths, protocol, _, average = random_scene(seed)
    low, middle, high = (
        evaluate(detections, truths, replace(protocol, ties=ties), average=average)
        for ties in ("pessimistic", "stable", "optimistic")
    )
    assert (low.precision <= middle.precision).all()
    assert (middle.precision <= high.precision).all()
    assert torch.equal(low.recall, high.recall)
    spread = detections._replace(score=torch.randperm(len(detections.label), dtype=torch.float64))
    for ties in ("optimistic", "pessimistic"):
        assert_same_tables(
            evaluate(spread, truths, replace(protocol, ties=ties), average=average),
            evaluate(spread, truths, protocol, average=average),
        )


@pytest.mark.parametrize("seed", range(40))
def test_strict_is_the_next_threshold(seed):
    detections, truths, protocol, _, average = random_scene(seed)
    thresholds = tuple(t for t in protocol.iou_thresholds if t < 1)
    strict = evaluate(detections, truths, replace(protocol, iou_thresholds=thresholds, strict=True), average=average)
    above = replace(protocol, iou_thresholds=tuple(np.nextafter(thresholds, 2).tolist()))
    assert_same_tables(strict, evaluate(detections, truths, above, average=average))
