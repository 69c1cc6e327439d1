"""Pictures: the values drawn, against plain loops and scikit-learn; nothing cut off or covered; no pyplot."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from map_metrics import DetectionMAP, EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP, plots
from map_metrics.detection.protocols import COCO

pytest.importorskip("matplotlib")


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def rankings(queries: int, items: int = 40, **kwargs: Any) -> Any:
    metric = RetrievalMAP(**kwargs)
    if queries:
        relevant = torch.rand(queries, items, generator=rng()) < 0.2
        metric.update(torch.rand(queries, items, generator=rng()).roll(1, 1) + 0.3 * relevant, relevant)
    return metric.result()


def codes(bits: int) -> Any:
    metric = HashingMAPAtK()
    labels = torch.arange(60) % 4
    flips = torch.rand(60, bits, generator=rng()) < 0.2
    metric.update((torch.rand(4, bits, generator=rng()) < 0.5)[labels] ^ flips, labels, query=torch.arange(60) < 20)
    return metric.result()


def scenes(classes: int, images: int = 20, judged: bool = True, **kwargs: Any) -> Any:
    metric, draw = DetectionMAP(**kwargs), rng()
    for number in range(images):
        corner, size = torch.rand(5, 2, generator=draw) * 150, torch.rand(5, 2, generator=draw) * 50 + 10
        boxes, labels = torch.cat([corner, corner + size], 1), torch.randint(classes, (5,), generator=draw)
        moved = boxes + torch.randn(5, 4, generator=draw) * 3
        keep = slice(None) if judged else slice(0)
        preds = {"boxes": moved, "scores": torch.rand(5, generator=draw), "labels": labels}
        metric.update([preds], [{"boxes": boxes[keep], "labels": labels[keep], "image_id": number}])
    return metric.result()


NAMES = {label: f"an unusually long name of a class of animals, the one with number {label}" for label in range(80)}
DETECTIONS = {
    "one class": lambda: scenes(1, class_names={0: "person"}),
    "five classes": lambda: scenes(5),
    "80 classes": lambda: scenes(80, 60),
    "long names": lambda: scenes(80, 60, class_names=NAMES),
    "nothing": lambda: scenes(1, 0),
    "no ground truth": lambda: scenes(3, judged=False),
    "micro": lambda: scenes(5, average="micro"),
    "micro by class": lambda: scenes(5, average="micro", class_metrics=True),
    "voc2007": lambda: scenes(5, protocol="voc2007"),
    "voc2012": lambda: scenes(5, protocol="voc2012"),
    "other thresholds": lambda: scenes(5, iou_thresholds=[0.6, 0.7], rec_thresholds=[0.0, 0.5, 1.0]),
}
RANKINGS = {
    "one query": lambda: rankings(1),
    "many": lambda: rankings(200),
    "nothing": lambda: rankings(0),
    "none relevant": lambda: rankings(3, 0 + 1, empty_target_action="skip"),
    "cut-offs": lambda: rankings(50, top_k=[5, 10]),
    "R": lambda: rankings(50, top_k="R", aggregation="median"),
    "own aggregation": lambda: rankings(50, aggregation=lambda ap: ap.max()),
    "codes": lambda: codes(16),
    "long codes": lambda: codes(128),
}
PICTURES = [
    *(pytest.param(plots.plot_curve, make, id=f"curve: {name}") for name, make in (DETECTIONS | RANKINGS).items()),
    *(pytest.param(plots.plot_per_class, make, id=f"classes: {name}") for name, make in DETECTIONS.items()),
    *(pytest.param(plots.plot_per_query, make, id=f"queries: {name}") for name, make in RANKINGS.items()),
    *(pytest.param(plots.plot_radius, RANKINGS[name], id=f"radius: {name}") for name in ("codes", "long codes")),
]

# --- legible ----------------------------------------------------------------------------------------------------------


def texts(ax: Any) -> list[Any]:
    """What is written in and around the axes."""
    legend = ax.get_legend()
    found = [ax.title, ax.xaxis.label, ax.yaxis.label, *(legend.get_texts() if legend else [])]
    for axis in (ax.xaxis, ax.yaxis):
        low, high = sorted(axis.get_view_interval())
        found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [text for text in found if text.get_text()]


@pytest.mark.filterwarnings("ignore:No query to average over")
@pytest.mark.parametrize(("draw", "make"), PICTURES)
def test_nothing_is_cut_off_and_no_label_covers_another(draw: Any, make: Any) -> None:
    figure, ax = draw(make())
    figure.canvas.draw()
    page, written = figure.bbox, texts(ax)
    boxes = [text.get_window_extent() for text in written]
    for text, box in zip(written, boxes, strict=True):
        assert page.x0 <= box.x0 < box.x1 <= page.x1, text.get_text()
        assert page.y0 <= box.y0 < box.y1 <= page.y1, text.get_text()
    for (one, here), (other, there) in itertools.combinations(zip(written, boxes, strict=True), 2):
        assert not here.padded(-1).overlaps(there.padded(-1)), (one.get_text(), other.get_text())
    assert ax.get_title()
    assert ax.get_xlabel()
    assert min(text.get_fontsize() for text in written) >= 9


def test_no_figure_is_known_to_pyplot() -> None:
    from matplotlib import pyplot

    plots.plot_curve(rankings(3))
    scenes(2).plot_per_class()
    assert pyplot.get_fignums() == []


def test_given_axes_are_drawn_on() -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots(2, 3).flat
    drawn = [
        rankings(5).plot_curve(ax=axes[0]),
        rankings(5).plot_per_query(ax=axes[1]),
        plots.plot_radius(codes(8), ax=axes[2]),
        scenes(3).plot_curve(ax=axes[3]),
        scenes(3).plot_per_class(ax=axes[4]),
        scenes(3).plot_curve(1, ax=axes[5]),
    ]
    assert [(given is figure, ax) for given, ax in drawn] == [(True, ax) for ax in axes]
    assert all(ax.get_title() for ax in axes)


def test_without_matplotlib_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'pip install "torchmetrics-map\[plot\]"'):
        rankings(3).plot_curve()


# --- the values -------------------------------------------------------------------------------------------------------


def interpolated(precision: list[float], recall: list[float], levels: Any) -> list[float]:
    """The largest precision at or beyond each recall, 0 beyond the last."""
    return [max((p for p, r in zip(precision, recall, strict=True) if r >= level), default=0.0) for level in levels]


def test_the_curve_of_rankings_is_the_mean_of_interpolated_precision() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    scores, relevant = torch.rand(30, 50, generator=rng()), torch.rand(30, 50, generator=rng()).roll(3, 1) < 0.1
    metric = RetrievalMAP()
    metric.update(scores, relevant)
    _, ax = metric.result().plot_curve()
    levels = np.linspace(0, 1, 101)
    expected = []
    for score, target in zip(scores.numpy(), relevant.numpy(), strict=True):
        if target.any():
            precision, recall, _ = metrics.precision_recall_curve(target, score)
            # the curve of scikit-learn ends with a point (recall 0, precision 1) of no document
            expected.append(interpolated(precision[:-1], recall[:-1], levels))
    (line,) = ax.get_lines()
    np.testing.assert_allclose(line.get_xdata(), levels)
    np.testing.assert_allclose(line.get_ydata(), np.mean(expected, 0), atol=1e-12)
    assert line.get_markevery() == 10  # a mark at each of TREC's 11 levels
    assert f"mean over {len(expected)} queries" in ax.get_title()


def boxes(*places: float) -> Tensor:
    return torch.tensor([[x, 0.0, x + 10, 10] for x in places])


def three_classes(**kwargs: Any) -> Any:
    """By hand. Class 0: hit, miss, hit of two; class 1: one of one, moved by 2 of 10 pixels; class 2: a false alarm."""
    metric = DetectionMAP(class_names={0: "cat", 1: "dog", 2: "cow"}, **kwargs)
    preds = {
        "boxes": boxes(0, 500, 100, 202, 300),
        "scores": torch.tensor([0.9, 0.8, 0.7, 0.9, 0.5]),
        "labels": torch.tensor([0, 0, 0, 1, 2]),
    }
    metric.update([preds], [{"boxes": boxes(0, 100, 200), "labels": torch.tensor([0, 0, 1])}])
    return metric.result()


# with an IoU of 8 / 12 the dog is found at .5, .55, .6 and .65; cats at all ten thresholds
CAT, DOG = [1.0] * 51 + [2 / 3] * 50, {"0.50 to 0.95": 0.4, "0.50": 1.0, "0.75": 0.0}


def test_the_curves_of_detections_are_means_over_classes_with_ground_truth() -> None:
    result = three_classes()
    _, ax = result.plot_curve()
    lines = {line.get_label().split(":")[0]: line for line in ax.get_lines()}
    assert list(lines) == ["IoU 0.50 to 0.95", "IoU 0.50", "IoU 0.75"]
    for name, dog in DOG.items():
        line = lines[f"IoU {name}"]
        np.testing.assert_allclose(line.get_xdata(), np.linspace(0, 1, 101))
        np.testing.assert_allclose(line.get_ydata(), [(cat + dog) / 2 for cat in CAT])
        assert line.get_label().endswith(f"AP {(np.mean(CAT) + dog) / 2:.3f}")
    assert "mean over 2 classes" in ax.get_title()
    styles = {(line.get_linestyle(), line.get_color()) for line in lines.values()}
    assert len({style for style, _ in styles}) == 3  # not by colour alone


def test_the_curve_of_one_class() -> None:
    _, ax = three_classes().plot_curve(0)
    for line in ax.get_lines():
        np.testing.assert_allclose(line.get_ydata(), CAT)
    assert ax.get_title().endswith("cat")


def test_one_threshold_is_one_line_at_the_levels_of_the_protocol() -> None:
    (line,) = three_classes(protocol="voc2007").plot_curve()[1].get_lines()
    np.testing.assert_allclose(line.get_xdata(), np.linspace(0, 1, 11))
    np.testing.assert_allclose(line.get_ydata(), [(cat + 1) / 2 for cat in CAT[::10]])


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda: three_classes(protocol="voc2012"), "has no recall levels"),
        (lambda: scenes(3, judged=False), "no ground truth"),
        (lambda: scenes(3, 0), "no ground truth"),
        (lambda: rankings(0), "no query has a relevant item"),
    ],
)
def test_an_empty_curve_says_why(result: Any, said: str) -> None:
    _, ax = result().plot_curve()
    assert not ax.get_lines()
    assert said in ax.texts[0].get_text()


def test_bars_are_the_aps_of_the_classes_and_their_mean() -> None:
    _, ax = three_classes().plot_per_class()
    cat = float(np.mean(CAT))
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], [cat, 0.4])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["cat", "dog"]
    assert [text.get_text() for text in ax.texts] == [f"{cat:.3f}", "0.400"]
    np.testing.assert_allclose(ax.get_lines()[0].get_xdata(), (cat + 0.4) / 2)
    assert ax.get_title() == "Average precision of 2 classes\n1 without ground truth left out"
    top, bottom = ax.get_ylim()[1], ax.get_ylim()[0]
    assert top < bottom  # the best is above


def test_names_are_no_formulas() -> None:
    names = {0: "$5 note", 1: "$x^$", 2: r"a\b_{c}$$"}
    result = scenes(3, class_names=names)
    figure, ax = result.plot_per_class()
    figure.canvas.draw()
    assert {label.get_text() for label in ax.get_yticklabels()} == set(names.values())
    figure, ax = result.plot_curve(1)
    figure.canvas.draw()
    assert ax.get_title().endswith("$x^$")


@pytest.mark.parametrize("n", [2, 7, 20])
def test_of_many_classes_the_best_and_the_worst_are_drawn(n: int) -> None:
    result = scenes(80, 60)
    _, ax = result.plot_per_class(n)
    aps = sorted((row["ap"] for row in result.per_class() if row["ap"] > -1), reverse=True)
    worst = n // 2
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], aps[: n - worst] + aps[-worst:])
    gap = f"… {len(aps) - n} classes between …"
    assert [label.get_text() for label in ax.get_yticklabels()].count(gap) == 1


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda: scenes(3, judged=False), "no ground truth"),
        (lambda: scenes(3, average="micro"), "average='micro' needs class_metrics=True"),
    ],
)
def test_no_bars_say_why(result: Any, said: str) -> None:
    _, ax = result().plot_per_class()
    assert [text.get_text() for text in ax.texts] == [said]


def test_bars_of_queries_count_their_aps() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    scores, relevant = torch.rand(40, 5, generator=rng()), torch.rand(40, 5, generator=rng()).roll(2, 1) < 0.4
    metric = RetrievalMAP(empty_target_action="skip")
    metric.update(scores, relevant)
    _, ax = metric.result().plot_per_query()
    pairs = [(s, t) for s, t in zip(scores.numpy(), relevant.numpy(), strict=True) if t.any()]
    ap = [metrics.average_precision_score(t, s) for s, t in pairs]
    assert [bar.get_height() for bar in ax.patches] == np.histogram(ap, 20, (0, 1))[0].tolist()

    orders = [np.array(order) for order in itertools.permutations(range(5))]
    chance = [np.mean([metrics.average_precision_score(t[order], np.arange(5)) for order in orders]) for _, t in pairs]
    drawn = {line.get_label().split(":")[0]: line.get_xdata()[0] for line in ax.get_lines()}
    assert drawn == {"mean": pytest.approx(np.mean(ap)), "random order": pytest.approx(np.mean(chance))}
    assert ax.get_title() == f"Average precision of {len(ap)} queries\n{40 - len(ap)} without a relevant item left out"


def test_the_curve_by_radius() -> None:
    query, gallery = torch.rand(7, 6, generator=rng()) < 0.5, torch.rand(30, 6, generator=rng()).roll(1, 1) < 0.5
    metric = HashingMAPAtK()
    here, there = torch.arange(7) % 2, torch.arange(30) % 2
    metric.update(query, here, query=True)
    metric.update(gallery, there, query=False)
    _, ax = plots.plot_radius(metric.result())
    expected: dict[str, list[float]] = {"precision": [], "recall": []}
    for radius in range(7):
        inside = [[int((q != g).sum()) <= radius for g in gallery] for q in query]
        alike = [[a == b for b in there.tolist()] for a in here.tolist()]
        both = [sum(i and a for i, a in zip(*rows, strict=True)) for rows in zip(inside, alike, strict=True)]
        pairs = list(zip(both, inside, alike, strict=True))
        expected["precision"].append(np.mean([hits / sum(row) if any(row) else 0 for hits, row, _ in pairs]))
        expected["recall"].append(np.mean([hits / sum(row) for hits, _, row in pairs]))
    for line in ax.get_lines():
        np.testing.assert_allclose(line.get_ydata(), expected[line.get_label()])
    assert ax.get_xlabel() == "Hamming radius (bits)"


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: three_classes().plot_curve(9), r"`label` must be one of the classes \[0, 1, 2\], got 9"),
        (lambda: scenes(3, average="micro").plot_curve(1), "`label` needs class_metrics=True with average='micro'"),
        (lambda: plots.plot_curve(rankings(3), 1), "`label` is for detection results, got 1"),
        (lambda: three_classes().plot_per_class(1), "`n` must be an int of 2 or more, got 1"),
        (lambda: three_classes().plot_per_class(2.0), "`n` must be an int of 2 or more, got 2.0"),
        (lambda: plots.plot_radius(rankings(3)), "needs the result of a hashing metric"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()


def test_every_result_has_its_pictures() -> None:
    metric = EmbeddingMAPAtK()
    metric.update(torch.rand(9, 3, generator=rng()), torch.arange(9) % 2, query=torch.arange(9) < 4)
    for draw in (metric.result().plot_curve, metric.result().plot_per_query, scenes(2, protocol=COCO).plot_curve):
        figure, ax = draw()
        assert ax.figure is figure
