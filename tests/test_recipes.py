"""The recipes of the documentation: a page shows what its file prints, and the numbers are those of tools and loops."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
import torch
from oracles import brute, tools
from sklearn.metrics import average_precision_score
from torchmetrics.retrieval import RetrievalMAP as HostMAP

ROOT = Path(__file__).parents[1]
PAGES = {path.stem: path for path in (ROOT / "docs" / "recipes").glob("*.md") if path.stem != "index"}
NAMES = ["cross-modal", "hashing-paper", "reidentification", "revisited-oxford", "why-different"]


@functools.cache
def recipe(name: str) -> tuple[dict[str, Any], str]:
    """A recipe run as a script: its global names, and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        space = runpy.run_path(str(ROOT / "examples" / f"recipe_{name.replace('-', '_')}.py"), run_name="__main__")
    return space, printed.getvalue()


@functools.cache
def numbers(name: str) -> dict[str, float]:
    """What its main() returns."""
    space, _ = recipe(name)
    with contextlib.redirect_stdout(io.StringIO()):
        return space["main"]()


# --- pages ------------------------------------------------------------------------------------------------------------


def test_every_recipe_has_a_page_and_every_page_a_recipe():
    files = sorted(path.stem[len("recipe_") :].replace("_", "-") for path in (ROOT / "examples").glob("recipe_*.py"))
    assert files == sorted(PAGES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_recipe_and_what_it_prints(name):
    page, (_, printed) = PAGES[name].read_text(), recipe(name)
    assert re.findall(r"^```text\n(.*?)^```$", page, re.M | re.S) == [printed]
    file = f"examples/recipe_{name.replace('-', '_')}.py"  # braces: the fence is neither run nor formatted as Python
    assert f'\n``` {{ .python title="{file}" }}\n--8<-- "{file}"\n```\n' in page


@pytest.mark.parametrize("name", NAMES)
def test_a_number_quoted_in_the_text_of_a_page_is_one_that_the_recipe_prints(name):
    text = re.sub(r"^```.*?^```$", "", PAGES[name].read_text(), flags=re.M | re.S)
    values = {round(value, 6) for value in numbers(name).values()}
    for quoted in re.findall(r"\b0\.\d{3,}", text):
        digits = len(quoted) - 2
        assert any(f"{value:.{digits}f}" == quoted for value in values), quoted


@pytest.mark.parametrize("name", NAMES)
def test_main_returns_the_numbers_that_it_prints(name):
    _, printed = recipe(name)
    shown = [float(number) for number in re.findall(r"(?<![\w.@-])\d+(?:\.\d{6})?(?![\w])", printed)]
    for key, value in numbers(name).items():
        assert round(value, 6) in shown, key


@pytest.mark.parametrize("name", ["reid_synthetic.npz", "digits_codes.npz"])
def test_the_data_are_those_of_the_tests(name):
    (original,) = (ROOT / "tests" / "data" / "retrieval").rglob(name)
    assert (ROOT / "examples" / "data" / name).read_bytes() == original.read_bytes()


# --- re-identification ------------------------------------------------------------------------------------------------


def test_reidentification():
    found, published = numbers("reidentification"), tools.EXPECTED["reid_synthetic"]
    removed = published["junk and -1 removed, query 0 skipped"]
    official = published["Market-1501 official (trapezoid, query 0 counts 0)"]
    assert found["Market-1501, official: mAP"] == pytest.approx(official, abs=5e-7)
    assert found["torchreid, id -1 removed: mAP"] == pytest.approx(removed["stable order"], abs=5e-7)
    assert found["the same, ties in expectation: mAP"] == pytest.approx(removed["expected"], abs=5e-7)


def test_reidentification_against_ports_of_both_tools():
    """Rank-1 too: the first item that is not junk, over all queries or over those with a match."""
    with np.load(tools.DATA / "reid_synthetic.npz") as file:
        d, q_pid, q_cam, g_pid, g_cam = (file[key] for key in ("dist", "q_pid", "q_cam", "g_pid", "g_cam"))
    clean = g_pid != -1
    official, noisy, removed, first = [], [], [], {"official": [], "noisy": [], "removed": []}
    for row, pid, cam in zip(d, q_pid, q_cam, strict=True):
        order = np.argsort(row, kind="stable")
        good = set(np.flatnonzero((g_pid == pid) & (g_cam != cam)))
        junk = set(np.flatnonzero((g_pid == pid) & (g_cam == cam)))
        bad = junk | set(np.flatnonzero(~clean))
        official.append(tools.market1501_ap(good, bad, order))
        noisy.append(tools.torchreid_ap(row, pid, cam, g_pid, g_cam))
        removed.append(tools.torchreid_ap(row[clean], pid, cam, g_pid[clean], g_cam[clean]))
        for name, left_out in (("official", bad), ("noisy", junk), ("removed", bad)):
            if good or name == "official":
                first[name].append(next(item for item in order if item not in left_out) in good)
    assert noisy[0] is None is removed[0]
    found = numbers("reidentification")
    rows = {"Market-1501, official": official, "torchreid, id -1 left in": noisy, "torchreid, id -1 removed": removed}
    for (row, values), ranks in zip(rows.items(), first.values(), strict=True):
        kept = [value for value in values if value is not None]
        assert found[f"{row}: mAP"] == pytest.approx(math.fsum(kept) / len(kept), abs=1e-12)
        assert found[f"{row}: rank-1"] == pytest.approx(sum(ranks) / len(ranks), abs=1e-12)
    assert len({round(value, 4) for key, value in found.items() if "mAP" in key}) == 4


# --- image and text ---------------------------------------------------------------------------------------------------


def plain_map(scores: np.ndarray, relevant: np.ndarray) -> float:
    """Mean of AP = (1/R) sum over hits of hits so far / rank, by a loop; every query has a relevant item."""
    total = 0.0
    for row, target in zip(scores, relevant, strict=True):
        ranks = [rank for rank, item in enumerate(np.argsort(-row, kind="stable"), 1) if target[item]]
        total += sum(hits / rank for hits, rank in enumerate(ranks, 1)) / len(ranks)
    return total / len(scores)


def test_cross_modal():
    space, _ = recipe("cross-modal")
    images, captions, category = (part.numpy() for part in space["encoders"]())
    similarity = images.astype(np.float64) @ captions.T.astype(np.float64)
    image_of = np.arange(len(captions)) // 5
    own = np.arange(len(images))[:, None] == image_of
    alike = category[:, None] == category[image_of]
    found = numbers("cross-modal")
    for relevance, target in (("pair", own), ("category", alike)):
        for direction, scores, relevant in (
            ("image -> text", similarity, target),
            ("text -> image", similarity.T, target.T),
        ):
            expected = plain_map(scores, relevant)
            assert found[f"{direction}, {relevance} relevance"] == pytest.approx(expected, abs=1e-12)
            known, size = int(relevant[0].sum()), scores.shape[1]
            chance = brute.expected([(size, known)])
            assert found[f"{direction}, {relevance} relevance, chance"] == pytest.approx(chance, abs=1e-12)
            if relevance == "pair":
                assert found[f"{direction}, pair, embeddings"] == pytest.approx(expected, abs=1e-6)
    assert found["image -> text, category relevance"] > 2 * found["image -> text, pair relevance"]


def test_one_relevant_item_makes_ap_the_reciprocal_rank():
    space, _ = recipe("cross-modal")
    images, captions, _ = space["encoders"]()
    similarity = captions.double() @ images.double().T
    own = similarity[torch.arange(1000), torch.arange(1000) // 5]
    rank = (similarity >= own[:, None]).sum(1).double()
    value = numbers("cross-modal")["text -> image, pair relevance"]
    assert value == pytest.approx(float((1 / rank).mean()), abs=1e-12)


# --- revisited Oxford -------------------------------------------------------------------------------------------------


def revisited_map(gnd: list[dict[str, np.ndarray]], ranks: np.ndarray) -> tuple[float, int]:
    """The mean over queries with positives, and their number; ranks (images, queries), `gnd` with `ok` and `junk`."""
    values = []
    for query, lists in enumerate(gnd):
        ok, junk = set(lists["ok"].tolist()), set(lists["junk"].tolist())
        if not ok:
            continue
        positions, ahead = [], 0
        for position, image in enumerate(ranks[:, query].tolist()):
            if image in junk:
                ahead += 1
            elif image in ok:
                positions.append(position - ahead)
        values.append(tools.oxford_ap(positions, len(ok)))
    return sum(values) / len(values), len(values)


def test_revisited_oxford():
    gnd, similarity = recipe("revisited-oxford")[0]["ground_truth"]()
    ranks = np.argsort(-similarity.numpy(), axis=0)
    lists = [{name: part.numpy() for name, part in query.items()} for query in gnd]
    none = np.zeros(0, int)

    def joined(query, *names):
        return np.concatenate([none, *(query[name] for name in names)])

    protocols = {
        "Easy": [{"ok": joined(q, "easy"), "junk": joined(q, "junk", "hard")} for q in lists],
        "Medium": [{"ok": joined(q, "easy", "hard"), "junk": joined(q, "junk")} for q in lists],
        "Hard": [{"ok": joined(q, "hard"), "junk": joined(q, "junk", "easy")} for q in lists],
    }
    found = numbers("revisited-oxford")
    for name, judged in protocols.items():
        value, counted = revisited_map(judged, ranks)
        assert found[f"{name}: mAP"] == pytest.approx(value, abs=1e-12)
        assert found[f"{name}: queries"] == counted
    assert found["Easy: queries"] < found["Hard: queries"] == len(gnd)


# --- hashing papers ---------------------------------------------------------------------------------------------------


def hashing_loop(bits: int, storage: np.ndarray, k: int) -> float:
    """A paper's loop: sort by distance as stored, cut at k, mean precision at the hits among those."""
    with np.load(tools.DATA / "hashing" / "digits_codes.npz") as file:
        codes, labels = np.unpackbits(file["codes64"], axis=1)[:, :bits], file["labels"]
    total = 0.0
    for query in range(297):
        distance = (codes[storage] != codes[query]).sum(1).tolist()
        hits, precisions = 0, []
        for rank, place in enumerate(sorted(range(len(storage)), key=distance.__getitem__)[:k], 1):
            if labels[storage[place]] == labels[query]:
                hits += 1
                precisions.append(hits / rank)
        total += sum(precisions) / len(precisions) if precisions else 0.0
    return total / 297


def test_hashing_paper():
    found = numbers("hashing-paper")
    expected = {
        "mAP@5000, mean over ties": "map@all /R expected",
        "mAP@5000, the worst order": "map@all /R pessimistic",
        "mAP@5000, the best order": "map@all /R optimistic",
        "mAP@5000, stored as it came": "map@all stable argsort by index",
        "mAP@100, over hits (papers)": "map@100 /hits expected",
        "mAP@100, over all relevant": "map@100 /R expected",
        "precision within radius 2": "precision H<=2 (empty ball = 0)",
    }
    for bits in (16, 64):
        published = tools.EXPECTED[f"hashing/digits {bits} bits, first 297 query vs the other 1500"]
        for row, name in expected.items():
            assert found[f"{row}, {bits} bits"] == pytest.approx(published[name], abs=6e-7), (row, bits)


def test_hashing_paper_against_the_loop():
    """Stable ties are the loop, also when the gallery is stored class by class."""
    found = numbers("hashing-paper")
    with np.load(tools.DATA / "hashing" / "digits_codes.npz") as file:
        labels = file["labels"]
    by_class = np.array(sorted(range(297, len(labels)), key=lambda item: labels[item]))
    value = hashing_loop(16, by_class, 5000)
    assert found["mAP@5000, stored by class, 16 bits"] == pytest.approx(value, abs=1e-12)
    as_it_came = hashing_loop(64, np.arange(297, len(labels)), 5000)
    assert found["mAP@5000, stored as it came, 64 bits"] == pytest.approx(as_it_came, abs=1e-12)


def test_hashing_paper_with_the_queries_in_the_gallery():
    """All 1,797 digits are the gallery; at each distance count items and relevant ones, with and without self."""
    found = numbers("hashing-paper")
    with np.load(tools.DATA / "hashing" / "digits_codes.npz") as file:
        codes, labels = np.unpackbits(file["codes64"], axis=1)[:, :16], file["labels"]
    for row, excluded in (("queries in the gallery", False), ("the same, self excluded by id", True)):
        values = []
        for query in range(297):
            distance = (codes != codes[query]).sum(1)
            kept = np.arange(len(codes)) != query if excluded else np.ones(len(codes), bool)
            alike = labels == labels[query]
            groups = [
                (int((kept & at).sum()), int((kept & at & alike).sum())) for at in distance == np.arange(17)[:, None]
            ]
            values.append(brute.expected(groups))
        (name,) = (name for name in found if row in name and name.endswith("16 bits"))
        assert found[name] == pytest.approx(math.fsum(values) / 297, abs=1e-12)


# --- tool X -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranking() -> tuple[list[float], list[int], list[str]]:
    """Scores, relevance and names of the ten documents."""
    space, _ = recipe("why-different")
    return space["SCORES"].tolist(), space["RELEVANT"].tolist(), space["DOCUMENTS"]


def test_trec_eval(ranking):
    scores, relevant, names = ranking
    qrels, run = {"q": dict(zip(names, relevant, strict=True))}, {"q": dict(zip(names, scores, strict=True))}
    values = pytrec_eval.RelevanceEvaluator(qrels, {"map", "map_cut.3"}).evaluate(run)["q"]
    found = numbers("why-different")
    assert found["trec_eval map"] == pytest.approx(values["map"], abs=1e-12)
    assert found["trec_eval map_cut_3, ranx map@3"] == pytest.approx(values["map_cut_3"], abs=1e-12)


def test_ranx(ranking):
    scores, relevant, names = ranking
    qrels, run = {"q": dict(zip(names, relevant, strict=True))}, {"q": dict(zip(names, scores, strict=True))}
    value = tools.ranx(qrels, run, ["map@3", "map@10"])["map@3"]["q"]  # of one measure alone it returns no dict
    assert numbers("why-different")["trec_eval map_cut_3, ranx map@3"] == pytest.approx(value, abs=1e-12)


def test_torchmetrics(ranking):
    scores, relevant, _ = ranking
    value = HostMAP(top_k=3)(torch.tensor(scores), torch.tensor(relevant), indexes=torch.zeros(10, dtype=torch.long))
    found = numbers("why-different")["torchmetrics top_k=3, hashing papers"]
    assert found == pytest.approx(float(value), abs=1e-6)  # torchmetrics computes in float32
    paper = tools.calc_top_map(*hamming(scores), np.ones((1, 1)), np.array(relevant)[:, None], 3)
    assert found == pytest.approx(paper, abs=1e-12)


def hamming(scores: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Codes of +-1 of a query and of items whose distances rank them as the scores do."""
    query = np.ones((1, 10))
    items = np.array([[-1.0 if bit < 9 - score else 1.0 for bit in range(10)] for score in scores])
    return query, items


def test_scikit_learn(ranking):
    scores, relevant, _ = ranking
    value = average_precision_score(relevant, scores)
    assert numbers("why-different")["scikit-learn average_precision_score"] == pytest.approx(value, abs=1e-12)


def test_ports_of_formulas(ranking):
    _, relevant, names = ranking
    found = numbers("why-different")
    hits = [rank for rank, hit in enumerate(relevant) if hit]
    kaggle = tools.kaggle_apk([names[rank] for rank in hits], names, 3)
    assert found["Kaggle MAP@3, sentence-transformers"] == pytest.approx(kaggle, abs=1e-12)
    assert found["MAP@R, pytorch-metric-learning"] == pytest.approx(tools.map_at_r(relevant, 5), abs=1e-12)
    for trapezoid in (tools.oxford_ap(hits, 5), tools.market1501_ap(hits, [], range(10))):
        assert found["revisited Oxford, Market-1501"] == pytest.approx(trapezoid, abs=1e-12)


def test_every_order_of_the_tied_five():
    groups = [(1, 1), (1, 0), (1, 1), (1, 1), (1, 0), (5, 2)]
    mean, most, least = brute.over_orders(list(brute.orders(groups)), 5, [None])[None, "relevant"]
    found = numbers("why-different")
    assert found["map_metrics, mean over all orders"] == pytest.approx(float(mean), abs=1e-12)
    assert found["pessimistic order"] == pytest.approx(float(least), abs=1e-12)
    assert found["optimistic order"] == pytest.approx(float(most), abs=1e-12)


def test_eight_tools_print_eight_numbers():
    names = recipe("why-different")[0]["NAMES"]
    assert len({round(numbers("why-different")[name], 4) for name in names}) == len(names) == 8
