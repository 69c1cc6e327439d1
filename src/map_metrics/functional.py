"""The pure forms of the metrics: tensors in, what ``compute()`` returns out."""

from map_metrics.average_precision import average_precision
from map_metrics.detection.metric import detection_map
from map_metrics.embedding import embedding_map
from map_metrics.hashing import hashing_map
from map_metrics.retrieval import retrieval_map

__all__ = ["average_precision", "detection_map", "embedding_map", "hashing_map", "retrieval_map"]
