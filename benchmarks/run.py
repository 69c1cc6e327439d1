"""Us beside the peers in one run on one machine: ``python benchmarks/run.py [--quick] [--only NAME] [--json PATH]``.

For each set, all contenders first have to agree on the values. Then they run in turns, several times; the table shows
medians and our time as a multiple of the peer's, beside the multiple to stay under (``at most``) and the one to reach
(``goal``). With ``--memory`` each contender then runs once in a process of its own, and its peak is shown beside ours.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import elsewhere
import memory
import torch
from peers import Laps, Values
from tasks import SLOW, TASKS, TOLERANCE, Contender, Limit, Room, Task, attempt

PACKAGES = (
    *("torch", "torchmetrics", "numpy", "hotcoco", "ultrafast-pycocotools", "faster-coco-eval", "pycocotools"),
    *("faiss-cpu", "ranx", "pytrec_eval-terrier", "scikit-learn"),
)


def disagreements(ours: Values, theirs: Values, tolerance: float) -> list[str]:
    faults = []
    for key, value in theirs.items():
        low, high = ours[key] if isinstance(ours[key], tuple) else (ours[key], ours[key])
        if not low - tolerance <= value <= high + tolerance:
            faults.append(f"{key}: ours {low if low == high else (low, high)}, theirs {value}")
    return faults


def seconds(laps: Laps, stage: str) -> float:
    if stage == "total":
        return sum(map(sum, laps.values()))
    return median(laps[stage.removeprefix("one ")]) if stage.startswith("one ") else sum(laps[stage])


def check(task: Task, data: Any, full: bool) -> tuple[dict[str, str], dict[str, Laps]]:
    """The state of each peer, and the laps of those that agree with us."""
    ours, own = attempt(task.ours, data)
    states, laps = {"": "ok"}, {"": own}
    for name, peer in task.peers.items():
        if name in SLOW and not full:
            states[name] = "only with --full"
            continue
        try:
            theirs, own = attempt(peer, data)
        except ImportError:
            states[name] = "not installed"
            continue
        faults = disagreements(ours, theirs, TOLERANCE.get(name, 1e-9))
        states[name] = "values differ: " + "; ".join(faults) if faults else "ok"
        if not faults:
            laps[name] = own
    return states, laps


def measure(task: Task, data: Any, runs: int, full: bool) -> tuple[dict[str, str], dict[str, list[Laps]]]:
    """The state of each contender, and its laps in each run; ours have no name."""
    states, first = check(task, data, full)
    contenders: dict[str, Contender] = {"": task.ours} | task.peers
    laps: dict[str, list[Laps]] = {name: [own] if name in SLOW else [] for name, own in first.items()}
    for _ in range(runs):
        for name in first:
            if name not in SLOW:
                laps[name].append(attempt(contenders[name], data)[1])
    return states, laps


def rows(
    task: Task, states: dict[str, str], laps: dict[str, list[Laps]], peaks: dict[str, int]
) -> list[dict[str, Any]]:
    """One row for each bar. Seconds are medians, and peaks are bytes."""

    def median_of(name: str, stage: str) -> float:
        return median(seconds(one, stage) for one in laps[name])

    table = []
    for bar in task.bars:
        row: dict[str, Any] = {"state": "ok", "at_most": bar.at_most, "goal": bar.goal}
        if isinstance(bar, Room):
            row |= {"ours": "memory", "peer": bar.what, "our_bytes": peaks.get(""), "ratio": peaks.get("")}
            row |= {"unit": "MiB", "state": "ok" if peaks else "only with --memory"}
        elif isinstance(bar, Limit):
            lap = median_of("", bar.ours)
            row |= {"ours": bar.ours, "peer": bar.what, "our_seconds": lap, "ratio": lap, "unit": "ms"}
        else:
            row |= {"ours": bar.ours, "peer": f"{bar.peer}: {bar.theirs}", "unit": "x", "state": states[bar.peer]}
            row |= {"our_seconds": median_of("", bar.ours)}
            row |= {"our_bytes": peaks.get(""), "peer_bytes": peaks.get(bar.peer)}
            if bar.peer in laps:
                row["peer_seconds"] = median_of(bar.peer, bar.theirs)
                row["ratio"] = row["our_seconds"] / row["peer_seconds"]
        table.append(row)
    return table


def verdict(row: dict[str, Any]) -> str:
    if row["state"] != "ok":
        return str(row["state"])
    if row["at_most"] is not None and row["ratio"] > row["at_most"]:
        return "TOO SLOW"
    if row["goal"] is None:
        return ""
    return "goal reached" if row["ratio"] <= row["goal"] else "short of the goal"


def in_unit(value: float | None, unit: str) -> str:
    """A ratio, a limit or a goal as text."""
    if value is None:
        return ""
    scale, name = {"ms": (1e3, " ms"), "MiB": (2**-20, " MiB"), "x": (1, "")}[unit]
    return f"{value * scale:.3g}{name}"


def line(row: dict[str, Any]) -> str:
    def shown(key: str, scale: float, digits: int) -> str:
        return "" if row.get(key) is None else f"{row[key] * scale:.{digits}f}"

    cells = [shown("our_seconds", 1, 4), shown("peer_seconds", 1, 4)]
    cells += [in_unit(row.get(key), row["unit"]) for key in ("ratio", "at_most", "goal")]
    cells += [shown("our_bytes", 2**-20, 0), shown("peer_bytes", 2**-20, 0)]
    return f"{row['ours']:12}{row['peer']:42}" + "".join(f"{text:>10}" for text in cells) + f"  {verdict(row)}"


def machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    text = f"{(models or [platform.machine()])[0]}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    if hasattr(os, "getloadavg"):
        text += f", load {os.getloadavg()[0]:.1f}"  # on a busy machine the ratios mean little
    return text


def versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of each set, one run: shows that all of it works")
    parser.add_argument("--full", action="store_true", help=f"also {' and '.join(sorted(SLOW))}, a minute each, once")
    parser.add_argument("--memory", action="store_true", help="also the peak of each, in a process of its own")
    parser.add_argument("--only", action="append", choices=TASKS, metavar="NAME", help=f"one of {', '.join(TASKS)}")
    parser.add_argument("--runs", type=int, default=5, help="runs whose median is shown (default 5)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there as well")
    options = parser.parse_args()

    report: dict[str, Any] = {"machine": machine(), "quick": options.quick, "versions": versions()}
    report |= {"with_torchvision": elsewhere.versions(), "tasks": {}}
    print(report["machine"], ", ".join(" ".join(item) for item in report["versions"].items()), sep="\n")
    agreed = True
    for name in options.only or TASKS:
        task = TASKS[name]
        data = task.quick() if options.quick else task.make()
        print(f"\n{name}: {data}")
        heads = ("ours, s", "peer, s", "ratio", "at most", "goal", "ours, MiB", "peer, MiB")
        print(f"{'ours':12}{'peer':42}" + "".join(f"{head:>10}" for head in heads))
        states, laps = measure(task, data, 1 if options.quick else options.runs, options.full)
        told = str(data)
        del data  # the processes of the next step make it themselves
        peaks = {peer: memory.in_a_process(name, peer, options.quick) for peer in laps} if options.memory else {}
        table = rows(task, states, laps, {peer: one["bytes"] for peer, one in peaks.items() if one})
        print("\n".join(map(line, table)), flush=True)
        report["tasks"][name] = {"set": told, "set_bytes": peaks.get("", {}).get("set"), "rows": table}
        agreed &= not any(state.startswith("values") for state in states.values())
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if agreed else 1


if __name__ == "__main__":
    raise SystemExit(main())
