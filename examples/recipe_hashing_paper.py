"""Reproduce a deep-hashing paper's mAP@5000, and see what its usual numpy loop leaves to chance.

    python examples/recipe_hashing_paper.py

The loop (`CalcTopMap` of DeepHash-pytorch and of most ports of DPSH, HashNet, CSQ) sorts the gallery by Hamming
distance, takes the first k, and divides the sum of the precisions at the hits by the number of hits among those k:
`denominator="hits"`. There are only bits + 1 distances, so most of a ranking is ties, and the sort settles them by the
order in which the gallery is stored. `presets.HASHING` takes the mean over all orders, in closed form; `ties="stable"`
is the loop with a stable sort; "pessimistic" and "optimistic" are the least and the most an order gives each query.

The codes are the signs of random projections of scikit-learn's digits: 297 queries, a gallery of the other 1,500.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from map_metrics import HashingMAPAtK, presets
from map_metrics.results import RetrievalResult

DATA = Path(__file__).parent / "data" / "digits_codes.npz"
QUERIES = 297


def evaluate(codes: Tensor, labels: Tensor, gallery: Tensor, top_k: int = 5000, **changes) -> RetrievalResult:
    """The first 297 codes are the queries, those at the places ``gallery`` the gallery, stored in that order."""
    metric = HashingMAPAtK(top_k, **{**presets.HASHING, **changes}, packed=True)  # eight bits to a byte
    ids = torch.arange(len(codes))
    metric.update(codes[:QUERIES], labels[:QUERIES], query=True, ids=ids[:QUERIES])
    # The order of ids is the order of storage under stable ties: leave them out unless self is to be excluded.
    metric.update(codes[gallery], labels[gallery], query=False, ids=gallery if "exclude_self" in changes else None)
    return metric.result()


def numbers(codes: Tensor, labels: Tensor) -> dict[str, float]:
    """Every row of the table, for codes of one length."""
    rest = torch.arange(QUERIES, len(codes))
    by_class = rest[torch.sort(labels[rest], stable=True).indices]
    everything = torch.arange(len(codes))  # the queries too: a common slip
    paper = evaluate(codes, labels, rest)
    rows = {
        "mAP@5000, mean over ties": paper,
        "mAP@5000, the worst order": evaluate(codes, labels, rest, ties="pessimistic"),
        "mAP@5000, the best order": evaluate(codes, labels, rest, ties="optimistic"),
        "mAP@5000, stored as it came": evaluate(codes, labels, rest, ties="stable"),
        "mAP@5000, stored by class": evaluate(codes, labels, by_class, ties="stable"),
        "mAP@5000, queries in the gallery": evaluate(codes, labels, everything),
        "the same, self excluded by id": evaluate(codes, labels, everything, exclude_self=True),
        "mAP@100, over hits (papers)": evaluate(codes, labels, rest, top_k=100),
        "mAP@100, over all relevant": evaluate(codes, labels, rest, top_k=100, denominator="relevant"),
    }
    values = {name: float(result.value()) for name, result in rows.items()}
    return values | {"precision within radius 2": float(paper.precision_within(2).mean())}  # an empty ball counts 0


def main() -> dict[str, float]:
    with np.load(DATA) as file:
        codes, labels = torch.from_numpy(file["codes64"]), torch.from_numpy(file["labels"]).long()
    columns = {16: numbers(codes[:, :2], labels), 64: numbers(codes, labels)}
    print(f"{'':<33} {'16 bits':>8} {'64 bits':>8}")
    for name in columns[16]:
        print(f"{name:<33} {columns[16][name]:8.6f} {columns[64][name]:8.6f}")
    return {f"{name}, {bits} bits": value for bits, column in columns.items() for name, value in column.items()}


if __name__ == "__main__":
    main()
