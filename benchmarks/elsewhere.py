"""A peer in an environment of its own: torchvision goes with another torch than the development environment.

``make bench`` builds it. The set is written to a file, and the peer runs in a process of that environment, which prints
its values and its laps: ``python elsewhere.py FUNCTION SET THREADS``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import peers
import sets
import torch
from peers import Laps, Values

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-torchvision"
PYTHON = FOLDER / "bin" / "python"
PACKAGES = ("torch", "torchvision", "torchmetrics", "faster-coco-eval", "pycocotools")


class WithTorchvision:
    """The function of ``peers`` of that name, run in the environment that has torchvision."""

    def __init__(self, function: str) -> None:
        self.function = function

    def __call__(self, data: Any) -> tuple[Values, Laps]:
        if Path(sys.prefix) == FOLDER:
            return getattr(peers, self.function)(data)
        if not PYTHON.exists():
            raise ImportError(f"there is no {FOLDER.name}")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "set.pt"
            torch.save(data, path)
            return tuple(json.loads(output(__file__, self.function, str(path), str(torch.get_num_threads()))))


def output(*arguments: str) -> str:
    """What a Python program prints in that environment, with this checkout's package in its path."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([PYTHON, *arguments], check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def versions() -> dict[str, str]:
    """Of the packages there; nothing where the environment was not built."""
    if not PYTHON.exists():
        return {}
    code = (
        f"import json; from importlib.metadata import version as v; print(json.dumps({{p: v(p) for p in {PACKAGES}}}))"
    )
    return json.loads(output("-c", code))


def main() -> None:
    name, path, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    function, data = getattr(peers, name), torch.load(path, weights_only=False)  # the parent wrote it
    with contextlib.redirect_stdout(io.StringIO()):
        function(sets.coco_like(16))  # the first call of a process pays for what the others find ready
        result = function(data)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
