"""TREC's judgments (qrels) and runs, as text, JSON or parquet, as rows of (query, document)."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from map_metrics.readers.files import ReadError, lines, open_text, short
from map_metrics.readers.parquet import is_parquet, read_parquet


class TrecFiles(NamedTuple):
    """A run against judgments, as :meth:`map_metrics.RetrievalMAP.update` takes it.

    Attributes:
        preds: (n,) float64 scores; for a relevant document that the run does not hold the worst one, -inf (or +inf with
            ``largest=False``).
        target: (n,) bool.
        indexes: (n,) int64 query of each row: a key of ``queries``.
        ids: (n,) int64 document of each row.
        queries: name of each query.
        num_unanswered: judged queries without a line in the run.
        num_unjudged: queries of the run without a judgment, which are left out.
    """

    preds: Tensor
    target: Tensor
    indexes: Tensor
    ids: Tensor
    queries: dict[int, str]
    num_unanswered: int
    num_unjudged: int

    @property
    def rows(self) -> dict[str, Tensor]:
        """The arguments of `update`."""
        return {"preds": self.preds, "target": self.target, "indexes": self.indexes, "ids": self.ids}


# --- one file ---------------------------------------------------------------------------------------------------------


@dataclass
class _Table:
    """Rows (query, document, value) of one file, names numbered as they are met."""

    path: Path
    queries: dict[str, int] = field(default_factory=dict)
    documents: dict[str, int] = field(default_factory=dict)
    query: Any = field(default_factory=lambda: array("q"))
    document: Any = field(default_factory=lambda: array("q"))
    value: Any = field(default_factory=lambda: array("d"))
    line: Any = field(default_factory=lambda: array("q"))

    def add(self, query: str, document: str, value: float, line: int) -> None:
        self.query.append(self.queries.setdefault(query, len(self.queries)))
        self.document.append(self.documents.setdefault(document, len(self.documents)))
        self.value.append(value)
        self.line.append(line)

    def checked(self) -> _Table:
        """With columns as arrays; an empty table and a repeated (query, document) are errors."""
        if not len(self.query):
            raise ReadError(self.path, "is empty: it must hold at least one line")
        self.query, self.document, self.value, self.line = map(
            np.array, (self.query, self.document, self.value, self.line)
        )
        _, first = np.unique(self.query * len(self.documents) + self.document, return_index=True)
        if len(first) < len(self.query):
            again = np.ones(len(self.query), bool)
            again[first] = False
            row = int(again.nonzero()[0][0])
            query, document = list(self.queries)[self.query[row]], list(self.documents)[self.document[row]]
            line = int(self.line[row]) or None
            raise ReadError(self.path, f"query {query!r} holds the document {document!r} twice", line=line)
        return self


def _is_json(path: Path) -> bool:
    with open_text(path) as file:
        return file.read(4096).lstrip()[:1] in ("{", "[")


def _read(path: str | Path, layout: str, value: str, least: int, parse: Callable[[str], float]) -> _Table:
    """White-space columns, more of them than ``least`` allowed; JSON ``{query: {document: value}}``; or parquet."""
    path = Path(path)
    if is_parquet(path):
        found = read_parquet(path, value)
        return _Table(path, *found, line=np.zeros(len(found.value), np.int64)).checked()
    table = _Table(path)
    if _is_json(path):
        return _read_json(table, value, parse).checked()
    place = layout.split().index(value)
    for number, fields in lines(path):
        if len(fields) < least:
            raise ReadError(path, f"expected {layout}, got {len(fields)} columns", line=number)
        try:
            parsed = parse(fields[place])
        except ValueError as error:
            raise ReadError(
                path, f"expected {layout}; the {value} {error}, got {short(fields[place])}", line=number
            ) from None
        table.add(fields[0], fields[2], parsed, number)
    return table.checked()


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice in an object")
    return found


def _read_json(table: _Table, value: str, parse: Callable[[str], float]) -> _Table:
    try:
        with open_text(table.path) as file:
            content = json.load(file, object_pairs_hook=_distinct)
    except json.JSONDecodeError as error:
        raise ReadError(table.path, f"is not JSON: {error.msg}", line=error.lineno) from error
    except RecursionError as error:
        raise ReadError(table.path, "is nested too deep") from error
    except ReadError:
        raise
    except ValueError as error:
        raise ReadError(table.path, str(error)) from error
    if not isinstance(content, dict) or not all(isinstance(documents, dict) for documents in content.values()):
        raise ReadError(table.path, f"must be an object of objects: {{query: {{document: {value}}}}}")
    for query, documents in content.items():
        table.queries.setdefault(query, len(table.queries))  # a query may hold nothing
        for document, given in documents.items():
            try:
                if isinstance(given, bool) or not isinstance(given, int | float):
                    raise ValueError("must be a number")
                table.add(query, document, parse(str(given)), 0)
            except (ValueError, OverflowError) as error:
                where = f"query {query!r}, document {document!r}: the {value}"
                raise ReadError(table.path, f"{where} {error}, got {short(given)}") from None
    return table


def _grade(text: str) -> float:
    try:
        return float(int(text))
    except (ValueError, OverflowError):
        raise ValueError("must be an integer") from None


def _score(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if math.isnan(value):
        raise ValueError("must not be NaN")
    return value


# --- both -------------------------------------------------------------------------------------------------------------


def read_trec(
    qrels: str | Path,
    run: str | Path,
    *,
    level: int = 1,
    skip_unanswered: bool = False,
    max_documents: int | None = None,
    largest: bool = True,
    integer_ids: bool = False,
) -> TrecFiles:
    r"""A run against judgments, as :meth:`map_metrics.RetrievalMAP.update` takes it.

    Text has one line per document: of judgments ``query iteration document grade``, of runs ``query Q0 document rank
    score tag``; more columns may follow, the tag may be missing, and lines may stand in any order: only scores rank.
    JSON has ``{query: {document: grade or score}}``. Both may be gzip. Parquet (with the extra ``parquet``) has a row
    per document, in columns that are called as ranx, ir_datasets, PyTerrier or BEIR do:

    ==========  =============================================================
    queries     ``query_id``, ``q_id``, ``qid`` or ``query-id``
    documents   ``doc_id``, ``docid``, ``docno`` or ``corpus-id``
    grades      ``relevance``, ``rel``, ``label``, ``grade`` or ``score``
    scores      ``score``
    ==========  =============================================================

    Document ids follow the names downwards, so ``ties="stable"`` (:data:`map_metrics.presets.TREC`) orders equal scores
    as trec_eval does. A query of the run without judgments is left out, as there.

    Args:
        qrels: the judgments.
        run: the run.
        level: the grade from which a document is relevant (trec_eval's ``-l``). Documents below it, and those without
            a judgment, are not.
        skip_unanswered: leave out queries that the run does not answer (trec_eval's default); else they find nothing
            (its ``-c``).
        max_documents: only the first so many of each query, by score and then by name, are retrieved (its ``-M``).
        largest: False where a small score is a good one, as for the metric.
        integer_ids: names are integers and become the ids themselves: equal scores follow them upwards, as in the
            metric that wrote the files (:meth:`map_metrics.RetrievalMAP.to_trec`).

    Raises:
        ReadError: a ValueError naming file and line, what was expected and what came.
        ImportError: for parquet without pyarrow.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from map_metrics import RetrievalMAP, presets
        >>> from map_metrics.readers import read_trec
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "qrels").write_text("q1 0 d1 1\nq1 0 d2 0\nq2 0 d1 1\n")
        >>> _ = (folder / "run").write_text("q1 Q0 d2 1 0.9 mine\nq1 Q0 d1 2 0.8 mine\n")
        >>> files = read_trec(folder / "qrels", folder / "run")
        >>> metric = RetrievalMAP(**presets.TREC)
        >>> metric.update(**files.rows)
        >>> metric.compute()  # q1: 1/2, q2: not answered, 0
        tensor(0.2500, dtype=torch.float64)
    """
    judged = _read(qrels, "query iteration document grade", "grade", 4, _grade)
    found = _read(run, "query Q0 document rank score tag", "score", 5, _score)
    query_id = _ids(judged, found, "queries", integer_ids)
    document_id = _ids(judged, found, "documents", integer_ids)
    asked = np.array([query_id[name] for name in judged.queries], np.int64)
    answered = np.unique(np.array([query_id[name] for name in found.queries], np.int64)[np.unique(found.query)])
    counted = np.intersect1d(asked, answered) if skip_unanswered else np.unique(asked)
    found.value = found.value if largest else -found.value
    query, document, score, relevant = _rows(judged, found, query_id, document_id, level, max_documents)
    kept = np.isin(query, counted)
    empty = np.setdiff1d(counted, query)  # nothing relevant, nothing retrieved: still a query
    columns = [query[kept], document[kept], score[kept], relevant[kept]]
    nothing = [empty, np.zeros_like(empty), np.full(len(empty), -np.inf), np.zeros(len(empty), bool)]
    indexes, ids, preds, target = (
        torch.from_numpy(np.concatenate(pair)) for pair in zip(columns, nothing, strict=True)
    )
    return TrecFiles(
        preds if largest else -preds,
        target,
        indexes,
        ids,
        {query_id[name]: name for name in judged.queries if query_id[name] in set(counted.tolist())},
        num_unanswered=len(np.setdiff1d(asked, answered)),
        num_unjudged=len(np.setdiff1d(answered, asked)),
    )


def _rows(
    judged: _Table,
    found: _Table,
    query_id: Mapping[str, int],
    document_id: Mapping[str, int],
    level: int,
    max_documents: int | None,
) -> tuple[Any, Any, Any, Any]:
    """(n,) query, document, score and relevance: what is retrieved, then what is relevant and not retrieved."""
    pairs = []
    for table in (found, judged):
        names = np.array([query_id[name] for name in table.queries], np.int64)
        documents = np.array([document_id[name] for name in table.documents], np.int64)
        pairs.append((names[table.query], documents[table.document]))
    (query, document), (true_query, true_document) = pairs
    score = found.value
    if max_documents is not None:
        if max_documents < 1:
            raise ValueError(f"Argument `max_documents` must be a positive int, got {max_documents!r}")
        first = _first(query, document, score, max_documents)
        query, document, score = query[first], document[first], score[first]
    good = judged.value >= level
    true = _codes((true_query[good], true_document[good]), (query, document))
    relevant = np.isin(true[1], true[0])
    missed = ~np.isin(true[0], true[1])
    return (
        np.concatenate([query, true_query[good][missed]]),
        np.concatenate([document, true_document[good][missed]]),
        np.concatenate([score, np.full(int(missed.sum()), -np.inf)]),
        np.concatenate([relevant, np.ones(int(missed.sum()), bool)]),
    )


def _first(query: Any, document: Any, score: Any, count: int) -> Any:
    """The rows of the first so many documents of each query, by score downwards, then by id."""
    order = np.lexsort((document, -score, query))
    starts = np.flatnonzero(np.diff(query[order], prepend=query[order][:1] - 1))
    lengths = np.diff(np.append(starts, len(order)))
    rank = np.arange(len(order)) - np.repeat(starts, lengths)
    return order[rank < count]


def _codes(first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[Any, Any]:
    """One number for each pair (query, document), the same for equal pairs."""
    table = np.stack([np.concatenate(column) for column in zip(first, second, strict=True)], 1)
    codes = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    return codes[: len(first[0])], codes[len(first[0]) :]


def _ids(judged: _Table, found: _Table, kind: str, integer_ids: bool) -> dict[str, int]:
    """The id of each name: documents by name downwards, queries in the order of the judgments; or the names."""
    if integer_ids:
        return {name: _integer(table, kind, name) for table in (judged, found) for name in getattr(table, kind)}
    names = {**getattr(judged, kind), **getattr(found, kind)}
    return {name: i for i, name in enumerate(sorted(names, reverse=True) if kind == "documents" else names)}


def _integer(table: _Table, kind: str, name: str) -> int:
    try:
        value = int(name)
    except ValueError:
        value = 2**63
    if not -(2**63) <= value < 2**63 or str(value) != name:
        raise ReadError(table.path, f"{kind} must have integers as names with integer_ids=True, got {name!r}")
    return value
