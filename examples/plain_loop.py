"""A plain loop: no Lightning, and a folder instead of a logger.

    python examples/plain_loop.py

A linear map of handwritten digits is trained so that digits of one class lie close together. The mAP of finding them,
the pictures and the table behind it become files in the folder.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn import functional

from map_metrics import EmbeddingMAPAtK
from map_metrics.loggers import log_result
from map_metrics.results import RetrievalResult


def evaluate(vectors: torch.Tensor, label: torch.Tensor, queries: slice) -> RetrievalResult:
    """Some digits search among all others."""
    ids = torch.arange(len(label))
    metric = EmbeddingMAPAtK(exclude_self=True)
    metric.update(vectors[queries], label[queries], query=True, ids=ids[queries])
    metric.update(vectors, label, query=False, ids=ids)
    return metric.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="training epochs (default: 20)")
    parser.add_argument("--logdir", type=Path, default=Path("logs"), help="where the files go (default: logs)")
    args = parser.parse_args()
    folder = args.logdir / "plain"

    data = load_digits()
    pixels, label = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 16)
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2)
    train, test = slice(0, 1300), slice(1300, None)
    values = []
    for epoch in range(args.epochs + 1):
        if epoch in (0, args.epochs):
            with torch.no_grad():
                result = evaluate(layer(pixels[test]), label[test], slice(0, 200))
            values.append(float(result.value()))
            log_result(folder, "test", result, epoch, extra=["chance"])
        vectors = functional.normalize(layer(pixels[train]), dim=1)
        alike = (label[train, None] == label[train]).fill_diagonal_(False)
        similarity = (vectors @ vectors.T / 0.1).fill_diagonal_(-torch.inf)
        loss = -similarity.log_softmax(1)[alike].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"plain: test/map {values[0]:.4f} before training, {values[1]:.4f} after; see {folder}")


if __name__ == "__main__":
    main()
