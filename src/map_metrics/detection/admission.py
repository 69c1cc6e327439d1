"""Which detections take part at all, where a benchmark does not judge every class in every image."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from map_metrics.detection.matching import (
    NOT_EXHAUSTIVE,
    Detections,
    GroundTruths,
    ImageLabels,
    cell_of,
    curve_order,
)
from map_metrics.detection.pairs import Overlaps
from map_metrics.detection.protocols import Protocol
from map_metrics.ranking import first_of_runs


class Standing(NamedTuple):
    """What is known of each detection before any matching.

    Attributes:
        row: (n,) int64, the row that each came as.
        excused: (n,) bool, is no false positive, whatever becomes of it.
        position: (n,) int64, how many detections of its own image stand before it, best score first; None where the
            caps are not per image.
    """

    row: Tensor
    excused: Tensor
    position: Tensor | None


def admit(
    detections: Detections,
    truths: GroundTruths,
    overlaps: Overlaps | None,
    labels: ImageLabels | None,
    num_classes: int,
    protocol: Protocol,
) -> tuple[Detections, Overlaps | None, Standing]:
    """Apply the cap per image, and then the rule of federated annotation (lvis-api 0.5.3, TensorFlow's Open Images).

    Args:
        detections: the rows, where ``label`` is the rank of the class, as in all of these.
        truths: the rows.
        overlaps: of these rows.
        labels: image-level labels; None: there are none.
        num_classes: number of classes.
        protocol: the rules.

    Returns:
        The detections that take part, their overlaps, and their standing.
    """
    admitted = torch.ones(len(detections.label), dtype=torch.bool)
    excused, position = torch.zeros_like(admitted), None
    if protocol.cap_per == "image":
        position = _position_in_image(detections)
        admitted = position < protocol.cuts[-1]
    if protocol.federated:
        cell, named = cell_of(detections, num_classes), cell_of(truths, num_classes)
        if labels is not None:
            open_ended, labelled = labels.kind == NOT_EXHAUSTIVE, cell_of(labels, num_classes)
            named = torch.cat([named, labelled[~open_ended]])
            excused = torch.isin(cell, labelled[open_ended])
        admitted = admitted & torch.isin(cell, named)
    standing = Standing(admitted.nonzero()[:, 0], excused[admitted], None if position is None else position[admitted])
    if overlaps is not None:
        kept = admitted[overlaps.detection]
        row = (admitted.cumsum(0) - 1)[overlaps.detection[kept]]
        overlaps = Overlaps(row, overlaps.truth[kept], overlaps.value[kept])
    return Detections(*(column[admitted] for column in detections)), overlaps, standing


def _position_in_image(detections: Detections) -> Tensor:
    order = curve_order(detections.image, detections.score)
    place = torch.arange(len(order))
    position = torch.empty_like(place)
    position[order] = place - torch.where(first_of_runs(detections.image[order]), place, 0).cummax(0).values
    return position
