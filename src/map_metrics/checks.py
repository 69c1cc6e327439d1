"""Every check of the inputs of `update` and of the pure forms: tensors in, normalised tensors out.

Each refusal is a ValueError that names the argument, what was expected, what came, and where. Nothing is written to.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

EXACT_INTEGERS = 2**53  # float64 holds every integer up to here
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


HALF = (torch.float16, torch.bfloat16)


def half_note(preds: Tensor, ties: str) -> str | None:
    """What to know of scores in half precision."""
    if preds.dtype not in HALF:
        return None
    return (
        f"Argument `preds` came as {preds.dtype}: scores that differ in float32 can be equal in it, and are ranked as "
        f"tied (ties={ties!r}). Pass float32 scores where they exist."
    )


def is_integer(values: Tensor) -> bool:
    """Whether the dtype is an integer one; bool counts as one."""
    return values.dtype in _INTEGERS or values.dtype == torch.bool


def tensor(name: str, value: Any) -> Tensor:
    """A dense real tensor, detached from any graph."""
    if not isinstance(value, Tensor):
        raise ValueError(f"Argument `{name}` must be a torch.Tensor, got {type(value).__name__}")
    if value.is_meta:
        raise ValueError(f"Argument `{name}` must hold values, got a tensor on the meta device")
    if value.layout != torch.strided or value.is_nested:
        raise ValueError(f"Argument `{name}` must be a dense tensor, got {_layout(value)}")
    if value.dtype in UNSIGNED:  # torch has few operations for these
        signed = value.long()
        refuse(name, signed < 0, "hold integers below 2^63", value)
        return signed
    if not (value.is_floating_point() or is_integer(value)):
        raise ValueError(f"Argument `{name}` must be of a real dtype, got {value.dtype}")
    return value.detach().resolve_neg()  # NumPy takes no lazily negated tensor


def _layout(value: Tensor) -> str:
    return "a nested one" if value.is_nested else f"layout {value.layout}"


def number(value: Any) -> float:
    """A real number as a float; NaN for anything else, for True and False, and for what no float holds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def entries(name: str, values: Any) -> list[Any]:
    """The entries of a list, tuple, array or tensor; empty for anything else."""
    values = tensor(name, values) if isinstance(values, Tensor) else values
    plain = values.tolist() if hasattr(values, "tolist") else values
    return list(plain) if isinstance(plain, list | tuple) else []


def numbers(name: str, values: Any) -> tuple[float, ...]:
    """The same as floats, by the rule of :func:`number`."""
    return tuple(map(number, entries(name, values)))


def count(name: str, value: Any, *, least: int = 0, most: float = math.inf) -> int:
    """An int in a range."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        bounds = f"of {least} or more" if most == math.inf else f"in {least} .. {most}"
        raise ValueError(f"Argument `{name}` must be an int {bounds}, got {value!r}")
    return int(value)


def hashable(name: str, values: Sequence[Hashable]) -> list[Hashable]:
    """Names that can be keys of a dict."""
    for value in values:
        if not isinstance(value, Hashable):
            raise ValueError(f"Argument `{name}` must hold names that can be keys of a dict, got {value!r}")
    return list(values)


def integers(name: str, value: Any) -> Tensor:
    """An int64 tensor from any integer dtype or bool."""
    value = tensor(name, value)
    if not is_integer(value):
        raise ValueError(f"Argument `{name}` must be of an integer dtype, got {value.dtype}")
    return value.long()


def same_shape(name: str, value: Tensor, other: str, expected: Tensor) -> None:
    """Refuse a tensor whose shape is not that of another argument."""
    if value.shape != expected.shape:
        raise ValueError(
            f"Argument `{name}` must have the shape of `{other}` {tuple(expected.shape)}, got {tuple(value.shape)}"
        )


def refuse(name: str, bad: Tensor, expected: str, value: Tensor) -> None:
    """Refuse where a mask over ``value`` is true anywhere: names the first place."""
    if bool(bad.any()):
        place = bad.nonzero()[0]
        where = tuple(place.tolist()) if len(place) != 1 else int(place)
        raise ValueError(f"Argument `{name}` must {expected}, got {value[tuple(place)].item()} at position {where}")


def floats(name: str, value: Any, *, values: bool = True) -> Tensor:
    """float64 scores: NaN and integers that float64 cannot hold are refused; -0.0 becomes 0.0."""
    value = tensor(name, value)
    if values:
        exact_integers(name, value)
    converted = (value.cpu() if value.device.type == "mps" else value).double() + 0.0
    if values and value.is_floating_point():
        refuse(name, converted.isnan(), "hold no NaN", converted)
    return converted


def binary(
    name: str, value: Any, ignore_index: int | None = None, *, values: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Relevance (bool) from a bool, integer or exact 0.0 / 1.0 target, and which items count (None: all)."""
    value = tensor(name, value)
    kept = None if ignore_index is None else _widened(value) != ignore_index
    if value.dtype == torch.bool and kept is None:
        return value, None
    relevant = value == 1
    other = ~(relevant | (value == 0))
    if kept is not None:
        relevant, other = relevant & kept, other & kept
    if values:
        refuse(name, other, "hold only 0 and 1 (or `ignore_index`)", value)
    return relevant, kept


def exact_integers(name: str, value: Tensor) -> None:
    """Refuse integers that float64 would round."""
    if value.dtype == torch.int64:
        inexact = (value > EXACT_INTEGERS) | (value < -EXACT_INTEGERS)
        refuse(name, inexact, "hold integers of at most 2^53", value)


def _widened(value: Tensor) -> Tensor:
    """A dtype in which comparing with any int means what it says: uint8 takes -1 for 255."""
    if value.is_floating_point():
        return value.float() if value.element_size() < 4 else value
    return value.long()


def ignored(ignore_index: Any) -> int | None:
    """The target value of items to remove, or None."""
    if ignore_index is None:
        return None
    if not isinstance(ignore_index, Integral) or isinstance(ignore_index, bool) or abs(int(ignore_index)) >= 2**63:
        raise ValueError(f"Argument `ignore_index` must be None or an int of 64 bits, got {ignore_index!r}")
    return int(ignore_index)


def group_counts(total: Any, relevant: Any, num_relevant: Any, ties: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """The counts of tie groups, best first, and the relevant items in all (flat) where given."""
    total, relevant = integers("total", total).cpu(), integers("relevant", relevant).cpu()
    same_shape("relevant", relevant, "total", total)
    if not total.ndim:
        raise ValueError("Argument `total` must have the shape (..., groups), got a scalar")
    refuse("total", total < 0, "hold counts >= 0", total)
    refuse("relevant", (relevant < 0) | (relevant > total), "lie between 0 and `total`", relevant)
    if ties == "stable":
        refuse("total", total > 1, "hold one item a group with ties='stable' (a group has no order)", total)
    if total.numel() and float(total.double().sum(-1).max()) > EXACT_INTEGERS:
        raise ValueError("Argument `total` must add up to at most 2^53 items a list")
    if num_relevant is None:
        return total, relevant, None
    if isinstance(num_relevant, Integral) and not isinstance(num_relevant, bool):
        if not 0 <= int(num_relevant) <= EXACT_INTEGERS:
            raise ValueError(f"Argument `num_relevant` must lie in 0 .. 2^53, got {num_relevant}")
        num_relevant = torch.full(total.shape[:-1], int(num_relevant))
    if not isinstance(num_relevant, Tensor):
        got = type(num_relevant).__name__
        raise ValueError(f"Argument `num_relevant` must be an int or an integer tensor, got {got}")
    known = integers("num_relevant", num_relevant).cpu()
    if known.shape != total.shape[:-1]:
        raise ValueError(
            f"Argument `num_relevant` must be an int or have the shape {tuple(total.shape[:-1])} of the lists, "
            f"got {tuple(known.shape)}"
        )
    refuse("num_relevant", known < relevant.sum(-1), "be at least the relevant items given", known)
    return total, relevant, known.reshape(-1)


def retrieval_rows(
    preds: Any, target: Any, indexes: Any, ids: Any, num_relevant: Any, ignore_index: int | None, values: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Flat (query, score, relevant, ids, num_relevant) of the items that are not ignored."""
    score = floats("preds", preds, values=values)
    relevant, kept = binary("target", target, ignore_index, values=values)
    query = integers("indexes", indexes)
    same_shape("target", relevant, "preds", score)
    same_shape("indexes", query, "preds", score)
    columns: list[Tensor | None] = [query, score, relevant]
    for name, value in (("ids", ids), ("num_relevant", num_relevant)):
        column = None if value is None else integers(name, value)
        if column is not None:
            same_shape(name, column, "preds", score)
        columns.append(column)
    flat = [None if column is None else column.reshape(-1) for column in columns]
    if kept is not None:
        place = kept.reshape(-1).to(score.device)
        flat = [None if column is None else column.to(score.device)[place] for column in flat]
    query, score, relevant, names, known = flat  # type: ignore[assignment]
    if values and known is not None:
        _, inverse = torch.unique(query, return_inverse=True)
        hits = torch.zeros_like(inverse).scatter_add_(0, inverse, relevant.long())[inverse]
        least = relevant.long() if names is not None else hits  # copies of one id count once
        refuse("num_relevant", (known < least) | (known < 0), "be at least the relevant items given", known)
        most = torch.zeros_like(inverse).scatter_reduce_(0, inverse, known, "amax")[inverse]
        refuse("num_relevant", known != most, "be one number for all rows of a query", known)
    return query, score, relevant, names, known


def retrieval_matrix(
    preds: Any, target: Any, ids: Any, num_relevant: Any, ignore_index: int | None, values: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """(Q, N) scores in their own dtype, relevance, which items count (None: all), (Q,) ids and num_relevant."""
    score = tensor("preds", preds)
    if score.ndim != 2:
        raise ValueError(
            f"Argument `preds` must have the shape (queries, items) where `indexes` is None, got {tuple(score.shape)}; "
            "rows of other shapes need `indexes`, the query of each item"
        )
    if score.is_floating_point() and score.element_size() == 1:
        score = score.float()
    if values:
        exact_integers("preds", score)
    if values and score.is_floating_point() and score.numel() and bool(score.amax().isnan()):
        refuse("preds", score.isnan(), "hold no NaN", score)
    relevant, kept = binary("target", target, ignore_index, values=values)
    same_shape("target", relevant, "preds", score)
    names = None if ids is None else integers("ids", ids)
    known = None if num_relevant is None else integers("num_relevant", num_relevant)
    for name, column in (("ids", names), ("num_relevant", known)):
        if column is not None and column.shape != score.shape[:1]:
            raise ValueError(
                f"Argument `{name}` must have the shape (queries,) = ({len(score)},), got {tuple(column.shape)}"
            )
    if values and known is not None:
        refuse("num_relevant", known < relevant.sum(1), "be at least the relevant items given", known)
    return score, relevant, kept, names, known


def codes(value: Any, packed: bool) -> Tensor:
    """(n, bits) bool from +-1, {0, 1} or bool codes; packed: (n, bytes) uint8."""
    value = tensor("codes", value)
    if value.ndim != 2 or not value.shape[1]:
        raise ValueError(
            f"Argument `codes` must have the shape (n, {'bytes' if packed else 'bits'}), got {tuple(value.shape)}"
        )
    if packed:
        if value.dtype != torch.uint8:
            raise ValueError(f"Argument `codes` must be of dtype torch.uint8 with packed=True, got {value.dtype}")
        return value
    if value.dtype == torch.bool:
        return value
    one, minus = _equal(value, 1), _equal(_widened(value) if value.dtype == torch.uint8 else value, -1)
    if bool((one | minus).all()):
        return one
    zero = _equal(value, 0)
    if bool((one | zero).all()):
        return one
    other = ~(one | zero | minus)
    if bool(other.any()):
        raise ValueError(
            f"Argument `codes` must hold +-1, 0/1 or bool, got {int(other.sum())} other values; threshold real-valued "
            f"codes first, for example `codes > 0`. {_first('codes', other, value)}"
        )
    raise ValueError(
        f"Argument `codes` must hold either +-1 or 0/1, got {int(zero.sum())} zeros among +-1 (`sign(0)` is 0); "
        f"threshold them first, for example `codes > 0`. {_first('codes', zero, value)}"
    )


def _equal(value: Tensor, number: int) -> Tensor:
    """Where the values are a number. On the CPU by NumPy, in half of torch's time."""
    if value.is_floating_point() and value.element_size() < 4:  # of which NumPy knows one
        value = value.float()
    return value == number if value.device.type != "cpu" else torch.from_numpy(value.numpy() == number)


def _first(name: str, bad: Tensor, value: Tensor) -> str:
    place = tuple(bad.nonzero()[0].tolist())
    return f"First: {name}[{', '.join(map(str, place))}] = {value[place].item()}"


def code_labels(value: Any, count: int) -> Tensor:
    """(n,) int64 class ids or (n, C) bool label sets."""
    value = tensor("labels", value)
    if value.ndim not in (1, 2) or len(value) != count or (value.ndim == 2 and not value.shape[1]):
        raise ValueError(
            f"Argument `labels` must have the shape ({count},) (class ids) or ({count}, classes) (multi-hot), "
            f"got {tuple(value.shape)}"
        )
    if value.ndim == 1:
        return integers("labels", value)
    if value.dtype != torch.bool:
        refuse("labels", (value != 0) & (value != 1), "hold only 0 and 1 where it is multi-hot", value)
    return value == 1


def flags(name: str, value: Any, count: int) -> Tensor:
    """(n,) bool from one bool or a bool tensor (n,)."""
    if isinstance(value, bool | np.bool_):
        return torch.full((count,), bool(value))
    if not isinstance(value, Tensor) or value.dtype != torch.bool or value.shape != (count,):
        got = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ValueError(f"Argument `{name}` must be True, False or a bool tensor of shape ({count},), got {got}")
    return tensor(name, value)


def sample_ids(value: Any, count: int) -> Tensor | None:
    """(n,) int64, or None."""
    if value is None:
        return None
    value = integers("ids", value)
    if value.shape != (count,):
        raise ValueError(f"Argument `ids` must have the shape ({count},), got {tuple(value.shape)}")
    return value


def embeddings(value: Any, similarity: str, *, values: bool = True) -> Tensor:
    """(n, dims) float32 from any floats; finite, and not zero where only the direction counts."""
    value = tensor("embeddings", value)
    if value.ndim != 2 or not value.shape[1] or not value.is_floating_point():
        raise ValueError(
            f"Argument `embeddings` must be floats of the shape (n, dims), got {value.dtype} {tuple(value.shape)}"
        )
    single = value.float()
    if values:
        refuse("embeddings", ~torch.isfinite(single), "be finite in float32", value)
        zero = (single == 0).all(1) & (similarity == "cosine")
        if bool(zero.any()):
            raise ValueError(
                f"Argument `embeddings` must hold no zero vector with similarity='cosine', got one in row "
                f"{int(zero.nonzero()[0])}"
            )
    return single
