"""What is compared with what: the sets, our side, the peers, and the bars of each row."""

from __future__ import annotations

import contextlib
import gc
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import peers
import sets
from elsewhere import WithTorchvision
from peers import Laps, Stopwatch, Values
from sets import DetectionSet, HashingSet, MaskSet, RetrievalSet

from map_metrics import DetectionMAP, HashingMAPAtK, RetrievalMAP
from map_metrics.functional import hashing_map, retrieval_map

Contender = Callable[[Any], tuple[Values, Laps]]

# --- our side: where ties leave a peer a choice, a value is the pair (smallest, largest) ------------------------------


def our_detection(data: DetectionSet | MaskSet, iou_type: str = "bbox") -> tuple[Values, Laps]:
    watch = Stopwatch()
    metric = DetectionMAP(iou_type=iou_type)
    for preds, target in data.batches:
        metric.update(preds, target)
        watch.lap("update")
    result = metric.compute()
    watch.lap("compute")
    return {key: float(value) for key, value in result.items()}, watch.laps


def our_hashing(data: HashingSet) -> tuple[Values, Laps]:
    columns = (data.query_codes, data.query_labels, data.gallery_codes, data.gallery_labels)
    first = (data.query_codes[:50], data.query_labels[:50], *columns[2:])
    watch = Stopwatch()
    hashing_map(*columns)
    watch.lap("function")
    metric = HashingMAPAtK()
    for codes, labels in zip(data.gallery_codes.split(1_000), data.gallery_labels.split(1_000), strict=True):
        metric.update(codes, labels, query=False)
        watch.lap("update")
    metric.update(data.query_codes, data.query_labels, query=True)
    watch.lap("update")
    metric.compute()
    watch.lap("compute")
    ends = ("pessimistic", "optimistic")
    return {
        "map": tuple(float(hashing_map(*columns, ties=end)) for end in ends),
        "map@1,000 of the hits": tuple(float(hashing_map(*columns, top_k=1_000, ties=end)) for end in ends),
        "map of 50 queries in gallery order": float(hashing_map(*first, ties="stable")),
    }, watch.laps


def our_rows(data: RetrievalSet) -> tuple[Values, Laps]:
    watch = Stopwatch()
    metric = RetrievalMAP()
    for preds, target, indexes in peers.rows(data):
        metric.update(preds, target, indexes)
        watch.lap("update")
    value = float(metric.compute())
    watch.lap("compute")
    return {"map": value}, watch.laps


def our_matrix(data: RetrievalSet) -> tuple[Values, Laps]:
    watch = Stopwatch()
    value = float(retrieval_map(data.preds, data.target))
    watch.lap("function")
    return {"map": value}, watch.laps


# --- what is compared with what ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """Our stage over the peer's: all laps of a name together, ``total`` all laps, or ``one LAP`` their median."""

    ours: str
    peer: str
    theirs: str
    at_most: float | None = None
    goal: float | None = None


@dataclass(frozen=True)
class Limit:
    """Seconds that one of our stages may take."""

    ours: str
    what: str
    at_most: float
    goal: float


@dataclass(frozen=True)
class Room:
    """Bytes that our side may take above the set."""

    what: str
    goal: float
    at_most: None = None


@dataclass(frozen=True)
class Task:
    make: Callable[[], Any]
    quick: Callable[[], Any]
    ours: Contender
    peers: dict[str, Contender]
    bars: list[Ratio | Limit | Room]


DETECTION_PEERS: dict[str, Contender] = {
    "hotcoco": peers.hotcoco,
    "hotcoco streaming": peers.hotcoco_streaming,
    "ultrafast-pycocotools": peers.ultrafast_pycocotools,
}
HASHING_PEERS: dict[str, Contender] = {"faiss, k=1000": peers.faiss, "numpy loop": peers.numpy_loop}
MATRIX_PEERS: dict[str, Contender] = {"torch.sort": peers.torch_sort, "scikit-learn": peers.scikit_learn}

TASKS = {
    "coco": Task(
        sets.coco_like,
        partial(sets.coco_like, 500),
        our_detection,
        DETECTION_PEERS
        | {
            "faster-coco-eval": peers.faster_coco_eval,
            "pycocotools": peers.pycocotools,
            "torchmetrics, faster-coco-eval": WithTorchvision("torchmetrics_faster_coco_eval"),
            "torchmetrics, pycocotools": WithTorchvision("torchmetrics_pycocotools"),
        },
        [
            Ratio("compute", "hotcoco", "evaluate", at_most=2, goal=1),
            Ratio("compute", "ultrafast-pycocotools", "evaluate", goal=1),
            Ratio("total", "hotcoco", "total", goal=0.7),
            Ratio("total", "ultrafast-pycocotools", "total", goal=0.7),
            Ratio("total", "hotcoco streaming", "total", goal=1),
            Ratio("total", "faster-coco-eval", "total"),
            Ratio("total", "pycocotools", "total"),
            Ratio("total", "torchmetrics, faster-coco-eval", "total", goal=1 / 20),
            Ratio("total", "torchmetrics, pycocotools", "total", goal=1 / 20),
            Limit("one update", "16 images x 100 detections", at_most=1e-3, goal=0.4e-3),
        ],
    ),
    "objects365": Task(
        sets.objects365_like,
        partial(sets.objects365_like, 8_000),
        our_detection,
        DETECTION_PEERS,
        [
            Ratio("compute", "hotcoco", "evaluate"),
            Ratio("total", "hotcoco", "total", goal=0.7),
            Ratio("total", "ultrafast-pycocotools", "total", goal=0.7),
            Ratio("total", "hotcoco streaming", "total"),
            Room("fed in batches", goal=0.6e9),
        ],
    ),
    "crowded": Task(
        sets.crowded,
        partial(sets.crowded, 50),
        our_detection,
        DETECTION_PEERS,
        [
            Ratio("compute", "hotcoco", "evaluate"),
            Ratio("total", "hotcoco", "total"),
            Ratio("total", "ultrafast-pycocotools", "total"),
            Ratio("total", "hotcoco streaming", "total"),
        ],
    ),
    "masks": Task(
        sets.coco100_masks,
        partial(sets.coco100_masks, 2),
        partial(our_detection, iou_type="segm"),
        {"hotcoco": peers.hotcoco_masks},
        [Ratio("total", "hotcoco", "evaluate"), Ratio("total", "hotcoco", "total", goal=1)],
    ),
    "hashing": Task(
        sets.hashing,
        partial(sets.hashing, 100),
        our_hashing,
        HASHING_PEERS,
        [
            Ratio("function", "faiss, k=1000", "search", at_most=1, goal=0.4),
            Ratio("compute", "faiss, k=1000", "search"),
            Ratio("function", "numpy loop", "evaluate", goal=1 / 25),
            Limit("one update", "1,000 codes", at_most=1e-3, goal=1e-3),
        ],
    ),
    "hashing-collapsed": Task(
        partial(sets.hashing, collapsed=0.7),
        partial(sets.hashing, 100, collapsed=0.7),
        our_hashing,
        HASHING_PEERS,
        [
            Ratio("function", "faiss, k=1000", "search", goal=0.4),
            Ratio("function", "numpy loop", "evaluate", goal=1 / 25),
        ],
    ),
    "rows": Task(
        partial(sets.retrieval, 50_000, 100, 10),
        partial(sets.retrieval, 5_000, 100, 10),
        our_rows,
        {
            "torchmetrics": peers.torchmetrics_retrieval,
            "ranx": peers.ranx,
            "pytrec_eval": peers.pytrec_eval,
        },
        [
            Ratio("total", "torchmetrics", "evaluate", at_most=1 / 3, goal=1 / 4),
            Ratio("total", "ranx", "evaluate", goal=1),
            Ratio("total", "ranx", "total"),
            Ratio("total", "pytrec_eval", "evaluate", goal=1),
            Ratio("total", "pytrec_eval", "total"),
        ],
    ),
    "passages": Task(
        partial(sets.retrieval, 6_980, 1_000, 1),
        partial(sets.retrieval, 698, 1_000, 1),
        our_rows,
        {"ranx": peers.ranx, "pytrec_eval": peers.pytrec_eval},
        [Ratio("total", "ranx", "evaluate", goal=1), Ratio("total", "pytrec_eval", "evaluate", goal=1)],
    ),
    "matrix-10": Task(
        partial(sets.retrieval, 200, 100_000, 10),
        partial(sets.retrieval, 20, 100_000, 10),
        our_matrix,
        MATRIX_PEERS,
        [Ratio("function", "torch.sort", "sort", goal=1 / 4), Ratio("function", "scikit-learn", "evaluate")],
    ),
    "matrix-1000": Task(
        partial(sets.retrieval, 200, 100_000, 1_000),
        partial(sets.retrieval, 20, 100_000, 1_000),
        our_matrix,
        MATRIX_PEERS,
        [Ratio("function", "torch.sort", "sort", goal=3 / 5), Ratio("function", "scikit-learn", "evaluate")],
    ),
}
TOLERANCE = {"torchmetrics": 1e-6, "torchmetrics, faster-coco-eval": 1e-6, "torchmetrics, pycocotools": 1e-6}  # float32
SLOW = {"pycocotools", "torchmetrics, pycocotools"}  # a minute a run: only with --full, and once


def attempt(contender: Contender, data: Any) -> tuple[Values, Laps]:
    """One run, whose prints are dropped."""
    gc.collect()
    with contextlib.redirect_stdout(io.StringIO()):
        return contender(data)
