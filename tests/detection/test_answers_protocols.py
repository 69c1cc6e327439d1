"""The answers under every protocol: where they state a number that an evaluation states too, it is the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracle_coco import random_scene
from test_answers import part

from map_metrics.detection.evidence import Evidence
from map_metrics.detection.matching import ImageLabels
from map_metrics.detection.options import DetectionOptions
from map_metrics.detection.protocols import COCO, LVIS, OPEN_IMAGES, VOC2007, VOC2012
from map_metrics.detection.result import DetectionResult
from map_metrics.detection.summary import evaluate, summarize

PROTOCOLS = {
    "voc2007": VOC2007,
    "voc2012": VOC2012,
    "strict": replace(VOC2012, strict=True),
    "lvis": replace(LVIS, max_detections=(4,)),
    "openimages": OPEN_IMAGES,
    "zero": replace(COCO, absent="zero"),
    "optimistic": replace(COCO, ties="optimistic"),
    "pessimistic": replace(VOC2012, ties="pessimistic"),
    "area under COCO": replace(COCO, recall_thresholds=()),
}


def image_labels(detections, truths, num_images, rng) -> ImageLabels:
    labels = np.unique(np.concatenate([detections.label.numpy(), truths.label.numpy()]))
    size = 3 * num_images if len(labels) else 0
    image, label = rng.integers(0, num_images, size), rng.choice(labels, size) if size else np.zeros(0, dtype=np.int64)
    return ImageLabels(*(torch.from_numpy(column) for column in (image, label, rng.integers(0, 3, size))))


def result_of(detections, truths, labels, protocol, num_images, average) -> DetectionResult:
    ids, named = torch.arange(num_images) + 100, torch.ones(num_images, dtype=torch.bool)
    tables = evaluate(detections, truths, protocol, average=average, image_labels=labels)
    options = DetectionOptions.of("xywh", "bbox", None, None, None, False, False, average, protocol, *[None] * 5)
    evidence = Evidence(detections, truths, None, ids, named, labels)
    return DetectionResult(tables, tables, options, num_images, evidence=evidence)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("name", PROTOCOLS)
def test_answers_under_every_protocol(name, seed):
    detections, truths, _, num_images, average = random_scene(seed)
    rng, protocol = np.random.default_rng(seed), PROTOCOLS[name]
    truths = truths._replace(ignore=torch.from_numpy(rng.random(len(truths.label)) < 0.2))
    labels = image_labels(detections, truths, num_images, rng)
    average = "macro" if protocol.federated else average
    rows = detections, truths, labels
    result = result_of(*rows, protocol, num_images, average)
    for key, value in result.numbers.items():
        assert result.bootstrap(1, key=key).value == pytest.approx(float(value), abs=1e-12), key
    groups = torch.arange(num_images) % 2
    for group, numbers in result.by_slice(groups).items():
        kept = [part(side, groups[side.image] == group) for side in rows]
        fresh = result_of(*kept, protocol, num_images, average).numbers
        assert numbers == {k: float(v) for k, v in fresh.items()} | {"count": int((groups == group).sum())}
    for i, row in enumerate(result.per_image()):
        kept = [part(side, side.image == i) for side in rows]
        alone = result_of(*kept, protocol, num_images, average).numbers
        assert row["ap"] == pytest.approx(float(alone["map"]), abs=1e-12)
        assert row["true_positives"] + row["missed"] == row["ground_truths"]
    single = replace(protocol, iou_thresholds=(0.5,))
    errors = result.errors()
    assert errors.ap == pytest.approx(
        float(summarize(evaluate(*rows[:2], single, image_labels=labels), single)["map"]), abs=1e-12
    )
    wrong = sum(row["false_positives"] for row in result_of(*rows, protocol, num_images, "macro").per_image())
    assert sum(errors.counts[kind] for kind in list(errors.counts)[:5]) == wrong
    matrix = result.confusion_matrix(score=-10.0)
    assert int(matrix[:-1].sum()) == int((~(truths.crowd | truths.ignore)).sum())


@pytest.mark.parametrize("seed", range(10))
def test_groups_of_classes_in_slices_and_intervals(seed):
    detections, truths, _, num_images, _ = random_scene(seed)
    groups = {label: "ab"[i % 2] for i, label in enumerate(truths.label.unique().tolist())}
    options = DetectionOptions.of("xywh", "bbox", *[None] * 3, False, False, "macro", "lvis", None, groups, *[None] * 3)
    ids, named = torch.arange(num_images), torch.ones(num_images, dtype=torch.bool)
    evidence = Evidence(detections, truths, None, ids, named)
    tables = evaluate(detections, truths, LVIS)
    result = DetectionResult(tables, tables, options, num_images, evidence=evidence)
    whole = result.by_slice(["all"] * num_images)["all"]
    for name in groups.values():
        own = [row["ap"] for row in result.per_class() if groups.get(row["label"]) == name and row["ap"] > -1]
        expected = np.mean(own) if own else -1
        assert float(result.numbers[f"map_{name}"]) == pytest.approx(expected, abs=1e-12)
        assert whole[f"map_{name}"] == float(result.numbers[f"map_{name}"])
        interval = result.bootstrap(5, key=f"map_{name}")
        assert interval.value == pytest.approx(expected, abs=1e-12)
