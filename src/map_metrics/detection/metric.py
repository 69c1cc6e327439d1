"""Mean average precision of object detection, as COCO defines it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from map_metrics.conventions import flag
from map_metrics.detection import checks
from map_metrics.detection.evidence import Evidence
from map_metrics.detection.hierarchy import expand
from map_metrics.detection.matched import overlaps_by_cell
from map_metrics.detection.matching import ImageLabels
from map_metrics.detection.options import DetectionOptions
from map_metrics.detection.protocols import Protocol
from map_metrics.detection.result import DetectionResult, value_of
from map_metrics.detection.shapes import measure
from map_metrics.detection.state import Images, distinct_images, image_blocks, rows_of, tables
from map_metrics.detection.summary import tabulate
from map_metrics.devices import on_cpu
from map_metrics.rows import RowMetric
from map_metrics.writers import write_coco

# --- tables -> results ------------------------------------------------------------------------------------------------


def detection_results(tables: dict[str, Tensor], options: DetectionOptions) -> dict[str, DetectionResult]:
    """The result behind the tables for each type of overlap."""
    images = distinct_images(tables)
    return {iou_type: _result_of(images, iou_type, options) for iou_type in options.iou_types}


def _result_of(images: Images, iou_type: str, options: DetectionOptions) -> DetectionResult:
    protocol = options.protocol
    detections, truths, overlaps = rows_of(images, iou_type, protocol.ignored)
    labels: ImageLabels | None = images.image_labels
    if options.hierarchy:
        detections, truths, labels, overlaps = expand(
            detections, truths, labels, options.hierarchy, expand_detections=True, overlaps=overlaps
        )
    evidence = Evidence(detections, truths, overlaps, images.ids, images.named, labels)
    matched = evidence.match(protocol, options.average)
    whole = tabulate(matched, protocol)
    split = options.class_metrics and options.average == "micro"
    ious = None
    if options.extended_summary:
        cells = overlaps_by_cell(detections, truths, protocol, average=options.average, overlaps=overlaps)
        ious = {(evidence.image_ids[image], label): overlap for (image, label), overlap in cells.items()}
    return DetectionResult(
        tables=whole,
        by_class=tabulate(evidence.match(protocol), protocol) if split else whole,
        options=options,
        iou_type=iou_type,
        num_images=len(images.ids),
        num_duplicates=images.duplicates,
        num_conflicts=images.conflicts,
        ious=ious,
        evidence=evidence,
        matched=matched,
    )


# --- the pure form and the metric -------------------------------------------------------------------------------------


def _blocks(
    preds: Any, target: Any, options: DetectionOptions, *, values: bool
) -> tuple[dict[str, Tensor], torch.dtype | None]:
    """Blocks of the tables, and the half-precision dtype that rounded the boxes, if one did."""
    checks.image_lists(preds, target)
    detections = checks.side("preds", preds, values=values)
    truths = checks.side("target", target, values=values)
    if options.class_names is not None:
        for name, side in (("preds", detections), ("target", truths)):
            checks.label_range(name, side.label, side.counts, options.class_names)
    boxes, rounded = None, None
    if "bbox" in options.iou_types:
        found = checks.boxes("preds", preds, detections.counts, options.box_format, values=values)
        true = checks.boxes("target", target, truths.counts, options.box_format, values=values)
        boxes, rounded = (found.box, true.box), found.rounded or true.rounded
    shapes = None
    for iou_type in set(options.iou_types) - {"bbox"}:
        shapes = measure(
            iou_type,
            preds,
            target,
            detections,
            truths,
            box_format=options.box_format,
            sigmas=options.sigmas,
            values=values,
        )
    ids, labels = checks.image_ids(target), checks.image_labels(target)
    return image_blocks(detections, truths, boxes, shapes, ids, labels), rounded


def _rounded_note(dtype: torch.dtype) -> str:
    return (
        f"Boxes came as {dtype}, beyond the range in which it holds whole pixels: they were rounded before. "
        "Pass float32 boxes."
    )


@on_cpu
def detection_map(
    preds: Sequence[Mapping[str, Any]],
    target: Sequence[Mapping[str, Any]],
    *,
    box_format: str = "xyxy",
    iou_type: str | Sequence[str] = "bbox",
    iou_thresholds: Sequence[float] | None = None,
    rec_thresholds: Sequence[float] | None = None,
    max_detection_thresholds: Sequence[int] | None = None,
    class_metrics: bool = False,
    extended_summary: bool = False,
    average: str = "macro",
    protocol: str | Protocol = "coco",
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    class_groups: Sequence[str] | Mapping[int, str] | None = None,
    hierarchy: Mapping[int, int | Sequence[int]] | None = None,
    sigmas: Sequence[float] | None = None,
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
        class_groups,
        hierarchy,
        sigmas,
        output,
    )
    blocks, rounded = _blocks(preds, target, options, values=flag("validate_args", validate_args))
    results = detection_results({name: block.cpu() for name, block in blocks.items()}, options)
    notes = next(iter(results.values())).notes()
    for note in (*notes.values(), *([_rounded_note(rounded)] if rounded else [])):
        rank_zero_warn(note, UserWarning)
    return value_of(results)


class DetectionMAP(RowMetric):
    """Mean average precision of object detection, exact on any number of ranks.

    A drop-in for ``torchmetrics.detection.MeanAveragePrecision`` without a COCO backend: by COCO's protocol precision,
    recall and score tables equal pycocotools' bit for bit, with three deliberate differences: annotation ids play no
    part, missing ``iscrowd`` and ``area`` are fine, and every headline number is taken at the largest cap, whatever its
    value. Masks, oriented boxes and keypoints are measured in `update`: their overlaps are kept, not the shapes.

    Args:
        box_format: ``"xyxy"``, ``"xywh"`` or ``"cxcywh"``, in pixels.
        iou_type: what overlaps: ``"bbox"``, ``"segm"`` (masks), both as ``("bbox", "segm")`` (the keys then begin with
            ``bbox_`` and ``segm_``), ``"obb"`` (oriented boxes) or ``"keypoints"`` (object keypoint similarity).
        iou_thresholds: overlaps in [0, 1]; default that of the protocol, for COCO ``numpy.linspace(.5, .95, 10)`` in
            float64.
        rec_thresholds: recall levels in [0, 1]; default that of the protocol, for COCO ``numpy.linspace(0, 1, 101)``.
        max_detection_thresholds: how many of the best detections of an (image, class) count, any number of caps;
            default that of the protocol, for COCO [1, 10, 100].
        class_metrics: add ``map_per_class``, ``mar_{cap}_per_class`` and ``classes``.
        extended_summary: add ``ious``, ``precision``, ``recall`` and ``scores``.
        average: ``"macro"``: the mean over classes; ``"micro"``: all classes as one (pycocotools' useCats=0).
        protocol: ``"coco"``, ``"voc2007"``, ``"voc2012"``, ``"lvis"``, ``"openimages"``, or a
            :class:`map_metrics.detection.protocols.Protocol` of your own.
        class_names: names by label, as a list or a dict: labels without a name are refused.
        class_groups: group by label, as a list or a dict (LVIS: how frequent a class is): adds ``map_{group}``.
        hierarchy: the label, or labels, right above each label (Open Images): detections, ground truths and positive
            image labels count for the classes above too, negative image labels for those below.
        sigmas: of keypoints, in parts of the object's size; default the 17 of a COCO person.
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
        iou_type: str | Sequence[str] = "bbox",
        iou_thresholds: Sequence[float] | None = None,
        rec_thresholds: Sequence[float] | None = None,
        max_detection_thresholds: Sequence[int] | None = None,
        class_metrics: bool = False,
        extended_summary: bool = False,
        average: str = "macro",
        *,
        protocol: str | Protocol = "coco",
        class_names: Sequence[str] | Mapping[int, str] | None = None,
        class_groups: Sequence[str] | Mapping[int, str] | None = None,
        hierarchy: Mapping[int, int | Sequence[int]] | None = None,
        sigmas: Sequence[float] | None = None,
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
            class_groups,
            hierarchy,
            sigmas,
            output,
        )
        names = None if options.class_names is None else sorted(options.class_names)
        config = {
            "box_format": box_format,
            "iou_types": sorted(options.iou_types),
            "sigmas": options.sigmas if "keypoints" in options.iou_types else None,
            "labels": names,
            "validate_args": flag("validate_args", validate_args),
        }
        super().__init__(config, tables(options.iou_types), **kwargs)
        self.options = options
        self.validate_args = validate_args

    def update(self, preds: Sequence[Mapping[str, Any]], target: Sequence[Mapping[str, Any]]) -> None:
        """Add images. A boxed detection costs 48 bytes until `compute`, a ground truth 56, an image 48.

        Other shapes cost 24 and 32 bytes instead, and each pair of one image that overlaps 24.

        Args:
            preds: one dict per image: ``scores`` (n,), ``labels`` (n,) of an integer dtype, and the shapes.
            target: one dict per image: ``labels`` (n,) and the shapes; optionally ``iscrowd`` (n,) 0 or 1, ``area``
                (n,) square pixels (where not given, that of the shape) and ``image_id``, an int or a tensor of one
                element: an image whose id was seen counts once, and equal scores of different images are ordered by it
                (without ids, by arrival and rank).

        The shapes are ``boxes`` (n, 4) in pixels; for ``"segm"`` ``masks``: a tensor (n, height, width), or a list of
        COCO's run-length codes or polygons (:func:`map_metrics.detection.mask_inputs.read_masks`); for ``"obb"``
        ``boxes`` (n, 5) center x and y, width, height, and the angle in radians; for ``"keypoints"`` ``keypoints``
        (n, K, 3) x, y and visibility, of which a target needs ``area`` or ``boxes`` beside.

        A protocol reads more of the target: VOC ``difficult`` (n,), LVIS ``ignore`` (n,), ``neg_category_ids`` and
        ``not_exhaustive_category_ids``, Open Images ``is_group_of`` (n,), ``pos_category_ids`` and
        ``neg_category_ids``: flags 0 or 1, and lists of labels for the whole image.

        Raises:
            ValueError: naming image and row, what was expected and what came; the state stays as it was.
        """
        blocks, rounded = _blocks(preds, target, self.options, values=self.validate_args)
        if rounded is not None:
            self.warn_once("half", _rounded_note(rounded))
        self.append(**blocks)

    def compute(self) -> dict[str, Any] | Tensor:
        """The COCO numbers, 0-d float64 each, -1 where nothing is defined; always the same keys."""
        return value_of(self._results())

    def _results(self) -> dict[str, DetectionResult]:
        state = {name: self.table(name) for name in tables(self.options.iou_types)}
        results = detection_results(state, self.options)
        if bool((state["images"][:, 0] == 0).any()):
            self.warn_unnamed("images")
        for topic, note in next(iter(results.values())).notes().items():
            self.warn_once(topic, note)
        return results

    def _result(self) -> DetectionResult | dict[str, DetectionResult]:
        """One result, or with two types of overlap one by type."""
        results = self._results()
        return results if len(results) > 1 else next(iter(results.values()))

    # --- files ---

    @classmethod
    def from_coco(cls, ground_truth: str | Path, detections: str | Path, **kwargs: Any) -> DetectionMAP:
        """A metric that holds the images of COCO's JSON files, or of the other formats that `read_detection` takes.

        Labels are the category ids, ``class_names`` the names of all categories; images without an object stay.

        Args:
            ground_truth: the annotations.
            detections: the results.
            kwargs: arguments of the class. ``box_format`` is the file's own, x, y, width and height.

        Raises:
            ValueError: naming file and entry, what was expected and what came.

        Example:
            >>> import tempfile, torch
            >>> from map_metrics import DetectionMAP
            >>> metric, folder = DetectionMAP(class_names={18: "dog"}), tempfile.mkdtemp()
            >>> boxes, labels = torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([18])
            >>> preds = [{"boxes": boxes * 0.8, "scores": torch.tensor([0.9]), "labels": labels}]
            >>> metric.update(preds, [{"boxes": boxes, "labels": labels, "image_id": 7}])
            >>> metric.to_coco(folder)
            >>> other = DetectionMAP.from_coco(f"{folder}/ground_truth.json", f"{folder}/detections.json")
            >>> other.result().per_class()[0]["name"], bool(other.compute()["map"] == metric.compute()["map"])
            ('dog', True)
        """
        from map_metrics.readers import read_detection

        files = read_detection(ground_truth, detections, kwargs.get("iou_type", "bbox"))
        metric = cls(**{"class_names": files.class_names, **kwargs, "box_format": "xywh"})
        metric.update(files.preds, files.target)
        return metric

    def to_coco(self, folder: str | Path) -> None:
        """Write ``ground_truth.json`` and ``detections.json``, as COCO's tools and :meth:`from_coco` read them.

        Category ids are the labels. Floats keep every bit, so the numbers computed from the files are the same bits.
        Each image is written once. Images without an id get the next free ones, in their order. Like `compute`, this is
        a collective call; the first rank writes.

        Args:
            folder: made if it is not there.

        Raises:
            ValueError: if the metric compares anything but boxes: it keeps overlaps then, not the shapes.
        """
        if self.options.iou_types != ("bbox",):
            raise ValueError(
                f"to_coco needs iou_type='bbox', got {self.options.iou_types}: of masks, keypoints and oriented boxes "
                "the overlaps are kept, not the shapes"
            )

        def write() -> None:
            state = {name: self.table(name) for name in tables(self.options.iou_types)}
            if self._is_first_rank():
                write_coco(folder, distinct_images(state), self.options.class_names)

        self._gathered(write)
