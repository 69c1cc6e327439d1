"""Streams samples into each metric and prints by how much a process grew at its peak: ``test_memory`` runs it.

Each stream has a process of its own, forked behind the imports.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

import torch

from map_metrics import DetectionMAP, EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP

Update = Callable[[Any, int], None]


def rows(metric: RetrievalMAP, start: int) -> None:
    """1,000 rows."""
    place = torch.arange(start, start + 1000)
    metric.update(torch.rand(1000), place % 7 == 0, place % 50)


def matrix(metric: RetrievalMAP, start: int) -> None:
    """100 queries of 1,000 items, 10 relevant: 40 bytes a query and 32 for each relevant item."""
    metric.update(torch.rand(100, 1000), torch.arange(1000).expand(100, -1) % 100 == 0)


def codes(metric: HashingMAPAtK, start: int) -> None:
    """10,000 codes of 64 bits."""
    bits = torch.rand(10_000, 64) < 0.5
    metric.update(bits, torch.arange(10_000) % 100, query=False)


def vectors(metric: EmbeddingMAPAtK, start: int) -> None:
    """10,000 vectors of 32 dimensions."""
    metric.update(torch.randn(10_000, 32), torch.arange(10_000) % 100, query=False)


def images(metric: DetectionMAP, start: int) -> None:
    """100 images, each with 20 detections and 5 ground truths."""
    preds, target = [], []
    for _ in range(100):
        corner = torch.rand(25, 2) * 500
        box = torch.cat([corner, corner + torch.rand(25, 2) * 90], 1)
        preds.append({"boxes": box[:20], "scores": torch.rand(20), "labels": torch.arange(20) % 5})
        target.append({"boxes": box[20:], "labels": torch.arange(5)})
    metric.update(preds, target)


STREAMS: dict[str, tuple[type, Update, int, int]] = {  # class, update, samples of one update, samples in all
    "rows": (RetrievalMAP, rows, 1000, 200_000),
    "matrix": (RetrievalMAP, matrix, 100, 20_000),
    "codes": (HashingMAPAtK, codes, 10_000, 1_000_000),
    "vectors": (EmbeddingMAPAtK, vectors, 10_000, 200_000),
    "images": (DetectionMAP, images, 100, 20_000),
}


def peak() -> int:
    """Bytes, of the whole process since its start."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def stream(name: str) -> dict[str, float]:
    """Bytes of one sample: by which the peak of the process rose, and in the tables."""
    cls, update, step, total = STREAMS[name]
    metric = cls()
    for _ in range(5):  # what an update needs for a while
        update(metric, 0)
    metric.reset()
    gc.collect()
    before = peak()
    for start in range(0, total, step):
        update(metric, start)
    state = sum(block.nbytes for table in metric._tables for block in getattr(metric, table))
    return {"grown": (peak() - before) / total, "state": state / total}


def main() -> None:
    torch.set_num_threads(1)
    for name in STREAMS:
        child = os.fork()
        if not child:
            print(json.dumps({name: stream(name)}), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{name} failed")


if __name__ == "__main__":
    main()
