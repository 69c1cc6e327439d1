"""Folders of text files, one per image: ``class [score] box`` (Cartucho, Padilla) and YOLO's relative boxes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from map_metrics.conventions import one_of
from map_metrics.readers.files import ReadError, lines, short
from map_metrics.readers.images import Column, Floats, Rows, Truths, to_xywh

BOX_FORMATS = ("xyxy", "xywh", "cxcywh")
CORNERS = {"xyxy": "x1 y1 x2 y2", "xywh": "x y width height", "cxcywh": "centre_x centre_y width height"}
NAMES = "classes.txt"  # beside YOLO's labels; no image


class Layout(NamedTuple):
    """How a line of one side reads.

    Attributes:
        fields: what stands where: ``class``, ``score``, ``box`` (four numbers), ``difficult``.
        box_format: of the box.
        optional: whether the last field may be missing.
    """

    fields: tuple[str, ...]
    box_format: str
    optional: bool = False

    @classmethod
    def of(cls, box_format: str, *, truth: bool, yolo: bool) -> Layout:
        """Of the text formats: YOLO's score is the last, that of the others the second."""
        if yolo:
            return cls(("class", "box") if truth else ("class", "box", "score"), "cxcywh")
        one_of("box_format", box_format, BOX_FORMATS)
        return cls(("class", "box", "difficult") if truth else ("class", "score", "box"), box_format, truth)

    def __str__(self) -> str:
        words = [CORNERS[self.box_format] if name == "box" else name for name in self.fields]
        if self.optional:
            words[-1] = f"[{words[-1]}]"
        return " ".join(words)


class _Lines(NamedTuple):
    """The rows of one file: class names, (n,) scores, (n, 4) boxes, (n,) difficult, and the line of each."""

    classes: list[str]
    score: Floats
    box: Floats
    difficult: Floats
    lines: list[int]


def _read_lines(path: Path, layout: Layout) -> _Lines:
    size = sum(4 if name == "box" else 1 for name in layout.fields)
    classes, values, numbers = [], [], []
    for number, fields in lines(path):
        if len(fields) not in (size, size - layout.optional):
            raise ReadError(path, f"expected {layout}, got {len(fields)} fields", line=number)
        if layout.optional:
            fields = [*fields, "0"][:size]
            fields[-1] = "1" if fields[-1] == "difficult" else fields[-1]
        row = [_number(path, number, layout, field) for field in fields[1:]]
        classes.append(fields[0])
        values.append(row)
        numbers.append(number)
    table = np.array(values, dtype=np.float64).reshape(len(values), size - 1)
    at = layout.fields.index("box") - 1
    box = table[:, at : at + 4]
    rest = np.delete(table, range(at, at + 4), 1)[:, 0] if size > 5 else np.zeros(len(values))
    score, difficult = (rest, rest * 0) if "score" in layout.fields else (rest * 0, rest)
    _refuse(path, numbers, to_xywh(box, layout.box_format)[:, 2:] < 0, "a box must have a width and a height >= 0", box)
    _refuse(path, numbers, (difficult != 0) & (difficult != 1), "difficult must be 0 or 1", difficult)
    return _Lines(classes, score, to_xywh(box, layout.box_format), difficult, numbers)


def _number(path: Path, line: int, layout: Layout, field: str) -> float:
    try:
        value = float(field)
    except ValueError:
        raise ReadError(path, f"expected {layout}, got {short(field)} for a number", line=line) from None
    if not np.isfinite(value):
        raise ReadError(path, f"all numbers must be finite, got {field}", line=line)
    return value


def _refuse(path: Path, numbers: list[int], bad: Any, expected: str, values: Floats) -> None:
    if bad.any():
        row = int(np.argwhere(bad)[0, 0])
        raise ReadError(path, f"{expected}, got {values[row].tolist()}", line=numbers[row])


def text_files(folder: str | Path) -> list[Path]:
    """The files of a folder, by name; a file of class names is none of them."""
    files = sorted((path for path in Path(folder).glob("*.txt") if path.name != NAMES), key=lambda path: path.stem)
    if not files:
        raise ReadError(folder, "must hold .txt files, one per image")
    return files


# --- ground truth and detections --------------------------------------------------------------------------------------


def read_text_truths(
    folder: str | Path,
    box_format: str = "xyxy",
    *,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    classes: list[str] | None = None,
) -> Truths:
    """The ground truth of a folder: ``NAME.txt`` per image, a line per object.

    Args:
        folder: of lines ``class x1 y1 x2 y2 [difficult]`` (or another box), or YOLO's ``class cx cy width height``.
        box_format: ``"xyxy"``, ``"xywh"`` or ``"cxcywh"``, in pixels.
        sizes: width and height of each image in pixels: the boxes are YOLO's, in parts of them.
        classes: the names of the classes, in the order of their labels; YOLO's lines may hold numbers instead. None:
            those that the files name, sorted, and any that the detections add.

    Raises:
        ReadError: naming file and line, what was expected and what came.
    """
    layout = Layout.of(box_format, truth=True, yolo=sizes is not None)
    found = [(path, _read_lines(path, layout)) for path in text_files(folder)]
    names = classes if classes is not None else _sorted({name for _, part in found for name in part.classes})
    known: dict[Hashable, int] = {name: i for i, name in enumerate(names)}
    if sizes is not None and classes is not None:
        known |= {str(i): i for i in range(len(names)) if str(i) not in known}
    images: dict[Hashable, int] = {path.stem: i for i, (path, _) in enumerate(found)}
    class_names = dict(enumerate(names))
    truths = Truths(Path(folder), [], images, known, list(class_names), class_names, closed=classes is not None)
    rows = Rows()
    for i, (path, part) in enumerate(found):
        label = _labels(path, part, truths, skip=False)
        box = _pixels(path, part.box, sizes)
        rows.add(np.full(len(label), i), {"labels": label, "boxes": box, "difficult": part.difficult.astype(np.int64)})
    truths.target = rows.by_image(len(found), {**no_rows(), "difficult": np.zeros(0, np.int64)})
    for i, image in enumerate(truths.target):
        image["image_id"] = i
    return truths


def read_text_results(
    folder: str | Path,
    truths: Truths,
    box_format: str = "xyxy",
    *,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    skip_unknown: bool = False,
) -> tuple[list[dict[str, Any]], int]:
    """The detections of a folder: one dict per image of the ground truth, and how many were left out.

    An image without a file has no detections.

    Args:
        folder: of lines ``class score x1 y1 x2 y2`` (or another box), or YOLO's ``class cx cy width height score``.
        truths: the ground truth, of a text or XML folder.
        box_format: as in :func:`read_text_truths`.
        sizes: as there.
        skip_unknown: leave out detections of images, and of classes outside of a declared list, that the ground truth
            does not hold; else they are an error.

    Raises:
        ReadError: naming file and line, what was expected and what came.
    """
    layout = Layout.of(box_format, truth=False, yolo=sizes is not None)
    rows, skipped = Rows(), 0
    for path in text_files(folder):
        part = _read_lines(path, layout)
        if path.stem not in truths.images:
            if not skip_unknown:
                raise ReadError(path, f"the image {path.stem!r} is not in the ground truth {truths.path}")
            skipped += len(part.classes)
            continue
        label = _labels(path, part, truths, skip=skip_unknown)
        known = label >= 0
        skipped += int((~known).sum())
        labels = np.array([*truths.labels, 0], np.int64)[label[known]]
        image = np.full(int(known.sum()), truths.images[path.stem])
        rows.add(image, {"labels": labels, "scores": part.score[known], "boxes": _pixels(path, part.box, sizes)[known]})
    return rows.by_image(len(truths.target), {**no_rows(), "scores": np.zeros(0)}), skipped


def no_rows() -> dict[str, Column]:
    """The columns that both sides have."""
    return {"labels": np.zeros(0, np.int64), "boxes": np.zeros((0, 4))}


def _sorted(names: set[str]) -> list[str]:
    """By number where all are whole numbers, else by name."""
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names)


def _labels(path: Path, part: _Lines, truths: Truths, *, skip: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(n,) places of the classes, -1 for unknown ones with ``skip``."""
    found = [truths.place_of_class(name) for name in part.classes]
    if -1 in found and not skip:
        row = found.index(-1)
        raise ReadError(path, f"the class {part.classes[row]!r} is not among the classes", line=part.lines[row])
    return np.array(found, dtype=np.int64)


def _pixels(path: Path, box: Floats, sizes: Mapping[str, tuple[int, int]] | None) -> Floats:
    if sizes is None:
        return box
    if path.stem not in sizes:
        raise ReadError(path, f"the image {path.stem!r} has no size")
    return box * np.array(sizes[path.stem] * 2, dtype=np.float64)


# --- lists beside them ------------------------------------------------------------------------------------------------


def read_sizes(path: str | Path) -> dict[str, tuple[int, int]]:
    """Image sizes from lines ``name width height``; the name with or without its suffix."""
    sizes = {}
    for number, fields in lines(path):
        if len(fields) != 3 or not all(field.isdecimal() and int(field) > 0 for field in fields[1:]):
            raise ReadError(path, f"expected name width height, got {short(' '.join(fields))}", line=number)
        sizes[Path(fields[0]).stem if "." in fields[0] else fields[0]] = (int(fields[1]), int(fields[2]))
    return sizes


def read_names(path: str | Path) -> list[str]:
    """Class names, one a line; the label is the place."""
    names = [" ".join(fields) for _, fields in lines(path)]
    if len(set(names)) < len(names) or not names:
        raise ReadError(path, f"must hold distinct names, one a line, got {len(names)} lines")
    return names
