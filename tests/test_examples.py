"""The examples, as a user starts them: each with one epoch, in a process of its own (which starts the second rank)."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from callback_helpers import wandb_history

pytest.importorskip("lightning.pytorch")
pytest.importorskip("sklearn")
EXAMPLES = Path(__file__).parent.parent / "examples"


def run(folder: Path, name: str, *arguments: str) -> str:
    """What the example prints; it must succeed."""
    quiet = {"OMP_NUM_THREADS": "1", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "COLUMNS": "200"}
    package = {"PYTHONPATH": str(EXAMPLES.parent / "src")}  # from another folder, a relative one would be lost
    command = [sys.executable, str(EXAMPLES / name), "--epochs", "1", "--logdir", str(folder), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **quiet, **package},
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("name", "devices", "arguments"), [("retrieval", 2, ["--wandb"]), ("hashing", 1, []), ("detection", 2, [])]
)
def test_example(tmp_path: Path, name: str, devices: int, arguments: list[str]) -> None:
    printed = run(tmp_path, f"{name}_digits.py", "--devices", str(devices), *arguments)
    (before, after) = re.findall(rf"^{name}: val/map (\S+) before training, (\S+) after$", printed, re.MULTILINE)[0]
    assert float(before) < float(after) <= 1
    same = rf"^{devices} rank\(s\) and one process on the same weights: (\S+), equal to the last bit\.$"
    (value,) = re.findall(same, printed, re.MULTILINE)
    assert f"{float(value):.4f}" == after

    assert list(tmp_path.glob(f"{name}/version_0/events.out.tfevents.*"))
    with next(tmp_path.glob(f"csv/{name}/version_0/metrics.csv")).open() as file:
        logged = [row["val/map"] for row in csv.DictReader(file) if row["val/map"]]
    assert logged[-1] == value  # the file holds every digit
    assert len(logged) == 3  # before, once during, and after training
    drawn = {path.name.partition("_step")[0] for path in tmp_path.glob(f"csv/{name}/version_0/val/*.png")}
    assert drawn == ({"ap_per_query", "hamming_radius", "pr_curve"} if name == "hashing" else set())
    for path in tmp_path.glob("wandb/offline-run-*/*.wandb"):
        assert [row["val/map"] for row in wandb_history(path) if "val/map" in row][-1] == float(value)
    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == arguments.count("--wandb")


def test_module_style(tmp_path: Path) -> None:
    printed = run(tmp_path, "module_style.py")
    for name, key in (("module_retrieval", "val/map"), ("module_detection", "map")):
        (pair,) = re.findall(rf"^{name}: {key} (\S+) before training, (\S+) after$", printed, re.MULTILINE)
        assert float(pair[0]) <= float(pair[1]) <= 1


def test_fabric(tmp_path: Path) -> None:
    printed = run(tmp_path, "fabric_digits.py", "--devices", "2")
    ((before, after),) = re.findall(r"^fabric: val/map (\S+) before training, (\S+) after$", printed, re.MULTILINE)
    assert float(before) < float(after) <= 1
    with (tmp_path / "csv/fabric/version_0/metrics.csv").open() as file:
        logged = [float(row["val/map"]) for row in csv.DictReader(file)]
    assert [f"{value:.4f}" for value in logged] == [before, after]
    assert float(before) == pytest.approx(0.286, abs=5e-3)  # on untrained weights
    assert len(list(tmp_path.glob("csv/fabric/version_0/val/*_step*.png"))) == 6
    assert list(tmp_path.glob("fabric/version_0/events.out.tfevents.*"))


def test_plain_loop(tmp_path: Path) -> None:
    printed = run(tmp_path, "plain_loop.py")
    (pair,) = re.findall(r"^plain: test/map (\S+) before training, (\S+) after;", printed, re.MULTILINE)
    assert float(pair[0]) < float(pair[1]) <= 1
    with (tmp_path / "plain/scalars.csv").open() as file:
        logged = [row["value"] for row in csv.DictReader(file) if row["key"] == "test/map"]
    assert tuple(f"{float(value):.4f}" for value in logged) == pair
    names = ["ap_per_query_step{}.png", "pr_curve_step{}.png", "worst_queries_step{}.csv"]
    assert sorted(path.name for path in tmp_path.glob("plain/test/*")) == sorted(
        n.format(i) for n in names for i in "01"
    )
