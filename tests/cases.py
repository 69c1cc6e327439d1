"""Metrics with data for them, from which the laws and the distributed tests are run."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from map_metrics import DetectionMAP, EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP
from map_metrics.functional import detection_map, embedding_map, hashing_map, retrieval_map
from map_metrics.rows import RowMetric

BIG = 2**40 + 1  # ids that no float32, let alone a bfloat16, can hold
Batch = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One metric.

    Attributes:
        name: shown by pytest.
        cls: the class, made with ``kwargs``.
        kwargs: its arguments.
        data: seed -> list of batches, the keyword arguments of ``update``: with ties, an empty batch, a batch of one.
        pure: batches -> the value of the pure function on all of them at once.
        mapped: (batches, f) -> the batches with f applied to every score; None where there are no scores.
        named: samples have ids.
        order_free: neither the order of the batches nor the number of ranks shows.
        bounded: values lie in [0, 1] (or are the -1 of an undefined number).
    """

    name: str
    cls: type[RowMetric]
    kwargs: dict[str, Any]
    data: Callable[[int], list[Batch]]
    pure: Callable[..., Any]
    mapped: Callable[[list[Batch], Callable], list[Batch]] | None = None
    named: bool = True
    order_free: bool = True
    bounded: bool = True

    def make(self, **more: Any) -> RowMetric:
        return self.cls(**self.kwargs, **more)

    def batches(self, seed: int = 0) -> list[Batch]:
        return self.data(seed)

    def value(self, batches: list[Batch]) -> Any:
        """By a fresh metric in one process."""
        return fed(self.make(), batches).compute()


def fed(metric: RowMetric, batches: list[Batch]) -> RowMetric:
    for batch in batches:
        metric.update(**batch)
    return metric


# --- comparing -------------------------------------------------------------------------------------------------------


def leaves(value: Any, path: str = "value") -> dict[str, Any]:
    """Nested dicts and lists of tensors -> one flat dict of (dtype, shape, bits)."""
    if isinstance(value, Tensor):
        # tolist would call NaN unequal to itself and -0.0 equal to 0.0
        exact = value.detach().contiguous().cpu()
        raw = exact.view(torch.int64) if exact.dtype == torch.float64 else exact
        return {path: (value.dtype, tuple(value.shape), raw.reshape(-1).tolist())}
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in leaves(item, f"{path}[{key!r}]").items()} | {
            f"keys of {path}": list(value)
        }
    if isinstance(value, list | tuple):
        return {k: v for i, item in enumerate(value) for k, v in leaves(item, f"{path}[{i}]").items()} | {
            f"length of {path}": len(value)
        }
    return {path: repr(value)}


def assert_same(actual: Any, expected: Any) -> None:
    """The same structure, dtypes, shapes and bits."""
    actual, expected = leaves(actual), leaves(expected)
    assert actual.keys() == expected.keys()
    different = {key: (actual[key], expected[key]) for key in expected if actual[key] != expected[key]}
    assert not different, different


def state_of(metric: RowMetric) -> dict[str, Any]:
    """Everything that a refused call must not touch: the bits of the states, counters, flags."""
    flags = ("_update_count", "_is_synced", "_to_sync", "_should_unsync", "_enable_grad", "compute_on_cpu", "_cache")
    return leaves(
        {name: getattr(metric, name) for name in metric._defaults}
        | {flag: getattr(metric, flag) for flag in flags}
        | {"computed": metric._computed}
    )


# --- random numbers --------------------------------------------------------------------------------------------------


class Random:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def chance(self, p: float, shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=self.generator) < p

    def shuffled(self, n: int) -> Tensor:
        return torch.randperm(n, generator=self.generator)


SIZES = (14, 0, 1, 9, 16, 8)  # rows of each batch; the last takes what is left


def cut(columns: dict[str, Tensor], order: Tensor) -> list[Batch]:
    stops = [*itertools.accumulate(SIZES[:-1]), len(order)]
    parts = [order[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
    return [{name: column[part] for name, column in columns.items()} for part in parts]


# --- retrieval, rows -------------------------------------------------------------------------------------------------


def rows_data(
    seed: int, *, ids: bool = True, ignore: int | None = None, known: bool = False, tail: bool = True
) -> list[Batch]:
    """7 queries x up to 9 documents, each query spread over the batches; query 3 has nothing relevant."""
    random = Random(seed)
    pairs = torch.cartesian_prod(torch.arange(7), torch.arange(9))[random.shuffled(63)[:58]]
    query, document = pairs.unbind(1)
    score = random.integers(-4, 5, (58,)) / 4  # ties, negative scores, zeros
    if tail:
        score[random.chance(0.06, (58,))] = -torch.inf
    target = (random.chance(0.35, (58,)) & (query != 3)).long()
    if ignore is not None:
        target[random.chance(0.1, (58,))] = ignore
    columns = {"preds": score, "target": target, "indexes": query * 10**6 + BIG}
    if ids:
        columns["ids"] = document + BIG
    if known:
        columns["num_relevant"] = query + 12
    return cut(columns, torch.arange(58))


def rows_pure(batches: list[Batch], **kwargs: Any) -> Any:
    return retrieval_map(**{name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}, **kwargs)


def mapped_preds(batches: list[Batch], f: Callable) -> list[Batch]:
    return [batch | {"preds": f(batch["preds"].double())} for batch in batches]


def rows(name: str, *, data: dict[str, Any] | None = None, order_free: bool = True, **kwargs: Any) -> Case:
    data = data or {}
    return Case(
        f"rows-{name}",
        RetrievalMAP,
        kwargs,
        functools.partial(rows_data, **data),
        functools.partial(rows_pure, **kwargs),
        mapped_preds,
        named=data.get("ids", True),
        order_free=order_free,
    )


# --- retrieval, matrix -----------------------------------------------------------------------------------------------


def matrix_data(seed: int, *, ids: bool = True, known: bool = False) -> list[Batch]:
    """15 queries in matrices of several widths: wide ones with few relevant items, and narrow ones; one empty query."""
    random, batches, first = Random(seed), [], 0
    for count, width, p in ((3, 40, 0.03), (0, 6, 0.5), (1, 7, 0.4), (4, 12, 0.3), (5, 50, 0.04), (2, 9, 0.6)):
        score = random.integers(-3, 4, (count, width)) / 2
        score[random.chance(0.04, (count, width))] = -torch.inf
        target = random.chance(p, (count, width))
        if count == 4:
            target[1] = False
        batch = {"preds": score, "target": target}
        if ids:
            batch["ids"] = torch.arange(first, first + count) * 7919 % 101 + BIG
        if known:
            batch["num_relevant"] = target.sum(1) + torch.arange(count)
        batches.append(batch)
        first += count
    return batches


def matrix_pure(batches: list[Batch], **kwargs: Any) -> Any:
    """One matrix: narrow ones are padded with items that were not retrieved."""
    width = max(batch["preds"].shape[1] for batch in batches)

    def joined(name: str, fill: Any) -> Tensor:
        parts = [batch[name] for batch in batches]
        if parts[0].ndim == 1:
            return torch.cat(parts)
        return torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1]), value=fill) for part in parts])

    return retrieval_map(**{name: joined(name, -torch.inf if name == "preds" else 0) for name in batches[0]}, **kwargs)


def matrix(name: str, *, data: dict[str, Any] | None = None, order_free: bool = True, **kwargs: Any) -> Case:
    data = data or {}
    return Case(
        f"matrix-{name}",
        RetrievalMAP,
        kwargs,
        functools.partial(matrix_data, **data),
        functools.partial(matrix_pure, **kwargs),
        mapped_preds,
        named=data.get("ids", True),
        order_free=order_free,
    )


# --- hashing ---------------------------------------------------------------------------------------------------------


def codes_data(seed: int, *, bits: int = 10, labels: int = 0, ids: bool = True, packed: bool = False) -> list[Batch]:
    """20 queries and 40 gallery items, mixed; ids of both overlap with equal content, so that a query can be itself."""
    random = Random(seed)
    code = random.chance(0.5, (40, bits))
    label = random.chance(0.25, (40, labels)) if labels else random.integers(-2, 3, (40,)) + BIG
    if labels:
        label[5] = False  # an empty set
    else:
        label[5] = 3  # a class of one
    name = torch.arange(40) * 7919 % 101 + BIG
    item = torch.cat([torch.arange(20), torch.arange(40)])
    query = torch.arange(60) < 20
    if packed:
        code = (code.view(40, bits // 8, 8) * 2 ** torch.arange(8)).sum(2).to(torch.uint8)
    elif seed % 2:
        code = code * 2.0 - 1
    columns = {"codes": code[item], "labels": label[item], "query": query}
    if ids:
        columns["ids"] = name[item]
    return cut(columns, random.shuffled(60))


def vectors_data(seed: int, *, labels: int = 0, ids: bool = True) -> list[Batch]:
    """The same with a vector of five coordinates for every code: equal ones, opposite ones, ones of other lengths."""
    batches = []
    for batch in codes_data(seed, labels=labels, ids=ids):
        bit = (batch.pop("codes") > 0).float()
        vector = torch.cat([bit[:, :4] * 3 - 1, bit[:, 4:5] + 0.3], 1) * (1 + bit[:, 5:6])
        batches.append({"embeddings": vector, **batch})
    return batches


def codes_pure(batches: list[Batch], function: Callable[..., Any] = hashing_map, **kwargs: Any) -> Any:
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    query = whole.pop("query")
    sides = {
        f"{side}_{name}": column[mask]
        for side, mask in (("query", query), ("gallery", ~query))
        for name, column in whole.items()
    }
    return function(**sides, **kwargs)


def hashing(name: str, *, data: dict[str, Any] | None = None, order_free: bool = True, **kwargs: Any) -> Case:
    data = data or {}
    return Case(
        f"hashing-{name}",
        HashingMAPAtK,
        kwargs,
        functools.partial(codes_data, packed=kwargs.get("packed", False), **data),
        functools.partial(codes_pure, **kwargs),
        named=data.get("ids", True),
        order_free=order_free,
        bounded=kwargs.get("relevance") != "weighted",
    )


def embedding(name: str, *, data: dict[str, Any] | None = None, order_free: bool = True, **kwargs: Any) -> Case:
    data = data or {}
    return Case(
        f"embedding-{name}",
        EmbeddingMAPAtK,
        kwargs,
        functools.partial(vectors_data, **data),
        functools.partial(codes_pure, function=embedding_map, **kwargs),
        named=data.get("ids", True),
        order_free=order_free,
        bounded=kwargs.get("relevance") != "weighted",
    )


# --- detection -------------------------------------------------------------------------------------------------------


def image(
    random: Random, number: int, *, ids: bool, crowds: bool, areas: bool, shape: str, marks: bool
) -> tuple[Batch, Batch]:
    """Boxes on a coarse grid, detections near them, scores on a grid of eighths: ties inside and across images."""
    truths = int(random.integers(0, 5, ()))
    box = torch.cat([random.integers(0, 8, (truths, 2)) * 10, random.integers(1, 8, (truths, 2)) * 16], 1).float()
    label = random.integers(0, 3, (truths,))
    target = SHAPES[shape](box) | {"labels": label}
    if marks:  # what the protocols beside COCO's read
        target["difficult"] = target["ignore"] = random.chance(0.2, (truths,))
        target["neg_category_ids"], target["not_exhaustive_category_ids"] = [3], [number % 3]
    if crowds:
        target["iscrowd"] = random.chance(0.2, (truths,))
    if areas:
        target["area"] = torch.tensor([0.0, 500.0, 1024.0, 5000.0, 9216.0, 20000.0])[random.integers(0, 6, (truths,))]
    if ids:
        target["image_id"] = number * 7919 % 101 + BIG
    again = torch.cat([torch.arange(truths), random.integers(0, max(truths, 1), (4 if truths else 0,))])
    moved = box[again] + random.integers(-2, 3, (len(again), 4)) * torch.tensor([1.0, 1.0, 3.0, 3.0])
    stray = torch.tensor([[5.0, 5.0, 20.0, 20.0]])
    scores = random.integers(0, 8, (len(again) + 1,)) / 8
    labels = torch.where(random.chance(0.8, (len(again),)), label[again], 3)  # class 3 is never true
    preds = SHAPES[shape](torch.cat([moved, stray])) | {
        "scores": scores,
        "labels": torch.cat([labels, labels.new_ones(1)]),
    }
    if number == 2:
        preds = {name: column[:0] for name, column in preds.items()}
    return preds, target


def boxes(box: Tensor) -> Batch:
    return {"boxes": torch.cat([box[:, :2], box[:, :2] + box[:, 2:]], 1)}


def masks(box: Tensor) -> Batch:
    """Boxes drawn on a canvas of 48 x 40 cells of 4 x 4 pixels."""
    x, y = torch.arange(40) * 4, torch.arange(48)[:, None] * 4
    left, top, width, height = (column[:, None, None] for column in box.unbind(1))
    return {"masks": (x >= left) & (x < left + width) & (y >= top) & (y < top + height)}


def turned(box: Tensor) -> Batch:
    angle = (box[:, :1] + box[:, 2:3]) % 3
    return {"boxes": torch.cat([box[:, :2] + box[:, 2:] / 2, box[:, 2:], angle], 1)}


def poses(box: Tensor) -> Batch:
    """Three corners of each box, one of them not labeled where the box is high."""
    right, below = box[:, 2:] * torch.tensor([1.0, 0.0]), box[:, 2:] * torch.tensor([0.0, 1.0])
    points = torch.stack([box[:, :2], box[:, :2] + right, box[:, :2] + below], 1)
    seen = torch.ones(len(box), 3, 1)
    seen[:, 2, 0] = (box[:, 3] < 60).float()
    return {"keypoints": torch.cat([points, seen], 2)} | boxes(box)


SHAPES = {"boxes": boxes, "masks": masks, "turned": turned, "poses": poses, "both": lambda box: boxes(box) | masks(box)}


def images_data(
    seed: int,
    *,
    ids: bool = True,
    crowds: bool = False,
    areas: bool = False,
    shape: str = "boxes",
    marks: bool = False,
) -> list[Batch]:
    random, batches, number = Random(seed), [], 0
    for count in (4, 0, 1, 3, 4, 2):
        pairs = [
            image(random, number + i, ids=ids, crowds=crowds, areas=areas, shape=shape, marks=marks)
            for i in range(count)
        ]
        batches.append({"preds": [preds for preds, _ in pairs], "target": [target for _, target in pairs]})
        number += count
    return batches


def images_pure(batches: list[Batch], **kwargs: Any) -> Any:
    sides = ([image for batch in batches for image in batch[side]] for side in ("preds", "target"))
    return detection_map(*sides, **kwargs)


def mapped_scores(batches: list[Batch], f: Callable) -> list[Batch]:
    return [
        batch | {"preds": [preds | {"scores": f(preds["scores"].double())} for preds in batch["preds"]]}
        for batch in batches
    ]


def detection(name: str, *, data: dict[str, Any] | None = None, order_free: bool = True, **kwargs: Any) -> Case:
    data = data or {}
    return Case(
        f"detection-{name}",
        DetectionMAP,
        kwargs,
        functools.partial(images_data, **data),
        functools.partial(images_pure, **kwargs),
        mapped_scores,
        named=data.get("ids", True),
        order_free=order_free,
    )


def lower_quartile(ap: Tensor) -> Tensor:
    return ap.quantile(0.25)


CASES = [
    rows("expected"),
    rows("without-ids", data={"ids": False}),
    rows("without-ids-stable", data={"ids": False}, ties="stable", order_free=False),
    rows("optimistic-hits-k3", ties="optimistic", denominator="hits", top_k=3),
    rows("pessimistic-min-k4-skip", ties="pessimistic", denominator="min", top_k=4, empty_target_action="skip"),
    rows("stable-k2", ties="stable", denominator="k", top_k=2),
    rows("threshold-median", ties="threshold", aggregation="median", empty_target_action="pos"),
    rows("trapezoid-quartile", interpolation="trapezoid", aggregation=lower_quartile),
    rows("101-point-several-k", interpolation="101-point", ties="stable", top_k=(1, 3, 5)),
    rows("distances-ignored", data={"ignore": -1}, ignore_index=-1, largest=False, top_k="R"),
    rows("num-relevant", data={"known": True}),
    matrix("named"),
    matrix("anonymous", data={"ids": False}),
    matrix("stable-k3", ties="stable", top_k=3, denominator="hits"),
    matrix("known-envelope", data={"known": True}, ties="threshold", interpolation="envelope"),
    hashing("classes"),
    hashing("without-ids", data={"ids": False}, top_k=7),
    hashing("multi-hot-k5", data={"labels": 70}, top_k=5, denominator="min"),
    hashing("exact", data={"labels": 3}, relevance="exact", empty_target_action="skip"),
    hashing("jaccard", data={"labels": 4, "bits": 70}, relevance=0.5, ties="pessimistic"),
    hashing("weighted", data={"labels": 3}, relevance="weighted", label_weights=(0.7, 2.0, 0.1), top_k=(2, 9)),
    hashing("exclude-self", exclude_self=True, denominator="relevant"),
    hashing("packed", data={"bits": 16}, packed=True, top_k=10),
    hashing("stable", ties="stable", top_k=4),
    hashing("stable-without-ids", data={"ids": False}, ties="stable", order_free=False),
    embedding("cosine"),
    embedding("dot-without-ids", data={"ids": False}, similarity="dot", top_k=7, denominator="hits"),
    embedding("euclidean-multi-hot", data={"labels": 70}, similarity="euclidean", exclude_self=True, top_k=(2, 9)),
    embedding("weighted", data={"labels": 3}, relevance="weighted", label_weights=(0.7, 2.0, 0.1), top_k=5),
    embedding("stable", ties="stable", similarity="dot", top_k="R"),
    detection("macro"),
    detection("without-ids", data={"ids": False}, order_free=False),
    detection("micro", average="micro"),
    detection("class-metrics", class_metrics=True),
    detection("micro-class-metrics", average="micro", class_metrics=True, data={"crowds": True}),
    detection("extended", extended_summary=True),
    detection("caps", max_detection_thresholds=[1, 2, 5, 300]),
    detection("crowds-areas", data={"crowds": True, "areas": True}),
    detection("masks", data={"shape": "masks", "crowds": True}, iou_type="segm"),
    detection("boxes-and-masks", data={"shape": "both"}, iou_type=("bbox", "segm"), class_metrics=True),
    detection("oriented", data={"shape": "turned", "areas": True}, iou_type="obb", average="micro"),
    detection("keypoints", data={"shape": "poses"}, iou_type="keypoints", sigmas=[0.1, 0.2, 0.1]),
    detection("voc", data={"marks": True}, protocol="voc2012"),
    detection("voc2007-masks", data={"marks": True, "shape": "masks"}, protocol="voc2007", iou_type="segm"),
    detection("lvis", data={"marks": True}, protocol="lvis", class_groups={0: "r", 1: "c", 2: "c", 3: "f"}),
    detection("openimages", data={"marks": True, "crowds": True}, protocol="openimages", extended_summary=True),
    detection("output", output="map", iou_thresholds=[0.5], rec_thresholds=[0.0, 0.3, 0.9]),
]
SCALAR = [case for case in CASES if case.cls is not DetectionMAP and not isinstance(case.kwargs.get("top_k"), tuple)]
SCALAR += [case for case in CASES if "output" in case.kwargs]
BY_NAME = {case.name: case for case in CASES}
