"""Batches for every ``update``, valid and broken: either the oracle's value, or a refusal that names the place.

A batch is drawn as plain numbers, becomes tensors, and may then be broken or dressed up in one or two places. What is
taken must have the value that plain loops find in the same tensors, also when these are overwritten afterwards. What is
not must be a ValueError or TypeError that names an argument, and leave the metric as it was.

``python tests/fuzz.py 600`` fuzzes for ten minutes, with another seed each time (``600 rows``: one kind).
"""

from __future__ import annotations

import math
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from cases import assert_same, state_of
from detection.oracle_coco import plain_loops, scene
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from oracles import brute, hamming
from torch import Tensor

from map_metrics import DetectionMAP, EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP
from map_metrics.detection.protocols import COCO
from map_metrics.rows import RowMetric

Batch = dict[str, Any]
Draw = Callable[[Any], Any]
BIG = 2**62
IDS = [0, 1, 2, 5, -1, -BIG, BIG, 2**31, 2**53 + 1]
OUTCOMES: Counter[str] = Counter()

# --- what is done to a tensor -----------------------------------------------------------------------------------------


def transposed(x: Tensor) -> Tensor:
    return x.t().contiguous().t() if x.ndim == 2 else x.repeat_interleave(2)[::2]


def view(x: Tensor) -> Tensor:
    """A window into a larger buffer."""
    buffer = torch.zeros(x.numel() + 6, dtype=x.dtype)
    buffer[3 : 3 + x.numel()] = x.reshape(-1)
    return buffer[3 : 3 + x.numel()].view(x.shape)


def in_grad(x: Tensor) -> Tensor:
    return x.clone().requires_grad_() if x.is_floating_point() else x


def with_value(value: Any) -> Callable[[Tensor], Tensor]:
    """The first element replaced, in a dtype that holds it."""

    def change(x: Tensor) -> Tensor:
        if not x.numel():
            return x
        x = x.double() if isinstance(value, float) else x.clone()
        x = x.long() if isinstance(value, int) and not x.is_floating_point() else x
        x.reshape(-1)[0] = value
        return x

    return change


def as_dtype(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(dtype)


DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e5m2",
    "int64",
    "int16",
    "int8",
    "uint8",
    "uint64",
    "bool",
]
DRESSED: dict[str, Callable[[Tensor], Any]] = {
    **{name: as_dtype(getattr(torch, name)) for name in DTYPES},
    "transposed": transposed,
    "view": view,
    "requires grad": in_grad,
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "negated view": lambda x: torch._neg_view(-x) if x.is_floating_point() else x,
}
BROKEN: dict[str, Callable[[Tensor], Any]] = {
    "None": lambda x: None,
    "text": lambda x: "text",
    "3": lambda x: 3,
    "0.5": lambda x: 0.5,
    "True": lambda x: True,
    "numpy": lambda x: np.asarray(x.tolist()),
    "list": lambda x: x.tolist(),
    "tuple": lambda x: tuple(x),
    "sparse": lambda x: x.to_sparse(),
    "complex": lambda x: x.to(torch.complex64),
    "meta": lambda x: x.to("meta"),
    "scalar": lambda x: x.reshape(-1)[0] if x.numel() else torch.tensor(0),
    "flat": lambda x: x.reshape(-1),
    "one more axis": lambda x: x[None],
    "last axis": lambda x: x[..., None],
    "short": lambda x: x[:-1],
    "longer": lambda x: torch.cat([x, x]),
    "no rows": lambda x: x[:0],
    "no columns": lambda x: x.reshape(len(x), -1)[:, :0] if len(x) else x,
    "1-d empty": lambda x: torch.zeros(0),
    "expanded": lambda x: x[:1].expand(x.shape) if len(x) else x,
    **{str(v): with_value(v) for v in (math.nan, math.inf, -math.inf, -0.0, 0.5, 1e300, 1e-320, -1, 2, BIG)},
}
CHANGES = DRESSED | BROKEN


def usual(value: Any) -> bool:
    """A tensor that no change has made odd."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_meta or not value.ndim:
        return False
    return value.dtype not in (torch.uint64, torch.float8_e5m2, torch.complex64)


def change(draw: Draw, batch: Batch) -> Batch:
    """The batch with up to two arguments changed, left out, or (rarely) one more."""
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2]))):
        name = draw(st.sampled_from(sorted(batch)))
        if draw(st.integers(0, 15)) == 0:
            batch = {key: value for key, value in batch.items() if key != name}
        elif usual(batch[name]):
            batch = batch | {name: CHANGES[draw(st.sampled_from(list(CHANGES)))](batch[name])}
        elif isinstance(batch[name], list):
            batch = batch | {name: changed_images(draw, batch[name])}
        if not batch:
            break
    return batch


def changed_images(draw: Draw, images: list[Any]) -> Any:
    whole = draw(st.sampled_from(["an image"] * 12 + ["None", "tuple", "dict", "one less", "text inside"]))
    if whole != "an image":
        odd = {"None": None, "tuple": tuple(images), "dict": {"boxes": images}}
        return odd.get(whole, images[1:] if whole == "one less" else [*images, "text"])
    if not images or not isinstance(images[0], dict) or not images[0]:
        return images
    place = draw(st.integers(0, len(images) - 1))
    image = dict(images[place]) if isinstance(images[place], dict) else {}
    if not image:
        return images
    key = draw(st.sampled_from(sorted(image)))
    if draw(st.integers(0, 9)) == 0:
        image.pop(key)
    elif usual(image[key]):
        image[key] = CHANGES[draw(st.sampled_from(list(CHANGES)))](image[key])
    else:
        image[key] = draw(st.sampled_from([None, "x", 1.5, 7, True, 2**70, torch.tensor(3), torch.tensor([3, 4]), []]))
    return [*images[:place], image, *images[place + 1 :]]


# --- valid batches, and what plain loops say of them ------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A metric with its arguments, its batches and their oracle (None: nothing to compare with)."""

    make: Callable[..., RowMetric]
    arguments: list[dict[str, Any]]
    batch: Callable[[Draw], Batch]
    oracle: Callable[[Batch, dict[str, Any]], float | None]


def numbers(draw: Draw, values: list[Any], n: int, dtype: torch.dtype) -> Tensor:
    return torch.tensor(draw(st.lists(st.sampled_from(values), min_size=n, max_size=n)), dtype=dtype)


SCORES = [-1.5, -0.0, 0.0, 0.25, 0.5, 2.0, -math.inf, math.inf]


def rows(draw: Draw) -> Batch:
    n = draw(st.integers(0, 7))
    batch = {
        "preds": numbers(draw, SCORES, n, torch.float32),
        "target": numbers(draw, [0, 1], n, torch.int64),
        "indexes": numbers(draw, IDS[:3], n, torch.int64),
    }
    if draw(st.booleans()):
        batch["ids"] = torch.arange(n) + draw(st.sampled_from(IDS[:-1]))
    return batch


def matrix(draw: Draw) -> Batch:
    q, n = draw(st.integers(0, 3)), draw(st.integers(0, 6))
    batch = {
        "preds": numbers(draw, SCORES, q * n, torch.float32).view(q, n),
        "target": numbers(draw, [0, 1], q * n, torch.int64).view(q, n),
    }
    if draw(st.booleans()):
        batch["ids"] = torch.arange(q) + draw(st.sampled_from(IDS[:-1]))
    if draw(st.integers(0, 3)) == 0:
        batch["num_relevant"] = batch["target"].sum(1) + draw(st.integers(0, 2))
    return batch


def plain(value: Tensor) -> Any:
    """Numbers of a tensor of any dtype."""
    return value.detach().to(torch.float64 if value.is_floating_point() else value.dtype).resolve_neg().tolist()


def of_queries(queries: list[tuple[list, list, int | None]], kwargs: dict[str, Any]) -> float | None:
    """Mean over (scores, target, R)."""
    ignored, sign = kwargs.get("ignore_index"), 1 if kwargs.get("largest", True) else -1
    values = []
    for scores, target, known in queries:
        kept = [(sign * float(s), int(t)) for s, t in zip(scores, target, strict=True) if t != ignored]
        if not kept and queries[0][2] is None and len(scores):
            continue
        scores, target = [s for s, _ in kept], [t for _, t in kept]
        ties, k = kwargs.get("ties", "expected"), kwargs.get("top_k")
        denominator = kwargs.get("denominator", "relevant")
        values.append(brute.of_scores(scores, target, known, k, denominator, ties))
    return math.fsum(values) / len(values) if values else 0.0


def rows_value(batch: Batch, kwargs: dict[str, Any]) -> float | None:
    flat = {name: plain(value.reshape(-1)) for name, value in batch.items() if value is not None}
    if "num_relevant" in flat:
        return None
    if "ids" in flat:
        pairs = list(zip(flat["indexes"], flat["ids"], strict=True))
        if len(set(pairs)) < len(pairs):
            return None
        order = sorted(range(len(pairs)), key=lambda i: pairs[i][1])
        flat = {name: [column[i] for i in order] for name, column in flat.items()}
    queries: dict[int, tuple[list, list, None]] = {}
    for query, score, target in zip(flat["indexes"], flat["preds"], flat["target"], strict=True):
        scores, targets, _ = queries.setdefault(int(query), ([], [], None))
        scores.append(score)
        targets.append(target)
    return of_queries(list(queries.values()), kwargs)


def matrix_value(batch: Batch, kwargs: dict[str, Any]) -> float | None:
    if batch.get("indexes") is not None:
        return rows_value(batch, kwargs)
    plains = {name: plain(value) for name, value in batch.items() if value is not None}
    if len(set(plains.get("ids", ()))) < len(plains.get("ids", ())) or (
        "ignore_index" in kwargs and "num_relevant" in plains
    ):
        return None
    known = plains.get("num_relevant", [None] * len(plains["preds"]))
    return of_queries([*zip(plains["preds"], plains["target"], map(to_int, known), strict=True)], kwargs)


def to_int(value: Any) -> int | None:
    return None if value is None else int(value)


def gallery(name: str) -> Callable[[Draw], Batch]:
    def batch(draw: Draw) -> Batch:
        n, width = draw(st.integers(0, 8)), draw(st.integers(1, 4))
        one = [-1, 1] if name == "codes" else [-2, -1, 0, 1, 3]
        data = numbers(draw, one, n * width, torch.float32).view(n, width)
        classes = draw(st.booleans())
        labels = numbers(draw, [0, 1, BIG], n, torch.int64) if classes else numbers(draw, [0, 1], 3 * n, torch.int64)
        batch = {name: data, "labels": labels if classes else labels.view(n, 3)}
        batch["query"] = numbers(draw, [True, False], n, torch.bool)
        if draw(st.booleans()):
            batch["ids"] = torch.arange(n) + draw(st.sampled_from(IDS[:-1]))
        return batch

    return batch


def items_of(batch: Batch, data: list[tuple]) -> tuple[list, list]:
    """Queries and gallery of the oracle, in the order of ids."""
    labels = plain(batch["labels"])
    sets = [frozenset(i for i, held in enumerate(row) if held) if isinstance(row, list) else int(row) for row in labels]
    ids = plain(batch["ids"]) if batch.get("ids") is not None else list(range(len(data)))
    query = batch["query"]
    is_query = [bool(query)] * len(data) if isinstance(query, bool) else plain(query)
    items = [hamming.Item(int(i), code, label) for i, code, label in zip(ids, data, sets, strict=True)]
    sides = [[x for x, q in zip(items, is_query, strict=True) if bool(q) == side] for side in (True, False)]
    return tuple(sorted(side, key=lambda item: item.id) for side in sides)


def codes_value(batch: Batch, kwargs: dict[str, Any]) -> float | None:
    data = [tuple(x > 0 for x in row) for row in plain(batch["codes"])]
    if repeated(batch):
        return None
    queries, gallery = items_of(batch, data)
    relevance, k = kwargs.get("relevance", "any"), kwargs.get("top_k")
    ranked = [hamming.ranking(q, gallery, relevance, exclude_self=kwargs.get("exclude_self", False)) for q in queries]
    values = [hamming.average_precision(r, k, "hits", kwargs.get("ties", "expected")) for r in ranked]
    return math.fsum(values) / len(values) if values else 0.0


def repeated(batch: Batch) -> bool:
    if batch.get("ids") is None:
        return False
    ids = plain(batch["ids"])
    return len(set(ids)) < len(ids)


def vectors_value(batch: Batch, kwargs: dict[str, Any]) -> float | None:
    """Of dot products of small whole numbers, which floats hold exactly."""
    data = plain(batch["embeddings"])
    if repeated(batch) or kwargs.get("similarity") != "dot" or any(x not in range(-8, 9) for row in data for x in row):
        return None
    queries, gallery = items_of(batch, [tuple(row) for row in data])
    values = []
    for q in queries:
        scores = [sum(a * b for a, b in zip(q.code, x.code, strict=True)) for x in gallery]
        relevant = [int(hamming.gain(q, x, "any") > 0) for x in gallery]
        values.append(
            brute.of_scores(scores, relevant, None, kwargs.get("top_k"), "relevant", kwargs.get("ties", "expected"))
        )
    return math.fsum(values) / len(values) if values else 0.0


THRESHOLDS = {"iou_thresholds": [0.5, 0.75], "rec_thresholds": [0.0, 0.4, 1.0]}


def images(draw: Draw) -> Batch:
    count = draw(st.integers(0, 3))
    preds, target = [], []
    for number in range(count):
        n, m = draw(st.integers(0, 4)), draw(st.integers(0, 3))
        preds.append({"boxes": corners(draw, n), "scores": numbers(draw, [0.0, 0.5, 0.75, 1.0], n, torch.float32)})
        preds[-1]["labels"] = numbers(draw, [0, 1, -3], n, torch.int64)
        target.append({"boxes": corners(draw, m), "labels": numbers(draw, [0, 1, -3], m, torch.int64)})
        if draw(st.booleans()):
            target[-1]["iscrowd"] = numbers(draw, [0, 0, 1], m, torch.int64)
        if draw(st.integers(0, 3)) == 0:
            target[-1]["pos_category_ids"] = draw(st.sampled_from([[0, 1], torch.tensor([1, 0]), []]))
        if draw(st.booleans()):
            target[-1]["image_id"] = draw(st.sampled_from([number, torch.tensor(number), torch.tensor([number])]))
    return {"preds": preds, "target": target}


def corners(draw: Draw, n: int) -> Tensor:
    first = numbers(draw, [0, 4, 8, 100], 2 * n, torch.float32).view(n, 2)
    return torch.cat([first, first + numbers(draw, [0, 8, 9, 40], 2 * n, torch.float32).view(n, 2)], 1)


def images_value(batch: Batch, kwargs: dict[str, Any]) -> float | None:
    """Where no image has an id, or all have and differ: the order of ties is then that of the oracle."""
    ids = [image.get("image_id") for image in batch["target"]]
    if any(i is not None for i in ids) and [int(-1 if i is None else i) for i in ids] != list(range(len(ids))):
        return None
    if any("area" in image for image in batch["target"]):
        return None
    found, true = [], []
    for number, (preds, target) in enumerate(zip(batch["preds"], batch["target"], strict=True)):
        boxes = plain(preds["boxes"].reshape(-1, 4))
        for box, score, label in zip(boxes, plain(preds["scores"]), plain(preds["labels"]), strict=True):
            found.append((number, int(label), float(score), xywh(box)))
        crowd = plain(target["iscrowd"]) if target.get("iscrowd") is not None else [0] * len(target["labels"])
        boxes = plain(target["boxes"].reshape(-1, 4))
        for box, label, flag in zip(boxes, plain(target["labels"]), crowd, strict=True):
            x, y, w, h = xywh(box)
            true.append((number, int(label), (x, y, w, h), bool(flag), w * h))
    protocol = replace(
        COCO, iou_thresholds=(0.5, 0.75), recall_thresholds=(0.0, 0.4, 1.0), areas=COCO.areas[:1], max_detections=(100,)
    )
    precision = plain_loops(*scene(found, true), protocol, len(batch["preds"])).precision
    defined = precision[precision > -1]
    return float(np.mean(defined)) if len(defined) else -1.0


def xywh(box: list[float]) -> tuple[float, float, float, float]:
    x, y, right, below = map(float, box)
    return x, y, right - x, below - y


def detection(**kwargs: Any) -> DetectionMAP:
    return DetectionMAP(**THRESHOLDS, output="map", **kwargs)


TIES = [{"ties": "stable"}, {"ties": "threshold"}, {"ties": "pessimistic"}]
KINDS = {
    "rows": Kind(
        RetrievalMAP,
        [{}, *TIES, {"top_k": 2, "denominator": "min"}, {"largest": False}, {"ignore_index": -1}],
        rows,
        rows_value,
    ),
    "matrix": Kind(
        RetrievalMAP,
        [{}, *TIES, {"top_k": 2, "denominator": "hits"}, {"largest": False}, {"ignore_index": -1}],
        matrix,
        matrix_value,
    ),
    "hashing": Kind(
        HashingMAPAtK,
        [{}, *TIES, {"top_k": 2}, {"relevance": "exact"}, {"relevance": 0.5}, {"exclude_self": True}],
        gallery("codes"),
        codes_value,
    ),
    "embedding": Kind(
        EmbeddingMAPAtK,
        [{"similarity": "dot"}, {"similarity": "dot", "ties": "stable"}, {"similarity": "dot", "top_k": 2}, {}],
        gallery("embeddings"),
        vectors_value,
    ),
    "detection": Kind(detection, [{}, {"validate_args": True}], images, images_value),
}
GOOD = {
    "rows": {"preds": torch.tensor([0.5, 0.1]), "target": torch.tensor([0, 1]), "indexes": torch.tensor([9, 9])},
    "matrix": {"preds": torch.tensor([[0.5, 0.1]]), "target": torch.tensor([[0, 1]])},
    "hashing": {"codes": torch.ones(1, 7), "labels": torch.ones(1).long(), "query": True, "ids": torch.tensor([77])},
    "embedding": {"embeddings": torch.ones(1, 7), "labels": torch.tensor([1]), "query": True},
    "detection": {
        "preds": [{"boxes": torch.tensor([[0.0, 0, 9, 9]]), "scores": torch.ones(1), "labels": torch.ones(1).long()}],
        "target": [{"boxes": torch.tensor([[0.0, 0, 9, 9]]), "labels": torch.ones(1).long()}],
    },
}
PLACES = [*(key for batch in GOOD.values() for key in batch), "num_relevant", "boxes", "scores", "iscrowd", "image_id"]
PLACES += ["ids", "area", "pos_category_ids"]

# --- the check --------------------------------------------------------------------------------------------------------


def copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return type(value)(map(copied, value)) if isinstance(value, list | tuple) else value


def overwrite(value: Any) -> None:
    """What a loader does that reuses its buffers."""
    if isinstance(value, Tensor) and value.numel():
        with torch.no_grad():
            value.detach().reshape(-1)[:1].zero_()
            value.detach().flatten().zero_() if value.is_contiguous() else None
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            overwrite(item)


def refusal(metric: RowMetric, batch: Batch) -> str | None:
    """What an update says that it refuses; the metric must be as before."""
    before = state_of(metric)
    try:
        metric.update(**batch)
    except (ValueError, TypeError) as err:
        assert_same(state_of(metric), before)
        return str(err)
    return None


def check(kind_name: str, kwargs: dict[str, Any], batch: Batch) -> str:
    """Update, compare, and say what came of it."""
    kind = KINDS[kind_name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric, filled = kind.make(**kwargs), kind.make(**kwargs)
        said = refusal(metric, batch)
        if said is not None:
            assert re.search("|".join(rf"\b{place}\b" for place in PLACES), said), f"names no place: {said}"
            filled.update(**GOOD[kind_name])
            value = filled.compute()
            assert refusal(filled, batch) is not None
            assert_same(filled.compute(), value)
            return "refused"
        expected = kind.oracle(copied(batch), kwargs)
        overwrite(batch)
        try:
            value = float(metric.compute())
        except ValueError:
            return "refused by compute"
        if expected is None:
            assert -1 <= value <= 1
            return "taken"
        assert abs(value - expected) <= 1e-12, (value, expected)
        return "taken, equal to the oracle"


def fuzzed(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    kwargs = data.draw(st.sampled_from(kind.arguments), label="arguments")
    batch = change(data.draw, kind.batch(data.draw))
    OUTCOMES[check(name, kwargs, batch)] += 1


def run_of(name: str) -> Callable[[st.DataObject], None]:
    def run(data: st.DataObject) -> None:
        fuzzed(name, data)

    return run


def main(seconds: float, names: list[str]) -> None:
    """Fuzz the kinds in turn until the time is over; a kind rests after its first find."""
    end, found = time.monotonic() + seconds, {}
    options = settings(
        max_examples=2000,
        deadline=None,
        database=DirectoryBasedExampleDatabase("build/fuzz"),
        suppress_health_check=list(HealthCheck),
    )
    while time.monotonic() < end and len(found) < len(names):
        for name in [name for name in names if name not in found]:
            try:
                options(given(st.data())(run_of(name)))()
            except Exception as err:
                found[name] = err
                traceback.print_exc()
            if time.monotonic() > end:
                break
        print(dict(OUTCOMES), flush=True)
    print({name: repr(err)[:300] for name, err in found.items()})


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:] or list(KINDS))
