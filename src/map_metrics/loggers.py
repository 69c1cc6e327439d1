"""Scalars, figures and tables for the logger at hand: three verbs that know no Trainer, and one for a whole result.

    log_scalars(logger, {"val/map": 0.5}, step=100)
    log_figure(logger, "val/pr_curve", figure, step=100)
    log_table(logger, "val/classes", ["name", "ap"], [["cat", 0.5], ["dog", 0.75]], step=100)
    log_result(logger, "val", metric.result(), step=100)  # all of these

``logger`` is a logger of Lightning or Fabric, a ``SummaryWriter``, a W&B run, or a folder. What it can do is told by
its class's name and its methods, so none of the packages is imported here. In a run of several processes, call them on
rank 0 alone.

| logger | figure | curves | table |
|---|---|---|---|
| TensorBoard | image | PR curves | text |
| W&B | image | area under curve | table |
| MLflow | artifact, one a step | - | artifact, one a step |
| CSV, others | PNG file | - | CSV file |
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from map_metrics.plots import Curves
from map_metrics.views import Result, defined, numbers, pictures, tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Sequence[Any]]


def log_scalars(logger: Any, values: Mapping[str, float], step: int) -> None:
    """Log numbers.

    Args:
        logger: see :mod:`map_metrics.loggers`.
        values: key -> number.
        step: the place on the x axis.

    Raises:
        ValueError: if the logger takes none.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from map_metrics.loggers import log_scalars
        >>> folder = Path(tempfile.mkdtemp())
        >>> log_scalars(folder, {"val/map": 0.5}, step=100)
        >>> (folder / "scalars.csv").read_text().split()
        ['step,key,value', '100,val/map,0.5']
    """
    floats = {key: float(value) for key, value in values.items()}
    if hasattr(logger, "log_metrics"):
        logger.log_metrics(floats, step=step)
    else:
        _writer(logger).scalars(floats, step)


def log_figure(logger: Any, key: str, figure: Figure | bytes, step: int, curves: Curves | None = None) -> None:
    """Log a picture.

    Args:
        logger: see :mod:`map_metrics.loggers`.
        key: its name, such as ``val/pr_curve``.
        figure: of matplotlib, or a PNG: :func:`render` a figure once where there are several loggers.
        step: the place on the x axis.
        curves: name -> (recall, precision) of its lines, recall ascending: drawn as well by a logger that has a chart
            for them.

    Raises:
        ValueError: if the logger has no place for it.
    """
    _writer(logger).figure(key, figure if isinstance(figure, bytes) else render(figure), step, curves or {})


def log_table(logger: Any, key: str, columns: Sequence[str], rows: Rows, step: int) -> None:
    """Log a table.

    Args:
        logger: see :mod:`map_metrics.loggers`.
        key: its name, such as ``val/classes``.
        columns: their names.
        rows: of plain values, one per column.
        step: the place on the x axis.

    Raises:
        ValueError: if the logger has no place for it.
    """
    _writer(logger).table(key, list(columns), [list(row) for row in rows], step)


def log_result(logger: Any, prefix: str, result: Result, step: int, extra: Sequence[str] = ()) -> None:
    """Log the value of a result, its figures and its tables: what MAPCallback logs, under the same keys.

    Args:
        logger: see :mod:`map_metrics.loggers`.
        prefix: of the keys, such as ``val``.
        result: of a metric; every rank must have asked for it, as it is gathered from all of them.
        step: the place on the x axis.
        extra: names of scalars beside the value, as for MAPCallback.

    Raises:
        ValueError: if the logger has no place for it.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from map_metrics import RetrievalMAP
        >>> from map_metrics.loggers import log_result
        >>> metric, folder = RetrievalMAP(), Path(tempfile.mkdtemp())
        >>> metric.update(torch.tensor([[0.9, 0.7, 0.2]]), torch.tensor([[1, 0, 1]]))
        >>> log_result(folder, "val", metric.result(), step=100, extra=["precision@1"])
        >>> sorted(path.name for path in folder.glob("val/*"))
        ['ap_per_query_step100.png', 'pr_curve_step100.png', 'worst_queries_step100.csv']
    """
    found = {f"{prefix}/{key}": value for key, value in numbers(result, extra).items()}
    log_scalars(logger, {key: float(value) for key, value in found.items() if defined(value)}, step)
    for picture in pictures(result):
        log_figure(logger, f"{prefix}/{picture.name}", picture.draw()[0], step, picture.curves)
    for table in tables(result):
        log_table(logger, f"{prefix}/{table.name}", table.columns, table.rows, step)


def render(figure: Figure) -> bytes:
    """A figure of matplotlib as PNG; the bytes of `savefig`, which draws everything twice."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def _writer(logger: Any) -> _Files:
    """By names, not by types: each of Lightning's two packages has its own, and users have subclasses."""
    if isinstance(logger, str | Path):
        return _Files(logger, logger)
    experiment = getattr(logger, "experiment", logger)  # the first look also makes a CSVLogger's folder its own
    names = {cls.__name__ for cls in type(logger).__mro__}
    if "WandbLogger" in names or type(experiment).__module__.startswith("wandb."):
        return _Wandb(logger, experiment)
    if "MLFlowLogger" in names:
        return _MLflow(logger, experiment)
    if hasattr(experiment, "add_image") and hasattr(experiment, "add_pr_curve_raw"):
        return _TensorBoard(logger, experiment)
    return _Files(logger, experiment)


class _Files:
    """Files below the logger's folder; what every logger without a better place gets."""

    def __init__(self, logger: Any, experiment: Any) -> None:
        self.logger, self.experiment = logger, experiment

    def scalars(self, values: dict[str, float], step: int) -> None:
        path = self._folder() / "scalars.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        header = [] if path.exists() else [["step", "key", "value"]]
        with path.open("a", newline="", encoding="utf-8") as file:
            file.write(_csv([*header, *([step, *item] for item in values.items())]))

    def figure(self, key: str, png: bytes, step: int, curves: Curves) -> None:
        self._path(key, step, "png").write_bytes(png)

    def table(self, key: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        self._path(key, step, "csv").write_text(_csv([columns, *rows]), encoding="utf-8")

    def _path(self, key: str, step: int, suffix: str) -> Path:
        path = self._folder() / _file_name(key, step, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _folder(self) -> Path:
        if isinstance(self.logger, str | Path):
            return Path(self.logger)
        for name in ("log_dir", "save_dir", "root_dir"):
            folder = getattr(self.logger, name, None)
            if isinstance(folder, str | Path) and str(folder):
                return Path(folder)
        raise ValueError(
            f"Argument `logger`: {type(self.logger).__name__} has no place for figures and tables: no methods "
            "that are known here, and no `log_dir`, `save_dir` or `root_dir`"
        )


class _TensorBoard(_Files):
    def scalars(self, values: dict[str, float], step: int) -> None:
        for key, value in values.items():
            self.experiment.add_scalar(key, value, step)

    def figure(self, key: str, png: bytes, step: int, curves: Curves) -> None:
        # not add_figure, which imports pyplot
        self.experiment.add_image(key, np.asarray(_image(png)), step, dataformats="HWC")
        for name, (recall, precision) in curves.items():
            r, p = (np.asarray(values, dtype=np.float64)[::-1] for values in (recall, precision))
            # The dashboard cuts off points at which nothing was retrieved, so counts have to be there: those of so
            # many relevant items.
            total = 10_000
            hits = np.maximum(np.rint(total * r), 1)
            false = np.rint(hits * (1 / np.maximum(p, 1e-3) - 1))
            counts = hits, false, np.zeros_like(r), total - hits
            self.experiment.add_pr_curve_raw(f"{key}/{name}", *counts, p, r, step, num_thresholds=len(r))

    def table(self, key: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        lines = [columns, ["---"] * len(columns), *rows]
        self.experiment.add_text(key, "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines), step)


class _Wandb(_Files):
    """Steps go into Lightning's own axis, not into W&B's, which must never go back."""

    def scalars(self, values: dict[str, float], step: int) -> None:
        self._log(values, step)

    def figure(self, key: str, png: bytes, step: int, curves: Curves) -> None:
        import wandb

        found: dict[str, Any] = {key: wandb.Image(_image(png))}
        if curves:
            points = [
                [name, r, p]
                for name, line in curves.items()
                for r, p in zip(*(np.asarray(values).tolist() for values in line), strict=True)
            ]
            found[f"{key}_chart"] = wandb.plot_table(
                "wandb/area-under-curve/v0",
                wandb.Table(columns=["class", "recall", "precision"], data=points),
                {"x": "recall", "y": "precision", "class": "class"},
                {"title": key, "x-axis-title": "Recall", "y-axis-title": "Precision"},
            )
        self._log(found, step)

    def table(self, key: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        import wandb

        self._log({key: wandb.Table(columns=list(columns), data=rows)}, step)

    def _log(self, values: Mapping[str, Any], step: int) -> None:
        self.experiment.log({**values, "trainer/global_step": step})


class _MLflow(_Files):
    """Artifacts, one for each step. MLflow's own `log_table` appends: a step logged twice has its rows twice."""

    def figure(self, key: str, png: bytes, step: int, curves: Curves) -> None:
        self.experiment.log_image(self.logger.run_id, _image(png), _file_name(key, step, "png"))

    def table(self, key: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        self.experiment.log_text(self.logger.run_id, _csv([columns, *rows]), _file_name(key, step, "csv"))


def _file_name(key: str, step: int, suffix: str) -> str:
    """``val/pr_curve`` -> ``val/pr_curve_step100.png``; characters that some file systems refuse become ``_``."""
    parts = [re.sub(r"[^\w.@ -]", "_", part).strip(". ") or "_" for part in key.split("/")]
    return f"{'/'.join(parts)}_step{step}.{suffix}"


def _csv(rows: Rows) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _image(png: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(png)).convert("RGB")


def _cell(value: Any) -> str:
    """A value in a table of Markdown."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
