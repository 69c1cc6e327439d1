"""Revisited Oxford and Paris: the Easy, Medium and Hard mAP of one ranking.

    python examples/recipe_revisited_oxford.py

The ground truth of a query is three lists of images: easy, hard and junk. A protocol says which are positives (`ok`)
and which leave the ranking (`junk`): neither hits nor misses, so that those behind them move up.

    Easy    ok: easy           junk: junk and hard
    Medium  ok: easy and hard  junk: junk
    Hard    ok: hard           junk: junk and easy

A query without positives under a protocol is left out of its mean, and AP is the mean of the trapezoids under the
precision-recall curve.

Source: Radenovic et al., "Revisiting Oxford and Paris: Large-Scale Image Retrieval Benchmarking", CVPR 2018, and its
evaluation code (revisitop).
"""

import torch
from torch import Tensor

from map_metrics import RetrievalMAP, presets

PROTOCOLS = {  # name -> the lists of the positives, the lists of the junk
    "Easy": (("easy",), ("junk", "hard")),
    "Medium": (("easy", "hard"), ("junk",)),
    "Hard": (("hard",), ("junk", "easy")),
}
JUNK = -1


def ground_truth(queries: int = 12, images: int = 400, seed: int = 0) -> tuple[list[dict[str, Tensor]], Tensor]:
    """The lists of each query, as revisitop's `gnd` has them, and (images, queries) similarities that fit them."""
    rng = torch.Generator().manual_seed(seed)
    similarity, gnd = torch.randn(images, queries, generator=rng), []
    for query in range(queries):
        easy, hard, junk = (int(torch.randint(low, 20, (), generator=rng)) for low in (0, 3, 5))
        easy = 0 if query % 4 == 0 else easy  # some queries have no easy image
        parts = torch.randperm(images, generator=rng)[: easy + hard + junk].split([easy, hard, junk])
        gnd.append(dict(zip(("easy", "hard", "junk"), parts, strict=True)))
        for part, bonus in zip(parts, (2.5, 1.0, 1.5), strict=True):
            similarity[part, query] += bonus
    return gnd, similarity


def judge(gnd: list[dict[str, Tensor]], images: int, protocol: str) -> Tensor:
    """(queries, images): 1 positive, -1 junk, 0 else."""
    ok, junk = PROTOCOLS[protocol]
    target = torch.zeros(len(gnd), images, dtype=torch.long)
    for row, lists in zip(target, gnd, strict=True):
        row[torch.cat([lists[name] for name in ok])] = 1
        row[torch.cat([lists[name] for name in junk])] = JUNK
    return target


def main() -> dict[str, float]:
    gnd, similarity = ground_truth()
    values = {}
    print(f"{'':<6} {'mAP':>8} {'queries':>8}")
    for protocol in PROTOCOLS:
        metric = RetrievalMAP(**presets.REVISITED_OXFORD, ignore_index=JUNK)
        metric.update(similarity.T, judge(gnd, len(similarity), protocol))
        result = metric.result()
        values[f"{protocol}: mAP"] = float(result.value())
        values[f"{protocol}: queries"] = len(result.query) - result.num_empty
        print(f"{protocol:<6} {values[f'{protocol}: mAP']:8.6f} {values[f'{protocol}: queries']:8}")
    return values


if __name__ == "__main__":
    main()
