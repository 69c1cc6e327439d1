"""The other tools, one function each: a set in, (named values, laps of the stopwatch) out.

A peer starts from the tensors that we start from and takes its fastest road from there to a number. It is imported
inside its function, before the watch starts.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from sets import DetectionSet, HashingSet, MaskSet, RetrievalSet

Values = dict[str, Any]
Laps = dict[str, list[float]]
COCO_NUMBERS = [
    *("map", "map_50", "map_75", "map_small", "map_medium", "map_large"),
    *("mar_1", "mar_10", "mar_100", "mar_small", "mar_medium", "mar_large"),
]


class Stopwatch:
    """``lap(name)`` notes the seconds since the last lap, or since the start, under ``name``."""

    def __init__(self) -> None:
        self.laps: Laps = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps.setdefault(name, []).append(now - self._last)
        self._last = now


# --- detection --------------------------------------------------------------------------------------------------------


def _columns(images: list[dict[str, torch.Tensor]], image_ids: np.ndarray) -> dict[str, np.ndarray]:
    """Per-image dicts to flat float64 columns, boxes as xywh."""
    keys = images[0].keys() - {"image_id"}
    columns = {key: torch.cat([image[key] for image in images]).double().numpy() for key in keys}
    columns["image_id"] = np.repeat(image_ids, [len(image["labels"]) for image in images])
    columns["boxes"][:, 2:] -= columns["boxes"][:, :2]
    return columns


def _flat(batches: list[tuple[Any, Any]]) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Image ids, ground truth columns, and detections as the (n, 7) array that COCO tools read."""
    preds = [image for batch in batches for image in batch[0]]
    target = [image for batch in batches for image in batch[1]]
    ids = torch.stack([image["image_id"] for image in target]).numpy()
    found = _columns(preds, ids)
    rows = np.column_stack([found[key] for key in ("image_id", "boxes", "scores", "labels")])
    return ids, _columns(target, ids), rows


def _annotations(columns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    areas = columns["boxes"][:, 2] * columns["boxes"][:, 3]
    keys = ("image_id", "category_id", "bbox", "iscrowd", "area")
    rows = zip(
        columns["image_id"].tolist(),
        columns["labels"].astype(int).tolist(),
        columns["boxes"].tolist(),
        columns["iscrowd"].astype(int).tolist(),
        areas.tolist(),
        strict=True,
    )
    return [{"id": number, **dict(zip(keys, row, strict=True))} for number, row in enumerate(rows, start=1)]


def _images(ids: np.ndarray) -> list[dict[str, int]]:
    return [{"id": number, "width": 640, "height": 640} for number in ids.tolist()]


def _categories(data: DetectionSet) -> list[dict[str, Any]]:
    return [{"id": number, "name": str(number)} for number in range(1, data.num_classes + 1)]


def _evaluate(evaluator: Any, watch: Stopwatch) -> Values:
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    watch.lap("evaluate")
    return dict(zip(COCO_NUMBERS, evaluator.stats[: len(COCO_NUMBERS)], strict=True))


def hotcoco(data: DetectionSet) -> tuple[Values, Laps]:
    from hotcoco import COCO, COCOeval

    watch = Stopwatch()
    ids, target, rows = _flat(data.batches)
    truth = COCO.from_arrays(
        _images(ids),
        _categories(data),
        target["image_id"],
        target["labels"].astype(np.int64),
        target["boxes"],
        area=target["boxes"][:, 2] * target["boxes"][:, 3],
        iscrowd=target["iscrowd"].astype(bool),
    )
    evaluator = COCOeval(truth, truth.load_res(rows), "bbox")
    watch.lap("load")
    return _evaluate(evaluator, watch), watch.laps


def hotcoco_masks(data: MaskSet) -> tuple[Values, Laps]:
    from hotcoco import COCO, COCOeval

    watch = Stopwatch()
    truth = COCO(data.truth)
    evaluator = COCOeval(truth, truth.load_res(data.results), "segm")
    watch.lap("load")
    return _evaluate(evaluator, watch), watch.laps


def hotcoco_streaming(data: DetectionSet) -> tuple[Values, Laps]:
    from hotcoco import StreamingEval

    watch = Stopwatch()
    stream = StreamingEval(_categories(data), "bbox")
    for batch in data.batches:
        ids, target, rows = _flat([batch])
        stream.update(_images(ids), _annotations(target), rows)
    watch.lap("load")
    evaluator = stream.finalize()
    evaluator.accumulate()
    evaluator.summarize()
    watch.lap("evaluate")
    return dict(zip(COCO_NUMBERS, evaluator.stats, strict=True)), watch.laps


def ultrafast_pycocotools(data: DetectionSet) -> tuple[Values, Laps]:
    from ultrafast_pycocotools import COCO, COCOeval

    return _like_pycocotools(COCO, COCOeval, data)


def faster_coco_eval(data: DetectionSet) -> tuple[Values, Laps]:
    from faster_coco_eval import COCO, COCOeval_faster

    return _like_pycocotools(COCO, COCOeval_faster, data)


def pycocotools(data: DetectionSet) -> tuple[Values, Laps]:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    return _like_pycocotools(COCO, COCOeval, data)


def _like_pycocotools(coco: Any, evaluator: Any, data: DetectionSet) -> tuple[Values, Laps]:
    watch = Stopwatch()
    ids, target, rows = _flat(data.batches)
    truth = coco()
    truth.dataset = {"images": _images(ids), "categories": _categories(data), "annotations": _annotations(target)}
    truth.createIndex()
    evaluation = evaluator(truth, truth.loadRes(rows), "bbox")
    watch.lap("load")
    return _evaluate(evaluation, watch), watch.laps


def torchmetrics_faster_coco_eval(data: DetectionSet) -> tuple[Values, Laps]:
    return _torchmetrics(data, "faster_coco_eval")


def torchmetrics_pycocotools(data: DetectionSet) -> tuple[Values, Laps]:
    return _torchmetrics(data, "pycocotools")


def _torchmetrics(data: DetectionSet, backend: Literal["faster_coco_eval", "pycocotools"]) -> tuple[Values, Laps]:
    from torchmetrics.detection import MeanAveragePrecision

    watch = Stopwatch()
    metric = MeanAveragePrecision(
        backend=backend,
        iou_thresholds=np.linspace(0.5, 0.95, 10).tolist(),  # its default grids are rounded to float32
        rec_thresholds=np.linspace(0, 1, 101).tolist(),
    )
    for preds, target in data.batches:
        metric.update(preds, target)
    result = metric.compute()
    watch.lap("evaluate")
    return {key: float(result[key]) for key in COCO_NUMBERS}, watch.laps


# --- hashing ----------------------------------------------------------------------------------------------------------


def faiss(data: HashingSet, k: int = 1_000) -> tuple[Values, Laps]:
    """The exact search alone; the average precision of what it found is for comparison and not timed."""
    import faiss

    watch = Stopwatch()
    gallery, queries = (np.packbits(codes.numpy() > 0, axis=1) for codes in (data.gallery_codes, data.query_codes))
    index = faiss.IndexBinaryFlat(queries.shape[1] * 8)
    index.add(gallery)
    _, nearest = index.search(queries, k)
    watch.lap("search")
    hits = data.gallery_labels.numpy()[nearest] == data.query_labels.numpy()[:, None]
    return {f"map@{k:,} of the hits": float(_mean_precision_at_hits(hits).mean())}, watch.laps


def numpy_loop(data: HashingSet) -> tuple[Values, Laps]:
    """The loop that most hashing repositories carry; its default argsort leaves the order of ties open."""
    watch = Stopwatch()
    value = _loop(data, len(data.query_codes), "quicksort")
    watch.lap("evaluate")
    return {"map": value, "map of 50 queries in gallery order": _loop(data, 50, "stable")}, watch.laps


def _loop(data: HashingSet, num_queries: int, kind: Literal["quicksort", "stable"]) -> float:
    """Distances by a product, an argsort, the precision at each hit."""
    queries, gallery = data.query_codes[:num_queries].numpy(), data.gallery_codes.numpy()
    query_labels, gallery_labels = data.query_labels[:num_queries].numpy(), data.gallery_labels.numpy()
    total = 0.0
    for code, label in zip(queries, query_labels, strict=True):
        distance = 0.5 * (gallery.shape[1] - code @ gallery.T)
        hits = (gallery_labels == label)[np.argsort(distance, kind=kind)]
        ranks = np.flatnonzero(hits) + 1.0
        if len(ranks):
            total += float(np.mean(np.arange(1, len(ranks) + 1) / ranks))
    return total / len(queries)


def _mean_precision_at_hits(hits: np.ndarray) -> np.ndarray:
    precision = hits.cumsum(1) / np.arange(1, hits.shape[1] + 1)
    return (precision * hits).sum(1) / hits.sum(1).clip(min=1)


# --- retrieval --------------------------------------------------------------------------------------------------------


def torchmetrics_retrieval(data: RetrievalSet) -> tuple[Values, Laps]:
    from torchmetrics.retrieval import RetrievalMAP

    watch = Stopwatch()
    metric = RetrievalMAP()
    for preds, target, indexes in rows(data):
        metric.update(preds, target, indexes)
    value = float(metric.compute())
    watch.lap("evaluate")
    return {"map": value}, watch.laps


def ranx(data: RetrievalSet) -> tuple[Values, Laps]:
    from ranx import Qrels, Run, evaluate

    def run(part: RetrievalSet, watch: Stopwatch) -> float:
        judged, ranked = _dicts(part)
        qrels, found = Qrels(judged), Run(ranked)
        watch.lap("load")
        value = float(evaluate(qrels, found, "map"))
        watch.lap("evaluate")
        return value

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba's, about the types inside ranx
        run(RetrievalSet(data.preds[:2], data.target[:2]), Stopwatch())  # compiles
        watch = Stopwatch()
        return {"map": run(data, watch)}, watch.laps


def pytrec_eval(data: RetrievalSet) -> tuple[Values, Laps]:
    import pytrec_eval

    watch = Stopwatch()
    judged, ranked = _dicts(data)
    watch.lap("load")
    result = pytrec_eval.RelevanceEvaluator(judged, {"map"}).evaluate(ranked)
    value = float(np.mean([query["map"] for query in result.values()]))
    watch.lap("evaluate")
    return {"map": value}, watch.laps


def torch_sort(data: RetrievalSet) -> tuple[Values, Laps]:
    watch = Stopwatch()
    order = data.preds.sort(dim=1, descending=True).indices
    watch.lap("sort")
    hits = data.target.gather(1, order)
    value = float(_mean_precision_at_hits(hits.numpy()).mean())
    watch.lap("average")
    return {"map": value}, watch.laps


def scikit_learn(data: RetrievalSet) -> tuple[Values, Laps]:
    from sklearn.metrics import average_precision_score

    watch = Stopwatch()
    pairs = zip(data.target.numpy(), data.preds.numpy(), strict=True)
    value = float(np.mean([average_precision_score(hits, scores) for hits, scores in pairs]))
    watch.lap("evaluate")
    return {"map": value}, watch.laps


def rows(data: RetrievalSet, queries: int = 1_000) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Flat batches (preds, target, indexes) of ``queries`` queries each."""
    for first in range(0, len(data.preds), queries):
        preds, target = data.preds[first : first + queries], data.target[first : first + queries]
        indexes = torch.arange(first, first + len(preds))[:, None].expand_as(preds)
        yield preds.flatten(), target.flatten(), indexes.flatten()


def _dicts(data: RetrievalSet) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    items = [f"d{number:06}" for number in range(data.preds.shape[1])]
    queries = [f"q{number:06}" for number in range(len(data.preds))]
    ranked = {
        query: dict(zip(items, scores, strict=True)) for query, scores in zip(queries, data.preds.tolist(), strict=True)
    }
    judged: dict[str, dict[str, int]] = {query: {} for query in queries}
    for query, item in data.target.nonzero().tolist():
        judged[queries[query]][items[item]] = 1
    return judged, ranked
