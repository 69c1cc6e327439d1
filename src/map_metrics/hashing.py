"""Mean average precision of binary codes ranked by Hamming distance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from map_metrics import checks
from map_metrics.average_precision import Groups, groups_from_counts
from map_metrics.conventions import Aggregation, Conventions, TopK, flag
from map_metrics.devices import on_cpu
from map_metrics.gallery import (
    NO_MATCHES,
    Collection,
    GalleryMetric,
    SelfMatches,
    check_rows,
    collect,
    gallery_result,
    labelled_block,
    relevance_conventions,
    self_matches,
    some_queries,
)
from map_metrics.hamming import Part, as_words, code_distances, histograms, histograms_by_product, pack_bits, pack_bytes
from map_metrics.relevance import Relevance, with_label
from map_metrics.results import DistanceCounts, RetrievalResult
from map_metrics.rows import CPU, Block, compute_device, unpack_blocks
from map_metrics.sharing import Ranked, Share, rank_queries

# --- rows -> groups ---------------------------------------------------------------------------------------------------


class _Counter:
    """Counts, for each query, the gallery items at each distance; a query's own item left out."""

    def __init__(self, data: Collection, own: SelfMatches, device: torch.device) -> None:
        self.queries, self.gallery = as_words(data.queries.data), as_words(data.gallery.data)
        self.width, self.own, self.device = data.width, own, device
        mine, theirs = self.queries[:, own.query.numpy()], self.gallery[:, own.item.numpy()]
        self.between = torch.from_numpy(np.bitwise_count(mine ^ theirs).sum(0, dtype=np.int64))

    def __call__(self, parts: Iterable[Part], own_kind: Tensor) -> Tensor:
        """(Q, 2, bits + 1) counts of the two kinds of items; ``own_kind``: (own,) bool."""
        if self.device.type == "cpu":
            histogram = histograms(self.queries, iter(parts), self.width)
        else:
            histogram = histograms_by_product(self.queries, iter(parts), self.width, self.device)
        histogram[self.own.query, own_kind.long(), self.between] -= 1
        return histogram


def _count_distances(data: Collection, relevance: Relevance, count: _Counter) -> DistanceCounts:
    mine, theirs, own = data.queries.labels, data.gallery.labels, count.own

    def parts() -> Iterator[Part]:
        for rows, items in relevance.parts(mine, theirs):
            relevant = np.zeros(len(theirs), bool)
            relevant[items.numpy()] = True
            yield Part(rows, count.gallery, relevant)

    counts = count(parts(), relevance.related(mine[own.query], theirs[own.item]))
    return DistanceCounts(counts.sum(1), counts[:, 1])


def _groups_by_distance(counts: DistanceCounts, data: Collection, relevance: Relevance, count: _Counter) -> Groups:
    """Tie groups of equal distance; where gains differ, one more histogram for each label."""
    groups = groups_from_counts(*counts)
    if not relevance.weighted:
        return groups
    mine, theirs, own = data.queries.labels, data.gallery.labels, count.own
    gain = torch.zeros(counts.total.shape, dtype=torch.float64)
    if mine.ndim == 1:
        weights = [relevance.weight(label) for label in mine.tolist()]
        gain += counts.relevant * torch.tensor(weights, dtype=torch.float64)[:, None]
    else:
        for label in range(data.label_columns):
            held, holding = with_label(mine, label), with_label(theirs, label)
            codes = np.ascontiguousarray(count.gallery[:, holding.numpy()])
            part = Part(held.nonzero()[:, 0], codes, np.ones(codes.shape[1], bool))
            gain += relevance.weight(label) * count([part], held[own.query] & holding[own.item])[:, 1].double()
    before = torch.zeros_like(gain)
    before[:, 1:] = gain.cumsum(1)[:, :-1]
    place = counts.relevant.nonzero(as_tuple=True)
    return groups._replace(gain=gain[place], gain_before=before[place])


def _groups_in_order(data: Collection, relevance: Relevance, own: SelfMatches) -> Groups:
    """Every relevant item at its own rank, equal distances in the order of the gallery (``ties="stable"``)."""
    queries, gallery = as_words(data.queries.data), as_words(data.gallery.data)
    self_of = dict(zip(own.query.tolist(), own.item.tolist(), strict=True))
    num_items = torch.full((len(data.queries.ids),), gallery.shape[1])
    num_items[own.query] -= 1
    ranks: list[Tensor] = [torch.zeros(0, dtype=torch.int64)] * len(num_items)
    for rows, items in relevance.parts(data.queries.labels, data.gallery.labels):
        relevant = np.zeros(gallery.shape[1], bool)
        relevant[items.numpy()] = True
        for row in rows.tolist():
            order = np.argsort(code_distances(queries[:, row], gallery, data.width), kind="stable")
            if row in self_of:
                order = order[order != self_of[row]]
            ranks[row] = torch.from_numpy(relevant[order].nonzero()[0])
    num_relevant = torch.tensor([len(r) for r in ranks], dtype=torch.int64)
    query = torch.repeat_interleave(torch.arange(len(ranks)), num_relevant)
    found = torch.arange(len(query)) - (num_relevant.cumsum(0) - num_relevant)[query]
    one = torch.ones_like(query)
    return Groups(query, torch.cat([query[:0], *ranks]), found, one, one, num_relevant, num_items)


def hashing_result(
    blocks: list[Block],
    conventions: Conventions,
    relevance: Relevance,
    exclude_self: bool,
    device: torch.device = CPU,
    share: Share | None = None,
) -> RetrievalResult:
    """The result behind the blocks of the stream; distances are counted on ``device``, of a share of the queries."""
    data = collect(blocks, "codes")

    def ranked(rows: slice) -> Ranked:
        part = some_queries(data, rows)
        own = self_matches(part) if exclude_self else NO_MATCHES
        count = _Counter(part, own, device)
        distances = _count_distances(part, relevance, count)
        if conventions.ties == "stable":
            return Ranked(_groups_in_order(part, relevance, own), distances)
        return Ranked(_groups_by_distance(distances, part, relevance, count), distances)

    groups, distances = rank_queries(len(data.queries.ids), ranked, share)
    return gallery_result(data, groups, conventions, self_matches(data), distances)


# --- the pure form and the metric -------------------------------------------------------------------------------------


def _block(codes: Any, labels: Any, query: Any, ids: Any, *, relevance: Relevance, packed: bool) -> Tensor:
    checked = checks.codes(codes, packed)
    bits = checked.shape[1] * (8 if packed else 1)
    words = pack_bytes(checked) if packed else pack_bits(checked)
    return labelled_block(bits, words, *check_rows(len(checked), labels, query, ids, relevance))


@on_cpu
def hashing_map(
    query_codes: Tensor,
    query_labels: Tensor,
    gallery_codes: Tensor,
    gallery_labels: Tensor,
    *,
    query_ids: Tensor | None = None,
    gallery_ids: Tensor | None = None,
    top_k: TopK = None,
    relevance: str | float = "any",
    label_weights: Sequence[float] | Tensor | None = None,
    denominator: str = "hits",
    ties: str = "expected",
    interpolation: str = "step",
    empty_target_action: str = "neg",
    aggregation: Aggregation = "mean",
    exclude_self: bool = False,
    packed: bool = False,
) -> Tensor | dict[str, Tensor]:
    """Mean average precision of binary codes by Hamming distance: the pure form of :class:`HashingMAPAtK`.

    Args:
        query_codes: (Q, bits) +-1, 0/1 or bool; with ``packed=True`` (Q, bits / 8) uint8.
        query_labels: (Q,) class ids or (Q, C) multi-hot.
        gallery_codes: (N, bits), as the queries.
        gallery_labels: (N,) or (N, C), as the queries.
        query_ids: (Q,) int ids; copies of one id count once.
        gallery_ids: (N,) int ids.
        top_k: as all that follow: see :class:`HashingMAPAtK`.
        relevance: see there.
        label_weights: see there.
        denominator: see there.
        ties: see there.
        interpolation: see there.
        empty_target_action: see there.
        aggregation: see there.
        exclude_self: see there; needs both ids.
        packed: see there.

    Returns:
        0-d float64, or ``{"map@5": ..., ...}`` for a sequence of ``top_k``.

    Raises:
        ValueError: naming the argument, what was expected and what came.

    Example:
        >>> import torch
        >>> from map_metrics.functional import hashing_map
        >>> gallery = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0]])
        >>> hashing_map(torch.tensor([[1, 1, 1, 1]]), torch.tensor([7]), gallery, torch.tensor([7, 7, 3]))
        tensor(0.8333, dtype=torch.float64)
    """
    rule = Relevance(relevance, label_weights)
    conventions = relevance_conventions(rule, top_k, denominator, ties, interpolation, empty_target_action, aggregation)
    if flag("exclude_self", exclude_self) and (query_ids is None or gallery_ids is None):
        raise ValueError("Argument `exclude_self`=True needs `query_ids` and `gallery_ids`, got None")
    stream = [
        _block(codes, labels, query, ids, relevance=rule, packed=flag("packed", packed))
        for codes, labels, query, ids in (
            (query_codes, query_labels, True, query_ids),
            (gallery_codes, gallery_labels, False, gallery_ids),
        )
    ]
    device = compute_device(query_codes.device)
    result = hashing_result(unpack_blocks(torch.cat(stream)), conventions, rule, exclude_self, device)
    for note in result.notes().values():
        rank_zero_warn(note, UserWarning)
    return result.value()


class HashingMAPAtK(GalleryMetric):
    """Mean average precision of binary codes ranked by Hamming distance, exact under ties and on any number of ranks.

    Items at one distance are tied, and a short code has few distances: with ``ties="expected"`` (the default) the
    value is the mean over all orders of tied items, so it depends neither on how the gallery is stored nor on a sort.

    Args:
        top_k: cut-off (5000 in many papers): None, a positive int, ``"R"`` or a sequence of ints.
        relevance: ``"any"``: at least one shared label; ``"exact"``: the same non-empty label set; a float t: Jaccard
            similarity >= t; ``"weighted"``: the summed weight of shared labels is the gain (weighted AP, as in DSRH;
            it can exceed 1). An empty label set is relevant to nothing.
        label_weights: with ``relevance="weighted"``, the weight of each label; default 1.
        denominator: ``"hits"``: the relevant items in the first k, what hashing papers print (DPSH, HashNet, CSQ and
            their ports: ``CalcTopMap``); ``"relevant"``, ``"min"``, ``"k"`` as in :class:`RetrievalMAP`.
        ties: as in :class:`RetrievalMAP`; ``"stable"`` is the order of ids, or of arrival without them.
        interpolation: as in :class:`RetrievalMAP`.
        empty_target_action: as in :class:`RetrievalMAP`.
        aggregation: as in :class:`RetrievalMAP`.
        exclude_self: a query does not retrieve the gallery item of its own id (by id, never "the nearest"); the item
            also leaves the number of relevant ones.
        packed: codes come as (n, bits / 8) uint8.
        validate_args: kept for the common signature; codes and labels are always checked.
        kwargs: arguments of ``torchmetrics.Metric``.

    Raises:
        ValueError: if an argument, or a pair of conventions, has no definition.

    Example:
        >>> import torch
        >>> from map_metrics import HashingMAPAtK
        >>> metric = HashingMAPAtK(top_k=3)
        >>> metric.update(torch.tensor([[1, 1, 1, 1]]), torch.tensor([7]), query=True)
        >>> gallery = torch.tensor([[1, 1, 1, 1], [-1, -1, -1, -1], [1, 1, 1, -1]])
        >>> metric.update(gallery, torch.tensor([7, 7, 3]), query=False)
        >>> metric.compute()
        tensor(0.8333, dtype=torch.float64)
    """

    def __init__(
        self,
        top_k: TopK = None,
        *,
        relevance: str | float = "any",
        label_weights: Sequence[float] | Tensor | None = None,
        denominator: str = "hits",
        ties: str = "expected",
        interpolation: str = "step",
        empty_target_action: str = "neg",
        aggregation: Aggregation = "mean",
        exclude_self: bool = False,
        packed: bool = False,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        rule = Relevance(relevance, label_weights)
        conventions = relevance_conventions(
            rule, top_k, denominator, ties, interpolation, empty_target_action, aggregation
        )
        super().__init__({"packed": flag("packed", packed)}, conventions, rule, exclude_self, validate_args, **kwargs)
        self.packed = packed

    def update(self, codes: Tensor, labels: Tensor, *, query: bool | Tensor, ids: Tensor | None = None) -> None:
        """Add codes, of queries or of the gallery, in any order and on any rank.

        A row costs 16 bytes, 8 more per 64 bits of code and 8 more for a class id or per 64 labels.

        Args:
            codes: (n, bits) +-1, {0, 1} or bool of any dtype; with ``packed=True`` (n, bits / 8) uint8. Real-valued
                codes, and zeros among +-1 (from ``sign``), are refused: threshold them.
            labels: (n,) integer class ids or (n, C) multi-hot.
            query: whether the rows are queries: True, False, or a bool tensor (n,).
            ids: (n,) int ids; copies of one id on one side count once.

        Raises:
            ValueError: naming the argument, what was expected, what came and where; the state stays as it was.
        """
        self._require_ids(ids)
        self._add(_block(codes, labels, query, ids, relevance=self.relevance, packed=self.packed), "codes")

    def _result_of(self, blocks: list[Block], share: Share | None) -> RetrievalResult:
        device = compute_device(self.device)
        return hashing_result(blocks, self.conventions, self.relevance, self.exclude_self, device, share)
