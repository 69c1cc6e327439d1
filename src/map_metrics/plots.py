"""Pictures of a result: result -> (figure, axes). matplotlib is needed for them, and imported when one is drawn.

No figure is known to ``matplotlib.pyplot``, so none is kept open, and none needs a display:

    figure, _ = plot_curve(metric.result())
    figure.savefig("curve.png")
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from map_metrics.detection.result import DetectionResult
    from map_metrics.results import RetrievalResult

Curves = Mapping[str, tuple[Tensor, Tensor]]

# Okabe and Ito's colours, told apart by the colour-blind too; lines differ in their dashes as well.
BLUE, ORANGE, GREEN, GREY, BLACK = "#0072B2", "#D55E00", "#009E73", "#8A8A8A", "#1A1A1A"
_LINES = [(BLACK, "-", 2.4), (BLUE, "--", 1.8), (ORANGE, "-.", 1.8)]
_LONGEST = 28  # characters of a class name

# --- the numbers behind the curves ------------------------------------------------------------------------------------


def curves(result: RetrievalResult | DetectionResult, label: int | None = None) -> dict[str, tuple[Tensor, Tensor]]:
    """The lines of :func:`plot_curve`: name -> (recall, precision), float64; empty where nothing is defined.

    Args:
        result: of a metric.
        label: of a detection result, the class; None: the mean over the classes.

    Raises:
        ValueError: on a label that the result does not have.
    """
    if _is_detection(result):
        return _detection_curves(result, label)
    if label is not None:
        raise ValueError(f"Argument `label` is for detection results, got {label!r} with a retrieval result")
    ranked: Any = result
    return {"mean over queries": ranked.curve(101)} if bool((ranked.num_relevant > 0).any()) else {}


def _detection_curves(result: Any, label: int | None) -> dict[str, tuple[Tensor, Tensor]]:
    """The mean over all thresholds first, then IoU .5 and .75, as far as the protocol has them."""
    protocol, table = result.options.protocol, _defined(result, label)
    levels = torch.tensor(protocol.recall_thresholds, dtype=torch.float64)
    if not len(levels) or not table.shape[2]:
        return {}
    ious = protocol.iou_thresholds
    parts = {_ious(result): table} if len(ious) > 1 else {}
    parts |= {f"IoU {iou:.2f}": table[[t]] for t, iou in enumerate(ious) if iou in (0.5, 0.75) or len(ious) == 1}
    return {name: (levels, part.mean((0, 2))) for name, part in parts.items()}


def _defined(result: DetectionResult, label: int | None) -> Tensor:
    """Precision over the first area range under the largest cap: [thresholds, recalls, classes that are judged]."""
    table = (result.tables if label is None else result.by_class).precision[..., 0, -1]
    if label is not None:
        labels = result.classes.tolist()
        if label not in labels:
            raise ValueError(f"Argument `label` must be one of the classes {labels}, got {label!r}")
        if len(labels) != table.shape[2]:
            raise ValueError(f"Argument `label` needs class_metrics=True with average='micro', got {label!r}")
        table = table[:, :, [labels.index(label)]]
    return table[:, :, (table > -1).any(0).any(0)]


def _ious(result: DetectionResult) -> str:
    ious = result.options.protocol.iou_thresholds
    return f"IoU {min(ious):.2f}" + (f" to {max(ious):.2f}" if len(ious) > 1 else "")


# --- the pictures -----------------------------------------------------------------------------------------------------


def plot_curve(
    result: RetrievalResult | DetectionResult, label: int | None = None, ax: Axes | None = None
) -> tuple[Figure, Axes]:
    """Interpolated precision at every recall.

    Of rankings the mean over the queries that have a relevant item, at 101 recalls, with marks at the 11 of TREC's
    reports. Of detections the mean over the classes that have ground truth, at the recalls of the protocol: at an IoU
    of 0.5, of 0.75, and in the mean over all thresholds. The mean of a detection line is its mAP.

    Args:
        result: of a metric.
        label: of a detection result, the class to draw; None: the mean over the classes.
        ax: where to draw; a new figure by default.

    Returns:
        The figure and its axes.

    Raises:
        ValueError: on a label that the result does not have.
        ImportError: if matplotlib is missing.

    Example:
        >>> import torch
        >>> from map_metrics import RetrievalMAP
        >>> from map_metrics.plots import plot_curve
        >>> metric = RetrievalMAP()
        >>> metric.update(torch.tensor([[0.9, 0.7, 0.2]]), torch.tensor([[1, 0, 1]]))
        >>> figure, ax = plot_curve(metric.result())
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('recall', 'precision (interpolated)')
    """
    return draw_lines(result, curves(result, label), label, ax)


def draw_lines(result: Any, lines: Curves, label: int | None = None, ax: Axes | None = None) -> tuple[Figure, Axes]:
    """:func:`plot_curve` of lines that are known: those of many queries take a second."""
    ranked = not _is_detection(result)
    figure, ax = _axes(ax, 5.6, 4.4)
    for (color, dashes, width), (name, (recall, precision)) in zip(_LINES, lines.items(), strict=False):
        shown = None if ranked else f"{name}: AP {float(precision.mean()):.3f}"
        marks = {"marker": "o", "markevery": 10, "markersize": 5} if ranked else {}
        ax.plot(recall, precision, color=BLUE if ranked else color, ls="-" if ranked else dashes, lw=width, label=shown)
        ax.lines[-1].set(**marks)
    title = f"Precision at each recall\n{_drawn(result, label)}"
    _frame(ax, title, "recall", "precision (interpolated)")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    if not ranked and lines:
        _legend(ax)
    elif not lines:
        _say(ax, "no query has a relevant item" if ranked else _why_no_curve(result))
    return figure, ax


def plot_radius(result: RetrievalResult, ax: Axes | None = None) -> tuple[Figure, Axes]:
    """Precision and recall of a hashing result within each Hamming radius, in the mean over the queries.

    An empty ball has precision 0.

    Args:
        result: of a hashing metric.
        ax: where to draw; a new figure by default.

    Raises:
        ValueError: if the result is not of a hashing metric.
        ImportError: if matplotlib is missing.
    """
    precision, recall = result.radius_curve()
    figure, ax = _axes(ax, 5.6, 4.4)
    marks: dict[str, Any] = {"marker": "o", "markersize": 4} if len(precision) <= 40 else {}
    ax.plot(range(len(precision)), precision, color=BLUE, ls="-", lw=2, label="precision", **marks)
    ax.plot(range(len(recall)), recall, color=ORANGE, ls="--", lw=2, label="recall", **marks)
    number = _count(len(result.query), "query", "queries")
    _frame(ax, f"Within a Hamming radius\nmean over {number}", "Hamming radius (bits)", "precision, recall")
    ax.set_ylim(-0.02, 1.02)
    _whole_numbers(ax.xaxis)
    if len(result.query):
        _legend(ax)
    else:
        _say(ax, "no query")
    return figure, ax


def plot_per_class(result: DetectionResult, n: int = 20, ax: Axes | None = None) -> tuple[Figure, Axes]:
    """A bar for the AP of each class, the best on top; of more than n classes the best and the worst n / 2.

    Args:
        result: of a detection metric.
        n: the most bars, 2 or more.
        ax: where to draw; a new figure by default.

    Raises:
        ValueError: if n is not an int of 2 or more.
        ImportError: if matplotlib is missing.
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 2:
        raise ValueError(f"Argument `n` must be an int of 2 or more, got {n!r}")
    rows = result.per_class()
    judged = sorted((row for row in rows if row["ap"] > -1), key=lambda row: -row["ap"])
    best, worst = (judged, []) if len(judged) <= n else (judged[: n - n // 2], judged[-(n // 2) :])
    gap = len(judged) - len(best) - len(worst)
    bars = [*enumerate(best), *enumerate(worst, len(best) + 1)]
    height = len(bars) + (1 if gap else 0)
    figure, ax = _axes(ax, 6.4, 1.6 + 0.27 * max(height, 2))
    ax.barh([place for place, _ in bars], [row["ap"] for _, row in bars], color=BLUE, height=0.72)
    for place, row in bars:
        ax.annotate(
            f"{row['ap']:.3f}",
            (row["ap"], place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 2},  # the line of the mean may pass here
            in_layout=False,  # it stands inside; the layout would measure it all the same
        )
    ticks = [(place, _short(row["name"])) for place, row in bars]
    if gap:
        ticks.append((len(best), f"… {_count(gap, 'class', 'classes')} between …"))
    ax.set_yticks([place for place, _ in ticks], [name for _, name in ticks], parse_math=False)
    left_out = len(rows) - len(judged) if judged else 0
    title = f"Average precision of {_count(len(judged), 'class', 'classes')}"
    _frame(
        ax,
        title + (f"\n{left_out} without ground truth left out" if left_out else ""),
        f"average precision, {_ious(result)}",
        "",
    )
    ax.set(xlim=(0, 1.12), ylim=(max(height, 1) - 0.4, -0.6), xticks=[0, 0.2, 0.4, 0.6, 0.8, 1])
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    if judged:
        mean = math.fsum(row["ap"] for row in judged) / len(judged)
        ax.axvline(mean, color=BLACK, ls="--", lw=1.4, zorder=2, label=f"mean of all classes: {mean:.3f}")
        _legend(ax)
    else:
        _say(ax, _why_no_class(result))
    return figure, ax


def plot_per_query(result: RetrievalResult, ax: Axes | None = None) -> tuple[Figure, Axes]:
    """How many queries have which AP (at the first ``top_k``), with their mean and that of a random order.

    Queries that `empty_target_action="skip"` leaves out are not drawn.

    Args:
        result: of a retrieval, hashing or embedding metric.
        ax: where to draw; a new figure by default.

    Raises:
        ImportError: if matplotlib is missing.
    """
    figure, ax = _axes(ax, 5.6, 4.4)
    column = result.ap if result.ap.ndim == 1 else result.ap[:, 0]
    ap = column[~column.isnan()]
    top = max(1.0, float(ap.max())) if len(ap) else 1.0
    counts: Any = ax.hist(ap.numpy(), bins=20, range=(0, top), color=BLUE, alpha=0.75, edgecolor="white")[0]
    cut = result.conventions.cutoffs[0]
    name = "average precision of a query" + ("" if cut is None else f", first {cut}")
    title = f"Average precision of {_count(len(ap), 'query', 'queries')}"
    skipped = len(column) - len(ap)
    _frame(ax, title + (f"\n{skipped} without a relevant item left out" if skipped else ""), name, "queries")
    ax.set(xlim=(-0.02 * top, 1.02 * top), ylim=(0, max(float(max(counts)) * 1.05, 1)))
    _whole_numbers(ax.yaxis)
    if len(ap):
        kind = result.conventions.aggregation
        kind = kind if isinstance(kind, str) else "aggregate"
        value, chance = float(result.conventions.aggregate(ap)), float(result.chance)
        ax.axvline(value, color=BLACK, ls="-", lw=2, label=f"{kind}: {value:.3f}")
        ax.axvline(chance, color=ORANGE, ls="--", lw=2, label=f"random order: {chance:.3f}")
        _legend(ax)
    else:
        _say(ax, "no query to draw")
    return figure, ax


# --- what the pictures share ------------------------------------------------------------------------------------------


def _is_detection(result: Any) -> bool:
    return hasattr(result, "tables")  # their modules import this one


def _axes(ax: Axes | None, width: float, height: float) -> tuple[Figure, Axes]:
    """The given axes, or those of a new figure of this size in inches that pyplot does not know."""
    if ax is not None:
        return ax.figure, ax  # type: ignore[return-value]
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('Pictures need matplotlib: pip install "torchmetrics-map[plot]"') from error
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _frame(ax: Axes, title: str, x: str, y: str) -> None:
    ax.set_title(title, fontsize=11, parse_math=False)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(visible=True, color="#DDDDDD", lw=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _whole_numbers(axis: Any) -> None:
    axis.get_major_locator().set_params(integer=True)


def _legend(ax: Any) -> None:
    """Below the axes, where it hides no data; inside where other axes may be below."""
    if len(ax.figure.axes) > 1:
        ax.legend(loc="best", fontsize=9)
    else:
        below = -0.7 / ax.figure.get_figheight()
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, below), frameon=False, ncols=2)


def _say(ax: Axes, text: str) -> None:
    """Say in the middle of empty axes why they are empty."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=GREY, fontsize=12, wrap=True)


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _short(name: str) -> str:
    """A long name without its middle: classes often differ at the end."""
    half = _LONGEST // 2
    return name if len(name) <= _LONGEST else f"{name[:half]}…{name[-half + 1 :]}"


def _drawn(result: Any, label: int | None) -> str:
    """Of what a curve is the mean."""
    if not _is_detection(result):
        return f"mean over {_count(int((result.num_relevant > 0).sum()), 'query', 'queries')}"
    if label is not None:
        return _short((result.options.class_names or {}).get(label, f"class {label}"))
    if result.options.average == "micro":
        return f"{_count(len(result.classes), 'class', 'classes')} taken as one"
    return f"mean over {_count(_defined(result, None).shape[2], 'class', 'classes')}"


def _why_no_curve(result: Any) -> str:
    if not result.options.protocol.recall_thresholds:
        return f"the protocol {result.options.protocol.name!r}\nhas no recall levels"
    return "no ground truth"


def _why_no_class(result: DetectionResult) -> str:
    if result.options.average == "micro" and len(result.by_class.precision[0, 0]) != len(result.classes):
        return "average='micro' needs class_metrics=True"
    return "no ground truth"
