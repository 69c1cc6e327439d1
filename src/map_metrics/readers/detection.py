"""Detections and ground truths of any of the formats, by what the paths hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from map_metrics.conventions import one_of
from map_metrics.detection.options import IOU_TYPES
from map_metrics.readers.coco import read_coco_results, read_coco_truths
from map_metrics.readers.dota import read_dota_results
from map_metrics.readers.files import ReadError
from map_metrics.readers.images import DetectionFiles, Truths
from map_metrics.readers.text import CORNERS, read_names, read_sizes, read_text_results, read_text_truths
from map_metrics.readers.voc import read_voc_truths


def read_truths(
    ground_truth: str | Path,
    iou_type: str | Sequence[str] = "bbox",
    *,
    box_format: str = "xyxy",
    sizes: str | Path | None = None,
    classes: str | Path | None = None,
) -> Truths:
    """The ground truth alone; arguments as in :func:`read_detection`."""
    types = (iou_type,) if isinstance(iou_type, str) else tuple(iou_type)
    for name in types:
        one_of("iou_type", name, IOU_TYPES)
    path = Path(ground_truth)
    if not path.is_dir():
        for name, given in (("sizes", sizes), ("classes", classes)):
            if given is not None:
                raise ValueError(f"Argument `{name}` is for folders of text files; {path} is a file")
        return read_coco_truths(path, types)
    if types not in (("bbox",), ("obb",)):
        raise ReadError(path, f"is a folder, which holds boxes only; iou_type={iou_type!r} needs COCO's JSON")
    if types == ("obb",):
        box_format = _corners(box_format)
    names = None if classes is None else read_names(classes)
    if types == ("bbox",) and any(path.glob("*.xml")):
        return read_voc_truths(path, names)
    return read_text_truths(path, box_format, sizes=None if sizes is None else read_sizes(sizes), classes=names)


def read_results(
    detections: str | Path,
    truths: Truths,
    iou_type: str | Sequence[str] = "bbox",
    *,
    box_format: str = "xyxy",
    sizes: str | Path | None = None,
    skip_unknown: bool = False,
) -> DetectionFiles:
    """The detections for a ground truth that was read; arguments as in :func:`read_detection`."""
    types = (iou_type,) if isinstance(iou_type, str) else tuple(iou_type)
    path = Path(detections)
    if truths.path.is_dir() != path.is_dir() and path.exists():
        here, there = ("a folder", "a file") if path.is_dir() else ("a file", "a folder")
        raise ReadError(
            path, f"is {here} and the ground truth {truths.path} {there}: both must be COCO's JSON, or folders"
        )
    if path.is_dir() and types == ("obb",) and sizes is None:
        preds, skipped = read_dota_results(path, truths, skip_unknown=skip_unknown)
    elif path.is_dir():
        box_format = _corners(box_format) if types == ("obb",) else box_format
        size_of = None if sizes is None else read_sizes(sizes)
        preds, skipped = read_text_results(path, truths, box_format, sizes=size_of, skip_unknown=skip_unknown)
    else:
        preds, skipped = read_coco_results(path, truths, types, skip_unknown=skip_unknown)
    names = truths.class_names, truths.image_names, truths.class_groups
    return DetectionFiles(preds, truths.target, *names, num_skipped=skipped)


def _corners(box_format: str) -> str:
    """Of oriented boxes in text."""
    if box_format != "xyxy":  # the default
        raise ValueError(f"Argument `box_format` is for upright boxes; oriented ones have corners, got {box_format!r}")
    return CORNERS


def read_detection(
    ground_truth: str | Path,
    detections: str | Path,
    iou_type: str | Sequence[str] = "bbox",
    *,
    box_format: str = "xyxy",
    sizes: str | Path | None = None,
    classes: str | Path | None = None,
    skip_unknown: bool = False,
) -> DetectionFiles:
    """Detections and ground truth of files, as :meth:`map_metrics.DetectionMAP.update` takes them.

    ===================  =============================================  ===============================================
    format               ground truth                                   detections
    ===================  =============================================  ===============================================
    COCO, LVIS           JSON (gzip or not)                             JSON: a list of results
    Pascal VOC           a folder of XML                                a folder of text
    Cartucho, Padilla    a folder: ``class x1 y1 x2 y2 [difficult]``    a folder: ``class score x1 y1 x2 y2``
    YOLO (``sizes``)     a folder: ``class cx cy width height``         a folder: ``class cx cy width height score``
    ===================  =============================================  ===============================================

    With ``iou_type="obb"`` the files hold oriented boxes:

    ===================  =============================================  ===============================================
    format               ground truth                                   detections
    ===================  =============================================  ===============================================
    COCO                 JSON: ``bbox`` of 5 numbers, or ``rbox``       the same
    DOTA                 a folder: ``x1 y1 ... x4 y4 class difficult``  a folder of ``Task1_CLASS.txt``: ``image score
                                                                        x1 y1 ... x4 y4``
    YOLO (``sizes``)     a folder: ``class x1 y1 ... x4 y4``            a folder: ``class x1 y1 ... x4 y4 score``
    ===================  =============================================  ===============================================

    A ``bbox`` of 5 numbers is Detectron2's: center x and y, width, height and an angle in degrees that grows
    counter-clockwise. An ``rbox`` is Ultralytics': the same with radians that grow clockwise, as `update` takes them.
    Four corners become the smallest rectangle around them.

    Args:
        ground_truth: a file or a folder.
        detections: the same.
        iou_type: ``"bbox"``, ``"segm"``, ``"obb"``, ``"keypoints"`` or ``("bbox", "segm")``; masks and keypoints need
            COCO's JSON.
        box_format: of text files, in pixels: ``"xyxy"``, ``"xywh"`` or ``"cxcywh"``.
        sizes: a text file of lines ``name width height``: the boxes are YOLO's, in parts of the image.
        classes: a text file with a class name a line: the classes there are, in the order of their labels.
        skip_unknown: leave out, and count, detections of images and classes that the ground truth does not hold; else
            they are an error.

    Returns:
        What `update` takes, with names; upright boxes are x, y, width, height: use ``DetectionMAP(box_format="xywh")``.

    Raises:
        ReadError: a ValueError naming file, line or entry, what was expected and what came.
        OSError: if a file cannot be opened.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from map_metrics import DetectionMAP
        >>> from map_metrics.readers import read_detection
        >>> folder = Path(tempfile.mkdtemp())
        >>> box = {"image_id": 3, "category_id": 18, "bbox": [0, 0, 10, 10]}
        >>> truth = {"images": [{"id": 3}], "categories": [{"id": 18, "name": "dog"}], "annotations": [box]}
        >>> _ = (folder / "gt.json").write_text(json.dumps(truth))
        >>> _ = (folder / "dt.json").write_text(json.dumps([box | {"bbox": [0, 0, 10, 6], "score": 0.9}]))
        >>> files = read_detection(folder / "gt.json", folder / "dt.json")
        >>> metric = DetectionMAP(box_format="xywh", class_names=files.class_names)
        >>> metric.update(files.preds, files.target)
        >>> metric.compute()["map"]
        tensor(0.3000, dtype=torch.float64)
    """
    truths = read_truths(ground_truth, iou_type, box_format=box_format, sizes=sizes, classes=classes)
    return read_results(detections, truths, iou_type, box_format=box_format, sizes=sizes, skip_unknown=skip_unknown)
