"""``map-metrics retrieval``, ``hashing`` and ``embedding``: they differ in how they are read."""

from __future__ import annotations

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
from map_metrics.embedding import EmbeddingMAPAtK
from map_metrics.hashing import HashingMAPAtK
from map_metrics.readers import ReadError, read_archive, read_trec
from map_metrics.results import RetrievalResult
from map_metrics.retrieval import RetrievalMAP
from map_metrics.rows import RowMetric
from map_metrics.saved import read_header

CONVENTIONS = ("top_k", "denominator", "ties", "interpolation", "empty_target_action", "aggregation")
GALLERY = (*CONVENTIONS, "relevance", "label_weights", "exclude_self")


def ranking(options: Options, step: Step) -> Output:
    """Retrieval, hashing and embeddings: they differ in how they are read."""
    path_names = ("qrels", "run") if options["command"] == "retrieval" else ("archive",)
    paths = paths_of(options, *path_names)
    read = _retrieval_files if options["command"] == "retrieval" else _gallery_files
    if paths:
        step(f"reading {paths[-1]}")
        loaded = read(options, paths)
        save(options, loaded)
    else:
        loaded = _ranking_state(options, options["state"])
    step("evaluating")
    result = loaded.metric.result()
    output = _ranking_output(options, result, loaded)
    if options["html"] is not None:
        write_report(options["html"], {"": result})
    if options["compare"] is not None:
        step(f"reading {options['compare']}")
        other = (
            read(options, [*paths[:-1], options["compare"]]) if paths else _ranking_state(options, options["compare"])
        )
        compare(output, result, other.metric.result(), loaded.names)
    return output


def _retrieval_files(options: Options, paths: list[str]) -> Loaded:
    qrels, run = paths
    arguments = arguments_of(options, (*CONVENTIONS, "largest"))
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
    metric: RowMetric = cls(**{**(made or {}), **arguments_of(options, (*GALLERY, own))})
    return metric


def _ranking_state(options: Options, path: str) -> Loaded:
    """The metric that saved the state, under the conventions asked for."""
    config = read_header(path).config
    known = ("ignore_index", "largest", "exclude_self", "packed", "similarity", "validate_args")
    made = {name: config[name] for name in known if name in config}
    if options["command"] != "retrieval":
        return load(path, _gallery_metric(options, made))
    if config.get("stable"):
        made["ties"] = "stable"
    return load(path, RetrievalMAP(**{**made, **arguments_of(options, (*CONVENTIONS, "largest"))}))


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
        groups = result.by_group(groups_of(options["by"], [row["query"] for row in rows]))
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
