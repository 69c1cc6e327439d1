"""Mean average precision of binary codes by plain loops over lists and sets; no code of the subject."""

from __future__ import annotations

from dataclasses import dataclass

from oracles import brute


@dataclass(frozen=True)
class Item:
    """A code with its labels: a class id, or a set of label numbers."""

    id: int
    code: tuple[int, ...]
    labels: int | frozenset[int]


def gain(query: Item, item: Item, relevance, weights=None) -> float:
    """0 for an irrelevant item, 1 for a relevant one; with "weighted" the summed weight of the shared labels."""
    mine, theirs = (x.labels if isinstance(x.labels, frozenset) else frozenset([x.labels]) for x in (query, item))
    shared = mine & theirs
    if relevance == "weighted":
        return sum(1 if weights is None else weights[label] for label in shared)
    if relevance == "exact":
        return int(mine == theirs and len(mine) > 0)
    if isinstance(relevance, float):
        return int(len(shared) > 0 and len(shared) / len(mine | theirs) >= relevance)
    return int(len(shared) > 0)


def ranking(query: Item, gallery, relevance, weights=None, exclude_self=False) -> list[tuple[int, float]]:
    """(distance, gain) of the gallery in its order."""
    return [
        (sum(a != b for a, b in zip(query.code, item.code, strict=True)), gain(query, item, relevance, weights))
        for item in gallery
        if not (exclude_self and item.id == query.id)
    ]


def average_precision(ranked, k=None, denominator="hits", ties="expected") -> float:
    """Average precision of (distance, gain) pairs."""
    groups = []
    for level in sorted({d for d, _ in ranked}):
        gains = [g for d, g in ranked if d == level]
        groups.append((len(gains), sum(g > 0 for g in gains), sum(gains)))
    known, counts = sum(g[1] for g in groups), [g[:2] for g in groups]
    if not known:
        return 0.0
    if ties == "expected":
        return brute.expected(groups, known, k, denominator)
    if ties == "threshold":
        return float(brute.threshold(counts, known))
    if ties == "stable":
        order = [int(g > 0) for _, g in sorted(ranked, key=lambda pair: pair[0])]
        return float(brute.average_precision(order, known, k, denominator))
    return brute.bound(counts, known, k, denominator, ties == "optimistic")
