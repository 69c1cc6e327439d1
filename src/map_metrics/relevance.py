"""Which gallery items are relevant to a query, by their labels: one rule for class ids and for label sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from map_metrics.checks import numbers
from map_metrics.ranking import dense_ids


@dataclass(frozen=True)
class Relevance:
    """A relevance rule over labels.

    Attributes:
        rule: ``"any"`` at least one shared label; ``"exact"`` the same non-empty label set; a float t in (0, 1]:
            Jaccard similarity of the label sets >= t; ``"weighted"`` as ``"any"``, with the summed weight of the
            shared labels as the gain. An empty label set is relevant to nothing. For class ids all of them mean the
            same class.
        label_weights: weight of each label, or None for 1.

    Raises:
        ValueError: if the rule or a weight is not one of the above.
    """

    rule: str | float = "any"
    label_weights: Sequence[float] | Tensor | None = None

    def __post_init__(self) -> None:
        named = isinstance(self.rule, str) and self.rule in ("any", "exact", "weighted")
        if isinstance(self.rule, np.floating):
            object.__setattr__(self, "rule", float(self.rule))
        jaccard = isinstance(self.rule, float) and 0 < self.rule <= 1
        if not (named or jaccard):
            raise ValueError(
                "Argument `relevance` must be 'any', 'exact', 'weighted' or a float in (0, 1] (Jaccard similarity), "
                f"got {self.rule!r}"
            )
        if self.label_weights is None:
            return
        if self.rule != "weighted":
            raise ValueError(f"Argument `label_weights` needs relevance='weighted', got relevance={self.rule!r}")
        object.__setattr__(self, "label_weights", _weights(self.label_weights))

    @property
    def weighted(self) -> bool:
        """Whether relevant items differ in gain."""
        return self.rule == "weighted"

    def weight(self, label: int) -> float:
        """The weight of one label."""
        return 1.0 if self.label_weights is None else float(self.label_weights[label])

    def check(self, labels: Tensor) -> None:
        """Refuse class ids or label sets that ``label_weights`` does not cover."""
        if self.label_weights is None:
            return
        count = len(self.label_weights)
        if labels.ndim == 2 and labels.shape[1] != count:
            raise ValueError(f"Argument `labels` must have {count} columns, one per weight, got {labels.shape[1]}")
        if labels.ndim == 1 and bool(((labels < 0) | (labels >= count)).any()):
            bad = int(labels[(labels < 0) | (labels >= count)][0])
            raise ValueError(f"Argument `labels` must lie in 0 .. {count - 1}, one weight each, got {bad}")

    def related(self, mine: Tensor, theirs: Tensor) -> Tensor:
        """Element by element: class ids (...,), or label words (..., w) that broadcast; bool (...,)."""
        if mine.ndim < 2:
            return mine == theirs
        a, b = mine.numpy().view(np.uint64), theirs.numpy().view(np.uint64)
        if self.rule == "exact":
            related = (a == b).all(-1) & (a != 0).any(-1)
        elif isinstance(self.rule, float):
            shared = np.bitwise_count(a & b).sum(-1, dtype=np.int64)
            related = shared / np.maximum(np.bitwise_count(a | b).sum(-1, dtype=np.int64), 1) >= self.rule
        else:
            related = ((a & b) != 0).any(-1)
        return torch.from_numpy(np.asarray(related))

    def gain(self, mine: Tensor, theirs: Tensor) -> Tensor:
        """Summed weight of the shared labels, pair by pair: class ids (n,), or label words (n, w); float64 (n,)."""
        if mine.ndim == 1:
            same = mine == theirs
            weights = torch.tensor([self.weight(label) for label in mine[same].tolist()], dtype=torch.float64)
            return torch.zeros(len(mine), dtype=torch.float64).index_put((same.nonzero()[:, 0],), weights)
        shared, gain = mine & theirs, torch.zeros(len(mine), dtype=torch.float64)
        columns = 64 * mine.shape[1] if self.label_weights is None else len(self.label_weights)
        for label in range(columns):
            gain += self.weight(label) * with_label(shared, label).double()
        return gain

    def parts(self, queries: Tensor, gallery: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """For each distinct label set of the queries: which queries have it, and which gallery items are relevant."""
        if queries.ndim == 1:
            yield from _by_class(queries, gallery)
            return
        sets, which = torch.unique(queries, dim=0, return_inverse=True)
        for i, rows in enumerate(_rows_of(which, len(sets))):
            yield rows, self.related(sets[i : i + 1], gallery).nonzero()[:, 0]


def _weights(values: Sequence[float] | Tensor) -> tuple[float, ...]:
    weights = numbers("label_weights", values)
    if not weights or not all(0 < weight < math.inf for weight in weights):
        raise ValueError(f"Argument `label_weights` must be a vector of finite weights > 0, got {values!r}")
    return weights


def with_label(words: Tensor, label: int) -> Tensor:
    """Rows of label words (n, w) that hold a label; (n,) bool."""
    return (words[:, label // 64] >> (label % 64)) & 1 == 1


def _by_class(queries: Tensor, gallery: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    classes, which = dense_ids(queries)
    ordered, order = torch.sort(gallery, stable=True)
    low, high = (torch.searchsorted(ordered, classes, right=right).tolist() for right in (False, True))
    for rows, start, stop in zip(_rows_of(which, len(classes)), low, high, strict=True):
        yield rows, order[start:stop]


def _rows_of(which: Tensor, groups: int) -> Sequence[Tensor]:
    return torch.argsort(which, stable=True).split(torch.bincount(which, minlength=groups).tolist())
