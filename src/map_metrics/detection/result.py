"""What stands behind the detection numbers: tables, classes and counts. Scalars and texts are views of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from map_metrics import plots
from map_metrics.checks import count, number
from map_metrics.comparison import Comparison, paired_comparison, pairing
from map_metrics.detection.bootstrap import Interval, bootstrap
from map_metrics.detection.confusion import confusion_matrix
from map_metrics.detection.errors import ErrorBreakdown, error_breakdown
from map_metrics.detection.evidence import Evidence
from map_metrics.detection.images import image_counts, image_precision
from map_metrics.detection.judged import judge
from map_metrics.detection.matched import Average, Matched
from map_metrics.detection.options import DetectionOptions
from map_metrics.detection.precision_recall import BestF, Curve, best_f, precision_recall
from map_metrics.detection.slices import group_names, summarize_groups
from map_metrics.detection.summary import Tables, per_class, precision_at, summarize, tabulate
from map_metrics.devices import methods_on_cpu


@methods_on_cpu
@dataclass(frozen=True, repr=False)
class DetectionResult:
    """The tables behind a mean average precision of detections.

    Attributes:
        tables: precision and recall on the grids of the protocol.
        by_class: the same class by class; other tables than ``tables`` only with ``average="micro"`` and class metrics.
        options: how the rows became numbers.
        num_images: images evaluated.
        num_duplicates: images left out because their ids had been seen.
        num_conflicts: how many of those differed from the copy that was kept.
        iou_type: whose overlaps these are.
        ious: overlaps by (image, label) with ``extended_summary=True``.
        evidence: the rows, from which the curves, the confusion matrix, the errors, the images and the intervals come.
        matched: the rows matched at the thresholds of the protocol, so that they need not be matched again.
    """

    tables: Tables
    by_class: Tables
    options: DetectionOptions
    num_images: int
    num_duplicates: int = 0
    num_conflicts: int = 0
    iou_type: str = "bbox"
    ious: dict[tuple[int, int], Tensor] | None = None
    evidence: Evidence | None = None
    matched: Matched | None = None

    @property
    def classes(self) -> Tensor:
        """(C,) int64: every detected or true label, ascending."""
        return self.tables.classes

    @property
    def precision(self) -> Tensor:
        """[thresholds, recalls, classes, areas, caps] float64, -1 where undefined: the axes of pycocotools."""
        return self.tables.precision

    @property
    def scores(self) -> Tensor:
        """[thresholds, recalls, classes, areas, caps] float64: the score at which each recall is reached."""
        return self.tables.scores

    @property
    def recall(self) -> Tensor:
        """[thresholds, classes, areas, caps] float64, -1 where undefined."""
        return self.tables.recall

    @property
    def num_ground_truths(self) -> Tensor:
        """(C,) int64: ground truths that are no crowd."""
        return self.tables.num_truths

    @property
    def num_detections(self) -> Tensor:
        """(C,) int64: detections."""
        return self.tables.num_detections

    @property
    def num_unjudged(self) -> int:
        """Detections of classes without ground truth: COCO's mean leaves such classes out, whatever is detected."""
        return int(self.num_detections[self.num_ground_truths == 0].sum())

    @functools.cached_property
    def numbers(self) -> dict[str, Tensor]:
        """The headline numbers under torchmetrics' names, 0-d float64, -1 where undefined."""
        return summarize(self.tables, self.options.protocol, self.options.class_groups)

    @functools.cached_property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """What each headline number cannot leave, whatever the order of equal scores of a class.

        Who takes whom stays as it is: only the order on the curves is open, at each threshold by itself. So the bounds
        at one threshold (``map_50``) are values of some order; a mean over several need not reach its bounds, as an
        order that is the best at one threshold need not be so at another. -1 twice where a number is undefined.
        """
        protocol, groups = self.options.protocol, self.options.class_groups
        low, high = (
            summarize(tabulate(self._matched, replace(protocol, ties=ties)), protocol, groups)
            for ties in ("pessimistic", "optimistic")
        )
        return {key: (float(low[key]), float(high[key])) for key in self.numbers}

    def per_class(self) -> list[dict[str, Any]]:
        """One row per class: label, name, AP, AP at an IoU of 0.5 and AR over the first area range, and counts.

        An AP is -1 where it is undefined: without ground truth, or without that threshold. ``unjudged`` counts the
        detections of a class without ground truth: false positives that no AP sees.
        """
        ap, ar = per_class(self.by_class)
        ap_50 = precision_at(self.by_class, self.options.protocol, 0.5)
        names = self.options.class_names or {}
        if len(ap) != len(self.classes):  # micro without class metrics: there is one curve for all
            ap = ar = ap_50 = torch.full((len(self.classes),), -1.0)
        columns = [x.tolist() for x in (self.classes, ap, ap_50, ar, self.num_ground_truths, self.num_detections)]
        return [
            {
                "label": label,
                "name": names.get(label, str(label)),
                "ap": p,
                "ap_50": p_50,
                "ar": r,
                "ground_truths": g,
                "detections": d,
                "unjudged": 0 if g else d,
            }
            for label, p, p_50, r, g, d in zip(*columns, strict=True)
        ]

    # --- answers from the rows ----------------------------------------------------------------------------------------

    def pr_curve(self, label: int, iou: float = 0.5) -> Curve:
        """Precision, recall and score at every detection of one class.

        Under the largest cap, over the first area range; detections that are left out there (on a crowd, say) are no
        points. The class is matched on its own, whatever ``average`` is.

        Args:
            label: one of :attr:`classes`.
            iou: the overlap that counts as found, above 0 and at most 1; any, not only those of the protocol.

        Raises:
            ValueError: on a label that did not occur, or a bad argument.

        Example:
            >>> import torch
            >>> from map_metrics import DetectionMAP
            >>> metric = DetectionMAP()
            >>> boxes, labels = torch.tensor([[0.0, 0, 10, 10], [50, 0, 60, 10]]), torch.tensor([1, 1])
            >>> preds = [{"boxes": boxes, "scores": torch.tensor([0.5, 0.75]), "labels": labels}]
            >>> metric.update(preds, [{"boxes": boxes[:1], "labels": labels[:1], "image_id": 7}])
            >>> curve = metric.result().pr_curve(1)
            >>> curve.precision.tolist(), curve.recall.tolist(), curve.score.tolist()
            ([0.0, 0.5], [0.0, 1.0], [0.75, 0.5])
        """
        return self._curve(label, iou)

    def best_f(self, label: int | None = None, iou: float = 0.5, beta: float = 1.0) -> BestF:
        """The score threshold of the largest F-beta, and precision, recall and F there.

        Args:
            label: one of :attr:`classes`; None: the detections of all classes under one threshold.
            iou: the overlap that counts as found, above 0 and at most 1.
            beta: how many times as much recall weighs as precision, above 0 and at most 1e100.

        Raises:
            ValueError: on a label that did not occur, or a bad argument.
        """
        return best_f(self._curve(label, iou), _number("beta", beta, above=0.0, most=1e100))

    def _curve(self, label: int | None, iou: float) -> Curve:
        matched = self._matched_at(_number("iou", iou, above=0.0, most=1.0))
        judged = judge(matched, self.options.protocol.cuts[-1])
        true = matched.truths.label[judged.true]
        if label is None:
            return precision_recall(judged, len(true))
        classes = self.classes.tolist()
        if not isinstance(label, Integral) or isinstance(label, bool) or label not in classes:
            raise ValueError(f"Argument `label` must be one of the classes {classes}, got {label!r}")
        rank = classes.index(label)
        return precision_recall(
            judged._replace(counts=judged.counts & (judged.curve == rank)), int((true == rank).sum())
        )

    def confusion_matrix(self, iou: float = 0.5, score: float = 0.25) -> Tensor:
        """How often each true class was detected as each class.

        In the order of score, a detection takes the free ground truth of any class of its image with the largest
        overlap (COCO's matching with all classes as one; hotcoco's rule. Ultralytics pairs the largest overlaps first
        instead). What is taken by a crowd or another ignored ground truth is not counted, nor are those themselves.

        Args:
            iou: the overlap from which a detection takes a ground truth, above 0 and at most 1.
            score: detections below are left out; there is no cap.

        Returns:
            (C + 1, C + 1) int64, rows the true, columns the predicted class in the order of :attr:`classes`; the last
                column is of missed ground truths, the last row of detections where there is nothing.

        Raises:
            ValueError: on a bad argument.
        """
        iou = _number("iou", iou, above=0.0, most=1.0)
        return confusion_matrix(self._evidence(), self.options.protocol, iou, _number("score", score))

    def errors(self, iou: float = 0.5, background: float = 0.1) -> ErrorBreakdown:
        """TIDE's six kinds of error (Bolya et al., ECCV 2020), how many there are, and the AP that each costs.

        A false positive, by its largest overlaps with ground truths that count, is the first of: ``localisation`` (its
        own class, from ``background`` up to below ``iou``), ``classification`` (another class, ``iou`` or more),
        ``duplicate`` (its own class, ``iou`` or more: taken before), ``background`` (below ``background``), ``both``.
        A ground truth is ``missed`` if nothing took it and no detection of the first two kinds points at it.

        The cost of a kind is what AP at this IoU gains with that kind corrected: in the first two kinds the best
        detection that points at a free ground truth becomes a true one of its class, and all others go; false positives
        of the other kinds go; missed ground truths do not count. Classes are matched on their own under the largest
        cap; a class of which no ground truth is left does not count, as in COCO.

        Args:
            iou: the overlap that counts as found, above 0 and at most 1.
            background: the overlap below which a detection is of nothing, above 0 and at most ``iou``.

        Raises:
            ValueError: on a bad argument.

        Example:
            >>> import torch
            >>> from map_metrics import DetectionMAP
            >>> metric = DetectionMAP()
            >>> boxes, labels = torch.tensor([[0.0, 0, 10, 10], [50, 0, 60, 10]]), torch.tensor([1, 2])
            >>> preds = [{"boxes": boxes, "scores": torch.tensor([0.5, 0.75]), "labels": labels.flip(0)}]
            >>> metric.update(preds, [{"boxes": boxes[:1], "labels": labels[:1], "image_id": 7}])
            >>> errors = metric.result().errors()
            >>> errors.counts["classification"], errors.counts["background"], errors.cost["classification"]
            (1, 1, 0.5)
        """
        iou = _number("iou", iou, above=0.0, most=1.0)
        background = _number("background", background, above=0.0, most=iou)
        return error_breakdown(self._evidence(), self.options.protocol, iou, background)

    def per_image(self, iou: float = 0.5) -> list[dict[str, Any]]:
        """One row per image: counts over all classes at ``iou``, and the mean average precision of the image alone.

        ``detections`` are all; those over the largest cap, and those left out over the first area range, are neither
        ``true_positives`` nor ``false_positives``. ``ap`` is COCO's, over the thresholds of the protocol and the
        classes that the image holds; -1 without ground truth. Images without an id are numbered.

        Args:
            iou: the overlap that counts as found, above 0 and at most 1.

        Raises:
            ValueError: on a bad argument.
        """
        return self._image_rows(torch.arange(self.num_images), iou)

    def worst_images(self, n: int = 10, iou: float = 0.5) -> list[dict[str, Any]]:
        """The n rows of :meth:`per_image` of the lowest AP, the lowest first; images without ground truth left out."""
        n, order = count("n", n), torch.sort(self._image_ap, stable=True).indices
        return self._image_rows(order[self._image_ap[order] > -1][:n], iou)

    def _image_rows(self, images: Tensor, iou: float) -> list[dict[str, Any]]:
        evidence, protocol = self._evidence(), self.options.protocol
        iou = _number("iou", iou, above=0.0, most=1.0)
        if iou in protocol.iou_thresholds:
            matched, threshold = self._matched, self._matched.order.tolist().index(protocol.iou_thresholds.index(iou))
        else:
            matched, threshold = self._matched_at(iou, self.options.average), 0
        counts = image_counts(matched, protocol.cuts[-1], self.num_images, threshold)
        detections = torch.bincount(evidence.detections.image, minlength=self.num_images)
        names = ("image", "detections", *counts._fields, "ap")
        ids = [evidence.image_ids[image] for image in images.tolist()]
        columns = [column[images].tolist() for column in (detections, *counts, self._image_ap)]
        return [dict(zip(names, row, strict=True)) for row in zip(ids, *columns, strict=True)]

    def by_slice(self, groups: Mapping[int, Hashable] | Sequence[Hashable] | Tensor) -> dict[Hashable, dict[str, Any]]:
        """The headline numbers of groups of images (day and night, say), and how many images each holds (``count``).

        Nothing is matched again. The numbers are those of the images of the group alone.

        Args:
            groups: the group of each image: by id, or as a list in the order of :meth:`per_image`. Images whose group
                is None are left out.

        Raises:
            ValueError: if an image has no group.
        """
        names = group_names(groups, self._evidence().image_ids)
        return summarize_groups(self._matched, self.options.protocol, names, self.options.class_groups)

    def bootstrap(
        self, num_resamples: int = 1000, confidence: float = 0.95, seed: int = 0, key: str = "map"
    ) -> Interval:
        """How much a number depends on which images were drawn: a percentile interval over resampled images.

        Each resample draws as many images as there are, with replacement; nothing is matched again. The same seed gives
        the same bits, whatever the order in which images with ids came. Resamples in which the number is undefined are
        left out of the interval. In the order of equal scores, a detection of a repeated image has its copies beside
        it. A repeated image raises the envelope of precision a little, so where a model ranks badly an interval of AP
        can lie above the value.

        Args:
            num_resamples: how often to draw.
            confidence: the level of the interval, between 0 and 1.
            seed: of ``numpy.random.default_rng``.
            key: one of the headline numbers.

        Raises:
            ValueError: on a bad argument.
        """
        if not 0 < _number("confidence", confidence) < 1:
            raise ValueError(f"Argument `confidence` must be a number between 0 and 1, got {confidence!r}")
        return bootstrap(
            self._matched,
            self.options.protocol,
            self._evidence().image_ids,
            num_resamples=count("num_resamples", num_resamples, least=1),
            confidence=confidence,
            seed=count("seed", seed),
            key=key,
            class_groups=self.options.class_groups,
        )

    def compare(
        self,
        other: DetectionResult,
        hardest: int = 5,
        *,
        method: str = "randomization",
        num_resamples: int = 10_000,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> Comparison:
        """What this result gains over another one of the same images: ``difference = self - other`` of their APs.

        The AP of an image alone (:meth:`per_image`), so the mean difference is not that of ``map``, in which every
        class counts the same. Images are paired by id, or by place where none has one; those without ground truth are
        skipped and counted.

        Args:
            other: the baseline, under the same protocol.
            hardest: how many images of the lowest AP in ``other`` to list, with what became of them.
            method: ``"randomization"`` or ``"bootstrap"`` (which needs SciPy): see :mod:`map_metrics.comparison`.
            num_resamples: random sign flips, or bootstrap samples.
            confidence: the level of the interval, between 0 and 1.
            seed: of the resamples.

        Raises:
            ValueError: if the images or the protocols are not the same, naming what differs, or on a bad argument.
            ImportError: if the method needs SciPy and it is missing.
        """
        if not isinstance(other, DetectionResult):
            raise ValueError(f"Argument `other` must be a DetectionResult, got {type(other).__name__}")
        for name in ("protocol", "average"):
            here, there = getattr(self.options, name), getattr(other.options, name)
            if here != there:
                raise ValueError(f"Argument `other` must have the same {name}: {here!r} here and {there!r} there")
        mine, theirs = self._evidence(), other._evidence()
        order, other_order = pairing((mine.ids, mine.named), (theirs.ids, theirs.named), "images")
        first, second = (ap.masked_fill(ap == -1, torch.nan) for ap in (self._image_ap, other._image_ap))
        return paired_comparison(
            torch.tensor(mine.image_ids, dtype=torch.int64)[order],
            first[order],
            second[other_order],
            hardest=hardest,
            method=method,
            num_resamples=num_resamples,
            confidence=confidence,
            seed=seed,
        )

    @functools.cached_property
    def _matched(self) -> Matched:
        """All images matched at the thresholds of the protocol."""
        return self.matched or self._evidence().match(self.options.protocol, self.options.average)

    @functools.cached_property
    def _image_ap(self) -> Tensor:
        return image_precision(self._matched, self.options.protocol, self.num_images)

    def _matched_at(self, iou: float, average: Average = "macro") -> Matched:
        return self._evidence().match(replace(self.options.protocol, iou_thresholds=(iou,)), average)

    def _evidence(self) -> Evidence:
        if self.evidence is None:
            raise ValueError("This result was made without its rows, which the question needs")
        return self.evidence

    # --- views --------------------------------------------------------------------------------------------------------

    def values(self) -> dict[str, Any]:
        """The headline numbers, and what the options add to them."""
        value: dict[str, Any] = dict(self.numbers)
        if self.options.class_metrics:
            value["map_per_class"], value[f"{self.options.protocol.mar_keys[-1]}_per_class"] = per_class(self.by_class)
            value["classes"] = self.classes
        if self.options.extended_summary:
            value["ious"] = self.ious
            value |= {"precision": self.precision, "recall": self.recall, "scores": self.scores}
        return value

    def value(self) -> dict[str, Any] | Tensor:
        """What ``compute()`` returns; of two types of overlap, this one's part."""
        return value_of({self.iou_type: self})

    def summary(self) -> str:
        """The table that pycocotools prints, one line per number."""
        protocol = self.options.protocol
        spans = {"50": "0.50", "75": "0.75"}
        ends = sorted({min(protocol.iou_thresholds), max(protocol.iou_thresholds)})
        whole = ":".join(f"{end:.2f}" if math.isclose(end, round(end, 2)) else f"{end:g}" for end in ends)
        areas = [name for name, _, _ in protocol.areas]
        largest = str(protocol.max_detections[-1]) if protocol.max_detections else "all"
        lines = []
        for key, value in self.numbers.items():
            kind, _, part = key.partition("_")
            title = "Average Precision  (AP)" if kind == "map" else "Average Recall     (AR)"
            area = part if part in areas else areas[0]
            cap = part if kind == "mar" and part.isdigit() else largest
            iou = spans.get(part, whole) if kind == "map" else whole
            group = f"| group={part} " if part in (self.options.class_groups or {}).values() else ""
            where = f"IoU={iou:<9} | area={area:>6s} | maxDets={cap:>3s} {group}"
            lines.append(f" {title} @[ {where}] = {float(value):0.3f}")
        return "\n".join(lines)

    def notes(self) -> dict[str, str]:
        """What a reader of the numbers should know: topic -> sentence. The metric warns of each once."""
        if not self.num_conflicts:
            return {}
        return {
            "conflicts": f"{self.num_conflicts} images repeat an image_id with another content; of each id one copy is "
            "kept (the smallest, the same on any number of ranks)."
        }

    def plot_curve(self, label: int | None = None, ax: Any = None) -> Any:
        """The mean precision at each recall, or of one class: see :func:`map_metrics.plots.plot_curve`."""
        return plots.plot_curve(self, label, ax)

    def plot_per_class(self, n: int = 20, ax: Any = None) -> Any:
        """A bar for the AP of each class: figure and axes of :func:`map_metrics.plots.plot_per_class`."""
        return plots.plot_per_class(self, n, ax)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the tables as plain Python values."""
        return {
            "value": {key: float(value) for key, value in self.numbers.items()},
            "protocol": {key: _without_infinity(value) for key, value in vars(self.options.protocol).items()},
            "average": self.options.average,
            "num_images": self.num_images,
            "num_duplicates": self.num_duplicates,
            "num_conflicts": self.num_conflicts,
            "num_unjudged": self.num_unjudged,
            "classes": self.per_class(),
        }

    def to_html(self, path: str | PathLike[str], *, title: str | None = None) -> None:
        """Write one self-contained page: see :func:`map_metrics.report.to_html`."""
        from map_metrics.report import to_html

        to_html(self, path, title=title)

    def __repr__(self) -> str:
        value = float(self.numbers["map"])
        return (
            f"DetectionResult(map={value:.6f}, images={self.num_images}, classes={len(self.classes)}, "
            f"protocol={self.options.protocol.name!r}, average={self.options.average!r})"
        )


def value_of(results: Mapping[str, DetectionResult]) -> dict[str, Any] | Tensor:
    """What ``compute()`` returns of the results by type of overlap: with two of them, under prefixed keys."""
    value: dict[str, Any] = {}
    for iou_type, result in results.items():
        prefix = result.options.prefix(iou_type)
        value |= {key if key == "classes" else prefix + key: item for key, item in result.values().items()}
    output = next(iter(results.values())).options.output
    return value if output is None else value.get(output, value)


def _number(name: str, value: Any, *, above: float = -math.inf, most: float = math.inf) -> float:
    if not above < number(value) <= most:
        bounds = [f"above {above:g}"] * (above > -math.inf) + [f"at most {most:g}"] * (most < math.inf)
        raise ValueError(f"Argument `{name}` must be a number {' and '.join(bounds)}".rstrip() + f", got {value!r}")
    return number(value)


def _without_infinity(value: Any) -> Any:
    """None for infinity, which JSON does not have."""
    if isinstance(value, tuple):
        return [_without_infinity(entry) for entry in value]
    return None if value == math.inf else value
