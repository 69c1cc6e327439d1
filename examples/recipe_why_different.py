"""Why is my number different from tool X: one ranking, eight numbers, eight names, and the argument behind each.

    python examples/recipe_why_different.py

Ten documents, five of them relevant. The first five places are clear; the last five documents share one score, and two
of them are relevant. What a tool prints depends on what it divides by, where it cuts, how it orders the tied five, and
how it turns precisions into an area.
"""

import torch

from map_metrics.functional import retrieval_map

SCORES = torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0, 1.0, 1.0, 1.0, 1.0, 1.0])
RELEVANT = torch.tensor([1, 0, 1, 1, 0, 1, 0, 0, 1, 0])
DOCUMENTS = ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8", "d9"]

# trec_eval puts equal scores in the order of document names, descending: as ids, "d9" is 0, "d8" is 1, ...
BY_NAME = torch.tensor([sorted(DOCUMENTS, reverse=True).index(name) for name in DOCUMENTS])

NAMES = {  # what the tool calls it -> our arguments
    "trec_eval map_cut_3, ranx map@3": {"top_k": 3, "denominator": "relevant"},
    "Kaggle MAP@3, sentence-transformers": {"top_k": 3, "denominator": "min"},
    "torchmetrics top_k=3, hashing papers": {"top_k": 3, "denominator": "hits"},
    "MAP@R, pytorch-metric-learning": {"top_k": "R", "ties": "stable"},
    "trec_eval map": {"ties": "stable", "ids": BY_NAME},
    "scikit-learn average_precision_score": {"ties": "threshold"},
    "revisited Oxford, Market-1501": {"interpolation": "trapezoid", "ties": "stable"},
    "map_metrics, mean over all orders": {"ties": "expected"},
}


def main() -> dict[str, float]:
    query = torch.zeros(len(SCORES), dtype=torch.long)  # one query: every row belongs to query 0

    def value(**conventions) -> float:
        return float(retrieval_map(SCORES, RELEVANT, query, **conventions))

    values = {name: value(**conventions) for name, conventions in NAMES.items()}
    for name, number in values.items():
        print(f"{number:.6f}  {name}")
    bounds = {f"{ties} order": value(ties=ties) for ties in ("pessimistic", "optimistic")}
    print("Every order of the tied five lies between {:.6f} and {:.6f}.".format(*bounds.values()))
    return values | bounds


if __name__ == "__main__":
    main()
