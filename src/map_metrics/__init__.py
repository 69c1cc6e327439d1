"""Mean average precision for retrieval, hashing and detection: exact, under named conventions, for torchmetrics."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from map_metrics.average_precision import average_precision

if TYPE_CHECKING:
    from map_metrics.detection.metric import DetectionMAP
    from map_metrics.embedding import EmbeddingMAPAtK
    from map_metrics.hashing import HashingMAPAtK
    from map_metrics.retrieval import RetrievalMAP

__all__ = ["DetectionMAP", "EmbeddingMAPAtK", "HashingMAPAtK", "RetrievalMAP", "average_precision"]

_HOMES = {
    "DetectionMAP": "map_metrics.detection.metric",
    "EmbeddingMAPAtK": "map_metrics.embedding",
    "HashingMAPAtK": "map_metrics.hashing",
    "RetrievalMAP": "map_metrics.retrieval",
}


def __getattr__(name: str) -> Any:
    """A metric is imported when it is asked for: retrieval needs nothing of detection."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
