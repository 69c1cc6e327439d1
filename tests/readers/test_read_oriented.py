"""Oriented boxes of files: corners against shapely, DOTA's numbers against plain loops, every mistake at its place."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from shapely.geometry import MultiPoint, Polygon

from map_metrics import DetectionMAP, cli
from map_metrics.readers import ReadError, read_detection
from map_metrics.readers.corners import rectangles


def corners(x: float, y: float, width: float, height: float, angle: float) -> list[float]:
    """Corner after corner; the angle grows from the x towards the y axis."""
    cos, sin = math.cos(angle), math.sin(angle)
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    sides = [(sx * width / 2, sy * height / 2) for sx, sy in signs]
    return [value for u, v in sides for value in (x + u * cos - v * sin, y + u * sin + v * cos)]


def random_box(rng: random.Random) -> list[float]:
    return [
        *(rng.uniform(0, 60), rng.uniform(0, 60)),
        *(rng.uniform(4, 40), rng.uniform(4, 40)),
        rng.uniform(-math.pi, math.pi),
    ]


def write(folder: Path, name: str, files: dict[str, str]) -> Path:
    (folder / name).mkdir(exist_ok=True)
    for file, text in files.items():
        (folder / name / file).write_text(text, "utf-8")
    return folder / name


# --- corners ----------------------------------------------------------------------------------------------------------


def test_the_corners_of_a_rectangle_give_it_back():
    """The width lies along the first side, in whichever order the corners come."""
    rng = random.Random(0)
    for _ in range(200):
        box = random_box(rng)
        x, y, width, height, angle = rectangles(np.array([corners(*box)]))[0]
        assert [x, y, width, height] == pytest.approx(box[:4], abs=1e-9)
        assert math.remainder(angle - box[4], 2 * math.pi) == pytest.approx(0, abs=1e-9)
        turned = np.roll(np.reshape(corners(*box), (4, 2)), rng.randrange(4), 0)[:: rng.choice([1, -1])]
        again = rectangles(turned.reshape(1, 8))[0]
        assert Polygon(np.reshape(corners(*again), (4, 2))).symmetric_difference(Polygon(turned)).area < 1e-9


def test_other_corners_give_the_smallest_rectangle_around_them():
    points = np.random.default_rng(0).uniform(0, 100, (500, 8))
    points[:100] = points[:100].round(-1)  # with equal points and three in a line
    for row, box in zip(points, rectangles(points), strict=True):
        around = Polygon(np.reshape(corners(*box), (4, 2)))
        expected = MultiPoint(row.reshape(4, 2)).minimum_rotated_rectangle
        assert box[2] * box[3] == pytest.approx(expected.area, rel=1e-9, abs=1e-9)
        assert all(around.distance(point) < 1e-9 for point in MultiPoint(row.reshape(4, 2)).geoms)


def test_corners_without_an_area():
    found = rectangles(np.array([[1.0, 2] * 4, [0, 0, 3, 4, 3, 4, 0, 0], [0, 0, 1, 1, 2, 2, 3, 3]]))
    assert (found[:, 2] * found[:, 3]).tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    assert found[1, 2] == pytest.approx(5)
    assert rectangles(np.zeros((0, 8))).shape == (0, 5)


# --- DOTA -------------------------------------------------------------------------------------------------------------


def voc2007(truths: dict, found: list[tuple[float, str, list[float]]]) -> float:
    """DOTA's evaluation of one class: difficult objects count neither way, an object is found once, 11 points."""
    taken = set()
    hits = []
    for _, image, box in sorted(found, key=lambda row: -row[0]):
        best, overlap = None, -1.0
        for i, (other, _) in enumerate(truths[image]):
            first, second = (Polygon(np.reshape(corners(*b), (4, 2))) for b in (box, other))
            common = first.intersection(second).area
            if common / (first.area + second.area - common) > overlap:
                best, overlap = i, common / (first.area + second.area - common)
        if overlap >= 0.5 and truths[image][best][1]:
            continue
        hits.append(overlap >= 0.5 and (image, best) not in taken)
        taken.add((image, best) if hits[-1] else None)
    count = sum(not difficult for rows in truths.values() for _, difficult in rows)
    curve = [(sum(hits[: n + 1]) / count, sum(hits[: n + 1]) / (n + 1)) for n in range(len(hits))]
    return sum(max([p for r, p in curve if r >= level / 10 - 1e-12], default=0) for level in range(11)) / 11


@pytest.mark.parametrize("seed", range(3))
def test_dota_through_the_command(tmp_path, capsys, seed):
    rng = random.Random(seed)
    images, classes = ["P0003", "P0007", "P0019"], ["large-vehicle", "ship"]
    truths = {c: {i: [(random_box(rng), rng.random() < 0.2) for _ in range(6)] for i in images} for c in classes}
    found = {
        c: [
            (rng.random(), image, [value + rng.uniform(-1, 1) for value in box[:4]] + [box[4] + rng.uniform(-0.1, 0.1)])
            for image in images
            for box, _ in truths[c][image] * 2
        ]
        for c in classes
    }

    def text(box):
        return " ".join(map(repr, corners(*box)))

    labels = {
        f"{image}.txt": "imagesource:GoogleEarth\ngsd:0.146\n"
        + "".join(f"{text(b)} {c} {int(hard)}\n" for c in classes for b, hard in truths[c][image])
        for image in images
    }
    results = {f"Task1_{c}.txt": "".join(f"{i} {s!r} {text(b)}\r\n" for s, i, b in found[c]) for c in classes}
    paths = write(tmp_path, "labelTxt", labels), write(tmp_path, "results", results)
    words = ["detection", *map(str, paths), "--iou-type", "obb", "--protocol", "voc2007", "--per-class"]
    assert cli.main([*words, "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    expected = {c: voc2007(truths[c], found[c]) for c in classes}
    assert {row["class"]: row["ap"] for row in content["classes"]} == pytest.approx(expected, abs=1e-12)
    assert content["value"]["map"] == pytest.approx(sum(expected.values()) / 2, abs=1e-12)
    assert 0.05 < content["value"]["map"] < 0.95


def test_what_dota_may_leave_out(tmp_path):
    """The flag, the prefix of a file of results, and images without an object or a detection."""
    square = "0 0 4 0 4 4 0 4"
    truth = write(tmp_path, "gt", {"a.txt": f"{square} ship\n", "b.txt": "gsd:null\n"})
    found = write(tmp_path, "dt", {"ship.txt": f"a 0.5 {square}\n", "Task1_plane.txt": f"b 0.25 {square}\n"})
    files = read_detection(truth, found, "obb")
    assert files.class_names == {0: "ship", 1: "plane"}
    assert [image["boxes"].tolist() for image in files.target] == [[[2, 2, 4, 4, 0]], []]
    assert [image["difficult"].tolist() for image in files.target] == [[0], []]
    assert [image["labels"].tolist() for image in files.preds] == [[0], [1]]
    assert [image["boxes"].shape for image in files.target] == [(1, 5), (0, 5)]


SQUARE = "0 0 4 0 4 4 0 4"


@pytest.mark.parametrize(
    ("truth", "found", "message"),
    [
        ("0 0 4 0 4 4 0 ship 0\n", "", "gt/a.txt:1: expected x1 y1 x2 y2 x3 y3 x4 y4 class [difficult], got '"),
        (f"gsd:1\n{SQUARE}\n", "", "gt/a.txt:2: expected x1 y1 x2 y2 x3 y3 x4 y4 class [difficult], got 8 fields"),
        (f"{SQUARE} ship 2\n", "", "gt/a.txt:1: difficult must be 0 or 1, got 2.0"),
        (f"{SQUARE} ship\n", f"a {SQUARE}\n", "dt/Task1_ship.txt:1: expected image score x1 y1 x2 y2 x3 y3 x4 y4, got"),
        (f"{SQUARE} ship\n", f"a 1 {SQUARE}\nb 1 {SQUARE}\n", "Task1_ship.txt:2: the image 'b' is not in the ground"),
        (f"{SQUARE} ship\n", f"a nan {SQUARE}\n", "dt/Task1_ship.txt:1: all numbers must be finite, got nan"),
    ],
)
def test_a_mistake_in_dotas_files(tmp_path, truth, found, message):
    folders = write(tmp_path, "gt", {"a.txt": truth}), write(tmp_path, "dt", {"Task1_ship.txt": found})
    with pytest.raises(ReadError) as caught:
        read_detection(*folders, "obb")
    assert message in str(caught.value)


def test_unknown_images_and_classes_of_dota_are_counted(tmp_path):
    truth = write(tmp_path, "gt", {"a.txt": f"{SQUARE} ship\n"})
    results = {"Task1_ship.txt": f"a 1 {SQUARE}\nb 1 {SQUARE}\n", "Task1_crane.txt": f"a 1 {SQUARE}\n"}
    found = write(tmp_path, "dt", results)
    (tmp_path / "names").write_text("ship\n")
    with pytest.raises(ReadError, match=r"Task1_crane\.txt: the class 'crane' is not among the classes"):
        read_detection(truth, found, "obb", classes=tmp_path / "names")
    files = read_detection(truth, found, "obb", classes=tmp_path / "names", skip_unknown=True)
    assert (files.num_skipped, len(files.preds[0]["labels"])) == (2, 1)
    with pytest.raises(ValueError, match="`box_format` is for upright boxes"):
        read_detection(truth, found, "obb", box_format="xywh")


# --- YOLO and COCO ----------------------------------------------------------------------------------------------------


def test_yolos_corners_are_parts_of_the_image(tmp_path):
    box = [40.0, 20, 24, 10, 0.5]
    parts = " ".join(repr(value / side) for value, side in zip(corners(*box), [128, 64] * 4, strict=True))
    truth, found = write(tmp_path, "gt", {"a.txt": f"1 {parts}"}), write(tmp_path, "dt", {"a.txt": f"1 {parts} 0.75"})
    (tmp_path / "sizes").write_text("a.png 128 64\n")
    files = read_detection(truth, found, "obb", sizes=tmp_path / "sizes")
    assert files.target[0]["boxes"][0].tolist() == pytest.approx(box)
    assert files.preds[0]["boxes"][0].tolist() == pytest.approx(box)
    assert files.preds[0]["scores"].tolist() == [0.75]


@pytest.mark.parametrize("key", ["bbox", "rbox"])
def test_coco_with_five_numbers(tmp_path, key):
    """Detectron2's angle is in degrees and grows counter-clockwise on a screen, Ultralytics' in radians, clockwise."""
    rng = random.Random(7)
    boxes = [random_box(rng) for _ in range(6)]
    moved = [[box[0] + 0.5, *box[1:]] for box in boxes]

    def entries(rows):
        for i, (x, y, width, height, angle) in enumerate(rows):
            shown = [x, y, width, height, -math.degrees(angle) if key == "bbox" else angle]
            yield {"image_id": i % 2, "category_id": 1, key: shown}

    truth = {"images": [{"id": 0}, {"id": 1}, {"id": 2}], "categories": [{"id": 1, "name": "ship"}]}
    truth["annotations"] = list(entries(boxes))
    found = [entry | {"score": 0.5 + i / 16} for i, entry in enumerate(entries(moved))]
    (tmp_path / "gt").write_text(json.dumps(truth))
    (tmp_path / "dt").write_text(json.dumps(found))
    files = read_detection(tmp_path / "gt", tmp_path / "dt", "obb")
    for image in (0, 1):
        assert torch.allclose(files.target[image]["boxes"], torch.tensor(boxes[image::2], dtype=torch.float64))
        assert torch.allclose(files.preds[image]["boxes"], torch.tensor(moved[image::2], dtype=torch.float64))
        expected = [box[2] * box[3] for box in boxes[image::2]]
        assert files.target[image]["area"].tolist() == pytest.approx(expected)
    metric = DetectionMAP(iou_type="obb")
    for image in range(2):
        labels = torch.ones(3, dtype=torch.int64)
        scores = (0.5 + torch.arange(6, dtype=torch.float64) / 16)[image::2]
        metric.update(
            [{"boxes": torch.tensor(moved[image::2]), "scores": scores, "labels": labels}],
            [{"boxes": torch.tensor(boxes[image::2]), "labels": labels, "image_id": image}],
        )
    again = DetectionMAP.from_coco(tmp_path / "gt", tmp_path / "dt", iou_type="obb")
    assert float(again.compute()["map"]) == pytest.approx(float(metric.compute()["map"]), abs=1e-12)
    assert again.result().num_images == 3


def test_the_degrees_of_a_box_on_the_screen(tmp_path):
    """Counter-clockwise: with y downwards, the right end goes up."""
    box = {"image_id": 0, "category_id": 1, "bbox": [50, 50, 40, 2, 30]}
    truth = {"images": [{"id": 0}], "categories": [{"id": 1, "name": "ship"}], "annotations": [box]}
    (tmp_path / "gt").write_text(json.dumps(truth))
    (tmp_path / "dt").write_text(json.dumps([box | {"score": 1.0}]))
    ((x, y, width, _, angle),) = read_detection(tmp_path / "gt", tmp_path / "dt", "obb").target[0]["boxes"].tolist()
    right = x + width / 2 * math.cos(angle), y + width / 2 * math.sin(angle)
    assert right == pytest.approx((50 + 20 * math.sqrt(3) / 2, 40))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bbox": [0, 0, 1, 1]}, "dt: must"),
        ({"bbox": [0, 0, -1, 1, 0]}, "'bbox' must be center x and y, width >= 0, height >= 0 and angle, got [0, 0, -1"),
        ({"bbox": [0, 0, 1, 1, float("nan")]}, "'bbox' must be finite"),
        ({"rbox": [0, 0, 1, 1]}, "'rbox' must be a list of 5 numbers, got [0, 0, 1, 1]"),
    ],
)
def test_a_mistake_in_five_numbers(tmp_path, change, message):
    box = {"image_id": 0, "category_id": 1, "bbox": [50, 50, 40, 2, 30]}
    truth = {"images": [{"id": 0}], "categories": [{"id": 1, "name": "ship"}], "annotations": [box]}
    (tmp_path / "gt").write_text(json.dumps(truth))
    (tmp_path / "dt").write_text(json.dumps([box | {"score": 1.0} | change]))
    with pytest.raises(ReadError) as caught:
        read_detection(tmp_path / "gt", tmp_path / "dt", "obb")
    assert message.replace("dt: must", "dt:1: entry 0: 'bbox' must be a list of 5 numbers") in str(caught.value)
