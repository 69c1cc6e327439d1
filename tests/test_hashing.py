"""HashingMAPAtK against plain loops over codes and label sets, on real data, and on inputs that break other tools."""

import functools
import itertools
import math
import random
import re

import numpy as np
import pytest
import torch
from oracles import brute, hamming, tools
from oracles.hamming import Item

from map_metrics import HashingMAPAtK, RetrievalMAP
from map_metrics.functional import hashing_map

BIG = 2**62
BITS = (1, 7, 8, 63, 64, 65, 127, 128, 200, 256, 300)
WIDTHS = (1, 38, 63, 64, 65, 130)
RULES = ("any", "exact", 0.5, 1 / 3, 1.0, "weighted")
HOW = [
    {},
    {"k": 1},
    {"k": 7},
    {"k": 25, "denominator": "relevant"},
    {"k": "R", "denominator": "min"},
    {"k": 7, "denominator": "k"},
]
TIES = ("expected", "optimistic", "pessimistic", "stable", "threshold")
none = torch.zeros(0, dtype=torch.int64)


def close(value, expected, tolerance=1e-12):
    assert value.dtype == torch.float64
    assert value.ndim == 0
    assert float(value) == pytest.approx(float(expected), rel=0, abs=tolerance)


# --- random data against loops ----------------------------------------------------------------------------------------


@functools.cache
def random_items(bits, width=None, seed=0, num_queries=7, num_gallery=45):
    """Queries and gallery with ties at every length of code; ids overlap; some label sets are empty."""
    rng = random.Random(f"{bits} {width} {seed}")
    centres = [[rng.randint(0, 1) for _ in range(bits)] for _ in range(3)]
    concepts = [frozenset(rng.sample(range(width), rng.randint(0, min(3, width)))) for _ in range(6)] if width else []

    def item(name):
        code = list(rng.choice(centres))
        for place in rng.choices(range(bits), k=rng.choice([0, 0, 1, 2, bits])):
            code[place] ^= 1
        return Item(name, tuple(code), rng.choice(concepts) if width else rng.choice([-5, 0, 1, BIG]))

    names = rng.sample([-BIG, BIG, *range(-30, 60)], num_gallery)
    gallery = [item(name) for name in names]
    twins = [Item(name, item(0).code, item(0).labels) for name in names[:2]]  # of their gallery item only the id
    return [*twins, *gallery[2:4], *(item(1000 + i) for i in range(num_queries - 4))], gallery


def tensors(items, width=None):
    """codes, labels, ids"""
    codes = torch.tensor([item.code for item in items])
    ids = torch.tensor([item.id for item in items], dtype=torch.int64)
    if width is None:
        return codes, torch.tensor([item.labels for item in items], dtype=torch.int64), ids
    return codes, torch.tensor([[int(i in item.labels) for i in range(width)] for item in items]), ids


def arguments(how):
    return {("top_k" if name == "k" else name): value for name, value in how.items()}


def filled(metric, queries, gallery, width=None, ids=True):
    for side, query in ((gallery, False), (queries, True)):
        codes, labels, names = tensors(side, width)
        metric.update(codes, labels, query=query, **({"ids": names} if ids else {}))
    return metric


def in_order_of_ids(items):
    return sorted(items, key=lambda item: item.id)


def assert_loops(metric, queries, gallery, rule="any", weights=None, exclude_self=False, **how):
    """Query by query; the result holds the queries in the order of their ids, and "stable" the gallery too."""
    rankings = [
        hamming.ranking(q, in_order_of_ids(gallery), rule, weights, exclude_self) for q in in_order_of_ids(queries)
    ]
    result = metric.result()
    expected = [hamming.average_precision(ranked, **how) for ranked in rankings]
    assert result.query.tolist() == sorted(q.id for q in queries)
    assert result.ap.tolist() == pytest.approx(expected, rel=0, abs=1e-12)
    assert result.num_relevant.tolist() == [sum(g > 0 for _, g in ranked) for ranked in rankings]
    assert result.num_items.tolist() == [len(ranked) for ranked in rankings]
    close(metric.compute(), math.fsum(expected) / len(expected))


@pytest.mark.parametrize("how", HOW, ids=lambda how: "-".join(map(str, how.values())) or "default")
@pytest.mark.parametrize("bits", BITS)
def test_codes_of_any_length(bits, how):
    queries, gallery = random_items(bits)
    for ties in TIES[:4] if how else TIES:
        metric = filled(HashingMAPAtK(ties=ties, **arguments(how)), queries, gallery)
        assert_loops(metric, queries, gallery, ties=ties, **how)


@pytest.mark.parametrize("exclude_self", [False, True], ids=["with self", "without self"])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("width", [None, *WIDTHS], ids=str)
def test_every_rule_of_relevance(width, rule, exclude_self):
    queries, gallery = random_items(9, width)
    cases = [({}, "threshold"), *((HOW[2], ties) for ties in TIES[1:4])] if rule != "weighted" else []
    for how, ties in [*((how, "expected") for how in HOW[2:5]), *cases]:
        metric = HashingMAPAtK(relevance=rule, exclude_self=exclude_self, ties=ties, **arguments(how))
        filled(metric, queries, gallery, width)
        assert_loops(metric, queries, gallery, rule, None, exclude_self, ties=ties, **how)
        assert metric.result().num_self == 4


@pytest.mark.parametrize("width", WIDTHS)
def test_weights_of_labels(width):
    queries, gallery = random_items(9, width, seed=1)
    weights = [0.25 + 1.5 * (label % 5) for label in range(width)]
    for how, exclude_self, kind in zip(HOW[:4], (False, True) * 2, (list, torch.tensor, tuple, np.array), strict=True):
        metric = HashingMAPAtK(
            relevance="weighted", label_weights=kind(weights), exclude_self=exclude_self, **arguments(how)
        )
        assert_loops(
            filled(metric, queries, gallery, width), queries, gallery, "weighted", weights, exclude_self, **how
        )


def test_weights_of_classes():
    queries, gallery = random_items(9)
    queries, gallery = ([Item(i.id, i.code, max(0, i.labels) % 4) for i in side] for side in (queries, gallery))
    weights = [2.0, 0.5, 1.0, 3.0]
    metric = filled(HashingMAPAtK(relevance="weighted", label_weights=weights, top_k=9), queries, gallery)
    assert_loops(metric, queries, gallery, "weighted", weights, k=9)


def test_the_bounds_of_the_oracle_agree_with_every_order():
    rng = random.Random(0)
    for _ in range(60):
        groups = [(n, rng.randint(0, n)) for n in rng.choices([1, 2, 3], k=rng.randint(1, 3))]
        known = sum(r for _, r in groups)
        table = brute.over_orders(brute.orders(groups), known, [None, 1, 2, 4, 9])
        for (k, denominator), (_, best, worst) in table.items():
            assert brute.bound(groups, known, k, denominator, True) == pytest.approx(float(best), abs=1e-15)
            assert brute.bound(groups, known, k, denominator, False) == pytest.approx(float(worst), abs=1e-15)


# --- one value, many ways in ------------------------------------------------------------------------------------------

CODES = {
    "+-1 int64": lambda c: 2 * c - 1,
    "0/1 int64": lambda c: c,
    "bool": lambda c: c == 1,
    **{
        f"+-1 {d}": lambda c, d=d: (2 * c - 1).to(d)
        for d in (torch.int8, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float64)
    },
    **{f"0/1 {d}": lambda c, d=d: c.to(d) for d in (torch.uint8, torch.int32, torch.float32)},
    "strided": lambda c: torch.stack([c, 1 - c], -1)[..., 0],
    "transposed": lambda c: c.T.contiguous().T,
    "with a graph": lambda c: (2.0 * c - 1).requires_grad_(),
}
LABELS = {
    **{str(d): lambda x, d=d: x.to(d) for d in (torch.bool, torch.uint8, torch.int32, torch.float16, torch.float64)},
    "transposed": lambda x: x.T.contiguous().T,
}


@pytest.mark.parametrize("form", CODES.values(), ids=CODES)
@pytest.mark.parametrize("bits", [7, 64, 130])
def test_codes_of_any_dtype_are_the_same_codes(bits, form):
    (qc, ql, _), (gc, gl, _) = (tensors(side) for side in random_items(bits))
    expected = hashing_map(qc, ql, gc, gl, top_k=9)
    assert torch.equal(hashing_map(form(qc), ql, form(gc), gl, top_k=9), expected)
    assert torch.equal(hashing_map(form(qc), ql, gc, gl, top_k=9), expected)  # each update has a form of its own
    metric = HashingMAPAtK(top_k=9)
    metric.update(form(gc), gl, query=False)
    metric.update(form(qc), ql, query=True)
    assert torch.equal(metric.compute(), expected)


@pytest.mark.parametrize("form", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("width", [1, 65])
def test_label_sets_of_any_dtype_are_the_same_sets(width, form):
    (qc, ql, _), (gc, gl, _) = (tensors(side, width) for side in random_items(9, width))
    assert torch.equal(hashing_map(qc, form(ql), gc, form(gl)), hashing_map(qc, ql, gc, gl))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_class_ids_of_any_integer_dtype(dtype):
    info = torch.iinfo(dtype)
    labels = torch.tensor([info.min, info.max, 1, info.min], dtype=dtype)
    codes = torch.tensor([[0, 0], [0, 1], [1, 1], [1, 0]])
    close(hashing_map(codes[:1], labels[:1], codes, labels), (1 + (2 / 2 + 2 / 3) / 2) / 2)


def test_class_ids_next_to_each_other_beyond_float64_are_different_classes():
    codes = torch.tensor([[0], [0]])
    for label in (2**24, 2**53, BIG):
        labels = torch.tensor([label, label + 1])
        close(hashing_map(codes[:1], labels[:1], codes, labels), 0.75)


@pytest.mark.parametrize("order", ["big", "little"])
@pytest.mark.parametrize("bits", [8, 64, 72, 128, 200, 256, 304])
def test_packed_codes_are_the_same_codes(bits, order):
    (qc, ql, _), (gc, gl, _) = (tensors(side) for side in random_items(bits))
    packed = [torch.from_numpy(np.packbits(c.numpy().astype(bool), axis=1, bitorder=order)) for c in (qc, gc)]
    for conventions in ({}, {"top_k": 9, "ties": "stable"}, {"relevance": "weighted"}):
        value = hashing_map(packed[0], ql, packed[1], gl, packed=True, **conventions)
        assert torch.equal(value, hashing_map(qc, ql, gc, gl, **conventions))
    metric = HashingMAPAtK(packed=True)
    metric.update(packed[1], gl, query=False)
    metric.update(packed[0], ql, query=True)
    assert torch.equal(metric.compute(), hashing_map(qc, ql, gc, gl))


@pytest.mark.parametrize("conventions", [{}, {"ties": "stable", "top_k": 7}, {"relevance": "weighted"}], ids=str)
@pytest.mark.parametrize("width", [None, 65], ids=["class ids", "label sets"])
def test_any_order_and_size_of_updates_with_repeated_rows_gives_the_same_bits(width, conventions):
    """With ids; queries and gallery in one batch, told apart by a bool tensor."""
    queries, gallery = random_items(70, width)
    codes, labels, ids = (
        torch.cat(pair) for pair in zip(tensors(queries, width), tensors(gallery, width), strict=True)
    )
    query = torch.arange(len(codes)) < len(queries)
    (qc, ql, qi), (gc, gl, gi) = tensors(queries, width), tensors(gallery, width)
    expected = hashing_map(qc, ql, gc, gl, query_ids=qi, gallery_ids=gi, exclude_self=True, **conventions)
    for seed, size in enumerate((1, 3, 20, 1000)):
        rng = torch.Generator().manual_seed(seed)
        order = torch.cat([torch.randperm(len(codes), generator=rng), torch.randint(len(codes), (9,), generator=rng)])
        metric = HashingMAPAtK(exclude_self=True, **conventions)
        for part in order.split(size):
            metric.update(codes[part], labels[part], query=query[part], ids=ids[part])
        assert torch.equal(metric.compute(), expected)
        assert metric.result().num_duplicates == 9
        assert metric.result().num_conflicts == 0


def test_without_ids_repeated_rows_count_and_the_order_of_updates_does_not():
    (qc, ql, _), (gc, gl, _) = (tensors(side) for side in random_items(9))
    expected = hashing_map(qc, ql, gc, gl)
    metric = HashingMAPAtK()
    metric.update(gc[:5], gl[:5], query=False)
    metric.update(qc, ql, query=True)
    metric.update(gc[5:], gl[5:], query=False)
    assert torch.equal(metric.compute(), expected)
    assert not metric.result().named.any()
    assert metric.result().query.tolist() == list(range(len(qc)))
    metric.update(gc[:1].expand(30, -1), gl[:1].expand(30), query=False)
    assert set(metric.result().num_items.tolist()) == {len(gc) + 30}


def test_stable_is_the_order_of_arrival_without_ids_and_of_ids_with_them():
    query, labels = torch.tensor([[1, 1]]), torch.tensor([0, 0, 1])
    gallery = torch.tensor([[1, 1], [1, 1], [1, 1]])
    for order, value in {(2, 0, 1): (1 / 2 + 2 / 3) / 2, (0, 2, 1): (1 + 2 / 3) / 2, (0, 1, 2): 1.0}.items():
        place = torch.tensor(order)
        close(hashing_map(query, labels[:1], gallery, labels[place], ties="stable"), value)
        metric = HashingMAPAtK(ties="stable")
        metric.update(query, labels[:1], query=True, ids=torch.tensor([5]))
        metric.update(gallery, labels, query=False, ids=place.argsort() - BIG)
        close(metric.compute(), value)


def test_copies_of_an_id_that_differ_are_one_item_and_that_is_said_once():
    codes, labels = torch.tensor([[1, 1], [0, 1], [0, 0]]), torch.tensor([0, 0, 1])
    values = set()
    for order in itertools.permutations(range(3)):
        metric = HashingMAPAtK()
        metric.update(codes[:1], labels[:1], query=True, ids=torch.tensor([7]))
        for i in order:
            metric.update(codes[i : i + 1], labels[i : i + 1], query=False, ids=torch.tensor([7 + i // 2]))
        metric.update(codes[:1], labels[:1], query=True, ids=torch.tensor([7]))
        with pytest.warns(UserWarning, match="another content"):
            values.add(float(metric.compute()))
        assert (metric.result().num_duplicates, metric.result().num_conflicts) == (2, 1)
        assert metric.result().num_items.tolist() == [2]
    assert len(values) == 1


@pytest.mark.parametrize("size", [1, 2**15 - 1, 2**15, 2**15 + 1, 2**16 + 7])
@pytest.mark.parametrize("bits", [24, 64, 65])
def test_galleries_larger_than_a_block_and_any_number_of_threads(size, bits, num_threads):
    rng = np.random.default_rng(size)
    gallery, labels = rng.integers(0, 2, (size, bits)), rng.integers(0, 3, size)
    queries, classes = rng.integers(0, 2, (5, bits)), np.array([0, 1, 2, 0, 9])
    expected = []
    for code, label in zip(queries, classes, strict=True):
        distance = (gallery != code).sum(1)
        groups = zip(np.bincount(distance), np.bincount(distance, labels == label), strict=True)
        groups = [(int(n), int(r)) for n, r in groups if n]
        known = sum(r for _, r in groups)
        expected.append(brute.expected(groups, known, None, "relevant") if known else 0.0)
    given = [torch.from_numpy(x) for x in (queries, classes, gallery, labels)]
    values = []
    for threads in (1, 2, 3):
        num_threads(threads)
        values.append(hashing_map(*given))
    close(values[0], math.fsum(expected) / 5)
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])


# --- small inputs that break other tools ------------------------------------------------------------------------------


def test_distances_are_ranked_whatever_sign_a_similarity_would_have():
    gallery, labels = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0]]), torch.tensor([1, 1, 0])
    close(hashing_map(torch.tensor([[1, 1, 1, 1]]), torch.tensor([1]), gallery, labels), 5 / 6)


@pytest.mark.parametrize("classes", [2, 4, 10])
@pytest.mark.parametrize("bits", [1, 32, 65])
def test_a_constant_code_looks_as_bad_as_it_is(classes, bits):
    labels = torch.arange(classes).repeat_interleave(25)
    codes, n = torch.ones(len(labels), bits), 25 * classes
    harmonic = math.fsum(1 / i for i in range(1, n + 1))
    expected = 24 / (n - 1) + (n - 25) * harmonic / (n * (n - 1))
    close(hashing_map(codes, labels, codes, labels), expected)
    by_index = hashing_map(codes, labels, codes, labels, ties="stable")
    assert by_index > expected + 0.05
    if classes == 4:
        close(by_index, 0.4136, 5e-5)
        close(hashing_map(codes, labels, codes, labels), 0.2817, 5e-5)


def test_a_query_does_not_retrieve_itself_by_id():
    gallery = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]])
    labels, ids = torch.tensor([3, 0, 3, 0]), torch.tensor([BIG, 1, 2, 3])
    metric = HashingMAPAtK(exclude_self=True)
    metric.update(gallery, labels, query=False, ids=ids)
    metric.update(gallery[:1], labels[:1], query=True, ids=ids[:1])
    close(metric.compute(), 0.5)
    result = metric.result()
    assert (result.num_self, result.num_relevant.tolist(), result.num_items.tolist()) == (1, [1], [3])


@pytest.mark.parametrize("own", [0, 1, 2, 3])
def test_self_is_an_id_and_not_the_nearest(own):
    """Equal codes with other ids stay, and a query whose id is nowhere loses nothing."""
    gallery, labels, ids = torch.tensor([[1, 1], [1, 1], [0, 1]]), torch.tensor([1, 0, 1]), torch.tensor([0, 1, 2])
    query = {"query_ids": torch.tensor([own]), "gallery_ids": ids, "exclude_self": True}
    value = hashing_map(torch.tensor([[1, 1]]), torch.tensor([1]), gallery, labels, **query)
    kept = [i for i in range(3) if i != own]
    plain = hashing_map(torch.tensor([[1, 1]]), torch.tensor([1]), gallery[kept], labels[kept])
    assert torch.equal(value, plain)


def test_the_only_relevant_item_being_self_leaves_an_empty_query():
    codes, labels, ids = torch.tensor([[1, 1], [0, 1]]), torch.tensor([1, 0]), torch.tensor([4, 5])
    metric = HashingMAPAtK(exclude_self=True, empty_target_action="pos")
    for query in (True, False):
        metric.update(codes, labels, query=query, ids=ids)
    close(metric.compute(), 1.0)
    assert metric.result().num_empty == 2
    assert metric.result().num_self == 2


@pytest.mark.parametrize("bits", BITS)
def test_the_farthest_distance_counts(bits):
    query = torch.zeros(1, bits)
    gallery = torch.stack([torch.ones(bits), torch.zeros(bits)])
    for ties in TIES:
        close(hashing_map(query, torch.tensor([1]), gallery, torch.tensor([1, 0]), ties=ties), 0.5)
        close(hashing_map(query, torch.tensor([1]), gallery, torch.tensor([1, 1]), ties=ties), 1.0)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_an_empty_label_set_is_relevant_to_nothing(rule):
    labels = torch.tensor([[0, 0], [1, 0], [0, 0]])
    codes = torch.tensor([[1, 1], [0, 1], [0, 0]])
    for action, value in {"neg": 1 / 3 / 2, "pos": (1 / 2 + 2) / 3, "skip": 0.5}.items():
        metric = HashingMAPAtK(relevance=rule, empty_target_action=action)
        metric.update(codes, labels, query=False)
        metric.update(torch.tensor([[1, 1]] * 3), labels, query=True)
        close(metric.compute(), value)
        assert metric.result().num_empty == 2
    with pytest.raises(ValueError, match=r"2 queries .*query 0"):
        hashing_map(codes, labels, codes, labels, relevance=rule, empty_target_action="error")


def test_gains_are_the_summed_weights_of_shared_labels():
    """Labels a, b of weight 2, 1; the query has both, the gallery a, b and both, at distances 0, 1, 2."""
    gallery, labels = torch.tensor([[1, 1], [0, 1], [0, 0]]), torch.tensor([[1, 0], [0, 1], [1, 1]])
    query, both = torch.tensor([[1, 1]]), torch.tensor([[1, 1]])
    gains = {"relevance": "weighted", "label_weights": [2, 1]}
    for k, value in {1: 2, 2: (2 + 3 / 2) / 2, 3: (2 + 3 / 2 + 6 / 3) / 3}.items():
        close(hashing_map(query, both, gallery, labels, top_k=k, **gains), value)
    close(hashing_map(query, both, gallery, labels, relevance="weighted"), (1 + 2 / 2 + 4 / 3) / 3)


@pytest.mark.parametrize(("shared", "union"), [(1, 2), (1, 3), (2, 3), (3, 10), (7, 10), (64, 65), (1, 130)])
def test_jaccard_reaches_its_threshold(shared, union):
    mine = (torch.arange(union) < shared).long()[None]
    codes = torch.ones(1, 3)
    at = shared / union
    for t, value in {at: 1.0, math.nextafter(at, 1): 0.0, math.nextafter(at, 0): 1.0}.items():
        close(hashing_map(codes, mine, codes, torch.ones(1, union), relevance=t), value)


# --- nothing there ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conventions", [{}, {"ties": "stable"}, {"relevance": "weighted"}, {"top_k": [1, 2]}], ids=str)
@pytest.mark.parametrize("width", [None, 3])
def test_queries_without_a_gallery_are_empty_queries(width, conventions):
    (codes, labels, _), _ = (tensors(side, width) for side in random_items(9, width))
    value = hashing_map(codes, labels, codes[:0], labels[:0], **conventions)
    for item in value.values() if isinstance(value, dict) else [value]:
        close(item, 0.0)
    metric = HashingMAPAtK(**conventions)
    metric.update(codes, labels, query=True)
    assert metric.result().num_empty == len(codes)
    assert metric.result().num_items.tolist() == [0] * len(codes)


@pytest.mark.parametrize("conventions", [{}, {"ties": "stable"}, {"relevance": "weighted"}], ids=str)
@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("gallery", [True, False])
def test_without_queries_the_value_is_a_warned_0(gallery, width, conventions):
    _, (codes, labels, _) = (tensors(side, width) for side in random_items(9, width))
    part = slice(None) if gallery else slice(0, 0)
    with pytest.warns(UserWarning, match="0.0"):
        close(hashing_map(codes[:0], labels[:0], codes[part], labels[part], **conventions), 0.0)


def test_empty_updates_are_no_ops_of_any_width():
    metric = HashingMAPAtK()
    metric.update(torch.zeros(0, 5), none, query=True)
    metric.update(torch.zeros(0, 9), torch.zeros(0, 4), query=False)
    metric.update(torch.ones(1, 3), torch.tensor([1]), query=torch.tensor([True]))
    metric.update(torch.ones(1, 3), torch.tensor([1]), query=torch.tensor([False]))
    close(metric.compute(), 1.0)


# --- real data --------------------------------------------------------------------------------------------------------

DIGITS = {
    (bits, name): value
    for bits in (16, 64)
    for name, value in tools.EXPECTED[f"hashing/digits {bits} bits, first 297 query vs the other 1500"].items()
    if name.startswith("map@")
}
DENOMINATOR = {"/R": "relevant", "/min(R,k)": "min", "/hits": "hits", "stable": "relevant"}


@pytest.mark.parametrize(("bits", "name"), DIGITS)
def test_digits(bits, name):
    data = np.load(tools.DATA / "hashing" / "digits_codes.npz")
    codes, labels = torch.from_numpy(data["codes64"][:, : bits // 8]), torch.from_numpy(data["labels"])
    cut, denominator, *ties = name.split()
    conventions = {
        "top_k": None if cut == "map@all" else int(cut.removeprefix("map@")),
        "denominator": DENOMINATOR[denominator],
        "ties": "stable" if denominator == "stable" else ties[0],
    }
    value = hashing_map(codes[:297], labels[:297], codes[297:], labels[297:], packed=True, **conventions)
    close(value, DIGITS[bits, name], 1e-6)


def test_digits_in_all_its_numbers():
    assert len(DIGITS) == 22


@functools.cache
def mirflickr():
    data = np.load(tools.DATA / "hashing" / "mirflickr_test_labels.npz")
    labels = np.unpackbits(data["labels"], axis=1)[:, :38]
    planes = np.random.default_rng(0).normal(size=(38, 12))
    return torch.from_numpy(labels), torch.from_numpy(labels @ planes > 0.3)


EMPTY = {("any", 200): 10, ("any", 500): 15, ("any", 1000): 19, ("exact", 200): 80, ("exact", 500): 204}


@pytest.mark.parametrize(("rule", "count"), EMPTY)
def test_mirflickr_queries_without_a_relevant_item_are_counted(rule, count):
    labels, codes = mirflickr()
    ids = torch.arange(1000)
    metric = HashingMAPAtK(relevance=rule, exclude_self=True)
    metric.update(codes, labels, query=False, ids=ids)
    metric.update(codes[:count], labels[:count], query=True, ids=ids[:count])
    assert metric.result().num_empty == EMPTY[rule, count]
    assert metric.result().num_self == count


def test_mirflickr_against_a_gallery_of_others():
    labels, codes = mirflickr()
    metric = HashingMAPAtK()
    metric.update(codes, labels, query=torch.arange(1000) < 200)
    empty = tools.EXPECTED["hashing/mirflickr share>=1, first 200 queries against the other 800"]["empty queries"]
    assert metric.result().num_empty == empty


@pytest.mark.parametrize("rule", ["any", "exact", 0.4, "weighted"])
def test_mirflickr_equals_plain_loops(rule):
    labels, codes = mirflickr()
    rows = zip(codes.tolist(), labels.tolist(), strict=True)
    items = [Item(i, tuple(c), frozenset(j for j, held in enumerate(x) if held)) for i, (c, x) in enumerate(rows)]
    queries = items[:40]
    for how in ({"denominator": "relevant"}, {"k": 50}):
        metric = HashingMAPAtK(relevance=rule, exclude_self=True, **arguments(how))
        assert_loops(filled(metric, queries, items, 38), queries, items, rule, None, True, **how)


# --- refusals ---------------------------------------------------------------------------------------------------------

C, L = torch.tensor([[1, 1, 0], [0, 1, 1]]), torch.tensor([3, 4])
S = 2 * C - 1  # +-1


def update(**more):
    return {"codes": C, "labels": L, "query": True, **more}


REFUSED = {  # constructor, update's arguments, what the message names
    "zeros among +-1": ({}, update(codes=S * torch.tensor([[1, 0, 0], [1, 1, 0]])), r"3 zeros.*codes\[0, 1\] = 0"),
    "zeros among +-1 floats": ({}, update(codes=torch.tensor([[1, -1, -0.0]] * 2)), "`codes` .*2 zeros.*`codes > 0`"),
    "real values": ({}, update(codes=C * 0.3), r"`codes` .*4 other values.*`codes > 0`.*codes\[0, 0\] = 0.3"),
    "one real value": ({}, update(codes=C + torch.eye(2, 3) * 1e-7), "`codes` .*2 other values"),
    "other integers": ({}, update(codes=C * 255), "`codes` .*4 other values"),
    "255 is not -1": ({}, update(codes=torch.where(C > 0, C, 255).to(torch.uint8)), "`codes` .*other values"),
    "NaN": ({}, update(codes=C * math.nan), "`codes` .*other values"),
    "1-d codes": ({}, update(codes=C[0], labels=L[:1]), r"`codes` .*\(n, bits\), got \(3,\)"),
    "3-d codes": ({}, update(codes=C[None]), r"`codes` .*\(n, bits\), got \(1, 2, 3\)"),
    "no bits": ({}, update(codes=C[:, :0]), r"`codes` .*\(n, bits\), got \(2, 0\)"),
    "list": ({}, update(codes=C.tolist()), "`codes` .*Tensor, got list"),
    "complex": ({}, update(codes=C.cfloat()), "`codes` .*real.*complex64"),
    "packed int64": ({"packed": True}, update(), "`codes` .*uint8.*packed=True, got torch.int64"),
    "packed 1-d": ({"packed": True}, update(codes=C[0].byte()), r"`codes` .*\(n, bytes\), got \(3,\)"),
    "labels too short": ({}, update(labels=L[:1]), r"`labels` .*\(2,\).*\(2, classes\).*got \(1,\)"),
    "labels that would broadcast": ({}, update(labels=L[None]), r"`labels` .*got \(1, 2\)"),
    "3-d labels": ({}, update(labels=C[..., None]), r"`labels` .*got \(2, 3, 1\)"),
    "no classes": ({}, update(labels=C[:, :0]), r"`labels` .*got \(2, 0\)"),
    "float class ids": ({}, update(labels=L.float()), "`labels` .*integer.*float32"),
    "counts as label sets": ({}, update(labels=C * 2), r"`labels` .*0 and 1.*got 2 at position \(0, 0\)"),
    "shares as label sets": ({}, update(labels=C * 0.5), r"`labels` .*0 and 1.*got 0.5 at position \(0, 0\)"),
    "-1 in a label set": ({}, update(labels=-C), r"`labels` .*0 and 1.*got -1 at position \(0, 0\)"),
    "query as an int": ({}, update(query=1), "`query` .*True, False or a bool tensor.*got 1"),
    "query as None": ({}, update(query=None), "`query` .*got None"),
    "query as a list": ({}, update(query=[True, False]), "`query` .*got .*True, False"),
    "query as integers": ({}, update(query=L), r"`query` .*shape \(2,\), got torch.int64"),
    "query too short": ({}, update(query=L[:1] > 0), r"`query` .*shape \(2,\), got torch.bool \(1,\)"),
    "ids too short": ({}, update(ids=L[:1]), r"`ids` .*\(2,\), got \(1,\)"),
    "float ids": ({}, update(ids=L.float()), "`ids` .*integer.*float32"),
    "self without ids": ({"exclude_self": True}, update(), "`ids` .*exclude_self=True"),
    "weights of other columns": (
        {"relevance": "weighted", "label_weights": [1, 2]}, update(labels=C), "`labels` .*2 columns.*got 3",
    ),
    "weights of other classes": (
        {"relevance": "weighted", "label_weights": [1, 2, 3, 4]}, update(), r"`labels` .*0 \.\. 3.*got 4",
    ),
    "weights of negative classes": (
        {"relevance": "weighted", "label_weights": [1, 2, 3, 4]}, update(labels=L - 4), r"`labels` .*0 \.\. 3.*got -1",
    ),
}  # fmt: skip


def bits_of(metric):
    return [(b.dtype, b.tolist()) for b in metric.rows], metric._update_count


@pytest.mark.parametrize(("made", "given", "message"), REFUSED.values(), ids=REFUSED)
def test_a_refused_update_names_the_fault_and_leaves_the_state(made, given, message):
    metric = HashingMAPAtK(**made)
    wide = {"labels": torch.ones(2, 2)} if made.get("label_weights") == [1, 2] else {"labels": torch.tensor([0, 1])}
    good = {"codes": C.byte() if made.get("packed") else C, "ids": torch.tensor([5, 6]), **wide}
    metric.update(**good, query=True)
    metric.update(**good, query=False)
    before = bits_of(metric)
    for call in (metric.update, metric):
        with pytest.raises(ValueError, match=message):
            call(**given)
        assert bits_of(metric) == before
    assert metric.compute() >= 0
    metric.update(**good, query=True)
    assert metric.result().num_duplicates == 2


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (update(), update(codes=torch.ones(2, 70)), "3 bits.*70 bits"),
        (update(codes=torch.ones(2, 64)), update(codes=torch.ones(2, 63)), "63 bits.*64 bits"),
        (update(labels=C), update(labels=C[:, :2]), "2 label.*3 label"),
        (update(labels=C), update(), "one label.*3 label"),
        (update(labels=C[:, :1]), update(), "label.*label"),
    ],
    ids=["bits", "bits of one word", "label sets", "class ids and label sets", "class ids and sets of one label"],
)
def test_different_widths_are_refused_by_name_in_update_and_where_metrics_meet(first, second, message):
    metric, other = HashingMAPAtK(), HashingMAPAtK()
    metric.update(**first)
    refusal = f"`codes` and `labels` .*same width.*{message}"
    with pytest.raises(ValueError, match=refusal):
        metric.update(**{**second, "query": False})
    assert len(metric.result().query) == len(first["codes"])
    other.update(**{**second, "query": False})
    metric.merge_state(other)
    for _ in range(2):
        with pytest.raises(ValueError, match=refusal):
            metric.compute()
    names = ("query_codes", "query_labels", "gallery_codes", "gallery_labels")
    values = (first["codes"], first["labels"], second["codes"], second["labels"])
    with pytest.raises(ValueError, match=message):
        hashing_map(**dict(zip(names, values, strict=True)))


BAD_ARGUMENTS = [
    *(({"relevance": t}, "`relevance` .*got ") for t in (1, 0, 0.0, -0.5, 1.5, math.nan, None, True, "overlap")),
    *(
        ({"relevance": "weighted", "label_weights": value}, "`label_weights` .*finite weights > 0")
        for value in ([1.0, -1], [0.0], [math.nan], [math.inf], [[1.0]], 3.0, ["a"], [1.0, None], "ab")
    ),
    *(({"relevance": r, "label_weights": [1.0]}, "`label_weights` needs .*'weighted'") for r in ("any", "exact", 0.5)),
    *(({"relevance": "weighted", "ties": ties}, f"`relevance`='weighted' .*{ties}") for ties in TIES[1:]),
    ({"relevance": "weighted", "interpolation": "trapezoid"}, "`relevance`='weighted' .*trapezoid"),
    ({"ties": "optimistic", "interpolation": "envelope"}, "`ties`"),
    ({"denominator": "k"}, "`denominator`='k' needs a `top_k`"),
    *(({"top_k": k}, "`top_k`.*" + re.escape(repr(k))) for k in (0, -1, 2.5, True, "all", ())),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS, ids=lambda value: str(value)[:60])
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        HashingMAPAtK(**arguments)
    with pytest.raises(ValueError, match=message):
        hashing_map(C, L, C, L, **arguments)


def test_the_pure_form_needs_both_ids_to_leave_out_self():
    for ids in ({}, {"query_ids": L}, {"gallery_ids": L}):
        with pytest.raises(ValueError, match="`exclude_self`=True needs `query_ids` and `gallery_ids`"):
            hashing_map(C, L, C, L, exclude_self=True, **ids)


def test_several_cut_offs_and_aggregations():
    (qc, ql, _), (gc, gl, _) = (tensors(side) for side in random_items(9))
    value = hashing_map(qc, ql, gc, gl, top_k=[1, 5, 100])
    assert list(value) == ["map@1", "map@5", "map@100"]
    for k in (1, 5, 100):
        assert torch.equal(value[f"map@{k}"], hashing_map(qc, ql, gc, gl, top_k=k))
    ap = HashingMAPAtK()
    for codes, labels, query in ((qc, ql, True), (gc, gl, False)):
        ap.update(codes, labels, query=query)
    assert hashing_map(qc, ql, gc, gl, aggregation="max") == ap.result().ap.max()
    assert hashing_map(qc, ql, gc, gl, aggregation=lambda v: v.median()) == ap.result().ap.median()


# --- radius -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "value", "empty"), [(16, 0.582208, 5), (64, 0.010101, 294)])
@pytest.mark.parametrize("ties", ["expected", "stable"])
def test_precision_within_radius_2_of_the_digits(bits, value, empty, ties):
    data = np.load(tools.DATA / "hashing" / "digits_codes.npz")
    codes, labels = torch.from_numpy(data["codes64"][:, : bits // 8]), torch.from_numpy(data["labels"])
    metric = HashingMAPAtK(packed=True, ties=ties)
    metric.update(codes, labels, query=torch.arange(len(codes)) < 297)
    result = metric.result()
    within = result.precision_within(2)
    assert float(within.mean()) == pytest.approx(value, abs=1e-6)
    assert int((result.distances.total[:, :3].sum(1) == 0).sum()) == empty


@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize("bits", [1, 8, 70])
def test_the_radius_curves_are_those_of_a_plain_loop(bits, exclude_self):
    g = torch.Generator().manual_seed(bits)
    codes, labels = torch.rand(30, bits, generator=g) < 0.5, torch.randint(0, 8, (30,), generator=g)
    labels[3] = 99  # a query without relevant items, once it is left out itself
    metric = HashingMAPAtK(exclude_self=exclude_self)
    metric.update(codes[:9], labels[:9], query=True, ids=torch.arange(9))
    metric.update(codes, labels, query=False, ids=torch.arange(30))
    result = metric.result()
    pairs = [
        [
            (int((codes[q] != codes[i]).sum()), bool(labels[q] == labels[i]))
            for i in range(30)
            if i != q or not exclude_self
        ]
        for q in range(9)
    ]
    precision, recall = result.radius_curve()
    pooled_precision, pooled_recall = result.radius_curve(pooled=True)
    judged = [row for row in pairs if any(hit for _, hit in row)]
    everything = [pair for row in pairs for pair in row]
    for radius in range(bits + 1):  # the last radius is the number of bits (H07)
        share = lambda row, of: sum(h for d, h in row if d <= radius) / max(of(row), 1)  # noqa: B023, E731
        inside = lambda row: sum(d <= radius for d, _ in row)  # noqa: B023, E731
        hits = lambda row: sum(h for _, h in row)  # noqa: E731
        each = [share(row, inside) for row in pairs]
        assert result.precision_within(radius).tolist() == pytest.approx(each, abs=1e-15)
        assert float(precision[radius]) == pytest.approx(sum(each) / len(each), abs=1e-15)
        assert float(recall[radius]) == pytest.approx(sum(share(row, hits) for row in judged) / len(judged), abs=1e-15)
        assert float(pooled_precision[radius]) == pytest.approx(share(everything, inside), abs=1e-15)
        assert float(pooled_recall[radius]) == pytest.approx(share(everything, hits), abs=1e-15)
    assert len(precision) == bits + 1


def test_a_radius_is_a_whole_number_of_a_hashing_result():
    metric = HashingMAPAtK()
    metric.update(torch.ones(2, 4), torch.tensor([0, 1]), query=torch.tensor([True, False]))
    for radius in (-1, 1.5, True, None):
        with pytest.raises(ValueError, match=r"`radius` .*0 or more"):
            metric.result().precision_within(radius)
    retrieval = RetrievalMAP()
    retrieval.update(torch.ones(1, 2), torch.ones(1, 2))
    for call in (lambda: retrieval.result().precision_within(2), retrieval.result().radius_curve):
        with pytest.raises(ValueError, match="hashing metric"):
            call()


def test_weights_of_classes_are_not_rounded_to_float32():
    code, label = torch.ones(1, 4), torch.tensor([1])
    value = hashing_map(code, label, code, label, relevance="weighted", label_weights=[0.7, 0.1])
    assert float(value) == 0.1


@pytest.mark.parametrize("relevance", ["any", "weighted"])
@pytest.mark.parametrize("top_k", [None, 4])
def test_chance_is_the_value_of_codes_that_say_nothing(relevance, top_k):
    g = torch.Generator().manual_seed(0)
    codes, labels = torch.rand(20, 12, generator=g) < 0.5, torch.rand(20, 3, generator=g) < 0.4
    weights = [0.7, 2.0, 0.1] if relevance == "weighted" else None
    kwargs = {"relevance": relevance, "label_weights": weights, "top_k": top_k}
    metric = HashingMAPAtK(**kwargs)
    metric.update(codes, labels, query=torch.arange(20) < 6)
    constant = torch.ones(20, 12)
    close(metric.result().chance, float(hashing_map(constant[:6], labels[:6], constant[6:], labels[6:], **kwargs)))


@pytest.mark.parametrize("bits", [255, 256, 257, 2**15 - 1, 2**15, 2**16 + 1])
@pytest.mark.parametrize("ties", ["expected", "stable"])
def test_the_largest_distance_of_any_width_is_counted(bits, ties):
    gallery = torch.stack([torch.zeros(bits), torch.ones(bits), (torch.arange(bits) == 0).float()])
    value = hashing_map(torch.zeros(1, bits), torch.tensor([7]), gallery, torch.tensor([7, 7, 3]), ties=ties)
    close(value, (1 + 2 / 3) / 2)
