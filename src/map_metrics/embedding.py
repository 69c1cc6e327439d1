"""Mean average precision of real-valued embeddings, exact whatever the chunks, the batches and the ranks.

The bits of a matrix product depend on its shape, and so would the order of close similarities. Vectors are therefore
rounded to a grid on which every float64 product and every partial sum is exact: no order of summation can show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from map_metrics import checks
from map_metrics.average_precision import Groups
from map_metrics.conventions import Aggregation, Conventions, TopK, flag, one_of
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
)
from map_metrics.ranking import count_reaching, levels_of, rank_matrix
from map_metrics.relevance import Relevance
from map_metrics.results import RetrievalResult
from map_metrics.rows import CPU, Block, compute_device, unpack_blocks
from map_metrics.sharing import Ranked, Share, rank_queries

SIMILARITIES = ("cosine", "dot", "euclidean")
_QUERIES, _ITEMS = 64, 1 << 13  # queries and gallery items of one product: 4 MB

# --- input -> rows ----------------------------------------------------------------------------------------------------


def pack_floats(vectors: Tensor) -> Tensor:
    """(n, d) float32 -> (n, ceil(d / 2)) int64: bit patterns, two to a word."""
    n, dims = vectors.shape
    padded = torch.zeros((n, dims + dims % 2), dtype=torch.float32)
    padded[:, :dims] = vectors.cpu() + 0.0
    return padded.view(torch.int64)


def unpack_floats(words: Tensor, dims: int) -> Tensor:
    """Inverse of :func:`pack_floats`, as float64."""
    return words.contiguous().view(torch.float32)[:, :dims].double()


# --- rows -> exact products -------------------------------------------------------------------------------------------


class Vectors(NamedTuple):
    """Queries and gallery on the grid: the similarity is their product minus ``offset``; larger is closer."""

    queries: Tensor
    gallery: Tensor
    offset: Tensor

    def to(self, device: torch.device) -> Vectors:
        """The same vectors elsewhere: exact products are the same on every device."""
        return Vectors(*(column.to(device) for column in self))


def exact_vectors(queries: Tensor, gallery: Tensor, similarity: str) -> Vectors:
    """Round vectors so that every product of a query and an item is exact in float64, in any order of summation.

    With norms of at most 1 in multiples of 2^-26, the products are multiples of 2^-52 and no partial sum exceeds 1 by
    more than the rounding (Cauchy-Schwarz): 53 bits hold them. An entry moves by less than half an ulp of float32 at 1.

    Args:
        queries: (Q, d) float64 holding float32 values.
        gallery: (N, d) float64 holding float32 values.
        similarity: ``"cosine"``, ``"dot"`` or ``"euclidean"``: there the product minus half the item's squared norm
            ranks as the negative distance does, and the grid is 2^-25 to leave room for the difference.
    """
    offset = torch.zeros(len(gallery), dtype=torch.float64)
    own, theirs = _norms(queries), _norms(gallery)
    if similarity == "cosine":
        return Vectors(_round(queries / own, 26), _round(gallery / theirs, 26), offset)
    largest = theirs.max() if len(theirs) else torch.ones((), dtype=torch.float64)
    if similarity == "dot":  # a query may be scaled alone
        return Vectors(_round(queries * _below_one(own), 26), _round(gallery * _below_one(largest), 26), offset)
    scale = _below_one(torch.maximum(largest, own.max() if len(own) else largest))
    items = _round(gallery * scale, 25)
    return Vectors(_round(queries * scale, 25), items, (items * items).cumsum(1)[:, -1] / 2)


def _norms(vectors: Tensor) -> Tensor:
    """(n, 1) norms; a running sum along each row does not depend on the other rows."""
    return (vectors * vectors).cumsum(1)[:, -1:].sqrt()


def _below_one(norm: Tensor) -> Tensor:
    """A power of two that brings norms to 1 at most; 1 for a norm of 0."""
    exponent = torch.frexp(torch.where(norm > 0, norm, 0.5)).exponent
    return torch.ldexp(torch.ones_like(norm), -exponent)


def _round(vectors: Tensor, bits: int) -> Tensor:
    return torch.round(vectors * 2.0**bits) / 2.0**bits


# --- exact products -> groups -----------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """Some queries against some of the gallery: (q, n) similarity, -inf for a query's own item, and relevance."""

    similarity: Tensor
    relevant: Tensor


def _blocks(
    vectors: Vectors, data: Collection, relevance: Relevance, own: SelfMatches, rows: slice, step: int
) -> Iterator[_Block]:
    """The whole gallery against some queries, a part at a time."""
    matched = (own.query >= rows.start) & (own.query < rows.stop)
    query, item = own.query[matched] - rows.start, own.item[matched]
    mine, device = data.queries.labels[rows][:, None], vectors.gallery.device
    for start in range(0, len(vectors.gallery), step):
        part = slice(start, start + step)
        similarity = vectors.queries[rows] @ vectors.gallery[part].T - vectors.offset[part]
        theirs = data.gallery.labels[part]
        if theirs.ndim == 2:
            related = relevance.related(mine, theirs[None]).to(device)
        else:
            related = mine.to(device) == theirs.to(device)
        inside = (item >= start) & (item < start + step)
        similarity[query[inside], item[inside] - start] = -torch.inf
        related[query[inside], item[inside] - start] = False
        yield _Block(similarity, related)


def embedding_groups(
    data: Collection, vectors: Vectors, relevance: Relevance, own: SelfMatches, rows: slice, stable: bool
) -> Groups:
    """Tie groups of equal similarity: the relevant similarities first, then a count of what stands above each.

    Memory follows the relevant items of some queries (64 on the CPU), never queries x gallery. Products and counts are
    made where the vectors are; the groups are on the CPU.
    """
    parts = []
    step = _QUERIES if vectors.gallery.device.type == "cpu" else 16 * _QUERIES
    for start in range(rows.start, rows.stop, step):
        some = slice(start, min(start + step, rows.stop))
        groups = (_in_order if stable else _by_counting)(vectors, data, relevance, own, some)
        parts.append(groups._replace(query=groups.query + start - rows.start))
    return _concatenate(parts)


def _in_order(vectors: Vectors, data: Collection, relevance: Relevance, own: SelfMatches, rows: slice) -> Groups:
    """Every relevant item at its own rank, equal similarities in the order of the gallery."""
    blocks = list(_blocks(vectors, data, relevance, own, rows, max(1, len(vectors.gallery))))
    if not blocks:
        return _no_items(rows)
    return rank_matrix(blocks[0].similarity, blocks[0].relevant, stable=True)


def _by_counting(vectors: Vectors, data: Collection, relevance: Relevance, own: SelfMatches, rows: slice) -> Groups:
    """Two passes over the gallery: collect the relevant similarities, count above them."""
    found = [
        _relevant_items(block, at) for at, block in _numbered(_blocks(vectors, data, relevance, own, rows, _ITEMS))
    ]
    if not found:
        return _no_items(rows)
    query, item, value = (torch.cat(column) for column in zip(*found, strict=True))
    level_query, level, count = levels_of(query, value)
    place = torch.arange(len(level_query)) - torch.searchsorted(level_query, level_query)
    above, reached = torch.zeros_like(count), torch.zeros_like(count)
    if len(count):
        for block in _blocks(vectors, data, relevance, own, rows, _ITEMS):
            more_above, more_reached = count_reaching(block.similarity, level_query, place, level)
            above += more_above
            reached += more_reached
    size = rows.stop - rows.start
    hits = count.cumsum(0) - count
    groups = Groups(
        query=level_query,
        before=above,
        found=hits - hits[torch.searchsorted(level_query, level_query)],
        total=reached - above,
        relevant=count,
        num_relevant=torch.bincount(query, minlength=size),
        num_items=len(vectors.gallery) - torch.bincount(own.query, minlength=rows.stop)[rows],
    )
    if not relevance.weighted:
        return groups
    gain = relevance.gain(data.queries.labels[rows][query], data.gallery.labels[item])
    return _with_gains(groups, place, query, value, gain)


def _numbered(blocks: Iterator[_Block]) -> Iterator[tuple[int, _Block]]:
    return ((number * _ITEMS, block) for number, block in enumerate(blocks))


def _relevant_items(block: _Block, start: int) -> tuple[Tensor, Tensor, Tensor]:
    query, item = block.relevant.nonzero(as_tuple=True)
    return query.cpu(), item.cpu() + start, block.similarity[query, item].cpu()


def _with_gains(groups: Groups, place: Tensor, query: Tensor, value: Tensor, gain: Tensor) -> Groups:
    """Add the summed gains; those of tied items are added in ascending order, so that no order of the gallery shows."""
    order = torch.sort(gain, stable=True).indices
    order = order[torch.sort(value[order], descending=True, stable=True).indices]
    order = order[torch.sort(query[order], stable=True).indices]
    group = torch.repeat_interleave(torch.arange(len(place)), groups.relevant)
    total = torch.zeros(len(place), dtype=torch.float64).scatter_add_(0, group, gain[order])
    ladder = torch.zeros((len(groups.num_relevant), int(place.max()) + 2 if len(place) else 1), dtype=torch.float64)
    ladder[groups.query, place + 1] = total
    return groups._replace(gain=total, gain_before=ladder.cumsum(1)[groups.query, place])


def _no_items(rows: slice) -> Groups:
    none, zeros = torch.zeros(0, dtype=torch.int64), torch.zeros(rows.stop - rows.start, dtype=torch.int64)
    return Groups(none, none, none, none, none, zeros, zeros)


def _concatenate(parts: list[Groups]) -> Groups:
    if not parts:
        return _no_items(slice(0, 0))
    columns = zip(*parts, strict=True)
    return Groups._make([None if column[0] is None else torch.cat(column) for column in columns])


def embedding_result(
    blocks: list[Block],
    similarity: str,
    conventions: Conventions,
    relevance: Relevance,
    exclude_self: bool,
    device: torch.device = CPU,
    share: Share | None = None,
) -> RetrievalResult:
    """The result behind the blocks of the stream; products are made on ``device``, of a share of the queries."""
    data = collect(blocks, "embeddings")
    found = self_matches(data)
    own = found if exclude_self else NO_MATCHES
    queries, gallery = (unpack_floats(side.data, data.width) for side in (data.queries, data.gallery))
    vectors = exact_vectors(queries, gallery, similarity).to(device)  # rounded on the CPU: sums have an order there

    def ranked(rows: slice) -> Ranked:
        return Ranked(embedding_groups(data, vectors, relevance, own, rows, conventions.ties == "stable"), None)

    groups, _ = rank_queries(len(data.queries.ids), ranked, share)
    return gallery_result(data, groups, conventions, found)


# --- the pure form and the metric -------------------------------------------------------------------------------------


def _block(
    embeddings: Any, labels: Any, query: Any, ids: Any, *, similarity: str, relevance: Relevance, values: bool
) -> Tensor:
    vectors = checks.embeddings(embeddings, similarity, values=values)
    rows = check_rows(len(vectors), labels, query, ids, relevance)
    return labelled_block(vectors.shape[1], pack_floats(vectors), *rows)


@on_cpu
def embedding_map(
    query_embeddings: Tensor,
    query_labels: Tensor,
    gallery_embeddings: Tensor,
    gallery_labels: Tensor,
    *,
    query_ids: Tensor | None = None,
    gallery_ids: Tensor | None = None,
    top_k: TopK = None,
    similarity: str = "cosine",
    relevance: str | float = "any",
    label_weights: Sequence[float] | Tensor | None = None,
    denominator: str = "relevant",
    ties: str = "expected",
    interpolation: str = "step",
    empty_target_action: str = "neg",
    aggregation: Aggregation = "mean",
    exclude_self: bool = False,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Mean average precision of embeddings: the pure form of :class:`EmbeddingMAPAtK`.

    Args:
        query_embeddings: (Q, d) floats.
        query_labels: (Q,) class ids or (Q, C) multi-hot.
        gallery_embeddings: (N, d) floats.
        gallery_labels: (N,) or (N, C), as the queries.
        query_ids: (Q,) int ids; copies of one id count once.
        gallery_ids: (N,) int ids.
        top_k: as all that follow: see :class:`EmbeddingMAPAtK`.
        similarity: see there.
        relevance: see there.
        label_weights: see there.
        denominator: see there.
        ties: see there.
        interpolation: see there.
        empty_target_action: see there.
        aggregation: see there.
        exclude_self: see there; needs both ids.
        validate_args: see there.

    Returns:
        0-d float64, or ``{"map@5": ..., ...}`` for a sequence of ``top_k``.

    Raises:
        ValueError: naming the argument, what was expected and what came.

    Example:
        >>> import torch
        >>> from map_metrics.functional import embedding_map
        >>> gallery = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> embedding_map(torch.tensor([[2.0, 0.1]]), torch.tensor([7]), gallery, torch.tensor([7, 7, 3]))
        tensor(0.8333, dtype=torch.float64)
    """
    one_of("similarity", similarity, SIMILARITIES)
    rule = Relevance(relevance, label_weights)
    conventions = relevance_conventions(rule, top_k, denominator, ties, interpolation, empty_target_action, aggregation)
    if flag("exclude_self", exclude_self) and (query_ids is None or gallery_ids is None):
        raise ValueError("Argument `exclude_self`=True needs `query_ids` and `gallery_ids`, got None")
    values = flag("validate_args", validate_args)
    stream = [
        _block(vectors, labels, query, ids, similarity=similarity, relevance=rule, values=values)
        for vectors, labels, query, ids in (
            (query_embeddings, query_labels, True, query_ids),
            (gallery_embeddings, gallery_labels, False, gallery_ids),
        )
    ]
    device = compute_device(query_embeddings.device)
    result = embedding_result(unpack_blocks(torch.cat(stream)), similarity, conventions, rule, exclude_self, device)
    for note in result.notes().values():
        rank_zero_warn(note, UserWarning)
    return result.value()


class EmbeddingMAPAtK(GalleryMetric):
    """Mean average precision of embeddings ranked by similarity: the same bits for any order, chunk and rank.

    Similarities are exact sums of vectors rounded to a grid (2^-26 of the norm, half an ulp of float32), so that
    neither the shape of a matrix product nor the number of ranks can reorder close items. The gallery is visited in
    parts: memory follows the relevant items, never queries x gallery.

    Args:
        top_k: cut-off: None, a positive int, ``"R"`` (MAP@R) or a sequence of ints.
        similarity: ``"cosine"``; ``"dot"``; ``"euclidean"``: the smaller distance first.
        relevance: as in :class:`HashingMAPAtK`. For pairs (image and caption) use the id of the pair as the label.
        label_weights: as in :class:`HashingMAPAtK`.
        denominator: as in :class:`RetrievalMAP`, and so are the next four.
        ties: see there; ``"stable"`` is the order of ids, or of arrival without them.
        interpolation: see there.
        empty_target_action: see there.
        aggregation: see there.
        exclude_self: a query does not retrieve the gallery item of its own id, nor count it.
        validate_args: False leaves out the check that embeddings are finite and not zero.
        kwargs: arguments of ``torchmetrics.Metric``.

    Raises:
        ValueError: if an argument, or a pair of conventions, has no definition.

    Example:
        >>> import torch
        >>> from map_metrics import EmbeddingMAPAtK
        >>> metric = EmbeddingMAPAtK()
        >>> metric.update(torch.tensor([[2.0, 0.1]]), torch.tensor([7]), query=True)
        >>> gallery = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> metric.update(gallery, torch.tensor([7, 7, 3]), query=False)
        >>> metric.compute()
        tensor(0.8333, dtype=torch.float64)
    """

    def __init__(
        self,
        top_k: TopK = None,
        *,
        similarity: str = "cosine",
        relevance: str | float = "any",
        label_weights: Sequence[float] | Tensor | None = None,
        denominator: str = "relevant",
        ties: str = "expected",
        interpolation: str = "step",
        empty_target_action: str = "neg",
        aggregation: Aggregation = "mean",
        exclude_self: bool = False,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        one_of("similarity", similarity, SIMILARITIES)
        rule = Relevance(relevance, label_weights)
        conventions = relevance_conventions(
            rule, top_k, denominator, ties, interpolation, empty_target_action, aggregation
        )
        super().__init__({"similarity": similarity}, conventions, rule, exclude_self, validate_args, **kwargs)
        self.similarity = similarity

    def update(self, embeddings: Tensor, labels: Tensor, *, query: bool | Tensor, ids: Tensor | None = None) -> None:
        """Add embeddings, of queries or of the gallery, in any order and on any rank.

        A row costs 16 bytes, 4 more per dimension and 8 more for a class id or per 64 labels.

        Args:
            embeddings: (n, d) floats, finite; taken as float32. Zero vectors are refused with ``similarity="cosine"``.
            labels: (n,) integer class ids or (n, C) multi-hot.
            query: whether the rows are queries: True, False, or a bool tensor (n,).
            ids: (n,) int ids; copies of one id on one side count once.

        Raises:
            ValueError: naming the argument, what was expected, what came and where; the state stays as it was.
        """
        self._require_ids(ids)
        block = _block(
            embeddings,
            labels,
            query,
            ids,
            similarity=self.similarity,
            relevance=self.relevance,
            values=self.validate_args,
        )
        self._add(block, "embeddings")

    def _result_of(self, blocks: list[Block], share: Share | None) -> RetrievalResult:
        device = compute_device(self.device)
        return embedding_result(
            blocks, self.similarity, self.conventions, self.relevance, self.exclude_self, device, share
        )
