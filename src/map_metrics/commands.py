"""The commands: files or a saved state -> a metric -> its result -> what is printed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from map_metrics import DetectionMAP, EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP, presets
from map_metrics.conventions import one_of
from map_metrics.detection.result import DetectionResult
from map_metrics.printing import Output, Row
from map_metrics.readers import DetectionFiles, ReadError, Truths, read_archive, read_results, read_trec, read_truths
from map_metrics.readers.files import lines, open_text, short
from map_metrics.results import RetrievalResult
from map_metrics.rows import RowMetric
from map_metrics.saved import read_header

Options = Mapping[str, Any]
Step = Callable[[str], None]
CONVENTIONS = ("top_k", "denominator", "ties", "interpolation", "empty_target_action", "aggregation")
GALLERY = (*CONVENTIONS, "relevance", "label_weights", "exclude_self")
DETECTION = (
    "protocol",
    "iou_type",
    "iou_thresholds",
    "rec_thresholds",
    "max_detection_thresholds",
    "average",
    "sigmas",
)
IMAGES_AT_ONCE = 500


class Loaded(NamedTuple):
    """A metric that holds what was read, the names of its queries or images, and counts that it does not know."""

    metric: RowMetric
    names: dict[int, str]
    counts: dict[str, int]


def run(options: Options, step: Step) -> str:
    """The text that a command prints.

    Args:
        options: what the parser made of the command line.
        step: is told what is being done.

    Raises:
        ValueError: for a mistake in an option or a file.
        OSError: for a file that cannot be opened.
    """
    command = _detection if options["command"] == "detection" else _ranking
    return command(options, step).text(options["format"])


# --- arguments --------------------------------------------------------------------------------------------------------


def _arguments(options: Options, names: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of the class that were given, on top of those of a preset."""
    given = {name: options[name] for name in names if name in options}
    for name in ("top_k", "iou_type"):
        if len(given.get(name, ())) == 1:
            given[name] = given[name][0]
    preset = options.get("preset")
    if preset is None:
        return given
    known = {name.lower(): value for name, value in vars(presets).items() if name.isupper()}
    one_of("preset", preset.lower().replace("-", "_"), tuple(known))
    return {**known[preset.lower().replace("-", "_")], **given}


def _paths(options: Options, *names: str) -> list[str]:
    """The files of a command, or none of them with --state."""
    given = [options[name] for name in names if options[name] is not None]
    if options["state"] is not None and given:
        raise ValueError("give files or --state, not both")
    if options["state"] is None and len(given) < len(names):
        raise ValueError(f"expected {len(names)} paths ({', '.join(names)}) or --state, got {len(given)}")
    return given


def _save(options: Options, loaded: Loaded, **more: Any) -> None:
    if options["save"] is not None:
        loaded.metric.save(options["save"], note={"names": loaded.names, "counts": loaded.counts, **more})


def _load(path: str, metric: RowMetric) -> Loaded:
    note = metric.load(path)
    names = note.get("names", {})
    return Loaded(metric, {int(key): name for key, name in names.items()}, dict(note.get("counts", {})))


def _groups(path: str, names: list[str]) -> list[str]:
    """The group of each name, from lines ``name group`` or JSON."""
    with open_text(path) as file:
        is_json = file.read(4096).lstrip().startswith("{")
    if is_json:
        with open_text(path) as file:
            try:
                found = json.load(file)
            except json.JSONDecodeError as error:
                raise ReadError(path, f"is not JSON: {error.msg}", line=error.lineno) from error
        groups = {str(name): str(group) for name, group in found.items()}
    else:
        groups = {}
        for number, fields in lines(path):
            if len(fields) < 2:
                raise ReadError(path, f"expected name group, got {short(fields[0])}", line=number)
            groups[fields[0]] = " ".join(fields[1:])
    if lost := [name for name in names if name not in groups]:
        raise ReadError(path, f"has no group for {short(lost[0])} ({len(lost)} have none)")
    return [groups[name] for name in names]


# --- detection --------------------------------------------------------------------------------------------------------


def _detection(options: Options, step: Step) -> Output:
    arguments = _arguments(options, DETECTION)
    paths = _paths(options, "ground_truth", "detections")
    if paths:
        loaded, truths = _detection_files(options, arguments, paths, step)
    else:
        loaded, truths = _detection_state(options["state"], arguments), None
    step("evaluating")
    results = _by_type(loaded.metric)
    value = {key: float(number) for key, number in loaded.metric.compute().items()}
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
    if options["compare"] is not None:
        step(f"reading {options['compare']}")
        other = _other_detection(options, arguments, truths)
        _compare(output, first, _by_type(other.metric)[first.iou_type], loaded.names)
    return output


def _detection_files(options: Options, arguments: Options, paths: list[str], step: Step) -> tuple[Loaded, Truths]:
    ground_truth, detections = paths
    iou_type = arguments.get("iou_type", "bbox")
    layout = {name: options[name] for name in ("box_format", "sizes")}
    step(f"reading {ground_truth}")
    truths = read_truths(ground_truth, iou_type, classes=options["classes"], **layout)
    loaded = _with_results(options, arguments, truths, detections, step)
    _save(options, loaded, class_names=truths.class_names, class_groups=truths.class_groups)
    return loaded, truths


def _with_results(options: Options, arguments: Options, truths: Truths, path: str, step: Step) -> Loaded:
    step(f"reading {path}")
    layout = {name: options[name] for name in ("box_format", "sizes", "skip_unknown")}
    files = read_results(path, truths, arguments.get("iou_type", "bbox"), **layout)
    groups = files.class_groups if arguments.get("average") != "micro" else None
    metric = DetectionMAP(class_names=files.class_names, class_groups=groups, **arguments, box_format="xywh")
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


def _detection_state(path: str, arguments: Options) -> Loaded:
    """The metric that saved the state, under the protocol asked for."""
    header = read_header(path)
    config, note = header.config, header.note
    labels, saved = config.get("labels"), note.get("class_names", {})
    names = None if labels is None else {label: saved.get(str(label), str(label)) for label in labels}
    groups = {int(label): group for label, group in (note.get("class_groups") or {}).items()}
    made = {
        "box_format": config.get("box_format", "xywh"),
        "iou_type": config.get("iou_types", ["bbox"]),
        "validate_args": config.get("validate_args", True),
        "class_groups": groups if groups and arguments.get("average") != "micro" else None,
    }
    if config.get("sigmas") is not None:
        made["sigmas"] = config["sigmas"]
    return _load(path, DetectionMAP(**{**made, **arguments, "class_names": names}))


def _other_detection(options: Options, arguments: Options, truths: Truths | None) -> Loaded:
    if truths is None:
        return _detection_state(options["compare"], arguments)
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
    groups = _groups(path, list(names.values()))
    found = result.by_slice(dict(zip(names, groups, strict=True)))
    prefix = result.options.prefix(result.iou_type)
    output.tables[f"{prefix}groups"] = [{"group": group, **_floats(numbers)} for group, numbers in found.items()]


def _floats(numbers: Mapping[Hashable, Any]) -> Row:
    return {str(key): value if isinstance(value, int) else float(value) for key, value in numbers.items()}


# --- rankings ---------------------------------------------------------------------------------------------------------


def _ranking(options: Options, step: Step) -> Output:
    """Retrieval, hashing and embeddings: they differ in how they are read."""
    path_names = ("qrels", "run") if options["command"] == "retrieval" else ("archive",)
    paths = _paths(options, *path_names)
    read = _retrieval_files if options["command"] == "retrieval" else _gallery_files
    if paths:
        step(f"reading {paths[-1]}")
        loaded = read(options, paths)
        _save(options, loaded)
    else:
        loaded = _ranking_state(options, options["state"])
    step("evaluating")
    result = loaded.metric.result()
    output = _ranking_output(options, result, loaded)
    if options["compare"] is not None:
        step(f"reading {options['compare']}")
        other = (
            read(options, [*paths[:-1], options["compare"]]) if paths else _ranking_state(options, options["compare"])
        )
        _compare(output, result, other.metric.result(), loaded.names)
    return output


def _retrieval_files(options: Options, paths: list[str]) -> Loaded:
    qrels, run = paths
    arguments = _arguments(options, (*CONVENTIONS, "largest"))
    metric = RetrievalMAP(**arguments)
    layout = {name: options[name] for name in ("level", "skip_unanswered", "max_documents", "integer_ids")}
    files = read_trec(qrels, run, largest=metric.largest, **layout)
    metric.update(**files.rows)
    counts = {"num_unanswered": files.num_unanswered, "num_unjudged": files.num_unjudged}
    return Loaded(metric, files.queries, counts)


def _gallery_files(options: Options, paths: list[str]) -> Loaded:
    path = paths[0]
    metric = _gallery_metric(options)
    rows = read_archive(
        path, options["data"], labels=options["labels"], ids=options["ids"], num_queries=options["num_queries"]
    )
    try:
        metric.update(rows.data, rows.labels, query=rows.query, ids=rows.ids)
    except ValueError as error:
        raise ReadError(path, str(error)) from error
    return Loaded(metric, {}, {"num_gallery": int((~rows.query).sum())})


def _gallery_metric(options: Options, made: Options | None = None) -> RowMetric:
    cls, own = (HashingMAPAtK, "packed") if options["command"] == "hashing" else (EmbeddingMAPAtK, "similarity")
    metric: RowMetric = cls(**{**(made or {}), **_arguments(options, (*GALLERY, own))})
    return metric


def _ranking_state(options: Options, path: str) -> Loaded:
    """The metric that saved the state, under the conventions asked for."""
    config = read_header(path).config
    known = ("ignore_index", "largest", "exclude_self", "packed", "similarity", "validate_args")
    made = {name: config[name] for name in known if name in config}
    if options["command"] != "retrieval":
        return _load(path, _gallery_metric(options, made))
    if config.get("stable"):
        made["ties"] = "stable"
    return _load(path, RetrievalMAP(**{**made, **_arguments(options, (*CONVENTIONS, "largest"))}))


def _ranking_output(options: Options, result: RetrievalResult, loaded: Loaded) -> Output:
    whole = result.value()
    value = {k: float(v) for k, v in whole.items()} if isinstance(whole, dict) else {"map": float(whole)}
    counts = {"num_queries": len(result.query), "num_empty": result.num_empty, "num_duplicates": result.num_duplicates}
    content = result.to_dict()
    output = Output(value, counts | loaded.counts, content["conventions"])
    rows = [_query_row(row, list(value), loaded.names) for row in content["queries"]]
    if options["per_row"]:
        output.tables["queries"] = rows
    if options["worst"] is not None:
        worst = result.worst(options["worst"])
        output.tables["worst"] = [_query_row(row, list(value), loaded.names) for row in worst]
    if options["by"] is not None:
        groups = result.by_group(_groups(options["by"], [row["query"] for row in rows]))
        output.tables["groups"] = [{"group": group, **numbers} for group, numbers in groups.items()]
    return output


def _query_row(row: Row, keys: list[str], names: dict[int, str]) -> Row:
    """One query: its AP under each headline key, and its counts."""
    ap, hits = (row[name] if isinstance(row[name], list) else [row[name]] for name in ("ap", "num_hits"))
    marks = [key.removeprefix("map") for key in keys]
    return {
        "query": names.get(row["query"], str(row["query"])),
        **dict(zip(keys, ap, strict=True)),
        **{f"num_hits{mark}": number for mark, number in zip(marks, hits, strict=True)},
        "num_relevant": row["num_relevant"],
        "num_items": row["num_items"],
    }


def _compare(output: Output, first: Any, second: Any, names: dict[int, str]) -> None:
    found = first.compare(second)
    content = found.to_dict()
    for table in ("hardest", "queries"):
        for row in content[table]:
            row["query"] = names.get(row["query"], str(row["query"]))
    output.comparison = content
    output.footing = "\n".join(found.summary().splitlines()[:2])
    if math.isnan(found.mean):
        raise ValueError("nothing to compare: no query or image has an average precision in both")
