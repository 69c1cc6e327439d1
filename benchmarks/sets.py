"""Seeded sets in the form a training loop holds them: tensors on the CPU, whole or in batches."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Images = list[dict[str, Tensor]]


@dataclass(frozen=True)
class DetectionSet:
    """Batches of (preds, target) as detectors of torchvision have them: boxes xyxy, images and labels from 1."""

    batches: list[tuple[Images, Images]]
    num_images: int
    num_classes: int
    num_targets: int
    num_preds: int

    def __str__(self) -> str:
        return (
            f"{self.num_images:,} images, {self.num_targets:,} boxes, {self.num_preds:,} detections, "
            f"{self.num_classes} class{'es' if self.num_classes > 1 else ''}"
        )


@dataclass(frozen=True)
class HashingSet:
    """Codes of +-1 and class ids."""

    query_codes: Tensor
    query_labels: Tensor
    gallery_codes: Tensor
    gallery_labels: Tensor

    def __str__(self) -> str:
        bits = self.query_codes.shape[1]
        distinct = len(self.gallery_codes.unique(dim=0))
        return (
            f"{len(self.query_codes):,} queries x {len(self.gallery_codes):,} codes x {bits} bits, "
            f"{distinct:,} of the codes distinct"
        )


@dataclass(frozen=True)
class RetrievalSet:
    """A row for each query: distinct positive scores, so that no convention about ties or signs plays a part."""

    preds: Tensor
    target: Tensor

    def __str__(self) -> str:
        return f"{len(self.preds):,} queries x {self.preds.shape[1]:,} items, {int(self.target.sum()):,} relevant"


@dataclass(frozen=True)
class MaskSet:
    """Run-length codes as COCO's files have them, and the batches that hold the same."""

    truth: dict[str, Any]
    results: list[dict[str, Any]]
    batches: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]

    def __str__(self) -> str:
        images, masks = len(self.truth["images"]), len(self.truth["annotations"])
        return f"{images:,} images, {masks:,} masks, {len(self.results):,} detected masks"


def coco100_masks(copies: int = 20) -> MaskSet:
    """The 100 images of the tests over and over, every mask a compressed run-length code."""
    from pycocotools import mask

    folder = Path(__file__).parents[1] / "tests" / "data" / "detection" / "coco100"
    truth = json.loads((folder / "instances_val2014_100.json").read_text())
    results = json.loads((folder / "instances_val2014_fakesegm100_results.json").read_text())
    size = {image["id"]: (image["height"], image["width"]) for image in truth["images"]}
    for row in truth["annotations"]:
        code = row["segmentation"]
        code = mask.frPyObjects(code, *size[row["image_id"]])
        row["segmentation"] = mask.merge(code) if isinstance(code, list) else code
    for row in (*truth["annotations"], *results):
        counts = row["segmentation"]["counts"]
        row["segmentation"]["counts"] = counts.decode() if isinstance(counts, bytes) else counts
    step = max(size) + 1
    moved = [
        [row | {key: row[key] + copy * step} for copy in range(copies) for row in rows]
        for rows, key in ((truth["images"], "id"), (truth["annotations"], "image_id"), (results, "image_id"))
    ]
    images, annotations, found = moved
    annotations = [row | {"id": number} for number, row in enumerate(annotations, start=1)]
    sides = [_masks_by_image(images, rows) for rows in (found, annotations)]
    batches = [(sides[0][i : i + 16], sides[1][i : i + 16]) for i in range(0, len(images), 16)]
    whole = {"images": images, "annotations": annotations, "categories": truth["categories"]}
    return MaskSet(whole, found, batches)


def _masks_by_image(images: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    held: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in images}
    for row in rows:
        held[row["image_id"]].append(row)
    sides = []
    for image, own in held.items():
        side = {"masks": [row["segmentation"] for row in own]}
        side["labels"] = torch.tensor([row["category_id"] for row in own], dtype=torch.int64)
        for key, name in (("score", "scores"), ("area", "area"), ("iscrowd", "iscrowd")):
            if all(key in row for row in own):
                side[name] = torch.tensor([row[key] for row in own])
        sides.append(side | {"image_id": image})
    return sides


def coco_like(num_images: int = 5_000) -> DetectionSet:
    """COCO val2017 with a detector's 100 best boxes an image."""
    return detection(num_images, num_classes=80, per_image=100, crowd=0.012, seed=0)


def objects365_like(num_images: int = 80_000) -> DetectionSet:
    """Objects365 val with 15 boxes an image."""
    return detection(num_images, num_classes=365, per_image=15, crowd=0.01, seed=42)


def crowded(num_images: int = 500) -> DetectionSet:
    """Crowds of one class: 120 people an image who cover each other, and 300 boxes of a detector."""
    return detection(num_images, num_classes=1, per_image=300, crowd=0.01, seed=7, scale=100, most=400)


def detection(
    num_images: int,
    *,
    num_classes: int,
    per_image: int,
    crowd: float,
    seed: int,
    scale: float = 6.1,
    most: int = 60,
) -> DetectionSet:
    """Images of a few classes and 1.2 ``scale`` boxes each; 60 % of the detections are jittered copies of those."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(num_classes, 0.5)) + 1e-4
    weights /= weights.sum()

    counts = rng.gamma(1.2, scale, num_images).astype(np.int64).clip(max=most)
    image = np.repeat(np.arange(num_images), counts)
    kinds = (rng.poisson(2, num_images) + 1).clip(max=counts.clip(min=1))
    palette = rng.choice(num_classes, (num_images, kinds.max()), p=weights)
    labels = palette[image, (rng.random(len(image)) * kinds[image]).astype(np.int64)]
    boxes = _boxes(rng, len(image))

    pred_image = np.repeat(np.arange(num_images), per_image)
    copied = (np.tile(np.arange(per_image), num_images) < 0.6 * per_image) & (counts[pred_image] > 0)
    origin = pred_image[copied]
    source = (counts.cumsum() - counts)[origin] + (rng.random(len(origin)) * counts[origin]).astype(np.int64)
    jitter = rng.choice([0.03, 0.1, 0.3], (len(source), 1)) * rng.normal(size=(len(source), 4))

    pred_boxes = _boxes(rng, len(pred_image))
    pred_boxes[copied, :2] = boxes[source, :2] + jitter[:, :2] * boxes[source, 2:]
    pred_boxes[copied, 2:] = boxes[source, 2:] * np.exp(jitter[:, 2:])
    pred_labels = rng.choice(num_classes, len(pred_image), p=weights)
    mistaken = rng.random(len(source)) > 0.85
    pred_labels[copied] = np.where(mistaken, rng.integers(0, num_classes, len(source)), labels[source])
    scores = rng.beta(1, 12, len(pred_image))
    scores[copied] = np.exp(-4 * np.abs(jitter).mean(1)) * rng.beta(2, 2, len(source))

    crowds = (rng.random(len(image)) < crowd).astype(np.int64)
    scores = scores.astype(np.float32)

    preds = _per_image([per_image] * num_images, boxes=_xyxy(pred_boxes), scores=scores, labels=pred_labels + 1)
    target = _per_image(counts.tolist(), boxes=_xyxy(boxes), labels=labels + 1, iscrowd=crowds)
    for number, one in enumerate(target, start=1):
        one["image_id"] = torch.tensor(number)
    batches = [(preds[i : i + 16], target[i : i + 16]) for i in range(0, num_images, 16)]
    return DetectionSet(batches, num_images, num_classes, len(image), len(pred_image))


def hashing(
    num_queries: int = 1_000, num_gallery: int = 59_000, bits: int = 64, num_classes: int = 10, collapsed: float = 0
) -> HashingSet:
    """Codes that look trained: a prototype for each class, of which every code has flipped a fifth of the bits.

    The part ``collapsed`` of all codes has flipped none, and a tenth of those stands on the prototype of another class.
    """
    rng = torch.Generator().manual_seed(0)
    prototypes = torch.randint(0, 2, (num_classes, bits), generator=rng)
    labels = torch.randint(0, num_classes, (num_queries + num_gallery,), generator=rng)
    flipped = torch.rand(len(labels), bits, generator=rng) < 0.2
    stuck, mistaken = torch.rand(2, len(labels), generator=rng) < torch.tensor([[collapsed], [0.1]])
    flipped &= ~stuck[:, None]
    codes = (prototypes[(labels + (stuck & mistaken)) % num_classes] ^ flipped).float() * 2 - 1
    return HashingSet(codes[:num_queries], labels[:num_queries], codes[num_queries:], labels[num_queries:])


def retrieval(num_queries: int, num_items: int, num_relevant: int) -> RetrievalSet:
    """Scores of a fair model: relevant items stand one standard deviation above the others."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.rand(num_queries, num_items, generator=rng)
    target = torch.zeros(num_queries, num_items, dtype=torch.bool)
    target.scatter_(1, noise.topk(num_relevant).indices, True)
    scores = torch.randn(num_queries, num_items, generator=rng) + target.float()
    places = scores.argsort(1).argsort(1) + 1
    return RetrievalSet(places / 2**24, target)


def _boxes(rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, 4) xywh on an image of 640 x 640 pixels."""
    sides = np.exp(rng.normal(4.2, 1.0, (n, 2))).clip(4, 500)
    return np.concatenate([rng.random((n, 2)) * (640 - sides), sides], axis=1)


def _xyxy(boxes: np.ndarray) -> np.ndarray:
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1).round(2).astype(np.float32)


def _per_image(counts: list[int], **columns: np.ndarray) -> Images:
    pieces = zip(*(torch.from_numpy(column).split(counts) for column in columns.values()), strict=True)
    return [dict(zip(columns, piece, strict=True)) for piece in pieces]
