"""The lists of a JSON file, batch after batch: a large file is never in memory as a whole.

Python's own decoder reads from a window of the text: long stretches of entries that look whole as one list, and the
others one at a time. Where an entry ends beyond the window, the window grows; where it is broken, the error says the
line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from json.decoder import JSONDecodeError
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from map_metrics.readers.files import ReadError, open_text

WINDOW = 1 << 20  # characters
STRETCH = 1 << 18  # characters
BATCH = 1 << 12  # entries
_SPACE = re.compile(r"[ \t\n\r]*")
_SCAN = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_OBJECT = re.compile(r"[ \t\n\r]*\{")
_CUT = 16  # what ends, or is wrong, so near the end of the window may be cut: 1.5e+3, true, -Infinity, \u00e9


class Entries(NamedTuple):
    """Consecutive entries of one list.

    Attributes:
        path: the file.
        key: of the list in the file; None where the file is the list.
        first: place of the first entry in its list.
        values: what they hold.
        lines: the line of each.
    """

    path: Path
    key: str | None
    first: int
    values: list[Any]
    lines: Sequence[int]

    def error(self, i: int, message: str) -> ReadError:
        """What is wrong with entry ``i`` of these."""
        name = f"{self.key}[{self.first + i}]" if self.key else f"entry {self.first + i}"
        return ReadError(self.path, f"{name}: {message}", line=self.lines[i])


class _Lines(Sequence[int]):
    """The line of each entry of a stretch of text, counted when an error asks for one."""

    def __init__(self, text: str, first: int, count: int) -> None:
        self.text, self.first, self.num = text, first, count

    @cached_property
    def _all(self) -> list[int]:
        line, at = self.first, 0
        lines: list[int] = []
        for _ in range(self.num):
            start = _SPACE.match(self.text, at).end()  # type: ignore[union-attr]
            line += self.text.count("\n", at, start)
            lines.append(line)
            at = _SCAN(self.text, start)[1]
            after = self.text.find(",", at) + 1  # only space stands before it
            line += self.text.count("\n", start, after)
            at = after
        return lines

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, i: Any) -> Any:
        return self._all[i]


class _Scanner:
    """A window that moves over the text; ``at`` is the place in it, ``line`` the line of that place."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self.path, self.file = path, file
        self.buffer, self.at, self.line = "", 0, 1
        self.ended = False

    def _more(self) -> bool:
        piece = self.file.read(max(WINDOW, len(self.buffer) - self.at))
        self.ended = not piece
        self.buffer, self.at = self.buffer[self.at :] + piece, 0
        return not self.ended

    def _move(self, to: int) -> None:
        self.line += self.buffer.count("\n", self.at, to)
        self.at = to

    def peek(self) -> str:
        """The next character that is not space; "" at the end."""
        while True:
            self._move(_SPACE.match(self.buffer, self.at).end())  # type: ignore[union-attr]
            if self.at < len(self.buffer):
                return self.buffer[self.at]
            if self.ended or not self._more():
                return ""

    def take(self, expected: str) -> str:
        """Step over the next character, which must be one of these."""
        found = self.peek()
        if not found or found not in expected:
            wanted = " or ".join(repr(c) for c in expected)
            raise self.error(f"expected {wanted}, got {found!r}" if found else f"ends where {wanted} was expected")
        self._move(self.at + 1)
        return found

    def value(self) -> Any:
        """The next value."""
        if not self.peek():
            raise self.error("ends where a value was expected")
        while True:
            try:
                value, end = _SCAN(self.buffer, self.at)
            except StopIteration as error:
                problem, place, cut = "expected a value", int(error.value), False
            except JSONDecodeError as error:
                problem, place, cut = error.msg, error.pos, error.msg.startswith("Unterminated string")
            except RecursionError as error:
                raise self.error("is nested too deep") from error
            except ValueError as error:  # Python's limit for text that becomes an int
                raise self.error("holds a number of too many digits") from error
            else:
                if end <= len(self.buffer) - _CUT or self.ended:
                    self._move(end)
                    return value
                place, problem, cut = end, "", True  # a number may go on behind the window
            if not self.ended and (cut or place > len(self.buffer) - _CUT):
                self._more()
            elif problem:
                self._move(place)
                if cut or _SPACE.fullmatch(self.buffer, place):
                    raise self.error("is cut off: no end of its JSON")
                raise self.error(f"is not JSON: {problem.removesuffix(' at')}")

    def error(self, message: str) -> ReadError:
        """At the current place."""
        return ReadError(self.path, message, line=self.line)

    def _stretch(self) -> tuple[list[Any], Sequence[int]] | None:
        """Entries up to and with a comma, and their lines; None where the text does not look like many whole ones."""
        if len(self.buffer) - self.at < STRETCH and not self._more():
            return None
        end = self.at + STRETCH
        while (end := self.buffer.rfind("},", self.at, end)) >= 0 and not _OBJECT.match(self.buffer, end + 2):
            pass  # the end of an object inside an entry
        if end < 0:
            return None
        text = self.buffer[self.at : end + 1]
        try:
            values = json.loads(f"[{text}]")
        except (ValueError, RecursionError):  # the end of the list, a brace in a string, or an error
            return None
        line, count = self.line, len(values)
        self._move(end + 2)
        return values, _Lines(text, line, count) if self.line > line else [line] * count

    def entries(self, key: str | None) -> Iterator[Entries]:
        """The entries of the list that begins here."""
        self.take("[")
        first = 0
        values: list[Any] = []
        numbers: list[int] = []
        more = self.peek() != "]"
        while more:
            self.peek()
            if not values and (stretch := self._stretch()):
                yield Entries(self.path, key, first, *stretch)
                first += len(stretch[0])
                continue
            numbers.append(self.line)
            values.append(self.value())
            more = self.take(",]") == ","
            if len(values) == BATCH or not more:
                yield Entries(self.path, key, first, values, numbers)
                first, values, numbers = first + len(values), [], []
        if not first:
            self.take("]")
            yield Entries(self.path, key, 0, [], [])


def json_lists(path: str | Path) -> Iterator[Entries]:
    r"""The lists of a JSON file that is a list, or an object with lists among its values; at least one batch of each.

    Raises:
        ReadError: if the file is not JSON of that kind, or not UTF-8.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "a.json"
        >>> _ = path.write_text('{"info": 1, "images": [{"id": 3},\n {"id": 4}]}')
        >>> [(batch.key, batch.values, batch.lines) for batch in json_lists(path)]
        [('images', [{'id': 3}, {'id': 4}], [1, 2])]
    """
    path = Path(path)
    with open_text(path) as file:
        scanner = _Scanner(path, file)
        begin = scanner.peek()
        if not begin:
            raise scanner.error("is empty, expected JSON")
        if begin == "[":
            yield from scanner.entries(None)
        elif begin == "{":
            yield from _members(scanner)
        else:
            raise scanner.error("must hold a JSON list or object")
        if scanner.peek():
            raise scanner.error("must end behind its JSON")


def _members(scanner: _Scanner) -> Iterator[Entries]:
    scanner.take("{")
    more = scanner.peek() != "}"
    if not more:
        scanner.take("}")
    while more:
        if scanner.peek() != '"':
            raise scanner.error("expected a key")
        key = scanner.value()
        scanner.take(":")
        if scanner.peek() == "[":
            yield from scanner.entries(key)
        else:
            scanner.value()
        more = scanner.take(",}") == ","
