"""Arrays of codes or embeddings with labels: npz, npy and pt files, and folders of npy. Never unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from map_metrics.readers.files import ReadError, short

SIDES = ("query", "gallery")


class LabelledRows(NamedTuple):
    """What :meth:`map_metrics.HashingMAPAtK.update` and :meth:`map_metrics.EmbeddingMAPAtK.update` take.

    Attributes:
        data: (n, width) codes or embeddings.
        labels: (n,) or (n, classes).
        query: (n,) bool.
        ids: (n,) int64, or None.
    """

    data: Tensor
    labels: Tensor
    query: Tensor
    ids: Tensor | None


def read_arrays(path: str | Path) -> dict[str, Tensor]:
    """The arrays of an npz, npy or pt file, or of a folder of npy files, by name.

    Raises:
        ReadError: if it is none of these, is broken, or would need unpickling.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("*.npy"))
        if not files:
            raise ReadError(path, "must hold .npy files")
        return {file.stem: read_arrays(file)[file.stem] for file in files}
    with path.open("rb") as file:
        if not file.read(1):
            raise ReadError(path, "is empty")
        file.seek(0)
        try:
            return _load(path, file)
        except ReadError:
            raise
        except Exception as error:  # what broken bytes make of the unpickler that unpickles nothing can be anything
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            expected = "must be an npz, npy or pt archive of plain arrays"
            raise ReadError(path, f"{expected}, got: {short(text, 120)}") from error


def _load(path: Path, file: BinaryIO) -> dict[str, Tensor]:
    if path.suffix in (".pt", ".pth"):
        return _tensors(path, torch.load(file, map_location="cpu", weights_only=True))
    loaded = np.load(file, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return {path.stem: _tensor(path, path.stem, loaded)}
    with loaded:
        return {name: _tensor(path, name, loaded[name]) for name in loaded.files}


def _tensors(path: Path, content: Any) -> dict[str, Tensor]:
    if isinstance(content, Tensor):
        return {path.stem: content}
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ReadError(path, f"must hold a tensor or a dict of tensors, got {type(content).__name__}")
    return {str(name): value for name, value in content.items()}


def _tensor(path: Path, name: str, array: np.ndarray[Any, Any]) -> Tensor:
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise ReadError(path, f"the array '{name}' must hold numbers, got {array.dtype}")
    native = np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    wide = native.astype(np.int64) if native.dtype.kind == "u" and native.dtype.itemsize > 1 else native
    if (wide < 0).any() and native.dtype.kind == "u":
        raise ReadError(path, f"the array '{name}' must hold integers below 2^63")
    return torch.from_numpy(wide)


def read_archive(
    path: str | Path,
    data: str = "codes",
    *,
    labels: str = "labels",
    ids: str | None = None,
    num_queries: int | None = None,
) -> LabelledRows:
    """Labelled rows of queries and a gallery, from the arrays of an archive.

    Either both sides lie in arrays of their own, ``query_codes``, ``query_labels``, ``gallery_codes`` and
    ``gallery_labels`` (and ``query_ids``, ``gallery_ids``), or one array each, ``codes``, ``labels`` (and ``ids``),
    holds both: then the bool array ``query`` says which rows are queries, or ``num_queries`` that the first are.

    Args:
        path: as :func:`read_arrays` takes it.
        data: the name of the array of codes or embeddings.
        labels: the name of the array of labels.
        ids: the name of the array of ids; None: ``ids``, if the archive holds it.
        num_queries: how many rows at the beginning are queries.

    Raises:
        ReadError: a ValueError naming the file and the array, what was expected and what came.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from map_metrics import HashingMAPAtK
        >>> from map_metrics.readers import read_archive
        >>> path = Path(tempfile.mkdtemp()) / "codes.npz"
        >>> np.savez(path, codes=np.array([[1, 1], [1, 1], [-1, 1]]), labels=np.array([7, 7, 3]))
        >>> rows = read_archive(path, num_queries=1)
        >>> metric = HashingMAPAtK()
        >>> metric.update(rows.data, rows.labels, query=rows.query, ids=rows.ids)
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """
    path = Path(path)
    arrays = read_arrays(path)
    apart = all(f"{side}_{data}" in arrays for side in SIDES)
    name = ids or "ids"
    if apart:
        parts = [{key: _named(path, arrays, f"{side}_{key}") for key in (data, labels)} for side in SIDES]
        query = torch.cat([torch.full((len(part[data]),), i == 0) for i, part in enumerate(parts)])
        columns = {key: _join(path, key, [part[key] for part in parts]) for key in (data, labels)}
        given = [arrays.get(f"{side}_{name}") for side in SIDES]
        if (given[0] is None) != (given[1] is None) or (ids is not None and given[0] is None):
            raise ReadError(path, f"must hold query_{name} and gallery_{name}, got {sorted(arrays)}")
        found = None if given[0] is None or given[1] is None else _join(path, name, [given[0], given[1]])
    else:
        columns = {key: _named(path, arrays, key) for key in (data, labels)}
        query = _queries(path, arrays, len(columns[data]), num_queries)
        found = _named(path, arrays, name) if ids is not None else arrays.get(name)
    for key, column in (*columns.items(), (name, found)):
        if column is not None and len(column) != len(query):
            raise ReadError(
                path, f"'{key}' must have one row for each of the {len(query)} of '{data}', got {len(column)}"
            )
    return LabelledRows(columns[data], columns[labels], query, found)


def _named(path: Path, arrays: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in arrays:
        raise ReadError(path, f"must hold the array '{name}', got {sorted(arrays)}")
    if not arrays[name].ndim:
        raise ReadError(path, f"the array '{name}' must have rows, got a single number")
    return arrays[name]


def _join(path: Path, name: str, parts: list[Tensor]) -> Tensor:
    if parts[0].ndim != parts[1].ndim or parts[0].shape[1:] != parts[1].shape[1:] or parts[0].dtype != parts[1].dtype:
        first, second = (f"{part.dtype} {tuple(part.shape)}" for part in parts)
        raise ReadError(
            path, f"query_{name} and gallery_{name} must be of one width and dtype, got {first} and {second}"
        )
    return torch.cat(parts)


def _queries(path: Path, arrays: Mapping[str, Tensor], count: int, num_queries: int | None) -> Tensor:
    """(n,) bool."""
    if num_queries is not None:
        if not 0 < num_queries <= count:
            raise ReadError(
                path, f"must have at least num_queries={num_queries} rows (and that more than 0), got {count}"
            )
        return torch.arange(count) < num_queries
    query = arrays.get("query")
    if query is None:
        raise ReadError(
            path,
            f"must hold query_... and gallery_... arrays or a bool array 'query', or say how many rows are queries "
            f"(num_queries); got {sorted(arrays)}",
        )
    if query.dtype != torch.bool or query.shape != (count,):
        raise ReadError(path, f"'query' must be bool of the shape ({count},), got {query.dtype} {tuple(query.shape)}")
    return query
