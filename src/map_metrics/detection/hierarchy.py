"""A hierarchy of classes, as in Open Images: a cat is an animal too, and where no animal is, there is no cat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from map_metrics.detection.matching import (
    NEGATIVE,
    NOT_EXHAUSTIVE,
    POSITIVE,
    Detections,
    GroundTruths,
    ImageLabels,
)
from map_metrics.detection.pairs import Overlaps, ranges
from map_metrics.ranking import dense_ids

Rows = TypeVar("Rows", Detections, GroundTruths, ImageLabels)


class Expanded(NamedTuple):
    """Rows with their copies in other classes, each copy behind its source.

    Attributes:
        detections: the rows.
        truths: the rows.
        image_labels: the rows; None: there were none.
        overlaps: of these rows; None: there were none.
    """

    detections: Detections
    truths: GroundTruths
    image_labels: ImageLabels | None
    overlaps: Overlaps | None


def ancestors(parents: Mapping[int, Sequence[int]], argument: str = "parents") -> dict[int, list[int]]:
    """Every class above each class, ascending.

    Args:
        parents: label -> labels of the classes right above it; a class that is no key has none.
        argument: what the caller calls it, for the message.

    Raises:
        ValueError: if a class stands above itself.

    Example:
        >>> from map_metrics.detection.hierarchy import ancestors
        >>> ancestors({3: [2], 2: [1]})
        {1: [], 2: [1], 3: [1, 2]}
    """
    try:
        order = tuple(TopologicalSorter(parents).static_order())  # what stands above comes first
    except CycleError as error:
        raise ValueError(
            f"Argument `{argument}` must be a hierarchy without cycles, got the cycle {error.args[1]}"
        ) from None
    above: dict[int, list[int]] = {}
    for label in order:
        direct = parents.get(label, ())
        above[label] = sorted({*direct, *(further for parent in direct for further in above[parent])})
    return above


def expand(
    detections: Detections,
    truths: GroundTruths,
    image_labels: ImageLabels | None,
    parents: Mapping[int, Sequence[int]],
    *,
    expand_detections: bool = False,
    overlaps: Overlaps | None = None,
) -> Expanded:
    """Copy rows to the classes that a hierarchy implies, as the Open Images challenge prepares its data.

    Ground truths and positive image labels go to every class above theirs, negative image labels to every class below.
    The challenge leaves detections to the submitter, who is expected to expand them to the classes above. Its root,
    "Entity", is no class of its own: leave it out of ``parents``.

    Args:
        detections: the rows.
        truths: the rows.
        image_labels: the rows; None: there are none.
        parents: label -> labels of the classes right above it; a class that is no key has none.
        expand_detections: copy detections to the classes above too.
        overlaps: of these rows.

    Raises:
        ValueError: if a class stands above itself.
    """
    above = ancestors(parents)
    detection_row, detected = _copies(detections.label, above if expand_detections else {})
    truth_row, true = _copies(truths.label, above)
    if image_labels is not None:
        image_labels = _expand_labels(image_labels, above)
    if overlaps is not None:
        overlaps = _expand_overlaps(overlaps, detection_row, truth_row)
    return Expanded(_take(detections, detection_row, detected), _take(truths, truth_row, true), image_labels, overlaps)


def _copies(label: Tensor, related: Mapping[int, Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Source row and label of each row and its copies."""
    distinct, rank = dense_ids(label)
    labels = [[own, *related.get(own, ())] for own in distinct.tolist()]
    size = torch.tensor([len(row) for row in labels], dtype=torch.int64)
    flat = torch.tensor([entry for row in labels for entry in row], dtype=torch.int64)
    repeats = size[rank]
    row = torch.arange(len(label)).repeat_interleave(repeats)
    return row, flat[_ranges((size.cumsum(0) - size)[rank], repeats)]


def _ranges(start: Tensor, length: Tensor) -> Tensor:
    return torch.from_numpy(ranges(start.numpy(), length.numpy()))


def _take(rows: Rows, row: Tensor, label: Tensor) -> Rows:
    return type(rows)(*(column[row] for column in rows))._replace(label=label)


def _expand_labels(labels: ImageLabels, above: Mapping[int, Sequence[int]]) -> ImageLabels:
    below: dict[int, list[int]] = {}
    for label, higher in above.items():
        for other in higher:
            below.setdefault(other, []).append(label)
    parts = []
    for kind, related in ((POSITIVE, above), (NEGATIVE, below), (NOT_EXHAUSTIVE, {})):
        rows = (labels.kind == kind).nonzero()[:, 0]
        row, copied = _copies(labels.label[rows], related)
        parts.append(_take(labels, rows[row], copied))
    return ImageLabels(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _expand_overlaps(overlaps: Overlaps, detection_row: Tensor, truth_row: Tensor) -> Overlaps:
    """Every copy of a detection with every copy of a ground truth, for each pair."""
    bounds = []
    for row, source in ((overlaps.detection, detection_row), (overlaps.truth, truth_row)):
        first = torch.searchsorted(source, row.contiguous())
        bounds.append((first, torch.searchsorted(source, row.contiguous(), right=True) - first))
    (detection, num_detections), (truth, num_truths) = bounds
    total = num_detections * num_truths
    pair = torch.arange(len(total)).repeat_interleave(total)
    number = _ranges(torch.zeros_like(total), total)
    width = num_truths[pair]
    return Overlaps(detection[pair] + number // width, truth[pair] + number % width, overlaps.value[pair])
