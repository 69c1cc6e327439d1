"""Rows of (query, score, relevant) -> ranked tie groups. Integers in and out; one sort, no loop over queries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from map_metrics.average_precision import Groups

_BLOCK = 1 << 22  # elements of the largest temporary of the matrix form


def dense_ids(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted distinct values, and where each row's value stands among them; linear where the ids lie close together."""
    if not len(values):
        return values, values
    low, high = values.aminmax()
    span = int(high) - int(low) + 1
    if span > 4 * len(values) + 1024:
        distinct, inverse = torch.unique(values, return_inverse=True)
        return distinct, inverse
    shifted = values - low
    present = torch.zeros(span, dtype=torch.bool, device=values.device).index_fill_(0, shifted, True)
    return present.nonzero()[:, 0] + low, (present.cumsum(0) - 1)[shifted]


def take(values: Tensor, index: Tensor) -> Tensor:
    """Rows of a tensor. On the CPU by NumPy: on one thread torch's indexing takes eight times as long."""
    if values.device.type != "cpu":
        return values[index]
    return torch.from_numpy(np.take(values.numpy(), index.numpy(), axis=0))


def true_rows(mask: Tensor) -> Tensor:
    """Where a mask is true, ascending; as :func:`take`."""
    return torch.from_numpy(np.flatnonzero(mask.numpy())) if mask.device.type == "cpu" else mask.nonzero()[:, 0]


def inverse(order: Tensor, values: Tensor | None = None) -> Tensor:
    """(n,) on the CPU: the place of each row in an order of all rows, or what ``values`` has at that place."""
    result = np.empty(len(order), np.int64)
    result[order.numpy()] = np.arange(len(order)) if values is None else values.numpy()
    return torch.from_numpy(result)


def lexsort(*columns: Tensor) -> Tensor:
    """The stable order of rows by the first column, then the second, ...; int64 columns."""
    *others, last = columns
    order = torch.sort(last, stable=True).indices
    for column in reversed(others):
        order = take(order, torch.sort(take(column, order), stable=True).indices)
    return order


def first_of_runs(*sorted_columns: Tensor) -> Tensor:
    """True where a row differs from the row before it in any column."""
    first = torch.ones(len(sorted_columns[0]), dtype=torch.bool, device=sorted_columns[0].device)
    if len(first) > 1:
        first[1:] = torch.stack([column[1:] != column[:-1] for column in sorted_columns]).any(0)
    return first


class Distinct(NamedTuple):
    """Which rows of a table to keep when copies of one key count once.

    Attributes:
        rows: (m,) indices of the kept rows, in the order of their keys.
        duplicates: how many rows were left out.
        conflicts: how many of those differ from the row kept in their place.
    """

    rows: Tensor
    duplicates: int
    conflicts: int


def distinct_rows(keys: list[Tensor], content: list[Tensor]) -> Distinct:
    """One row of each key: the lexicographically smallest, so that no order of batches or ranks matters."""
    order = lexsort(*keys)
    first = first_of_runs(*(key[order] for key in keys))
    duplicates = len(order) - int(first.sum())
    if not duplicates:
        return Distinct(order, 0, 0)
    run = first.cumsum(0) - 1
    repeated = torch.bincount(run)[run] > 1
    rows = order[repeated]
    order[repeated] = rows[lexsort(*(column[rows] for column in (*keys, *content)))]
    changed = first_of_runs(*(column[order] for column in (*keys, *content)))
    return Distinct(order[first], duplicates, int(changed.sum()) - int(first.sum()))


def fingerprints(table: Tensor, counts: Tensor) -> Tensor:
    """(groups,) int64: a hash of each group's rows, ``counts`` of them one after the other; integers wrap around.

    It orders copies of one sample that differ, without regard to where they came from.
    """
    group = torch.repeat_interleave(torch.arange(len(counts)), counts)
    place = torch.arange(len(group)) - (counts.cumsum(0) - counts)[group]
    mixed = place * 0x14057B7EF767814F
    for column in table.unbind(1):  # not a weighted sum: (0, 2, 1) and (1, 0, 2) must differ
        mixed = (mixed ^ column) * 0x5851F42D4C957F2D
        mixed = mixed ^ (mixed >> 29)
    return torch.zeros_like(counts).scatter_add_(0, group, mixed * 0x2545F4914F6CDD1D)


def descending_key(score: Tensor) -> tuple[Tensor, int]:
    """float64 scores -> whole numbers that rise as the score falls, equal where equal, and the bits they take.

    Scores that float32 holds exactly take 32 bits (>= 0); others 64 (signed).
    """
    single = score.float()
    if bool((single.double() == score).all()):
        pattern = single.view(torch.int32)
        return (~(pattern ^ ((pattern >> 31) & 0x7FFFFFFF))).long() + 2**31, 32
    pattern = score.view(torch.int64)
    return ~(pattern ^ ((pattern >> 63) & 0x7FFFFFFFFFFFFFFF)), 64


def rank_rows(query: Tensor, score: Tensor, relevant: Tensor, num_relevant: Tensor, *, stable: bool = False) -> Groups:
    """Group the retrieved items of every query by score, best first.

    Args:
        query: (n,) int64 in 0 .. Q - 1, in any order.
        score: (n,) float64, larger is better, no NaN, -0.0 already 0.0.
        relevant: (n,) bool.
        num_relevant: (Q,) int64, passed through.
        stable: every item is a group of its own, ties in input order.
    """
    key, width = descending_key(score)
    num_queries = len(num_relevant)
    if width == 32 and num_queries < 2**30 and not stable:  # one key holds all: sort values, no permutation
        packed = torch.sort((query << 33) | (key << 1) | relevant).values
        query, key, relevant = packed >> 33, packed >> 1, packed & 1
    else:
        order = lexsort(query, key)
        query, key, relevant = take(query, order), take(key, order), take(relevant, order).long()
    return _groups(query, key, relevant, num_relevant, stable=stable)


def _groups(query: Tensor, key: Tensor, relevant: Tensor, num_relevant: Tensor, *, stable: bool) -> Groups:
    num_items = torch.bincount(query, minlength=len(num_relevant))
    start_of_query = num_items.cumsum(0) - num_items
    found = relevant.cumsum(0) - relevant  # relevant rows above, over all queries
    if stable:
        start = true_rows(relevant)
        n = r = torch.ones_like(start)
    else:
        start = true_rows(first_of_runs(query, key))
        n = torch.diff(start, append=start.new_tensor([len(query)]))
        r = torch.diff(take(found, start), append=relevant.sum().reshape(1)) if len(start) else n
        holds = true_rows(r > 0)
        start, n, r = take(start, holds), take(n, holds), take(r, holds)
    group_query = take(query, start)
    above = torch.cat([found, relevant.sum().reshape(1)])[start_of_query]
    return Groups(
        query=group_query,
        before=start - take(start_of_query, group_query),
        found=take(found, start) - take(above, group_query),
        total=n,
        relevant=r,
        num_relevant=num_relevant,
        num_items=num_items,
    )


def rank_matrix(score: Tensor, relevant: Tensor, *, stable: bool = False) -> Groups:
    """Rank every row of a matrix; only the relevant scores of a row are ranked, the others are counted above them.

    Args:
        score: (Q, N) float32 or float64, larger is better; -inf where an item was not retrieved: it counts in
            ``num_relevant`` if relevant and never ranks. What is not on the CPU is counted where it is.
        relevant: (Q, N) bool, on the same device.
        stable: ties in column order, every item a group of its own.
    """
    num_queries, num_columns = score.shape
    where = relevant.nonzero(as_tuple=True)
    query, value = where[0].cpu(), score[where].cpu()
    num_relevant = torch.bincount(query, minlength=num_queries)
    num_items = torch.full_like(num_relevant, num_columns)
    if score.numel() and float(score.min()) == -torch.inf:
        num_items = (score > -torch.inf).sum(1).cpu()
        found = value > -torch.inf
        query, value = query[found], value[found]
    if stable:
        return _rank_in_column_order(score.cpu(), relevant.cpu(), num_relevant)
    level_query, level, count = levels_of(query, value)
    place = torch.arange(len(level_query)) - torch.searchsorted(level_query, level_query)
    before, total = torch.empty_like(count), torch.empty_like(count)
    step = max(1, _BLOCK // max(1, num_columns))
    for top in range(0, num_queries, step):
        rows = slice(*torch.searchsorted(level_query, torch.tensor([top, top + step])).tolist())
        if rows.start < rows.stop:
            block = score[top : top + step].contiguous()
            above, reached = count_reaching(block, level_query[rows] - top, place[rows], level[rows])
            before[rows], total[rows] = above, reached - above
    found = count.cumsum(0) - count
    found -= found[torch.searchsorted(level_query, level_query)]
    return Groups(level_query, before, found, total, count, num_relevant, num_items)


def _rank_in_column_order(score: Tensor, relevant: Tensor, num_relevant: Tensor) -> Groups:
    query, column = (score > -torch.inf).nonzero(as_tuple=True)
    ranked = score[query, column].double() + 0.0
    return rank_rows(query, ranked, relevant[query, column], num_relevant, stable=True)


def levels_of(query: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct (query, score) pairs, best first in each query, and how many rows hold each."""
    key, _ = descending_key(score.double() + 0.0)
    order = lexsort(query, key)
    start = first_of_runs(query[order], key[order]).nonzero()[:, 0]
    kept = order[start]
    return query[kept], score[kept], torch.diff(start, append=start.new_tensor([len(order)]))


def count_reaching(score: Tensor, row: Tensor, place: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """How many items of each level's row stand above it, and at or above it.

    Few levels in a long row are compared one by one, at 0.13 ns an element; otherwise the row is sorted (40 ns).
    Scores may be on another device; all else, and the counts, are on the CPU.
    """
    if score.device.type != "cpu":
        return count_by_search(score, row, place, level)
    num_columns = score.shape[1]
    width = int(place.max()) + 1
    if num_columns >= 4096 and width <= 64:
        rows = list(score.numpy())
        pairs = list(zip(row.tolist(), level.numpy(), strict=True))
        above = [np.count_nonzero(rows[i] > value) for i, value in pairs]
        reached = [np.count_nonzero(rows[i] >= value) for i, value in pairs]
        return torch.tensor(above), torch.tensor(reached)
    ladder = torch.full((len(score), width), torch.inf, dtype=score.dtype)
    ladder[row, place] = level
    ascending = torch.from_numpy(np.sort(score.numpy(), axis=1))
    counts = [num_columns - torch.searchsorted(ascending, ladder, right=right)[row, place] for right in (True, False)]
    return counts[0], counts[1]


def count_by_search(score: Tensor, row: Tensor, place: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """The counts of :func:`count_reaching` in few large operations, as a GPU likes them: one search for each item."""
    size, width = len(score), int(place.max()) + 1
    ladder = torch.full((size, width), -torch.inf, dtype=score.dtype)
    ladder[row, width - 1 - place] = level  # ascending
    ladder = ladder.to(score.device)
    first_cell = torch.arange(size, device=score.device)[:, None] * (width + 1)
    counts = []
    for right in (False, True):  # levels below an item; at or below it
        cell = torch.searchsorted(ladder, score, right=right) + first_cell
        items = torch.bincount(cell.view(-1), minlength=size * (width + 1)).view(size, width + 1)
        counts.append(items.flip(1).cumsum(1).flip(1).cpu()[row, width - place])
    return counts[0], counts[1]
