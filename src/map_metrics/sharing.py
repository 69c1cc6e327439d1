"""Ranking queries on every rank at once: each rank ranks its share against the whole gallery, then all exchange.

What a query's ranking is does not depend on the other queries, so the result is that of one process, bit for bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from map_metrics.average_precision import Groups
from map_metrics.results import DistanceCounts
from map_metrics.rows import bits, floats

NOTHING = torch.zeros(0, dtype=torch.int64)  # what a rank gives that failed


class Ranked(NamedTuple):
    """Rankings of some queries; of a hashing metric with the counts at each distance."""

    groups: Groups
    distances: DistanceCounts | None


class Share(NamedTuple):
    """This rank's part of the work.

    Attributes:
        rank: its number.
        world_size: how many ranks there are.
        gather: a tensor of this rank -> those of all ranks, in rank order; sizes may differ.
    """

    rank: int
    world_size: int
    gather: Callable[[Tensor], list[Tensor]]


def rank_queries(count: int, work: Callable[[slice], Ranked], share: Share | None) -> Ranked:
    """Rankings of ``count`` queries: all by ``work`` here, or a share of them on every rank."""
    if share is None:
        return work(slice(0, count))
    bounds = [count * rank // share.world_size for rank in range(share.world_size + 1)]
    try:
        mine = _pack(work(slice(bounds[share.rank], bounds[share.rank + 1])))
    except Exception:
        with contextlib.suppress(RuntimeError):
            share.gather(NOTHING)  # the others wait for this rank
        raise
    streams = share.gather(mine)
    failed = [rank for rank, stream in enumerate(streams) if not len(stream)]
    if failed:
        raise RuntimeError(f"Rank {failed[0]} failed in ranking its share of the queries: its own error tells why")
    return _join([_unpack(stream.cpu()) for stream in streams])


def _pack(ranked: Ranked) -> Tensor:
    """One 1-d int64 tensor: the shapes of two tables, a row for each group and one for each query, and the tables."""
    groups, distances = ranked
    columns = [groups.query, groups.before, groups.found, groups.total, groups.relevant]
    if groups.gain is not None and groups.gain_before is not None:
        columns += [bits(groups.gain), bits(groups.gain_before)]
    queries = torch.stack([groups.num_relevant, groups.num_items], 1)
    if distances is not None:
        queries = torch.cat([queries, distances.total, distances.relevant], 1)
    table = torch.stack(columns, 1)
    return torch.cat([torch.tensor([*table.shape, *queries.shape]), table.view(-1), queries.view(-1)])


def _unpack(stream: Tensor) -> Ranked:
    n, columns, count, width = stream[:4].tolist()
    table = stream[4 : 4 + n * columns].view(n, columns)
    queries = stream[4 + n * columns :].view(count, width)
    gains = (floats(table[:, 5]), floats(table[:, 6])) if columns > 5 else (None, None)
    counts = [column.contiguous() for column in table[:, :5].unbind(1)]
    groups = Groups._make([*counts, *queries[:, :2].unbind(1), *gains])
    bins = (width - 2) // 2
    distances = DistanceCounts(queries[:, 2 : 2 + bins], queries[:, 2 + bins :]) if bins else None
    return Ranked(groups, distances)


def _join(parts: list[Ranked]) -> Ranked:
    """The rankings of consecutive queries as one."""
    sizes = [len(part.groups.num_relevant) for part in parts]
    groups = [part.groups._replace(query=part.groups.query + sum(sizes[:i])) for i, part in enumerate(parts)]
    columns = ([values for values in column if values is not None] for column in zip(*groups, strict=True))
    joined = Groups._make(torch.cat(column) if column else None for column in columns)  # no gains where no groups
    histograms = [part.distances for part in parts if part.distances is not None]
    return Ranked(joined, DistanceCounts(*map(torch.cat, zip(*histograms, strict=True))) if histograms else None)
