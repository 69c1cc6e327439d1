"""Other people's average precision: readers of trec_eval's files, and plain ports of what benchmarks publish.

Each port takes one query's items in the order the tool ranks them, and follows its source line by line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[1] / "data" / "retrieval"
EXPECTED = json.loads((DATA / "expected.json").read_text())


# --- trec_eval --------------------------------------------------------------------------------------------------------


def read_qrels(name: str, level: int = 1) -> dict[str, dict[str, bool]]:
    """query -> document -> relevant (grade >= level)."""
    judged: dict[str, dict[str, bool]] = defaultdict(dict)
    for line in (DATA / "trec_eval_test" / name).read_text().splitlines():
        query, _, document, grade = line.split()[:4]
        judged[query][document] = int(grade) >= level
    return judged


def read_run(name: str) -> list[tuple[str, str, float]]:
    """(query, document, score), as the lines come."""
    lines = (line.split() for line in (DATA / "trec_eval_test" / name).read_text().splitlines())
    return [(fields[0], fields[2], float(fields[4])) for fields in lines]


def read_values(name: str) -> dict[tuple[str, str], float]:
    """(measure, query) -> value, of the measures of the family of map."""
    lines = (line.split() for line in (DATA / "trec_eval_test" / name).read_text().splitlines())
    return {(f[0], f[1]): float(f[2]) for f in lines if f[0] == "map" or f[0].startswith("map_cut")}


# --- ranx, in a process of its own: without its compiler, which takes a minute ----------------------------------------

_RANX = """
import json, sys
from ranx import Qrels, Run, evaluate
qrels, run, metrics = json.load(sys.stdin)
values = evaluate(Qrels(qrels), Run(run), metrics, return_mean=False)
json.dump({name: dict(zip(sorted(qrels), list(map(float, v)))) for name, v in values.items()}, sys.stdout)
"""


def ranx(qrels: dict, run: dict, metrics: list[str]) -> dict[str, dict[str, float]]:
    """metric -> query -> value."""
    done = subprocess.run(
        [sys.executable, "-c", _RANX],
        input=json.dumps([qrels, run, metrics]),
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


# --- ports ------------------------------------------------------------------------------------------------------------


def kaggle_apk(actual, predicted, k=10) -> float:
    """``ml_metrics.apk`` (Ben Hamner)."""
    if len(predicted) > k:
        predicted = predicted[:k]
    score = num_hits = 0.0
    for i, p in enumerate(predicted):
        if p in actual and p not in predicted[:i]:
            num_hits += 1.0
            score += num_hits / (i + 1.0)
    if not actual:
        return 0.0
    return score / min(len(actual), k)


def oxford_ap(ranks, nres) -> float:
    """``compute_ap`` of revisited Oxford and Paris (after compute_ap.cpp): zero-based ranks of the positives."""
    ap = 0.0
    recall_step = 1.0 / nres
    for j in range(len(ranks)):
        rank = ranks[j]
        precision_0 = 1.0 if rank == 0 else float(j) / rank
        precision_1 = float(j + 1) / (rank + 1)
        ap += (precision_0 + precision_1) * recall_step / 2.0
    return ap


def market1501_ap(good, junk, index) -> float:
    """``compute_AP.m`` of Market-1501, as ported: old precision and recall are carried along."""
    ap, old_recall, old_precision, intersect_size, j = 0.0, 0.0, 1.0, 0.0, 0
    ngood = len(good)
    if ngood == 0:
        return 0.0
    seen = 0
    for item in index:
        if item in junk:
            continue
        if item in good:
            intersect_size += 1
            seen += 1
        recall = intersect_size / ngood
        precision = intersect_size / (j + 1)
        ap += (recall - old_recall) * ((old_precision + precision) / 2)
        old_recall, old_precision = recall, precision
        j += 1
        if seen == ngood:
            break
    return ap


def torchreid_ap(distance, q_pid, q_cam, g_pid, g_cam):
    """``eval_market1501`` of torchreid for one query, with a stable argsort; None where it skips the query."""
    order = np.argsort(distance, kind="stable")
    remove = (g_pid[order] == q_pid) & (g_cam[order] == q_cam)
    matches = (g_pid[order] == q_pid)[~remove].astype(np.int32)
    if not matches.any():
        return None
    cmc = matches.cumsum() / (np.arange(len(matches)) + 1.0)
    return float((cmc * matches).sum() / matches.sum())


def calc_top_map(query_codes, gallery_codes, query_labels, gallery_labels, top_k) -> float:
    """``CalcTopMap`` of DeepHash-pytorch on +-1 codes and one-hot labels, with a stable argsort."""
    total = 0.0
    for i in range(query_labels.shape[0]):
        gnd = (np.dot(query_labels[i, :], gallery_labels.transpose()) > 0).astype(np.float64)
        hamm = 0.5 * (gallery_codes.shape[1] - np.dot(query_codes[i, :], gallery_codes.transpose()))
        gnd = gnd[np.argsort(hamm, kind="stable")][:top_k]
        tsum = int(np.sum(gnd))
        if tsum == 0:
            continue
        count = np.linspace(1, tsum, tsum)
        tindex = np.asarray(np.where(gnd == 1)) + 1.0
        total += np.mean(count / tindex)
    return total / query_labels.shape[0]


def map_at_r(matches, num_relevant) -> float:
    """``mean_average_precision_at_r`` of pytorch-metric-learning for one query: its nearest items, match or not."""
    matches = np.asarray(matches[:num_relevant], dtype=np.float64)
    precision = matches.cumsum() / (np.arange(len(matches)) + 1)
    return float((precision * matches).sum() / num_relevant)
