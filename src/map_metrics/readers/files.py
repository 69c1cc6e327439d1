"""Opening files: gzip or not, UTF-8, any line ends; and errors that say where."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

GZIP = b"\x1f\x8b"


class ReadError(ValueError):
    """What is wrong with a file, in one line: the path, the line where there is one, what was expected, what came.

    Example:
        >>> raise ReadError("run.txt", "the score must be a number, got 'x'", line=3)
        Traceback (most recent call last):
            ...
        map_metrics.readers.files.ReadError: run.txt:3: the score must be a number, got 'x'
    """

    def __init__(self, path: str | Path, message: str, line: int | None = None) -> None:
        super().__init__(f"{path}{'' if line is None else f':{line}'}: {message}")


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == GZIP


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    r"""A UTF-8 file, gzip or not, with ``\n`` for all line ends; what cannot be read is a :class:`ReadError`."""
    path = Path(path)
    opened = gzip.open if _is_gzip(path) else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError as error:
        raise ReadError(path, "must be UTF-8", line=_undecodable(path)) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ReadError(path, f"must be a whole gzip file, got: {error}") from error


def _undecodable(path: Path) -> int:
    """The first line that is not UTF-8; the text layer reads ahead, and so does not know."""
    with gzip.open(path) if _is_gzip(path) else path.open("rb") as file:
        number = 0
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
        return number


def lines(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Number and fields of each line that is not blank; fields are parted by white space."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            fields = line.split()
            if fields:
                yield number, fields


def short(value: object, limit: int = 60) -> str:
    """A value for a message of one line."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
