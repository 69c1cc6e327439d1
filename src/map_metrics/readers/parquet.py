"""Judgments and runs as parquet: the columns of query, document and value, under the names that tools give them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from map_metrics.readers.files import ReadError, short
from map_metrics.readers.images import Floats, Integers

MAGIC = b"PAR1"
QUERY = ("query_id", "q_id", "qid", "query-id")
DOCUMENT = ("doc_id", "docid", "docno", "corpus-id")
VALUE = {"grade": ("relevance", "rel", "label", "grade", "score"), "score": ("score",)}


class ParquetRows(NamedTuple):
    """The rows of one file; names are numbered as they are met.

    Attributes:
        queries: number of each query's name.
        documents: number of each document's name.
        query: (n,) number of the query.
        document: (n,) number of the document.
        value: (n,) grade or score.
    """

    queries: dict[str, int]
    documents: dict[str, int]
    query: Integers
    document: Integers
    value: Floats


def is_parquet(path: str | Path) -> bool:
    """By its first bytes."""
    with Path(path).open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_parquet(path: str | Path, value: str) -> ParquetRows:
    """Three columns of a parquet file; the others are not read.

    Args:
        path: with queries in a column ``query_id``, ``q_id``, ``qid`` or ``query-id``, documents in ``doc_id``,
            ``docid``, ``docno`` or ``corpus-id`` (strings or integers), grades in ``relevance``, ``rel``, ``label``,
            ``grade`` or ``score`` (whole numbers), scores in ``score``; the first of these that is there.
        value: ``"grade"`` or ``"score"``.

    Raises:
        ReadError: naming column and row, what was expected and what came.
        ImportError: without pyarrow, the extra ``parquet``.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(f'{path}: parquet needs pyarrow: pip install "torchmetrics-map[parquet]"') from error
    path = Path(path)
    try:
        with parquet.ParquetFile(path) as file:
            columns = [_column(path, file.schema_arrow.names, what) for what in (QUERY, DOCUMENT, VALUE[value])]
            table = file.read(columns=columns)
        table.validate(full=True)  # among others, that strings are UTF-8
    except (pyarrow.ArrowException, OSError) as error:
        raise ReadError(path, f"must be a whole parquet file, got: {short(str(error).splitlines()[0], 120)}") from error
    for name in columns:
        empty = table[name].is_null().to_numpy()
        _refuse(path, name, empty, "must not be empty", table)
    queries, query = _names(path, table, columns[0])
    documents, document = _names(path, table, columns[1])
    return ParquetRows(queries, documents, query, document, _numbers(path, table, columns[2], value))


def _column(path: Path, names: Sequence[str], wanted: Sequence[str]) -> str:
    found = [name for name in wanted if name in names]
    if not found:
        raise ReadError(path, f"must hold a column {' or '.join(map(repr, wanted))}, got {short(names)}")
    return found[0]


def _refuse(path: Path, name: str, bad: Any, expected: str, table: Any) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ReadError(path, f"column {name!r}, row {row}: {expected}, got {short(table[name][row].as_py())}")


def _names(path: Path, table: Any, name: str) -> tuple[dict[str, int], Integers]:
    """Number of each name, and that of each row."""
    from pyarrow import large_string, types

    kind = table.schema.field(name).type
    plain = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_integer(plain) or str(plain) in ("string", "large_string", "string_view")):
        raise ReadError(path, f"column {name!r} must hold strings or integers, got {kind}")
    coded = table[name].cast(plain).cast(large_string()).combine_chunks().dictionary_encode()
    names = {found: i for i, found in enumerate(coded.dictionary.to_pylist())}
    return names, coded.indices.to_numpy().astype(np.int64)


def _numbers(path: Path, table: Any, name: str, value: str) -> Floats:
    """(n,) float64; grades are whole, scores are not NaN."""
    from pyarrow import types

    kind = table.schema.field(name).type
    if not (types.is_integer(kind) or types.is_floating(kind)):
        raise ReadError(path, f"column {name!r} must hold numbers, got {kind}")
    numbers: Floats = table[name].to_numpy().astype(np.float64)
    if value == "grade":
        _refuse(
            path,
            name,
            ~np.isfinite(numbers) | (numbers != np.trunc(numbers)),
            "the grade must be a whole number",
            table,
        )
    else:
        _refuse(path, name, np.isnan(numbers), "the score must not be NaN", table)
    return numbers
