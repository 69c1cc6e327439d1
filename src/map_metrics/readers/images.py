"""What the readers of detections share: images and classes by name, columns of rows, and rows by image."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Column: TypeAlias = NDArray[Any] | list[Any]


class DetectionFiles(NamedTuple):
    """Detections and ground truths of files, as :meth:`map_metrics.DetectionMAP.update` takes them.

    Boxes are x, y, width and height in pixels, whatever the files hold: make the metric with ``box_format="xywh"``.
    Oriented ones are center x and y, width, height and the angle in radians.

    Attributes:
        preds: one dict per image.
        target: one dict per image; ``image_id`` is the file's own where it is an integer, else the place in the order
            of names.
        class_names: name of each label; labels are the file's own category ids where those are integers.
        image_names: name of each ``image_id``.
        class_groups: group of each label where the file has them (LVIS: ``r``, ``c``, ``f``), else None.
        num_skipped: detections left out, of images or classes that the ground truth does not know.
    """

    preds: list[dict[str, Any]]
    target: list[dict[str, Any]]
    class_names: dict[int, str]
    image_names: dict[int, str]
    class_groups: dict[int, str] | None = None
    num_skipped: int = 0


@dataclass
class Truths:
    """The ground truth of a set of files, and the names that detections refer to.

    Attributes:
        path: the file or folder.
        target: one dict per image.
        images: place of each image in ``target``, by its id or name.
        classes: place of each class in ``labels``, by its id or name.
        labels: label of each class.
        class_names: name of each label.
        class_groups: group of each label, or None.
        closed: whether the classes are declared: others are unknown.
    """

    path: Path
    target: list[dict[str, Any]]
    images: dict[Hashable, int]
    classes: dict[Hashable, int]
    labels: list[int]
    class_names: dict[int, str]
    class_groups: dict[int, str] | None = None
    closed: bool = True

    @property
    def image_names(self) -> dict[int, str]:
        """Name of each image_id."""
        return {self.target[place]["image_id"]: str(name) for name, place in self.images.items()}

    def place_of_class(self, name: str) -> int:
        """By name: a new one where classes are not declared, -1 where it is unknown."""
        if name not in self.classes and not self.closed:
            label = len(self.labels)
            self.classes[name], self.class_names[label] = label, name
            self.labels.append(label)
        return self.classes.get(name, -1)


@dataclass
class Rows:
    """Rows of one side as they are read: batches of columns, and the image of each row."""

    image: list[Integers] = field(default_factory=list)
    columns: dict[str, list[Column]] = field(default_factory=dict)

    def add(self, image: Integers, columns: Mapping[str, Column]) -> None:
        """A batch; each has the same columns."""
        self.image.append(image)
        for name, column in columns.items():
            self.columns.setdefault(name, []).append(column)

    def by_image(self, num_images: int, empty: Mapping[str, Column]) -> list[dict[str, Any]]:
        """One dict of tensors and lists per image, rows in the order they came; ``empty`` where nothing was added."""
        image = np.concatenate([np.zeros(0, np.int64), *self.image])
        order = np.argsort(image, kind="stable")
        counts = np.bincount(image, minlength=num_images)
        split: dict[str, Sequence[Any]] = {}
        for name, none in empty.items():
            parts = self.columns.pop(name, None) or [none]
            if isinstance(none, list):
                split[name] = _split([entry for part in parts for entry in part], order, counts)
            else:
                split[name] = torch.from_numpy(np.concatenate(parts)[order]).split(counts.tolist())
        return [dict(zip(split, row, strict=True)) for row in zip(*split.values(), strict=True)]


def _split(entries: list[Any], order: Integers, counts: Integers) -> list[list[Any]]:
    ends = counts.cumsum().tolist()
    return [[entries[i] for i in order[end - n : end]] for end, n in zip(ends, counts.tolist(), strict=True)]


def to_xywh(box: Floats, box_format: str) -> Floats:
    """(n, 4) boxes of ``"xyxy"``, ``"xywh"`` or ``"cxcywh"`` as x, y, width, height; the metric's own arithmetic."""
    first, second = box[:, :2], box[:, 2:]
    if box_format == "xywh":
        return box
    return np.concatenate([first, second - first] if box_format == "xyxy" else [first - second / 2, second], 1)
