"""Readers of the files people have: detections, TREC runs, archives of codes. They give what `update` takes."""

from map_metrics.readers.archives import LabelledRows, read_archive, read_arrays
from map_metrics.readers.detection import read_detection, read_results, read_truths
from map_metrics.readers.files import ReadError
from map_metrics.readers.hierarchy import read_hierarchy
from map_metrics.readers.images import DetectionFiles, Truths
from map_metrics.readers.trec import TrecFiles, read_trec

__all__ = [
    "DetectionFiles",
    "LabelledRows",
    "ReadError",
    "TrecFiles",
    "Truths",
    "read_archive",
    "read_arrays",
    "read_detection",
    "read_hierarchy",
    "read_results",
    "read_trec",
    "read_truths",
]
