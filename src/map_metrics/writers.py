"""Writers of the files that other tools read: COCO's JSON and TREC's runs. Floats keep every bit: their repr."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from map_metrics import rows
from map_metrics.detection import checks
from map_metrics.detection.state import DETECTIONS, TRUTHS, Images
from map_metrics.ranking import distinct_rows
from map_metrics.saved import replacing

GROUND_TRUTH, RESULTS = "ground_truth.json", "detections.json"
FLAG_KEYS = {"iscrowd": checks.CROWD, "ignore": checks.IGNORE, "difficult": checks.DIFFICULT}

# --- COCO -------------------------------------------------------------------------------------------------------------


def write_coco(folder: str | Path, images: Images, class_names: Mapping[int, str] | None) -> None:
    """Write ``ground_truth.json`` and ``detections.json``.

    Args:
        folder: where; made if it is not there.
        images: each image once, those with ids first; the others get the next free ones, in their order.
        class_names: the categories; None: every label that occurs.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    named = images.ids[images.named].tolist()
    free = max([*named, -1]) + 1
    ids = [*named, *range(free, free + len(images.ids) - len(named))]
    labels = torch.cat([images.detections[0][:, 0], images.truths[0][:, 0], images.image_labels.label])
    names = class_names or {label: str(label) for label in torch.unique(labels).tolist()}
    lists = {
        "images": _image_entries(images, ids),
        "categories": ({"id": label, "name": name} for label, name in names.items()),
        "annotations": _annotations(images, ids),
    }
    with replacing(folder / GROUND_TRUTH) as file:
        for i, (name, entries) in enumerate(lists.items()):
            file.write(f'{", " if i else "{"}"{name}": '.encode())
            file.writelines(_json_list(entries))
        file.write(b"}\n")
    with replacing(folder / RESULTS) as file:
        file.writelines(_json_list(_results(images, ids)))


def _json_list(entries: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    """A list, an entry a line."""
    yield b"["
    for i, entry in enumerate(entries):
        yield (",\n" if i else "\n").encode() + json.dumps(entry).encode()
    yield b"\n]\n"


def _image_entries(images: Images, ids: list[int]) -> Iterator[dict[str, Any]]:
    keys = {kind: key for key, kind in checks.IMAGE_LABELS.items()}
    labels: dict[int, dict[str, list[int]]] = {}
    for image, label, kind in zip(*(column.tolist() for column in images.image_labels), strict=True):
        labels.setdefault(image, {}).setdefault(keys[kind], []).append(label)
    for place, image_id in enumerate(ids):
        yield {"id": image_id, **labels.get(place, {})}


def _annotations(images: Images, ids: list[int]) -> Iterator[dict[str, Any]]:
    table, image = images.truths
    columns = (image, *table[:, :2].unbind(1), rows.floats(table[:, 2]), rows.floats(table[:, len(TRUTHS) :]))
    for i, (place, label, flags, area, box) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        marks = {key: 1 for key, flag in FLAG_KEYS.items() if flags & flag}
        given = {} if area != area else {"area": area}
        yield {"id": i + 1, "image_id": ids[place], "category_id": label, "bbox": box, **given, "iscrowd": 0, **marks}


def _results(images: Images, ids: list[int]) -> Iterator[dict[str, Any]]:
    table, image = images.detections
    columns = (image, table[:, 0], rows.floats(table[:, 1]), rows.floats(table[:, len(DETECTIONS) :]))
    for place, label, score, box in zip(*(column.tolist() for column in columns), strict=True):
        yield {"image_id": ids[place], "category_id": label, "bbox": box, "score": score}


# --- TREC -------------------------------------------------------------------------------------------------------------


def write_trec(run: str | Path, qrels: str | Path, items: Tensor) -> None:
    """Write a run and judgments.

    Args:
        run: the path of the run.
        qrels: the path of the judgments.
        items: the table of a retrieval metric in the row form: query, document, score, flags.
    """
    with_id, others = (items[:, 3] >= 2).nonzero()[:, 0], (items[:, 3] < 2).nonzero()[:, 0]
    named = items[with_id]
    named = named[distinct_rows([named[:, 0], named[:, 1]], [named[:, 2], named[:, 3]]).rows]
    rest = items[others].clone()
    rest[:, 1] = torch.arange(len(rest)) + (int(named[:, 1].max()) + 1 if len(named) else 0)
    query, document, patterns, flags = torch.cat([named, rest]).unbind(1)
    score, relevant = rows.floats(patterns).numpy(), flags & 1
    order = np.lexsort((document.numpy(), -score, query.numpy()))
    columns = [column[order].tolist() for column in (query, document, torch.from_numpy(score), relevant)]
    with replacing(qrels) as file:
        file.writelines(f"{q} 0 {d} {r}\n".encode() for q, d, _, r in zip(*columns, strict=True))
    with replacing(run) as file:
        rank, last = 0, None
        for q, d, s, _ in zip(*columns, strict=True):
            rank, last = (rank + 1 if q == last else 1), q
            if s > -np.inf:
                file.write(f"{q} Q0 {d} {rank} {s!r} map-metrics\n".encode())
