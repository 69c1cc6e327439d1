"""Each preset against the tool, or a plain port of the tool, that it names."""

import inspect
import json
import random

import numpy as np
import pytest
import pytrec_eval
import torch
import torchmetrics.retrieval
from oracles import tools

from map_metrics import HashingMAPAtK, RetrievalMAP, presets
from map_metrics.functional import hashing_map, retrieval_map

NAMES = {"TREC", "KAGGLE", "HASHING", "TORCHMETRICS", "MARKET1501", "TORCHREID", "REVISITED_OXFORD", "MAP_AT_R"}


def test_presets_are_plain_arguments_of_the_metric():
    found = {name: value for name, value in vars(presets).items() if name.isupper()}
    assert found.keys() == NAMES
    for preset in found.values():
        assert json.loads(json.dumps(preset)) == preset
        conventions = vars(RetrievalMAP(**preset).conventions)
        assert {name: conventions[name] for name in preset} == preset
        assert preset.keys() <= inspect.signature(RetrievalMAP).parameters.keys()


# --- trec_eval's own files --------------------------------------------------------------------------------------------

GOLDEN = {  # expected values: judgments, grade that counts as relevant, run, only the first so many
    "out.test.aq": ("qrels.test", 1, "results.test", None),
    "out.test.aqc": ("qrels.test", 1, "results.trunc", None),
    "out.test.aqcM": ("qrels.test", 1, "results.trunc", 100),
    "out.test.aql": ("qrels.rel_level", 2, "results.test", None),
}
CUTS = (5, 10, 15, 20, 30, 100, 200, 500, 1000)


def trec_rows(qrels, level, run):
    """Ids sort as trec_eval does, by document name descending; a query that the run lacks has found nothing."""
    judged, lines = tools.read_qrels(qrels, level), tools.read_run(run)
    missing = judged.keys() - {query for query, _, _ in lines}
    lines += [(query, "none", -float("inf")) for query in missing]
    place = {name: i for i, name in enumerate(sorted({document for _, document, _ in lines}, reverse=True))}
    return {
        "preds": torch.tensor([score for _, _, score in lines], dtype=torch.float64),
        "target": torch.tensor([judged[query].get(document, False) for query, document, _ in lines]),
        "indexes": torch.tensor([int(query) for query, _, _ in lines]),
        "ids": torch.tensor([place[document] for _, document, _ in lines]),
        "num_relevant": torch.tensor([sum(judged[query].values()) for query, _, _ in lines]),
    }


@pytest.mark.parametrize("golden", GOLDEN)
def test_trec_eval_prints_these_values(golden):
    *files, first = GOLDEN[golden]
    expected, rows = tools.read_values(golden), trec_rows(*files)
    for measure, k in {"map": first, **{f"map_cut_{k}": min(k, first or k) for k in CUTS}}.items():
        metric = RetrievalMAP(**presets.TREC, top_k=k)
        metric.update(**rows)
        values = dict(zip(metric.result().query.tolist(), metric.result().ap.tolist(), strict=True))
        assert sorted(values) == [301, 302, 303]
        for query, value in values.items():
            assert value == pytest.approx(expected[measure, str(query)], abs=5.0001e-5)
        assert float(metric.compute()) == pytest.approx(expected[measure, "all"], abs=5.0001e-5)


def test_trec_eval_orders_equal_scores_by_name_descending():
    """d9 before d10: names, not numbers; pytrec_eval is trec_eval's code."""
    rng = random.Random(0)
    for _ in range(30):
        names = [f"d{i}" for i in range(12)]
        run = {name: rng.choice([0.5, 1.0, 2.0]) for name in names}
        judged = {name: int(rng.random() < 0.4) for name in names}
        judged["d3"] = 1
        value = pytrec_eval.RelevanceEvaluator({"q": judged}, {"map"}).evaluate({"q": run})["q"]["map"]
        place = {name: i for i, name in enumerate(sorted(names, reverse=True))}
        columns = [[run[n] for n in names], [judged[n] for n in names], [1] * 12]
        ids = torch.tensor([place[n] for n in names])
        ours = retrieval_map(*map(torch.tensor, columns), ids=ids, **presets.TREC)
        assert float(ours) == pytest.approx(value, abs=1e-12)


# --- lists ------------------------------------------------------------------------------------------------------------


def random_lists(seed, count=60):
    """Ranked lists of 0 and 1, some without a hit, and the number of relevant items in all."""
    rng = random.Random(seed)
    lists = [
        [int(rng.random() < share) for _ in range(rng.randint(1, 20))] for share in (0, 0.1, 0.5, 1) * (count // 4)
    ]
    return [(ranked, sum(ranked) + rng.choice([0, 0, 3])) for ranked in lists]


def of_lists(lists, tied=False, **conventions):
    """The metric of the lists, as rows: by falling scores, or all tied in the order of the rows."""
    metric = RetrievalMAP(**conventions)
    for query, (ranked, known) in enumerate(lists):
        n = len(ranked)
        scores = torch.zeros(n) if tied else torch.arange(n, 0, -1)
        metric.update(scores, torch.tensor(ranked), torch.full((n,), query), num_relevant=torch.full((n,), known))
    return metric


def assert_values(metric, expected):
    """Query by query (None: left out), and the mean."""
    kept = [value for value in expected if value is not None]
    ap = [None if value != value else value for value in metric.result().ap.tolist()]
    assert [value is None for value in ap] == [value is None for value in expected]
    assert [value for value in ap if value is not None] == pytest.approx(kept, abs=1e-12)
    assert float(metric.compute()) == pytest.approx(sum(kept) / len(kept), abs=1e-12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("k", [1, 5, 10, 100])
def test_kaggle(k, tied):
    lists, expected = random_lists(1), []
    for ranked, known in lists:
        actual = [i for i, hit in enumerate(ranked) if hit]
        actual += [-1 - i for i in range(known - len(actual))]
        expected.append(tools.kaggle_apk(actual, list(range(len(ranked))), k))
    assert_values(of_lists(lists, tied, **presets.KAGGLE, top_k=k), expected)


@pytest.mark.parametrize("tied", [False, True])
def test_map_at_r(tied):
    lists = random_lists(2)
    expected = [tools.map_at_r(ranked, known) if known else None for ranked, known in lists]
    assert None in expected
    assert_values(of_lists(lists, tied, **presets.MAP_AT_R), expected)


@pytest.mark.parametrize("tied", [False, True])
def test_revisited_oxford(tied):
    """Junk is removed and the ranks of the positives move up; a query without positives is left out."""
    rng, lists, expected = random.Random(3), [], []
    for ranked, _ in random_lists(3):
        junk = [rng.random() < 0.2 for _ in ranked]
        kept = [hit for hit, is_junk in zip(ranked, junk, strict=True) if not is_junk]
        positives = [rank for rank, hit in enumerate(kept) if hit]
        if kept:
            lists.append(([-1 if j else hit for hit, j in zip(ranked, junk, strict=True)], len(positives)))
            expected.append(tools.oxford_ap(positives, len(positives)) if positives else None)
    assert_values(of_lists(lists, tied, **presets.REVISITED_OXFORD, ignore_index=-1), expected)


@pytest.mark.parametrize("k", [None, 1, 4, 50])
def test_torchmetrics_on_untied_scores_above_0(k):
    rng = torch.Generator().manual_seed(0)
    n = 1500
    query = torch.randint(60, (n,), generator=rng)
    scores = (torch.randperm(n, generator=rng) + 1) / 2048
    target = torch.rand(n, generator=rng) < torch.rand(60, generator=rng)[query] ** 2
    target[query == 7] = False
    host, ours = torchmetrics.retrieval.RetrievalMAP(top_k=k), RetrievalMAP(**presets.TORCHMETRICS, top_k=k)
    for part in torch.arange(n).split(400):
        host.update(scores[part], target[part], indexes=query[part])
        ours.update(scores[part], target[part], indexes=query[part])
    assert float(ours.compute()) == pytest.approx(float(host.compute()), abs=1e-6)


# --- hashing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 10, 25, 60])
def test_hashing_where_no_distances_are_equal(k):
    """Gallery code i holds i ones: all distances to no and to only ones differ."""
    rng = np.random.default_rng(k)
    gallery = np.tril(np.ones((64, 64), int), -1)[rng.permutation(64)] * 2 - 1
    queries = np.array([[-1] * 64, [1] * 64])
    labels = rng.integers(0, 2, (66, 3))
    expected = tools.calc_top_map(queries, gallery, labels[:2], labels[2:], k)
    arguments = [torch.from_numpy(x) for x in (queries, labels[:2], gallery, labels[2:])]
    assert float(hashing_map(*arguments, **presets.HASHING, top_k=k)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("k", [1, 10, 100, 1000])
def test_hashing_in_the_order_of_the_gallery_is_the_published_code(k):
    rng = np.random.default_rng(k)
    codes, labels = rng.integers(0, 2, (330, 8)) * 2 - 1, np.eye(12, dtype=int)[rng.integers(0, 12, 330)]
    labels[:30] = np.eye(13, dtype=int)[rng.integers(0, 13, 30), :12]  # some queries without a label
    expected = tools.calc_top_map(codes[:30], codes[30:], labels[:30], labels[30:], k)
    metric = HashingMAPAtK(**{**presets.HASHING, "ties": "stable"}, top_k=k)
    metric.update(torch.from_numpy(codes), torch.from_numpy(labels), query=torch.arange(330) < 30)
    assert float(metric.compute()) == pytest.approx(expected, abs=1e-12)


# --- re-identification ------------------------------------------------------------------------------------------------

DATA = np.load(tools.DATA / "reid_synthetic.npz")
EXPECTED = tools.EXPECTED["reid_synthetic"]
SAME = DATA["g_pid"][None] == DATA["q_pid"][:, None]
SEEN = SAME & (DATA["g_cam"][None] == DATA["q_cam"][:, None])


def reid(junk, **conventions):
    """The metric of distances, where junk is removed."""
    target = torch.from_numpy(np.where(junk, -1, SAME))
    metric = RetrievalMAP(**conventions, ignore_index=-1, largest=False)
    metric.update(torch.from_numpy(DATA["dist"]), target)
    return metric


def test_market1501():
    junk = SEEN | (DATA["g_pid"] == -1)
    expected = []
    for distance, same, out in zip(DATA["dist"], SAME, junk, strict=True):
        good, bad = set(np.flatnonzero(same & ~out).tolist()), set(np.flatnonzero(out).tolist())
        expected.append(tools.market1501_ap(good, bad, np.argsort(distance, kind="stable").tolist()))
    metric = reid(junk, **presets.MARKET1501)
    assert_values(metric, expected)
    assert expected[0] == 0.0
    assert float(metric.compute()) == pytest.approx(
        EXPECTED["Market-1501 official (trapezoid, query 0 counts 0)"], abs=1e-6
    )


def test_torchreid():
    columns = zip(DATA["dist"], DATA["q_pid"], DATA["q_cam"], strict=True)
    expected = [tools.torchreid_ap(*row, DATA["g_pid"], DATA["g_cam"]) for row in columns]
    assert expected[0] is None
    assert_values(reid(SEEN, **presets.TORCHREID), expected)


@pytest.mark.parametrize(("ties", "name"), [("stable", "stable order"), ("expected", "expected")])
def test_torchreid_without_distractors(ties, name):
    metric = reid(SEEN | (DATA["g_pid"] == -1), **{**presets.TORCHREID, "ties": ties})
    assert float(metric.compute()) == pytest.approx(EXPECTED["junk and -1 removed, query 0 skipped"][name], abs=1e-6)
