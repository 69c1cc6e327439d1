"""Comparing two systems: against every sign flip, against SciPy, and against tests of shifted differences."""

import builtins
import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from map_metrics import EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP
from map_metrics.comparison import Comparison, paired_comparison
from map_metrics.results import RetrievalResult

METHODS = ("randomization", "bootstrap")


def compared(differences: list[float], **kwargs) -> Comparison:
    """Of differences, by adding them to a baseline of zeros."""
    first = torch.tensor(differences, dtype=torch.float64)
    return paired_comparison(torch.arange(len(first)), first, torch.zeros_like(first), **kwargs)


def p_of_flips(differences: list[float]) -> float:
    """Two-sided p-value over every choice of signs, in whole numbers."""
    observed = sum(differences)
    sums = [
        sum(s * d for s, d in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    above, below = sum(s >= observed for s in sums), sum(s <= observed for s in sums)
    return min(1.0, 2 * min(above, below) / len(sums))


def normal(n: int, seed: int = 0, shift: float = 0.1) -> list[float]:
    return np.random.default_rng(seed).normal(shift, 0.5, n).tolist()


# --- p-values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1, 2, 3], 2 / 8),  # only no flip at all reaches 6
        ([-1, -2, -3], 2 / 8),
        ([1, 2, -3], 1.0),
        ([1, 2, -1], 2 * 3 / 8),  # 2: sums of 4, 2 and 2, of eight
        ([0, 0, 5], 1.0),  # half of the flips
        ([1, 1], 2 / 4),
        ([1, -1], 1.0),
        ([0, 0, 0], 1.0),
        ([1, 1, 1, 1, 1, 1], 2 / 64),
    ],
)
def test_the_exact_p_value_of_a_few_queries(differences, expected):
    assert p_of_flips(differences) == expected
    assert compared(differences).p_value == expected


@pytest.mark.parametrize("seed", range(30))
def test_the_p_value_is_that_of_every_flip_and_of_scipy(seed):
    rng = np.random.default_rng(seed)
    differences = (rng.integers(-6, 10, int(rng.integers(2, 11))) / 10).tolist()  # 0.1 + 0.2 - 0.3 is not 0 in floats
    result = compared(differences)
    assert result.p_value == p_of_flips([round(10 * d) for d in differences])
    test = stats.permutation_test((differences,), np.mean, permutation_type="samples", vectorized=True)
    assert result.mean == pytest.approx(float(test.statistic), abs=1e-15)
    if abs(result.mean) > 1e-9:  # SciPy's tolerance is relative to the mean
        assert result.p_value == test.pvalue


@pytest.mark.parametrize("n", [14, 40, 300])
def test_random_flips_come_close_to_scipys(n):
    differences = normal(n)
    test = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", vectorized=True, rng=np.random.default_rng(5)
    )
    assert compared(differences, seed=9).p_value == pytest.approx(float(test.pvalue), abs=0.03)


def test_a_clear_gain_has_the_smallest_p_value_and_never_0():
    differences = [0.5 + i / 1000 for i in range(100)]
    assert compared(differences, num_resamples=999).p_value == 2 / 1000
    assert compared(differences, num_resamples=999, method="bootstrap").p_value == 2 / 1000


# --- intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("seed", range(8))
def test_the_interval_holds_the_shifts_that_the_test_does_not_refuse(seed, confidence):
    differences = normal(6 + seed % 3, seed)
    low, high = compared(differences, confidence=confidence).interval
    assert low < sum(differences) / len(differences) < high
    for shift in np.linspace(-1.5, 1.5, 61):
        refused = p_of_flips([d - shift for d in differences]) <= 1 - confidence + 1e-12
        assert refused == (not low <= shift <= high), shift


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(10))
def test_0_lies_outside_of_the_interval_where_the_p_value_is_small(method, seed):
    result = compared(normal(60, seed, shift=0.13), method=method)
    low, high = result.interval
    assert (result.p_value <= 0.05) == (not low <= 0 <= high)


@pytest.mark.parametrize("n", [2, 3, 50])
def test_the_bootstrap_interval_is_scipys(n):
    differences = normal(n)
    drawn = stats.bootstrap(
        (differences,),
        np.mean,
        n_resamples=500,
        confidence_level=0.9,
        method="percentile",
        rng=np.random.default_rng(3),
    )
    result = compared(differences, method="bootstrap", num_resamples=500, confidence=0.9, seed=3)
    assert result.interval == pytest.approx(tuple(drawn.confidence_interval), abs=1e-15)
    means = drawn.bootstrap_distribution.tolist()
    tails = min(sum(m <= 0 for m in means), sum(m >= 0 for m in means))
    assert result.p_value == pytest.approx(min(1, 2 * (tails + 1) / 501), abs=1e-15)


def test_both_methods_give_about_students_interval():
    differences = normal(400)
    expected = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    for method in METHODS:
        assert compared(differences, method=method).interval == pytest.approx(tuple(expected), abs=0.006)


@pytest.mark.parametrize("method", METHODS)
def test_more_confidence_is_a_wider_interval(method):
    intervals = [compared(normal(40), method=method, confidence=c).interval for c in (0.5, 0.9, 0.99)]
    assert intervals[2][0] < intervals[1][0] < intervals[0][0] < intervals[0][1] < intervals[1][1] < intervals[2][1]


# --- few queries, and no differences ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_none_and_one_query_bound_nothing(method):
    nothing = compared([], method=method)
    assert math.isnan(nothing.mean)
    assert (nothing.p_value, nothing.interval, nothing.hardest) == (1.0, (-math.inf, math.inf), [])
    one = compared([0.5], method=method)
    assert (one.mean, one.p_value, one.interval, one.wins) == (0.5, 1.0, (-math.inf, math.inf), 1)
    for result in (nothing, one):
        json.dumps(result.to_dict(), allow_nan=False)
        assert f"{len(result.query)} compared" in result.summary()


def test_two_queries():
    result = compared([0.5, 0.25])
    assert (result.p_value, result.interval) == (0.5, (-math.inf, math.inf))
    assert compared([0.5, 0.25], confidence=0.4).interval == (0.25, 0.5)  # all but the empty flip, the outermost
    assert compared([0.5, 0.25], method="bootstrap").interval == (0.25, 0.5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [10, 200])
def test_equal_systems(method, n):
    result = compared([0.0] * n, method=method)
    assert (result.mean, result.p_value, result.interval) == (0.0, 1.0, (0.0, 0.0))
    assert (result.wins, result.losses, result.ties) == (0, 0, n)


# --- the record -------------------------------------------------------------------------------------------------------


def test_counts_and_the_hardest_of_the_baseline():
    first = torch.tensor([0.5, 1.0, 0.0, 0.25, 0.5, math.nan, 0.75])
    second = torch.tensor([0.5, 0.0, 0.25, 0.0, math.nan, 0.0, 0.0])
    result = paired_comparison(torch.tensor([7, 2**62, 5, -3, 1, 2, 3]), first, second, hardest=3)
    assert result.query.tolist() == [-3, 3, 5, 7, 2**62]
    assert result.difference.tolist() == [0.25, 0.75, -0.25, 0.0, 1.0]
    assert (result.wins, result.losses, result.ties, result.num_skipped) == (3, 1, 1, 2)
    assert result.mean == 1.75 / 5
    assert result.hardest == [
        {"query": -3, "first": 0.25, "second": 0.0, "difference": 0.25},
        {"query": 3, "first": 0.75, "second": 0.0, "difference": 0.75},
        {"query": 2**62, "first": 1.0, "second": 0.0, "difference": 1.0},
    ]
    assert {c.dtype for c in (result.first, result.second, result.difference)} == {torch.float64}


def test_a_record_as_text_and_as_json():
    result = compared([0.5, -0.25, 0.5], hardest=1)
    assert repr(result) == (
        "Comparison(mean=+0.250000, interval=(-inf, +inf), p_value=0.5, wins=2, losses=1, ties=0, skipped=0)"
    )
    lines = result.summary().splitlines()
    assert lines[0] == (
        "mean difference +0.2500, 95 % interval [-inf, +inf], p = 0.5 (randomization, 10000 resamples, seed 0)"
    )
    assert lines[1] == "3 compared: 2 better, 1 worse, 0 equal; 0 skipped"
    assert [line.split() for line in lines[2:]] == [
        ["hardest", "second", "first", "difference"],
        ["0", "0.0000", "0.5000", "+0.5000"],
    ]
    read = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert read["queries"][1] == {"query": 1, "first": -0.25, "second": 0.0, "difference": -0.25}
    assert (read["interval"], read["wins"], read["seed"]) == ([None, None], 2, 0)


# --- of two results ---------------------------------------------------------------------------------------------------


def ranked(scores: Tensor, relevant: Tensor, ids: Tensor | None = None, **kwargs) -> RetrievalResult:
    metric = RetrievalMAP(**kwargs)
    metric.update(scores, relevant, ids=ids)
    return metric.result()


def drawn(n: int = 30) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A system, a worse one, relevance (the last query has none), ids."""
    g = torch.Generator().manual_seed(0)
    relevant = torch.rand(n, 12, generator=g) < 0.3
    relevant[:, 0] = True
    relevant[-1] = False
    good, bad = (torch.randn(n, 12, generator=g) + strength * relevant for strength in (1.5, 0.5))
    return good, bad, relevant, torch.randperm(n, generator=g) * 2**40 - 5


@pytest.mark.parametrize("method", METHODS)
def test_results_are_paired_by_id_in_any_order(method):
    good, bad, relevant, ids = drawn()
    first, second = ranked(good, relevant, ids), ranked(bad, relevant, ids)
    expected = first.compare(second, method=method)
    aps, baseline = (dict(zip(r.query.tolist(), r.ap.tolist(), strict=True)) for r in (first, second))
    assert expected.query.tolist() == sorted(ids.tolist())
    assert expected.first.tolist() == [aps[query] for query in sorted(aps)]
    assert expected.second.tolist() == [baseline[query] for query in sorted(baseline)]
    for seed in range(3):
        order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
        rows = RetrievalMAP()  # the same queries as rows, some of them as a matrix
        for i in order.tolist()[:10]:
            rows.update(good[i], relevant[i], indexes=ids[i].expand(12))
        rows.update(good[order[10:]], relevant[order[10:]], ids=ids[order[10:]])
        assert rows.result().compare(second, method=method).to_dict() == expected.to_dict()
    assert first.compare(second, method=method, seed=1).interval != expected.interval
    assert first.compare(second, method=method, num_resamples=77).interval != expected.interval


def test_the_mean_is_the_difference_of_the_means_and_turns_its_sign():
    good, bad, relevant, ids = drawn()
    first, second = ranked(good, relevant, ids), ranked(bad, relevant, ids)
    there, back = first.compare(second), second.compare(first)
    assert there.mean == pytest.approx(float(first.value() - second.value()), abs=1e-15)
    assert there.mean > 0
    assert (back.mean, back.p_value, back.wins) == (-there.mean, there.p_value, there.losses)
    assert back.interval == (-there.interval[1], -there.interval[0])
    itself = first.compare(first)
    assert (itself.ties, itself.mean, itself.p_value) == (30, 0.0, 1.0)


def test_queries_without_ids_are_paired_by_place():
    good, bad, relevant, ids = drawn()
    named, unnamed = ((ranked(x, relevant, i) for x in (good, bad)) for i in (torch.arange(30), None))
    assert next(unnamed).compare(next(unnamed)).to_dict() == next(named).compare(next(named)).to_dict()
    with pytest.raises(ValueError, match=r"same queries.*with ids are 0 of 30 here and 0 of 29 in `other`"):
        ranked(good, relevant).compare(ranked(bad[1:], relevant[1:]))
    with pytest.raises(ValueError, match=r"with ids are 30 of 30 here and 0 of 30 in `other`"):
        ranked(good, relevant, ids).compare(ranked(bad, relevant))
    mixed = RetrievalMAP()
    mixed.update(good[:10], relevant[:10], ids=ids[:10])
    mixed.update(good[10:], relevant[10:])
    with pytest.raises(ValueError, match=r"with ids are 10 of 30 here and 10 of 30 in `other`"):
        mixed.result().compare(mixed.result())


def test_other_queries_are_named():
    good, bad, relevant, _ = drawn()
    first = ranked(good, relevant, torch.arange(30))
    with pytest.raises(ValueError, match=r"only here: 2 \(0, 1\); only in `other`: 2 \(30, 31\)"):
        first.compare(ranked(bad, relevant, torch.arange(2, 32)))
    with pytest.raises(ValueError, match=r"only here: 8 \(22, 23, 24, 25, 26, ...\); only in `other`: none"):
        first.compare(ranked(bad[:22], relevant[:22], torch.arange(22)))


def test_skipped_queries_are_left_out_and_counted():
    good, bad, relevant, ids = drawn()
    first, second = (ranked(x, relevant, ids, empty_target_action="skip") for x in (good, bad))
    result = first.compare(second)
    assert (len(result.query), result.num_skipped) == (29, 1)
    assert int(ids[-1]) not in result.query.tolist()
    assert ranked(good, relevant, ids).compare(ranked(bad, relevant, ids)).ties >= 1


def test_of_several_cut_offs_the_first_counts():
    good, bad, relevant, ids = drawn()
    several = [ranked(x, relevant, ids, top_k=[3, 5]) for x in (good, bad)]
    single = [ranked(x, relevant, ids, top_k=3) for x in (good, bad)]
    assert several[0].compare(several[1]).to_dict() == single[0].compare(single[1]).to_dict()
    assert several[0].compare(single[1], 2).hardest == single[0].compare(single[1], 2).hardest
    assert len(single[0].compare(single[1], 2).hardest) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"denominator": "min"}, "`denominator` is 'relevant' here and 'min' there"),
        ({"ties": "pessimistic"}, "`ties` is"),
        ({"interpolation": "trapezoid"}, "`interpolation` is"),
        ({"empty_target_action": "skip"}, "`empty_target_action` is"),
        ({"top_k": 3}, "`top_k` is None here and 3 there"),
    ],
)
def test_other_conventions_are_refused(change, message):
    good, bad, relevant, ids = drawn()
    with pytest.raises(ValueError, match=f"`other` must have the same conventions, but {message}"):
        ranked(good, relevant, ids).compare(ranked(bad, relevant, ids, **change))


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("other", [None, torch.ones(3), RetrievalMAP()]),
        ("hardest", [-1, 2.0, True, None]),
        ("method", ["permutation", None, 1]),
        ("num_resamples", [0, -5, 1e4, True]),
        ("confidence", [0.0, 1.0, 95, -0.5, math.nan, "0.9"]),
        ("seed", [-1, 1.5, None, "0", True]),
    ],
)
def test_bad_arguments_are_refused(argument, values):
    good, bad, relevant, ids = drawn()
    first, second = ranked(good, relevant, ids), ranked(bad, relevant, ids)
    for value in values:
        with pytest.raises(ValueError, match=f"Argument `{argument}` must"):
            first.compare(**{"other": second, argument: value})


def test_hashing_and_embedding_results_compare():
    """Signs of vectors ranked by distance, with the vectors themselves."""
    g = torch.Generator().manual_seed(0)
    labels, ids = torch.randint(0, 4, (60,), generator=g), torch.arange(60)
    vectors = torch.randn(60, 16, generator=g) + torch.randn(4, 16, generator=g)[labels]
    coded, real = HashingMAPAtK(denominator="relevant"), EmbeddingMAPAtK()
    for query in (True, False):
        coded.update(vectors > 0, labels, query=query, ids=ids)
        real.update(vectors, labels, query=query, ids=ids)
    result = real.result().compare(coded.result())
    assert result.mean == pytest.approx(float(real.compute() - coded.compute()), abs=1e-15)
    assert result.p_value < 0.05
    assert result.query.tolist() == list(range(60))


def test_without_scipy_the_bootstrap_names_the_extra(monkeypatch):
    importing = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.partition(".")[0] == "scipy":
            raise ImportError(name)
        return importing(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"torchmetrics-map\[stats\]"):
        compared([0.5, 0.25], method="bootstrap")
    assert compared([0.5, 0.25]).p_value == 0.5


def test_an_error_for_empty_queries_comes_through():
    good, bad, relevant, ids = drawn()
    first, second = (ranked(x, relevant, ids) for x in (good, bad))
    first, second = (
        replace(r, conventions=replace(r.conventions, empty_target_action="error")) for r in (first, second)
    )
    with pytest.raises(ValueError, match="no relevant item"):
        first.compare(second)
