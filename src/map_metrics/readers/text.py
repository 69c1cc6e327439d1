"""Folders of text files, one per image: ``class [score] box`` (Cartucho, Padilla), YOLO's boxes, DOTA's labels."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from map_metrics.conventions import one_of
from map_metrics.readers.corners import rectangles
from map_metrics.readers.files import ReadError, lines, short
from map_metrics.readers.images import Column, Floats, Rows, Truths, to_xywh

BOX_FORMATS = ("xyxy", "xywh", "cxcywh")
CORNERS = "corners"  # of oriented boxes
NUMBERS = {
    "xyxy": "x1 y1 x2 y2",
    "xywh": "x y width height",
    "cxcywh": "centre_x centre_y width height",
    CORNERS: "x1 y1 x2 y2 x3 y3 x4 y4",
}
NAMES = "classes.txt"  # beside YOLO's labels; no image
HEADERS = ("imagesource:", "gsd:")  # lines of DOTA's labels that are no object


class Layout(NamedTuple):
    """How a line of one side reads.

    Attributes:
        fields: what stands where: a name (``class`` or ``image``), ``score``, ``box``, ``difficult``.
        box_format: of the box.
        optional: whether the last field may be missing.
    """

    fields: tuple[str, ...]
    box_format: str
    optional: bool = False

    @classmethod
    def of(cls, box_format: str, *, truth: bool, yolo: bool) -> Layout:
        """Of a file per image: YOLO's score is last, that of the others second; DOTA's class is behind the box."""
        if yolo:
            box_format = CORNERS if box_format == CORNERS else "cxcywh"
            return cls(("class", "box") if truth else ("class", "box", "score"), box_format)
        if box_format == CORNERS:
            return cls(("box", "class", "difficult"), CORNERS, optional=True)
        one_of("box_format", box_format, BOX_FORMATS)
        return cls(("class", "box", "difficult") if truth else ("class", "score", "box"), box_format, truth)

    def __str__(self) -> str:
        words = [NUMBERS[self.box_format] if name == "box" else name for name in self.fields]
        if self.optional:
            words[-1] = f"[{words[-1]}]"
        return " ".join(words)

    @property
    def columns(self) -> list[str]:
        """The field of each column."""
        box = ["box"] * len(NUMBERS[self.box_format].split())
        return [column for name in self.fields for column in (box if name == "box" else [name])]


class Lines(NamedTuple):
    """The rows of one file: names, (n,) scores, (n, 4) or (n, 8) boxes, (n,) difficult, and the line of each."""

    names: list[str]
    score: Floats
    box: Floats
    difficult: Floats
    lines: list[int]


def read_lines(path: Path, layout: Layout) -> Lines:
    """The rows of a file; boxes are x, y, width and height, or corners.

    Raises:
        ReadError: naming file and line, what was expected and what came.
    """
    columns = layout.columns
    name = next(i for i, column in enumerate(columns) if column in ("class", "image"))
    names, values, numbers = [], [], []
    for number, fields in lines(path):
        if layout.box_format == CORNERS and fields[0].startswith(HEADERS):
            continue
        if len(fields) not in (len(columns), len(columns) - layout.optional):
            raise ReadError(path, f"expected {layout}, got {len(fields)} fields", line=number)
        if layout.optional:
            fields = [*fields, "0"][: len(columns)]
            fields[-1] = "1" if fields[-1] == "difficult" else fields[-1]
        names.append(fields.pop(name))
        values.append([_number(path, number, layout, field) for field in fields])
        numbers.append(number)
    table = np.array(values, dtype=np.float64).reshape(len(values), len(columns) - 1)
    rest = columns[:name] + columns[name + 1 :]

    def column(wanted: str) -> Floats:
        found: Floats = table[:, [i for i, field in enumerate(rest) if field == wanted]]
        return found

    box = column("box")
    score, difficult = (column(key)[:, 0] if key in rest else np.zeros(len(values)) for key in ("score", "difficult"))
    if layout.box_format != CORNERS:
        given, box = box, to_xywh(box, layout.box_format)
        _refuse(path, numbers, box[:, 2:] < 0, "a box must have a width and a height >= 0", given)
    _refuse(path, numbers, (difficult != 0) & (difficult != 1), "difficult must be 0 or 1", difficult)
    return Lines(names, score, box, difficult, numbers)


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
        folder: of lines ``class x1 y1 x2 y2 [difficult]`` (or another box), or YOLO's ``class cx cy width height``;
            with corners DOTA's ``x1 y1 x2 y2 x3 y3 x4 y4 class [difficult]``, or YOLO's
            ``class x1 y1 x2 y2 x3 y3 x4 y4``.
        box_format: ``"xyxy"``, ``"xywh"`` or ``"cxcywh"``, in pixels; ``"corners"``: of oriented boxes.
        sizes: width and height of each image in pixels: the boxes are YOLO's, in parts of them.
        classes: the names of the classes, in the order of their labels; YOLO's lines may hold numbers instead. None:
            those that the files name, sorted, and any that the detections add.

    Raises:
        ReadError: naming file and line, what was expected and what came.
    """
    layout = Layout.of(box_format, truth=True, yolo=sizes is not None)
    found = [(path, read_lines(path, layout)) for path in text_files(folder)]
    names = classes if classes is not None else _sorted({name for _, part in found for name in part.names})
    known: dict[Hashable, int] = {name: i for i, name in enumerate(names)}
    if sizes is not None and classes is not None:
        known |= {str(i): i for i in range(len(names)) if str(i) not in known}
    images: dict[Hashable, int] = {path.stem: i for i, (path, _) in enumerate(found)}
    class_names = dict(enumerate(names))
    truths = Truths(Path(folder), [], images, known, list(class_names), class_names, closed=classes is not None)
    rows = Rows()
    for i, (path, part) in enumerate(found):
        label = _labels(path, part, truths, skip=False)
        box = _boxes(path, part.box, sizes)
        rows.add(np.full(len(label), i), {"labels": label, "boxes": box, "difficult": part.difficult.astype(np.int64)})
    truths.target = rows.by_image(len(found), {**no_rows(layout.box_format), "difficult": np.zeros(0, np.int64)})
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
        folder: of lines ``class score x1 y1 x2 y2`` (or another box), or YOLO's ``class cx cy width height score``;
            with corners YOLO's ``class x1 y1 x2 y2 x3 y3 x4 y4 score``.
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
        part = read_lines(path, layout)
        if path.stem not in truths.images:
            if not skip_unknown:
                raise ReadError(path, f"the image {path.stem!r} is not in the ground truth {truths.path}")
            skipped += len(part.names)
            continue
        label = _labels(path, part, truths, skip=skip_unknown)
        known = label >= 0
        skipped += int((~known).sum())
        labels = np.array([*truths.labels, 0], np.int64)[label[known]]
        image = np.full(int(known.sum()), truths.images[path.stem])
        rows.add(image, {"labels": labels, "scores": part.score[known], "boxes": _boxes(path, part.box, sizes)[known]})
    return rows.by_image(len(truths.target), {**no_rows(layout.box_format), "scores": np.zeros(0)}), skipped


def no_rows(box_format: str = "xywh") -> dict[str, Column]:
    """The columns that both sides have."""
    return {"labels": np.zeros(0, np.int64), "boxes": np.zeros((0, 5 if box_format == CORNERS else 4))}


def _sorted(names: set[str]) -> list[str]:
    """By number where all are whole numbers, else by name."""
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names)


def _labels(path: Path, part: Lines, truths: Truths, *, skip: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(n,) places of the classes, -1 for unknown ones with ``skip``."""
    found = [truths.place_of_class(name) for name in part.names]
    if -1 in found and not skip:
        row = found.index(-1)
        raise ReadError(path, f"the class {part.names[row]!r} is not among the classes", line=part.lines[row])
    return np.array(found, dtype=np.int64)


def _boxes(path: Path, box: Floats, sizes: Mapping[str, tuple[int, int]] | None) -> Floats:
    """(n, 4), or of corners (n, 5); with sizes from parts of the image."""
    if sizes is not None:
        if path.stem not in sizes:
            raise ReadError(path, f"the image {path.stem!r} has no size")
        box = box * np.array(sizes[path.stem] * (box.shape[1] // 2), dtype=np.float64)
    return rectangles(box) if box.shape[1] == 8 else box


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
