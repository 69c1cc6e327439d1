"""Us beside the peers in one run on one machine: ``python benchmarks/run.py [--quick] [--only NAME] [--json PATH]``.

For each set, all contenders first have to agree on the values. Then they run in turns, several times; the table shows
medians and our time as a multiple of the peer's, beside the multiple to stay under (``at most``) and the one to reach
(``goal``).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import peers
import sets
import torch
from peers import Laps, Stopwatch, Values
from sets import DetectionSet, HashingSet, MaskSet, RetrievalSet

from map_metrics import DetectionMAP, HashingMAPAtK, RetrievalMAP
from map_metrics.functional import hashing_map, retrieval_map

Contender = Callable[[Any], tuple[Values, Laps]]

# --- our side: where ties leave a peer a choice, a value is the pair (smallest, largest) ------------------------------


def our_detection(data: DetectionSet) -> tuple[Values, Laps]:
    watch = Stopwatch()
    metric = DetectionMAP()
    for preds, target in data.batches:
        metric.update(preds, target)
        watch.lap("update")
    result = metric.compute()
    watch.lap("compute")
    return {key: float(value) for key, value in result.items()}, watch.laps


def our_masks(data: MaskSet) -> tuple[Values, Laps]:
    watch = Stopwatch()
    metric = DetectionMAP(iou_type="segm")
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
class Task:
    make: Callable[[], Any]
    quick: Callable[[], Any]
    ours: Contender
    peers: dict[str, Contender]
    bars: list[Ratio | Limit]


DETECTION_PEERS: dict[str, Contender] = {
    "hotcoco": peers.hotcoco,
    "hotcoco streaming": peers.hotcoco_streaming,
    "ultrafast-pycocotools": peers.ultrafast_pycocotools,
}
MATRIX_PEERS: dict[str, Contender] = {"torch.sort": peers.torch_sort, "scikit-learn": peers.scikit_learn}

TASKS = {
    "coco": Task(
        sets.coco_like,
        partial(sets.coco_like, 500),
        our_detection,
        DETECTION_PEERS
        | {"faster-coco-eval": peers.faster_coco_eval, "torchmetrics + torchvision": peers.torchmetrics_detection},
        [
            Ratio("compute", "hotcoco", "evaluate", at_most=2, goal=1),
            Ratio("compute", "ultrafast-pycocotools", "evaluate", goal=1),
            Ratio("total", "hotcoco", "total", goal=0.7),
            Ratio("total", "ultrafast-pycocotools", "total", goal=0.7),
            Ratio("total", "hotcoco streaming", "total", goal=1),
            Ratio("total", "faster-coco-eval", "total"),
            Ratio("total", "torchmetrics + torchvision", "total", goal=1 / 20),
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
        ],
    ),
    "masks": Task(
        sets.coco100_masks,
        partial(sets.coco100_masks, 2),
        our_masks,
        {"hotcoco": peers.hotcoco_masks},
        [Ratio("total", "hotcoco", "evaluate"), Ratio("total", "hotcoco", "total", goal=1)],
    ),
    "hashing": Task(
        sets.hashing,
        partial(sets.hashing, 100),
        our_hashing,
        {"faiss, k=1000": peers.faiss, "numpy loop": peers.numpy_loop},
        [
            Ratio("function", "faiss, k=1000", "search", at_most=1, goal=0.4),
            Ratio("compute", "faiss, k=1000", "search"),
            Ratio("function", "numpy loop", "evaluate", goal=1 / 25),
            Limit("one update", "1,000 codes", at_most=1e-3, goal=1e-3),
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
TOLERANCE = {"torchmetrics": 1e-6, "torchmetrics + torchvision": 1e-6}  # float32 inside

# --- running ----------------------------------------------------------------------------------------------------------


def attempt(contender: Contender, data: Any) -> tuple[Values, Laps]:
    gc.collect()
    with contextlib.redirect_stdout(io.StringIO()):
        return contender(data)


def disagreements(ours: Values, theirs: Values, tolerance: float) -> list[str]:
    faults = []
    for key, value in theirs.items():
        low, high = ours[key] if isinstance(ours[key], tuple) else (ours[key], ours[key])
        if not low - tolerance <= value <= high + tolerance:
            faults.append(f"{key}: ours {low if low == high else (low, high)}, theirs {value}")
    return faults


def seconds(laps: Laps, stage: str) -> float:
    if stage == "total":
        return sum(map(sum, laps.values()))
    return median(laps[stage.removeprefix("one ")]) if stage.startswith("one ") else sum(laps[stage])


def measure(task: Task, data: Any, runs: int) -> tuple[list[dict[str, Any]], bool]:
    """The rows of one table, and whether all values agree."""
    ours, _ = attempt(task.ours, data)
    states: dict[str, str] = {}
    for name, peer in task.peers.items():
        try:
            faults = disagreements(ours, attempt(peer, data)[0], TOLERANCE.get(name, 1e-9))
        except ImportError:
            states[name] = "not installed"
        else:
            states[name] = "values differ: " + "; ".join(faults) if faults else "ok"

    contenders = {"": task.ours} | {name: peer for name, peer in task.peers.items() if states[name] == "ok"}
    laps: dict[str, list[Laps]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, contender in contenders.items():
            laps[name].append(attempt(contender, data)[1])

    def median_of(name: str, stage: str) -> float:
        return median(seconds(one, stage) for one in laps[name])

    rows = []
    for bar in task.bars:
        row: dict[str, Any] = {"ours": bar.ours, "our_seconds": median_of("", bar.ours)}
        if isinstance(bar, Limit):
            row |= {"peer": bar.what, "ratio": row["our_seconds"], "unit": "ms", "state": "ok"}
        else:
            row |= {"peer": f"{bar.peer}: {bar.theirs}", "unit": "x", "state": states[bar.peer]}
            if bar.peer in laps:
                row["peer_seconds"] = median_of(bar.peer, bar.theirs)
                row["ratio"] = row["our_seconds"] / row["peer_seconds"]
        rows.append(row | {"at_most": bar.at_most, "goal": bar.goal})
    return rows, not any(state.startswith("values") for state in states.values())


def verdict(row: dict[str, Any]) -> str:
    if row["state"] != "ok":
        return str(row["state"])
    if row["at_most"] is not None and row["ratio"] > row["at_most"]:
        return "TOO SLOW"
    if row["goal"] is None:
        return ""
    return "goal reached" if row["ratio"] <= row["goal"] else "short of the goal"


def line(row: dict[str, Any]) -> str:
    def cell(value: float | None) -> str:
        if value is None:
            return ""
        return f"{value * 1e3:.3g} ms" if row["unit"] == "ms" else f"{value:.3g}"

    def time(value: float | None) -> str:
        return "" if value is None else f"{value:.4f}"

    times = [time(row["our_seconds"]), time(row.get("peer_seconds"))]
    bars = [cell(row.get("ratio")), cell(row["at_most"]), cell(row["goal"])]
    return f"{row['ours']:12}{row['peer']:40}" + "".join(f"{text:>10}" for text in times + bars) + f"  {verdict(row)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of each set, one run: shows that all of it works")
    parser.add_argument("--only", action="append", choices=TASKS, metavar="NAME", help=f"one of {', '.join(TASKS)}")
    parser.add_argument("--runs", type=int, default=5, help="runs whose median is shown (default 5)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there as well")
    options = parser.parse_args()

    machine = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads"
    if hasattr(os, "getloadavg"):
        machine += f", load {os.getloadavg()[0]:.1f}"  # on a busy machine the ratios mean little
    print(f"{machine}, Python {platform.python_version()}, torch {torch.__version__}")
    report: dict[str, Any] = {"machine": machine, "quick": options.quick, "tasks": {}}
    agreed = True
    for name in options.only or TASKS:
        task = TASKS[name]
        data = task.quick() if options.quick else task.make()
        print(f"\n{name}: {data}")
        heads = "".join(f"{head:>10}" for head in ("ours, s", "peer, s", "ratio", "at most", "goal"))
        print(f"{'ours':12}{'peer':40}{heads}")
        rows, same = measure(task, data, 1 if options.quick else options.runs)
        print("\n".join(map(line, rows)), flush=True)
        report["tasks"][name] = {"set": str(data), "rows": rows}
        agreed &= same
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if agreed else 1


if __name__ == "__main__":
    raise SystemExit(main())
