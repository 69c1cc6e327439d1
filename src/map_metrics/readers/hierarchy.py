"""Which classes stand above which, from JSON: Open Images' nested file, or a flat object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from map_metrics.readers.files import ReadError, open_text, short
from map_metrics.readers.images import Truths

NAME, CHILDREN = "LabelName", "Subcategory"


def read_hierarchy(path: str | Path, truths: Truths) -> dict[int, list[int]]:
    """The labels right above each label, as ``DetectionMAP(hierarchy=...)`` takes them.

    Args:
        path: JSON: ``{"dog": "animal", "animal": ["thing"]}``, or Open Images' ``{"LabelName": ..., "Subcategory":
            [...]}``, of which classes that the ground truth does not declare are stepped over.
        truths: the ground truth, whose classes are meant by id or by name.

    Raises:
        ReadError: naming the class, what was expected and what came.
    """
    with open_text(path) as file:
        try:
            content = json.load(file)
        except json.JSONDecodeError as error:
            raise ReadError(path, f"is not JSON: {error.msg}", line=error.lineno) from error
        except RecursionError as error:
            raise ReadError(path, "is nested too deep") from error
    if not isinstance(content, dict):
        raise ReadError(path, f"must be an object of classes, got {short(content)}")
    known: dict[str, int] = {name: label for label, name in truths.class_names.items()}
    known |= {str(name): truths.labels[place] for name, place in truths.classes.items()}
    found: dict[int, list[int]] = {}
    for child, parent in _nested(path, content, known, None) if NAME in content else _flat(path, content, known):
        above = found.setdefault(child, [])
        if parent not in above:
            above.append(parent)
    return found


def _flat(path: str | Path, content: dict[str, Any], known: dict[str, int]) -> Iterator[tuple[int, int]]:
    for child, parents in content.items():
        for name in (child, *(parents if isinstance(parents, list) else [parents])):
            if str(name) not in known:
                raise ReadError(path, f"the class {short(name)} is not in the ground truth")
        for parent in parents if isinstance(parents, list) else [parents]:
            yield known[child], known[str(parent)]


def _nested(path: str | Path, node: Any, known: dict[str, int], parent: int | None) -> Iterator[tuple[int, int]]:
    if not isinstance(node, dict) or not isinstance(node.get(NAME), str):
        raise ReadError(path, f"every class must be an object with a '{NAME}', got {short(node)}")
    label = known.get(node[NAME])
    if label is not None and parent is not None:
        yield label, parent
    children = node.get(CHILDREN, [])
    if not isinstance(children, list):
        raise ReadError(path, f"'{CHILDREN}' of {node[NAME]} must be a list, got {short(children)}")
    for child in children:
        yield from _nested(path, child, known, parent if label is None else label)
