"""Mean average precision for retrieval, hashing and detection: exact, under named conventions, for torchmetrics."""

from map_metrics.average_precision import average_precision
from map_metrics.detection.metric import DetectionMAP
from map_metrics.embedding import EmbeddingMAPAtK
from map_metrics.hashing import HashingMAPAtK
from map_metrics.retrieval import RetrievalMAP

__all__ = ["DetectionMAP", "EmbeddingMAPAtK", "HashingMAPAtK", "RetrievalMAP", "average_precision"]
