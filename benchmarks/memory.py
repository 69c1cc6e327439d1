"""Peak memory of a contender in a process of its own: ``python memory.py TASK [PEER] [--quick]``; without a peer, ours.

The process first runs the contender on the quick set, so that imports and compilers are not counted, then makes the
set. What it holds then is the start; the peak of one run above that is the contender's own memory, what it keeps and
what it needs in passing. Only on Linux, whose kernel can start the peak anew.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

from elsewhere import WithTorchvision, output
from tasks import TASKS, attempt


def held() -> int:
    """Bytes in memory now, once all that is free has been given back; the peak starts here."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def measure(name: str, peer: str | None, quick: bool) -> dict[str, int]:
    """Bytes of the set, and of the contender above it."""
    task = TASKS[name]
    contender = task.peers[peer] if peer else task.ours
    attempt(contender, task.quick())
    start = held()
    data = task.quick() if quick else task.make()
    before = held()
    attempt(contender, data)
    return {"set": before - start, "bytes": peak() - before}


def in_a_process(name: str, peer: str | None, quick: bool) -> dict[str, int]:
    """The same in a fresh process; nothing where the system cannot tell."""
    if not Path("/proc/self/clear_refs").exists():
        return {}
    arguments = [__file__, name, *([peer] if peer else []), *(["--quick"] if quick else [])]
    if peer and isinstance(TASKS[name].peers[peer], WithTorchvision):
        return json.loads(output(*arguments))
    return json.loads(subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("peer", nargs="?")
    parser.add_argument("--quick", action="store_true", help="on a tenth of the set")
    options = parser.parse_args()
    print(json.dumps(measure(options.task, options.peer, options.quick)))


if __name__ == "__main__":
    main()
