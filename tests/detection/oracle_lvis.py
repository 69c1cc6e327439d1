"""LVIS by the two tools that implement it: lvis-api, and hotcoco in its LVIS mode, on the rows under test."""

from __future__ import annotations

import logging
import warnings
from typing import Any
from unittest import mock

import hotcoco
import numpy as np
from lvis import LVIS, LVISEval, LVISResults
from oracle_coco import annotations, images_and_categories

logging.getLogger("lvis").setLevel(logging.CRITICAL)


def dataset(detections, truths, num_images, negative, open_ended, frequency) -> tuple[dict[str, Any], list[dict]]:
    """The annotations, with the flag that LVIS honours, and the results."""
    shared = images_and_categories(detections, truths, num_images)
    for image in shared["images"]:
        image["neg_category_ids"] = negative[image["id"] - 1]
        image["not_exhaustive_category_ids"] = open_ended[image["id"] - 1]
    for category in shared["categories"]:
        category["frequency"] = frequency[category["id"]]
    true, found = annotations(detections, truths)
    for row, ignore in zip(true, truths.ignore.tolist(), strict=True):
        row["ignore"] = int(ignore)
    return {**shared, "annotations": true}, found


def lvis_api(annotated: dict[str, Any], found: list[dict], protocol) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """Precision [T, R, C, A], recall [T, C, A] and the printed numbers; the grids and caps are the protocol's."""
    truth = LVIS.__new__(LVIS)
    truth.logger, truth.dataset = logging.getLogger("lvis"), annotated
    truth._create_index()
    with warnings.catch_warnings(), mock.patch.object(np, "float", float, create=True):
        warnings.simplefilter("ignore", DeprecationWarning)  # logger.warn
        evaluation = LVISEval(truth, LVISResults(truth, found, max_dets=protocol.max_detections[-1]), "bbox")
        params = evaluation.params
        params.iou_thrs, params.rec_thrs = np.array(protocol.iou_thresholds), np.array(protocol.recall_thresholds)
        evaluation.run()
    return evaluation.eval["precision"], evaluation.eval["recall"], evaluation.get_results()


def hotcoco_lvis(annotated: dict[str, Any], found: list[dict], protocol) -> tuple[np.ndarray, np.ndarray, dict]:
    """The same from hotcoco."""
    truth = hotcoco.LVIS(annotated)
    results = hotcoco.LVISResults(truth, found, max_dets=protocol.max_detections[-1])
    evaluation = hotcoco.LVISEval(truth, results, "bbox")
    evaluation.run()
    return *(np.asarray(evaluation.eval[name])[..., -1] for name in ("precision", "recall")), evaluation.get_results()
