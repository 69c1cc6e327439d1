"""Readers of COCO, VOC, text and YOLO files: against plain json, and every mistake at its place."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from map_metrics.readers import ReadError, read_detection, read_truths
from map_metrics.readers.text import read_names

DATA = Path(__file__).parents[1] / "data" / "detection"
BOX = {"image_id": 3, "category_id": 18, "bbox": [0, 0, 10, 10]}
TRUTH = {
    "images": [{"id": 3, "height": 20, "width": 30}, {"id": 1}],
    "categories": [{"id": 18, "name": "dog"}, {"id": 2, "name": "cat"}],
    "annotations": [BOX],
}
FOUND = BOX | {"score": 0.5}


def write(folder: Path, truth=TRUTH, found=(FOUND,)) -> tuple[Path, Path]:
    for name, content in (("gt.json", truth), ("dt.json", found)):
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content, indent=1), "utf-8")
    return folder / "gt.json", folder / "dt.json"


def same(ours: list[dict], theirs: list[dict]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for key, value in mine.items():
            assert torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key], key


# --- COCO -------------------------------------------------------------------------------------------------------------


def test_coco100_is_what_plain_json_says():
    truth_file = DATA / "coco100" / "instances_val2014_100.json"
    found_file = DATA / "coco100" / "instances_val2014_fakebbox100_results.json"
    files = read_detection(truth_file, found_file)
    truth, found = json.loads(truth_file.read_text()), json.loads(found_file.read_text())
    assert [image["image_id"] for image in files.target] == sorted(image["id"] for image in truth["images"])
    assert files.class_names == {c["id"]: c["name"] for c in truth["categories"]}
    assert files.image_names == {image["id"]: str(image["id"]) for image in truth["images"]}
    assert (files.num_skipped, files.class_groups) == (0, None)
    for pred, target in zip(files.preds, files.target, strict=True):
        mine = [a for a in truth["annotations"] if a["image_id"] == target["image_id"]]
        theirs = [r for r in found if r["image_id"] == target["image_id"]]
        assert target["boxes"].tolist() == [a["bbox"] for a in mine]
        assert pred["boxes"].tolist() == [r["bbox"] for r in theirs]
        for key, name in (("labels", "category_id"), ("area", "area"), ("iscrowd", "iscrowd")):
            assert target[key].tolist() == [a[name] for a in mine]
        assert pred["labels"].tolist() == [r["category_id"] for r in theirs]
        assert pred["scores"].tolist() == [r["score"] for r in theirs]


def test_masks_are_kept_as_they_are():
    truth_file = DATA / "coco100" / "instances_val2014_100.json"
    files = read_detection(truth_file, DATA / "coco100" / "instances_val2014_fakesegm100_results.json", "segm")
    truth = json.loads(truth_file.read_text())
    size = {image["id"]: [image["height"], image["width"]] for image in truth["images"]}
    for pred, target in zip(files.preds, files.target, strict=True):
        mine = [a["segmentation"] for a in truth["annotations"] if a["image_id"] == target["image_id"]]
        assert target["masks"] == mine
        assert target["size"] == pred["size"] == size[target["image_id"]]
        assert "boxes" not in pred


def test_the_order_of_the_lists_and_of_the_images_does_not_matter(tmp_path):
    files = read_detection(*write(tmp_path))
    other = {key: TRUTH[key] for key in ("annotations", "categories", "images")} | {"info": {"a": [1]}}
    other["images"] = other["images"][::-1]
    again = read_detection(*write(tmp_path, other))
    same(files.preds, again.preds)
    same(files.target, again.target)
    assert [len(image["labels"]) for image in files.target] == [0, 1]  # by id; the image without objects stays


def test_ids_as_strings_an_object_of_results_and_gzip(tmp_path):
    names = {3: "three", 1: "one", 18: "d", 2: "c"}
    renamed = BOX | {"image_id": "three", "category_id": "d"}
    truth = {
        "images": [entry | {"id": names[entry["id"]]} for entry in TRUTH["images"]],
        "categories": [entry | {"id": names[entry["id"]]} for entry in TRUTH["categories"]],
        "annotations": [renamed],
    }
    paths = write(tmp_path, truth, {"info": {}, "annotations": [renamed | {"score": 0.5}]})
    for path in paths:
        path.write_bytes(gzip.compress(path.read_bytes()))
    files = read_detection(*paths)
    assert files.image_names == {0: "one", 1: "three"}
    assert files.class_names == {0: "dog", 1: "cat"}
    assert [image["labels"].tolist() for image in files.target] == [[], [0]]
    assert [image["scores"].tolist() for image in files.preds] == [[], [0.5]]


def test_lvis_keys(tmp_path):
    image = {"id": 3, "neg_category_ids": [2], "not_exhaustive_category_ids": [18]}
    categories = [{"id": 18, "name": "dog", "frequency": "r"}, {"id": 2, "name": "cat", "frequency": "f"}]
    files = read_detection(*write(tmp_path, TRUTH | {"images": [image], "categories": categories}))
    assert files.target[0]["neg_category_ids"] == [2]
    assert files.target[0]["not_exhaustive_category_ids"] == [18]
    assert files.class_groups == {18: "r", 2: "f"}


def test_flags_and_areas(tmp_path):
    marks = [{"iscrowd": 1}, {"ignore": True}, {"difficult": 1}, {"is_group_of": 1, "area": 7.5}]
    files = read_detection(*write(tmp_path, TRUTH | {"annotations": [BOX | mark for mark in marks]}))
    target = files.target[1]
    for i, key in enumerate(("iscrowd", "ignore", "difficult", "is_group_of")):
        assert target[key].tolist() == [int(i == row) for row in range(4)]
    assert target["area"].tolist() == [100, 100, 100, 7.5]


def test_keypoints(tmp_path):
    pose = {"keypoints": [1, 2, 2, 3, 4, 0]}
    truth = TRUTH | {"annotations": [BOX | pose, BOX | {"keypoints": [0] * 6}]}
    files = read_detection(*write(tmp_path, truth, [FOUND | pose]), "keypoints")
    assert files.target[1]["keypoints"].tolist() == [[[1, 2, 2], [3, 4, 0]], [[0, 0, 0], [0, 0, 0]]]
    assert files.preds[1]["keypoints"].tolist() == [[[1, 2, 2], [3, 4, 0]]]
    with pytest.raises(
        ReadError, match=r"dt\.json:2: entry 0: 'keypoints' must be a list of 6 numbers, got \[1, 2, 3\]"
    ):
        read_detection(*write(tmp_path, truth, [FOUND | {"keypoints": [1, 2, 3]}]), "keypoints")


def test_unknown_images_and_categories_are_counted(tmp_path):
    found = [FOUND, FOUND | {"image_id": 9}, FOUND | {"category_id": 77}, FOUND | {"image_id": "3"}]
    paths = write(tmp_path, TRUTH, found)
    files = read_detection(*paths, skip_unknown=True)
    assert files.num_skipped == 3
    assert [len(image["labels"]) for image in files.preds] == [0, 1]
    with pytest.raises(ReadError, match=r"dt\.json:13: entry 1: 'image_id' 9 is not in the ground truth"):
        read_detection(*paths)


def but(key, value):
    """A second result with one key changed; its first line is the 13th."""
    entry = dict(FOUND)
    if value is None:
        del entry[key]
    else:
        entry[key] = value
    return [FOUND, entry]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (but("category_id", 77), "dt.json:13: entry 1: 'category_id' 77 is not in the ground truth"),
        (but("category_id", [1]), "dt.json:13: entry 1: 'category_id' must be an integer or a string, got [1]"),
        (but("score", float("nan")), "dt.json:13: entry 1: 'score' must be finite, got nan"),
        (but("score", "0.5"), "dt.json:13: entry 1: 'score' must be a number, got '0.5'"),
        (but("score", True), "dt.json:13: entry 1: 'score' must be a number, got True"),
        (but("score", 10**400), "dt.json:13: entry 1: 'score' must be a number, got 1000"),
        (but("score", None), "dt.json:13: entry 1: must hold the key 'score'"),
        (but("bbox", [1, 2, 3]), "dt.json:13: entry 1: 'bbox' must be a list of 4 numbers, got [1, 2, 3]"),
        (but("bbox", [1, 2, -3, 4]), "dt.json:13: entry 1: 'bbox' must be x, y, width >= 0 and height >= 0"),
        (but("bbox", [1, 2, float("inf"), 4]), "dt.json:13: entry 1: 'bbox' must be finite"),
        ([FOUND, 5], "dt.json:13: entry 1: must be an object, got 5"),
        ({"results": [FOUND]}, "dt.json: must be a list of results, or hold one under 'annotations'"),
        ("", "dt.json:1: is empty"),
        (json.dumps([FOUND], indent=1)[:-3], "dt.json:12: is cut off"),
    ],
)
def test_a_mistake_in_results(tmp_path, found, message):
    with pytest.raises(ReadError) as caught:
        read_detection(*write(tmp_path, TRUTH, found))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": [{"id": 3}, {"id": 3}]}, "images[1]: 'id' 3 is declared twice among the images"),
        ({"images": [{"id": 3}, {"id": "a"}]}, "images[1]: 'id' must be of one kind, got 'a' behind 3"),
        ({"images": [{"id": 3}, {"id": 1.5}]}, "images[1]: 'id' must be an integer or a string, got 1.5"),
        ({"images": [{"name": 3}]}, "images[0]: must hold the key 'id'"),
        ({"images": [{"id": 4}]}, "annotations[0]: 'image_id' 3 is not in the ground truth"),
        ({"categories": []}, "annotations[0]: 'category_id' 18 is not in the ground truth"),
        ({"annotations": [{**BOX, "iscrowd": 2}]}, "annotations[0]: 'iscrowd' must be 0 or 1, got 2"),
        ({"annotations": [{**BOX, "area": -1}]}, "annotations[0]: 'area' must be at least 0, got -1"),
        ({"images": [{"id": 3, "neg_category_ids": [5]}]}, "images[0]: 'neg_category_ids' holds 5"),
        ({"images": {}}, "gt.json: must hold the list 'images'"),
    ],
)
def test_a_mistake_in_the_ground_truth(tmp_path, change, message):
    with pytest.raises(ReadError) as caught:
        read_detection(*write(tmp_path, TRUTH | change))
    assert message in str(caught.value)


def test_windows_line_ends(tmp_path):
    paths = write(tmp_path)
    plain = read_detection(*paths)
    for path in paths:
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    same(read_detection(*paths).target, plain.target)


MEMORY = """
import os, resource, sys
from map_metrics.readers import read_results, read_truths
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
truths = read_truths(sys.argv[1])
before = peak()
files = read_results(sys.argv[2], truths)
print((peak() - before) / os.path.getsize(sys.argv[2]), sum(len(image["scores"]) for image in files.preds))
"""


def test_a_large_result_file_needs_less_than_three_times_its_size(tmp_path):
    """As Python objects its entries would take several times that."""
    truth, found = write(tmp_path, TRUTH | {"images": [{"id": i} for i in range(500)], "annotations": []})
    rng = np.random.default_rng(0)
    boxes, scores = rng.uniform(0, 500, (500, 4)).round(2).tolist(), rng.uniform(size=500).tolist()
    with found.open("w") as file:
        file.write("[")
        for i in range(500):
            rows = [
                {"image_id": i, "category_id": 18, "bbox": box, "score": s}
                for box, s in zip(boxes, scores, strict=True)
            ]
            file.write(("," if i else "") + json.dumps(rows)[1:-1])
        file.write("]")
    assert found.stat().st_size > 2.5e7
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(truth), str(found)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    ratio, count = map(float, done.stdout.split())
    assert count == 250_000
    assert ratio < 3


# --- folders ----------------------------------------------------------------------------------------------------------


def folder(tmp_path: Path, name: str, files: dict[str, str]) -> Path:
    (tmp_path / name).mkdir(exist_ok=True)
    for file, text in files.items():
        (tmp_path / name / file).write_text(text, "utf-8")
    return tmp_path / name


def test_text_folders_of_every_box_format(tmp_path):
    boxes = {"xyxy": "1 2 11 22", "xywh": "1 2 10 20", "cxcywh": "6 12 10 20"}
    for name, box in boxes.items():
        truth = folder(tmp_path, "gt", {"b.txt": f"dog {box} difficult\r\n\r\ncat {box}\n", "a.txt": ""})
        found = folder(tmp_path, "dt", {"b.txt": f"dog 0.5 {box}\nbird .25 {box}\n"})
        files = read_detection(truth, found, box_format=name)
        assert files.class_names == {0: "cat", 1: "dog", 2: "bird"}
        assert files.image_names == {0: "a", 1: "b"}
        assert files.target[1]["boxes"].tolist() == files.preds[1]["boxes"].tolist() == [[1, 2, 10, 20]] * 2
        assert files.target[1]["labels"].tolist() == [1, 0]
        assert files.target[1]["difficult"].tolist() == [1, 0]
        assert files.preds[1]["labels"].tolist() == [1, 2]
        assert files.preds[1]["scores"].tolist() == [0.5, 0.25]
        assert [len(image["labels"]) for image in files.preds] == [0, 2]


def test_yolo_boxes_are_parts_of_the_image(tmp_path):
    truth = folder(tmp_path, "gt", {"a.txt": "1 0.5 0.25 0.5 0.5\n", "classes.txt": "cat\ndog\n"})
    found = folder(tmp_path, "dt", {"a.txt": "1 0.5 0.25 0.5 0.5 0.75\n"})
    (tmp_path / "sizes").write_text("a.jpg 640 480\n")
    files = read_detection(truth, found, sizes=tmp_path / "sizes", classes=truth / "classes.txt")
    assert files.class_names == {0: "cat", 1: "dog"}
    assert files.target[0]["boxes"].tolist() == files.preds[0]["boxes"].tolist() == [[160, 0, 320, 240]]
    assert files.target[0]["labels"].tolist() == [1]
    assert files.preds[0]["scores"].tolist() == [0.75]


VOC = """<annotation><filename>x.jpg</filename>
<object><name>dog</name><difficult>1</difficult>
<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>11.5</xmax><ymax>22</ymax></bndbox>
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>
</annotation>"""


def test_voc_folders(tmp_path):
    truth = folder(tmp_path, "gt", {"a.xml": VOC, "b.xml": "<annotation/>"})
    found = folder(tmp_path, "dt", {"a.txt": "dog 0.5 1 2 11.5 22\n"})
    files = read_detection(truth, found)
    assert files.target[0]["boxes"].tolist() == files.preds[0]["boxes"].tolist() == [[1, 2, 10.5, 20]]
    assert files.target[0]["difficult"].tolist() == [1]
    assert [len(image["labels"]) for image in files.target] == [1, 0]
    assert [image["image_id"] for image in files.target] == [0, 1]


@pytest.mark.parametrize(
    ("truth", "found", "message"),
    [
        ("dog 1 2 3\n", "", "gt/a.txt:1: expected class x1 y1 x2 y2 [difficult], got 4 fields"),
        ("\ndog 1 2 3 4\ndog 1 2 3 4 5 6\n", "", "gt/a.txt:3: expected class x1 y1 x2 y2 [difficult], got 7 fields"),
        ("dog 1 2 3 x\n", "", "gt/a.txt:1: expected class x1 y1 x2 y2 [difficult], got 'x' for a number"),
        ("dog 1 2 0 4\n", "", "gt/a.txt:1: a box must have a width and a height >= 0, got [1.0, 2.0, 0.0, 4.0]"),
        ("dog 1 2 3 4 2\n", "", "gt/a.txt:1: difficult must be 0 or 1, got 2.0"),
        ("dog 1 2 3 4\n", "dog 1 2 3 4\n", "dt/a.txt:1: expected class score x1 y1 x2 y2, got 5 fields"),
        ("dog 1 2 3 4\n", "dog 1 1 2 3 4\ndog nan 1 2 3 4\n", "dt/a.txt:2: all numbers must be finite, got nan"),
    ],
)
def test_a_mistake_in_a_text_file(tmp_path, truth, found, message):
    with pytest.raises(ReadError) as caught:
        read_detection(folder(tmp_path, "gt", {"a.txt": truth}), folder(tmp_path, "dt", {"a.txt": found}))
    assert message in str(caught.value)


def test_unknown_images_and_classes_of_folders(tmp_path):
    truth = folder(tmp_path, "gt", {"a.txt": "dog 1 2 3 4\n"})
    found = folder(tmp_path, "dt", {"a.txt": "dog 1 1 2 3 4\nbird 1 1 2 3 4\n", "b.txt": "dog 1 1 2 3 4\n"})
    with pytest.raises(ReadError, match=r"b\.txt: the image 'b' is not in the ground truth"):
        read_detection(truth, found)
    assert read_detection(truth, found, skip_unknown=True).num_skipped == 1
    (tmp_path / "names").write_text("dog\ncat\n")
    assert read_detection(truth, found, classes=tmp_path / "names", skip_unknown=True).num_skipped == 2
    (found / "b.txt").unlink()
    with pytest.raises(ReadError, match=r"a\.txt:2: the class 'bird' is not among the classes"):
        read_detection(truth, found, classes=tmp_path / "names")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation>\n<object>", "a.xml:2: is not XML"),
        ("", "a.xml:1: is not XML"),
        ("<annotation><object/></annotation>", "a.xml: object 0 must hold a name"),
        (VOC.replace("<xmax>11.5</xmax>", ""), "a.xml: object 0 (dog): bndbox/xmax must be a finite number, got None"),
        (VOC.replace("11.5", "nan"), "a.xml: object 0 (dog): bndbox/xmax must be a finite number, got 'nan'"),
        (VOC.replace("11.5", "0"), "a.xml: object 0 (dog): must have xmax >= xmin and ymax >= ymin"),
        (VOC.replace("<difficult>1", "<difficult>yes"), "a.xml: object 0 (dog): difficult must be 0 or 1, got 'yes'"),
        ('<?xml version="1.0" encoding="nonsense"?><annotation/>', "a.xml"),
    ],
)
def test_a_mistake_in_xml(tmp_path, text, message):
    with pytest.raises(ReadError) as caught:
        read_truths(folder(tmp_path, "gt", {"a.xml": text}))
    assert message in str(caught.value)


def test_paths_that_do_not_fit(tmp_path):
    truth, found = write(tmp_path)
    text = folder(tmp_path, "gt", {"a.txt": "dog 1 2 3 4\n"})
    with pytest.raises(ReadError, match=r"is a folder and the ground truth .* a file"):
        read_detection(truth, text)
    with pytest.raises(ReadError, match=r"is a file and the ground truth .* a folder"):
        read_detection(text, found)
    with pytest.raises(ReadError, match=r"must hold \.txt files, one per image"):
        read_truths(folder(tmp_path, "empty", {}))
    with pytest.raises(ReadError, match="is a folder, which holds boxes only"):
        read_truths(text, "segm")
    with pytest.raises(ValueError, match=r"`iou_type` must be one of .*, got 'boundary'"):
        read_truths(truth, "boundary")
    with pytest.raises(ValueError, match="`sizes` is for folders of text files"):
        read_truths(truth, sizes="sizes.txt")
    sizes, names = tmp_path / "sizes", tmp_path / "names"
    sizes.write_text("b 640 480\n")
    with pytest.raises(ReadError, match="has no size"):
        read_truths(text, sizes=sizes)
    sizes.write_text("b 640\n")
    with pytest.raises(ReadError, match=r"sizes:1: expected name width height, got 'b 640'"):
        read_truths(text, sizes=sizes)
    names.write_text("a\na\n")
    with pytest.raises(ReadError, match="must hold distinct names"):
        read_names(names)
    with pytest.raises(FileNotFoundError):
        read_truths(tmp_path / "nowhere.json")
