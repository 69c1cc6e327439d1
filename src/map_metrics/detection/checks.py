"""Checks of the detection inputs: lists of dicts of tensors in, one normalised tensor per column out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from map_metrics.checks import UNSIGNED, exact_integers, is_integer, tensor

HALF_EXACT = {torch.bfloat16: 2**8, torch.float16: 2**11}  # whole numbers up to here are exact


class Boxes(NamedTuple):
    """The rows of one side of all images, one after the other.

    Attributes:
        counts: (images,) int64, rows of each image.
        label: (n,) int64.
        box: (n, 4) float64 x, y, width, height in pixels.
        score: (n,) float64, empty for ground truths.
        crowd: (n,) float64 0 or 1, empty for detections.
        area: (n,) float64 square pixels, NaN where not given, empty for detections.
        rounded: the dtype of half-precision boxes beyond the range where it is exact, or None.
    """

    counts: Tensor
    label: Tensor
    box: Tensor
    score: Tensor
    crowd: Tensor
    area: Tensor
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


def boxes(name: str, images: Sequence[Mapping[str, Any]], box_format: str, *, values: bool) -> Boxes:
    """Read one side; ``name`` is ``"preds"`` (with scores) or ``"target"`` (with iscrowd and area)."""
    has_scores = name == "preds"
    box = [_box(name, i, image) for i, image in enumerate(images)]
    counts = [len(rows) for rows in box]
    label = [_column(name, i, image, "labels", n) for i, (image, n) in enumerate(zip(images, counts, strict=True))]
    _integer_dtype(name, "labels", label)
    none = torch.zeros(0, dtype=torch.float64)
    score = crowd = area = none
    if has_scores:
        parts = [_column(name, i, image, "scores", n) for i, (image, n) in enumerate(zip(images, counts, strict=True))]
        score = _join(parts, torch.float64)
    else:
        crowd = _optional(name, images, counts, "iscrowd", 0)
        area = _optional(name, images, counts, "area", torch.nan)
    raw = _join(box, torch.float64).view(-1, 4)
    result = Boxes(
        torch.tensor(counts, dtype=torch.int64),
        _join(label, torch.int64),
        _to_xywh(raw, box_format),
        score,
        crowd,
        area,
        _rounded(box) if values else None,
    )
    if values:
        _check_values(name, result, raw, box_format, [image.get("area") is not None for image in images])
    return result


def image_ids(target: Sequence[Mapping[str, Any]]) -> tuple[Tensor, Tensor]:
    """(images,) int64 ids, 0 where none is given, and (images,) int64 whether one is."""
    ids, named = [], []
    for i, image in enumerate(target):
        value = image.get("image_id")
        if isinstance(value, Tensor) and value.numel() == 1 and (is_integer(value) or value.dtype in UNSIGNED):
            value = value.item()
        if not (
            value is None or (isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) < 2**63)
        ):
            raise ValueError(
                f"target[{i}]['image_id'] must be an int or an integer tensor of one element, got {value!r}"
            )
        ids.append(int(value or 0))
        named.append(int(value is not None))
    return torch.tensor(ids, dtype=torch.int64), torch.tensor(named, dtype=torch.int64)


def label_range(name: str, label: Tensor, counts: Tensor, known: Iterable[int]) -> None:
    """Refuse labels that ``class_names`` does not name."""
    bad = ~torch.isin(label, torch.tensor(sorted(known), dtype=torch.int64, device=label.device))
    _refuse(name, "labels", bad, counts, "be one of the labels of `class_names`", label)


def _box(name: str, i: int, image: Mapping[str, Any]) -> Tensor:
    value = _tensor(name, i, image, "boxes")
    if value.ndim == 2 and value.shape[1] == 4:
        return value
    if value.numel() == 0 and value.ndim <= 2 and value.shape[-1] in (0, 4):
        return value.reshape(0, 4)
    raise ValueError(f"{name}[{i}]['boxes'] must have the shape (n, 4), got {tuple(value.shape)}")


def _column(name: str, i: int, image: Mapping[str, Any], key: str, count: int) -> Tensor:
    value = _tensor(name, i, image, key)
    if value.shape != (count,):
        raise ValueError(f"{name}[{i}]['{key}'] must have the shape ({count},) of its boxes, got {tuple(value.shape)}")
    return value


def _tensor(name: str, i: int, image: Mapping[str, Any], key: str) -> Tensor:
    if key not in image:
        raise ValueError(f"{name}[{i}] must hold the key '{key}', got {sorted(map(str, image))}")
    value = image[key]
    usual = type(value) is Tensor and value.layout == torch.strided and not value.is_complex()
    if not usual or value.dtype in UNSIGNED:
        return tensor(f"{name}[{i}]['{key}']", value)
    if value.dtype == torch.int64 and key in ("boxes", "scores", "area"):
        exact_integers(f"{name}[{i}]['{key}']", value)
    return value.detach() if value.requires_grad else value


def _optional(name: str, images: Sequence[Mapping[str, Any]], counts: list[int], key: str, default: float) -> Tensor:
    if all(image.get(key) is None for image in images):
        return torch.full((sum(counts),), default, dtype=torch.float64)
    parts = [
        torch.full((n,), default, dtype=torch.float64) if image.get(key) is None else _column(name, i, image, key, n)
        for i, (image, n) in enumerate(zip(images, counts, strict=True))
    ]
    return _join(parts, torch.float64)


def _integer_dtype(name: str, key: str, parts: list[Tensor]) -> None:
    for i, part in enumerate(parts):
        if not is_integer(part) and len(part):
            raise ValueError(f"{name}[{i}]['{key}'] must be of an integer dtype, got {part.dtype}")


def _join(parts: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Concatenate, converting before where dtypes or devices differ: int64 and float32 would meet in float32."""
    if not parts:
        return torch.zeros(0, dtype=dtype)
    if len({(part.dtype, part.device) for part in parts}) > 1 or parts[0].device.type == "mps":
        parts = [part.cpu().to(dtype) for part in parts]
    return torch.cat(parts).to(dtype)


def _to_xywh(box: Tensor, box_format: str) -> Tensor:
    """In float64, so that the width of a float32 box is exact."""
    if box_format == "xywh":
        return box
    first, second = box[:, :2], box[:, 2:]
    return torch.cat([first, second - first] if box_format == "xyxy" else [first - second / 2, second], 1)


def _check_values(name: str, result: Boxes, raw: Tensor, box_format: str, has_area: list[bool]) -> None:
    finite = torch.isfinite(raw).all(1) & torch.isfinite(result.box).all(1)
    negative = (result.box[:, 2:] < 0).any(1)
    if bool((~finite | negative).any()):
        _refuse(name, "boxes", ~finite, result.counts, "be finite", raw)
        expected = "have x2 >= x1 and y2 >= y1" if box_format == "xyxy" else "have a width and a height >= 0"
        _refuse(name, "boxes", negative, result.counts, expected, raw)
    if name == "preds":
        _refuse(name, "scores", ~torch.isfinite(result.score), result.counts, "be finite", result.score)
        return
    _refuse(name, "iscrowd", (result.crowd != 0) & (result.crowd != 1), result.counts, "be 0 or 1", result.crowd)
    given = torch.tensor(has_area, dtype=torch.bool).repeat_interleave(result.counts).to(result.area.device)
    bad = given & ~(torch.isfinite(result.area) & (result.area >= 0))
    _refuse(name, "area", bad, result.counts, "be finite and >= 0", result.area)


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
