"""Write docs/benchmarks.md and its picture from what was measured: ``python benchmarks/page.py``.

It reads measured.json (``run.py --full --memory --json``), growth.json (``growth.py --json``) and missed.md, all in
this folder. ``make page`` runs all three.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from run import in_unit

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PICTURE = "images/growth.svg"
INTRO = """# Benchmarks

Times and memory beside other tools, on one machine, each table in one run. All contenders first had to agree on the
values; then they ran in turns, and the tables show medians (of pycocotools, alone or inside torchmetrics, one run). A
peer starts from the tensors that we start from: turning them into what it takes is part of its `total`. A ratio is our
time over the peer's: below 1 we are faster. The goal is the ratio that we set out to reach;
[the last section](#where-a-goal-is-missed-and-why) says why some are missed.

MiB are the peak of one evaluation in a process of its own, above what the process held before: its imports and the set.

This page is made by `make page`. Run it on your machine, or `make bench` for the tables alone: ratios differ between
machines, and much on a busy one.
"""
QUICK = "**From a quick run on a tenth of each set: it shows that all of it works, and its times mean nothing.**\n"
TITLES = {
    "coco": "Detection, like COCO",
    "objects365": "Detection, like Objects365",
    "crowded": "Detection, crowds",
    "masks": "Detection, masks",
    "hashing": "Hashing",
    "hashing-collapsed": "Hashing, collapsed classes",
    "rows": "Retrieval, rows",
    "passages": "Retrieval, one relevant document a query",
    "matrix-10": "Retrieval, a matrix with 10 relevant items a query",
    "matrix-1000": "Retrieval, a matrix with 1,000 relevant items a query",
}


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines) + "\n"


def mebibytes(size: float | None) -> str:
    return "" if size is None else f"{size / 2**20:,.0f}"


def outcome(row: dict[str, Any]) -> str:
    if row["state"] != "ok":
        return str(row["state"])
    if row["goal"] is None:
        return ""
    return "reached" if row["ratio"] <= row["goal"] else "missed"


def compared(row: dict[str, Any]) -> list[str]:
    """One line of a comparison."""
    seconds = ["" if row.get(key) is None else f"{row[key]:.4f}" for key in ("our_seconds", "peer_seconds")]
    ratios = [in_unit(row.get(key), row["unit"]) for key in ("ratio", "goal")]
    memory = [mebibytes(row.get(key)) for key in ("our_bytes", "peer_bytes")]
    return [row["ours"], row["peer"], *seconds, *ratios, outcome(row), *memory]


def task(name: str, one: dict[str, Any]) -> str:
    held = f" The set itself takes {mebibytes(one['set_bytes'])} MiB." if one["set_bytes"] else ""
    heads = ["ours", "peer", "ours, s", "peer, s", "ratio", "goal", "", "ours, MiB", "peer, MiB"]
    lines = table(heads, [compared(row) for row in one["rows"]])
    return f"## {TITLES.get(name, name)}\n\n{one['set'][0].upper()}{one['set'][1:]}.{held}\n\n{lines}"


def setting(measured: dict[str, Any]) -> str:
    """The machine, and the versions of everything that ran."""
    environments = {"all but torchmetrics' detection": measured["versions"]}
    if measured["with_torchvision"]:
        environments["torchmetrics' detection"] = measured["with_torchvision"]
    rows = [[name, ", ".join(map(" ".join, versions.items()))] for name, versions in environments.items()]
    return f"Machine: {measured['machine']}.\n\n" + table(["environment", "versions"], rows)


def grown(growth: dict[str, Any]) -> str:
    sizes, rows = growth["sizes"], []
    for name, one in growth["metrics"].items():
        seconds = ", ".join(f"{s:.3f}" for s in one["seconds"])
        memory = ", ".join(map(mebibytes, one["bytes"]))
        rows.append([name, one["unit"], seconds, f"{one['exponent']:.2f}", memory])
    return (
        "## Growth\n\n"
        f"Each metric at {', '.join(f'{size} n' for size in sizes)}, every size in a process of its own: all updates "
        "and one compute. The exponent is the slope of log(seconds) over log(n); 1 is linear, and the goal is at most "
        "1.15. MiB are the peak above what the imports hold, with the input, which is made in batches.\n\n"
        f"![Seconds and MiB of each metric over its size, both on logarithmic axes]({PICTURE})\n\n"
        + table(["metric", "n", "seconds", "exponent", "MiB"], rows)
    )


def picture(growth: dict[str, Any], path: Path) -> None:
    """Seconds and MiB over n, a line for each metric; the dashed line is linear growth."""
    sizes = growth["sizes"]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "growth"}):  # the same file from the same numbers
        figure = Figure(figsize=(9, 4), layout="constrained")
        panels = zip(figure.subplots(1, 2), ("seconds", "bytes"), ("seconds", "MiB"), (1, 2**-20), strict=True)
        for axes, key, title, scale in panels:
            values = {name: [value * scale for value in one[key]] for name, one in growth["metrics"].items()}
            for name, line in values.items():
                axes.plot(sizes, line, marker="o", label=name)
            low = min(line[0] for line in values.values())
            axes.plot(sizes, [low * size / sizes[0] for size in sizes], "k--", linewidth=1, label="linear")
            axes.set(xscale="log", yscale="log", xlabel="n", title=title)
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_xticks(sizes, [str(size) for size in sizes])
            axes.minorticks_off()
            axes.grid(alpha=0.3)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def page(measured: dict[str, Any], growth: dict[str, Any], missed: str) -> str:
    """The page as text."""
    parts = [INTRO, *([QUICK] if measured["quick"] else []), setting(measured)]
    parts += [task(name, one) for name, one in measured["tasks"].items()]
    return "\n".join([*parts, grown(growth), missed])


def main() -> None:
    measured, growth = (json.loads((HERE / name).read_text()) for name in ("measured.json", "growth.json"))
    picture(growth, DOCS / PICTURE)
    (DOCS / "benchmarks.md").write_text(page(measured, growth, (HERE / "missed.md").read_text()))


if __name__ == "__main__":
    main()
