"""A Lightning callback that writes the result of each validation and test as a page and as JSON."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torchmetrics import Metric

from map_metrics import views
from map_metrics.callbacks import MAPCallback
from map_metrics.report import to_html
from map_metrics.report_page import plain, write_atomically
from map_metrics.rows import RowMetric
from map_metrics.shares import State


class MAPReport(MAPCallback):
    """A :class:`map_metrics.callbacks.MAPCallback` that also writes ``report.html`` and ``result.json``.

    At the end of every validation and test, on rank 0, into ``reports/{stage}`` of the logger's directory (without a
    logger, of ``default_root_dir``); with a name or several dataloaders ``reports/{stage}/{name}/{loader}``, with two
    types of overlap one folder deeper for each. Each validation replaces the page of the one before. The page is that
    of :func:`map_metrics.report.to_html`; the JSON is the result's ``to_dict()``, with null for infinities and NaN.

    A file that cannot be written is a warning, not an error. The sanity check and ``fast_dev_run`` write nothing.

    Args:
        metric: a metric of this package; it is cloned.
        dirpath: the folder to write into instead: files go into ``{dirpath}/{stage}``.
        kwargs: those of ``MAPCallback``: ``name``, ``feed``, ``figures`` and the others.

    Attributes:
        pages: the keys' prefix (``val``, ``test/photos``) -> the page that was written last; on rank 0.

    Raises:
        ValueError: as ``MAPCallback``; if the metric has no result to report, or ``dirpath`` is no path.

    Example:
        >>> from map_metrics import RetrievalMAP
        >>> from map_metrics.report_callback import MAPReport
        >>> callback = MAPReport(RetrievalMAP(), dirpath="reports", name="photos")
    """

    def __init__(self, metric: Metric, *, dirpath: str | PathLike[str] | None = None, **kwargs: Any) -> None:
        super().__init__(metric, **kwargs)
        if not isinstance(metric, RowMetric):
            raise ValueError(f"Argument `metric` must be a metric of map_metrics, got {type(metric).__name__}")
        if not (dirpath is None or isinstance(dirpath, str | PathLike)):
            raise ValueError(f"Argument `dirpath` must be None or a path, got {dirpath!r}")
        self.dirpath = dirpath
        self.pages: dict[str, Path] = {}

    def _evaluate(self, state: State) -> tuple[dict[str, Any], Any]:
        """As there, from the result, which is kept."""
        result = self._found[state.prefix] = state.result()
        numbers = views.numbers(result, self.extra)
        return {f"{state.prefix}/{key}": value for key, value in numbers.items()}, result

    def _finish(self, trainer: Any, pl_module: Any) -> None:
        self._found: dict[str, Any] = {}
        super()._finish(trainer, pl_module)
        if trainer.sanity_checking or trainer.fast_dev_run:
            return
        root = self._root(trainer)
        for prefix, result in self._found.items():
            if trainer.is_global_zero:
                try:
                    self._write(prefix, result, root, f"{prefix}, step {trainer.global_step}")
                except Exception as error:  # a full disk must not end a training
                    cause = f"{type(error).__name__}: {error}"
                    message = f"MAPReport could not write the report of {prefix} into {root}: {cause}"
                    warnings.warn(message, UserWarning, stacklevel=2)
        self._found = {}

    def _root(self, trainer: Any) -> str:
        if self.dirpath is not None:
            return str(self.dirpath)
        logs = trainer.log_dir  # a collective call: on every rank
        return str(Path(logs or trainer.default_root_dir) / "reports") if "://" not in str(logs) else str(logs)

    def _write(self, name: str, found: Any, root: str, title: str) -> None:
        if "://" in root:
            raise ValueError("not a local folder; pass `dirpath=`")
        results = found if isinstance(found, Mapping) else {"": found}
        for iou_type, result in results.items():
            prefix = f"{name}/{iou_type}".rstrip("/")
            folder = Path(root, *map(_folder, filter(None, prefix.split("/"))))
            folder.mkdir(parents=True, exist_ok=True)
            to_html(result, folder / "report.html", title=title if not iou_type else f"{title}, {iou_type}")
            write_atomically(folder / "result.json", json.dumps(plain(result.to_dict()), allow_nan=False))
            self.pages[prefix] = folder / "report.html"


def _folder(name: str) -> str:
    """A name of the user's as that of one folder, different for different names; never one that leads elsewhere."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe=" ")
