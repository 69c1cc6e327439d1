"""A guard that needs no clock: how many torch operations a call takes.

The limits are what the code takes now, and a tenth more. A change that exceeds one should be worth it: raise the limit
with the reason. Seconds stand in ``benchmarks/``.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from map_metrics import DetectionMAP, EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP


class Counted(TorchDispatchMode):
    """Counts the operations inside."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(call, *args, **kwargs) -> int:
    with Counted() as counted:
        call(*args, **kwargs)
    return counted.count


def rows(n):
    rng = torch.Generator().manual_seed(n)
    score, target = torch.rand(n, generator=rng), torch.rand(n, generator=rng) < 0.3
    return {"preds": score, "target": target, "indexes": torch.arange(n) % 7, "ids": torch.arange(n)}


def matrix(n):
    rng = torch.Generator().manual_seed(n)
    return {"preds": torch.rand(8, n, generator=rng), "target": torch.rand(8, n, generator=rng) < 0.3}


def gallery(n, data):
    rng = torch.Generator().manual_seed(n)
    values, labels = torch.randn(n, 64, generator=rng), torch.randint(0, 5, (n,), generator=rng)
    return {data: (values > 0) if data == "codes" else values, "labels": labels, "query": torch.arange(n) < n // 4}


def images(n):
    """16 images of n detections."""
    rng = torch.Generator().manual_seed(n)
    corner = torch.rand(16, n, 2, generator=rng) * 100
    boxes = torch.cat([corner, corner + 1 + torch.rand(16, n, 2, generator=rng) * 50], 2)
    labels, scores = torch.randint(0, 3, (16, n), generator=rng), torch.rand(16, n, generator=rng)
    preds = [{"boxes": b, "labels": c, "scores": s} for b, c, s in zip(boxes, labels, scores, strict=True)]
    target = [{"boxes": b[: n // 2], "labels": c[: n // 2]} for b, c in zip(boxes, labels, strict=True)]
    return {"preds": preds, "target": target}


UPDATES = {  # metric, input of size n, most operations of an update
    "rows": (RetrievalMAP, rows, 21),
    "matrix": (RetrievalMAP, matrix, 107),
    "hashing": (HashingMAPAtK, lambda n: gallery(n, "codes"), 25),
    "embedding": (EmbeddingMAPAtK, lambda n: gallery(n, "embeddings"), 37),
    "detection": (DetectionMAP, images, 82),
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_takes_few_operations_whatever_its_size(name):
    make, batch, most = UPDATES[name]
    counts = [operations(make().update, **batch(n)) for n in (40, 400)]
    assert counts[0] == counts[1]
    assert counts[0] <= most


def computed(make, batches) -> int:
    metric = make()
    for batch in batches:
        metric.update(**batch)
    return operations(metric.compute)


COMPUTES = {  # metric, batches of size n, most operations of a compute
    "rows": (RetrievalMAP, lambda n: [rows(n)], 304),
    "matrix": (RetrievalMAP, lambda n: [matrix(n)], 278),
    "hashing": (HashingMAPAtK, lambda n: [gallery(n, "codes")], 495),
    "detection": (DetectionMAP, lambda n: [images(n)], 611),
}


@pytest.mark.parametrize("name", COMPUTES)
def test_a_compute_takes_few_operations_whatever_the_size(name):
    make, batches, most = COMPUTES[name]
    counts = [computed(make, batches(n)) for n in (40, 400)]
    assert abs(counts[1] - counts[0]) <= counts[0] / 10
    assert max(counts) <= most


def test_batches_do_not_multiply_the_operations_of_a_compute():
    one, many = (computed(DetectionMAP, [images(40)] * k) for k in (1, 12))
    assert many <= one + 12
