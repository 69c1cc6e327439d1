"""DOTA's results: a folder of text files, one per class, with the corners of oriented boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from map_metrics.readers.corners import rectangles
from map_metrics.readers.files import ReadError
from map_metrics.readers.images import Rows, Truths
from map_metrics.readers.text import CORNERS, Layout, no_rows, read_lines, text_files

PREFIX = "Task1_"
LAYOUT = Layout(("image", "score", "box"), CORNERS)


def read_dota_results(
    folder: str | Path, truths: Truths, *, skip_unknown: bool = False
) -> tuple[list[dict[str, Any]], int]:
    """The detections of a folder: one dict per image of the ground truth, and how many were left out.

    Args:
        folder: of ``Task1_CLASS.txt`` (or ``CLASS.txt``) with lines ``image score x1 y1 x2 y2 x3 y3 x4 y4``.
        truths: the ground truth, of a folder of DOTA's labels.
        skip_unknown: leave out detections of images, and of classes outside of a declared list, that the ground truth
            does not hold; else they are an error.

    Raises:
        ReadError: naming file and line, what was expected and what came.
    """
    rows, skipped = Rows(), 0
    for path in text_files(folder):
        part = read_lines(path, LAYOUT)
        name = path.stem.removeprefix(PREFIX)
        place = truths.place_of_class(name)
        if place < 0 and not skip_unknown:
            raise ReadError(path, f"the class {name!r} is not among the classes")
        image = np.array([truths.images.get(image, -1) for image in part.names], np.int64)
        if (image < 0).any() and not skip_unknown:
            row = int(np.flatnonzero(image < 0)[0])
            where = f"the image {part.names[row]!r} is not in the ground truth {truths.path}"
            raise ReadError(path, where, line=part.lines[row])
        known = (image >= 0) & (place >= 0)
        skipped += int((~known).sum())
        label = np.full(int(known.sum()), truths.labels[place])
        box = rectangles(part.box[known])
        rows.add(image[known], {"labels": label, "scores": part.score[known], "boxes": box})
    return rows.by_image(len(truths.target), {**no_rows(CORNERS), "scores": np.zeros(0)}), skipped
