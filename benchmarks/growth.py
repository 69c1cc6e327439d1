"""How time and memory grow: each metric at n, 2n, 4n and 8n, each size in a process of its own.

    python benchmarks/growth.py                  # every metric: seconds, peak memory over import, fitted exponents
    python benchmarks/growth.py --only hashing --sizes 1 2
    python benchmarks/growth.py --large          # 10,000 codes against 1,000,000 once
    python benchmarks/growth.py --imports        # what importing the package adds to importing torchmetrics

The exponent is the slope of log(seconds) over log(n): 1 is linear. Inputs are made in batches, so that the memory is
the metric's own. The time is that of every update and one compute, the best of five runs of one process: the first ones
wait for the system to hand out memory. The peak is that of the first.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

Batches = Iterator[dict[str, Any]]


class Growth(NamedTuple):
    """A metric and batches of its input for a multiple of the first size."""

    metric: Callable[[], Any]
    batches: Callable[[int], Batches]
    unit: str


def rows(times: int) -> Batches:
    import torch

    rng = torch.Generator().manual_seed(0)
    for start in range(0, 10_000 * times, 1_000):
        query = torch.arange(start, start + 1_000).repeat_interleave(50)
        yield {
            "preds": torch.rand(50_000, generator=rng),
            "target": torch.rand(50_000, generator=rng) < 0.1,
            "indexes": query,
        }


def matrix(times: int) -> Batches:
    import torch

    rng = torch.Generator().manual_seed(0)
    for _ in range(8 * times):
        score = torch.rand(16, 50_000, generator=rng)
        yield {"preds": score, "target": torch.rand(16, 50_000, generator=rng) < 1e-3}


def gallery(times: int, data: str, width: int, queries: int, items: int) -> Batches:
    """Queries against a gallery that grows."""
    import torch

    rng = torch.Generator().manual_seed(0)
    for query, count in ((True, queries), (False, items * times)):
        for start in range(0, count, 10_000):
            n = min(10_000, count - start)
            values = torch.randn(n, width, generator=rng)
            labels = torch.randint(0, 100, (n,), generator=rng)
            yield {data: values > 0 if data == "codes" else values, "labels": labels, "query": query}


def images(times: int) -> Batches:
    import sets

    for preds, target in sets.coco_like(1_000 * times).batches:
        yield {"preds": preds, "target": target}


def make(name: str) -> Growth:
    import map_metrics as mm

    return {
        "rows": Growth(mm.RetrievalMAP, rows, "500,000 rows"),
        "matrix": Growth(mm.RetrievalMAP, matrix, "128 x 50,000 scores"),
        "hashing": Growth(
            lambda: mm.HashingMAPAtK(top_k=1_000), lambda n: gallery(n, "codes", 64, 500, 20_000), "500 x 20,000 codes"
        ),
        "embedding": Growth(
            lambda: mm.EmbeddingMAPAtK(top_k=1_000),
            lambda n: gallery(n, "embeddings", 64, 500, 10_000),
            "500 x 10,000 vectors",
        ),
        "detection": Growth(mm.DetectionMAP, images, "1,000 images"),
        "large": Growth(
            lambda: mm.HashingMAPAtK(top_k=1_000),
            lambda n: gallery(n, "codes", 64, 10_000, 1_000_000),
            "10,000 x 1,000,000 codes",
        ),
    }[name]


NAMES = ("rows", "matrix", "hashing", "embedding", "detection")


def resident() -> int:
    """Bytes of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure(name: str, times: int) -> dict[str, float]:
    """One size, in this process: seconds of updates and compute, and the peak over what the imports hold."""
    import torch  # noqa: F401
    import torchmetrics  # noqa: F401

    growth = make(name)
    before = resident()
    first = run(growth, times)
    size = peak() - before
    runs = [first] if name == "large" else [first, *(run(growth, times) for _ in range(4))]
    return min(runs, key=lambda laps: laps["seconds"]) | {"bytes": size}


def run(growth: Growth, times: int) -> dict[str, float]:
    metric, seconds = growth.metric(), 0.0
    for batch in growth.batches(times):
        start = time.perf_counter()
        metric.update(**batch)
        seconds += time.perf_counter() - start
    start = time.perf_counter()
    metric.compute()
    compute = time.perf_counter() - start
    return {"seconds": seconds + compute, "compute": compute}


def in_a_process(name: str, times: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", name, str(times)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def exponent(sizes: list[int], values: list[float]) -> float:
    """Slope of the least squares line through the logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def imports() -> None:
    """What an import adds to `import torchmetrics`: medians of fresh processes, in turn."""
    import map_metrics

    statements = ["import map_metrics", *(f"from map_metrics import {name}" for name in map_metrics.__all__)]
    seconds: dict[str, list[float]] = {statement: [] for statement in statements}
    for _ in range(7):
        for statement, laps in seconds.items():
            clock = "s = time.perf_counter()", statement, "print(time.perf_counter() - s)"
            code = "; ".join(("import time, torchmetrics", *clock))
            done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
            laps.append(float(done.stdout))
    for statement, laps in seconds.items():
        print(f"{statement}: {median(laps) * 1e3:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8], help="multiples of the first size")
    parser.add_argument("--large", action="store_true", help="10,000 x 1,000,000 codes instead")
    parser.add_argument("--imports", action="store_true", help="the cost of the import instead")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write what was measured there as well")
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "TIMES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], int(options.measure[1]))))
    elif options.imports:
        imports()
    elif options.large:
        one = in_a_process("large", 1)
        pairs = 10_000 * 1_000_000 / one["compute"]
        print(f"10,000 x 1,000,000 codes of 64 bits: compute {one['compute']:.1f} s, {pairs:.3g} pairs a second,")
        print(f"{one['bytes'] / 2**20:.0f} MiB over import")
    else:
        report: dict[str, Any] = {"sizes": options.sizes, "metrics": {}}
        for name in options.only or NAMES:
            laps = [in_a_process(name, times) for times in options.sizes]
            seconds, memory = ([lap[key] for lap in laps] for key in ("seconds", "bytes"))
            print(f"{name}, multiples {options.sizes} of {make(name).unit}")
            print(
                f"  seconds {', '.join(f'{s:.3f}' for s in seconds)}: exponent {exponent(options.sizes, seconds):.2f}"
            )
            print(f"  MiB     {', '.join(f'{b / 2**20:.0f}' for b in memory)}", flush=True)
            slope = exponent(options.sizes, seconds)
            report["metrics"][name] = {
                "unit": make(name).unit,
                "seconds": seconds,
                "bytes": memory,
                "exponent": slope,
            }
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
