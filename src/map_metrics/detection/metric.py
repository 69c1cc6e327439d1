"""Mean average precision of object detection, as COCO defines it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from map_metrics import rows
from map_metrics.conventions import flag
from map_metrics.detection import checks
from map_metrics.detection.evidence import Evidence
from map_metrics.detection.matching import Detections, GroundTruths
from map_metrics.detection.options import DetectionOptions
from map_metrics.detection.protocols import Protocol
from map_metrics.detection.result import DetectionResult
from map_metrics.detection.summary import evaluate, overlaps_by_cell
from map_metrics.ranking import distinct_rows, fingerprints
from map_metrics.rows import RowMetric

# columns of the tables; the rows of the images stand one after the other, in the order of ``images``
IMAGES = ("named", "image", "num_detections", "num_truths")
DETECTIONS = ("label", "score", "x", "y", "width", "height")
TRUTHS = ("label", "x", "y", "width", "height", "crowd", "area")
TABLES = {"images": len(IMAGES), "detections": len(DETECTIONS), "truths": len(TRUTHS)}

# --- input -> rows ----------------------------------------------------------------------------------------------------


def image_rows(detections: checks.Boxes, truths: checks.Boxes, ids: Tensor, named: Tensor) -> dict[str, Tensor]:
    """Blocks of the three tables from checked columns."""
    return {
        "images": torch.stack([named, ids, detections.counts, truths.counts], 1),
        "detections": torch.cat(
            [detections.label[:, None], rows.bits(detections.score)[:, None], rows.bits(detections.box)], 1
        ),
        "truths": torch.cat(
            [
                truths.label[:, None],
                rows.bits(truths.box),
                truths.crowd.long()[:, None],
                rows.bits(truths.area)[:, None],
            ],
            1,
        ),
    }


# --- rows -> numbers --------------------------------------------------------------------------------------------------


def _distinct_images(images: Tensor, detections: Tensor, truths: Tensor) -> tuple[Tensor, int, int]:
    """Which images to evaluate (by id, then those without one as they came), duplicates, conflicting duplicates."""
    with_id, others = images[:, 0].nonzero()[:, 0], (images[:, 0] == 0).nonzero()[:, 0]
    ids, counts = images[with_id, 1], [images[with_id, 2], images[with_id, 3]]
    if len(torch.unique(ids)) < len(ids):
        counts += [fingerprints(table, images[:, column])[with_id] for table, column in ((detections, 2), (truths, 3))]
    kept = distinct_rows([ids], counts)
    return torch.cat([with_id[kept.rows], others]), kept.duplicates, kept.conflicts


def _take_images(table: Tensor, counts: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of the images in a new order, and the place of each row's image in it."""
    chosen = counts[order]
    image = torch.repeat_interleave(torch.arange(len(order)), chosen)
    if len(order) == len(counts) and bool((order[1:] > order[:-1]).all()):
        return table, image
    start = (counts.cumsum(0) - counts)[order]
    row = torch.arange(len(image)) - (chosen.cumsum(0) - chosen)[image] + start[image]
    return table[row], image


def detection_result(images: Tensor, detections: Tensor, truths: Tensor, options: DetectionOptions) -> DetectionResult:
    """The result behind the three tables."""
    order, duplicates, conflicts = _distinct_images(images, detections, truths)
    detected, truth = _detections(images, detections, order), _truths(images, truths, order)
    evidence = Evidence(detected, truth, None, images[order, 1], images[order, 0] == 1)
    tables = evaluate(detected, truth, options.protocol, average=options.average)
    split = options.class_metrics and options.average == "micro"
    ious = None
    if options.extended_summary:
        cells = overlaps_by_cell(detected, truth, options.protocol, average=options.average)
        ious = {(evidence.image_ids[image], label): overlap for (image, label), overlap in cells.items()}
    return DetectionResult(
        tables=tables,
        by_class=evaluate(detected, truth, options.protocol) if split else tables,
        options=options,
        num_images=len(order),
        num_duplicates=duplicates,
        num_conflicts=conflicts,
        ious=ious,
        evidence=evidence,
    )


def _detections(images: Tensor, table: Tensor, order: Tensor) -> Detections:
    table, image = _take_images(table, images[:, 2], order)
    box = rows.floats(table[:, 2:])
    return Detections(image, table[:, 0].contiguous(), rows.floats(table[:, 1]), box, box[:, 2] * box[:, 3])


def _truths(images: Tensor, table: Tensor, order: Tensor) -> GroundTruths:
    table, image = _take_images(table, images[:, 3], order)
    box, area = rows.floats(table[:, 1:5]), rows.floats(table[:, 6])
    area = torch.where(area.isnan(), box[:, 2] * box[:, 3], area)
    crowd = table[:, 5] == 1
    return GroundTruths(image, table[:, 0].contiguous(), box, crowd, torch.zeros_like(crowd), area)


# --- the pure form and the metric -------------------------------------------------------------------------------------


def _blocks(
    preds: Any, target: Any, options: DetectionOptions, *, values: bool
) -> tuple[dict[str, Tensor], torch.dtype | None]:
    """Blocks of the three tables, and the half-precision dtype that rounded the boxes, if one did."""
    checks.image_lists(preds, target)
    detections = checks.boxes("preds", preds, options.box_format, values=values)
    truths = checks.boxes("target", target, options.box_format, values=values)
    if options.class_names is not None:
        for name, side in (("preds", detections), ("target", truths)):
            checks.label_range(name, side.label, side.counts, options.class_names)
    return image_rows(detections, truths, *checks.image_ids(target)), detections.rounded or truths.rounded


def _rounded_note(dtype: torch.dtype) -> str:
    return (
        f"Boxes came as {dtype}, beyond the range in which it holds whole pixels: they were rounded before. "
        "Pass float32 boxes."
    )


def detection_map(
    preds: Sequence[Mapping[str, Any]],
    target: Sequence[Mapping[str, Any]],
    *,
    box_format: str = "xyxy",
    iou_type: str = "bbox",
    iou_thresholds: Sequence[float] | None = None,
    rec_thresholds: Sequence[float] | None = None,
    max_detection_thresholds: Sequence[int] | None = None,
    class_metrics: bool = False,
    extended_summary: bool = False,
    average: str = "macro",
    protocol: str | Protocol = "coco",
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    output: str | None = None,
    validate_args: bool = True,
) -> dict[str, Any] | Tensor:
    """Mean average precision of detections given in one go: the pure form of :class:`DetectionMAP`.

    The arguments are those of :meth:`DetectionMAP.update` and of the class, and so are the keys.

    Example:
        >>> import torch
        >>> from map_metrics.functional import detection_map
        >>> boxes, scores, labels = torch.tensor([[0.0, 0, 10, 6]]), torch.tensor([0.9]), torch.tensor([1])
        >>> preds = [{"boxes": boxes, "scores": scores, "labels": labels}]
        >>> target = [{"boxes": torch.tensor([[0.0, 0, 10, 10]]), "labels": torch.tensor([1])}]
        >>> detection_map(preds, target)["map"]  # an overlap of 0.6 counts at the thresholds 0.5, 0.55 and 0.6
        tensor(0.3000, dtype=torch.float64)
    """
    options = DetectionOptions.of(
        box_format,
        iou_type,
        iou_thresholds,
        rec_thresholds,
        max_detection_thresholds,
        class_metrics,
        extended_summary,
        average,
        protocol,
        class_names,
        output,
    )
    blocks, rounded = _blocks(preds, target, options, values=flag("validate_args", validate_args))
    result = detection_result(**{name: block.cpu() for name, block in blocks.items()}, options=options)
    for note in (*result.notes().values(), *([_rounded_note(rounded)] if rounded else [])):
        rank_zero_warn(note, UserWarning)
    return result.value()


class DetectionMAP(RowMetric):
    """Mean average precision of object detection by COCO's protocol, exact on any number of ranks.

    A drop-in for ``torchmetrics.detection.MeanAveragePrecision`` without a COCO backend: precision, recall and score
    tables equal pycocotools' bit for bit, with three deliberate differences: annotation ids play no part, missing
    ``iscrowd`` and ``area`` are fine, and every headline number is taken at the largest cap, whatever its value.

    Args:
        box_format: ``"xyxy"``, ``"xywh"`` or ``"cxcywh"``, in pixels.
        iou_type: ``"bbox"``.
        iou_thresholds: overlaps in [0, 1]; default ``numpy.linspace(.5, .95, 10)`` in float64.
        rec_thresholds: recall levels in [0, 1]; default ``numpy.linspace(0, 1, 101)`` in float64.
        max_detection_thresholds: how many of the best detections of an (image, class) count, any number of caps;
            default [1, 10, 100].
        class_metrics: add ``map_per_class``, ``mar_{cap}_per_class`` and ``classes``.
        extended_summary: add ``ious``, ``precision``, ``recall`` and ``scores``.
        average: ``"macro"``: the mean over classes; ``"micro"``: all classes as one (pycocotools' useCats=0).
        protocol: ``"coco"``, or a :class:`map_metrics.detection.protocols.Protocol` of your own.
        class_names: names by label, as a list or a dict: labels without a name are refused.
        output: a key such as ``"map"``: `compute` returns that scalar alone, as MetricTracker or ``self.log`` need it.
        validate_args: False leaves out the checks of values (finite boxes and scores), not those of shapes.
        kwargs: arguments of ``torchmetrics.Metric``.

    Raises:
        ValueError: naming the argument, what was expected and what came.

    Example:
        >>> import torch
        >>> from map_metrics import DetectionMAP
        >>> metric = DetectionMAP()
        >>> boxes, scores, labels = torch.tensor([[0.0, 0, 10, 6]]), torch.tensor([0.9]), torch.tensor([1])
        >>> preds = [{"boxes": boxes, "scores": scores, "labels": labels}]
        >>> target = [{"boxes": torch.tensor([[0.0, 0, 10, 10]]), "labels": torch.tensor([1])}]
        >>> metric.update(preds, target)
        >>> value = metric.compute()
        >>> value["map"], value["map_50"], value["mar_100"]
        (tensor(0.3000, dtype=torch.float64), tensor(1.0000, dtype=torch.float64), tensor(0.3000, dtype=torch.float64))
    """

    def __init__(
        self,
        box_format: str = "xyxy",
        iou_type: str = "bbox",
        iou_thresholds: Sequence[float] | None = None,
        rec_thresholds: Sequence[float] | None = None,
        max_detection_thresholds: Sequence[int] | None = None,
        class_metrics: bool = False,
        extended_summary: bool = False,
        average: str = "macro",
        *,
        protocol: str | Protocol = "coco",
        class_names: Sequence[str] | Mapping[int, str] | None = None,
        output: str | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        options = DetectionOptions.of(
            box_format,
            iou_type,
            iou_thresholds,
            rec_thresholds,
            max_detection_thresholds,
            class_metrics,
            extended_summary,
            average,
            protocol,
            class_names,
            output,
        )
        names = None if options.class_names is None else sorted(options.class_names)
        config = {
            "box_format": box_format,
            "iou_type": iou_type,
            "labels": names,
            "validate_args": flag("validate_args", validate_args),
        }
        super().__init__(config, TABLES, **kwargs)
        self.options = options
        self.validate_args = validate_args

    def update(self, preds: Sequence[Mapping[str, Any]], target: Sequence[Mapping[str, Any]]) -> None:
        """Add images. A detection costs 48 bytes until `compute`, a ground truth 56, an image 32.

        Args:
            preds: one dict per image: ``boxes`` (n, 4) in pixels, ``scores`` (n,), ``labels`` (n,) of an integer dtype.
            target: one dict per image: ``boxes`` (n, 4), ``labels`` (n,), and optionally ``iscrowd`` (n,) 0 or 1,
                ``area`` (n,) square pixels (where not given, that of the box) and ``image_id``, an int or a tensor of
                one
                element: an image whose id was seen counts once, and equal scores of different images are ordered by it
                (without ids, by arrival and rank).

        Raises:
            ValueError: naming image and row, what was expected and what came; the state stays as it was.
        """
        blocks, rounded = _blocks(preds, target, self.options, values=self.validate_args)
        if rounded is not None:
            self.warn_once("half", _rounded_note(rounded))
        self.append(**blocks)

    def compute(self) -> dict[str, Any] | Tensor:
        """The COCO numbers, 0-d float64 each, -1 where nothing is defined; always the same keys."""
        return self._result().value()

    def _result(self) -> DetectionResult:
        tables = {name: self.table(name) for name in TABLES}
        result = detection_result(**tables, options=self.options)
        if bool((tables["images"][:, 0] == 0).any()):
            self.warn_unnamed("images")
        for topic, note in result.notes().items():
            self.warn_once(topic, note)
        return result
