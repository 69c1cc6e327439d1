"""Columns of a batch of COCO's entries, each checked: the error names the entry and its line."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from map_metrics.readers.files import short
from map_metrics.readers.images import Column, Floats, Integers
from map_metrics.readers.json_stream import Entries

KEYPOINT = 3  # numbers: x, y, visibility


def column(batch: Entries, key: str) -> list[Any]:
    """The value of a key in each entry."""
    try:
        return [entry[key] for entry in batch.values]
    except (KeyError, TypeError, IndexError):
        for i, entry in enumerate(batch.values):
            if not isinstance(entry, dict):
                raise batch.error(i, f"must be an object, got {short(entry)}") from None
            if key not in entry:
                raise batch.error(i, f"must hold the key '{key}', got {short(sorted(entry))}") from None
        raise


def numbers(batch: Entries, key: str, values: list[Any], width: int | None = None) -> Floats:
    """(n,) or (n, width) finite float64."""
    shape = (len(values),) if width is None else (len(values), width)
    try:
        array = np.array(values) if values else np.zeros(shape)
    except ValueError:  # rows of different lengths
        array = np.zeros(0, object)
    plain = width is not None or set(map(type, values)) <= {int, float}
    if array.dtype.kind not in "iuf" or array.shape != shape or not plain:
        expected = "a number" if width is None else f"a list of {width} numbers"
        for i, value in enumerate(values):
            row = [value] if width is None else value
            if not isinstance(row, list) or len(row) != (width or 1) or not all(map(_is_number, row)):
                raise batch.error(i, f"'{key}' must be {expected}, got {short(value)}")
    result: Floats = array.astype(np.float64)
    refuse(batch, key, ~np.isfinite(result), "finite", values)
    return result


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def refuse(batch: Entries, key: str, bad: Any, expected: str, values: list[Any]) -> None:
    """A ReadError for the first entry that is ``bad``, (n,) or (n, width)."""
    if bad.any():
        i = int(np.argwhere(bad)[0, 0])
        raise batch.error(i, f"'{key}' must be {expected}, got {short(values[i])}")


def box_column(batch: Entries) -> Floats:
    """(n, 4) x, y, width and height in pixels."""
    values = column(batch, "bbox")
    box = numbers(batch, "bbox", values, 4)
    refuse(batch, "bbox", box[:, 2:] < 0, "x, y, width >= 0 and height >= 0", values)
    return box


def oriented_column(batch: Entries) -> Floats:
    """(n, 5) center x and y, width, height and the angle in radians, growing towards the y axis.

    Of ``rbox``, which has just these (Ultralytics), or of ``bbox``, whose angle is in degrees and grows the other way
    (Detectron2); a file holds one of the two.
    """
    key = "rbox" if batch.values and "rbox" in batch.values[0] else "bbox"
    values = column(batch, key)
    box = numbers(batch, key, values, 5)
    refuse(batch, key, box[:, 2:4] < 0, "center x and y, width >= 0, height >= 0 and angle", values)
    if key == "bbox":
        box[:, 4] = -np.deg2rad(box[:, 4])
    return box


def _keypoints(batch: Entries, num: int | None) -> Floats:
    """(n, K, 3); K as in the first entry where it is not known yet."""
    values = column(batch, "keypoints")
    width = KEYPOINT * num if num else len(values[0]) if values and isinstance(values[0], list) else KEYPOINT
    if not width or width % KEYPOINT:
        raise batch.error(0, f"'keypoints' must be a list of x, y and visibility in turn, got {short(values[0])}")
    return numbers(batch, "keypoints", values, width).reshape(len(values), width // KEYPOINT, KEYPOINT)


def _masks(batch: Entries) -> list[Any]:
    """Run-length codes and polygons as they are; what they hold, the metric checks."""
    values = column(batch, "segmentation")
    for i, value in enumerate(values):
        if not (isinstance(value, list) or (isinstance(value, dict) and "size" in value and "counts" in value)):
            raise batch.error(i, f"'segmentation' must be polygons, or hold 'size' and 'counts', got {short(value)}")
    return values


def shape_columns(
    batch: Entries, iou_types: tuple[str, ...], *, truth: bool, num_keypoints: int | None = None
) -> dict[str, Column]:
    """The columns that the types of overlap need."""
    read: dict[str, Column] = {}
    if "bbox" in iou_types or (truth and "keypoints" in iou_types):
        read["boxes"] = box_column(batch)
    if "obb" in iou_types:
        read["boxes"] = oriented_column(batch)
    if "segm" in iou_types:
        read["masks"] = _masks(batch)
    if "keypoints" in iou_types:
        read["keypoints"] = _keypoints(batch, num_keypoints)
    return read


NOTHING = Entries(Path(), None, 0, [], [])

# --- ids --------------------------------------------------------------------------------------------------------------


def is_id(value: Any) -> bool:
    """An integer of 64 bits, or a string."""
    return isinstance(value, str) or (type(value) is int and -(2**63) <= value < 2**63)


def places(what: str, batch: Entries, ids: list[Any]) -> dict[Hashable, int]:
    """The place of each declared id.

    Raises:
        ReadError: if one is neither an integer nor a string, is declared twice or is of another kind than the first.
    """
    found: dict[Hashable, int] = {}
    for i, value in enumerate(ids):
        if not is_id(value):
            raise batch.error(i, f"'id' must be an integer or a string, got {short(value)}")
        if value in found:
            raise batch.error(i, f"'id' {short(value)} is declared twice among the {what}")
        if type(value) is not type(ids[0]):
            raise batch.error(i, f"'id' must be of one kind, got {short(value)} behind {short(ids[0])}")
        found[value] = i
    return found


def look_up(batch: Entries, key: str, ids: list[Any], known: Mapping[Hashable, int], *, skip: bool = False) -> Integers:
    """(n,) the place of each id; -1 for an unknown one with ``skip``, else a ReadError."""
    try:
        found = np.array([known.get(value, -1) for value in ids], dtype=np.int64)
    except TypeError:  # a list is no key
        found = np.array([known.get(value, -1) if is_id(value) else -1 for value in ids], dtype=np.int64)
    for i in np.flatnonzero(found < 0).tolist():
        if not is_id(ids[i]):
            raise batch.error(i, f"'{key}' must be an integer or a string, got {short(ids[i])}")
        if not skip:
            raise batch.error(i, f"'{key}' {short(ids[i])} is not in the ground truth")
    return found
