"""Saved states: the tables of a metric in one npz file, under a header that says whose they are. Nothing is pickled."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

FORMAT, VERSION = "map-metrics state", 1
HEADER = "header"


class Header(NamedTuple):
    """Whose tables a file holds.

    Attributes:
        metric: the name of the class.
        config: the arguments that change what `update` stores or refuses.
        note: what else was saved: plain JSON.
    """

    metric: str
    config: dict[str, Any]
    note: dict[str, Any]


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when all is written, and leaves it as it is on an error."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON keeps it: tuples become lists."""
    kept: dict[str, Any] = json.loads(json.dumps(dict(config)))
    return kept


def write_state(path: str | Path, header: Header, tables: Mapping[str, Tensor]) -> None:
    """One array per table, and the header as text."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **header._asdict()})
    with replacing(path) as file:
        arrays = {name: table.numpy() for name, table in tables.items()}
        np.savez(file, **{HEADER: np.array(text)}, **arrays)  # type: ignore[arg-type]


def read_header(path: str | Path) -> Header:
    """The header alone; raises as :func:`read_state`."""
    return _read(Path(path), with_tables=False)[0]


def read_state(path: str | Path) -> tuple[Header, dict[str, Tensor]]:
    """The header and the tables.

    Raises:
        ValueError: if the file is no saved state, is broken or of a later version.
    """
    return _read(Path(path), with_tables=True)


def _read(path: Path, *, with_tables: bool) -> tuple[Header, dict[str, Tensor]]:
    with path.open("rb") as file:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                content = json.loads(str(arrays[HEADER]))
                if content["format"] != FORMAT:
                    raise ValueError(f"its format is {content['format']!r}")
                if content["version"] != VERSION:
                    raise ValueError(f"its version is {content['version']!r}, this package reads {VERSION}")
                header = Header(content["metric"], content["config"], content["note"])
                names = [name for name in arrays.files if name != HEADER and with_tables]
                return header, {name: torch.from_numpy(arrays[name]) for name in names}
        except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"{path}: must be a state that `save` wrote, got: {text}") from error


def check_header(path: str | Path, header: Header, metric: str, config: Mapping[str, Any]) -> None:
    """Refuse a state of another class or of other arguments, naming what differs."""
    if header.metric != metric:
        raise ValueError(f"{path}: holds a state of {header.metric}, not of {metric}")
    mine, theirs = plain(config), header.config
    for name in sorted({*mine, *theirs}):
        if mine.get(name) != theirs.get(name):
            raise ValueError(
                f"{path}: was saved by a {metric} of other arguments: `{name}` is {theirs.get(name)!r} there and "
                f"{mine.get(name)!r} here"
            )
