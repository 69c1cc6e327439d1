"""RetrievalMAP against loops over every order of tied items, against other tools, and on inputs that break others."""

import itertools
import json
import math
import random
import re
import sys
from fractions import Fraction

import numpy as np
import pytest
import pytrec_eval
import torch
from oracles import brute, tools
from sklearn.metrics import average_precision_score

from map_metrics import RetrievalMAP, average_precision
from map_metrics.functional import retrieval_map
from map_metrics.ranking import fingerprints

INF = math.inf
BIG = 2**62
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
RULES = ("step", "envelope", "11-point", "40-point", "101-point")
HALF = pytest.mark.filterwarnings("ignore:Argument `preds` came as torch.b?float16:UserWarning")


def close(value, expected, tolerance=1e-12):
    assert value.dtype == torch.float64
    assert value.ndim == 0
    assert float(value) == pytest.approx(float(expected), rel=0, abs=tolerance)


def listed(relevant, scores=None, **conventions):
    """The value of one query whose items come best first, by all three ways in."""
    scores = range(len(relevant), 0, -1) if scores is None else scores
    scores, relevant = torch.tensor(list(scores), dtype=torch.float64), torch.tensor(relevant)
    one = torch.zeros(len(scores), dtype=torch.int64)
    by_rows = retrieval_map(scores, relevant, one, **conventions)
    by_matrix = retrieval_map(scores[None], relevant[None], **conventions)
    metric = RetrievalMAP(**conventions)
    metric.update(scores, relevant, one)
    assert torch.equal(by_rows, by_matrix)
    assert torch.equal(by_rows, metric.compute())
    return by_rows


# --- small inputs that break other tools ------------------------------------------------------------------------------

LONG = [1, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0, 1, 0, 1]
H64 = math.fsum(1 / i for i in range(1, 65))
NUMBERS = {  # relevance best first, conventions -> value
    "two ways of counting misses": ([1, 0, 0, 1, 1], {}, 0.7),
    "hits at 1, 3, 6, 9 of 10": ([1, 0, 1, 0, 0, 1, 0, 0, 1, 0], {}, (1 + 2 / 3 + 3 / 6 + 4 / 9) / 4),
    "the same, k": ([1, 0, 1, 0, 0, 1, 0, 0, 1, 0], {"top_k": 10, "denominator": "k"}, 0.2611111111111111),
    "the same, hits": ([1, 0, 1, 0, 0, 1, 0, 0, 1, 0], {"top_k": 10, "denominator": "hits"}, 0.6527777777777778),
    "hand example": ([0, 1, 0, 1, 1, 0, 0, 1, 0, 0], {}, 0.525),
    "a late hit lowers hits": ([1, 0, 1], {"top_k": 3, "denominator": "hits"}, 5 / 6),
    "no late hit, hits": ([1, 0, 0, 1], {"top_k": 3, "denominator": "hits"}, 1.0),
    "a late hit, min": ([1, 0, 1], {"top_k": 3, "denominator": "min"}, 5 / 6),
    "no late hit, min": ([1, 0, 0, 1], {"top_k": 3, "denominator": "min"}, 0.5),
    "trapezoid": ([0, 1, 0, 1], {"interpolation": "trapezoid"}, 1 / 3),
    "finite sum": ([0, 1, 0, 1], {}, 0.5),
    "junk": ([-1, 0, 1, 0, 1], {"ignore_index": -1}, 0.5),
    "junk as a hit": ([1, 0, 1, 0, 1], {}, 34 / 45),
    "junk as a miss": ([0, 0, 1, 0, 1], {}, 11 / 30),
    **{
        f"1,0,0,0,1 k=2 {d}": ([1, 0, 0, 0, 1], {"top_k": 2, "denominator": d}, v)
        for d, v in zip(brute.DENOMINATORS, (0.5, 0.5, 1.0, 0.5), strict=True)
    },
    **{
        f"long k={k} {d}": (LONG, {"top_k": k, "denominator": d}, v)
        for k, row in {
            5: (5 / 21, 1 / 3, 5 / 6, 1 / 3),
            10: (3.0396825 / 7, 3.0396825 / 7, 3.0396825 / 5, 0.30396825),
        }.items()
        for d, v in zip(brute.DENOMINATORS, row, strict=True)
    },
    **{
        f"long all {d}": (LONG, {"denominator": d}, (1 + 2 / 3 + 3 / 7 + 4 / 9 + 3 / 2) / 7)
        for d in brute.DENOMINATORS[:3]
    },
}


@pytest.mark.parametrize(("relevant", "conventions", "value"), NUMBERS.values(), ids=NUMBERS)
def test_lists_by_hand(relevant, conventions, value):
    close(listed(relevant, **conventions), value, 1e-7 if relevant is LONG else 1e-14)


TIED = {  # scores, relevance, conventions -> value
    "64 equal: mean": ([3.0] * 64, [1] + [0] * 63, {}, H64 / 64),
    "64 equal: best": ([3.0] * 64, [0] * 40 + [1] + [0] * 23, {"ties": "optimistic"}, 1.0),
    "64 equal: worst": ([3.0] * 64, [1] + [0] * 63, {"ties": "pessimistic"}, 1 / 64),
    "two tied": ([1.0, 1.0], [0, 1], {}, 0.75),
    "three tied": ([0.0] * 3, [1, 0, 0], {}, 11 / 18),
    "five tied": ([-2.0] * 5, [0, 0, 1, 0, 0], {}, 137 / 300),
    "five tied, third in input order": ([-2.0] * 5, [0, 0, 1, 0, 0], {"ties": "stable"}, 1 / 3),
    "ten, then two tied": ([1.0] * 10 + [0.0] * 2, [0] * 10 + [1] * 2, {}, (1 / 11 + 2 / 12) / 2),
    "ten, then two tied: threshold": ([1.0] * 10 + [0.0] * 2, [0] * 10 + [1] * 2, {"ties": "threshold"}, 1 / 6),
    "zeros of both signs": ([-0.0, 0.0], [1, 0], {}, 0.75),
    "zeros of both signs, in input order": ([0.0, -0.0], [0, 1], {"ties": "stable"}, 0.5),
    "hits bounds: mean": ([3.0, 2.0, 1.0, 1.0], [1, 0, 1, 0], {"top_k": 3, "denominator": "hits"}, 11 / 12),
    "a miss not retrieved": ([0.9, -INF], [1, 1], {}, 0.5),
    "the worst finite score is retrieved": ([0.9, -1.7976931348623157e308], [1, 1], {}, 1.0),
    "the worst finite score beside one not retrieved": ([0.9, -1.7976931348623157e308, -INF], [1, 1, 1], {}, 2 / 3),
    "nothing retrieved": ([-INF, -INF], [1, 0], {}, 0.0),
    "inf is the best score": ([INF, 1e308, INF], [1, 0, 1], {}, 1.0),
    "distances": ([0.5, 0.1, 0.3], [1, 1, 0], {"largest": False}, (1 + 2 / 3) / 2),
    "a distance of inf is not retrieved": ([0.5, INF], [1, 1], {"largest": False}, 0.5),
    "a distance of -inf is the best": ([0.5, -INF], [0, 1], {"largest": False}, 1.0),
    "zero distances of both signs": ([0.0, -0.0], [1, 0], {"largest": False}, 0.75),
}


@pytest.mark.parametrize(("scores", "relevant", "conventions", "value"), TIED.values(), ids=TIED)
def test_ties_and_ends_of_the_range(scores, relevant, conventions, value):
    close(listed(relevant, scores, **conventions), value, 1e-14)


@pytest.mark.parametrize("scores", [[-0.2, -0.5, -0.9], [0.9, 0.5, 0.2], [2.0, 0.0, -3.0], [1e300, 1e-300, -1e300]])
@pytest.mark.parametrize("conventions", [{}, {"denominator": "hits", "top_k": 3}, {"ties": "stable"}], ids=str)
def test_the_sign_of_a_score_means_nothing(scores, conventions):
    close(listed([1, 0, 1], scores, **conventions), 5 / 6)
    close(listed([1, 0, 1], [-s for s in scores], largest=False, **conventions), 5 / 6)


def test_a_matrix_is_one_query_per_row():
    preds, target = torch.tensor([[0.9, 0.1, 0.2], [0.3, 0.8, 0.7]]), torch.tensor([[1, 0, 0], [1, 0, 0]])
    close(retrieval_map(preds, target), 2 / 3)
    close(retrieval_map(preds, target, torch.zeros(2, 3, dtype=torch.int64)), 0.75)


@pytest.mark.parametrize("shape", [(6,), (1, 6), (6, 1), (2, 3), (1, 2, 3), (3, 1, 2)])
def test_rows_of_any_shape_are_flattened(shape):
    scores, relevant, query = torch.arange(6.0), torch.tensor([0, 1, 0, 1, 1, 0]), torch.tensor([5, 5, -5, -5, 5, -5])
    expected = retrieval_map(scores, relevant, query)
    assert torch.equal(retrieval_map(scores.view(shape), relevant.view(shape), query.view(shape)), expected)


def test_one_query_may_arrive_in_many_batches():
    """`indexes` is one id space for the life of the metric: a restarted count would merge queries."""
    metric = RetrievalMAP()
    metric.update(torch.tensor([0.9, 0.8]), torch.tensor([1, 0]), torch.tensor([0, 1]))
    metric.update(torch.tensor([0.95]), torch.tensor([0]), torch.tensor([0]))
    metric.update(torch.tensor(0.7), torch.tensor(1), torch.tensor(1))  # a scalar is one row
    assert metric.result().query.tolist() == [0, 1]
    assert metric.result().ap.tolist() == [0.5, 0.5]


def test_means_over_hits_by_two_ways_of_writing_them():
    """Mean of the precision at the hits, and area under the step curve of precision over recall."""
    rng = random.Random(10)
    words = rng.choices(["positive", "negative"], weights=[0.6, 0.4], k=100)
    relevant = [int(word == "positive") for word in words]
    assert sum(relevant) == 66
    close(listed(relevant), 0.6379617729436682, 1e-15)
    for n in (1, 2, 10, 500):
        relevant = [rng.random() < 0.4 for _ in range(n)]
        hits = list(itertools.accumulate(relevant))
        recall = [Fraction(h, max(hits[-1], 1)) for h in hits]
        steps = [b - a for a, b in itertools.pairwise([Fraction(0), *recall])]
        area = sum(step * Fraction(h, i) for i, (step, h) in enumerate(zip(steps, hits, strict=True), 1))
        close(listed(relevant), area, 1e-15)


def test_three_queries_of_a_table():
    target = torch.tensor([[0, 1, 0, 1, 1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0, 0, 0], [0] * 9 + [1]])
    scores = torch.arange(10, 0, -1).expand(3, 10)
    close(retrieval_map(scores, target), (0.525 + 1 + 0.1) / 3)


# --- rows, matrix and loops -------------------------------------------------------------------------------------------


def random_queries(seed):
    """name -> rows [document, score, target, R]: ties, items not retrieved, junk (-1), empty queries, short lists."""
    rng = random.Random(seed)
    names = rng.sample([-(2**63), -BIG, -1, 0, 1, 2, 3, 2**31, 2**53, 2**53 + 1, BIG, BIG + 1, 2**63 - 1], 12)
    queries = {}
    for name in names + rng.sample(range(100, 10_000), 28):
        n, extra = rng.randint(1, 8), rng.choice([0, 0, 2])
        documents = rng.sample([-BIG, BIG, -3, *range(20)], n)
        rows = [
            [d, rng.choice([-INF, -1.5, -0.0, 0.0, 0.25, 0.25 + 2**-40, 3, INF]), rng.choice([-1, 0, 0, 1, 1]), 0]
            for d in documents
        ]
        if any(row[2] >= 0 for row in rows):
            queries[name] = [[d, s, t, extra + sum(row[2] == 1 for row in rows)] for d, s, t, _ in rows]
    return queries


def loops(queries, ids=False, **how):
    """query -> average precision, 0 for a query without relevant items."""
    values = {}
    for name, rows in queries.items():
        rows = [row for row in (sorted(rows) if ids else rows) if row[2] >= 0]
        scores, relevant = [row[1] for row in rows], [row[2] for row in rows]
        values[name] = brute.of_scores(scores, relevant, rows[0][3], **how)
    return values


def as_rows(queries, sign=1):
    rows = [(name, *row) for name, items in queries.items() for row in items]
    query, ids, scores, target, known = zip(*rows, strict=True)
    scores = sign * torch.tensor(scores, dtype=torch.float64)
    columns = (torch.tensor(column) for column in (target, query, ids, known))
    return dict(zip(("preds", "target", "indexes", "ids", "num_relevant"), (scores, *columns), strict=True))


def as_matrix(queries, sign=1):
    """Short rows are filled up: half with junk, half with irrelevant items that were not retrieved."""
    width = max(map(len, queries.values()))
    fillers = ([0, INF, -1, 0], [0, -INF, 0, 0])
    rows = [items + [fillers[i % 2]] * (width - len(items)) for i, items in enumerate(queries.values())]
    scores = torch.tensor([[row[1] for row in items] for items in rows], dtype=torch.float64)
    target = torch.tensor([[row[2] for row in items] for items in rows])
    known = torch.tensor([items[0][3] for items in queries.values()])
    return {"preds": sign * scores, "target": target, "ids": torch.tensor(list(queries)), "num_relevant": known}


TIES = ("expected", "optimistic", "pessimistic", "stable")
HOW = [
    *({"k": k, "denominator": d, "ties": t} for k in (3, "R") for d in brute.DENOMINATORS for t in TIES),
    *({"denominator": d, "ties": t} for d in brute.DENOMINATORS[:3] for t in TIES),
    *({"k": k, "ties": t, "rule": "trapezoid"} for k in (None, 3) for t in ("expected", "stable")),
    *({"denominator": d, "ties": "threshold", "rule": r} for d in ("relevant", "hits") for r in RULES),
    *({"k": 3, "denominator": "min", "ties": "stable", "rule": r} for r in RULES[1:]),
]


def arguments(how):
    names = {"k": "top_k", "rule": "interpolation"}
    return {names.get(name, name): value for name, value in how.items()}


def by_query(metric):
    result = metric.result()
    return dict(zip(result.query.tolist(), result.ap.tolist(), strict=True))


@pytest.mark.parametrize("how", HOW, ids=lambda how: "-".join(map(str, how.values())))
@pytest.mark.parametrize("largest", [True, False], ids=["scores", "distances"])
def test_rows_matrix_and_loops_agree(how, largest):
    queries, sign = random_queries(3), 1 if largest else -1
    expected = pytest.approx(loops(queries, **how), rel=0, abs=1e-12)
    metric = RetrievalMAP(ignore_index=-1, largest=largest, **arguments(how))
    rows = as_rows(queries, sign)
    rows.pop("ids")
    metric.update(**rows)
    assert by_query(metric) == expected
    by_rows = metric.compute()
    metric.reset()
    matrix = as_matrix(queries, sign)
    metric.update(**matrix)
    assert by_query(metric) == expected
    assert torch.equal(metric.compute(), by_rows)  # bit for bit: the mean does not depend on the order of queries
    assert torch.equal(retrieval_map(**matrix, ignore_index=-1, largest=largest, **arguments(how)), by_rows)
    assert torch.equal(retrieval_map(**rows, ignore_index=-1, largest=largest, **arguments(how)), by_rows)


@pytest.mark.parametrize("ties", ["expected", "optimistic", "pessimistic", "stable", "threshold"])
def test_shuffled_batches_with_repeated_rows_change_no_bit(ties):
    """With ids, "stable" is the order of ids; a repeated (query, document) counts once."""
    queries = random_queries(8)
    rows = as_rows(queries)
    n, values = len(rows["preds"]), []
    for seed in range(4):
        rng = torch.Generator().manual_seed(seed)
        order = torch.cat([torch.randperm(n, generator=rng), torch.randint(n, (seed * 15,), generator=rng)])
        metric = RetrievalMAP(ignore_index=-1, ties=ties)
        for part in order.split(17):
            metric.update(**{name: column[part] for name, column in rows.items()})
        assert by_query(metric) == pytest.approx(loops(queries, ids=True, ties=ties), rel=0, abs=1e-12)
        kept = int((rows["target"][order] >= 0).sum()) - int((rows["target"] >= 0).sum())
        assert metric.result().num_duplicates == kept
        assert metric.result().num_conflicts == 0
        values.append(metric.compute())
    assert all(torch.equal(value, values[0]) for value in values)


def test_one_metric_takes_rows_and_matrices():
    queries = list(random_queries(5).items())
    metric = RetrievalMAP(ignore_index=-1, top_k=3)
    metric.update(**as_rows(dict(queries[:9])))
    metric.update(**as_matrix(dict(queries[9:20])))
    anonymous = as_matrix(dict(queries[20:]))
    anonymous.pop("ids")
    metric.update(**anonymous)
    result, expected = metric.result(), loops(dict(queries), k=3)
    named = dict(zip(result.query[result.named].tolist(), result.ap[result.named].tolist(), strict=True))
    assert named == pytest.approx({name: expected[name] for name, _ in queries[:20]}, abs=1e-12)
    assert result.ap[~result.named].tolist() == pytest.approx([expected[name] for name, _ in queries[20:]], abs=1e-12)
    assert result.query[~result.named].tolist() == list(range(20, len(queries)))  # their places
    close(metric.compute(), math.fsum(expected.values()) / len(queries), 1e-15)


SIZES = [
    *((200, hits) for hits in (0, 1, 5, 12, 13, 100, 199, 200)),
    (4095, 3),
    (4096, 0),
    (4096, 1),
    (4096, 64),
    (4500, 70),
]


@pytest.mark.parametrize("ties", ["expected", "stable"])
@pytest.mark.parametrize("levels", [2, 40, 10**6])
@pytest.mark.parametrize(("width", "hits"), SIZES)
def test_few_and_many_relevant_items_of_short_and_long_rows(width, hits, levels, ties):
    """Few are counted above one by one, others sorted; both are the rows' numbers and the loops'."""
    rng = torch.Generator().manual_seed(hits)
    scores = torch.randint(levels, (7, width), generator=rng)
    scores[0] = 1
    places = torch.rand(7, width, generator=rng).argsort(1)
    target = (places < torch.tensor([[hits]] * 6 + [[min(hits, 3)]])).long()
    hidden = torch.rand(7, width, generator=rng) < 0.1
    query = torch.arange(7)[:, None].expand(7, width)
    for dtype in (torch.float32, torch.float64, torch.int32):
        preds = scores.to(dtype).masked_fill(hidden, -INF) if dtype.is_floating_point else scores.to(dtype)
        for conventions in ({}, {"top_k": 30, "denominator": "hits"}):
            metric, flat = RetrievalMAP(ties=ties, **conventions), RetrievalMAP(ties=ties, **conventions)
            metric.update(preds, target)
            flat.update(preds, target, query)
            assert torch.equal(metric.result().ap, flat.result().ap)
            assert torch.equal(metric.result().num_hits, flat.result().num_hits)
            assert torch.equal(metric.result().num_items, flat.result().num_items)
            for row in (0, 3, 6) if ties == "expected" and (width == 200 or levels == 40) else ():
                groups = brute.tie_groups(preds[row].tolist(), target[row].tolist())
                k, d = conventions.get("top_k"), conventions.get("denominator", "relevant")
                value = brute.expected(groups, int(target[row].sum()), k, d)
                assert float(metric.result().ap[row]) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("width", [50, 4096])
def test_blocks_of_a_matrix_change_no_bit(width, monkeypatch):
    rng = torch.Generator().manual_seed(0)
    scores, target = torch.randint(9, (12, width), generator=rng), torch.rand(12, width, generator=rng).argsort(1) < 2
    target[[0, 7, 8]] = False
    results = []
    for block in (2**22, 1, width, 2 * width - 1, 3 * width):
        for module in ("map_metrics.ranking", "map_metrics.average_precision"):
            monkeypatch.setattr(sys.modules[module], "_BLOCK", block)
        metric = RetrievalMAP(top_k=20, denominator="hits")
        metric.update(scores, target)
        results.append(metric.result())
    for result in results[1:]:
        assert torch.equal(result.ap, results[0].ap)
        assert torch.equal(result.num_relevant, results[0].num_relevant)


@pytest.mark.parametrize("how", [{}, {"top_k": 3, "denominator": "hits"}, {"ties": "stable"}], ids=str)
def test_the_bits_of_a_query_do_not_depend_on_the_others(how):
    queries = random_queries(9)
    metric = RetrievalMAP(ignore_index=-1, **how)
    metric.update(**as_rows(queries))
    together = by_query(metric)
    for name in queries:
        alone = RetrievalMAP(ignore_index=-1, **how)
        alone.update(**as_rows({name: queries[name]}))
        assert by_query(alone) == {name: together[name]}


def test_a_matrix_keeps_a_row_per_relevant_group_only():
    scores = torch.rand(50, 2_000, generator=torch.Generator().manual_seed(0))
    target = torch.zeros(50, 2_000, dtype=torch.bool)
    target[:, :4] = True
    metric = RetrievalMAP()
    metric.update(scores, target)
    held = sum(block.numel() for name in ("items", "known", "queries", "groups") for block in getattr(metric, name))
    assert held <= 50 * 6 + 50 * 4 * 4


@pytest.mark.parametrize("ids", [[0, BIG], [-BIG, BIG], [-(2**63), 2**63 - 1], [2**53, 2**53 + 1]])
def test_memory_does_not_follow_the_largest_id(ids):
    metric = RetrievalMAP()
    metric.update(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([1, 0, 0, 1]), torch.tensor(ids).repeat(2))
    metric.update(torch.tensor([[0.9, 0.8]] * 2), torch.tensor([[1, 0], [0, 1]]), ids=torch.tensor([5, -(2**61)]))
    assert by_query(metric) == {ids[0]: 1.0, ids[1]: 0.5, 5: 1.0, -(2**61): 0.5}


VIEWS = {
    "transposed": lambda x: x.T.contiguous().T,
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "flipped twice": lambda x: x.flip(0, 1).flip(0, 1),
    "part of a wider one": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize(("width", "hits"), [(80, 1), (80, 60), (4100, 2)])
def test_views_of_tensors_are_read_as_they_are(view, width, hits):
    rng = torch.Generator().manual_seed(4)
    scores, target = torch.rand(9, width, generator=rng), torch.rand(9, width, generator=rng).argsort(1) < hits
    expected = retrieval_map(scores, target)
    query = torch.arange(9)[:, None].expand(9, width)
    assert torch.equal(retrieval_map(view(scores), view(target)), expected)
    assert torch.equal(retrieval_map(view(scores), view(target), query), expected)
    assert torch.equal(retrieval_map(-view(scores), view(target), largest=False), expected)


# --- dtypes -----------------------------------------------------------------------------------------------------------


@HALF
@pytest.mark.parametrize("target", [torch.bool, *INTEGERS, *FLOATS], ids=str)
@pytest.mark.parametrize("preds", [torch.bool, *INTEGERS, *FLOATS], ids=str)
def test_any_dtype_of_scores_and_targets(preds, target):
    scores = [[3, 1, 1, 0, 2, 0], [0, 1, 0, 3, 3, 1]] if preds != torch.bool else [[1, 0, 0, 0, 1, 0]] * 2
    relevant = [[1, 0, 1, 0, 0, 1], [0, 1, 1, 0, 0, 1]]
    for largest in (True, False):
        signed = [[s if largest else -s for s in row] for row in scores]
        expected = [brute.of_scores(s, r) for s, r in zip(signed, relevant, strict=True)]
        arguments = torch.tensor(scores, dtype=preds), torch.tensor(relevant, dtype=target)
        close(retrieval_map(*arguments, largest=largest), sum(expected) / 2)
        for index in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
            query = torch.tensor([[7] * 6, [100] * 6], dtype=index)
            close(retrieval_map(*arguments, query, ids=query * 0 + torch.arange(6), largest=largest), sum(expected) / 2)


@HALF
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_both_ends_of_every_dtype_rank_where_they_belong(dtype):
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    low, high, step = info.min, info.max, 1
    if dtype == torch.int64:
        low, high = -(2**53), 2**53
    if dtype.is_floating_point:
        high = torch.tensor(high, dtype=dtype)
        low, near = -high, torch.nextafter(high, torch.tensor(0, dtype=dtype)) if dtype not in FLOATS[:2] else high / 2
        scores = torch.stack([near, high, low, -near, high * 0])
    else:
        scores = torch.tensor([high - step, high, low, low + step, 3], dtype=dtype)
    places = scores.double().argsort(descending=True)
    for item in range(5):
        target = torch.eye(5, dtype=torch.int64)[item]
        rank = int((places == item).nonzero()) + 1
        assert len(set(scores.tolist())) == 5
        close(listed_as(scores, target), 1 / rank)
        close(listed_as(scores, target, largest=False), 1 / (6 - rank))


def listed_as(scores, target, **conventions):
    """One query in its own dtype, by rows and by matrix; the sorting path and the counting path."""
    by_rows = retrieval_map(scores, target, torch.zeros(len(scores), dtype=torch.int64), **conventions)
    assert torch.equal(retrieval_map(scores[None], target[None], **conventions), by_rows)
    others = scores[target == 0]
    for times in (20, 1500):
        wide = torch.cat([scores, others.repeat(times)])[None]
        relevant = torch.cat([target, torch.zeros(times * len(others), dtype=torch.int64)])[None]
        by_wide_rows = retrieval_map(wide, relevant, torch.zeros_like(relevant), **conventions)
        assert torch.equal(retrieval_map(wide, relevant, **conventions), by_wide_rows)
    return by_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.9, 1.0, -3.7, 1e-38, 0.0, 1e30])
def test_neighbouring_floats_are_told_apart_and_equal_ones_are_tied(value, dtype):
    one = torch.tensor(value, dtype=dtype)
    scores = torch.stack([one, torch.nextafter(one, one + INF), one, torch.nextafter(one, one - INF)])
    close(listed_as(scores, torch.tensor([0, 1, 0, 0])), 1.0)
    close(listed_as(scores, torch.tensor([0, 0, 0, 1])), 0.25)
    close(listed_as(scores, torch.tensor([1, 0, 0, 0])), (1 / 2 + 1 / 3) / 2)


def test_float32_and_float64_scores_of_one_query_are_compared_exactly():
    metric = RetrievalMAP()
    metric.update(torch.tensor([0.1], dtype=torch.float32), torch.tensor([0]), torch.tensor([0]))
    metric.update(torch.tensor([0.1], dtype=torch.float64), torch.tensor([1]), torch.tensor([0]))
    close(metric.compute(), 0.5)  # float32's 0.1 is the larger one


@pytest.mark.parametrize("dtype", FLOATS[:2])
def test_half_precision_scores_are_as_tied_as_they_are_and_warn_once(dtype):
    scores, target = torch.tensor([[0.9000, 0.9001]], dtype=dtype), torch.tensor([[0, 1]])
    metric = RetrievalMAP()
    with pytest.warns(UserWarning, match=f"`preds` came as {dtype}.*tied"):
        metric.update(scores, target)
    metric.update(scores, target)
    metric.update(scores[0], target[0], torch.tensor([9, 9]))
    assert metric.result().ap.tolist() == [0.75] * 3


# --- what counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [-1, -100, 2, 255, 2**40])
@pytest.mark.parametrize("form", ["rows", "matrix"])
def test_a_batch_of_nothing_but_ignored_items_changes_nothing(form, junk):
    metric = RetrievalMAP(ignore_index=junk)
    more = {"indexes": torch.tensor([[3, 3], [4, 4]])} if form == "rows" else {}
    metric.update(torch.rand(2, 2), torch.full((2, 2), junk), **more)
    assert len(metric.result().query) == 0
    metric.update(torch.tensor([[0.1, 0.2]]), torch.tensor([[1, 0]]), **{k: v[:1] for k, v in more.items()})
    close(metric.compute(), 0.5)
    assert metric.result().num_empty == 0


def test_a_query_of_nothing_but_ignored_items_is_no_query_in_either_form():
    scores, target = torch.tensor([[0.3, 0.2], [0.3, 0.2]]), torch.tensor([[-1, -1], [0, 1]])
    query = torch.tensor([[1, 1], [2, 2]])
    close(retrieval_map(scores, target, query, ignore_index=-1), 0.5)
    close(retrieval_map(scores, target, ids=query[:, 0], ignore_index=-1), 0.5)


@pytest.mark.parametrize("junk", [0, 1])
def test_ignore_index_may_be_a_relevance(junk):
    target = torch.tensor([[1, 0, 1, 0]])
    scores = torch.tensor([[4, 3, 2, 1]])
    close(retrieval_map(scores, target, ignore_index=junk), float(junk == 0))
    close(retrieval_map(scores, target.bool(), torch.zeros_like(target), ignore_index=junk), float(junk == 0))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, *FLOATS], ids=str)
def test_targets_that_are_ignored_need_not_be_binary(dtype):
    target = torch.tensor([[-7, 0, 1, 0, 1]], dtype=dtype)
    close(retrieval_map(torch.tensor([[5, 4, 3, 2, 1]]), target, ignore_index=-7), 0.5)


@pytest.mark.parametrize(
    ("dtype", "value", "junk"),
    [
        (torch.uint8, 255, -1),
        (torch.int8, -1, 255),
        (torch.int16, -1, 65535),
        (torch.uint8, 1, 257),
        (torch.int8, 0, 256),
    ],
)
def test_an_ignore_index_outside_the_dtype_of_the_target_matches_nothing(dtype, value, junk):
    """255 is not -1: in uint8 both have the same bits."""
    target = torch.tensor([[value, 1, 0]], dtype=dtype)
    scores = torch.tensor([[3, 2, 1]])
    for arguments in ((scores, target), (scores, target, torch.zeros(1, 3, dtype=torch.int64))):
        if value in (0, 1):
            close(retrieval_map(*arguments, ignore_index=junk), 1.0 if value else 0.5)
        else:
            with pytest.raises(ValueError, match=f"`target` .*got {value} at position"):
                retrieval_map(*arguments, ignore_index=junk)


@pytest.mark.parametrize("num_relevant", [1, 2, 4, 10**6, 2**40])
def test_relevant_items_outside_the_list_count_in_R(num_relevant):
    scores, target = torch.tensor([[3, 2, 1]]), torch.tensor([[1, 0, 0]])
    known = torch.tensor([num_relevant])
    for d, value in {"relevant": 1 / num_relevant, "min": 1 / min(num_relevant, 2), "hits": 1.0, "k": 0.5}.items():
        close(retrieval_map(scores, target, num_relevant=known, top_k=2, denominator=d), value)
        rows = torch.zeros(1, 3, dtype=torch.int64)
        close(retrieval_map(scores, target, rows, num_relevant=known.expand(1, 3), top_k=2, denominator=d), value)


def test_a_stated_number_that_other_batches_contradict_is_refused_by_query():
    one, name = torch.tensor([1]), torch.tensor([BIG])
    cases = {"different values": [(0, 2), (0, 3)], "2 relevant items, more than its `num_relevant` 1": [(1, 1), (1, 1)]}
    for message, batches in cases.items():
        metric = RetrievalMAP()
        for document, (relevant, known) in enumerate(batches):
            ids = torch.tensor([document])
            metric.update(torch.rand(1), one * relevant, name, ids=ids, num_relevant=one * known)
        with pytest.raises(ValueError, match=f"Query {BIG} .*{message}"):
            metric.compute()


def test_a_stated_number_counts_copies_of_a_document_once():
    metric = RetrievalMAP()
    for _ in range(3):
        both = torch.ones(2, dtype=torch.int64)
        metric.update(torch.tensor([0.5, 0.5]), both, both * 4, ids=both, num_relevant=both)
    close(metric.compute(), 1.0)
    assert metric.result().num_duplicates == 5


def test_top_R_takes_the_stated_number_of_relevant_items():
    scores, target = torch.tensor([[4, 3, 2, 1]]), torch.tensor([[1, 0, 0, 1]])
    close(retrieval_map(scores, target, top_k="R"), 0.5)
    close(retrieval_map(scores, target, top_k="R", num_relevant=torch.tensor([4])), 1.5 / 4)


EMPTY = {"neg": 0.5, "pos": 1.0, "skip": 1.0}


@pytest.mark.parametrize("action", EMPTY)
@pytest.mark.parametrize("form", ["rows", "matrix"])
def test_queries_without_a_relevant_item_are_worth_what_is_said_and_are_counted(form, action):
    scores, target = torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([[1, 0], [0, 0]])
    metric = RetrievalMAP(empty_target_action=action)
    metric.update(scores, target, **({"indexes": torch.tensor([[0, 0], [1, 1]])} if form == "rows" else {}))
    close(metric.compute(), EMPTY[action])
    result = metric.result()
    assert result.num_empty == 1
    assert result.num_relevant.tolist() == [1, 0]
    assert result.ap.tolist()[0] == 1.0
    empty = result.ap.tolist()[1]
    assert math.isnan(empty) if action == "skip" else empty == EMPTY[action] * 2 - 1


@pytest.mark.parametrize("action", ["neg", "pos", "skip", "error"])
def test_a_query_whose_relevant_items_were_not_found_is_worth_0_always(action):
    scores, target = torch.tensor([[0.9, -INF], [0.9, 0.8]]), torch.tensor([[0, 1], [1, 0]])
    close(retrieval_map(scores, target, empty_target_action=action), 0.5)
    known = torch.tensor([1, 1])
    close(retrieval_map(scores, torch.tensor([[0, 0], [1, 0]]), num_relevant=known, empty_target_action=action), 0.5)
    close(retrieval_map(scores[:, :1], target[:, :1], num_relevant=known, top_k=1, empty_target_action=action), 0.5)


def test_an_empty_query_can_be_an_error_that_names_it_and_leaves_the_rows():
    metric = RetrievalMAP(empty_target_action="error")
    metric.update(torch.tensor([0.9, 0.1, 0.5]), torch.tensor([1, 0, 0]), torch.tensor([5, 5, BIG]))
    for _ in range(2):
        with pytest.raises(ValueError, match=f"1 queries .*query {BIG}"):
            metric.compute()
    metric.update(torch.tensor([0.4]), torch.tensor([1]), torch.tensor([BIG]))
    close(metric.compute(), 0.75)


def test_all_queries_skipped_is_a_warned_0():
    metric = RetrievalMAP(empty_target_action="skip")
    metric.update(torch.rand(3, 4), torch.zeros(3, 4))
    with pytest.warns(UserWarning, match="0.0"):
        close(metric.compute(), 0.0)
    with pytest.warns(UserWarning, match="0.0"):
        close(retrieval_map(torch.rand(0), torch.zeros(0), torch.zeros(0, dtype=torch.int64)), 0.0)


@pytest.mark.parametrize("shape", [(0, 5), (0, 0)])
def test_a_batch_without_queries_is_a_no_op(shape):
    metric = RetrievalMAP()
    metric.update(torch.rand(shape), torch.zeros(shape))
    metric.update(torch.rand(shape), torch.zeros(shape), torch.zeros(shape, dtype=torch.int64))
    assert len(metric.result().query) == 0


def test_a_matrix_row_without_items_is_an_empty_query_or_has_found_nothing():
    metric = RetrievalMAP()
    metric.update(torch.rand(2, 0), torch.zeros(2, 0), num_relevant=torch.tensor([0, 3]))
    assert metric.result().num_empty == 1
    close(metric.compute(), 0.0)


# --- ids --------------------------------------------------------------------------------------------------------------


def test_matrix_rows_without_ids_are_never_merged():
    metric = RetrievalMAP()
    for _ in range(3):
        metric.update(torch.tensor([[0.9, 0.8]] * 2), torch.tensor([[0, 1]] * 2))
    assert metric.result().ap.tolist() == [0.5] * 6
    assert metric.result().num_duplicates == 0


@pytest.mark.parametrize("names", [[3, 3, 4], [-BIG, -BIG, BIG], [0, 0, 2**63 - 1]])
def test_a_query_seen_again_counts_once(names):
    scores = torch.tensor([[0.9, 0.8], [0.9, 0.8], [0.9, 0.8]])
    target = torch.tensor([[0, 1], [0, 1], [1, 0]])
    metric = RetrievalMAP()
    metric.update(scores, target, ids=torch.tensor(names))
    metric.update(scores[2:], target[2:], ids=torch.tensor(names[2:]))
    assert by_query(metric) == {names[0]: 0.5, names[2]: 1.0}
    assert metric.result().num_duplicates == 2
    assert metric.result().num_conflicts == 0


@pytest.mark.parametrize("form", ["rows", "matrix"])
def test_of_copies_that_differ_one_is_kept_whatever_the_order_and_that_is_said_once(form):
    rng = torch.Generator().manual_seed(2)
    batches = []
    for _ in range(6):
        scores, target = torch.rand(3, 4, generator=rng), (torch.rand(3, 4, generator=rng) < 0.5).long()
        target[:, 0], scores[0], target[0] = 1, torch.arange(4), torch.tensor([1, 0, 0, 1])
        names = torch.tensor([1, 2, -BIG])
        rows = {"indexes": names[:, None].expand(3, 4), "ids": torch.arange(4).expand(3, 4)}
        batches.append({"preds": scores, "target": target, **(rows if form == "rows" else {"ids": names})})
    values = set()
    for order in itertools.islice(itertools.permutations(batches), 0, 720, 60):
        metric = RetrievalMAP()
        for batch in order:
            metric.update(**batch)
        with pytest.warns(UserWarning, match="another content") as record:
            values.add(float(metric.compute()))
        assert len(record) == 1
        metric.update(**order[0])
        values.add(float(metric.compute()))  # warns no more
        result = metric.result()
        assert result.num_duplicates == (6 * 3 if form == "matrix" else 6 * 12)
        assert 0 < result.num_conflicts < result.num_duplicates
    assert len(values) == 1


def test_a_query_in_both_forms_is_refused_by_name():
    metric = RetrievalMAP()
    metric.update(torch.tensor([0.9]), torch.tensor([1]), torch.tensor([BIG]))
    metric.update(torch.tensor([[0.9]]), torch.tensor([[1]]), ids=torch.tensor([BIG]))
    with pytest.raises(ValueError, match=f"Query {BIG} .*`indexes`.*`ids`"):
        metric.compute()


def test_an_id_of_a_document_belongs_to_its_query():
    metric = RetrievalMAP()
    metric.update(torch.tensor([0.9, 0.8]), torch.tensor([1, 1]), torch.tensor([1, 2]), ids=torch.tensor([7, 7]))
    assert by_query(metric) == {1: 1.0, 2: 1.0}
    assert metric.result().num_duplicates == 0


# --- cut-offs, aggregation, result ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ks", [[5, 1, 100], (2,), range(1, 4)], ids=str)
def test_several_cut_offs_give_one_value_each(ks):
    queries = as_matrix(random_queries(3))
    value = retrieval_map(**queries, ignore_index=-1, top_k=ks, denominator="min")
    assert list(value) == [f"map@{k}" for k in ks]
    for k in ks:
        assert torch.equal(value[f"map@{k}"], retrieval_map(**queries, ignore_index=-1, top_k=k, denominator="min"))
    metric = RetrievalMAP(top_k=ks, ignore_index=-1, denominator="min")
    metric.update(**queries)
    assert metric.compute() == value
    assert metric.result().ap.shape == (len(queries["ids"]), len(ks))
    assert metric.result().num_hits.shape == (len(queries["ids"]), len(ks))


AGGREGATIONS = {
    "mean": ("mean", (1 + 0.5 + 0.25 + 0) / 4),
    "median": ("median", 0.25),  # the lower one
    "min": ("min", 0.0),
    "max": ("max", 1.0),
    "function of the vector alone": (lambda v: v.quantile(0.25), 0.1875),
    "function that returns a float": (lambda v: float(v.sum()), 1.75),
}


@pytest.mark.parametrize(("aggregation", "value"), AGGREGATIONS.values(), ids=AGGREGATIONS)
def test_aggregations(aggregation, value):
    scores, target = torch.tensor([[4, 3, 2, 1]]).expand(4, 4), torch.eye(5, dtype=torch.int64)[[0, 1, 3, 4], :4]
    close(retrieval_map(scores, target, aggregation=aggregation), value)
    seen = []
    metric = RetrievalMAP(aggregation=lambda *a, **k: seen.append((a, k)) or a[0].mean(), empty_target_action="skip")
    metric.update(scores, target)
    metric.compute()
    (vector,), keywords = seen[0]
    assert (vector.dtype, vector.tolist(), keywords) == (torch.float64, [1.0, 0.5, 0.25], {})


def test_the_order_of_queries_changes_no_bit_of_the_mean():
    rng = torch.Generator().manual_seed(11)
    for n in (11, 1000):
        scores, target = torch.rand(n, 13, generator=rng), torch.rand(n, 13, generator=rng) < 0.4
        values = set()
        for seed in range(10):
            order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
            values.add(float(retrieval_map(scores[order], target[order])))
            values.add(float(retrieval_map(scores[order], target[order], order[:, None].expand(n, 13))))
        assert len(values) == 1


def small_result(**conventions):
    """Four queries: perfect, a tie across the cut, empty, nothing found."""
    scores = torch.tensor([[4.0, 3, 2], [1, 1, 1], [1, 2, 3], [1, 2, -INF]])
    target = torch.tensor([[1, 0, 0], [1, 0, 1], [0, 0, 0], [0, 0, 1]])
    metric = RetrievalMAP(top_k=1, **conventions)
    metric.update(scores, target, ids=torch.tensor([40, 10, 30, 20]))
    metric.update(scores[:1], target[:1], ids=torch.tensor([40]))
    return metric.result()


def test_the_result_holds_what_stands_behind_the_number():
    result = small_result(empty_target_action="pos")
    assert result.query.tolist() == [10, 20, 30, 40]
    assert result.named.all()
    assert result.num_relevant.tolist() == [2, 1, 0, 1]
    assert result.num_items.tolist() == [3, 2, 3, 3]
    assert result.num_hits.tolist() == pytest.approx([2 / 3, 0, 0, 1])
    assert result.ap.tolist() == pytest.approx([1 / 3, 0, 1, 1])
    assert (result.num_empty, result.num_duplicates, result.num_conflicts, result.num_self) == (1, 1, 0, 0)
    assert "queries=4" in repr(result)
    close(result.value(), (1 / 3 + 0 + 1 + 1) / 4)


def test_the_worst_queries_come_first_and_skipped_ones_not_at_all():
    result = small_result(empty_target_action="skip")
    assert [row["query"] for row in result.worst()] == [20, 10, 40]
    assert [row["query"] for row in result.worst(1)] == [20]
    assert result.worst(0) == []
    row = result.worst(2)[1]
    assert row == {
        "query": 10, "named": True, "ap": pytest.approx(1 / 3), "num_relevant": 2, "num_items": 3,
        "num_hits": pytest.approx(2 / 3),
    }  # fmt: skip


@pytest.mark.parametrize("conventions", [{}, {"aggregation": lambda v: v.mean()}], ids=["mean", "function"])
def test_the_result_as_plain_values(conventions):
    shown = small_result(**conventions).to_dict()
    assert json.loads(json.dumps(shown)) == shown
    assert shown["value"] == pytest.approx((1 / 3 + 0 + 0 + 1) / 4)
    assert (shown["num_queries"], shown["num_empty"], shown["num_duplicates"]) == (4, 1, 1)
    assert [row["query"] for row in shown["queries"]] == [10, 20, 30, 40]
    assert shown["conventions"]["top_k"] == 1
    metric = RetrievalMAP(top_k=[1, 2])
    metric.update(torch.tensor([[2, 1]]), torch.tensor([[0, 1]]))
    shown = metric.result().to_dict()
    assert json.loads(json.dumps(shown))["queries"][0]["ap"] == [0.0, 0.5]
    assert shown["value"] == {"map@1": 0.0, "map@2": 0.5}


@pytest.mark.parametrize(
    ("k", "denominator", "action"),
    [(None, "relevant", "neg"), (3, "relevant", "pos"), (3, "hits", "skip"), (2, "min", "neg"), (4, "k", "neg")],
)
def test_chance_is_the_mean_over_all_orders_of_each_list(k, denominator, action):
    queries = random_queries(6)
    metric = RetrievalMAP(ignore_index=-1, top_k=k, denominator=denominator, empty_target_action=action)
    metric.update(**as_rows(queries))
    expected = []
    for rows in queries.values():
        rows = [row for row in rows if row[2] >= 0]
        retrieved = [row for row in rows if row[1] > -INF]
        lists = brute.orders([(len(retrieved), sum(row[2] for row in retrieved))])
        if rows[0][3]:
            expected.append(float(brute.over_orders(lists, rows[0][3], [k])[k, denominator][0]))
        elif action != "skip":
            expected.append(float(action == "pos"))
    close(metric.result().chance, sum(expected) / len(expected))


def test_chance_of_one_relevant_item_is_the_harmonic_mean():
    for n in (1, 2, 64, 5_000):
        metric = RetrievalMAP()
        metric.update(torch.rand(1, n), torch.eye(1, n))
        close(metric.result().chance, math.fsum(1 / i for i in range(1, n + 1)) / n)


# --- warnings ---------------------------------------------------------------------------------------------------------


def reversed_lists(n=12, far=0.0):
    rng = torch.Generator().manual_seed(1)
    target = torch.rand(n, 40, generator=rng) < 0.1
    target[:, 0] = True
    return far * torch.rand(n, 40, generator=rng) - target.float(), target


@pytest.mark.parametrize("conventions", [{}, {"top_k": 5}, {"denominator": "hits", "top_k": [7, 9]}], ids=str)
def test_a_value_far_below_chance_names_largest_once(conventions):
    scores, target = reversed_lists()
    metric = RetrievalMAP(**conventions)
    metric.update(scores, target)
    with pytest.warns(UserWarning, match="below .*random.*`largest=False`") as record:
        metric.compute()
    assert len(record) == 1
    metric.update(scores, target)
    metric.compute()  # a second warning would be an error
    with pytest.warns(UserWarning, match="`largest=False`"):
        retrieval_map(scores, target, **conventions)
    retrieval_map(scores, target, largest=False, **conventions)


def test_a_value_at_chance_or_of_few_queries_does_not_warn():
    scores, target = reversed_lists(9)
    retrieval_map(scores, target)
    for seed in range(20):
        rng = torch.Generator().manual_seed(seed)
        retrieval_map(torch.rand(30, 20, generator=rng), torch.rand(30, 20, generator=rng) < 0.3)
        retrieval_map(torch.zeros(30, 20), torch.rand(30, 20, generator=rng) < 0.3)


def test_empty_queries_do_not_make_a_value_look_worse_than_chance():
    rng = torch.Generator().manual_seed(1)
    scores, target = torch.rand(60, 20, generator=rng), torch.rand(60, 20, generator=rng) < 0.2
    target[:45] = False
    retrieval_map(scores, target)


# --- refusals ---------------------------------------------------------------------------------------------------------

P, T, Q = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0, 1, 0, 1]), torch.tensor([8, 8, 9, 9])
M, Y = torch.tensor([[0.4, 0.3, 0.2], [0.4, 0.3, 0.2]]), torch.tensor([[0, 1, 0], [1, 1, 0]])
NAN = math.nan


def rows(**more):
    return {"preds": P, "target": T, "indexes": Q, **more}


def matrix(**more):
    return {"preds": M, "target": Y, **more}


def changed(tensor, place, value, dtype=None):
    tensor = tensor.clone().to(dtype or tensor.dtype)
    tensor[place] = value
    return tensor


REFUSED = {  # update's arguments, and what the message names
    "rows: list": (rows(preds=P.tolist()), "`preds` .*Tensor, got list"),
    "rows: array": (rows(preds=P.numpy()), "`preds` .*Tensor, got ndarray"),
    "rows: no target": (rows(target=None), "`target` .*Tensor, got NoneType"),
    "rows: NaN": (rows(preds=changed(P, 2, NAN)), "`preds` .*no NaN, got nan at position 2"),
    "rows: NaN in half": (rows(preds=changed(P, 2, NAN).half()), "`preds` .*no NaN, got nan at position 2"),
    "rows: complex": (rows(preds=P.cfloat()), "`preds` .*real.*complex64"),
    "rows: sparse": (rows(preds=P.to_sparse()), "`preds` .*dense.*sparse"),
    "rows: target too short": (rows(target=T[:3]), r"`target` .*`preds` \(4,\), got \(3,\)"),
    "rows: target that would broadcast": (rows(target=T[None]), r"`target` .*\(4,\), got \(1, 4\)"),
    "rows: graded": (rows(target=changed(T, 3, 2)), "`target` .*0 and 1.*got 2 at position 3"),
    "rows: negative": (rows(target=changed(T, 0, -1)), "`target` .*got -1 at position 0"),
    "rows: half relevant": (rows(target=T * 0.5), "`target` .*got 0.5 at position 1"),
    "rows: NaN target": (rows(target=changed(T.float(), 1, NAN)), "`target` .*nan at position 1"),
    "rows: float queries": (rows(indexes=Q.float()), "`indexes` .*integer.*float32"),
    "rows: queries too short": (rows(indexes=Q[:2]), r"`indexes` .*\(4,\), got \(2,\)"),
    "rows: float ids": (rows(ids=P), "`ids` .*integer.*float32"),
    "rows: ids too short": (rows(ids=Q[:2]), r"`ids` .*\(4,\), got \(2,\)"),
    "rows: float R": (rows(num_relevant=P), "`num_relevant` .*integer.*float32"),
    "rows: R too short": (rows(num_relevant=Q[:1]), r"`num_relevant` .*\(4,\), got \(1,\)"),
    "rows: R of 0 and a hit": (rows(num_relevant=changed(Q, 3, 0)), "`num_relevant` .*got 0 at position 3"),
    "rows: negative R": (rows(num_relevant=changed(Q, 2, -1)), "`num_relevant` .*got -1 at position 2"),
    "rows: R below the hits": (rows(target=T | 1, num_relevant=Q * 0 + 1), "`num_relevant` .*at least .*got 1"),
    "rows: place in 2-d": (
        rows(preds=changed(M, (1, 2), NAN), target=Y, indexes=Y), r"`preds` .*NaN, got nan at position \(1, 2\)",
    ),
    "matrix: vector": (matrix(preds=P, target=T), r"`preds` .*\(queries, items\).*`indexes` is None, got \(4,\)"),
    "matrix: scalar": (matrix(preds=P[0], target=T[0]), r"`preds` .*\(queries, items\).*got \(\)"),
    "matrix: 3-d": (matrix(preds=M[None], target=Y[None]), r"`preds` .*\(queries, items\).*got \(1, 2, 3\)"),
    "matrix: list": (matrix(preds=M.tolist()), "`preds` .*Tensor, got list"),
    "matrix: NaN": (matrix(preds=changed(M, (1, 2), NAN)), r"`preds` .*NaN, got nan at position \(1, 2\)"),
    "matrix: target too short": (matrix(target=Y[:1]), r"`target` .*\(2, 3\), got \(1, 3\)"),
    "matrix: graded": (matrix(target=changed(Y, (1, 2), 3)), r"`target` .*0 and 1.*got 3 at position \(1, 2\)"),
    "matrix: ids of another shape": (matrix(ids=Y), r"`ids` .*\(2,\), got \(2, 3\)"),
    "matrix: float ids": (matrix(ids=P[:2]), "`ids` .*integer.*float32"),
    "matrix: R below the hits": (
        matrix(num_relevant=torch.tensor([1, 1])), "`num_relevant` .*at least .*got 1 at position 1",
    ),
    "matrix: R too long": (matrix(num_relevant=Q[:3]), r"`num_relevant` .*\(2,\), got \(3,\)"),
    "matrix: R as an int": (matrix(num_relevant=3), "`num_relevant` .*Tensor, got int"),
    **{
        f"{form}: integer {n}": (
            {"preds": torch.tensor([[1, n]]), "target": Y[:1, :2], **more},
            rf"`preds` .*2\^53, got {n} at position \(0, 1\)",
        )
        for n in (2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63) + 1, -(2**63))
        for form, more in {"rows": {"indexes": Y[:1, :2]}, "matrix": {}}.items()
    },
}  # fmt: skip


def bits(metric):
    blocks = {name: getattr(metric, name) for name in metric._defaults}
    blocks = {name: value if isinstance(value, list) else [value] for name, value in blocks.items()}
    return {name: [(b.dtype, b.tolist()) for b in value] for name, value in blocks.items()}, metric._update_count


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_a_refused_update_names_the_fault_and_leaves_the_state(arguments, message):
    metric = RetrievalMAP(aggregation="max")
    metric.update(P, T, Q, ids=torch.arange(4))
    metric.update(M[:1], Y[:1], ids=torch.tensor([3]))
    before = bits(metric)
    with pytest.raises(ValueError, match=message):
        metric.update(**arguments)
    assert bits(metric) == before
    with pytest.raises(ValueError, match=message):
        metric(**arguments)
    assert bits(metric) == before
    close(metric.compute(), 0.5)
    with pytest.raises(ValueError, match=message):
        retrieval_map(**arguments)


@pytest.mark.parametrize(
    "k", [0, -1, -3, 2.5, 5.0, True, False, "all", "r", (), [0], [3, -1], [2, 2], [1.5], [True], NAN], ids=repr
)
def test_bad_cut_offs_are_refused_by_value(k):
    for make in (RetrievalMAP, lambda **kwargs: retrieval_map(M, Y, **kwargs)):
        with pytest.raises(ValueError, match="`top_k`.*" + re.escape(repr(k))):
            make(top_k=k)


BAD_ARGUMENTS = {
    "empty_target_action": ["zero", None, 0],
    "aggregation": ["sum", None, 3],
    "denominator": ["R", None],
    "ties": ["random", None],
    "interpolation": ["12-point", None],
    "ignore_index": [1.5, "0", True],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in BAD_ARGUMENTS.items() for v in values])
def test_bad_arguments_are_refused_by_name_and_value(name, value):
    for make in (RetrievalMAP, lambda **kwargs: retrieval_map(M, Y, **kwargs)):
        with pytest.raises(ValueError, match=f"`{name}`.*{value!r}"):
            make(**{name: value})


def test_without_validation_of_values_shapes_are_still_checked():
    metric = RetrievalMAP(validate_args=False)
    metric.update(M, Y * 2)  # not looked at
    with pytest.raises(ValueError, match="`target`"):
        metric.update(M, Y[:1])


def test_merging_clears_the_cached_value():
    first, second = RetrievalMAP(), RetrievalMAP()
    first.update(P, T, Q)
    second.update(P, 1 - T, Q + 5)
    assert first.compute() == 0.5
    first.merge_state(second)
    close(first.compute(), 0.75)


# --- other tools ------------------------------------------------------------------------------------------------------


def untied_run(seed, num_queries=25, num_documents=60):
    """Judgments and a run by name, and the same as rows; float32 holds the scores; relevant documents are missed."""
    rng = random.Random(seed)
    qrels, run, rows = {}, {}, []
    for q in range(num_queries):
        documents = [f"d{i}" for i in range(num_documents)]
        relevant = {d: int(rng.random() < 0.15) for d in documents}
        relevant["d0"] = 1
        scores = rng.sample(range(10**6), num_documents)
        found = {d: s / 1024 for d, s in zip(documents, scores, strict=True) if rng.random() < 0.7} or {"d0": 1.0}
        qrels[f"q{q:02d}"], run[f"q{q:02d}"] = relevant, found
        rows += [(q, s, relevant[d], sum(relevant.values())) for d, s in found.items()]
    query, scores, target, known = (torch.tensor(column) for column in zip(*rows, strict=True))
    return qrels, run, {"preds": scores, "target": target, "indexes": query, "num_relevant": known}


def test_pytrec_eval():
    qrels, run, rows = untied_run(1)
    evaluated = pytrec_eval.RelevanceEvaluator(qrels, {"map", "map_cut.5,10,30"}).evaluate(run)
    for name, k in {"map": None, "map_cut_5": 5, "map_cut_10": 10, "map_cut_30": 30}.items():
        metric = RetrievalMAP(top_k=k)
        metric.update(**rows)
        assert metric.result().ap.tolist() == pytest.approx([evaluated[q][name] for q in qrels], abs=1e-12)


def test_ranx():
    qrels, run, rows = untied_run(2)
    values = tools.ranx(
        {q: {d: r for d, r in judged.items() if r} for q, judged in qrels.items()}, run, ["map", "map@7"]
    )
    for name, k in {"map": None, "map@7": 7}.items():
        metric = RetrievalMAP(top_k=k)
        metric.update(**rows)
        assert metric.result().ap.tolist() == pytest.approx([values[name][q] for q in qrels], abs=1e-12)


@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
def test_scikit_learn_has_one_point_per_distinct_score(levels):
    rng = np.random.default_rng(levels)
    scores, target = rng.integers(levels, size=(30, 50)) / 8, rng.random((30, 50)) < 0.3
    target[:, 0] = True
    expected = [average_precision_score(t, s) for t, s in zip(target, scores, strict=True)]
    metric = RetrievalMAP(ties="threshold")
    metric.update(torch.tensor(scores), torch.tensor(target))
    assert metric.result().ap.tolist() == pytest.approx(expected, abs=1e-12)


def test_the_metric_is_the_shared_maths():
    scores, target = torch.tensor([[5, 5, 3, 2, 2, 2]]), torch.tensor([[1, 0, 1, 0, 1, 1]])
    total, relevant = torch.tensor([2, 1, 3]), torch.tensor([1, 1, 2])
    assert torch.equal(retrieval_map(scores, target), average_precision(total, relevant))


def test_fingerprints_tell_rows_apart_whose_sums_and_weighted_sums_agree():
    """They decide which of two conflicting copies is kept: a collision would leave it to the order of the ranks."""
    rows = torch.tensor(list(itertools.product(range(6), repeat=4)))
    assert len(fingerprints(rows, torch.ones(len(rows), dtype=torch.int64)).unique()) == len(rows)
    pairs = torch.cat([rows[:-1], rows[1:]], 1).view(-1, 4)  # the same two rows in the other order are other groups
    both = torch.cat([pairs, pairs.view(-1, 2, 4).flip(1).reshape(-1, 4)])
    assert len(fingerprints(both, torch.full((len(both) // 2,), 2)).unique()) == len(both) // 2
