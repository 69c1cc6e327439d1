"""What stands beside a mAP: precision, recall, curves, groups; against pytrec_eval and plain loops."""

import itertools
import json
import math

import pytest
import pytrec_eval
import torch
from torch import Tensor

from map_metrics import EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP
from map_metrics.results import RetrievalResult

MEASURES = ("iprec_at_recall", "recip_rank")


def ranked(scores: Tensor, relevant: Tensor, **kwargs) -> RetrievalResult:
    metric = RetrievalMAP(**kwargs)
    metric.update(scores, relevant)
    return metric.result()


@pytest.fixture(scope="module")
def untied() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    scores = torch.stack([torch.randperm(60, generator=g) for _ in range(20)]).float()
    return scores, torch.rand(20, 60, generator=g) < torch.rand(20, 1, generator=g) * 0.5


@pytest.fixture(scope="module")
def trec(untied) -> list[dict[str, float]]:
    """pytrec_eval's numbers for the queries that have a relevant item."""
    scores, relevant = untied
    names = [f"d{i}" for i in range(scores.shape[1])]
    judged = {str(q): dict(zip(names, map(int, row), strict=True)) for q, row in enumerate(relevant.tolist())}
    run = {str(q): dict(zip(names, row, strict=True)) for q, row in enumerate(scores.tolist())}
    evaluator = pytrec_eval.RelevanceEvaluator(judged, {"P.5,30,100", "recall.5,30,100", *MEASURES})
    values = evaluator.evaluate(run)
    return [values[str(q)] for q in range(len(scores))]


@pytest.mark.parametrize("k", [5, 30, 100])
def test_precision_and_recall_at_k_are_trec_evals(untied, trec, k):
    result = ranked(*untied)
    torch.testing.assert_close(result.precision_at(k).tolist(), [query[f"P_{k}"] for query in trec])
    torch.testing.assert_close(result.recall_at(k).tolist(), [query[f"recall_{k}"] for query in trec])


def test_the_curve_is_the_mean_of_trec_evals_interpolated_precision(untied, trec):
    judged = [query for query, some in zip(trec, untied[1].any(1).tolist(), strict=True) if some]
    levels, precision = ranked(*untied).curve(11)
    for level, value in zip(levels.tolist(), precision.tolist(), strict=True):
        queries = [query[f"iprec_at_recall_{level:.2f}"] for query in judged]
        # trec_eval takes the recall 0.3 as reached by 3 of 10, float64 does not: both are neighbours there
        assert value == pytest.approx(sum(queries) / len(queries), abs=0.02)


def test_the_curve_has_the_largest_precision_from_each_recall_on():
    result = ranked(torch.arange(7.0, 0, -1)[None], torch.tensor([[1, 0, 1, 0, 0, 1, 0]]))
    levels, precision = result.curve(101)
    points = [(1 / 3, 1.0), (2 / 3, 2 / 3), (1.0, 0.5)]
    expected = [max(p for r, p in points if r >= level) for level in levels.tolist()]
    assert precision.tolist() == expected


def test_the_first_hit_is_the_reciprocal_of_trec_evals_reciprocal_rank(untied, trec):
    for rank, query in zip(ranked(*untied).first_hit.tolist(), trec, strict=True):
        assert (0 if math.isnan(rank) else 1 / rank) == pytest.approx(query["recip_rank"])


def test_ties_give_the_mean_over_their_orders():
    scores, relevant = torch.tensor([[3.0, 2, 2, 2, 2, 1]]), torch.tensor([[0, 1, 0, 1, 0, 1]])
    orders = [[0, *middle, 1] for middle in set(itertools.permutations([1, 0, 1, 0]))]
    result = ranked(scores, relevant)
    mean = lambda values: sum(values) / len(orders)  # noqa: E731
    for k in range(1, 8):
        assert float(result.precision_at(k)) == pytest.approx(mean([sum(order[:k]) / k for order in orders]), abs=1e-15)
        assert float(result.recall_at(k)) == pytest.approx(mean([sum(order[:k]) / 3 for order in orders]), abs=1e-15)
    assert float(result.first_hit) == pytest.approx(mean([order.index(1) + 1 for order in orders]), abs=1e-15)
    assert {column.dtype for column in (result.first_hit, result.ap, result.num_hits, *result.curve())} == {
        torch.float64
    }


def test_groups_have_their_own_mean_and_count():
    scores, relevant = torch.tensor([[2.0, 1], [2, 1], [2, 1], [2, 1]]), torch.tensor([[1, 0], [0, 1], [0, 0], [1, 1]])
    names = ["cat", "dog", "cat", "dog"]
    assert ranked(scores, relevant).by_group(names) == {
        "cat": {"map": 0.5, "count": 2},
        "dog": {"map": 0.75, "count": 2},
    }
    skipped = ranked(scores, relevant, empty_target_action="skip", top_k=[1, 2])
    assert skipped.by_group(names)["cat"] == {"map": 1.0, "count": 1}
    assert list(skipped.by_group(torch.tensor([7, 7, 8, 9]))) == [7, 9]
    with pytest.raises(ValueError, match=r"`groups` .*4, got 3"):
        skipped.by_group(names[:3])


@pytest.mark.parametrize("call", ["precision_at", "recall_at"])
@pytest.mark.parametrize("k", [0, -1, 1.5, True, None])
def test_a_bad_cut_off_is_refused(call, k):
    with pytest.raises(ValueError, match=r"`k` .*positive int"):
        getattr(ranked(torch.ones(1, 2), torch.ones(1, 2)), call)(k)


@pytest.mark.parametrize("points", [1, 0, 2.0, None])
def test_a_curve_needs_two_points(points):
    with pytest.raises(ValueError, match="`points`"):
        ranked(torch.ones(1, 2), torch.ones(1, 2)).curve(points)


def test_a_result_is_plain_json():
    result = ranked(torch.ones(2, 3), torch.tensor([[1, 0, 0], [0, 0, 0]]), aggregation=torch.max, top_k=2)
    read = json.loads(json.dumps(result.to_dict()))
    assert read["conventions"]["aggregation"] == "max"
    assert read["queries"][0]["num_relevant"] == 1


@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize("cls", [HashingMAPAtK, EmbeddingMAPAtK])
def test_the_two_leaks_are_counted_by_side(cls, exclude_self):
    """Ids 3 and 4 stand on both sides; two queries come twice, one item comes three times."""
    vectors, labels = torch.tensor([[1.0, -1], [-1, 1], [1, 1], [-1, -1]]), torch.tensor([0, 1, 0, 1])
    queries, items = torch.tensor([1, 2, 3, 4]), torch.tensor([4, 3, 10, 2**62])
    metric = cls(exclude_self=exclude_self)
    for query, ids, repeated in ((True, queries, (0, 3)), (False, items, (2, 2))):
        metric.update(vectors, labels, query=query, ids=ids)
        for i in repeated:
            metric.update(vectors[[i]], labels[[i]], query=query, ids=ids[[i]])
    result = metric.result()
    assert (result.num_duplicate_queries, result.num_duplicate_items, result.num_duplicates) == (2, 2, 4)
    assert result.num_self == 2
    assert result.num_items.tolist() == ([4, 4, 3, 3] if exclude_self else [4] * 4)
    shown = result.to_dict()
    assert [shown[name] for name in ("num_duplicate_queries", "num_duplicate_items", "num_duplicates", "num_self")] == [
        *(2, 2, 4, 2)
    ]


@pytest.mark.parametrize("cls", [HashingMAPAtK, EmbeddingMAPAtK])
def test_rows_without_ids_are_neither_duplicates_nor_self_matches(cls):
    vectors, labels = torch.tensor([[1.0, -1], [-1, 1]]), torch.tensor([0, 1])
    metric = cls()
    for query in (True, False, False, True):
        metric.update(vectors, labels, query=query)
    metric.update(vectors, labels, query=False, ids=torch.tensor([0, 1]))
    result = metric.result()
    assert (result.num_duplicates, result.num_self, len(result.query)) == (0, 0, 4)


def test_duplicates_of_rows_are_items_and_those_of_a_matrix_queries():
    metric = RetrievalMAP()
    rows = {"indexes": torch.tensor([1, 1, 1]), "ids": torch.tensor([5, 6, 5])}
    metric.update(torch.tensor([1.0, 2, 1]), torch.tensor([1, 0, 1]), **rows)
    for _ in range(3):
        metric.update(torch.tensor([[1.0, 2]]), torch.tensor([[1, 0]]), ids=torch.tensor([2]))
    result = metric.result()
    assert (result.num_duplicate_queries, result.num_duplicate_items, result.num_duplicates) == (2, 1, 3)
