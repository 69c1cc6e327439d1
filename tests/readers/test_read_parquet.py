"""Judgments and runs as parquet: files that ranx wrote, columns of other tools, and every mistake at its place."""

from __future__ import annotations

import contextlib
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from ranx import Qrels, Run

from map_metrics import RetrievalMAP, presets
from map_metrics.readers import ReadError, read_trec
from map_metrics.readers.parquet import DOCUMENT, QUERY, VALUE

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

QRELS = {"q_id": ["q1", "q1", "q2"], "doc_id": ["d1", "d2", "d1"], "score": [1, 0, 2]}
RUN = {"q_id": ["q1", "q1", "q2"], "doc_id": ["d2", "d1", "d3"], "score": [0.9, 0.8, 1.0]}


def write(folder: Path, qrels=QRELS, run=RUN) -> tuple[Path, Path]:
    for name, content in (("qrels", qrels), ("run", run)):
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            parquet.write_table(pyarrow.table(content), folder / name)
    return folder / "qrels", folder / "run"


def same(first, second) -> None:
    for one, other in zip(first, second, strict=True):
        assert one == other if isinstance(one, int | dict) else one.tolist() == other.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_files_of_ranx_equal_trec_evals_code(tmp_path, seed):
    """It writes with fastparquet or pyarrow, whichever pandas finds, and sorts the rows."""
    rng = random.Random(seed)
    documents = [f"d{i}" for i in rng.sample(range(2000), 40)]
    qrels = {f"q{q}": {d: rng.randint(0, 2) for d in rng.sample(documents, 20)} for q in range(8)}
    run = {f"q{q}": {d: rng.randint(0, 6) / 4 for d in rng.sample(documents, 25)} for q in range(8)}
    paths = tmp_path / "qrels.parquet", tmp_path / "run.parquet"
    Qrels(qrels).save(str(paths[0]))
    Run(run).save(str(paths[1]))
    expected = pytrec_eval.RelevanceEvaluator(qrels, {"map"}).evaluate(run)
    files = read_trec(*paths)
    metric = RetrievalMAP(**presets.TREC)
    metric.update(**files.rows)
    result = metric.result()
    names = [files.queries[q] for q in result.query.tolist()]
    assert dict(zip(names, result.ap.tolist(), strict=True)) == pytest.approx(
        {query: values["map"] for query, values in expected.items()}, abs=1e-12
    )


def test_the_rows_are_those_of_the_text(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    columns = [list(zip(*content.values(), strict=True)) for content in (QRELS, RUN)]
    (text / "qrels").write_text("".join(f"{q} 0 {d} {grade}\n" for q, d, grade in columns[0]))
    (text / "run").write_text("".join(f"{q} Q0 {d} 1 {score} t\n" for q, d, score in columns[1]))
    expected = read_trec(text / "qrels", text / "run")
    same(read_trec(*write(tmp_path)), expected)
    same(read_trec(text / "qrels", write(tmp_path)[1]), expected)  # each file may be of another kind


@pytest.mark.parametrize("place", range(4))
def test_the_column_names_of_other_tools(tmp_path, place):
    """Beside columns that play no part."""
    names = QUERY[place], DOCUMENT[place], VALUE["grade"][place]
    qrels = {"iteration": ["0"] * 3, **dict(zip(names, QRELS.values(), strict=True))}
    run = {**dict(zip((*names[:2], "score"), RUN.values(), strict=True)), "rank": [1, 2, 1], "tag": ["t"] * 3}
    same(read_trec(*write(tmp_path, qrels, run)), read_trec(*write(tmp_path)))


@pytest.mark.parametrize("kind", ["large_string", "string_view", "dictionary", "integers"])
def test_kinds_of_columns(tmp_path, kind):
    """Also several pieces of one column, and scores and grades of other widths."""
    expected = read_trec(*write(tmp_path))
    numbers = {"q1": 1, "q2": 2, "d1": 11, "d2": 12, "d3": 13}
    kinds = {
        "large_string": pyarrow.large_string(),
        "string_view": pyarrow.string_view(),
        "integers": pyarrow.int32(),
    }
    tables = []
    for content, value in ((QRELS, pyarrow.float32()), (RUN, pyarrow.float64())):
        columns = {}
        for name in ("q_id", "doc_id"):
            entries = [numbers[entry] for entry in content[name]] if kind == "integers" else content[name]
            columns[name] = pyarrow.array(entries, kinds.get(kind, pyarrow.dictionary(pyarrow.int32(), "string")))
        tables.append(pyarrow.table({**columns, "score": pyarrow.array(content["score"], value)}))
    for name, table in zip(("qrels", "run"), tables, strict=True):
        parquet.write_table(table, tmp_path / name, row_group_size=2)
    found = read_trec(tmp_path / "qrels", tmp_path / "run")
    if kind == "integers":
        assert found.queries == {0: "1", 1: "2"}
        same(found[:4], expected[:4])
    else:
        same(found, expected)


def but(content: dict, **columns) -> dict:
    return {**content, **columns}


@pytest.mark.parametrize(
    ("qrels", "run", "message"),
    [
        (
            {"q_id": ["q"], "score": [1]},
            RUN,
            "qrels: must hold a column 'doc_id' or 'docid' or 'docno' or 'corpus-id', got ['q_id', 'score']",
        ),
        (QRELS, {"q_id": ["q"], "doc_id": ["d"], "rank": [1]}, "run: must hold a column 'score', got ['q_id', "),
        (QRELS, but(RUN, score=[0.5, np.nan, 1]), "run: column 'score', row 1: the score must not be NaN, got nan"),
        (QRELS, but(RUN, score=[0.5, None, 1]), "run: column 'score', row 1: must not be empty, got None"),
        (QRELS, but(RUN, q_id=["q", "q", None]), "run: column 'q_id', row 2: must not be empty, got None"),
        (QRELS, but(RUN, score=["1", "2", "3"]), "run: column 'score' must hold numbers, got string"),
        (but(QRELS, score=[True, True, False]), RUN, "qrels: column 'score' must hold numbers, got bool"),
        (but(QRELS, doc_id=[0.5, 1, 2]), RUN, "qrels: column 'doc_id' must hold strings or integers, got double"),
        (but(QRELS, score=[1, 0.5, 0]), RUN, "qrels: column 'score', row 1: the grade must be a whole number, got 0.5"),
        (but(QRELS, score=[1, np.inf, 0]), RUN, "qrels: column 'score', row 1: the grade must be a whole number"),
        (but(QRELS, doc_id=["d1", "d1", "d2"]), RUN, "qrels: query 'q1' holds the document 'd1' twice"),
        ({"q_id": pyarrow.array([], "string"), "doc_id": [], "score": []}, RUN, "qrels: column 'doc_id' must hold"),
        ({name: pyarrow.array([], "int64") for name in QRELS}, RUN, "qrels: is empty"),
        (b"PAR1 and no more", RUN, "qrels: must be a whole parquet file, got: "),
    ],
)
def test_a_mistake(tmp_path, qrels, run, message):
    with pytest.raises(ReadError) as caught:
        read_trec(*write(tmp_path, qrels, run))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_broke(tmp_path):
    """Half a file, bytes that changed, and names that are not UTF-8: a ReadError, or what the file still says."""
    qrels, run = write(tmp_path)
    whole = run.read_bytes()
    rng = random.Random(0)
    run.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ReadError, match="run: must be a whole parquet file"):
        read_trec(qrels, run)
    for _ in range(200):
        changed = bytearray(whole)
        changed[rng.randrange(4, len(whole))] ^= 1 << rng.randrange(8)
        run.write_bytes(changed)
        with contextlib.suppress(ReadError):
            read_trec(qrels, run)
    latin = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, pyarrow.py_buffer(np.array([0, 2], np.int32)), pyarrow.py_buffer(b"d\xe9")]
    )
    with pytest.raises(ReadError, match=r"run: must be a whole parquet file, got: .*UTF8"):
        read_trec(*write(tmp_path, QRELS, {"q_id": ["q"], "doc_id": latin, "score": [0.5]}))


def test_without_the_extra(tmp_path, monkeypatch):
    paths = write(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r'qrels: parquet needs pyarrow: pip install "torchmetrics-map\[parquet\]"'):
        read_trec(*paths)
