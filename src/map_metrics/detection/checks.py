"""Checks of the detection inputs: lists of dicts of tensors in, one normalised tensor per column out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from map_metrics.checks import exact_integers, is_integer, tensor
from map_metrics.detection.matching import NEGATIVE, NOT_EXHAUSTIVE, POSITIVE

HALF_EXACT = {torch.bfloat16: 2**8, torch.float16: 2**11}  # whole numbers up to here are exact
CROWD, IGNORE, DIFFICULT, EMPTY = 1, 2, 4, 8  # flags of a ground truth
FLAGS = {"iscrowd": CROWD, "is_group_of": CROWD, "ignore": IGNORE, "difficult": DIFFICULT}
_USUAL = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8, torch.int16}
_USUAL |= {torch.int32, torch.int64}
_REAL = ("boxes", "scores", "area")  # float64 does not hold every int64
_place = attrgetter("dtype", "device")
_kind = attrgetter("dtype", "layout", "is_meta", "is_nested")
_USUAL_KINDS = {
    key: {(dtype, torch.strided, False, False) for dtype in _USUAL - ({torch.int64} if key in _REAL else set())}
    for key in ("labels", *_REAL, *FLAGS)
}
IMAGE_LABELS = {
    "neg_category_ids": NEGATIVE,
    "not_exhaustive_category_ids": NOT_EXHAUSTIVE,
    "pos_category_ids": POSITIVE,
}


class Rows(NamedTuple):
    """The rows of one side of all images, one after the other, without their shapes.

    Attributes:
        counts: (images,) int64, rows of each image.
        label: (n,) int64.
        score: (n,) float64, empty for ground truths.
        flags: (n,) int64, sums of ``FLAGS``, empty for detections.
        area: (n,) float64 square pixels, NaN where not given, empty for detections.
    """

    counts: Tensor
    label: Tensor
    score: Tensor
    flags: Tensor
    area: Tensor


class Boxes(NamedTuple):
    """Boxes of one side of all images.

    Attributes:
        box: (n, 4) float64 x, y, width, height in pixels.
        rounded: the dtype of half-precision boxes beyond the range where it is exact, or None.
    """

    box: Tensor
    rounded: torch.dtype | None


def image_lists(preds: Any, target: Any) -> None:
    """Refuse anything but two lists of dicts of one length."""
    for name, images in (("preds", preds), ("target", target)):
        if not isinstance(images, list | tuple):
            raise ValueError(f"Argument `{name}` must be a list of dicts, one per image, got {type(images).__name__}")
        for i, image in enumerate(images):
            if not isinstance(image, Mapping):
                raise ValueError(f"Argument `{name}` must be a list of dicts, got {type(image).__name__} for image {i}")
    if len(preds) != len(target):
        raise ValueError(
            f"Arguments `preds` and `target` must have one dict per image each, got {len(preds)} and {len(target)}"
        )


def side(name: str, images: Sequence[Mapping[str, Any]], *, values: bool) -> Rows:
    """Read the labels of one side, and the scores (``"preds"``) or flags and areas (``"target"``)."""
    labels = _tensors(name, images, "labels")
    for i, label in enumerate(labels):
        if label.ndim != 1:
            raise ValueError(f"{name}[{i}]['labels'] must have the shape (n,), got {tuple(label.shape)}")
        if label.dtype.is_floating_point and label.numel():
            raise ValueError(f"{name}[{i}]['labels'] must be of an integer dtype, got {label.dtype}")
    counts = [label.shape[0] for label in labels]
    none = torch.zeros(0, dtype=torch.float64)
    rows = Rows(torch.tensor(counts, dtype=torch.int64), _join(labels, torch.int64), none, none.long(), none)
    if name == "preds":
        scores = _tensors(name, images, "scores")
        _same_lengths(name, "scores", scores, counts)
        rows = rows._replace(score=_join(scores, torch.float64))
        if values and not _sum_is_finite(rows.score):
            _refuse(name, "scores", ~torch.isfinite(rows.score), rows.counts, "be finite", rows.score)
        return rows
    present = set().union(*images)
    rows = rows._replace(flags=_flags(name, images, present, rows, counts, values))
    area = _optional(name, images, counts, "area", torch.nan) if "area" in present else None
    if area is None:
        return rows._replace(area=torch.full(rows.label.shape, torch.nan, dtype=torch.float64))
    if values:
        given = torch.tensor([image.get("area") is not None for image in images]).repeat_interleave(rows.counts)
        bad = given.to(area.device) & ~(torch.isfinite(area) & (area >= 0))
        _refuse(name, "area", bad, rows.counts, "be finite and >= 0", area)
    return rows._replace(area=area)


def _flags(
    name: str, images: Sequence[Mapping[str, Any]], present: set[str], rows: Rows, counts: list[int], values: bool
) -> Tensor:
    """(n,) int64 sums of ``FLAGS``."""
    flags = torch.zeros(len(rows.label), dtype=torch.int64)
    for key, flag in FLAGS.items():
        column = _optional(name, images, counts, key, 0) if key in present else None
        if column is not None:
            if values:
                _refuse(name, key, (column != 0) & (column != 1), rows.counts, "be 0 or 1", column)
            flags = flags.to(column.device) | (column.long() * flag)
    return flags


def boxes(name: str, images: Sequence[Mapping[str, Any]], counts: Tensor, box_format: str, *, values: bool) -> Boxes:
    """Read the boxes of one side."""
    box = _tensors(name, images, "boxes")
    lengths = counts.tolist()
    if [value.shape for value in box] != [(n, 4) for n in lengths]:
        box = [_four_columns(name, i, value, n) for i, (value, n) in enumerate(zip(box, lengths, strict=True))]
    raw = _join(box, torch.float64).view(-1, 4)
    converted = _to_xywh(raw, box_format)
    if values and not _sum_is_finite(converted):
        finite = torch.isfinite(raw).all(1) & torch.isfinite(converted).all(1)
        _refuse(name, "boxes", ~finite, counts, "be finite", raw)
    if values and len(converted) and float(converted[:, 2:].amin()) < 0:
        expected = "have x2 >= x1 and y2 >= y1" if box_format == "xyxy" else "have a width and a height >= 0"
        _refuse(name, "boxes", (converted[:, 2:] < 0).any(1), counts, expected, raw)
    return Boxes(converted, _rounded(box) if values else None)


def _sum_is_finite(values: Tensor) -> bool:
    """False where a value is not finite (and rarely elsewhere): much less work than a look at each."""
    return math.isfinite(float(values.sum()))


def image_labels(target: Sequence[Mapping[str, Any]]) -> tuple[Tensor, Tensor]:
    """(images,) int64 numbers of image-level labels, and their rows (k, 2) int64 (kind, label)."""
    counts, rows = [0] * len(target), []
    for key, kind in IMAGE_LABELS.items():
        if not any(key in image for image in target):
            continue
        for i, image in enumerate(target):
            value = image.get(key)
            if value is None:
                continue
            if isinstance(value, Tensor):
                value = tensor(f"target[{i}]['{key}']", value)
            labels = value.tolist() if isinstance(value, Tensor) and value.ndim == 1 and is_integer(value) else value
            if not isinstance(labels, list | tuple | set) or not all(_is_int(label) for label in labels):
                raise ValueError(
                    f"target[{i}]['{key}'] must be a list of ints or an integer tensor (k,), got {value!r}"
                )
            counts[i] += len(labels)
            rows += [(i, kind, int(label)) for label in labels]
    rows.sort()  # by image: one block, in one order whatever the order of the input
    return torch.tensor(counts, dtype=torch.int64), torch.tensor(rows, dtype=torch.int64).view(-1, 3)[:, 1:]


def image_ids(target: Sequence[Mapping[str, Any]]) -> tuple[Tensor, Tensor]:
    """(images,) int64 ids, 0 where none is given, and (images,) int64 whether one is."""
    ids, named = [], []
    for i, image in enumerate(target):
        value = image.get("image_id")
        if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta and value.numel() == 1:
            value = value.item()
        if value is not None and not _is_int(value):
            raise ValueError(
                f"target[{i}]['image_id'] must be an int or an integer tensor of one element, got {value!r}"
            )
        ids.append(int(value or 0))
        named.append(int(value is not None))
    return torch.tensor(ids, dtype=torch.int64), torch.tensor(named, dtype=torch.int64)


def _is_int(value: Any) -> bool:
    integral = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
    return integral and -(2**63) < int(value) < 2**63


def label_range(name: str, label: Tensor, counts: Tensor, known: Iterable[int]) -> None:
    """Refuse labels that ``class_names`` does not name."""
    bad = ~torch.isin(label, torch.tensor(sorted(known), dtype=torch.int64, device=label.device))
    _refuse(name, "labels", bad, counts, "be one of the labels of `class_names`", label)


def _four_columns(name: str, i: int, value: Tensor, count: int) -> Tensor:
    """(count, 4) numbers; an empty tensor of any usual shape has none."""
    if value.numel() == 0 and value.ndim <= 2 and value.shape[-1] in (0, 4):
        value = value.reshape(0, 4)
    if value.ndim != 2 or value.shape[1] != 4:
        raise ValueError(f"{name}[{i}]['boxes'] must have the shape (n, 4), got {tuple(value.shape)}")
    if len(value) != count:
        raise ValueError(f"{name}[{i}]['boxes'] must have one row for each of the {count} labels, got {len(value)}")
    return value


def _same_lengths(name: str, key: str, values: list[Tensor], counts: list[int]) -> None:
    if [value.shape for value in values] == [(n,) for n in counts]:
        return
    for i, (value, n) in enumerate(zip(values, counts, strict=True)):
        if value.shape != (n,):
            raise ValueError(f"{name}[{i}]['{key}'] must have the shape ({n},) of its labels, got {tuple(value.shape)}")


def _tensors(name: str, images: Sequence[Mapping[str, Any]], key: str) -> list[Tensor]:
    """The tensors of all images under one key; the usual case is found by one look at all of them."""
    values: list[Any] = [image.get(key) for image in images]
    if set(map(type, values)) == {Tensor}:
        kinds = set(map(_kind, values))
        if len(kinds) == 1 and kinds <= _USUAL_KINDS[key]:
            return values
    return [_tensor(name, i, image, key) for i, image in enumerate(images)]


def _tensor(name: str, i: int, image: Mapping[str, Any], key: str) -> Tensor:
    value = image.get(key)
    if value is None:
        raise ValueError(f"{name}[{i}] must hold the key '{key}', got {sorted(map(str, image))}")
    if type(value) is not Tensor or _kind(value) not in _USUAL_KINDS[key]:
        value = tensor(f"{name}[{i}]['{key}']", value)
    if value.dtype == torch.int64 and key in _REAL:
        exact_integers(f"{name}[{i}]['{key}']", value)
    return value


def _optional(
    name: str, images: Sequence[Mapping[str, Any]], counts: list[int], key: str, default: float
) -> Tensor | None:
    """A float64 column that images may lack, or None where all do."""
    if all(image.get(key) is None for image in images):
        return None
    filled = [
        image if image.get(key) is not None else {key: torch.full((n,), default, dtype=torch.float64)}
        for image, n in zip(images, counts, strict=True)
    ]
    parts = _tensors(name, filled, key)
    _same_lengths(name, key, parts, counts)
    return _join(parts, torch.float64)


def _join(parts: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Concatenate, converting before where dtypes or devices differ: int64 and float32 would meet in float32."""
    if not parts:
        return torch.zeros(0, dtype=dtype)
    if len(set(map(_place, parts))) > 1 or parts[0].device.type == "mps":
        parts = [part.cpu().to(dtype) for part in parts]
    return torch.cat(parts).detach().to(dtype)


def _to_xywh(box: Tensor, box_format: str) -> Tensor:
    """In float64, so that the width of a float32 box is exact."""
    if box_format == "xywh":
        return box
    first, second = box[:, :2], box[:, 2:]
    return torch.cat([first, second - first] if box_format == "xyxy" else [first - second / 2, second], 1)


def _refuse(name: str, key: str, bad: Tensor, counts: Tensor, expected: str, value: Tensor) -> None:
    if not bool(bad.any()):
        return
    row = int(bad.nonzero()[0])
    ends = counts.cumsum(0)
    image = int(torch.searchsorted(ends, torch.tensor(row), right=True))
    place = row - int(ends[image] - counts[image])
    raise ValueError(f"{name}[{image}]['{key}'] must {expected}, got {value[row].tolist()} in row {place}")


def _rounded(box: list[Tensor]) -> torch.dtype | None:
    for part in box:
        limit = HALF_EXACT.get(part.dtype)
        if limit is not None and len(part) and float(part.abs().max()) > limit:
            return part.dtype
    return None
