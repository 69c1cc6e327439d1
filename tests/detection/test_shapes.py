"""DetectionMAP by masks, oriented boxes and keypoints: the whole way, against pycocotools and by hand."""

from __future__ import annotations

import contextlib
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pycocotools import mask as mask_utils
from pycocotools.coco import COCO as Dataset
from pycocotools.cocoeval import COCOeval

from map_metrics import DetectionMAP
from map_metrics.functional import detection_map

DATA = Path(__file__).parents[1] / "data" / "detection"
NAMES = ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"]


def quiet(call, *args):
    with contextlib.redirect_stdout(io.StringIO()):
        return call(*args)


def pycocotools(truth: dict, results: list[dict], iou_type: str, images: list[int]) -> COCOeval:
    dataset = Dataset()
    dataset.dataset = truth
    quiet(dataset.createIndex)
    evaluation = COCOeval(dataset, quiet(dataset.loadRes, results), iou_type)
    evaluation.params.imgIds = images
    for step in (evaluation.evaluate, evaluation.accumulate, evaluation.summarize):
        quiet(step)
    return evaluation


def sides(truth: dict, results: list[dict], read) -> tuple[list[dict], list[dict]]:
    """One dict per image of each side, with what ``read`` makes of its rows."""
    preds, target = [], []
    for image in truth["images"]:
        detected = [row for row in results if row["image_id"] == image["id"]]
        marked = [row for row in truth["annotations"] if row["image_id"] == image["id"]]
        labels = [torch.tensor([row["category_id"] for row in rows], dtype=torch.int64) for rows in (detected, marked)]
        scores = torch.tensor([row["score"] for row in detected], dtype=torch.float64)
        preds.append(read(detected, image) | {"labels": labels[0], "scores": scores})
        extra = {
            "iscrowd": torch.tensor([row["iscrowd"] for row in marked], dtype=torch.int64),
            "area": torch.tensor([row["area"] for row in marked], dtype=torch.float64),
            "image_id": image["id"],
        }
        target.append(read(marked, image) | {"labels": labels[1]} | extra)
    return preds, target


def masks(rows: list[dict], image: dict) -> dict:
    """Codes and polygons as the files have them."""
    return {"masks": [row["segmentation"] for row in rows], "size": (image["height"], image["width"])}


def dense(rows: list[dict], image: dict) -> dict:
    size = image["height"], image["width"]
    codes = []
    for row in rows:
        code = row["segmentation"]
        if isinstance(code, list):
            code = mask_utils.merge(mask_utils.frPyObjects(code, *size))
        elif isinstance(code["counts"], list):
            code = mask_utils.frPyObjects(code, *size)
        codes.append(torch.from_numpy(mask_utils.decode([code])[..., 0]))
    return {"masks": torch.stack(codes) if codes else torch.zeros(0, *size, dtype=torch.uint8)}


def boxes(rows: list[dict], _: dict) -> dict:
    return {"boxes": torch.tensor([row["bbox"] for row in rows], dtype=torch.float64).view(-1, 4)}


def coco100(read, results: str = "segm") -> tuple[list[dict], list[dict]]:
    truth = json.loads((DATA / "coco100" / "instances_val2014_100.json").read_text())
    rows = json.loads((DATA / "coco100" / f"instances_val2014_fake{results}100_results.json").read_text())
    return sides(truth, rows, read)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools' decode
@pytest.mark.parametrize("read", [masks, dense])
def test_coco100_by_masks(read):
    """D21: all twelve numbers to the last bit, in batches, some images twice."""
    preds, target = coco100(read)
    metric = DetectionMAP(iou_type="segm")
    for start in range(0, 100, 16):
        batch = [*range(start, min(start + 16, 100)), *range(start % 3)]
        metric.update([preds[i] for i in batch], [target[i] for i in batch])
    expected = json.loads((DATA / "expected_values.json").read_text())["coco100/segm"]
    assert [float(number) for number in metric.compute().values()] == [expected[name] for name in NAMES]
    assert float(metric.compute()["map"]) == 0.3195452758576433
    assert metric.result().num_images == 100


def test_boxes_and_masks_at_once_are_both():
    truth = json.loads((DATA / "coco100" / "instances_val2014_100.json").read_text())
    rows = json.loads((DATA / "coco100" / "instances_val2014_fakesegm100_results.json").read_text())
    for row in rows:
        row["bbox"] = mask_utils.toBbox(row["segmentation"]).tolist()
    preds, target = sides(truth, rows, lambda rows, image: masks(rows, image) | boxes(rows, image))
    options = {"box_format": "xywh", "class_metrics": True, "extended_summary": True}
    metric = DetectionMAP(iou_type=("bbox", "segm"), **options)
    metric.update(preds, target)
    value, results = metric.compute(), metric.result()
    assert list(results) == ["bbox", "segm"]
    for iou_type in ("bbox", "segm"):
        alone = detection_map(preds, target, iou_type=iou_type, **options)
        for key, number in alone.items():
            ours = value[key if key == "classes" else f"{iou_type}_{key}"]
            if key == "ious":
                assert ours.keys() == number.keys()
                assert all(torch.equal(ours[cell], number[cell]) for cell in number)
            else:
                assert torch.equal(ours, number)
        assert float(results[iou_type].numbers["map"]) == float(alone["map"])
    assert len(value) == 2 * len(alone) - 1
    one = DetectionMAP(iou_type=["bbox", "segm"], output="segm_map", box_format="xywh")
    one.update(preds, target)
    assert float(one.compute()) == 0.3195452758576433


def random_masks(rng: np.random.Generator, number: int) -> tuple[dict, list[dict]]:
    """A data set of small masks, often alike, some of them crowds or empty."""
    truth: dict = {"images": [], "annotations": [], "categories": [{"id": c} for c in (1, 2, 5)]}
    results = []
    for image in range(1, 4):
        h, w = (int(x) for x in rng.integers(3, 60, 2))
        truth["images"].append({"id": image * 7, "height": h, "width": w})

        def blob(h=h, w=w):
            y, x, b, r = rng.integers(0, h), rng.integers(0, w), rng.integers(1, h + 1), rng.integers(1, w + 1)
            mask = np.zeros((h, w), np.uint8)
            mask[y : y + b, x : x + r] = rng.random((h, w))[y : y + b, x : x + r] < rng.choice([0.3, 0.9, 1.0])
            return mask

        pool = [blob() for _ in range(6)]
        for _ in range(rng.integers(0, 8)):
            code = mask_utils.encode(np.asfortranarray(pool[rng.integers(6)]))
            area = float(rng.choice([mask_utils.area(code), 1024.0]))
            row = {"id": len(truth["annotations"]) + 1, "image_id": image * 7, "segmentation": code, "area": area}
            row |= {"bbox": mask_utils.toBbox(code).tolist(), "iscrowd": int(rng.random() < 0.2)}
            truth["annotations"].append(row | {"category_id": int(rng.choice([1, 2]))})
        for _ in range(rng.integers(0, 12)):
            near = pool[rng.integers(6)] ^ (rng.random((h, w)) < rng.choice([0.0, 0.05])).astype(np.uint8)
            row = {"image_id": image * 7, "segmentation": mask_utils.encode(np.asfortranarray(near))}
            results.append(row | {"category_id": int(rng.choice([1, 2, 5])), "score": float(rng.integers(0, 5)) / 4})
    return truth, results


@pytest.mark.parametrize("seed", range(60))
def test_masks_give_the_tables_of_pycocotools(seed):
    truth, results = random_masks(np.random.default_rng(seed), seed)
    if not results or not truth["annotations"]:
        truth, results = random_masks(np.random.default_rng(seed + 1000), seed)
    evaluation = pycocotools(truth, results, "segm", [7, 14, 21])
    preds, target = sides(truth, results, masks)
    metric = DetectionMAP(iou_type="segm")
    for i in (2, 0, 1):
        metric.update(preds[i : i + 1], target[i : i + 1])
    result = metric.result()
    present = [evaluation.params.catIds.index(label) for label in result.classes.tolist()]
    for name in ("precision", "scores"):
        np.testing.assert_array_equal(getattr(result, name).numpy(), evaluation.eval[name][:, :, present])
    np.testing.assert_array_equal(result.recall.numpy(), evaluation.eval["recall"][:, present])


# --- keypoints --------------------------------------------------------------------------------------------------------


def poses(rows: list[dict], _: dict) -> dict:
    return {"keypoints": torch.tensor([row["keypoints"] for row in rows], dtype=torch.float64).view(-1, 17, 3)} | (
        boxes(rows, _) if rows and "bbox" in rows[0] else {}
    )


def keypoint_files() -> tuple[dict, list[dict]]:
    files = sorted((DATA / "keypoints").glob("*.json"))
    loaded = [json.loads(file.read_text()) for file in files]
    truth = next(data for data in loaded if isinstance(data, dict))
    return truth, next(data for data in loaded if isinstance(data, list))


def test_keypoints_of_coco():
    truth, results = keypoint_files()
    preds, target = sides(truth, results, poses)
    metric = DetectionMAP(iou_type="keypoints", box_format="xywh")
    metric.update(preds, target)
    value = metric.compute()
    evaluation = pycocotools(truth, results, "keypoints", sorted(image["id"] for image in truth["images"]))
    names = ["map", "map_50", "map_75", "map_medium", "map_large", "mar_20", "mar_medium", "mar_large"]
    assert list(value) == names
    ours = [float(number) for number in value.values()]
    assert ours == [*evaluation.stats[:5], evaluation.stats[5], *evaluation.stats[8:]]
    assert round(ours[0], 7) == 0.8608896
    np.testing.assert_array_equal(metric.result().precision.numpy(), evaluation.eval["precision"])


@pytest.mark.parametrize("seed", range(40))
def test_poses_give_the_tables_of_pycocotools(seed):
    rng = np.random.default_rng(seed)
    truth: dict = {"images": [{"id": i} for i in (1, 2, 3)], "annotations": [], "categories": [{"id": 1}]}
    results = []
    for image in (1, 2, 3):
        for _ in range(rng.integers(0, 5)):
            xy, seen = rng.integers(0, 60, (17, 2)) + rng.integers(0, 3, 2) * 80, rng.integers(0, 3, 17)
            seen *= rng.random() < 0.85  # some without a labeled keypoint
            row = {"id": len(truth["annotations"]) + 1, "image_id": image, "category_id": 1}
            row |= {"keypoints": np.c_[xy, seen].ravel().tolist(), "num_keypoints": int((seen > 0).sum())}
            corner, side = xy.min(0), np.ptp(xy, 0)
            row |= {"bbox": [*corner.tolist(), *side.tolist()], "area": float(rng.choice([500, 2000, 9216, 20000]))}
            truth["annotations"].append(row | {"iscrowd": int(rng.random() < 0.15)})
            for _ in range(rng.integers(0, 3)):
                moved = xy + rng.normal(size=(17, 2)) * rng.choice([1, 4, 12])
                found = {"image_id": image, "category_id": 1, "score": float(rng.integers(0, 6)) / 8}
                results.append(found | {"keypoints": np.c_[moved, np.ones(17)].ravel().tolist()})
    if not results:
        return
    evaluation = pycocotools(truth, results, "keypoints", [1, 2, 3])
    result = DetectionMAP(iou_type="keypoints", box_format="xywh")
    result.update(*sides(truth, results, poses))
    tables = result.result()
    np.testing.assert_array_equal(tables.precision.numpy(), evaluation.eval["precision"])
    np.testing.assert_array_equal(tables.recall.numpy(), evaluation.eval["recall"])
    np.testing.assert_array_equal(tables.scores.numpy(), evaluation.eval["scores"])


def test_other_keypoints_have_their_own_sigmas():
    pose = torch.tensor([[[10.0, 10, 2], [14, 10, 2]]])
    label = torch.tensor([1])
    moved = pose + torch.tensor([2.0, 0, 0])
    preds = [{"keypoints": moved, "scores": torch.tensor([0.9]), "labels": label}]
    target = [{"keypoints": pose, "labels": label, "area": torch.tensor([100.0])}]
    for sigma in (0.1, 0.2):
        similarity = math.exp(-4 / (2 * (2 * sigma) ** 2 * 100))
        value = detection_map(preds, target, iou_type="keypoints", sigmas=[sigma, sigma])
        assert float(value["map"]) == pytest.approx(sum(similarity >= 0.5 + 0.05 * i for i in range(10)) / 10)
    with pytest.raises(ValueError, match=r"target\[0\] must hold 'area' or 'boxes'"):
        detection_map(preds, [{"keypoints": pose, "labels": label}], iou_type="keypoints", sigmas=[0.1, 0.1])
    with pytest.raises(ValueError, match="`sigmas` needs iou_type='keypoints'"):
        DetectionMAP(sigmas=[0.1])
    for bad in ([], [0.0], [-1.0], 3, [math.inf], ["a"]):
        with pytest.raises(ValueError, match="Argument `sigmas` must be a list of numbers above 0"):
            DetectionMAP(iou_type="keypoints", sigmas=bad)


# --- oriented boxes ---------------------------------------------------------------------------------------------------


def test_turned_boxes_by_hand():
    """A square turned by 45 degrees overlaps itself by 1, its upright copy by 0.7071; a third stands elsewhere."""
    label = torch.tensor([1, 1])
    true = torch.tensor([[5.0, 5, 2, 2, math.pi / 4], [50.0, 50, 4, 1, 0.3]])
    upright = torch.tensor([[5.0, 5, 2, 2, 0], [50.0, 50, 1, 4, 0.3 - math.pi / 2]])
    preds = [{"boxes": upright, "scores": torch.tensor([0.5, 0.9]), "labels": label}]
    value = detection_map(preds, [{"boxes": true, "labels": label}], iou_type="obb")
    # the second is the same box with its sides exchanged; the first passes at 0.50 ... 0.70
    both, one = 1.0, 51 / 101
    assert float(value["map"]) == pytest.approx((5 * both + 5 * one) / 10)
    assert float(value["map_small"]) == pytest.approx(float(value["map"]))


SHAPES = {
    "segm": lambda n: {"masks": torch.ones(n, 4, 4)},
    "obb": lambda n: {"boxes": torch.ones(n, 5)},
    "keypoints": lambda n: {"keypoints": torch.ones(n, 17, 3), "boxes": torch.ones(n, 4).cumsum(1)},
}


@pytest.mark.parametrize("iou_type", SHAPES)
def test_one_shape_for_each_label(iou_type):
    shape = SHAPES[iou_type]
    good = [{"labels": torch.ones(2).long(), "scores": torch.rand(2)} | shape(2)] * 2
    metric = DetectionMAP(iou_type=iou_type)
    metric.update(good, good)
    before = metric.compute()
    for name in ("preds", "target"):
        bad = {"preds": good, "target": good} | {name: [good[0], good[1] | shape(3)]}
        with pytest.raises(
            ValueError, match=rf"{name}\[1\]\['.*'\] must have one (entry|row) for each of the 2 labels"
        ):
            metric.update(**bad)
        missing = {key: value for key, value in good[1].items() if key not in shape(1)}
        with pytest.raises(ValueError, match=rf"{name}\[1\] must hold the key '"):
            metric.update(**{"preds": good, "target": good} | {name: [good[0], missing]})
    assert metric.update_count == 1
    assert metric.compute() is before


@pytest.mark.parametrize("iou_type", SHAPES)
def test_nothing_anywhere(iou_type):  # D12
    shape = SHAPES[iou_type]
    none = [{"labels": torch.zeros(0).long(), "scores": torch.zeros(0)} | shape(0)]
    some = [{"labels": torch.ones(1).long(), "scores": torch.ones(1)} | shape(1)]
    keys = list(detection_map([], [], iou_type=iou_type))
    for preds, target, expected in ((none, none, -1), (none, some, 0), (some, none, -1), (some, some, 1)):
        value = detection_map(preds, target, iou_type=iou_type)
        assert list(value) == keys
        assert float(value["map"]) == pytest.approx(expected)


def test_false_positives_on_images_without_truth_count():  # D22
    one = {"labels": torch.ones(1).long(), "masks": torch.ones(1, 3, 3).bool()}
    none = {"labels": torch.zeros(0).long(), "masks": torch.zeros(0, 3, 3).bool()}
    preds = [one | {"scores": torch.tensor([score])} for score in (0.5, 0.9)]
    assert float(detection_map(preds, [one, none], iou_type="segm")["map"]) == pytest.approx(0.5)


def test_a_threshold_of_zero_needs_boxes():
    for iou_type in ("segm", "obb", "keypoints", ("bbox", "segm")):
        with pytest.raises(ValueError, match="`iou_thresholds` must be above 0 for all but iou_type='bbox'"):
            DetectionMAP(iou_type=iou_type, iou_thresholds=[0.0, 0.5])


def of_lvis(**kwargs):
    """One image, boxes and their masks: the first detection is of the larger label, and all scores are equal."""
    box = torch.tensor([[0.0, 0, 10, 6], [0, 0, 10, 9], [20, 0, 30, 10]])
    true = torch.tensor([[0.0, 0, 10, 10], [20, 0, 30, 10]])
    metric = DetectionMAP(iou_type=("bbox", "segm"), protocol="lvis", **kwargs)
    found = {"boxes": box, "masks": masks_of_boxes(box), "scores": torch.full((3,), 0.5)}
    metric.update(
        [found | {"labels": torch.tensor([9, 1, 9])}],
        [{"boxes": true, "masks": masks_of_boxes(true), "labels": torch.tensor([1, 9]), "image_id": 4}],
    )
    return metric.compute()


def masks_of_boxes(boxes):
    y, x = torch.meshgrid(torch.arange(12), torch.arange(40), indexing="ij")
    x1, y1, x2, y2 = boxes[:, :, None, None].unbind(1)
    return (x >= x1) & (x < x2) & (y >= y1) & (y < y2)


def test_micro_takes_the_classes_in_turn_where_caps_are_per_image():
    """Of equal scores the smaller label comes first: it takes the object, and the first detection finds nothing."""
    value = of_lvis(average="micro")
    assert value["bbox_mar_300"] == value["segm_mar_300"] == pytest.approx((1 + 0.9) / 2)
    for key in value:
        if key.startswith("bbox_"):
            assert torch.equal(value[key], value[key.replace("bbox_", "segm_")]), key


def test_overlaps_of_cells_where_caps_are_per_image():
    value = of_lvis(extended_summary=True)
    for kind in ("bbox", "segm"):
        assert {key: overlap.tolist() for key, overlap in value[f"{kind}_ious"].items()} == {
            (4, 1): [[0.9]],
            (4, 9): [[0.0], [1.0]],
        }
