"""Laws of every ranking metric over drawn inputs: many ties, empty queries, lists of one item, ids up to 2^62.

A case is a metric with one batch; every argument of its `update` has one entry a sample. Equal means equal bits.
"""

from __future__ import annotations

import atexit
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from torch import Tensor

import map_metrics
from map_metrics import EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP, embedding, hamming, ranking
from map_metrics.conventions import DENOMINATORS, TIES_OF
from map_metrics.results import RetrievalResult
from map_metrics.rows import RowMetric

pytestmark = [
    pytest.mark.filterwarnings("ignore:No query to average over:UserWarning"),
    pytest.mark.filterwarnings("ignore:The mean average precision is far below:UserWarning"),
    pytest.mark.filterwarnings("ignore:Argument `preds` came as torch.*float16:UserWarning"),
]

# hypothesis keeps what it reads of the sources, from the collection on; not in the tree
HOME = tempfile.mkdtemp(prefix="hypothesis-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
set_hypothesis_home_dir(HOME)

# the same examples in every run
law = settings(
    max_examples=30, derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

BIG = 2**62
NAMES = [-BIG, -BIG + 1, -7, -1, 0, 1, 2, 3, 5, 8, 2**31, 2**53, 2**53 + 1, BIG - 1, BIG]
FLAGS = [False, True]
SCORES = [-math.inf, -1.5, -0.0, 0.0, 0.25, 0.5, 2.0]  # the worst one is "not retrieved"


@dataclass(frozen=True)
class Case:
    """A metric and the batch that it is given.

    Attributes:
        cls: the class, made with ``kwargs``.
        kwargs: its arguments.
        batch: arguments of ``update``, one entry a sample.
    """

    cls: type[RowMetric]
    kwargs: dict[str, Any]
    batch: dict[str, Tensor]

    @property
    def size(self) -> int:
        return len(next(iter(self.batch.values())))

    @property
    def order_free(self) -> bool:
        """Neither the order of the samples nor how they were cut up shows."""
        return "ids" in self.batch or self.kwargs["ties"] != "stable"

    def having(self, **change: Any) -> Case:
        return replace(self, kwargs=self.kwargs | change)

    def given(self, **change: Tensor) -> Case:
        return replace(self, batch=self.batch | change)

    def samples(self, order: list[int] | slice) -> Case:
        return replace(self, batch={name: column[order] for name, column in self.batch.items()})

    def metric(self) -> RowMetric:
        metric = self.cls(**self.kwargs)
        metric.update(**self.batch)
        return metric

    def result(self) -> RetrievalResult:
        return self.metric().result()


def outcome(result: RetrievalResult) -> dict[str, str]:
    """The value, and the AP of each query by its id, or of all where they have none; floats by their shortest text."""
    value = result.value()
    shown = {"value": repr({k: float(v) for k, v in value.items()} if isinstance(value, dict) else float(value))}
    aps = [repr(row) for row in result.ap.tolist()]
    if bool(result.named.all()):
        return shown | dict(zip(map(str, result.query.tolist()), aps, strict=True))
    return shown | {"all": repr(sorted(aps))}


# --- drawn cases ------------------------------------------------------------------------------------------------------


def column(draw: st.DrawFn, values: Sequence[Any], n: int) -> Tensor:
    """n of the values, chosen by a byte each (many times faster than a list of choices)."""
    chosen = [values[byte % len(values)] for byte in draw(st.binary(min_size=n, max_size=n))]
    return torch.tensor(chosen, dtype=torch.tensor(values).dtype)


def order_of(draw: Callable[[Any], Any], n: int) -> list[int]:
    """An order of n things, by a byte each."""
    return sorted(range(n), key=draw(st.binary(min_size=n, max_size=n)).__getitem__)


def names(draw: st.DrawFn, n: int) -> Tensor:
    """n distinct ids, out of order."""
    start, step = draw(st.integers(0, len(NAMES) - 1)), draw(st.sampled_from([1, 2, 4, 7, 8, 11, 13, 14]))
    return torch.tensor([NAMES[(start + i * step) % len(NAMES)] for i in range(n)], dtype=torch.int64)


@st.composite
def conventions(draw: st.DrawFn, ties_of: dict[str, tuple[str, ...]] = TIES_OF) -> dict[str, Any]:
    interpolation = draw(st.sampled_from(list(ties_of)))
    ties = draw(st.sampled_from(ties_of[interpolation]))
    cut_offs = st.one_of(
        st.none(), st.integers(1, 12), st.just("R"), st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True)
    )
    top_k = None if ties == "threshold" else draw(cut_offs)
    return {
        "top_k": top_k,
        "denominator": draw(st.sampled_from(DENOMINATORS if top_k is not None else DENOMINATORS[:3])),
        "ties": ties,
        "interpolation": interpolation,
        "empty_target_action": draw(st.sampled_from(["neg", "pos", "skip"])),
        "aggregation": draw(st.sampled_from(["mean", "mean", "mean", "mean", "median", "min", "max"])),
    }


@st.composite
def row_cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 14))
    batch = {
        "preds": column(draw, SCORES, n),
        "target": column(draw, FLAGS, n),
        "indexes": column(draw, [-BIG, 0, BIG], n),
    }
    if draw(st.booleans()):
        batch["ids"] = names(draw, n)
    return Case(RetrievalMAP, draw(conventions()), batch)


@st.composite
def matrix_cases(draw: st.DrawFn) -> Case:
    q, n = draw(st.integers(1, 9)), draw(st.integers(1, 8))
    relevant = column(draw, FLAGS, q * n).view(q, n)
    batch = {"preds": column(draw, SCORES, q * n).view(q, n), "target": relevant}
    if draw(st.booleans()):
        batch["ids"] = names(draw, q)
    if draw(st.booleans()):
        batch["num_relevant"] = relevant.sum(1) + column(draw, [0, 1, 2], q)
    return Case(RetrievalMAP, draw(conventions()), batch)


@st.composite
def gallery_cases(draw: st.DrawFn, cls: type[RowMetric], weighted: bool = False) -> Case:
    """Codes of up to four bits, or vectors out of a few that no short sum of products holds exactly."""
    q, n, width = draw(st.integers(0, 4)), draw(st.integers(1, 12)), draw(st.integers(1, 4))
    if cls is HashingMAPAtK:
        batch = {"codes": column(draw, FLAGS, (q + n) * width).view(q + n, width)}
    else:
        pool = column(draw, [-0.7, 0.1, 0.3, 1.0, 3.0], 4 * 5 * width).view(4, 5 * width)
        batch = {"embeddings": pool[column(draw, [0, 1] if weighted else [0, 1, 2, 3], q + n)]}
    batch["query"] = torch.arange(q + n) < q
    if not weighted and draw(st.booleans()):
        batch["labels"] = column(draw, [0, 1, BIG], q + n)
        kwargs = draw(conventions())
    else:
        batch["labels"] = column(draw, FLAGS, (q + n) * 3).view(q + n, 3)
        kwargs = {"relevance": "weighted" if weighted else draw(st.sampled_from(["any", "exact", 0.5]))}
        kwargs |= draw(conventions({"step": ("expected",)} if weighted else TIES_OF))
    if weighted:
        kwargs["label_weights"] = [0.1, 0.2, 0.7]  # sums of these depend on their order
    if draw(st.sampled_from([False, False, True] if weighted else [False, True])):
        batch["ids"] = torch.cat([names(draw, q), names(draw, n)])
        kwargs["exclude_self"] = draw(st.booleans())
    if cls is EmbeddingMAPAtK:
        kwargs["similarity"] = draw(st.sampled_from(["cosine", "dot", "euclidean"]))
    return Case(cls, kwargs, batch).samples(order_of(draw, q + n))


RANKED = {"rows": row_cases(), "matrix": matrix_cases()}
GALLERY = {"hashing": gallery_cases(HashingMAPAtK), "embedding": gallery_cases(EmbeddingMAPAtK)}
WEIGHTED = {
    "weighted hashing": gallery_cases(HashingMAPAtK, weighted=True),
    "weighted embedding": gallery_cases(EmbeddingMAPAtK, weighted=True),
}
ALL = RANKED | GALLERY


def every(kinds: dict[str, st.SearchStrategy[Case]]) -> Any:
    return pytest.mark.parametrize("cases", kinds.values(), ids=kinds)


# --- order, parts and copies ------------------------------------------------------------------------------------------


@every(ALL | WEIGHTED)
@law
@given(data=st.data())
def test_the_order_of_the_samples_changes_nothing(cases, data):
    case = data.draw(cases.filter(lambda case: case.order_free))
    order = order_of(data.draw, case.size)
    assert outcome(case.samples(order).result()) == outcome(case.result())


@law
@given(case=matrix_cases().filter(lambda case: case.kwargs["ties"] != "stable"), data=st.data())
def test_the_order_of_the_columns_of_a_matrix_changes_nothing(case, data):
    order = order_of(data.draw, case.batch["preds"].shape[1])
    moved = case.given(preds=case.batch["preds"][:, order], target=case.batch["target"][:, order])
    assert outcome(moved.result()) == outcome(case.result())


@every(ALL)
@law
@given(data=st.data())
def test_parts_merged_are_the_whole(cases, data):
    case = data.draw(cases)
    cuts = sorted(data.draw(st.lists(st.integers(0, case.size), min_size=2, max_size=2)))
    parts = [case.samples(slice(*ends)) for ends in zip([0, *cuts], [*cuts, case.size], strict=True)]
    if case.order_free and data.draw(st.booleans()):
        parts.reverse()
    metrics = [part.metric() if part.size else part.cls(**part.kwargs) for part in parts]
    metrics[0].merge_state(metrics[1])
    metrics[0].merge_state(metrics[2])
    assert outcome(metrics[0].result()) == outcome(case.result())


@every(ALL)
@law
@given(data=st.data())
def test_copies_of_samples_with_ids_count_once(cases, data):
    case = data.draw(cases.filter(lambda case: "ids" in case.batch))
    copies = data.draw(st.lists(st.integers(0, case.size - 1), max_size=5))
    repeated = case.samples([*copies, *range(case.size)]).result()
    assert outcome(repeated) == outcome(case.result())
    assert repeated.num_duplicates == len(copies)


@every(ALL)
@law
@given(data=st.data())
def test_the_names_of_the_queries_do_not_matter(cases, data):
    """Other ids in the same order, so that ties in the order of ids stay as they were."""
    case = data.draw(cases)
    columns = [name for name in ("ids", "indexes") if name in case.batch]
    assume(columns)
    small = {name: torch.unique(case.batch[name], return_inverse=True)[1] - 1 for name in columns}
    first, second = case.result(), case.given(**small).result()
    assert outcome(first)["value"] == outcome(second)["value"]
    assert repr(first.ap.tolist()) == repr(second.ap.tolist())


@every(GALLERY | WEIGHTED)
@law
@given(data=st.data())
def test_a_query_that_excludes_itself_is_one_against_the_others(cases, data):
    case = data.draw(cases.filter(lambda case: "ids" in case.batch and bool(case.batch["query"].any())))
    case = case.having(exclude_self=True, empty_target_action="neg")
    query, ids = case.batch["query"], case.batch["ids"]
    expected = []
    for own in ids[query].sort().values:
        kept = torch.where(query, ids == own, ids != own).nonzero()[:, 0].tolist()
        expected += case.samples(kept).having(exclude_self=False).result().ap.tolist()
    result = case.result()
    assert repr(result.ap.tolist()) == repr(expected)
    assert result.num_self == int(torch.isin(ids[query], ids[~query]).sum())


# --- blocks -----------------------------------------------------------------------------------------------------------


@every(ALL | WEIGHTED)
@law
@given(data=st.data())
def test_the_sizes_of_blocks_change_nothing(cases, data):
    case = data.draw(cases)
    expected = outcome(case.result())
    with pytest.MonkeyPatch.context() as patch:
        small = st.integers(1, 5)
        for module, name in (
            (embedding, "_QUERIES"),
            (embedding, "_ITEMS"),
            (hamming, "_BLOCK"),
            (ranking, "_BLOCK"),
            (sys.modules["map_metrics.average_precision"], "_BLOCK"),
        ):
            assert getattr(module, name) > 5
            patch.setattr(module, name, data.draw(small))
        assert outcome(case.result()) == expected


# --- scores -----------------------------------------------------------------------------------------------------------


@every(RANKED)
@law
@given(data=st.data())
def test_increasing_maps_of_the_scores_change_nothing(cases, data):
    case = data.draw(cases)
    expected, preds = outcome(case.result()), case.batch["preds"]
    assert outcome(case.given(preds=2 * preds + 1).result()) == expected
    assert outcome(case.given(preds=preds.double() * 2.0**-900 - 0.0).result()) == expected
    assert outcome(case.given(preds=-preds).having(largest=False).result()) == expected


@law
@given(case=GALLERY["embedding"], power=st.integers(-30, 30))
def test_the_scale_of_embeddings_changes_nothing(case, power):
    scaled = case.given(embeddings=case.batch["embeddings"] * 2.0**power)
    assert outcome(scaled.result()) == outcome(case.result())


@law
@given(case=GALLERY["hashing"])
def test_codes_and_their_complements_have_the_same_distances(case):
    assert outcome(case.given(codes=~case.batch["codes"]).result()) == outcome(case.result())


@every(RANKED)
@law
@given(data=st.data(), dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
def test_scores_of_any_dtype_are_those_of_their_float64_copy(cases, data, dtype):
    """Also where they overflow to an infinity, or neighbours become equal."""
    case = data.draw(cases)
    pool = data.draw(st.lists(st.one_of(st.floats(-1, 1), st.floats(allow_nan=False)), min_size=1, max_size=5))
    shape = case.batch["preds"].shape
    preds = column(data.draw, [*pool, math.nextafter(pool[0], 9), 0.0], shape.numel()).view(shape).double().to(dtype)
    assert outcome(case.given(preds=preds).result()) == outcome(case.given(preds=preds.double()).result())


@law
@given(case=matrix_cases().filter(lambda case: "ids" in case.batch and case.kwargs["ties"] != "stable"))
def test_a_matrix_is_its_rows(case):
    batch = case.batch
    q, n = batch["preds"].shape
    spread = {"indexes": batch["ids"][:, None].expand(q, n)}
    if "num_relevant" in batch:
        spread["num_relevant"] = batch["num_relevant"][:, None].expand(q, n)
    rows = replace(case, batch={"preds": batch["preds"], "target": batch["target"]} | spread)
    assert outcome(rows.result()) == outcome(case.result())


# --- bounds -----------------------------------------------------------------------------------------------------------


@every(ALL)
@law
@given(data=st.data())
def test_values_lie_between_0_and_1(cases, data):
    result = data.draw(cases).result()
    ap = result.ap[~result.ap.isnan()]
    assert bool((ap >= 0).all())
    assert bool((ap <= 1).all()), ap.max().item()
    value = result.value()
    assert all(0 <= float(v) <= 1 for v in (value.values() if isinstance(value, dict) else [value]))


@every(ALL)
@law
@given(data=st.data())
def test_every_tie_rule_lies_between_the_pessimistic_and_the_optimistic(cases, data):
    case = data.draw(cases).having(interpolation="step", empty_target_action="neg")
    if case.kwargs["ties"] == "threshold":
        case = case.having(top_k=data.draw(st.integers(1, 12)))
    low, expected, stable, high = (
        case.having(ties=ties).result().ap for ties in ("pessimistic", "expected", "stable", "optimistic")
    )
    assert bool((low <= expected + 1e-12).all())
    assert bool((expected <= high + 1e-12).all())
    assert bool((low <= stable + 1e-12).all())
    assert bool((stable <= high + 1e-12).all())


@every(ALL | WEIGHTED)
@law
@given(data=st.data())
def test_over_all_relevant_items_ap_rises_with_k(cases, data):
    case = data.draw(cases)
    if case.kwargs["ties"] == "threshold" or case.kwargs["interpolation"] not in ("step", "trapezoid"):
        case = case.having(ties="expected", interpolation="step")
    ap = case.having(denominator="relevant", top_k=[*range(1, 16)], empty_target_action="neg").result().ap
    assert bool((ap[:, 1:] >= ap[:, :-1] - 1e-12).all())
    whole = case.having(denominator="relevant", top_k=None, empty_target_action="neg").result().ap
    assert torch.equal(ap[:, -1], whole)  # 15 is beyond every list


# --- the pure form over counts of tie groups --------------------------------------------------------------------------


@st.composite
def counts(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """(lists, groups) items and relevant items; groups may be empty."""
    lists, groups = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    total = column(draw, range(5), lists * groups).view(lists, groups)
    relevant = torch.minimum(column(draw, range(5), lists * groups).view(lists, groups), total)
    return total, relevant


def pure_arguments(draw: Callable[[Any], Any]) -> dict[str, Any]:
    arguments = draw(conventions({k: tuple(t for t in v if t != "stable") for k, v in TIES_OF.items()}))
    if isinstance(arguments["top_k"], list):
        arguments["top_k"] = arguments["top_k"][0]
    return {name: arguments[name] for name in ("top_k", "denominator", "ties", "interpolation")}


@law
@given(counts=counts(), data=st.data())
def test_a_list_has_its_ap_whatever_stands_beside_it(counts, data):
    (total, relevant), how = counts, pure_arguments(data.draw)
    together = map_metrics.average_precision(total, relevant, **how)
    alone = [map_metrics.average_precision(t, r, **how) for t, r in zip(total, relevant, strict=True)]
    assert repr(together.tolist()) == repr([float(ap) for ap in alone])
    order = order_of(data.draw, len(total))
    assert torch.equal(map_metrics.average_precision(total[order], relevant[order], **how), together[order])


@law
@given(counts=counts(), data=st.data())
def test_groups_without_items_change_nothing(counts, data):
    (total, relevant), how = counts, pure_arguments(data.draw)
    place = data.draw(st.integers(0, total.shape[1]))
    none = torch.zeros_like(total[:, :1])
    wider = [torch.cat([column[:, :place], none, column[:, place:]], 1) for column in (total, relevant)]
    expected = map_metrics.average_precision(total, relevant, **how)
    assert torch.equal(map_metrics.average_precision(*wider, **how), expected)
    assert bool(((expected >= 0) & (expected <= 1)).all())


@law
@given(counts=counts(), data=st.data())
def test_counts_of_groups_are_the_metric_of_their_items(counts, data):
    (total, relevant), how = counts, pure_arguments(data.draw)
    aps = []
    for items, hits in zip(total.tolist(), relevant.tolist(), strict=True):
        scores = [-float(group) for group, n in enumerate(items) for _ in range(n)]
        target = [i < r for n, r in zip(items, hits, strict=True) for i in range(n)]
        case = Case(RetrievalMAP, how, {"preds": torch.tensor([scores]), "target": torch.tensor([target]).bool()})
        aps.append(float(case.result().ap))
    assert repr(map_metrics.average_precision(total, relevant, **how).tolist()) == repr(aps)
