"""``map-metrics detection``: files or a saved state -> a metric -> its results -> what is printed."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from map_metrics.commands.printing import Output, Row
from map_metrics.commands.shared import (
    Loaded,
    Options,
    Step,
    arguments_of,
    compare,
    groups_of,
    load,
    paths_of,
    save,
    write_report,
)
from map_metrics.detection.metric import DetectionMAP
from map_metrics.detection.result import DetectionResult
from map_metrics.readers import DetectionFiles, ReadError, Truths, read_hierarchy, read_results, read_truths
from map_metrics.rows import RowMetric
from map_metrics.saved import read_header

GRIDS = ("iou_thresholds", "rec_thresholds", "max_detection_thresholds")
ARGUMENTS = ("protocol", "iou_type", *GRIDS, "average", "sigmas")
IMAGES_AT_ONCE = 500


def detection(options: Options, step: Step) -> Output:
    """Boxes, masks or keypoints against ground truth."""
    arguments = arguments_of(options, ARGUMENTS)
    paths = paths_of(options, "ground_truth", "detections")
    if paths:
        loaded, truths = _detection_files(options, arguments, paths, step)
    else:
        loaded, truths = _detection_state(options["state"], arguments, options["hierarchy"]), None
    step("evaluating")
    results = _by_type(loaded.metric)
    value = {r.options.prefix(t) + key: float(x) for t, r in results.items() for key, x in r.numbers.items()}
    first = next(iter(results.values()))
    found, true = int(first.num_detections.sum()), int(first.num_ground_truths.sum())
    counts = {"num_images": first.num_images, "num_ground_truths": true, "num_detections": found}
    output = Output(value, counts | loaded.counts, _settings(first))
    heading = [f"{iou_type}\n{r.summary()}" if len(results) > 1 else r.summary() for iou_type, r in results.items()]
    output.heading = "\n\n".join(heading)
    for iou_type, result in results.items():
        _class_tables(options, output, result, f"{iou_type} " if len(results) > 1 else "")
        if options["by"] is not None:
            _image_groups(options["by"], output, result, loaded.names)
    if options["html"] is not None:
        write_report(options["html"], results)
    if options["compare"] is not None:
        step(f"reading {options['compare']}")
        other = _other_detection(options, arguments, truths)
        compare(output, first, _by_type(other.metric)[first.iou_type], loaded.names)
    return output


def _detection_files(options: Options, arguments: Options, paths: list[str], step: Step) -> tuple[Loaded, Truths]:
    ground_truth, detections = paths
    iou_type = arguments.get("iou_type", "bbox")
    layout = {name: options[name] for name in ("box_format", "sizes")}
    step(f"reading {ground_truth}")
    truths = read_truths(ground_truth, iou_type, classes=options["classes"], **layout)
    loaded = _with_results(options, arguments, truths, detections, step)
    save(options, loaded, class_names=truths.class_names, class_groups=truths.class_groups)
    return loaded, truths


def _with_results(options: Options, arguments: Options, truths: Truths, path: str, step: Step) -> Loaded:
    step(f"reading {path}")
    layout = {name: options[name] for name in ("box_format", "sizes", "skip_unknown")}
    files = read_results(path, truths, arguments.get("iou_type", "bbox"), **layout)
    groups = files.class_groups if arguments.get("average") != "micro" else None
    above = None if options["hierarchy"] is None else read_hierarchy(options["hierarchy"], truths)
    names: dict[str, Any] = {"class_names": files.class_names, "class_groups": groups, "hierarchy": above}
    metric = DetectionMAP(**names, **arguments, box_format="xywh")
    for start in range(0, max(len(files.target), 1), IMAGES_AT_ONCE):
        part = slice(start, start + IMAGES_AT_ONCE)
        step(f"matching image {start + 1} of {len(files.target)}")
        _update(metric, files, part, (truths.path, Path(path)))
    counts = {"num_skipped": files.num_skipped} if options["skip_unknown"] else {}
    return Loaded(metric, files.image_names, counts)


def _update(metric: DetectionMAP, files: DetectionFiles, part: slice, paths: tuple[Path, Path]) -> None:
    """Say which image of which file an error is about."""
    preds, target = files.preds[part], files.target[part]
    try:
        metric.update(preds, target)
    except ValueError as error:
        place = re.match(r"(preds|target)\[(\d+)\]", str(error))
        if place is None:
            raise
        path = paths[place[1] == "preds"]
        image = files.image_names[target[int(place[2])]["image_id"]]
        raise ReadError(path, f"image {image}: {str(error)[place.end() :]}") from error


def _detection_state(path: str, arguments: Options, hierarchy: str | None) -> Loaded:
    """The metric that saved the state, under the protocol asked for."""
    header = read_header(path)
    config, note = header.config, header.note
    labels, saved = config.get("labels"), note.get("class_names", {})
    names = None if labels is None else {label: saved.get(str(label), str(label)) for label in labels}
    groups = {int(label): group for label, group in (note.get("class_groups") or {}).items()}
    made: dict[str, Any] = {
        "box_format": config.get("box_format", "xywh"),
        "iou_type": config.get("iou_types", ["bbox"]),
        "validate_args": config.get("validate_args", True),
        "class_groups": groups if groups and arguments.get("average") != "micro" else None,
    }
    if config.get("sigmas") is not None:
        made["sigmas"] = config["sigmas"]
    if hierarchy is not None:
        known: dict[Hashable, int] = {name: i for i, name in enumerate(names or {})}
        truths = Truths(Path(path), [], {}, known, list(names or {}), names or {})
        made["hierarchy"] = read_hierarchy(hierarchy, truths)
    return load(path, DetectionMAP(**{**made, **arguments, "class_names": names}))


def _other_detection(options: Options, arguments: Options, truths: Truths | None) -> Loaded:
    if truths is None:
        return _detection_state(options["compare"], arguments, options["hierarchy"])
    return _with_results(options, arguments, truths, options["compare"], lambda text: None)


def _by_type(metric: RowMetric) -> dict[str, DetectionResult]:
    result = metric.result()
    return result if isinstance(result, dict) else {result.iou_type: result}


def _settings(result: DetectionResult) -> dict[str, Any]:
    return {"protocol": dict(vars(result.options.protocol)), "average": result.options.average}


def _class_tables(options: Options, output: Output, result: DetectionResult, prefix: str) -> None:
    rows = result.per_class()
    for row in rows:
        row["class"] = row.pop("name")
    named: list[Row] = [{"class": row["class"], **row} for row in rows]
    if options["per_row"]:
        output.tables[f"{prefix}classes"] = named
    if options["worst"] is not None:
        judged = [row for row in named if row["ap"] > -1]
        output.tables[f"{prefix}worst"] = sorted(judged, key=lambda row: row["ap"])[: options["worst"]]


def _image_groups(path: str, output: Output, result: Any, names: dict[int, str]) -> None:
    groups = groups_of(path, list(names.values()))
    found = result.by_slice(dict(zip(names, groups, strict=True)))
    prefix = result.options.prefix(result.iou_type)
    output.tables[f"{prefix}groups"] = [{"group": group, **_floats(numbers)} for group, numbers in found.items()]


def _floats(numbers: Mapping[Hashable, Any]) -> Row:
    return {str(key): value if isinstance(value, int) else float(value) for key, value in numbers.items()}
