"""What the commands share: arguments, paths, saved states, groups and comparisons."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from map_metrics import presets
from map_metrics.commands.printing import Output
from map_metrics.conventions import one_of
from map_metrics.readers import ReadError
from map_metrics.readers.files import lines, open_text, short
from map_metrics.rows import RowMetric

Options = Mapping[str, Any]
Step = Callable[[str], None]


class Loaded(NamedTuple):
    """A metric that holds what was read, the names of its queries or images, and counts that it does not know."""

    metric: RowMetric
    names: dict[int, str]
    counts: dict[str, int]


def arguments_of(options: Options, names: tuple[str, ...]) -> dict[str, Any]:
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


def paths_of(options: Options, *names: str) -> list[str]:
    """The files of a command, or none of them with --state."""
    given = [options[name] for name in names if options[name] is not None]
    if options["state"] is not None and given:
        raise ValueError("give files or --state, not both")
    if options["state"] is None and len(given) < len(names):
        raise ValueError(
            f"expected {len(names)} paths ({', '.join(names)}) before the options, or --state; got {len(given)}"
        )
    return given


def save(options: Options, loaded: Loaded, **more: Any) -> None:
    """Where --save says, with names and counts."""
    if options["save"] is not None:
        loaded.metric.save(options["save"], note={"names": loaded.names, "counts": loaded.counts, **more})


def load(path: str, metric: RowMetric) -> Loaded:
    """The rows, names and counts that were saved."""
    note = metric.load(path)
    names = note.get("names", {})
    return Loaded(metric, {int(key): name for key, name in names.items()}, dict(note.get("counts", {})))


def groups_of(path: str, names: list[str]) -> list[str]:
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


def write_report(path: str, results: Mapping[str, Any]) -> None:
    """One page; with two types of overlap one each, ``report-bbox.html`` and ``report-segm.html``."""
    for name, result in results.items():
        where = Path(path)
        result.to_html(where if len(results) == 1 else where.with_name(f"{where.stem}-{name}{where.suffix}"))


def compare(output: Output, first: Any, second: Any, names: dict[int, str]) -> None:
    """Add what the first result gains over the second."""
    found = first.compare(second)
    content = found.to_dict()
    for table in ("hardest", "queries"):
        for row in content[table]:
            row["query"] = names.get(row["query"], str(row["query"]))
    output.comparison = content
    output.footing = "\n".join(found.summary().splitlines()[:2])
    if math.isnan(found.mean):
        raise ValueError("nothing to compare: no query or image has an average precision in both")
