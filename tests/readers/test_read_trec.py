"""Readers of judgments and runs: against plain loops, trec_eval's code, and every mistake at its place."""

from __future__ import annotations

import gzip
import json
import math
import random
from pathlib import Path

import pytest
import pytrec_eval

from map_metrics import RetrievalMAP, presets
from map_metrics.readers import ReadError, read_trec

QRELS = "q1 0 d1 1\nq1 0 d2 0\nq1 0 d3 2\nq2 0 d1 1\nq3 0 d9 -1\n"
RUN = "q1 Q0 d2 1 0.9 tag\nq1 Q0 d3 2 0.8 tag\nq2 Q0 d7 1 1 tag\nq9 Q0 d1 1 1 tag\n"


def write(folder: Path, qrels: str = QRELS, run: str = RUN) -> tuple[Path, Path]:
    (folder / "qrels").write_bytes(qrels.encode())
    (folder / "run").write_bytes(run.encode())
    return folder / "qrels", folder / "run"


def as_dict(files, names) -> dict[tuple[str, str], tuple[float, bool]]:
    """(query, document) -> (score, relevant); documents are numbered downwards by name."""
    names = sorted(names, reverse=True)
    columns = [column.tolist() for column in (files.indexes, files.ids, files.preds, files.target)]
    return {(files.queries[q], names[d]): (s, t) for q, d, s, t in zip(*columns, strict=True)}


def test_rows(tmp_path):
    files = read_trec(*write(tmp_path))
    assert as_dict(files, {"d1", "d2", "d3", "d7", "d9"}) == {
        ("q1", "d2"): (0.9, False),
        ("q1", "d3"): (0.8, True),
        ("q1", "d1"): (-math.inf, True),
        ("q2", "d7"): (1.0, False),
        ("q2", "d1"): (-math.inf, True),
        ("q3", "d9"): (-math.inf, False),  # nothing relevant, not answered: still a query
    }
    assert list(files.queries.values()) == ["q1", "q2", "q3"]
    assert (files.num_unanswered, files.num_unjudged) == (1, 1)


def test_options(tmp_path):
    paths = write(tmp_path)
    assert list(read_trec(*paths, skip_unanswered=True).queries.values()) == ["q1", "q2"]
    relevant = read_trec(*paths, level=2)
    assert int(relevant.target.sum()) == 1
    assert list(relevant.queries.values()) == ["q1", "q2", "q3"]
    first = read_trec(*paths, max_documents=1)
    assert sorted(first.preds[first.indexes == 0].tolist()) == [-math.inf, -math.inf, 0.9]
    with pytest.raises(ValueError, match="`max_documents` must be a positive int, got 0"):
        read_trec(*paths, max_documents=0)


def test_integer_ids(tmp_path):
    files = read_trec(*write(tmp_path, "-7 0 12 1\n", "-7 Q0 12 1 0.5 t\n-7 Q0 9 2 0.5 t\n"), integer_ids=True)
    assert (files.indexes.tolist(), files.ids.tolist(), files.queries) == ([-7, -7], [12, 9], {-7: "-7"})
    for wrong in ("d1", "01", "9999999999999999999"):
        with pytest.raises(ReadError, match=f"qrels: documents must have integers as names .* got '{wrong}'"):
            read_trec(*write(tmp_path, f"1 0 {wrong} 1\n", "1 Q0 2 1 0.5 t\n"), integer_ids=True)


@pytest.mark.parametrize("kind", ["text", "json", "gzip"])
@pytest.mark.parametrize("seed", range(3))
def test_random_runs_equal_trec_evals_code(tmp_path, seed, kind):
    """Ties, names of several lengths, queries on one side only; pytrec_eval keeps scores as float32."""
    rng = random.Random(seed)
    documents = [f"d{i}" for i in rng.sample(range(2000), 40)]
    qrels = {f"q{q}": {d: rng.randint(-1, 2) for d in rng.sample(documents, 20)} for q in range(8)}
    run = {f"q{q}": {d: rng.randint(0, 6) / 4 for d in rng.sample(documents, 25)} for q in range(2, 10)}
    judged = [f"{q} 0 {d} {grade}" for q, entries in qrels.items() for d, grade in entries.items()]
    found = [f"{q} Q0 {d} 1 {score} t more" for q, entries in run.items() for d, score in entries.items()]
    rng.shuffle(found)
    texts = ["\n".join(judged) + "\n", "\r\n".join(found) + "\r\n"] if kind != "json" else map(json.dumps, (qrels, run))
    paths = write(tmp_path, *texts)
    if kind == "gzip":
        for path in paths:
            path.write_bytes(gzip.compress(path.read_bytes()))
    expected = pytrec_eval.RelevanceEvaluator(qrels, {"map"}).evaluate(run)
    files = read_trec(*paths, skip_unanswered=True)
    metric = RetrievalMAP(**presets.TREC)
    metric.update(**files.rows)
    result = metric.result()
    names = [files.queries[q] for q in result.query.tolist()]
    assert dict(zip(names, result.ap.tolist(), strict=True)) == pytest.approx(
        {query: values["map"] for query, values in expected.items()}, abs=1e-12
    )


@pytest.mark.parametrize(
    ("qrels", "run", "message"),
    [
        (
            QRELS,
            "q1 Q0 d1 1 tag\n",
            "run:1: expected query Q0 document rank score tag; the score must be a number, got 'tag'",
        ),
        (QRELS, RUN + "q1 Q0 d1 1\n", "run:5: expected query Q0 document rank score tag, got 4 columns"),
        (QRELS, "\n" + RUN + "q1 Q0 d2 9 0.1 tag\n", "run:6: query 'q1' holds the document 'd2' twice"),
        (QRELS, "q1 Q0 d1 1 nan tag\n", "run:1: expected query Q0 document rank score tag; the score must not be NaN"),
        (QRELS, "", "run: is empty"),
        (QRELS, "\r\n \r\n", "run: is empty"),
        ("", RUN, "qrels: is empty"),
        ("q1 0 d1\n", RUN, "qrels:1: expected query iteration document grade, got 3 columns"),
        (
            "q1 0 d1 1\nq1 0 d2 1.5\n",
            RUN,
            "qrels:2: expected query iteration document grade; the grade must be an integer",
        ),
        (
            "q1 0 d1 1" + "0" * 400,
            RUN,
            "qrels:1: expected query iteration document grade; the grade must be an integer",
        ),
        ("q1 0 d1 1\nq1 0 d1 1\n", RUN, "qrels:2: query 'q1' holds the document 'd1' twice"),
        ('{"q1": {"d1": 1}\n', RUN, "qrels:2: is not JSON"),
        ('{"q1": {"d1": 1, "d1": 0}}', RUN, "qrels: the key 'd1' stands twice in an object"),
        ('{"q1": 3}', RUN, "qrels: must be an object of objects: {query: {document: grade}}"),
        ("[3]", RUN, "qrels: must be an object of objects: {query: {document: grade}}"),
        ('{"q1": {"d1": true}}', RUN, "qrels: query 'q1', document 'd1': the grade must be a number, got True"),
        (QRELS, '{"q1": {"d1": NaN}}', "run: query 'q1', document 'd1': the score must not be NaN, got nan"),
        (QRELS, '{"q1": {"d1": "0.5"}}', "run: query 'q1', document 'd1': the score must be a number, got '0.5'"),
        (QRELS, '{"q1": {}}', "run: is empty"),
    ],
)
def test_a_mistake(tmp_path, qrels, run, message):
    with pytest.raises(ReadError) as caught:
        read_trec(*write(tmp_path, qrels, run))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_utf8(tmp_path):
    qrels, run = write(tmp_path)
    run.write_bytes(RUN.encode() + b"q1 Q0 \xe9 3 0.5 t\n")
    with pytest.raises(ReadError, match="run:5: must be UTF-8"):
        read_trec(qrels, run)
    run.write_text(RUN, "utf-16")
    with pytest.raises(ReadError, match="run:1: must be UTF-8"):
        read_trec(qrels, run)
