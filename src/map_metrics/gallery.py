"""Queries against a gallery: labelled rows of two sides, added in any order and on any rank."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from map_metrics import checks
from map_metrics.average_precision import Groups
from map_metrics.conventions import Conventions, flag
from map_metrics.hamming import pack_bits
from map_metrics.ranking import distinct_rows, fingerprints
from map_metrics.relevance import Relevance
from map_metrics.results import DistanceCounts, RetrievalResult
from map_metrics.rows import STREAM, Block, RowMetric, header_of, pack_block, unpack_blocks
from map_metrics.sharing import Share

QUERY, NAMED = 1, 2  # flags of a row
UNITS = {"codes": "bits", "embeddings": "dimensions"}

# --- input -> rows ----------------------------------------------------------------------------------------------------


def labelled_block(width: int, data: Tensor, labels: Tensor, query: Tensor, ids: Tensor | None) -> Tensor:
    """A block of the stream: header (width, data words, label columns), rows [flags, id, label words, data words].

    Args:
        width: what the data words hold: bits of a code, dimensions of an embedding.
        data: (n, w) int64.
        labels: (n,) int64 class ids or (n, C) bool label sets.
        query: (n,) bool.
        ids: (n,) int64 or None.
    """
    named, names = (0, torch.zeros(len(data), dtype=torch.int64)) if ids is None else (NAMED, ids.cpu())
    head = torch.stack([query.cpu().long() + named, names], 1)
    label_columns = labels.shape[1] if labels.ndim == 2 else 0
    words = pack_bits(labels) if label_columns else labels.cpu()[:, None]
    return pack_block((width, data.shape[1], label_columns), torch.cat([head, words, data], 1))


# --- rows -> sides ----------------------------------------------------------------------------------------------------


class Side(NamedTuple):
    """The queries, or the gallery: ids (n,), named (n,) bool, labels (n,) class ids or (n, w) words, data (n, w)."""

    ids: Tensor
    named: Tensor
    labels: Tensor
    data: Tensor


class Collection(NamedTuple):
    """Everything that was added, with copies of one id left out."""

    queries: Side
    gallery: Side
    width: int
    label_columns: int
    duplicates: tuple[int, int]  # queries, items
    conflicts: int


def some_queries(data: Collection, rows: slice) -> Collection:
    """The same with a part of the queries."""
    return data._replace(queries=Side(*(column[rows] for column in data.queries)))


def collect(blocks: list[Block], what: str) -> Collection:
    """Blocks of the stream -> queries and gallery: named rows in the order of their ids, then the others in theirs."""
    headers = {block.header for block in blocks}
    check_widths(headers, what)
    width, words, label_columns = next(iter(headers), (1, 1, 0))
    label_words = -(-label_columns // 64) if label_columns else 1
    empty = torch.zeros((0, 2 + label_words + words), dtype=torch.int64)
    table, duplicates, conflicts = _distinct(torch.cat([empty, *(block.rows for block in blocks)]))
    is_query = table[:, 0] % 2 == QUERY
    repeated = sum(int((block.rows[:, 0] % 2 == QUERY).sum()) for block in blocks) - int(is_query.sum())
    sides = []
    for part in (table[is_query], table[~is_query]):
        labels = part[:, 2 : 2 + label_words]
        labels = labels if label_columns else labels[:, 0].contiguous()
        sides.append(Side(part[:, 1].contiguous(), part[:, 0] >= NAMED, labels, part[:, 2 + label_words :]))
    return Collection(sides[0], sides[1], width, label_columns, (repeated, duplicates - repeated), conflicts)


def check_widths(headers: set[tuple[int, ...]], what: str) -> None:
    """Refuse blocks whose rows differ in width."""
    if len(headers) > 1:
        shown = ", ".join(f"{width} {UNITS[what]} with {c or 'one'} label(s) a row" for width, _, c in sorted(headers))
        raise ValueError(
            f"Arguments `{what}` and `labels` must have the same width in every update and on every rank, got {shown}"
        )


def _distinct(table: Tensor) -> tuple[Tensor, int, int]:
    """One row of each (side, id), in the order of ids, then the rows without one; duplicates; conflicting ones."""
    with_id, others = (table[:, 0] >= NAMED).nonzero()[:, 0], (table[:, 0] < NAMED).nonzero()[:, 0]
    named = table[with_id]
    content = list(named[:, 2:].unbind(1))
    if len(content) > 8:  # long rows are told apart by a hash
        content = [fingerprints(named[:, 2:], torch.ones(len(named), dtype=torch.int64))]
    kept = distinct_rows(list(named[:, :2].unbind(1)), content)
    return torch.cat([named[kept.rows], table[others]]), kept.duplicates, kept.conflicts


class SelfMatches(NamedTuple):
    """Queries whose own id stands in the gallery, and where."""

    query: Tensor
    item: Tensor


NO_MATCHES = SelfMatches(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


def self_matches(data: Collection) -> SelfMatches:
    """Find them by id."""
    queries, gallery = data.queries, data.gallery
    mine, theirs = queries.named.nonzero()[:, 0], gallery.named.nonzero()[:, 0]
    ids = gallery.ids[theirs].contiguous()
    place = torch.searchsorted(ids, queries.ids[mine].contiguous()).clamp(max=max(len(ids) - 1, 0))
    found = ids[place] == queries.ids[mine] if len(ids) else torch.zeros(len(mine), dtype=torch.bool)
    return SelfMatches(mine[found], theirs[place[found]])


# --- the metrics' common half -----------------------------------------------------------------------------------------


def relevance_conventions(relevance: Relevance, *values: Any) -> Conventions:
    """The conventions; weighted relevance has a definition under one pair of them."""
    conventions = Conventions(*values)
    if relevance.weighted and (conventions.ties, conventions.interpolation) != ("expected", "step"):
        raise ValueError(
            "Argument `relevance`='weighted' is defined with ties='expected' and interpolation='step', got "
            f"ties={conventions.ties!r} and interpolation={conventions.interpolation!r}"
        )
    return conventions


def check_rows(count: int, labels: Any, query: Any, ids: Any, relevance: Relevance) -> tuple[Tensor, Tensor, Any]:
    """Checked labels, query flags and ids of ``count`` rows."""
    sets = checks.code_labels(labels, count)
    relevance.check(sets)
    return sets, checks.flags("query", query, count), checks.sample_ids(ids, count)


class GalleryMetric(RowMetric):
    """Base of the metrics that rank a gallery for queries: one stream of labelled rows, and its result."""

    def __init__(
        self,
        config: dict[str, object],
        conventions: Conventions,
        relevance: Relevance,
        exclude_self: bool,
        validate_args: bool,
        **kwargs: Any,
    ) -> None:
        config = config | {
            "exclude_self": flag("exclude_self", exclude_self),
            "validate_args": flag("validate_args", validate_args),
            "labels": None if relevance.label_weights is None else len(relevance.label_weights),
        }
        super().__init__(config, {"rows": STREAM}, **kwargs)
        self.relevance = relevance
        self.conventions = conventions
        self.exclude_self = exclude_self
        self.validate_args = validate_args

    def _require_ids(self, ids: Any) -> None:
        if self.exclude_self and ids is None:
            raise ValueError("Argument `ids` must be given with exclude_self=True, got None")

    def _add(self, block: Tensor, what: str) -> None:
        """Append a block that has rows, if it is as wide as this rank's last one; ranks are compared when they meet."""
        if not int(block[0]):
            return
        blocks = self.rows
        if isinstance(blocks, list) and len(blocks[-1]):
            check_widths({header_of(blocks[-1]), header_of(block)}, what)
        self.append(rows=block)

    def compute(self) -> Tensor | dict[str, Tensor]:
        """The mean average precision: 0-d float64, or a dict for a sequence of ``top_k``."""
        value: Tensor | dict[str, Tensor] = self._result().value()
        return value

    def _result(self) -> RetrievalResult:
        blocks = unpack_blocks(self.table("rows"))
        result = self._result_of(blocks, self._share())
        if any(bool((block.rows[:, 0] < NAMED).any()) for block in blocks):
            self.warn_unnamed("rows")
        for topic, note in result.notes().items():
            self.warn_once(topic, note)
        return result

    def _result_of(self, blocks: list[Block], share: Share | None) -> RetrievalResult:
        raise NotImplementedError

    def _share(self) -> Share | None:
        """This rank's part of the queries while `compute` runs on all ranks; None: all of them.

        After a `sync` by hand (``sync_on_compute=False``) one rank alone may compute: the others would not join it.
        """
        world = torch.distributed
        together = self._is_synced and self._to_sync and self._should_unsync
        if not (together and world.is_available() and world.is_initialized()):
            return None
        size = world.get_world_size(self.process_group)
        if size < 2:
            return None
        return Share(world.get_rank(self.process_group), size, self._gather)

    def _gather(self, stream: Tensor) -> list[Tensor]:
        with self._exchanging("the rankings of their queries"):
            return (self.dist_sync_fn or gather_all_tensors)(stream.to(self.device), self.process_group)


def gallery_result(
    data: Collection,
    groups: Groups,
    conventions: Conventions,
    found: SelfMatches,
    distances: DistanceCounts | None = None,
) -> RetrievalResult:
    """The result of ranked queries; ``found``: their self matches, whether they were ranked or not."""
    queries = data.queries
    return RetrievalResult(
        groups,
        conventions,
        torch.where(queries.named, queries.ids, torch.arange(len(queries.ids))),
        queries.named,
        num_duplicate_queries=data.duplicates[0],
        num_duplicate_items=data.duplicates[1],
        num_self=len(found.query),
        num_conflicts=data.conflicts,
        distances=distances,
    )
