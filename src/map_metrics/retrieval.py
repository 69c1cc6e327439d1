"""Mean average precision of rankings: rows of (query, item), or a matrix of queries x items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from map_metrics import checks, rows
from map_metrics.average_precision import Groups
from map_metrics.conventions import Aggregation, Conventions, TopK, flag
from map_metrics.devices import on_cpu
from map_metrics.ranking import dense_ids, distinct_rows, fingerprints, first_of_runs, rank_matrix, rank_rows
from map_metrics.results import RetrievalResult
from map_metrics.rows import RowMetric
from map_metrics.writers import write_trec

# columns of the tables
ITEMS = ("query", "document", "score", "flags")  # flags: 1 relevant, 2 the document has an id
KNOWN = ("query", "num_relevant")
QUERIES = ("named", "query", "num_relevant", "num_items", "num_groups")
GROUPS = ("before", "found", "total", "relevant")
TABLES = {"items": len(ITEMS), "known": len(KNOWN), "queries": len(QUERIES), "groups": len(GROUPS)}

# --- input -> rows ----------------------------------------------------------------------------------------------------


def item_rows(
    query: Tensor, score: Tensor, relevant: Tensor, ids: Tensor | None, num_relevant: Tensor | None, largest: bool
) -> dict[str, Tensor]:
    """Blocks of the tables ``items`` and ``known`` from checked rows; scores are stored as larger is better."""
    document, named = (torch.zeros_like(query), 0) if ids is None else (ids, 2)
    score = rows.bits(score if largest else -score)
    columns = (query, document, score, relevant + named)
    blocks = {"items": torch.stack([column.to(score.device) for column in columns], 1)}
    if num_relevant is not None:
        blocks["known"] = torch.unique(torch.stack([query, num_relevant], 1), dim=0)
    return blocks


def matrix_rows(
    score: Tensor,
    relevant: Tensor,
    kept: Tensor | None,
    ids: Tensor | None,
    num_relevant: Tensor | None,
    *,
    largest: bool,
    stable: bool,
) -> dict[str, Tensor]:
    """Blocks of the tables ``queries`` and ``groups``: the matrix itself is not kept."""
    if not score.is_floating_point():
        score = score.double()
    elif score.dtype not in (torch.float32, torch.float64):
        score = score.float()
    device = rows.compute_device(score.device)
    score, relevant = (score if largest else -score).to(device), relevant.to(device)
    if kept is not None:
        kept = kept.to(device)
        score = torch.where(kept, score, -torch.inf)
        left = kept.any(1)  # as in the row form, a query without items is none
        score, relevant = score[left], relevant[left]
        ids, num_relevant = (None if x is None else x.cpu()[left.cpu()] for x in (ids, num_relevant))
    groups = rank_matrix(score, relevant, stable=stable)
    found = torch.stack([groups.before, groups.found, groups.total, groups.relevant], 1)
    count = torch.bincount(groups.query, minlength=len(score))
    named = torch.full_like(count, ids is not None)
    names = torch.zeros_like(count) if ids is None else ids.cpu()
    known = groups.num_relevant if num_relevant is None else num_relevant.cpu()
    queries = [named, names, known, groups.num_items, count]
    return {"queries": torch.stack(queries, 1), "groups": found}


# --- rows -> groups ---------------------------------------------------------------------------------------------------


def _groups_of_items(items: Tensor, known: Tensor, stable: bool) -> tuple[Groups, Tensor, int, int]:
    """Groups, query ids, duplicates and conflicting duplicates of the row form."""
    query, _, score, flags = (column.contiguous() for column in items.unbind(1))
    duplicates = conflicts = 0
    if bool((flags >= 2).any()):
        with_id, others = (flags >= 2).nonzero()[:, 0], (flags < 2).nonzero()[:, 0]
        named = items[with_id]
        kept = distinct_rows([named[:, 0], named[:, 1]], [named[:, 2], named[:, 3]])
        duplicates, conflicts = kept.duplicates, kept.conflicts
        items = torch.cat([named[kept.rows], items[others]])
        query, _, score, flags = (column.contiguous() for column in items.unbind(1))
    ids, query = dense_ids(query)
    values, relevant = rows.floats(score), flags & 1
    num_relevant = _state_relevant(torch.bincount(query[relevant == 1], minlength=len(ids)), ids, known)
    retrieved = values > -torch.inf
    if not bool(retrieved.all()):
        query, values, relevant = query[retrieved], values[retrieved], relevant[retrieved]
    groups = rank_rows(query, values, relevant == 1, num_relevant, stable=stable)
    return groups, ids, duplicates, conflicts


def _state_relevant(counted: Tensor, ids: Tensor, known: Tensor) -> Tensor:
    """The stated numbers of relevant items, and the counted ones where none is stated."""
    query, stated = torch.unique(known, dim=0).unbind(1)
    query = query.contiguous()
    again = ~first_of_runs(query)
    if bool(again.any()):
        raise ValueError(f"Query {int(query[again][0])} came with different values of `num_relevant`")
    place = torch.searchsorted(ids, query)  # every query with a stated number has rows
    few = stated < counted[place]
    if bool(few.any()):
        raise ValueError(
            f"Query {int(query[few][0])} has {int(counted[place][few][0])} relevant items, more than its "
            f"`num_relevant` {int(stated[few][0])}"
        )
    return counted.index_put((place,), stated)


def _groups_of_queries(queries: Tensor, found: Tensor) -> tuple[Groups, Tensor, Tensor, int, int]:
    """Groups, query ids, which are named, duplicates and conflicting duplicates of the matrix form."""
    named, ids, num_relevant, num_items, count = queries.unbind(1)
    start = count.cumsum(0) - count
    with_name, others = named.nonzero()[:, 0], (named == 0).nonzero()[:, 0]
    content = [column[with_name] for column in (num_relevant, num_items, count)]
    if len(torch.unique(ids[with_name])) < len(with_name):
        content.append(fingerprints(found, count)[with_name])
    kept = distinct_rows([ids[with_name]], content)
    order = torch.cat([with_name[kept.rows], others])
    count = count[order]
    query = torch.repeat_interleave(torch.arange(len(order)), count)
    row = torch.arange(len(query)) - (count.cumsum(0) - count)[query] + start[order][query]
    before, above, total, relevant = found[row].unbind(1)
    groups = Groups(query, before, above, total, relevant, num_relevant[order], num_items[order])
    return groups, ids[order], named[order] == 1, kept.duplicates, kept.conflicts


def _join(first: Groups, second: Groups) -> Groups:
    """The queries of the second behind those of the first."""
    second = second._replace(query=second.query + len(first.num_relevant))
    columns = [torch.cat(pair) for pair in zip(first[:7], second[:7], strict=True)]
    return Groups._make([*columns, None, None])


def retrieval_result(
    items: Tensor, known: Tensor, queries: Tensor, groups: Tensor, conventions: Conventions
) -> RetrievalResult:
    """The result behind the four tables."""
    stable = conventions.ties == "stable"
    first, ids, repeated_items, conflicts = _groups_of_items(items, known, stable)
    repeated_queries = 0
    named = torch.ones_like(ids, dtype=torch.bool)
    if len(queries):
        second, more_ids, more_named, repeated_queries, more_conflicts = _groups_of_queries(queries, groups)
        both = torch.isin(more_ids[more_named], ids)
        if bool(both.any()):
            raise ValueError(
                f"Query {int(more_ids[more_named][both][0])} came both as rows (`indexes`) and as a matrix row "
                "(`ids`); give each query in one form"
            )
        first = _join(first, second)
        ids, named = torch.cat([ids, more_ids]), torch.cat([named, more_named])
        conflicts += more_conflicts
    return RetrievalResult(
        first,
        conventions,
        torch.where(named, ids, torch.arange(len(ids))),
        named,
        num_duplicate_queries=repeated_queries,
        num_duplicate_items=repeated_items,
        num_conflicts=conflicts,
    )


# --- the pure form and the metric -------------------------------------------------------------------------------------


def _blocks(
    preds: Any,
    target: Any,
    indexes: Any,
    ids: Any,
    num_relevant: Any,
    *,
    ignore_index: int | None,
    largest: bool,
    stable: bool,
    validate_args: bool,
) -> dict[str, Tensor]:
    if indexes is not None:
        checked = checks.retrieval_rows(preds, target, indexes, ids, num_relevant, ignore_index, validate_args)
        return item_rows(*checked, largest=largest)
    score, relevant, kept, names, known = checks.retrieval_matrix(
        preds, target, ids, num_relevant, ignore_index, validate_args
    )
    return matrix_rows(score, relevant, kept, names, known, largest=largest, stable=stable)


@on_cpu
def retrieval_map(
    preds: Tensor,
    target: Tensor,
    indexes: Tensor | None = None,
    *,
    ids: Tensor | None = None,
    num_relevant: Tensor | None = None,
    empty_target_action: str = "neg",
    ignore_index: int | None = None,
    top_k: TopK = None,
    aggregation: Aggregation = "mean",
    denominator: str = "relevant",
    ties: str = "expected",
    interpolation: str = "step",
    largest: bool = True,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Mean average precision of rankings given in one go: the pure form of :class:`RetrievalMAP`.

    The arguments are those of :meth:`RetrievalMAP.update` and of the class.

    Returns:
        0-d float64, or ``{"map@5": ..., ...}`` for a sequence of ``top_k``.

    Example:
        >>> import torch
        >>> from map_metrics.functional import retrieval_map
        >>> scores = torch.tensor([[0.9, 0.1, 0.2], [0.3, 0.8, 0.7]])  # two queries, three items each
        >>> retrieval_map(scores, torch.tensor([[1, 0, 0], [1, 0, 0]]))
        tensor(0.6667, dtype=torch.float64)
    """
    conventions = Conventions(top_k, denominator, ties, interpolation, empty_target_action, aggregation)
    blocks = _blocks(
        preds,
        target,
        indexes,
        ids,
        num_relevant,
        ignore_index=checks.ignored(ignore_index),
        largest=flag("largest", largest),
        stable=ties == "stable",
        validate_args=flag("validate_args", validate_args),
    )
    tables = {name: torch.zeros((0, width), dtype=torch.int64) for name, width in TABLES.items()}
    tables |= {name: block.cpu() for name, block in blocks.items()}
    result = retrieval_result(**tables, conventions=conventions)
    half = checks.half_note(preds, ties)
    for note in (*result.notes().values(), *([half] if half else [])):
        rank_zero_warn(note, UserWarning)
    return result.value()


class RetrievalMAP(RowMetric):
    """Mean average precision of rankings, exact under ties and on any number of ranks.

    A drop-in for ``torchmetrics.retrieval.RetrievalMAP`` whose conventions are named arguments; where the defaults
    differ (the denominator, ties, scores of any sign), :data:`map_metrics.presets.TORCHMETRICS` chooses the host's.

    Args:
        empty_target_action: value of a query without relevant items: ``"neg"`` 0, ``"pos"`` 1, ``"skip"``, ``"error"``.
        ignore_index: items with this target are removed before ranking (junk images in re-identification).
        top_k: cut-off: None, a positive int, ``"R"`` (each query's own number of relevant items), or a sequence of
            ints: ``compute`` then returns ``{"map@5": ..., "map@10": ...}``.
        aggregation: ``"mean"``, ``"median"``, ``"min"``, ``"max"`` or a function of the vector of APs.
        denominator: ``"relevant"``: all relevant items (trec_eval, ranx); ``"min"``: min(relevant, k) (Kaggle);
            ``"hits"``: the relevant items in the first k (torchmetrics, hashing papers); ``"k"``.
        ties: ``"expected"``: the mean over all orders of tied items (McSherry and Najork, 2008); ``"optimistic"`` /
            ``"pessimistic"``: the maximum / minimum over those orders; ``"stable"``: input order, or the order of
            ``ids``; ``"threshold"``: one point per distinct score (scikit-learn).
        interpolation: ``"step"``; ``"trapezoid"`` (Oxford/Paris, Market-1501); ``"envelope"``, ``"11-point"``,
            ``"40-point"``, ``"101-point"`` (detection benchmarks).
        largest: False where a small score is a good one (a distance).
        validate_args: False leaves out the checks of values (NaN, binary targets), not those of shapes.
        kwargs: arguments of ``torchmetrics.Metric``.

    Raises:
        ValueError: if an argument, or a pair of conventions, has no definition.

    Example:
        >>> import torch
        >>> from map_metrics import RetrievalMAP
        >>> metric = RetrievalMAP()
        >>> metric.update(torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0, 1, 0]), indexes=torch.tensor([0, 0, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4]), torch.tensor([1, 0]), indexes=torch.tensor([0, 1]))
        >>> metric.compute()  # query 0: hits at ranks 1 and 3 of 3; query 1 has nothing relevant
        tensor(0.4167, dtype=torch.float64)
        >>> metric.result().ap
        tensor([0.8333, 0.0000], dtype=torch.float64)
    """

    def __init__(
        self,
        empty_target_action: str = "neg",
        ignore_index: int | None = None,
        top_k: TopK = None,
        aggregation: Aggregation = "mean",
        *,
        denominator: str = "relevant",
        ties: str = "expected",
        interpolation: str = "step",
        largest: bool = True,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        conventions = Conventions(top_k, denominator, ties, interpolation, empty_target_action, aggregation)
        config = {
            "ignore_index": checks.ignored(ignore_index),
            "largest": flag("largest", largest),
            "stable": ties == "stable",
            "validate_args": flag("validate_args", validate_args),
        }
        super().__init__(config, TABLES, **kwargs)
        self.conventions = conventions
        self.ignore_index = ignore_index
        self.largest = largest
        self.validate_args = validate_args

    def update(
        self,
        preds: Tensor,
        target: Tensor,
        indexes: Tensor | None = None,
        *,
        ids: Tensor | None = None,
        num_relevant: Tensor | None = None,
    ) -> None:
        """Add rankings: rows with ``indexes``, or a matrix without.

        Rows cost 32 bytes each until `compute`. A matrix costs 40 bytes a query and 32 a tie group that holds a
        relevant item, whatever the number of columns.

        Args:
            preds: rows: scores of any shape; a matrix: (Q, N), each row a whole query. Floats without NaN, or integers
                up to 2^53. An item at the worst possible score (-inf; +inf with ``largest=False``) was not retrieved:
                it counts as relevant and never ranks.
            target: relevance, of the shape of ``preds``: bool, any integer dtype, or floats exactly 0 or 1.
            indexes: int tensor of the shape of ``preds``: the query of each item. Ids are global: a query's items may
                arrive in any batch on any rank.
            ids: rows: int document ids of the shape of ``preds``; an equal (query, document) pair counts once. A
                matrix: (Q,) query ids; an equal query counts once. Queries of a matrix without ids are never merged.
            num_relevant: where the list does not hold every relevant item (a truncated or approximate search): the
                number of relevant items in all; rows: of the shape of ``preds``, the number of each row's query;
                a matrix: (Q,).

        Raises:
            ValueError: naming the argument, what was expected, what came and where; the state stays as it was. What
                contradicts another batch (``num_relevant`` of one query, a query in both forms) `compute` refuses.
        """
        blocks = _blocks(
            preds,
            target,
            indexes,
            ids,
            num_relevant,
            ignore_index=self.ignore_index,
            largest=self.largest,
            stable=self.conventions.ties == "stable",
            validate_args=self.validate_args,
        )
        note = checks.half_note(preds, self.conventions.ties)
        if note is not None:
            self.warn_once("half", note)
        self.append(**blocks)

    def compute(self) -> Tensor | dict[str, Tensor]:
        """The mean average precision: 0-d float64, or a dict for a sequence of ``top_k``."""
        return self._result().value()

    def _result(self) -> RetrievalResult:
        tables = {name: self.table(name) for name in TABLES}
        result = retrieval_result(**tables, conventions=self.conventions)
        if bool((tables["items"][:, 3] < 2).any()) or not bool(result.named.all()):
            self.warn_unnamed("items or queries")
        for topic, note in result.notes().items():
            self.warn_once(topic, note)
        return result

    def to_trec(self, run: str | Path, qrels: str | Path) -> None:
        """Write a run and judgments as trec_eval reads them; ids are the names of queries and documents.

        Floats keep every bit: of ``read_trec(qrels, run, integer_ids=True)`` the numbers are the same bits. A score is
        written so that larger is better, an item that was not retrieved only as a judgment. Items without ids are
        numbered in their order, above those with ids. Like `compute`, this is a collective call; the first rank writes.

        trec_eval itself orders equal scores by name downwards, and so differs from ``ties="stable"``, the order of ids
        upwards, where there are some.

        Args:
            run: the path of the run.
            qrels: the path of the judgments.

        Raises:
            ValueError: if a query came as a row of a matrix, of which no documents are kept, or with ``num_relevant``,
                which judgments cannot state.

        Example:
            >>> import tempfile, torch
            >>> from pathlib import Path
            >>> from map_metrics import RetrievalMAP
            >>> metric, folder = RetrievalMAP(), Path(tempfile.mkdtemp())
            >>> indexes, ids = torch.tensor([1, 1]), torch.tensor([10, 11])
            >>> metric.update(torch.tensor([0.5, 0.25]), torch.tensor([0, 1]), indexes=indexes, ids=ids)
            >>> metric.to_trec(folder / "run", folder / "qrels")
            >>> print((folder / "run").read_text().strip())
            1 Q0 10 1 0.5 map-metrics
            1 Q0 11 2 0.25 map-metrics
        """

        def write() -> None:
            if len(self.table("queries")):
                raise ValueError("to_trec needs rows (`indexes`): of a matrix of queries x items no documents are kept")
            if len(self.table("known")):
                raise ValueError("to_trec cannot state `num_relevant`: judgments name every relevant document")
            items = self.table("items")
            if self._is_first_rank():
                write_trec(run, qrels, items)

        self._gathered(write)
