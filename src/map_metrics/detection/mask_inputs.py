"""Masks of a batch of images from dense tensors, COCO's run-length codes and polygons: read, checked, cut to strips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from map_metrics.checks import tensor
from map_metrics.detection.masks import Masks, Strips
from map_metrics.detection.pairs import Integers, array
from map_metrics.detection.run_lengths import Place, join, short, strips_of_runs, unpack

PIXELS_AT_ONCE = 1 << 20  # of dense masks in the cache of a CPU
DEVICE_PIXELS_AT_ONCE = 1 << 26  # fewer and larger steps for a GPU
WIDEST = 1 << 18  # columns of a mask, each of which costs memory
FURTHEST = 1e6  # pixels from the image's corner to a polygon's


def read_masks(name: str, images: Sequence[Mapping[str, Any]], *, values: bool = True) -> Masks:
    """The masks of the images, under the key ``masks`` of each.

    What an image may hold:

    - a tensor (n, height, width) on any device, of bool or integers (what is not 0 belongs to the mask) or of floats
      (what is above 0.5);
    - a list with one entry per object, each of them a run-length code of COCO, ``{"size": [h, w], "counts": ...}`` with
      compressed (bytes or str) or plain counts (a sequence of ints), or polygons, a list of flat lists
      ``[x1, y1, x2, y2, ...]`` in pixels of which the union counts. Polygons need the height and width of the image
      under its key ``size`` and the package pycocotools, which draws them.

    Args:
        name: ``"preds"`` or ``"target"``, for messages.
        images: one dict per image.
        values: False leaves out the search for NaN.

    Raises:
        ValueError: naming image and row, what was expected and what came.
        ImportError: for polygons without pycocotools.

    Example:
        >>> masks = read_masks("target", [{"masks": [{"size": [2, 3], "counts": [2, 3, 1]}]}])
        >>> masks.area, masks.box
        (tensor([3.], dtype=torch.float64), tensor([[1., 0., 2., 2.]], dtype=torch.float64))
    """
    counts, size = np.zeros(len(images), np.int64), np.zeros((len(images), 2), np.int64)
    codes: dict[bool, list[tuple[int, Any]]] = {True: [], False: []}  # compressed, plain
    parts = []
    row = 0
    for i, image in enumerate(images):
        where = f"{name}[{i}]['masks']"
        if "masks" not in image:
            raise ValueError(f"{name}[{i}] must hold the key 'masks', got {sorted(map(str, image))}")
        value = image["masks"]
        if isinstance(value, list | tuple):
            found, objects = _codes(where, f"{name}[{i}]", value, image.get("size"))
            for at, code in enumerate(objects, row):
                codes[type(code) is bytes].append((at, code))
        else:
            dense = _dense(where, value, values=values)
            found = (dense.shape[1], dense.shape[2])
            parts.append(_strips_of_dense(dense, row))
        counts[i], size[i] = len(value), found if len(value) else 0
        row += int(counts[i])
    place = Place(name, counts, np.repeat(size, counts, 0))
    for read, chosen in ((unpack, codes[True]), (join, codes[False])):
        if chosen:
            rows, entries = np.array([at for at, _ in chosen]), [code for _, code in chosen]
            parts.append(strips_of_runs(place, rows, read(place, rows, entries)))
    return Masks.of_strips(counts, size, _ordered(parts))


# --- one image --------------------------------------------------------------------------------------------------------


def _dense(where: str, value: Any, *, values: bool) -> Tensor:
    """A (n, height, width) tensor of any dtype, as it came."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{where} must be a tensor (n, height, width) or a list, got {type(value).__name__}")
    value = tensor(where, value)
    if value.numel() == 0 and value.ndim in (1, 3) and len(value) == 0:
        return value.reshape(0, *(value.shape[1:] if value.ndim == 3 else (0, 0)))
    if value.ndim != 3 or value.numel() == 0:
        raise ValueError(f"{where} must have the shape (n, height, width), got {tuple(value.shape)}")
    if value.is_floating_point() and value.element_size() == 1:  # torch has few operations for these
        value = value.float()
    if values and value.is_floating_point():
        bad = value.isnan().flatten(1).any(1)
        if bool(bad.any()):
            raise ValueError(f"{where} must hold no NaN, got one in row {int(bad.nonzero()[0])}")
    return value


def _codes(where: str, image: str, value: Sequence[Any], size: Any) -> tuple[tuple[int, int], list[Any]]:
    """The height and width of an image and, per object, bytes (compressed counts) or an array (plain counts)."""
    given = found = None if size is None else _size(f"{image}['size']", size)
    raw = own = None
    codes = []
    for row, entry in enumerate(value):
        if type(entry) is dict or isinstance(entry, Mapping):
            if "size" not in entry or "counts" not in entry:
                keys = sorted(map(str, entry))
                raise ValueError(f"{where} must hold the keys 'size' and 'counts', got {keys} in row {row}")
            if own is None or type(entry["size"]) is not list or entry["size"] != raw:
                raw, own = entry["size"], _size(f"{where}[{row}]['size']", entry["size"])
            code = entry["counts"]
            code = code if type(code) is bytes else _code(where, row, code)
        elif isinstance(entry, list | tuple):
            if given is None:
                raise ValueError(f"{where} holds polygons: {image} must hold the key 'size', its height and width")
            raw, own, code = None, given, _polygons(where, row, entry, given)
        else:
            raise ValueError(
                f"{where} must hold a dict (a run-length code) or a list (polygons) per object, "
                f"got {type(entry).__name__} in row {row}"
            )
        found = own if found is None else found
        if own != found:
            raise ValueError(f"{where} must be of one height and width, got {found} and {own} in row {row}")
        codes.append(code)
    return found or (0, 0), codes


def _size(where: str, size: Any) -> tuple[int, int]:
    size = tensor(where, size) if isinstance(size, Tensor) else size
    pair = size.tolist() if isinstance(size, Tensor | np.ndarray) else size
    is_pair = isinstance(pair, list | tuple) and len(pair) == 2
    if not is_pair or not all(isinstance(side, Integral) and not isinstance(side, bool) for side in pair):
        raise ValueError(f"{where} must be a height and a width, two ints, got {short(size)}")
    height, width = map(int, pair)
    if not (height > 0 and 0 < width <= WIDEST and height * width < 2**32):
        raise ValueError(
            f"{where} must be a height and a width above 0 of fewer than 2^32 pixels and at most 2^18 columns, "
            f"got {short(size)}"
        )
    return height, width


def _code(where: str, row: int, counts: Any) -> bytes | Integers:
    if isinstance(counts, bytes):
        return bytes(counts)
    if isinstance(counts, str):
        return counts.encode(errors="surrogatepass")  # a character that is not ASCII becomes bytes that no code holds
    plain = array(tensor(where, counts)) if isinstance(counts, Tensor) else counts
    if isinstance(plain, list | tuple | np.ndarray):
        with suppress(TypeError, ValueError, RuntimeError):  # lists in the list, tensors without values
            plain = np.asarray(plain)
            if plain.ndim == 1 and plain.dtype.kind in "iu":
                return plain.astype(np.int64)
    raise ValueError(f"{where}[{row}]['counts'] must be bytes, str or a list of ints, got {short(counts)}")


def _polygons(where: str, row: int, polygons: Sequence[Any], size: tuple[int, int]) -> bytes:
    """The union of the polygons, drawn and compressed by pycocotools."""
    try:
        from pycocotools import mask
    except ImportError as error:
        raise ImportError(f"{where} holds polygons, which need: pip install 'torchmetrics-map[coco]'") from error
    flat = [tensor(where, xy) if isinstance(xy, Tensor) else xy for xy in polygons]
    flat = [xy.tolist() if isinstance(xy, Tensor | np.ndarray) else xy for xy in flat]
    for xy in flat:
        numbers = isinstance(xy, list | tuple) and all(isinstance(x, Real) for x in xy)
        if not numbers or len(xy) < 6 or len(xy) % 2:
            raise ValueError(
                f"{where} must hold polygons [x1, y1, x2, y2, x3, y3, ...] of 3 points or more, "
                f"got {short(xy)} in row {row}"
            )
        if not all(abs(x) <= FURTHEST for x in xy):
            raise ValueError(f"{where} must hold polygons of finite numbers up to 1e6, got {short(xy)} in row {row}")
    if not flat:
        raise ValueError(f"{where} must hold at least one polygon per object, got none in row {row}")
    drawn = mask.merge(mask.frPyObjects([list(map(float, xy)) for xy in flat], *size))
    return bytes(drawn["counts"])


# --- strips -----------------------------------------------------------------------------------------------------------


def _strips_of_dense(masks: Tensor, row: int) -> Strips:
    """Strips of (n, height, width) masks, the first of which is row ``row``; found on the masks' device."""
    n, height, width = masks.shape
    pixels = PIXELS_AT_ONCE if masks.device.type == "cpu" else DEVICE_PIXELS_AT_ONCE
    step = max(1, pixels // max(1, height * width))
    edges = [torch.zeros(0, dtype=torch.int64)]
    for first in range(0, n, step):
        part = masks[first : first + step]
        inside = part > 0.5 if part.is_floating_point() else part != 0
        inside = torch.nn.functional.pad(inside, (0, 0, 1, 1))
        mask, y, x = (inside[:, 1:] != inside[:, :-1]).nonzero().unbind(1)
        # sorted by mask, column, row: tops and bottoms take turns
        edges.append((((mask + first) * width + x) * (height + 1) + y).sort().values.cpu())
    edge: Integers = array(torch.cat(edges))
    top, bottom = edge[::2] % (height + 1), edge[1::2] % (height + 1)
    column = edge[::2] // (height + 1)
    return Strips(row + column // max(1, width), column % max(1, width), top, bottom)


def _ordered(parts: Sequence[Strips]) -> Strips:
    """One record of all strips, by mask; those of a mask come from one part."""
    none = Strips(*(np.zeros(0, np.int64) for _ in Strips._fields))
    strips = Strips(*(np.concatenate(column) for column in zip(none, *parts, strict=True)))
    if (np.diff(strips.mask) >= 0).all():
        return strips
    order = np.argsort(strips.mask, kind="stable")
    return Strips(*(column[order] for column in strips))
