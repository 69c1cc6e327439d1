"""How detections become numbers: the checked arguments of the detection metric as one frozen record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal

from map_metrics.checks import numbers
from map_metrics.conventions import flag, one_of
from map_metrics.detection.hierarchy import ancestors
from map_metrics.detection.keypoints import COCO_SIGMAS
from map_metrics.detection.protocols import PROTOCOLS, TAKEN, Protocol, caps, fractions

BOX_FORMATS = ("xyxy", "xywh", "cxcywh")
IOU_TYPES = ("bbox", "segm", "obb", "keypoints")


@dataclass(frozen=True)
class DetectionOptions:
    """The arguments of :class:`map_metrics.DetectionMAP`, which documents them.

    Raises:
        ValueError: naming the argument, what was expected and what came.
    """

    box_format: str
    iou_types: tuple[str, ...]
    protocol: Protocol
    class_metrics: bool
    extended_summary: bool
    average: Literal["macro", "micro"]
    class_names: Mapping[int, str] | None
    class_groups: Mapping[int, str] | None
    hierarchy: Mapping[int, Sequence[int]] | None
    sigmas: tuple[float, ...]
    output: str | None

    @classmethod
    def of(
        cls,
        box_format: Any,
        iou_type: Any,
        iou_thresholds: Any,
        rec_thresholds: Any,
        max_detection_thresholds: Any,
        class_metrics: Any,
        extended_summary: Any,
        average: Any,
        protocol: Any,
        class_names: Any,
        class_groups: Any,
        hierarchy: Any,
        sigmas: Any,
        output: Any,
    ) -> DetectionOptions:
        """Check the arguments and put the given grids and caps in place of the protocol's own."""
        one_of("box_format", box_format, BOX_FORMATS)
        one_of("average", average, ("macro", "micro"))
        types = _iou_types(iou_type)
        if isinstance(protocol, str) and protocol == "coco" and types == ("keypoints",):
            protocol = "coco-keypoints"
        record = _protocol(protocol, iou_thresholds, rec_thresholds, max_detection_thresholds)
        if types != ("bbox",) and min(record.iou_thresholds) == 0:
            raise ValueError("Argument `iou_thresholds` must be above 0 for all but iou_type='bbox', got 0")
        groups = _names("class_groups", class_groups)
        if groups and average == "micro":
            raise ValueError("Argument `class_groups` needs average='macro', got 'micro': there is one curve for all")
        taken = {*TAKEN, *(name for name, _, _ in record.areas)} & set((groups or {}).values())
        if taken:
            raise ValueError(f"Argument `class_groups` must not name a group {sorted(taken)[0]!r}: `map_` has that key")
        options = cls(
            box_format,
            types,
            record,
            flag("class_metrics", class_metrics),
            flag("extended_summary", extended_summary),
            average,
            _names("class_names", class_names),
            groups,
            _hierarchy(hierarchy),
            _sigmas(sigmas, types),
            output,
        )
        if output is not None:
            one_of("output", output, options.headline_keys())
        return options

    def prefix(self, iou_type: str) -> str:
        """What stands before the keys of one type of overlap: nothing where there is one type only."""
        return f"{iou_type}_" if len(self.iou_types) > 1 else ""

    def headline_keys(self) -> tuple[str, ...]:
        """The keys of the headline numbers, in order."""
        keys = headline_keys(self.protocol, self.class_groups)
        return tuple(self.prefix(iou_type) + key for iou_type in self.iou_types for key in keys)


def _iou_types(value: Any) -> tuple[str, ...]:
    """One type, or boxes and masks."""
    types = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
    named = all(isinstance(name, str) for name in types)
    if named and ((len(types) == 1 and types[0] in IOU_TYPES) or sorted(types) == ["bbox", "segm"]):
        return types
    raise ValueError(f"Argument `iou_type` must be one of {IOU_TYPES} or ('bbox', 'segm'), got {value!r}")


def _hierarchy(parents: Any) -> Mapping[int, Sequence[int]] | None:
    """The classes right above each class, as checked lists."""
    if parents is None:
        return None
    entries: Any = parents.items() if isinstance(parents, Mapping) else [(None, ())]
    lists = {child: [above] if isinstance(above, Integral) else above for child, above in entries}
    labels = [*lists, *(label for above in lists.values() if isinstance(above, list | tuple) for label in above)]
    if not all(map(_is_label, labels)) or not all(isinstance(above, list | tuple) for above in lists.values()):
        raise ValueError(
            f"Argument `hierarchy` must be a dict of label to the label, or labels, of its parents, got {parents!r}"
        )
    checked = {int(child): [int(label) for label in above] for child, above in lists.items()}
    ancestors(checked, "hierarchy")
    return checked


def _is_label(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and -(2**63) <= int(value) < 2**63


def _sigmas(values: Any, types: tuple[str, ...]) -> tuple[float, ...]:
    if values is None:
        return COCO_SIGMAS
    if types != ("keypoints",):
        raise ValueError(f"Argument `sigmas` needs iou_type='keypoints', got iou_type={types}")
    sigmas = numbers("sigmas", values)
    if not sigmas or not all(0 < x < math.inf for x in sigmas):
        raise ValueError(f"Argument `sigmas` must be a list of numbers above 0, one per keypoint, got {values!r}")
    return sigmas


def headline_keys(protocol: Protocol, class_groups: Mapping[int, str] | None = None) -> tuple[str, ...]:
    """The keys of the headline numbers of one type of overlap, in order."""
    areas = [name for name, _, _ in protocol.areas[1:]]
    groups = sorted(set((class_groups or {}).values()))
    averages = ["map", "map_50", "map_75", *(f"map_{name}" for name in (*areas, *groups))]
    return (*averages, *protocol.mar_keys, *(f"mar_{name}" for name in areas))


def _protocol(name: Any, iou_thresholds: Any, rec_thresholds: Any, max_detection_thresholds: Any) -> Protocol:
    if not isinstance(name, Protocol):
        one_of("protocol", name, tuple(PROTOCOLS), "or a Protocol")
    record: Protocol = name if isinstance(name, Protocol) else PROTOCOLS[name]
    if iou_thresholds is not None:
        record = replace(record, iou_thresholds=fractions("iou_thresholds", iou_thresholds))
    if rec_thresholds is not None:
        record = replace(record, recall_thresholds=fractions("rec_thresholds", rec_thresholds))
    if max_detection_thresholds is not None:
        record = replace(record, max_detections=caps("max_detection_thresholds", max_detection_thresholds))
    return record


def _names(argument: str, names: Any) -> Mapping[int, str] | None:
    if names is None:
        return None
    by_label = dict(enumerate(names)) if isinstance(names, list | tuple) else names
    entries = by_label.items() if isinstance(by_label, Mapping) else [(None, None)]
    if not all(_is_label(label) for label, _ in entries) or not all(isinstance(name, str) for _, name in entries):
        raise ValueError(f"Argument `{argument}` must be a list of names or a dict of label to name, got {names!r}")
    return {int(label): name for label, name in by_label.items()}
