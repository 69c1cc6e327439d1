"""The rows behind a detection result, kept so that it can answer more than the tables do."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from map_metrics.detection.matched import Average, Matched, in_pixels, match_images
from map_metrics.detection.matching import Detections, GroundTruths, ImageLabels, box_pairs, rank_detections
from map_metrics.detection.pairs import Overlaps
from map_metrics.detection.protocols import COCO, Protocol

Rows = TypeVar("Rows", Detections, GroundTruths, ImageLabels)


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """What was detected, what is true, and what the images are called.

    Attributes:
        detections: the rows; labels as they were given.
        truths: the rows.
        overlaps: of these rows, where they are not those of the boxes.
        ids: (images,) int64, the id of each image by its rank, where it has one.
        named: (images,) bool, whether it has.
        image_labels: what is known of whole images.
    """

    detections: Detections
    truths: GroundTruths
    overlaps: Overlaps | None
    ids: Tensor
    named: Tensor
    image_labels: ImageLabels | None = None

    @functools.cached_property
    def image_ids(self) -> list[int]:
        """The id of each image; those without one are numbered from 0, past the ids in use."""
        used = set(self.ids[self.named].tolist())
        free = (number for number in itertools.count() if number not in used)
        rows = zip(self.ids.tolist(), self.named.tolist(), strict=True)
        return [image if named else next(free) for image, named in rows]

    def match(self, protocol: Protocol, average: Average = "macro") -> Matched:
        """All images matched under a protocol."""
        return match_images(
            self.detections,
            self.truths,
            protocol,
            average=average,
            overlaps=self.overlaps,
            image_labels=self.image_labels,
        )

    def image_pairs(self, lowest: float = 0.0, protocol: Protocol = COCO) -> Overlaps:
        """Pairs of one image, whatever their classes, that overlap, by at least ``lowest``, under a protocol."""
        if self.overlaps is not None:
            keep = self.overlaps.value >= lowest
            return Overlaps(*(column[keep] for column in self.overlaps))
        truths = in_pixels(self.truths, protocol)
        detections = in_pixels(self.detections, protocol)
        detections = detections._replace(label=torch.zeros_like(detections.label))
        ranking = rank_detections(detections, 1)
        smallest = torch.finfo(torch.float64).smallest_normal
        pairs = box_pairs(
            detections, ranking, truths, truths.image, max(len(detections.label), 1), max(lowest, smallest)
        )
        return Overlaps(ranking.row[pairs.detection], pairs.truth, pairs.overlap)

    def above(self, score: float) -> Evidence:
        """Without the detections of a smaller score."""
        keep = self.detections.score >= score
        detections = Detections(*(column[keep] for column in self.detections))
        everything = torch.ones_like(self.truths.crowd)
        return replace(self, detections=detections, overlaps=_kept_overlaps(self.overlaps, keep, everything))

    def of_images(self, images: Tensor | Sequence[int]) -> Evidence:
        """The rows of some images, in the order they stand in here.

        Args:
            images: (images,) bool, which to keep; or ids.

        Raises:
            ValueError: if the flags are not one per image, or an id is not here.
        """
        keep = self._flags(images)
        rank = keep.cumsum(0) - 1
        detected, true = keep[self.detections.image], keep[self.truths.image]
        return Evidence(
            _kept(self.detections, detected, rank),
            _kept(self.truths, true, rank),
            _kept_overlaps(self.overlaps, detected, true),
            self.ids[keep],
            self.named[keep],
            None if self.image_labels is None else _kept(self.image_labels, keep[self.image_labels.image], rank),
        )

    def _flags(self, images: Tensor | Sequence[int]) -> Tensor:
        if isinstance(images, Tensor) and images.dtype == torch.bool:
            if images.shape != (len(self.ids),):
                raise ValueError(
                    f"Argument `images` must hold one flag per image, {len(self.ids)}, got {tuple(images.shape)}"
                )
            return images
        wanted = set(images.tolist() if isinstance(images, Tensor) else images)
        unknown = wanted.difference(self.image_ids)
        if unknown:
            raise ValueError(f"Argument `images` must hold ids of this result's images, got {min(unknown)!r}")
        return torch.tensor([image in wanted for image in self.image_ids], dtype=torch.bool)


def _kept(rows: Rows, keep: Tensor, rank: Tensor) -> Rows:
    rows = type(rows)(*(column[keep] for column in rows))
    return rows._replace(image=rank[rows.image])


def _kept_overlaps(overlaps: Overlaps | None, detected: Tensor, true: Tensor) -> Overlaps | None:
    """Those of the detections and ground truths that stay, by the rows that these have then."""
    if overlaps is None:
        return None
    keep = detected[overlaps.detection] & true[overlaps.truth]
    rows = detected.cumsum(0) - 1, true.cumsum(0) - 1
    return Overlaps(rows[0][overlaps.detection[keep]], rows[1][overlaps.truth[keep]], overlaps.value[keep])
