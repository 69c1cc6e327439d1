"""Write docs/benchmarks.md from what was measured: ``python benchmarks/page.py``.

It reads benchmarks/measured.json (``run.py --json``) and benchmarks/growth.json (``growth.py --json``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
INTRO = """# Benchmarks

Times beside other tools, in one run on one machine, medians of interleaved runs; all contenders first had to agree on
the values. A peer starts from the tensors that we start from; turning them into what it takes is part of its `total`. A
ratio is our time over the peer's: below 1 we are faster. `goal` is the ratio that we set out to reach.

This page is made from a run of `make bench` and `make growth` by `benchmarks/page.py`. Run them on your machine: ratios
differ between machines, and much on a busy one.
"""


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines) + "\n"


def compared(row: dict[str, Any]) -> list[str]:
    """One line of a comparison."""
    seconds = [f"{row[key]:.4f}" if row.get(key) is not None else "" for key in ("our_seconds", "peer_seconds")]
    ratio = row.get("ratio")
    if row["unit"] == "ms":
        shown = ["" if value is None else f"{value * 1e3:.3g} ms" for value in (ratio, row["goal"])]
    else:
        shown = ["" if value is None else f"{value:.3g}" for value in (ratio, row["goal"])]
    state = "" if row["state"] == "ok" else row["state"]
    return [row["ours"], row["peer"], *seconds, *shown, state]


def page(measured: dict[str, Any], growth: dict[str, Any]) -> str:
    """The page as text."""
    parts = [INTRO, f"Machine: {measured['machine']}.\n"]
    heads = ["ours", "peer", "ours, s", "peer, s", "ratio", "goal", ""]
    for name, task in measured["tasks"].items():
        parts += [f"## {name}\n", f"{task['set']}.\n", table(heads, [compared(row) for row in task["rows"]])]
    sizes = growth["sizes"]
    rows = []
    for name, one in growth["metrics"].items():
        seconds = ", ".join(f"{s:.3f}" for s in one["seconds"])
        memory = ", ".join(f"{b / 2**20:.0f}" for b in one["bytes"])
        rows.append([name, one["unit"], seconds, f"{one['exponent']:.2f}", memory])
    heads = ["metric", "n", "seconds", "exponent", "MiB over import"]
    parts += [
        "## growth\n",
        f"Each metric at {', '.join(f'{size} n' for size in sizes)}, every size in a process of its own: all updates "
        "and one compute. The exponent is the slope of log(seconds) over log(n); 1 is linear.\n",
        table(heads, rows),
    ]
    return "\n".join(parts)


def main() -> None:
    measured, growth = (json.loads((HERE / name).read_text()) for name in ("measured.json", "growth.json"))
    PAGE.write_text(page(measured, growth))


if __name__ == "__main__":
    main()
