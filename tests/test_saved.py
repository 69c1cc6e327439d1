"""Saved states: the same bits again, other numbers without the model, and refusals that name what differs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from cases import CASES, assert_same

from map_metrics import DetectionMAP, HashingMAPAtK, RetrievalMAP
from map_metrics.saved import read_state


def boxes_metric(**kwargs) -> DetectionMAP:
    metric = DetectionMAP(**kwargs)
    rng = torch.Generator().manual_seed(0)
    for image in range(6):
        corner = torch.rand((8, 2), generator=rng) * 50
        box = torch.cat([corner, corner + 10 + torch.rand((8, 2), generator=rng) * 40], 1)
        labels = torch.randint(0, 3, (8,), generator=rng)
        preds = {"boxes": box + 3, "scores": torch.rand(8, generator=rng), "labels": labels}
        metric.update([preds], [{"boxes": box, "labels": labels, "image_id": image}])
    return metric


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_same_bits_again(tmp_path, case):
    metric = case.make()
    for batch in case.batches(0):
        metric.update(**batch)
    metric.save(tmp_path / "state", note={"names": {"1": "a"}})
    other = case.make()
    assert other.load(tmp_path / "state") == {"names": {"1": "a"}}
    assert_same(other.compute(), metric.compute())
    assert other.update_called
    for batch in case.batches(1):  # and it goes on
        metric.update(**batch)
        other.update(**batch)
    assert_same(other.compute(), metric.compute())


def test_another_protocol_without_the_model(tmp_path):
    boxes_metric().save(tmp_path / "state")
    for options in ({"protocol": "voc2012"}, {"iou_thresholds": [0.3], "average": "micro"}, {"class_metrics": True}):
        other = DetectionMAP(**options)
        other.load(tmp_path / "state")
        assert_same(other.compute(), boxes_metric(**options).compute())


def test_the_loaded_rows_replace_the_others(tmp_path):
    metric = boxes_metric()
    metric.save(tmp_path / "state")
    value = metric.compute()
    metric.update([{"boxes": torch.zeros(1, 4), "scores": torch.ones(1), "labels": torch.ones(1).long()}], [EMPTY])
    assert metric.result().num_images == 7
    metric.load(tmp_path / "state")
    assert_same(metric.compute(), value)


EMPTY = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long()}


def test_an_empty_state(tmp_path):
    RetrievalMAP().save(tmp_path / "state")
    metric = RetrievalMAP()
    metric.load(tmp_path / "state")
    assert not metric.update_called
    assert len(metric.table("items")) == 0


@pytest.mark.parametrize(
    ("saved", "loaded", "message"),
    [
        (RetrievalMAP(), DetectionMAP(), "holds a state of RetrievalMAP, not of DetectionMAP"),
        (RetrievalMAP(), RetrievalMAP(largest=False), "`largest` is True there and False here"),
        (DetectionMAP(), DetectionMAP("xywh"), "`box_format` is 'xyxy' there and 'xywh' here"),
        (DetectionMAP(), DetectionMAP(iou_type="segm"), r"`iou_types` is \['bbox'\] there and \['segm'\] here"),
        (
            DetectionMAP(class_names=["a"]),
            DetectionMAP(class_names=["b", "c"]),
            r"`labels` is \[0\] there and \[0, 1\]",
        ),
        (HashingMAPAtK(), HashingMAPAtK(packed=True), "`packed` is False there and True here"),
    ],
)
def test_other_arguments_are_refused_by_name(tmp_path, saved, loaded, message):
    saved.save(tmp_path / "state")
    with pytest.raises(ValueError, match=message):
        loaded.load(tmp_path / "state")


def test_files_that_are_no_states(tmp_path):
    path = tmp_path / "state"
    boxes_metric().save(path)
    whole = path.read_bytes()
    header = {"format": "map-metrics state", "version": 2, "metric": "DetectionMAP", "config": {}, "note": {}}
    contents = {
        "text": b"nothing",
        "empty": b"",
        "cut": whole[:-100],
        "flipped": whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:],
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    np.savez(tmp_path / "later.npz", header=np.array(json.dumps(header)))
    np.savez(tmp_path / "other.npz", header=np.array("{}"))
    np.savez(tmp_path / "bare.npz", a=np.zeros(1))
    np.savez(tmp_path / "objects.npz", header=np.array([{}], dtype=object))
    metric = boxes_metric()
    value = metric.compute()
    for name in (*contents, "later.npz", "other.npz", "bare.npz", "objects.npz"):
        with pytest.raises(ValueError, match=f"{name}: must be a state that `save` wrote"):
            metric.load(tmp_path / name)
    assert_same(metric.compute(), value)


def test_a_table_that_is_missing_or_of_another_kind(tmp_path):
    path = tmp_path / "state"
    boxes_metric().save(path)
    with np.load(path) as arrays:
        content = dict(arrays)
    for change in ({"truths": np.zeros((2, 3), np.int64)}, {"truths": np.zeros((2, 7))}, {"truths": None}):
        changed = {name: array for name, array in (content | change).items() if array is not None}
        with path.open("wb") as file:
            np.savez(file, **changed)
        with pytest.raises(ValueError, match="the table `truths` is missing or broken"):
            DetectionMAP().load(path)


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "state"
    boxes_metric().save(path)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        boxes_metric().save(path, note={"a": object()})
    assert path.read_bytes() == before
    metric = boxes_metric()
    metric.table = lambda name: 1 / 0
    with pytest.raises(ZeroDivisionError):
        metric.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]
    assert read_state(path)[0].metric == "DetectionMAP"
