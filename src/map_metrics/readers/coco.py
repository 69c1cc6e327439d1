"""COCO's JSON: ground truth and results; boxes, masks, keypoints; and what LVIS adds to it.

Both files are read batch after batch, so that a result file is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from map_metrics.detection.checks import FLAGS, IMAGE_LABELS
from map_metrics.readers.coco_columns import NOTHING, column, is_id, look_up, numbers, places, refuse, shape_columns
from map_metrics.readers.files import ReadError, short
from map_metrics.readers.images import Column, Rows, Truths
from map_metrics.readers.json_stream import Entries, json_lists

LISTS = ("images", "categories", "annotations")
Annotations = tuple[Entries, list[Any], list[Any], dict[str, Column]]  # image ids, category ids and the other columns

# --- ground truth -----------------------------------------------------------------------------------------------------


def read_coco_truths(path: str | Path, iou_types: tuple[str, ...] = ("bbox",)) -> Truths:
    """The ground truth of a COCO or LVIS file, its lists in any order.

    Args:
        path: JSON with ``images`` (``id``; for polygons ``height`` and ``width``), ``categories`` (``id``, ``name``)
            and ``annotations`` (``image_id``, ``category_id``, ``bbox``, and what ``iou_types`` need); ids are integers
            or strings. A missing ``area`` is that of the box.
        iou_types: what will be compared: ``"bbox"``, ``"segm"``, ``"obb"``, ``"keypoints"``.

    Raises:
        ReadError: naming the entry and its line, what was expected and what came.
    """
    declared: dict[str, list[Entries]] = {"images": [], "categories": []}
    annotations: list[Annotations] = []
    seen = set()
    for batch in json_lists(path):
        seen.add(batch.key)
        if batch.key == "annotations":
            ids = (column(batch, "image_id"), column(batch, "category_id"))
            num_keypoints = _num_keypoints(found for *_, found in annotations)
            columns = _truth_columns(batch, iou_types, num_keypoints)
            annotations.append((batch._replace(values=[]), *ids, columns))
        elif batch.key in declared:
            column(batch, "id")
            declared[batch.key].append(batch)
    if missing := [key for key in LISTS if key not in seen]:
        raise ReadError(path, f"must hold the list '{missing[0]}' beside its other keys")
    return _truths(Path(path), _joined(declared["images"]), _joined(declared["categories"]), annotations, iou_types)


def _joined(batches: list[Entries]) -> Entries:
    values = [value for batch in batches for value in batch.values]
    return batches[0]._replace(values=values, lines=[line for batch in batches for line in batch.lines])


def _num_keypoints(parts: Iterable[Mapping[str, Any]]) -> int | None:
    """As in the rows read so far."""
    return next((part["keypoints"].shape[1] for part in parts if len(part.get("keypoints", []))), None)


def _truths(
    path: Path, images: Entries, categories: Entries, annotations: list[Annotations], iou_types: tuple[str, ...]
) -> Truths:
    ids = column(images, "id")
    place = places("images", images, ids)
    order = {value: i for i, value in enumerate(sorted(place))}  # type: ignore[type-var]
    class_ids = column(categories, "id")
    classes = places("categories", categories, class_ids)
    labels = [value if isinstance(value, int) else i for value, i in classes.items()]
    rows = Rows()
    for batch, image_ids, category_ids, columns in annotations:
        image = look_up(batch, "image_id", image_ids, order)
        label = np.array(labels, np.int64)[look_up(batch, "category_id", category_ids, classes)]
        rows.add(image, {"labels": label, **columns})
    target = rows.by_image(len(order), _empty(iou_types))
    for image_id, entry in zip(ids, images.values, strict=True):
        at = order[image_id]
        target[at] |= _image_keys(images, place[image_id], entry, classes, labels, iou_types)
        target[at]["image_id"] = image_id if isinstance(image_id, int) else at
    names = {label: str(c.get("name", c["id"])) for label, c in zip(labels, categories.values, strict=True)}
    groups = {label: c.get("frequency") for label, c in zip(labels, categories.values, strict=True)}
    known = {label: str(group) for label, group in groups.items() if group is not None}
    return Truths(path, target, dict(order), classes, labels, names, known or None)


def _truth_columns(batch: Entries, iou_types: tuple[str, ...], num_keypoints: int | None) -> dict[str, Column]:
    """All columns of a batch of annotations but the ids."""
    columns = shape_columns(batch, iou_types, truth=True, num_keypoints=num_keypoints)
    given = [entry.get("area") for entry in batch.values]
    given = [_box_area(batch, i) if area is None else area for i, area in enumerate(given)]
    area = numbers(batch, "area", given)
    refuse(batch, "area", area < 0, "at least 0", given)
    columns["area"] = area
    for key in FLAGS:
        flags = [entry.get(key, 0) for entry in batch.values]
        value = numbers(batch, key, [int(x) if isinstance(x, bool) else x for x in flags])
        refuse(batch, key, (value != 0) & (value != 1), "0 or 1", flags)
        columns[key] = value.astype(np.int64)
    return columns


def _box_area(batch: Entries, i: int) -> float:
    box = batch.values[i].get("bbox", batch.values[i].get("rbox"))
    if not isinstance(box, list) or len(box) not in (4, 5):
        raise batch.error(i, f"must hold an 'area' or a 'bbox' of 4 numbers, got {short(sorted(batch.values[i]))}")
    return float(box[2]) * float(box[3])


def _image_keys(
    batch: Entries, i: int, entry: dict[str, Any], classes: Any, labels: list[int], iou_types: tuple[str, ...]
) -> dict[str, Any]:
    """What an image says beside its id: its size, and image-level labels (LVIS, Open Images)."""
    found: dict[str, Any] = {}
    if "segm" in iou_types and "height" in entry and "width" in entry:
        size = [entry["height"], entry["width"]]
        if not all(type(side) is int and side > 0 for side in size):
            raise batch.error(i, f"'height' and 'width' must be integers above 0, got {short(size)}")
        found["size"] = size
    for key in IMAGE_LABELS:
        if key in entry:
            if not isinstance(entry[key], list):
                raise batch.error(i, f"'{key}' must be a list, got {short(entry[key])}")
            unknown = [value for value in entry[key] if not is_id(value) or value not in classes]
            if unknown:
                raise batch.error(i, f"'{key}' holds {short(unknown[0])}, which is not among the categories")
            found[key] = [labels[classes[value]] for value in entry[key]]
    return found


def _empty(iou_types: tuple[str, ...]) -> dict[str, Column]:
    """The columns of no annotations."""
    none = np.zeros(0, np.int64)
    flags: dict[str, Column] = dict.fromkeys(FLAGS, none)
    return {"labels": none, "area": np.zeros(0), **flags, **shape_columns(NOTHING, iou_types, truth=True)}


# --- results ----------------------------------------------------------------------------------------------------------


def read_coco_results(
    path: str | Path, truths: Truths, iou_types: tuple[str, ...] = ("bbox",), *, skip_unknown: bool = False
) -> tuple[list[dict[str, Any]], int]:
    """The detections of a result file: one dict per image of the ground truth, and how many were left out.

    Args:
        path: a JSON list of results, or an object with such a list under ``annotations``: ``image_id``,
            ``category_id``, ``score``, and ``bbox``, ``rbox``, ``segmentation`` or ``keypoints`` as ``iou_types`` need.
        truths: from :func:`read_coco_truths`.
        iou_types: as there.
        skip_unknown: leave out detections of images or categories that the ground truth does not hold; else they are
            an error.

    Raises:
        ReadError: naming the entry and its line, what was expected and what came.
    """
    rows, skipped, seen = Rows(), 0, False
    labels = np.array([*truths.labels, 0], np.int64)  # the last for unknown ones
    num_keypoints = _num_keypoints(truths.target)
    for batch in json_lists(path):
        if batch.key not in (None, "annotations"):
            continue
        seen = True
        image = look_up(batch, "image_id", column(batch, "image_id"), truths.images, skip=skip_unknown)
        place = look_up(batch, "category_id", column(batch, "category_id"), truths.classes, skip=skip_unknown)
        columns: dict[str, Column] = {
            "labels": labels[place],
            "scores": numbers(batch, "score", column(batch, "score")),
        }
        columns |= shape_columns(batch, iou_types, truth=False, num_keypoints=num_keypoints)
        known = (image >= 0) & (place >= 0)
        if not known.all():
            skipped += int((~known).sum())
            columns = {name: _take(values, known.nonzero()[0]) for name, values in columns.items()}
        rows.add(image[known], columns)
    if not seen:
        raise ReadError(path, "must be a list of results, or hold one under 'annotations'")
    none = {"labels": np.zeros(0, np.int64), "scores": np.zeros(0)}
    preds = rows.by_image(len(truths.target), none | shape_columns(NOTHING, iou_types, truth=False))
    for found, target in zip(preds, truths.target, strict=True):
        if "size" in target:
            found["size"] = target["size"]
    return preds, skipped


def _take(values: Column, rows: Any) -> Column:
    return [values[i] for i in rows] if isinstance(values, list) else values[rows]
