"""The shared maths against every order of tied items in exact fractions; long lists against sums of 50 digits."""

import functools
import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from oracles import brute

from map_metrics import average_precision
from map_metrics.average_precision import (
    Groups,
    groups_from_counts,
    harmonic_difference,
    hits_per_query,
    ranked_average_precision,
)
from map_metrics.conventions import Conventions

NUM_LISTS = 320
CUTOFFS = (None, "R", *range(1, 12))
TIE_RULES = ("expected", "optimistic", "pessimistic")
GRID_RULES = ("11-point", "40-point", "101-point")


def random_groups(rng, singles=False):
    """Up to 9 items in tie groups, some lists without or with nothing but relevant items."""
    groups, left = [], rng.randint(1, 9)
    share = rng.choice([0, 1, 0.5, 0.5, 0.2, 0.8, None])
    while left:
        n = 1 if singles else rng.randint(1, left)
        groups.append((n, sum(rng.random() < (rng.random() if share is None else share) for _ in range(n))))
        left -= n
    return groups


@functools.cache
def lists(singles=False):
    """(groups, relevant items in all): half of the lists leave relevant items out."""
    rng = random.Random(7 + singles)
    made = [random_groups(rng, singles) for _ in range(NUM_LISTS)]
    return [(g, sum(r for _, r in g) + rng.choice([0, 0, 1, 4])) for g in made]


def counts(groups_of_lists):
    """(lists, width) totals and relevant counts; groups without items stand between the others and fill the rows."""
    rng = random.Random(3)
    width = max(map(len, groups_of_lists)) + 2
    rows = []
    for groups in groups_of_lists:
        row = list(groups)
        while len(row) < width:
            row.insert(rng.randint(0, len(row)), (0, 0))
        rows.append(row)
    return torch.tensor(rows).unbind(-1)


@functools.cache
def batch(singles=False):
    groups, known = zip(*lists(singles), strict=True)
    return (*counts(groups), torch.tensor(known))


@functools.cache
def exact(trapezoid=False):
    return [brute.over_orders(brute.orders(g), known, CUTOFFS, trapezoid) for g, known in lists()]


def evaluate(conventions, singles=False):
    total, relevant, known = batch(singles)
    return average_precision(total, relevant, num_relevant=known, **conventions)


def assert_equal(value, expected, tolerance=1e-12):
    expected = torch.tensor([float(x) for x in expected], dtype=torch.float64)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value, expected.view(value.shape), rtol=0, atol=tolerance)


# --- against every order ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", range(3), ids=TIE_RULES)
@pytest.mark.parametrize("denominator", brute.DENOMINATORS)
def test_step_equals_every_order_of_tied_items(denominator, column):
    for k in CUTOFFS[denominator == "k" :]:
        value = evaluate({"top_k": k, "denominator": denominator, "ties": TIE_RULES[column]})
        assert_equal(value, [table[k, denominator][column] for table in exact()])


@pytest.mark.parametrize("denominator", brute.DENOMINATORS)
def test_trapezoid_equals_the_mean_over_every_order(denominator):
    for k in CUTOFFS[denominator == "k" :]:
        value = evaluate({"top_k": k, "denominator": denominator, "interpolation": "trapezoid"})
        assert_equal(value, [table[k, denominator][0] for table in exact(trapezoid=True)])


@pytest.mark.parametrize("denominator", brute.DENOMINATORS)
@pytest.mark.parametrize("rule", ["step", "trapezoid", "envelope", *GRID_RULES])
def test_stable_takes_the_list_as_it_stands(rule, denominator):
    for k in ("R", 1, 4, 11) if denominator == "k" else (None, "R", 1, 4, 11):
        value = evaluate(
            {"top_k": k, "denominator": denominator, "interpolation": rule, "ties": "stable"}, singles=True
        )
        if rule in ("step", "trapezoid"):
            one = functools.partial(brute.average_precision, trapezoid=rule == "trapezoid")
            expected = [one([r for _, r in g], known, k, denominator) for g, known in lists(singles=True)]
        else:
            expected = [brute.interpolated(g, known, rule, k, denominator) for g, known in lists(singles=True)]
        assert_equal(value, expected)


def test_threshold_has_one_point_per_group():
    expected = [brute.threshold(g, known) for g, known in lists()]
    assert_equal(evaluate({"ties": "threshold"}), expected)
    assert_equal(evaluate({"ties": "threshold", "denominator": "min"}), expected)
    found = [brute.threshold(g, max(1, sum(r for _, r in g))) for g, _ in lists()]
    assert_equal(evaluate({"ties": "threshold", "denominator": "hits"}), found)


@pytest.mark.parametrize("denominator", brute.DENOMINATORS[:3])
@pytest.mark.parametrize("rule", ["envelope", *GRID_RULES])
def test_interpolation_takes_the_end_of_each_group(rule, denominator):
    value = evaluate({"ties": "threshold", "interpolation": rule, "denominator": denominator})
    assert_equal(value, [brute.interpolated(g, known, rule, None, denominator) for g, known in lists()])


@pytest.mark.parametrize("rule", GRID_RULES)
def test_grid_recalls_are_compared_in_float64(rule):
    """3 of 10 found do not reach linspace's 0.30000000000000004, nor 7 of 10 its 0.7000000000000001."""
    for known in (*range(1, 60), 100, 200, 1000):
        total = torch.ones(known, known, dtype=torch.int64).tril().contiguous()
        value = average_precision(total, total, num_relevant=known, ties="stable", interpolation=rule)
        recall = np.arange(1, known + 1)[:, None] / known
        assert_equal(value, (recall >= brute.GRIDS[rule]).mean(1))


@functools.cache
def weighted_lists():
    """Lists of groups of gains, and their tables over every order."""
    rng = random.Random(5)
    sizes = [[rng.randint(1, 4) for _ in range(rng.randint(1, 3))] for _ in range(150)]
    sizes = [s for s in sizes if math.prod(map(math.factorial, s)) <= 150]
    made = [[[rng.choice([0, 0, 0.5, 1, 2, 3.25]) for _ in range(n)] for n in s] for s in sizes]
    known = [sum(g > 0 for group in gains for g in group) for gains in made]
    assert len(made) > 100
    return made, [brute.over_orders(brute.gain_orders(g), n, CUTOFFS) for g, n in zip(made, known, strict=True)]


@pytest.mark.parametrize("denominator", brute.DENOMINATORS)
def test_weighted_equals_every_order_of_the_gains(denominator):
    made, tables = weighted_lists()
    groups = groups_from_counts(*counts([[(len(g), sum(x > 0 for x in g)) for g in gains] for gains in made]))
    held = [(sum(g), sum(map(sum, gains[:i]))) for gains in made for i, g in enumerate(gains) if any(g)]
    gain, above = torch.tensor(held, dtype=torch.float64).unbind(1)
    groups = groups._replace(gain=gain, gain_before=above)
    for k in CUTOFFS[denominator == "k" :]:
        value = ranked_average_precision(groups, top_k=k, denominator=denominator)
        assert_equal(value, [table[k, denominator][0] for table in tables], 1e-12)


def test_hits_are_the_mean_over_every_order():
    total, relevant, known = batch()
    groups = groups_from_counts(total, relevant, known)
    for k in CUTOFFS:
        expected = []
        for items, in_all in lists():
            found = [sum(ranked[: min(len(ranked), brute.cut_off(k, in_all))]) for ranked in brute.orders(items)]
            expected.append(Fraction(sum(found), len(found)))
        assert_equal(hits_per_query(groups, k), expected)


def test_the_slot_oracle_for_longer_lists_agrees_with_every_order():
    for (groups, known), table in zip(lists(), exact(), strict=True):
        for (k, denominator), (mean, _, _) in table.items():
            assert abs(brute.expected(groups, known, k, denominator) - mean) < 1e-14


# --- numbers anyone can check -----------------------------------------------------------------------------------------

LONG = [1, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0, 1, 0, 1]  # 7 relevant of 14
NUMBERS = {  # total, relevant, conventions -> value
    "64 tied, one relevant: mean": ([64], [1], {}, math.fsum(1 / i for i in range(1, 65)) / 64),
    "64 tied, one relevant: best": ([64], [1], {"ties": "optimistic"}, 1.0),
    "64 tied, one relevant: worst": ([64], [1], {"ties": "pessimistic"}, 1 / 64),
    "two tied": ([2], [1], {}, 0.75),
    "three tied": ([3], [1], {}, 11 / 18),
    "five tied": ([5], [1], {}, 137 / 300),
    "two tied relevant below ten": ([10, 2], [0, 2], {}, (1 / 11 + 2 / 12) / 2),
    "threshold lies outside all orders": ([10, 2], [0, 2], {"ties": "threshold"}, 1 / 6),
    "hits bounds: mean": ([1, 1, 2], [1, 0, 1], {"top_k": 3, "denominator": "hits"}, 11 / 12),
    "hits bounds: best": ([1, 1, 2], [1, 0, 1], {"top_k": 3, "denominator": "hits", "ties": "optimistic"}, 1.0),
    "hits bounds: worst": ([1, 1, 2], [1, 0, 1], {"top_k": 3, "denominator": "hits", "ties": "pessimistic"}, 5 / 6),
    "collapsed codes": ([100], [25], {}, 24 / 99 + 75 * math.fsum(1 / i for i in range(1, 101)) / 9900),
    "trapezoid": ([1, 1, 1, 1], [0, 1, 0, 1], {"interpolation": "trapezoid"}, (1 / 4 + (1 / 3 + 1 / 2) / 2) / 2),
    "step": ([1, 1, 1, 1], [0, 1, 0, 1], {}, 0.5),
    "relevant items elsewhere": ([1, 1], [1, 0], {"num_relevant": 4}, 0.25),
    "two of three": ([1, 1], [1, 1], {"num_relevant": 3, "ties": "stable", "interpolation": "101-point"}, 67 / 101),
    "7 of 10": ([7], [7], {"num_relevant": 10, "ties": "threshold", "interpolation": "101-point"}, 70 / 101),
    "3 of 10": ([3], [3], {"num_relevant": 10, "ties": "threshold", "interpolation": "11-point"}, 3 / 11),
    "nothing relevant": ([3, 1], [0, 0], {}, 0.0),
    "nothing relevant, top R": ([3, 1], [0, 0], {"top_k": "R", "denominator": "k"}, 0.0),
    "none found": ([3], [0], {"num_relevant": 2}, 0.0),
    "MAP@R": ([1] * 5, [1, 0, 1, 0, 1], {"top_k": "R"}, (1 + 2 / 3) / 3),
    **{
        f"k={k}, {d}": ([1] * 14, LONG, {"top_k": k, "denominator": d}, value)
        for k, row in {5: (5 / 21, 1 / 3, 5 / 6, 1 / 3)}.items()
        for d, value in zip(brute.DENOMINATORS, row, strict=True)
    },
}


@pytest.mark.parametrize(("total", "relevant", "conventions", "value"), NUMBERS.values(), ids=NUMBERS)
def test_known_numbers(total, relevant, conventions, value):
    assert_equal(average_precision(torch.tensor(total), torch.tensor(relevant), **conventions), [value], 1e-14)


# --- long lists -------------------------------------------------------------------------------------------------------

CROSSINGS = {  # found above, irrelevant above, then n tied of which r relevant, cut after m of them
    "all tied": (0, 0, 100_000, 25_000, 100),
    "half of the group": (0, 0, 100_000, 50_000, 50_000),
    "one open slot": (3, 2, 100_000, 40_000, 1),
    "all but one slot": (3, 2, 100_000, 40_000, 99_999),
    "one relevant": (2, 50, 100_000, 1, 30_000),
    "all but one relevant": (0, 40, 100_000, 99_999, 500),
    "few above, many relevant": (1, 9, 100_000, 60_000, 70_000),
    "many above": (900, 4_000, 100_000, 30_000, 20_000),
    "nothing found above": (0, 5_000, 100_000, 300, 20_000),
    "minimum inside the range": (60, 40, 20_000, 10_000, 2_000),
    "two relevant of 10^9": (5, 1, 10**9, 2, 10**6),
    "hits rare in a large group": (0, 0, 10**8, 10, 1_000),
}


@pytest.mark.parametrize(("found", "others", "n", "r", "m"), CROSSINGS.values(), ids=CROSSINGS)
def test_hits_where_a_large_group_crosses_the_cut(found, others, n, r, m):
    """Above the group only hits, then only irrelevant items: their sum of precisions is ``found``."""
    total = torch.tensor([found, others, n])
    relevant = torch.tensor([found, 0, r])
    mean, best, worst = brute.decimal_hits(found + others, found, found, n, r, m)
    for ties, expected in {"expected": mean, "optimistic": best, "pessimistic": worst}.items():
        value = average_precision(total, relevant, top_k=found + others + m, denominator="hits", ties=ties)
        assert_equal(value, [expected])


def test_hits_where_groups_of_all_sizes_cross_the_cut():
    """The minimum stands inside the range of hits in many of these."""
    rng = random.Random(2)
    inside = 0
    for _ in range(150):
        found, others, n = rng.randint(0, 40), rng.choice([0, 3, 50, 400]), rng.randint(2, 300)
        r, m = rng.randint(1, n), rng.randint(1, n - 1)
        total, relevant = torch.tensor([found, others, n]), torch.tensor([found, 0, r])
        mean, best, worst = brute.decimal_hits(found + others, found, found, n, r, m)
        conventions = {"top_k": found + others + m, "denominator": "hits"}
        for ties, expected in {"expected": mean, "optimistic": best, "pessimistic": worst}.items():
            assert_equal(average_precision(total, relevant, ties=ties, **conventions), [expected])
        low, high = max(0, m - (n - r)), min(r, m)
        lists = ([1] * found + [0] * (others + m - j) + [1] * j for j in (low, high))
        ends = [brute.average_precision(ranked, denominator="hits") for ranked in lists]
        inside += worst < min(map(float, ends)) - 1e-9
    assert inside > 20


def test_the_decimal_oracle_agrees_with_every_order():
    for found, others, n, r in itertools.product((0, 2), (0, 1, 3), (2, 5), (0, 1, 2, 4)):
        for m in range(1, n + 1):
            if r <= n and found + others:
                ranked = brute.orders([(found, found), (others, 0), (n, r)])
                k = found + others + m
                table = brute.over_orders(ranked, found + r, [k])
                decimals = brute.decimal_hits(found + others, found, found, n, r, m)
                assert [float(x) for x in decimals] == pytest.approx([float(x) for x in table[k, "hits"]], abs=1e-15)


@pytest.mark.parametrize("before", [0, 1, 30, 31, 32, 33, 1000, 10**6, 10**9])
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 1000, 10**5, 10**9])
def test_totals_up_to_a_billion(before, n):
    """An irrelevant group of any size above a group of any size, half of it relevant."""
    r = -(-n // 2)
    for m in {1, n // 3 + 1, n}:
        value = average_precision(torch.tensor([before, n]), torch.tensor([0, r]), top_k=before + m)
        assert_equal(value, [brute.decimal_expected_sum(before, 0, n, r, m) / r])


@pytest.mark.parametrize("start", [0, 1, 2, 30, 31, 32, 33, 63, 64, 1000, 10**5, 10**9, 10**15])
def test_harmonic_differences_keep_their_last_bits(start):
    count = [0, 1, 2, 3, 31, 32, 33, 64, 1000, 10**5, 10**9]
    value = harmonic_difference(
        torch.full((len(count),), float(start), dtype=torch.float64), torch.tensor(count).double()
    )
    expected = torch.tensor([float(brute.harmonic_difference(start, c)) for c in count], dtype=torch.float64)
    torch.testing.assert_close(value, expected, rtol=5e-15, atol=0)


# --- one list does not touch another ----------------------------------------------------------------------------------

SOME_CONVENTIONS = [
    {},
    {"top_k": 4, "denominator": "hits"},
    {"top_k": 1500, "denominator": "hits"},
    {"top_k": 1500, "denominator": "hits", "ties": "pessimistic"},
    {"top_k": "R", "ties": "optimistic"},
    {"interpolation": "trapezoid"},
    {"ties": "threshold"},
    {"ties": "threshold", "interpolation": "envelope"},
    {"ties": "threshold", "interpolation": "101-point"},
]


def conventions_id(conventions):
    return "-".join(map(str, conventions.values())) or "default"


@pytest.mark.parametrize("conventions", SOME_CONVENTIONS, ids=conventions_id)
def test_bits_do_not_depend_on_the_other_lists(conventions):
    rng = torch.Generator().manual_seed(1)
    total = torch.randint(0, 9, (60, 300), generator=rng)
    total[::7] *= 1000  # long and short lists side by side
    relevant = (total * torch.rand(total.shape, generator=rng)).long()
    together = average_precision(total, relevant, **conventions)
    alone = torch.stack([average_precision(t, r, **conventions) for t, r in zip(total, relevant, strict=True)])
    assert torch.equal(together, alone)
    order = torch.randperm(60, generator=rng)
    assert torch.equal(average_precision(total[order], relevant[order], **conventions), together[order])


@pytest.mark.parametrize("conventions", SOME_CONVENTIONS, ids=conventions_id)
def test_groups_without_items_change_no_bit(conventions):
    total, relevant, _ = batch()
    empty = torch.zeros_like(total)
    spread = [torch.stack([empty, x, empty], -1).flatten(1) for x in (total, relevant)]
    assert torch.equal(average_precision(*spread, **conventions), average_precision(total, relevant, **conventions))


# --- shapes and dtypes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (6,), (2, 3), (1, 2, 3, 1), (0,), (3, 0)])
@pytest.mark.parametrize("width", [0, 1, 5])
def test_leading_shape_is_kept_and_no_group_is_worth_0(shape, width):
    total = torch.ones(*shape, width, dtype=torch.int64)
    value = average_precision(total, total)
    assert value.shape == shape
    assert torch.equal(value, torch.full(shape, float(width > 0), dtype=torch.float64))
    assert torch.equal(average_precision(total, total, num_relevant=torch.full(shape, 10)), value * width / 10)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_any_integer_dtype(dtype):
    total, relevant = torch.tensor([[100, 100, 100]], dtype=dtype), torch.tensor([[60, 100, 1]], dtype=dtype)
    expected = brute.expected([(100, 60), (100, 100), (100, 1)])
    assert_equal(average_precision(total, relevant), [expected])
    assert torch.equal(total, torch.tensor([[100, 100, 100]], dtype=dtype))


def test_views_of_tensors_are_read_as_they_are():
    total, relevant, _ = batch()
    expected = average_precision(total, relevant)
    assert torch.equal(average_precision(total.T.contiguous().T, relevant.flip(1).flip(1)), expected)
    grid = [x.view(16, 20, -1) for x in (total, relevant)]
    assert torch.equal(average_precision(*grid), expected.view(16, 20))


@pytest.mark.parametrize("k", [14, 2**31, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 10**30])
def test_a_cut_off_behind_the_end_is_no_cut_off(k):
    total, relevant, known = batch()
    for denominator in ("relevant", "min", "hits"):
        value = average_precision(total, relevant, num_relevant=known, denominator=denominator, top_k=k)
        same = average_precision(total, relevant, num_relevant=known, denominator=denominator)
        assert torch.equal(value, same)


# --- refusals ---------------------------------------------------------------------------------------------------------

ONES = torch.ones(2, 3, dtype=torch.int64)
BAD_COUNTS = {  # name: (total, relevant, num_relevant, what the message names)
    "negative items": (torch.tensor([[1, -2]]), torch.tensor([[0, 0]]), None, r"`total` .*-2 at position \(0, 1\)"),
    "negative relevant": (ONES, -ONES, None, r"`relevant` .*-1 at position \(0, 0\)"),
    "more relevant than items": (ONES, 2 * ONES, None, r"`relevant` .*`total`.*2 at position \(0, 0\)"),
    "float counts": (ONES.double(), ONES, None, "`total` .*integer.*float64"),
    "float relevant": (ONES, ONES.float(), None, "`relevant` .*integer.*float32"),
    "other shape": (ONES, ONES[:1], None, r"`relevant` .*\(2, 3\).*\(1, 3\)"),
    "scalar": (torch.tensor(1), torch.tensor(1), None, "`total` .*scalar"),
    "list": ([1, 2], [1, 1], None, "`total` .*list"),
    "too few in all": (ONES, ONES, 2, "`num_relevant` .*2 at position 0"),
    "too few in one list": (ONES, ONES, torch.tensor([3, 2]), "`num_relevant` .*2 at position 1"),
    "float in all": (ONES, ONES, 3.5, "`num_relevant` .*integer"),
    "in all of another shape": (ONES, ONES, torch.tensor([3, 3, 3]), r"`num_relevant` .*\(2,\).*\(3,\)"),
    "in all as text": (ONES, ONES, "many", "`num_relevant`"),
}


@pytest.mark.parametrize(("total", "relevant", "known", "message"), BAD_COUNTS.values(), ids=BAD_COUNTS)
def test_bad_counts_are_refused_with_the_place(total, relevant, known, message):
    with pytest.raises(ValueError, match=message):
        average_precision(total, relevant, num_relevant=known)


BAD_TOP_K = [0, -1, -(2**40), 2.5, 5.0, True, False, "r", "5", "all", math.inf, math.nan]
BAD_SEQUENCES = [(), [0], [1, 0], [5, 5], [True], [2.0], ["R"], [None], [5, None], [[1]], [5, "R"]]


@pytest.mark.parametrize("k", [*BAD_TOP_K, *BAD_SEQUENCES, {1}, torch.tensor(3), torch.tensor([1, 2])], ids=repr)
def test_bad_cut_offs_are_refused_by_value(k):
    with pytest.raises(ValueError, match="`top_k`"):
        Conventions(top_k=k)
    with pytest.raises(ValueError, match="`top_k`"):
        average_precision(ONES, ONES, top_k=k)


def test_a_sequence_of_cut_offs_belongs_to_the_metrics():
    with pytest.raises(ValueError, match=r"`top_k`.*\[1, 2\]|`top_k`.*\(1, 2\)"):
        average_precision(ONES, ONES, top_k=[1, 2])


ALLOWED = {
    "step": {"expected", "optimistic", "pessimistic", "stable", "threshold"},
    "trapezoid": {"expected", "stable"},
    **{rule: {"stable", "threshold"} for rule in ("envelope", *GRID_RULES)},
}


@pytest.mark.parametrize("interpolation", ALLOWED)
@pytest.mark.parametrize("ties", sorted(ALLOWED["step"]))
def test_pairs_without_a_definition_are_refused(interpolation, ties):
    if ties in ALLOWED[interpolation]:
        average_precision(ONES, ONES, interpolation=interpolation, ties=ties)
        return
    with pytest.raises(ValueError, match=f"`ties` .*'{interpolation}', got '{ties}'") as error:
        average_precision(ONES, ONES, interpolation=interpolation, ties=ties)
    assert all(allowed in str(error.value) for allowed in ALLOWED[interpolation])


BAD_WORDS = [
    *itertools.product(["denominator"], ["R", "Relevant", "", None, 1]),
    *itertools.product(["ties"], ["mean", "", None, 0]),
    *itertools.product(["interpolation"], ["12-point", "linear", None, 11]),
]


@pytest.mark.parametrize(("name", "value"), BAD_WORDS)
def test_unknown_words_are_refused_with_the_list(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be one of .*got {value!r}"):
        average_precision(ONES, ONES, **{name: value})


BAD_PAIRS = {
    "k needs a cut-off": ({"denominator": "k"}, "`denominator`='k' needs a `top_k`"),
    "threshold has no cut-off": ({"ties": "threshold", "top_k": 5}, "`ties`='threshold' .*`top_k`, got 5"),
    "threshold has no R": ({"ties": "threshold", "top_k": "R"}, "`ties`='threshold' .*`top_k`, got 'R'"),
}


@pytest.mark.parametrize(("conventions", "message"), BAD_PAIRS.values(), ids=BAD_PAIRS)
def test_bad_pairs_are_refused(conventions, message):
    with pytest.raises(ValueError, match=message):
        average_precision(ONES, ONES, **conventions)


def test_stable_needs_groups_of_one_item():
    with pytest.raises(ValueError, match=r"`total` .*'stable'.*2 at position \(0, 1\)"):
        average_precision(torch.tensor([[1, 2]]), torch.tensor([[1, 1]]), ties="stable")


def test_groups_are_built_from_counts_as_documented():
    groups = groups_from_counts(torch.tensor([[2, 3, 0, 1], [1, 1, 1, 1]]), torch.tensor([[1, 0, 0, 1], [0, 0, 1, 1]]))
    expected = {
        "query": [0, 0, 1, 1],
        "before": [0, 5, 2, 3],
        "found": [0, 1, 0, 1],
        "total": [2, 1, 1, 1],
        "relevant": [1, 1, 1, 1],
        "num_relevant": [2, 2],
        "num_items": [6, 4],
    }
    assert isinstance(groups, Groups)
    assert {name: getattr(groups, name).tolist() for name in expected} == expected
