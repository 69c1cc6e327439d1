"""Masks of every kind, their areas, boxes and overlaps against pycocotools, bit for bit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pycocotools import mask as coco

from map_metrics.detection import mask_inputs, pairs
from map_metrics.detection.mask_inputs import read_masks
from map_metrics.detection.masks import mask_overlaps

DATA = Path(__file__).parents[1] / "data" / "detection" / "coco100"
FORMS = ("bool", "uint8", "int64", "float32", "compressed", "text", "plain", "mixed")


def encode(masks):
    """(n, h, w) -> pycocotools' codes."""
    return coco.encode(np.asfortranarray(masks.transpose(1, 2, 0).astype(np.uint8))) if len(masks) else []


def plain(mask):
    """Counts of one mask by a loop over its pixels."""
    counts, inside = [0], 0
    for pixel in mask.T.ravel().tolist():
        if pixel != inside:
            counts.append(0)
            inside = pixel
        counts[-1] += 1
    return {"size": list(mask.shape), "counts": counts}


def as_form(masks, form, rng):
    """(n, h, w) of 0 and 1 in one of the forms in which an image may hold its masks."""
    if form in ("bool", "uint8", "int64"):
        factor = 1 if form == "bool" else int(rng.choice([1, 3]))  # whatever is not 0
        return torch.from_numpy(masks.astype(np.int64) * factor).to(getattr(torch, form))
    if form == "float32":
        return torch.from_numpy(np.where(masks, rng.uniform(0.51, 1, masks.shape), rng.uniform(0, 0.5, masks.shape)))
    codes = encode(masks)
    if form == "compressed":
        return codes
    text = [{"size": tuple(code["size"]), "counts": code["counts"].decode()} for code in codes]
    if form == "text":
        return text
    listed = [plain(mask) for mask in masks]
    return listed if form == "plain" else [rng.choice(both) for both in zip(text, listed, codes, strict=True)]


def random_masks(rng, n, height, width):
    """Empty, full, one pixel, noise of any density, rectangles."""
    masks = np.zeros((n, height, width), np.uint8)
    for mask in masks:
        y, x = rng.integers(height), rng.integers(width)
        kind = rng.integers(5)
        if kind == 1:
            mask[:] = 1
        elif kind == 2:
            mask[y, x] = 1
        elif kind == 3:
            mask[:] = rng.random((height, width)) < rng.random()
        elif kind == 4:
            mask[y : y + rng.integers(1, height + 1), x : x + rng.integers(1, width + 1)] = 1
    return masks


def expected_overlaps(images):
    """(detection, truth, overlap) above 0 by ``pycocotools.mask.iou``, image by image; rows of the whole batch."""
    rows, detections, truths = [], 0, 0
    for found, true, crowd in images:
        if found and true:
            overlap = coco.iou(found, true, [int(c) for c in crowd])
            rows += [(i + detections, j + truths, overlap[i, j]) for i, j in np.argwhere(overlap > 0).tolist()]
        detections, truths = detections + len(found), truths + len(true)
    return rows


def rows_of(overlaps):
    return list(zip(*(column.tolist() for column in overlaps), strict=True))


@pytest.mark.parametrize("seed", range(300))
def test_fuzz_equals_pycocotools(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    if rng.random() < 0.5:  # blocks of a few pairs and pixels, and one block, give the same
        monkeypatch.setattr(pairs, "PAIRS_AT_ONCE", int(rng.integers(1, 20)))
        monkeypatch.setattr(mask_inputs, "PIXELS_AT_ONCE", int(rng.integers(1, 300)))
    images, preds, target = [], [], []
    for _ in range(rng.integers(1, 4)):
        height, width = rng.integers(1, 14, 2)
        found, true = (random_masks(rng, rng.integers(0, 6), height, width) for _ in range(2))
        preds.append({"masks": as_form(found, rng.choice(FORMS), rng)})
        target.append({"masks": as_form(true, rng.choice(FORMS), rng)})
        images.append((encode(found), encode(true), rng.random(len(true)) < 0.3))
    detections, truths = read_masks("preds", preds), read_masks("target", target)
    crowd = torch.tensor(np.concatenate([crowd for _, _, crowd in images]), dtype=torch.bool)
    assert rows_of(mask_overlaps(detections, truths, crowd)) == expected_overlaps(images)
    for side, masks in ((0, detections), (1, truths)):
        codes = [code for image in images for code in image[side]]
        assert masks.counts.tolist() == [len(image[side]) for image in images]
        if codes:
            assert masks.area.tolist() == coco.area(codes).tolist()
            assert masks.box.tolist() == coco.toBbox(codes).tolist()


def coco100():
    """Per image: detections, truths as codes, truths as in the file, crowd, size."""
    truths = json.loads((DATA / "instances_val2014_100.json").read_text())
    results = json.loads((DATA / "instances_val2014_fakesegm100_results.json").read_text())
    images = {entry["id"]: ([], [], [], [], (entry["height"], entry["width"])) for entry in truths["images"]}
    for row in results:
        images[row["image_id"]][0].append(row["segmentation"])
    for row in truths["annotations"]:
        _, codes, raw, crowd, size = images[row["image_id"]]
        drawn = coco.frPyObjects(row["segmentation"], *size)
        codes.append(drawn if row["iscrowd"] else coco.merge(drawn))
        raw.append(row["segmentation"])
        crowd.append(row["iscrowd"])
    return list(images.values())


def test_coco100_equals_pycocotools():
    images = coco100()
    detections = read_masks("preds", [{"masks": found} for found, *_ in images])
    truths = read_masks("target", [{"masks": codes} for _, codes, *_ in images])
    crowd = torch.tensor([c for _, _, _, image, _ in images for c in image], dtype=torch.bool)
    expected = expected_overlaps([(found, codes, crowd) for found, codes, _, crowd, _ in images])
    assert len(expected) == 1646
    assert crowd.sum() == 9
    assert rows_of(mask_overlaps(detections, truths, crowd)) == expected
    codes = [code for image in images for code in image[1]]
    assert truths.area.tolist() == [coco.area(code) for code in codes]  # of a list, at most 255 of them
    assert truths.box.tolist() == coco.toBbox(codes).tolist()


def test_polygons_are_drawn_as_pycocotools_draws_them():
    images = coco100()
    drawn = read_masks("target", [{"masks": raw, "size": size} for _, _, raw, _, size in images])
    truths = read_masks("target", [{"masks": codes} for _, codes, *_ in images])
    for name in ("counts", "size", "pixels", "bounds", "slot", "top", "bottom"):
        np.testing.assert_array_equal(getattr(drawn, name), getattr(truths, name))
    triangle = [np.array([1.0, 1, 6, 1, 6, 6])], [torch.tensor([1, 1, 6, 1, 6, 6])], [[1, 1, 6, 1, 6, 6]]
    areas = read_masks("target", [{"masks": list(triangle), "size": torch.tensor([8, 8])}]).area
    assert areas.tolist() == [float(coco.area(coco.frPyObjects([[1.0, 1, 6, 1, 6, 6]], 8, 8))[0])] * 3


def test_values_by_hand():
    """Two by two pixels each, one column in common; the crowd counts only the detection's pixels."""
    left, right = torch.zeros(2, 2, 2, 3, dtype=torch.bool)
    left[:, :, :2] = right[:, :, 1:] = True
    detections, truths = read_masks("preds", [{"masks": left[:1]}]), read_masks("target", [{"masks": right}])
    overlaps = mask_overlaps(detections, truths, torch.tensor([False, True]))
    assert rows_of(overlaps) == [(0, 0, 2 / 6), (0, 1, 2 / 4)]
    assert [column.dtype for column in overlaps] == [torch.int64, torch.int64, torch.float64]


def test_zero_runs_change_nothing():
    """Codes that are not the shortest: runs of length 0 hold no pixel and stretch no box."""
    masks = read_masks("target", [{"masks": [{"size": [4, 3], "counts": [0, 0, 3, 2, 0, 1, 1, 0, 5, 0]}]}])
    assert masks.area.tolist() == [3]
    assert masks.box.tolist() == [[0, 0, 2, 4]]


def test_images_without_masks():
    empty = [torch.zeros(0), torch.zeros(0, 5, 5), torch.zeros(0, 0, 0), [], ()]
    preds = [{"masks": value} for value in empty]
    target = [{"masks": torch.ones(1, 7, 7)} for _ in empty]
    detections, truths = read_masks("preds", preds), read_masks("target", target)
    assert rows_of(mask_overlaps(detections, truths, torch.zeros(5, dtype=torch.bool))) == []
    assert (len(detections), len(truths), detections.box.shape) == (0, 5, (0, 4))
    assert len(read_masks("preds", [])) == 0


def test_a_large_mask_of_long_runs():
    """Counts of seven characters, runs over many columns."""
    size = (20000, 9000)
    codes = [{"size": list(size), "counts": counts} for counts in ([5, 10**8, 8 * 10**7 - 5], [9 * 10**7, 9 * 10**7])]
    packed = coco.frPyObjects([dict(code) for code in codes], *size)
    for form in (codes, packed):
        masks = read_masks("preds", [{"masks": form}])
        assert masks.area.tolist() == [1e8, 9e7]
        assert masks.box.tolist() == coco.toBbox(packed).tolist()
        overlaps = mask_overlaps(masks, masks, torch.tensor([False, True]))
        assert rows_of(overlaps) == expected_overlaps([(packed, packed, [0, 1])])


def test_positions_beyond_31_bits():
    """A run of 1,000 pixels from pixel 3e9 = 42857 x 70000 + 10000."""
    code = {"size": [70000, 60000], "counts": [3 * 10**9, 1000, 70000 * 60000 - 3 * 10**9 - 1000]}
    assert read_masks("preds", [{"masks": [code]}]).box.tolist() == [[42857, 10000, 1, 1000]]


@pytest.mark.parametrize("height", [2**31 - 1, 2**31, 2**31 + 8, 2**32 - 1])
def test_columns_beyond_31_bits(height):
    masks = read_masks("preds", [{"masks": [{"size": [height, 1], "counts": [7, 6, height - 13]}]}])
    assert (masks.area.tolist(), masks.box.tolist()) == ([6], [[0, 7, 1, 6]])


@pytest.mark.parametrize("size", [[1, 2**18], [3, 2**18], [2**14 - 1, 2**18]])
def test_the_widest_masks(size):
    pixels = size[0] * size[1]
    masks = read_masks("preds", [{"masks": [{"size": size, "counts": [1, pixels - 2, 1]}]}])
    assert masks.area.tolist() == [pixels - 2]
    assert masks.box.tolist() == [[size[0] == 1, 0, size[1] - 2 * (size[0] == 1), size[0]]]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16], ids=str)
def test_masks_in_small_floats(dtype):
    masks = read_masks("preds", [{"masks": torch.tensor([[[0.0, 0.5, 0.75], [1, 0.25, 0]]]).to(dtype)}])
    assert (masks.area.tolist(), masks.box.tolist()) == ([2], [[0, 0, 3, 2]])
    nan = torch.tensor([[[0.0, torch.nan]]]).to(dtype)
    with pytest.raises(ValueError, match="must hold no NaN, got one in row 0"):
        read_masks("preds", [{"masks": nan}])


GOOD = {"size": [2, 3], "counts": [2, 3, 1]}
BAD = {
    "no key": ({"boxes": 1}, r"target\[1\] must hold the key 'masks', got \['boxes'\]"),
    "an array": ({"masks": np.ones((1, 2, 3))}, r"\['masks'\] must be a tensor .* or a list, got ndarray"),
    "two dimensions": ({"masks": torch.ones(2, 3)}, r"the shape \(n, height, width\), got \(2, 3\)"),
    "no pixels": ({"masks": torch.ones(2, 0, 3)}, r"the shape \(n, height, width\), got \(2, 0, 3\)"),
    "complex": ({"masks": torch.ones(1, 2, 3, dtype=torch.complex64)}, "must be of a real dtype"),
    "no values": ({"masks": torch.ones(1, 2, 3, device="meta")}, "must hold values, got a tensor on the meta device"),
    "a sparse size": ({"masks": [GOOD], "size": torch.ones(2).to_sparse()}, r"\['size'\]` must be a dense tensor"),
    "a size without values": (
        {"masks": [GOOD], "size": torch.ones(2, dtype=torch.int64, device="meta")},
        r"\['size'\]` must hold values",
    ),
    "sparse counts": ({"masks": [{**GOOD, "counts": torch.tensor([2, 4]).to_sparse()}]}, "must be a dense tensor"),
    "a sparse polygon": ({"masks": [[torch.ones(6).to_sparse()]], "size": [2, 3]}, "must be a dense tensor"),
    "NaN": ({"masks": torch.tensor([[[1.0]], [[torch.nan]]])}, "must hold no NaN, got one in row 1"),
    "a tensor in a list": ({"masks": [torch.ones(2, 3)]}, "must hold a dict .* or a list .* got Tensor in row 0"),
    "no counts": ({"masks": [{"size": [2, 3]}]}, r"keys 'size' and 'counts', got \['size'\] in row 0"),
    "a short size": ({"masks": [{**GOOD, "size": [2]}]}, r"\[0\]\['size'\] must be a height and a width, two ints"),
    "a broken size": ({"masks": [{**GOOD, "size": [2.0, 3]}]}, r"two ints, got \[2.0, 3\]"),
    "no height": ({"masks": [{"size": [0, 3], "counts": [0]}]}, "a width above 0 of fewer than"),
    "more columns than fit": ({"masks": [{"size": [1, 2**31], "counts": [0, 2**31]}]}, r"at most 2\^18 columns"),
    "columns of two pixels": ({"masks": [{"size": [1, 2**31], "counts": [0, 1, 2**31 - 2, 1]}]}, "columns, got"),
    "packed columns": ({"masks": [{"size": [16, 2**18 + 1], "counts": b"0PPP8"}]}, "columns, got .16, 262145."),
    "a wide polygon": ({"masks": [[[0, 0, 2, 0, 2, 2]]], "size": [1, 2**32 - 1]}, "columns, got"),
    "a side that no float holds": ({"masks": [{**GOOD, "size": [10**400, 1]}]}, r"fewer than 2\^32 pixels"),
    "two sizes": ({"masks": [GOOD, {**GOOD, "size": [3, 2]}]}, r"got \(2, 3\) and \(3, 2\) in row 1"),
    "another size than the image": ({"masks": [GOOD], "size": [4, 4]}, r"got \(4, 4\) and \(2, 3\) in row 0"),
    "a short sum": ({"masks": [GOOD, {**GOOD, "counts": [2, 3]}]}, r"add up to 2 x 3, got 5 in row 1"),
    "a long sum": ({"masks": [{**GOOD, "counts": [2, 3, 2]}]}, r"add up to 2 x 3, got 7 in row 0"),
    "a negative count": ({"masks": [GOOD, {**GOOD, "counts": [7, -1]}]}, r">= 0 .* got \[7, -1\] in row 1"),
    "a sum that wraps": ({"masks": [{**GOOD, "counts": [2**63 - 1, 2**63 - 1, 8]}]}, r">= 0 .* in row 0"),
    "counts of floats": (
        {"masks": [{**GOOD, "counts": [2.0, 4.0]}]},
        r"\[0\]\['counts'\] must be bytes, str or a list",
    ),
    "counts of lists": ({"masks": [GOOD, {**GOOD, "counts": [[2], [3, 1]]}]}, r"\[1\]\['counts'\] must be bytes"),
    "counts beyond 64 bits": ({"masks": [{**GOOD, "counts": [2**64, 6]}]}, r"\[0\]\['counts'\] must be bytes"),
    "counts without values": ({"masks": [{**GOOD, "counts": [torch.ones(1).to("meta")]}]}, r"\['counts'\] must be"),
    "half a character": ({"masks": [{**GOOD, "counts": "\ud800"}]}, "alphabet, got .* in row 0"),
    "no counts at all": ({"masks": [GOOD, {**GOOD, "counts": b""}]}, r"add up to 2 x 3, got b'' in row 1"),
    "another alphabet": ({"masks": [{**GOOD, "counts": "é6"}]}, "alphabet, got .* in row 0"),
    "a space": ({"masks": [{**GOOD, "counts": "6 "}]}, "alphabet, got b'6 ' in row 0"),
    "a code cut short": ({"masks": [GOOD, {**GOOD, "counts": b"6o"}]}, "alphabet, got b'6o' in row 1"),
    "a count without end": ({"masks": [{**GOOD, "counts": b"o" * 8 + b"0"}]}, r"below 2\^32, got .* in row 0"),
    "polygons without a size": ({"masks": [[[0, 0, 2, 0, 2, 2]]]}, r"target\[1\] must hold the key 'size'"),
    "two points": ({"masks": [[[0, 0, 2, 0]]], "size": [4, 4]}, "3 points or more, got .* in row 0"),
    "an odd number": ({"masks": [[[0, 0, 2, 0, 2, 2, 1]]], "size": [4, 4]}, "3 points or more, got .* in row 0"),
    "a flat list": ({"masks": [[0, 0, 2, 0, 2, 2]], "size": [4, 4]}, "3 points or more, got 0 in row 0"),
    "no polygon": ({"masks": [[]], "size": [4, 4]}, "at least one polygon per object, got none in row 0"),
    "a polygon with NaN": ({"masks": [[[0, 0, 2, 0, 2, torch.nan]]], "size": [4, 4]}, "of finite numbers"),
    "a far polygon": ({"masks": [[[0, 0, 2, 0, 2, 1e9]]], "size": [4, 4]}, "of finite numbers up to 1e6"),
}


@pytest.mark.parametrize(("image", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused(image, message):
    with pytest.raises(ValueError, match=message) as error:
        read_masks("target", [{"masks": [GOOD]}, image])
    assert "target[1]" in str(error.value)


def test_different_sizes_name_the_image():
    one = {"masks": torch.ones(1, 2, 2)}
    detections = read_masks("preds", [one, {"masks": torch.ones(1, 2, 3)}])
    truths = read_masks("target", [one, {"masks": torch.ones(1, 3, 2)}])
    with pytest.raises(ValueError, match=r"preds\[1\]\['masks'\] and target\[1\]\['masks'\] .* \(2, 3\) and \(3, 2\)"):
        mask_overlaps(detections, truths, torch.zeros(2, dtype=torch.bool))


def test_values_false_takes_nan_for_outside():
    assert read_masks("preds", [{"masks": torch.tensor([[[1.0, torch.nan]]])}], values=False).area.tolist() == [1]


def test_polygons_without_pycocotools(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(ImportError, match=r"pip install 'torchmetrics-map\[coco\]'"):
        read_masks("target", [{"masks": [[[0, 0, 2, 0, 2, 2]]], "size": [4, 4]}])
    assert read_masks("target", [{"masks": [GOOD]}]).area.tolist() == [3]


def test_input_is_not_touched():
    dense = torch.rand(2, 5, 5, requires_grad=True)
    before = dense.detach().clone()
    counts = np.array([2, 3, 1])
    read_masks("preds", [{"masks": dense}, {"masks": [{"size": np.array([2, 3]), "counts": counts}]}])
    assert torch.equal(dense.detach(), before)
    assert counts.tolist() == [2, 3, 1]
