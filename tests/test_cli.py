"""The command line: equal to the official tools on their own files, and one line for every mistake."""

from __future__ import annotations

import ast
import inspect
import json
import os
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from map_metrics import DetectionMAP, EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP, cli, commands
from map_metrics.conventions import AGGREGATIONS, DENOMINATORS, EMPTY_ACTIONS, TIES_OF
from map_metrics.detection.protocols import PROTOCOLS
from map_metrics.readers import read_trec

DATA = Path(__file__).parent / "data"
TREC, DETECTION = DATA / "retrieval" / "trec_eval_test", DATA / "detection"
COCO100 = DETECTION / "coco100"
EXPECTED = json.loads((DETECTION / "expected_values.json").read_text())
CODES = [DATA / "retrieval" / "hashing" / "digits_codes.npz", "--data", "codes64", "--packed", "--num-queries", "297"]
CUTS = (5, 10, 15, 20, 30, 100, 200, 500, 1000)


def call(capsys, *words) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process."""
    try:
        code = cli.main([str(word) for word in words])
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


def tsv(text: str) -> dict[tuple[str, str], float]:
    """(measure, of what) -> value."""
    cells = [line.split("\t") for line in text.splitlines()]
    assert all(len(line) == 3 for line in cells)
    return {(measure, of): float(value) for measure, of, value in cells}


# --- the tools' own files, through the real command -------------------------------------------------------------------

TRUTH = COCO100 / "instances_val2014_100.json"
COMMANDS = {
    "aqcM": [
        *("retrieval", TREC / "qrels.test", TREC / "results.trunc", "--max-documents", "100", "--preset", "trec"),
        *("--top-k", *CUTS, "--per-query", "--format", "tsv"),
    ],
    "aql": [
        *("retrieval", TREC / "qrels.rel_level", TREC / "results.test", "--level", "2", "--preset", "trec"),
        *("--per-query", "--format", "tsv"),
    ],
    "bbox": ["detection", TRUTH, COCO100 / "instances_val2014_fakebbox100_results.json"],
    "segm": ["detection", TRUTH, COCO100 / "instances_val2014_fakesegm100_results.json", "--iou-type", "segm"],
    "podm": [
        "detection",
        DETECTION / "podm_sample/groundtruths_coco.json",
        DETECTION / "podm_sample/detections_coco.json",
    ],
    "cartucho": ["detection", DETECTION / "cartucho/ground-truth", DETECTION / "cartucho/detection-results"],
    "padilla7": ["detection", DETECTION / "padilla7/groundtruths", DETECTION / "padilla7/detections"],
    "wrong": ["retrieval", TREC / "qrels.test", TREC / "qrels.test"],
}
COMMANDS["podm"] += ["--format", "json"]
COMMANDS["cartucho"] += ["--protocol", "voc2012", "--per-class", "--format", "json"]
COMMANDS["padilla7"] += ["--protocol", "voc2012", "--box-format", "xywh", "--iou-thresholds", "0.3", "--format", "tsv"]


def command(words) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "map_metrics", *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def done() -> dict[str, subprocess.CompletedProcess]:
    """Two at a time: a start costs seconds, for the import of torch."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(COMMANDS, pool.map(command, COMMANDS.values()), strict=True))


def output(done, name) -> str:
    assert done[name].returncode == 0, done[name].stderr
    assert done[name].stderr == ""
    return done[name].stdout


def agrees(text: str, golden: str, measures: dict[str, str]) -> None:
    """What is found is what trec_eval prints, with four decimals, for each query and for all."""
    lines = (TREC / f"out.test.{golden}").read_text().splitlines()
    printed, found = {(f[0], f[1]): f[2] for f in map(str.split, lines)}, tsv(text)
    for ours, theirs in measures.items():
        for query in ("301", "302", "303", "all"):
            assert f"{found[ours, query]:.4f}" == printed[theirs, query], (ours, query)
    for query in ("301", "302", "303"):
        assert found["num_relevant", query] == int(printed["num_rel", query])


CUT_OFF = {f"map@{k}": f"map_cut_{k}" for k in CUTS}


def test_trec_evals_own_files(done):
    """A cut behind the last document is none."""
    agrees(output(done, "aqcM"), "aqcM", {**CUT_OFF, "map@1000": "map"})
    agrees(output(done, "aql"), "aql", {"map": "map"})


@pytest.mark.parametrize(("golden", "run"), [("aq", "results.test"), ("aqc", "results.trunc")])
def test_more_of_trec_evals_own_files(capsys, golden, run):
    words = ("retrieval", TREC / "qrels.test", TREC / run, "--preset", "trec", "--per-query", "--format", "tsv")
    agrees(call(capsys, *words)[1], golden, {"map": "map"})
    agrees(call(capsys, *words, "--top-k", *CUTS)[1], golden, CUT_OFF)


@pytest.mark.parametrize("name", ["bbox", "segm"])
def test_the_tables_of_cocoapi(done, name):
    """Its file holds a table for each type, and one space less."""
    tables = (COCO100 / "val2014_fake_eval_res.txt").read_text().split("type=")
    table = next(part for part in tables if part.startswith(name))
    expected = re.findall(r"^ *(Average .*\])", table, re.M), re.findall(r"\] = ([0-9.]+)", table)
    lines = output(done, name).splitlines()[:12]
    assert [re.sub(" +", " ", line.partition("] =")[0]) for line in lines] == [
        " " + re.sub(" +", " ", text.removesuffix("]")) for text in expected[0]
    ]
    assert [line.rpartition("= ")[2] for line in lines] == expected[1]


def test_podm_sample(done):
    """To the last bit."""
    value = json.loads(output(done, "podm"))["value"]
    assert list(value.values()) == list(EXPECTED["podm_sample/bbox"].values())


def test_cartucho(done):
    content, expected = json.loads(output(done, "cartucho")), EXPECTED["cartucho/voc_plus1_all"]
    assert content["value"]["map"] == pytest.approx(expected["mAP"], abs=1e-12)
    found = {row["class"]: row["ap"] for row in content["classes"] if row["ground_truths"]}
    assert found == pytest.approx(expected["per_class"], abs=1e-12)


def test_padilla7(done, capsys):
    expected = EXPECTED["padilla7/voc_plus1"]["0.3"]
    assert tsv(output(done, "padilla7"))["map", "all"] == pytest.approx(expected["all"], abs=1e-12)
    words = ["voc2007" if word == "voc2012" else word for word in COMMANDS["padilla7"]]
    assert tsv(call(capsys, *words)[1])["map", "all"] == pytest.approx(expected["p11"], abs=1e-12)


def test_keypoints(capsys):
    """xtcocoapi prints the recalls at single overlaps too."""
    folder, expected = DETECTION / "keypoints", EXPECTED["keypoints/oks"]
    words = (
        "detection",
        folder / "example_coco_val.json",
        folder / "example_coco_preds.json",
        "--iou-type",
        "keypoints",
    )
    value = json.loads(call(capsys, *words, "--format", "json")[1])["value"]
    assert list(value.values()) == [expected[key] for key in ("AP", "AP50", "AP75", "APm", "APl", "AR", "ARm", "ARl")]


def test_a_mistake_is_one_line_and_exit_code_2(done):
    assert done["wrong"].returncode == 2
    assert done["wrong"].stdout == ""
    where = f"{TREC / 'qrels.test'}:1: expected query Q0 document rank score tag, got 4 columns"
    assert done["wrong"].stderr == f"map-metrics: error: {where}\n"


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "cls", "left_out"),
    [
        ("detection", DetectionMAP, {"class_metrics", "extended_summary", "class_names", "class_groups", "output"}),
        ("retrieval", RetrievalMAP, {"ignore_index"}),
        ("hashing", HashingMAPAtK, set()),
        ("embedding", EmbeddingMAPAtK, set()),
    ],
)
def test_every_convention_has_an_option_of_its_name(capsys, command, cls, left_out):
    """What is left out, files say or other options print."""
    names = inspect.signature(cls).parameters.keys() - {"kwargs", "validate_args"} - left_out
    code, text, _ = call(capsys, command, "--help")
    assert code == 0
    for name in names:
        assert f"--{name.replace('_', '-')} " in text or f"[--{name.replace('_', '-')}]" in text
    assert "examples:" in text
    values = [*PROTOCOLS] if command == "detection" else [*DENOMINATORS, *TIES_OF, *TIES_OF["step"]]
    values += [] if command == "detection" else [*EMPTY_ACTIONS, *AGGREGATIONS]
    assert not [value for value in values if value not in text]


def test_the_examples_of_the_help_are_read_by_the_parser():
    lines = [line.strip() for text in cli.EXAMPLES.values() for line in text.splitlines()[1:]]
    assert len(lines) == 10
    for line in lines:
        assert line.startswith("map-metrics ")
        cli.parser().parse_args(line.split()[1:])


def test_the_parser_needs_no_torch():
    """The module imports the standard library alone."""
    body = ast.parse(Path(cli.__file__).read_text()).body
    names = {node.module for node in body if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names)


def test_version_and_no_command(capsys):
    assert call(capsys, "--version")[0] == 0
    code, text, _ = call(capsys)
    assert (code, "detection" in text) == (2, True)


def trec_metric(run="results.test", **options) -> RetrievalMAP:
    metric = RetrievalMAP(**options)
    metric.update(**read_trec(TREC / "qrels.test", TREC / run).rows)
    return metric


def test_options_reach_the_metric(capsys):
    words = ("retrieval", TREC / "qrels.test", TREC / "results.test", "--format", "tsv")
    for given, options in {
        ("--ties", "pessimistic"): {"ties": "pessimistic"},
        ("--top-k", "R"): {"top_k": "R"},
        ("--top-k", "7", "--denominator", "min"): {"top_k": 7, "denominator": "min"},
        ("--preset", "KAGGLE", "--top-k", "20"): {"top_k": 20, "denominator": "min", "ties": "stable"},
        ("--preset", "kaggle", "--denominator", "hits"): {"denominator": "hits", "ties": "stable"},
        ("--interpolation", "101-point", "--ties", "stable"): {"interpolation": "101-point", "ties": "stable"},
        ("--aggregation", "median"): {"aggregation": "median"},
    }.items():
        assert tsv(call(capsys, *words, *given)[1])["map", "all"] == float(trec_metric(**options).compute())
    text = call(capsys, *words, "--top-k", "5", "10")[1]
    expected = {(key, "all"): float(value) for key, value in trec_metric(top_k=[5, 10]).compute().items()}
    assert {key: value for key, value in tsv(text).items() if key in expected} == expected


def test_a_run_of_distances(tmp_path, capsys):
    """The same order, whatever the sign."""
    lines = [line.split() for line in (TREC / "results.test").read_text().splitlines()]
    negated = tmp_path / "run"
    negated.write_text("".join(f"{q} Q0 {d} {r} {-float(s)!r} t\n" for q, _, d, r, s, *_ in lines))
    for more in ((), ("--max-documents", "20")):
        words = ("--per-query", "--format", "tsv", "--preset", "trec", *more)
        expected = call(capsys, "retrieval", TREC / "qrels.test", TREC / "results.test", *words)
        assert call(capsys, "retrieval", TREC / "qrels.test", negated, "--no-largest", *words) == expected


def test_hashing_and_embeddings(tmp_path, capsys):
    expected = json.loads((DATA / "retrieval" / "expected.json").read_text())
    with np.load(CODES[0]) as arrays:
        codes, labels = torch.from_numpy(arrays["codes64"]), torch.from_numpy(arrays["labels"])
    metric = HashingMAPAtK(top_k=100, packed=True, denominator="min")
    metric.update(codes, labels, query=torch.arange(len(codes)) < 297)
    text = call(capsys, "hashing", *CODES, "--top-k", 100, "--denominator", "min", "--format", "tsv", "--per-query")[1]
    assert tsv(text)["map", "all"] == float(metric.compute())
    assert tsv(text)["map", "296"] == float(metric.result().ap[296])
    assert expected
    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    np.savez(tmp_path / "v.npz", embeddings=vectors, labels=np.arange(30) % 3, query=np.arange(30) < 6)
    metric = EmbeddingMAPAtK(similarity="euclidean")
    metric.update(torch.from_numpy(vectors), torch.arange(30) % 3, query=torch.arange(30) < 6)
    text = call(capsys, "embedding", tmp_path / "v.npz", "--similarity", "euclidean", "--format", "tsv")[1]
    assert tsv(text)["map", "all"] == float(metric.compute())


def test_worst_and_groups(tmp_path, capsys):
    groups = tmp_path / "groups"
    groups.write_text("301 even\n302 odd one\n303 even\n")
    words = ["retrieval", TREC / "qrels.test", TREC / "results.test", "--preset", "trec"]
    text = call(capsys, *words, "--worst", 2, "--by", groups, "--format", "json")[1]
    content, ap = json.loads(text), trec_metric(ties="stable").result().ap.tolist()
    assert [row["query"] for row in content["worst"]] == ["301", "303"]
    assert content["groups"] == [
        {"group": "even", "map": pytest.approx((ap[0] + ap[2]) / 2), "count": 2},
        {"group": "odd one", "map": ap[1], "count": 1},
    ]
    groups.write_text('{"301": 1, "302": 2}')
    code, _, error = call(capsys, *words, "--by", groups)
    assert (code, "groups: has no group for '303' (1 have none)" in error) == (2, True)
    for wrong, line in (("301\n", "1: expected name group, got '301'"), ('{"a"\n', "2: is not JSON")):
        groups.write_text(wrong)
        assert f"groups:{line}" in call(capsys, *words, "--by", groups)[2]


def test_compare(capsys):
    words = ["retrieval", TREC / "qrels.test", TREC / "results.test", "--compare", TREC / "results.trunc"]
    found = json.loads(call(capsys, *words, "--preset", "trec", "--format", "json")[1])["comparison"]
    options = {"ties": "stable"}
    expected = trec_metric(**options).result().compare(trec_metric("results.trunc", **options).result())
    assert found["mean"] == expected.mean
    assert [row["query"] for row in found["queries"]] == ["301", "302", "303"]
    text = tsv(call(capsys, *words, "--preset", "trec", "--format", "tsv")[1])
    assert text["difference", "302"] == expected.difference[1].item()
    assert text["difference_mean", "all"] == expected.mean
    table = call(capsys, *words, "--preset", "trec")[1]
    assert table.endswith("\n".join(expected.summary().splitlines()[:2]) + "\n")


def test_two_types_of_overlap_at_once(tmp_path, capsys):
    results = json.loads((COCO100 / "instances_val2014_fakesegm100_results.json").read_text())
    for row in results:
        row["bbox"] = [0, 0, 50, 50]
    (tmp_path / "dt.json").write_text(json.dumps(results))
    words = ("detection", TRUTH, tmp_path / "dt.json", "--iou-type", "bbox", "segm", "--per-class")
    content = json.loads(call(capsys, *words, "--format", "json")[1])
    assert content["value"]["segm_map"] == EXPECTED["coco100/segm"]["AP"]
    assert {"bbox classes", "segm classes"} <= content.keys()
    assert call(capsys, *words)[1].startswith("bbox\n Average Precision")


def test_tables_are_aligned_and_notes_go_to_stderr(capsys):
    code, text, error = call(capsys, "hashing", *CODES, "--top-k", 5, 10, "--worst", 3)
    lines = text.split("worst\n")[1].splitlines()
    assert (code, error) == (0, "")
    assert len({len(line) for line in lines}) == 1
    code, _, error = call(
        capsys, "retrieval", TREC / "qrels.test", TREC / "results.test", "--level", 9, "--preset", "market1501"
    )
    assert (code, error) == (0, "")
    code, _, error = call(
        capsys, "retrieval", TREC / "qrels.test", TREC / "results.test", "--level", 9, "--empty-target-action", "skip"
    )
    assert (code, error.count("\n"), error.startswith("map-metrics: note: No query to average")) == (0, 1, True)


def test_steps_are_shown_on_a_terminal_only(capsys, monkeypatch):
    words = ("retrieval", TREC / "qrels.test", TREC / "results.test", "--level", 2)
    assert call(capsys, *words)[2] == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    shown = call(capsys, *words)[2].split("\r\x1b[K")
    assert shown[1:] == [f"reading {TREC / 'results.test'}", "evaluating", ""]


# --- what stands behind a detection number ----------------------------------------------------------------------------


def small(tmp_path) -> tuple[list[str], DetectionMAP]:
    """Four images of two classes, one by one worse."""
    images = [{"id": i} for i in range(4)]
    box = {"category_id": 1, "bbox": [0, 0, 10, 10]}
    truth = [box | {"image_id": i, "category_id": 1 + j} for i in range(4) for j in range(2)]
    found = [row | {"bbox": [0, 0, 10, 10 - row["image_id"]], "score": 0.9 - 0.1 * row["image_id"]} for row in truth]
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "animal"}]
    (tmp_path / "gt").write_text(json.dumps({"images": images, "categories": categories, "annotations": truth}))
    (tmp_path / "dt").write_text(json.dumps(found))
    worse = [row | {"bbox": [3, 3, 10, 10]} for row in found]
    (tmp_path / "worse").write_text(json.dumps(worse))
    metric = DetectionMAP.from_coco(tmp_path / "gt", tmp_path / "dt")
    return ["detection", str(tmp_path / "gt"), str(tmp_path / "dt")], metric


def test_groups_of_images(tmp_path, capsys):
    words, _ = small(tmp_path)
    (tmp_path / "groups").write_text("0 day\n1 day\n2 night\n3 night\n")
    content = json.loads(call(capsys, *words, "--by", tmp_path / "groups", "--format", "json")[1])
    assert [(row["group"], row["count"]) for row in content["groups"]] == [("day", 2), ("night", 2)]
    for row, images in zip(content["groups"], ([0, 1], [2, 3]), strict=True):
        truth = json.loads((tmp_path / "gt").read_text())
        rows = [r for r in truth["annotations"] if r["image_id"] in images]
        (tmp_path / "part").write_text(json.dumps(truth | {"images": [{"id": i} for i in images], "annotations": rows}))
        found = [r for r in json.loads((tmp_path / "dt").read_text()) if r["image_id"] in images]
        (tmp_path / "found").write_text(json.dumps(found))
        part = DetectionMAP.from_coco(tmp_path / "part", tmp_path / "found")
        assert row["map"] == float(part.compute()["map"])


def test_two_result_files(tmp_path, capsys):
    words, metric = small(tmp_path)
    content = json.loads(call(capsys, *words, "--compare", tmp_path / "worse", "--format", "json")[1])
    other = DetectionMAP.from_coco(tmp_path / "gt", tmp_path / "worse")
    expected = metric.result().compare(other.result())
    assert content["comparison"]["mean"] == expected.mean > 0
    assert [row["query"] for row in content["comparison"]["queries"]] == ["0", "1", "2", "3"]
    for name in ("dt", "worse"):
        call(capsys, *words[:2], tmp_path / name, "--save", tmp_path / f"{name}.npz")
    states = ("detection", "--state", tmp_path / "dt.npz", "--compare", tmp_path / "worse.npz", "--format", "json")
    assert json.loads(call(capsys, *states)[1])["comparison"] == content["comparison"]


def test_worst_classes(tmp_path, capsys):
    words, _ = small(tmp_path)
    found = json.loads((tmp_path / "dt").read_text())
    (tmp_path / "dt").write_text(json.dumps([row for row in found if row["category_id"] == 1]))
    content = json.loads(call(capsys, *words, "--worst", 1, "--format", "json")[1])
    assert [(row["class"], row["ap"]) for row in content["worst"]] == [("animal", 0)]


def test_hierarchies(tmp_path, capsys):
    words, _ = small(tmp_path)
    expected = DetectionMAP.from_coco(tmp_path / "gt", tmp_path / "dt", protocol="openimages", hierarchy={1: 2})
    files = {
        "flat": {"cat": "animal"},
        "ids": {"1": [2]},
        "nested": {
            "LabelName": "all",
            "Subcategory": [
                {"LabelName": "animal", "Subcategory": [{"LabelName": "pet", "Subcategory": [{"LabelName": "cat"}]}]}
            ],
        },
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
        more = ("--protocol", "openimages", "--hierarchy", tmp_path / name, "--format", "tsv")
        text = call(capsys, *words, "--save", tmp_path / "state", *more)[1]
        assert tsv(text)["map", "all"] == float(expected.compute()["map"])
        assert call(capsys, "detection", "--state", tmp_path / "state", *more)[1] == text
    for wrong, message in {
        '{"dog": "cat"}': "the class 'dog' is not in the ground truth",
        '{"cat": 7}': "the class 7 is not in the ground truth",
        "[1]": "must be an object of classes",
        '{"LabelName": 1}': "every class must be an object with a 'LabelName'",
        '{"LabelName": "a", "Subcategory": 1}': "'Subcategory' of a must be a list",
        "{": "wrong:1: is not JSON",
    }.items():
        (tmp_path / "wrong").write_text(wrong)
        code, _, error = call(capsys, *words, "--hierarchy", tmp_path / "wrong")
        assert (code, message in error) == (2, True), error


def test_reports(tmp_path, capsys):
    words, _ = small(tmp_path)
    assert call(capsys, *words, "--html", tmp_path / "a.html")[0] == 0
    assert call(capsys, "retrieval", TREC / "qrels.test", TREC / "results.test", "--html", tmp_path / "b.html")[0] == 0
    for name in ("a.html", "b.html"):
        assert "</html>" in (tmp_path / name).read_text()


# --- states -----------------------------------------------------------------------------------------------------------


def test_another_protocol_from_a_saved_state(tmp_path, capsys):
    state = tmp_path / "state.npz"
    files = (TRUTH, COCO100 / "instances_val2014_fakebbox100_results.json")
    words = ("--format", "json", "--per-class")
    saved = call(capsys, "detection", *files, *words, "--save", state)
    assert call(capsys, "detection", "--state", state, *words) == saved
    for more in (("--protocol", "voc2012"), ("--average", "micro"), ("--iou-thresholds", 0.5, 0.6)):
        assert call(capsys, "detection", "--state", state, *words, *more) == call(
            capsys, "detection", *files, *words, *more
        )
    code, _, error = call(capsys, "detection", "--state", state, "--iou-type", "segm")
    assert (code, "`iou_types` is ['bbox'] there and ['segm'] here" in error) == (2, True)


def test_a_state_that_a_training_saved(tmp_path, capsys):
    metric = DetectionMAP(class_names={3: "dog"}, iou_type="keypoints", sigmas=[0.1, 0.2])
    pose = torch.tensor([[[1.0, 2, 2], [3, 4, 2]]])
    box = torch.tensor([[0.0, 0, 200, 200]])
    label = torch.tensor([3])
    metric.update(
        [{"keypoints": pose + 1, "scores": torch.ones(1), "labels": label}],
        [{"keypoints": pose, "boxes": box, "labels": label}],
    )
    metric.save(tmp_path / "state")
    value = json.loads(call(capsys, "detection", "--state", tmp_path / "state", "--format", "json")[1])["value"]
    assert value == {key: float(number) for key, number in metric.compute().items()}


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (["retrieval", TREC / "qrels.test", TREC / "results.test", "--preset", "trec"], ["--top-k", 10]),
        (["retrieval", TREC / "qrels.test", TREC / "results.test"], ["--ties", "pessimistic"]),
        (["hashing", *CODES], ["--denominator", "relevant", "--ties", "stable"]),
    ],
    ids=str,
)
def test_states_of_rankings(tmp_path, capsys, words, more):
    state = tmp_path / "state.npz"
    rows = ("--per-query", "--format", "tsv")
    saved = call(capsys, *words, *rows, "--save", state)
    assert call(capsys, words[0], "--state", state, *rows) == saved
    assert call(capsys, words[0], "--state", state, *rows, *more) == call(capsys, *words, *rows, *more)
    same = json.loads(call(capsys, words[0], "--state", state, "--compare", state, "--format", "json")[1])
    assert same["comparison"]["mean"] == 0


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_mistakes(tmp_path, capsys):
    """Each is one line, at the right place, with exit code 2."""
    box = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9]}
    truth = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "a"}], "annotations": [box]}
    found = [box | {"score": 0.5}]
    mask = {"size": [4, 4], "counts": [3, 99]}
    contents = {
        "gt": truth,
        "masks": truth | {"annotations": [box | {"segmentation": {"size": [4, 4], "counts": [0, 16]}}]},
        "cut": json.dumps(found, indent=1)[:-4],
        "image": [box | {"score": 0.5, "image_id": 2}],
        "class": [box | {"score": 0.5, "category_id": 2}],
        "nan": [box | {"score": float("nan")}],
        "mask": [box | {"score": 0.5, "segmentation": mask}],
        "empty": "",
        "run": "q Q0 d 1 tag\n",
        "qrels": "q 0 d 1\r\n\r\nq 0 e\r\n",
        "latin": "q Q0 d\xe9 1 0.5 t\n".encode("latin-1"),
    }
    for name, content in contents.items():
        text = content if isinstance(content, str | bytes) else json.dumps(content, indent=1)
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    good = (TREC / "qrels.test", TREC / "results.test")
    for words, message in {
        ("detection", "gt", "cut"): "cut:12: is cut off: no end of its JSON",
        ("detection", "gt", "image"): "image:2: entry 0: 'image_id' 2 is not in the ground truth",
        ("detection", "gt", "class"): "class:2: entry 0: 'category_id' 2 is not in the ground truth",
        ("detection", "gt", "nan"): "nan:2: entry 0: 'score' must be finite, got nan",
        ("detection", "gt", "empty"): "empty:1: is empty, expected JSON",
        ("detection", "empty", "nan"): "empty:1: is empty, expected JSON",
        ("detection", "masks", "mask", "--iou-type", "segm"): "mask: image 1: ['masks']",
        ("detection", "gt", "nowhere"): "nowhere: No such file or directory",
        ("detection", "gt"): "expected 2 paths (ground_truth, detections) before the options, or --state; got 1",
        ("detection", "gt", "gt", "--state", "gt"): "give files or --state, not both",
        ("detection", "--state", "gt"): "gt: must be a state that `save` wrote",
        ("detection", "gt", "cut", "--iou-type", "mask"): "--iou-type must be one of ('bbox', 'segm', 'obb', ",
        ("detection", "gt", "cut", "--iou-type", "obb"): "gt:14: annotations[0]: 'bbox' must be a list of 5 numbers",
        ("detection", "gt", "gt", "--frobnicate"): "unrecognized arguments: --frobnicate",
        ("detection", "gt", "gt", "--format", "xml"): "argument --format: invalid choice: 'xml'",
        ("retrieval", *good, "--top-k", "x"): "argument --top-k: must be integers or R, got 'x'",
        ("retrieval", *good, "--top-k", "-1"): "--top-k must be None, a positive int",
        ("retrieval", *good, "--ties", "best"): "--ties must be one of ('expected'",
        ("retrieval", *good, "--preset", "best"): "--preset must be one of ('trec'",
        ("retrieval", good[0], "run"): "run:1: expected query Q0 document rank score tag; the score must be a number",
        ("retrieval", "qrels", good[1]): "qrels:3: expected query iteration document grade, got 3 columns",
        ("retrieval", good[0], "empty"): "empty: is empty",
        ("retrieval", good[0], "latin"): "latin:1: must be UTF-8",
        ("retrieval", "--state", "nowhere"): "nowhere: No such file or directory",
        ("hashing", "gt"): "gt: must be an npz, npy or pt archive",
        ("hashing", CODES[0], "--num-queries", "9"): "digits_codes.npz: must hold the array 'codes'",
        (
            "hashing",
            CODES[0],
            *CODES[1:3],
            "--num-queries",
            "9",
        ): "digits_codes.npz: --codes must hold +-1, 0/1 or bool",
        ("frobnicate",): "argument COMMAND: invalid choice: 'frobnicate'",
    }.items():
        paths = [tmp_path / word if word in (*contents, "nowhere") else word for word in words]
        code, text, error = call(capsys, *paths)
        assert (code, text) == (2, ""), words
        assert message in error, words
        assert (error.count("\n"), error[-1]) == (1, "\n"), words
        assert re.match(r"map-metrics( \w+)?: error: ", error), words


def test_skip_unknown_counts(tmp_path, capsys):
    box = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "score": 0.5}
    truth = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "a"}], "annotations": [box]}
    (tmp_path / "gt").write_text(json.dumps(truth))
    (tmp_path / "dt").write_text(json.dumps([box, box | {"image_id": 3}, box | {"category_id": 7}]))
    text = call(capsys, "detection", tmp_path / "gt", tmp_path / "dt", "--skip-unknown", "--format", "tsv")[1]
    assert tsv(text)["num_skipped", "all"] == 2
    assert tsv(text)["map_50", "all"] == pytest.approx(1)


def test_windows_line_ends_change_nothing(tmp_path, capsys):
    words = {}
    for name, end in (("unix", b"\n"), ("windows", b"\r\n")):
        (folder := tmp_path / name).mkdir()
        for path in (TREC / "qrels.test", TREC / "results.test"):
            (folder / path.name).write_bytes(b"".join(line + end for line in path.read_bytes().splitlines()))
        box = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "score": 0.5}
        truth = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "a"}], "annotations": [box]}
        for file, content in (("gt", truth), ("dt", [box])):
            (folder / file).write_bytes(json.dumps(content, indent=1).encode().replace(b"\n", end))
        words[name] = [
            call(capsys, "retrieval", folder / "qrels.test", folder / "results.test", "--per-query"),
            call(capsys, "detection", folder / "gt", folder / "dt"),
        ]
    assert words["unix"] == words["windows"]
    assert [code for code, *_ in words["unix"]] == [0, 0]


def test_mistakes_in_runs_and_folders(tmp_path, capsys):
    (tmp_path / "qrels").write_text("q 0 d 1\n")
    (tmp_path / "run").write_text("q Q0 d 1 0.5 tag\nq Q0 e 2 nan tag\n")
    for side, line in (("gt", "a 0 0 9 9\n"), ("dt", "a 0.5 0 0 9 9\na 0.5 0 0 9\n")):
        (tmp_path / side).mkdir()
        (tmp_path / side / "1.txt").write_text(line)
    for words, message in {
        ("retrieval", "qrels", "run"): "run:2: ",
        ("detection", "gt", "dt"): "1.txt:2: expected class score x1 y1 x2 y2, got 5 fields",
    }.items():
        code, text, error = call(capsys, words[0], *(tmp_path / word for word in words[1:]))
        assert (code, text, error.count("\n")) == (2, "", 1), words
        assert message in error, words


def test_yolo_folders(tmp_path, capsys):
    """Cartucho's files in parts of images of any size: overlaps of VOC without its pixels stay as they are."""
    for side in ("ground-truth", "detection-results"):
        (tmp_path / side).mkdir()
    sizes, names = {}, set()
    for path in sorted((DETECTION / "cartucho" / "ground-truth").glob("*.txt")):
        width, height = 512, 1024  # powers of two: division is exact
        sizes[path.stem] = f"{path.stem}.jpg {width} {height}"
        for side in ("ground-truth", "detection-results"):
            lines = []
            for line in (DETECTION / "cartucho" / side / path.name).read_text().splitlines():
                name, *score, x1, y1, x2, y2 = line.split()
                x1, y1, x2, y2 = map(float, (x1, y1, x2, y2))
                box = [(x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height]
                lines.append(" ".join([name, *map(repr, box), *score]))
                names.add(name)
            (tmp_path / side / path.name).write_text("\n".join(lines))
    (tmp_path / "sizes").write_text("\n".join(sizes.values()))
    (tmp_path / "classes").write_text("\n".join(sorted(names)))
    words = ("--protocol", "openimages", "--format", "json", "--per-class")
    pixels = ("detection", *(DETECTION / "cartucho" / side for side in ("ground-truth", "detection-results")))
    parts = ("detection", tmp_path / "ground-truth", tmp_path / "detection-results", "--sizes", tmp_path / "sizes")
    expected = json.loads(call(capsys, *pixels, *words)[1])
    found = json.loads(call(capsys, *parts, "--classes", tmp_path / "classes", *words)[1])
    assert found["value"] == expected["value"]
    assert found["num_detections"] == expected["num_detections"]


def changed(content, rng):
    """A copy with one value, anywhere, replaced by something else."""
    copy = json.loads(json.dumps(content))
    place = copy
    while True:
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not place[key] or not isinstance(place[key], dict | list) or rng.random() < 0.15:
            choices = [None, True, -1, 0.5, "x", "", [], {}, [[1]], 1e308, float("nan"), 10**400, 2**63]
            place[key] = rng.choice(choices)
            return copy
        place = place[key]


@pytest.mark.parametrize("seed", range(4))
def test_any_changed_value_is_fine_or_one_line(tmp_path, capsys, seed):
    rng = random.Random(seed)
    box = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "area": 5, "iscrowd": 0}
    shapes = {"segmentation": {"size": [4, 4], "counts": [3, 5, 8]}, "keypoints": [1, 2, 2] * 17}
    images = [{"id": 1, "height": 4, "width": 4, "neg_category_ids": [1]}, {"id": 2}]
    categories = [{"id": 1, "name": "a", "frequency": "r"}]
    truth = {"images": images, "categories": categories, "annotations": [box | shapes] * 2}
    codes = set()
    for _ in range(60):
        (tmp_path / "gt").write_text(json.dumps(changed(truth, rng) if rng.random() < 0.5 else truth))
        (tmp_path / "dt").write_text(json.dumps(changed([box | shapes | {"score": 0.5}] * 2, rng)))
        kind = rng.choice(["bbox", "segm", "keypoints"])
        code, text, error = call(capsys, "detection", tmp_path / "gt", tmp_path / "dt", "--iou-type", kind)
        lines = [line for line in error.splitlines() if not line.startswith("map-metrics: note: ")]
        assert (len(lines), bool(text)) == ((0, True) if code == 0 else (1, False)), error
        codes.add(code)
    assert codes == {0, 2}


def test_lvis_groups(tmp_path, capsys):
    box = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "score": 0.5}
    categories = [{"id": 1, "name": "a", "frequency": "r"}, {"id": 2, "name": "b", "frequency": "f"}]
    (tmp_path / "gt").write_text(json.dumps({"images": [{"id": 1}], "categories": categories, "annotations": [box]}))
    (tmp_path / "dt").write_text(json.dumps([box]))
    words = ("detection", tmp_path / "gt", tmp_path / "dt", "--protocol", "lvis", "--format", "tsv")
    found = tsv(call(capsys, *words, "--save", tmp_path / "state")[1])
    assert found["map_r", "all"] == pytest.approx(1)
    assert found["map_f", "all"] == -1
    assert tsv(call(capsys, "detection", "--state", tmp_path / "state", *words[3:])[1]) == found


def test_a_closed_pipe_is_no_error(monkeypatch):
    """`| head` stops to read."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert cli.main(["retrieval", str(TREC / "qrels.test"), str(TREC / "results.test")]) == 0


def test_commands_know_every_option():
    """An option that no command reads would be silently without effect."""
    folder = Path(commands.__file__).parent
    source = "".join(path.read_text() for path in folder.glob("*.py")) + inspect.getsource(cli.main)
    for name in cli.OPTIONS:
        options = vars(cli.parser().parse_args([name]))
        assert not [option for option in options if f'"{option}"' not in source and f".{option}" not in source]
