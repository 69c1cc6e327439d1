"""Pascal VOC's annotations: a folder of XML files, one per image."""

from __future__ import annotations

import math
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from map_metrics.readers.files import ReadError, short
from map_metrics.readers.images import Rows, Truths, to_xywh
from map_metrics.readers.text import no_rows

CORNERS = ("xmin", "ymin", "xmax", "ymax")


class _Object(NamedTuple):
    name: str
    corners: list[float]
    difficult: int


def read_voc_truths(folder: str | Path, classes: list[str] | None = None) -> Truths:
    """The ground truth of a folder of VOC's XML files; an image is called as its file.

    Args:
        folder: of ``NAME.xml`` with ``object`` (``name``, ``bndbox`` of ``xmin``, ``ymin``, ``xmax``, ``ymax``,
            optionally ``difficult``).
        classes: the names of the classes, in the order of their labels; None: those that the files name, sorted, and
            any that the detections add.

    Raises:
        ReadError: naming file and object, what was expected and what came.
    """
    files = sorted(Path(folder).glob("*.xml"), key=lambda path: path.stem)
    if not files:
        raise ReadError(folder, "must hold .xml files, one per image")
    found = [_objects(path) for path in files]
    names = classes if classes is not None else sorted({entry.name for part in found for entry in part})
    class_names = dict(enumerate(names))
    known: dict[Hashable, int] = {name: i for i, name in class_names.items()}
    images: dict[Hashable, int] = {path.stem: i for i, path in enumerate(files)}
    truths = Truths(Path(folder), [], images, known, list(class_names), class_names, closed=classes is not None)
    rows = Rows()
    for i, part in enumerate(found):
        if unknown := [entry.name for entry in part if entry.name not in known]:
            raise ReadError(files[i], f"the class {unknown[0]!r} is not among the classes")
        labels = np.array([known[entry.name] for entry in part], np.int64)
        box = to_xywh(np.array([entry.corners for entry in part], np.float64).reshape(-1, 4), "xyxy")
        difficult = np.array([entry.difficult for entry in part], np.int64)
        rows.add(np.full(len(part), i), {"labels": labels, "boxes": box, "difficult": difficult})
    truths.target = rows.by_image(len(files), {**no_rows(), "difficult": np.zeros(0, np.int64)})
    for i, image in enumerate(truths.target):
        image["image_id"] = i
    return truths


def _objects(path: Path) -> list[_Object]:
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise ReadError(path, f"is not XML: {error.msg}", line=error.position[0]) from error
    except (LookupError, ValueError) as error:  # of the encoding it declares
        raise ReadError(path, f"is not XML that can be read: {error}") from error
    return [_object(path, i, element) for i, element in enumerate(root.iter("object"))]


def _object(path: Path, i: int, element: ElementTree.Element) -> _Object:
    name = (element.findtext("name") or "").strip()
    if not name:
        raise ReadError(path, f"object {i} must hold a name")
    corners = [_number(path, f"object {i} ({name})", element, f"bndbox/{corner}") for corner in CORNERS]
    if corners[2] < corners[0] or corners[3] < corners[1]:
        raise ReadError(path, f"object {i} ({name}): must have xmax >= xmin and ymax >= ymin, got {corners}")
    difficult = (element.findtext("difficult") or "0").strip()
    if difficult not in ("0", "1"):
        raise ReadError(path, f"object {i} ({name}): difficult must be 0 or 1, got {short(difficult)}")
    return _Object(name, corners, int(difficult))


def _number(path: Path, where: str, element: ElementTree.Element, place: str) -> float:
    text = element.findtext(place)
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ReadError(path, f"{where}: {place} must be a finite number, got {short(text)}")
    return value
