"""A part of the images, without matching again: a match never leaves its image."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from map_metrics.checks import hashable, tensor
from map_metrics.detection.matched import Matched
from map_metrics.detection.matching import Matches, Ranking
from map_metrics.detection.protocols import Protocol
from map_metrics.detection.summary import summarize, tabulate


def of_images(matched: Matched, keep: Tensor) -> Matched:
    """What matching only some of the images gives; their ranks, the classes and the counts of these stay.

    Args:
        matched: all images.
        keep: (images,) bool.
    """
    ranking, matches = matched.ranking, matched.matches
    detected, true = keep[matched.detections.image], keep[matched.truths.image]
    placed = detected[ranking.row]
    row, place, truth = detected.cumsum(0) - 1, placed.cumsum(0) - 1, true.cumsum(0) - 1
    in_cell = placed[ranking.by_cell]
    stands = placed[matches.detection]
    return matched._replace(
        detections=type(matched.detections)(*(column[detected] for column in matched.detections)),
        detection_class=matched.detection_class[detected],
        detection_row=matched.detection_row[detected],
        truths=type(matched.truths)(*(column[true] for column in matched.truths)),
        truth_class=matched.truth_class[true],
        truth_row=matched.truth_row[true],
        cell=matched.cell[true],
        ranking=Ranking(
            row[ranking.row[placed]],
            ranking.label[placed],
            ranking.position[placed],
            place[ranking.by_cell[in_cell]],
            ranking.cell[in_cell],
        ),
        matches=Matches(
            place[matches.detection[stands]],
            truth[matches.truth[stands]],
            *(column[..., stands] for column in matches[2:]),
        ),
        ignored=matched.ignored[:, true],
        outside=matched.outside[:, placed],
    )


def group_names(
    groups: Mapping[int, Hashable] | Sequence[Hashable] | Tensor, image_ids: Sequence[int]
) -> list[Hashable]:
    """The group of each image.

    Raises:
        ValueError: if an image has none.
    """
    if isinstance(groups, Mapping):
        lost = [image for image in image_ids if image not in groups]
        if lost:
            raise ValueError(
                f"Argument `groups` must name a group for every image (None leaves it out); {len(lost)} have none, the "
                f"first of them image {lost[0]}"
            )
        return hashable("groups", [groups[image] for image in image_ids])
    groups = tensor("groups", groups) if isinstance(groups, Tensor) else groups
    names = groups.tolist() if hasattr(groups, "tolist") else groups
    if not isinstance(names, Sequence):
        raise ValueError(f"Argument `groups` must be a dict or a list of one group per image, got {groups!r}")
    if len(names) != len(image_ids):
        raise ValueError(f"Argument `groups` must hold one group per image, {len(image_ids)}, got {len(names)}")
    return hashable("groups", names)


def summarize_groups(
    matched: Matched, protocol: Protocol, names: Sequence[Hashable], class_groups: Mapping[int, str] | None = None
) -> dict[Hashable, dict[str, Any]]:
    """The headline numbers and the number of images of each group, in the order in which the groups first come."""
    members: dict[Hashable, list[int]] = {}
    for image, name in enumerate(names):
        if name is not None:
            members.setdefault(name, []).append(image)
    slices = {}
    for name, images in members.items():
        keep = torch.zeros(len(names), dtype=torch.bool)
        keep[images] = True
        numbers = summarize(tabulate(of_images(matched, keep), protocol), protocol, class_groups)
        slices[name] = {key: float(number) for key, number in numbers.items()} | {"count": len(images)}
    return slices
