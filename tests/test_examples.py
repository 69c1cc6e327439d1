"""The examples, as a user starts them: each with one epoch, in a process of its own (which starts the second rank)."""

from __future__ import annotations

import csv
import json
import math
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
    quiet["MLFLOW_DISABLE_TELEMETRY"] = "true"
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
    ("name", "devices", "pictures"),
    [
        ("retrieval", 2, {"ap_per_query", "pr_curve"}),
        ("hashing", 1, {"ap_per_query", "hamming_radius", "pr_curve"}),
        ("detection", 2, {"ap_per_class", "pr_curve"}),
    ],
)
def test_example(tmp_path: Path, name: str, devices: int, pictures: set[str]) -> None:
    printed = run(tmp_path, f"{name}_digits.py", "--devices", str(devices))
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
    assert drawn == pictures


def logged_values(printed: str, epochs: int) -> dict[int, float]:
    """Step -> value, as the example prints them with every digit."""
    values = {int(step): float(value) for step, value in re.findall(r"^step (\d+): val/map (\S+)$", printed, re.M)}
    assert len(values) == epochs
    assert len(set(values.values())) == epochs  # a value of an earlier epoch would be seen
    return values


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    values = logged_values(run(tmp_path, "wandb_offline.py", "--devices", "2", "--epochs", "2"), 2)
    (folder,) = tmp_path.glob("wandb/offline-run-*")  # and none of the second rank
    (path,) = folder.glob("*.wandb")
    rows = wandb_history(path)
    scalars = [row for row in rows if "val/map" in row]
    assert {row["trainer/global_step"]: row["val/map"] for row in scalars} == values
    for row in scalars:
        assert row["val/chance"] == pytest.approx(0.1, abs=0.01)  # ten classes
        assert row["val/chance"] < row["val/map"] < row["val/precision@10"] <= 1
        assert 0 < row["val/precision_within@2"] <= 1
    for name in ("pr_curve", "ap_per_query", "hamming_radius"):
        seen = [row for row in rows if row.get(f"val/{name}/_type") == "image-file"]
        assert [row["trainer/global_step"] for row in seen] == list(values)
        assert all((folder / "files" / row[f"val/{name}/path"]).is_file() for row in seen)
    tables = [row for row in rows if "val/worst_queries/path" in row]
    assert [row["trainer/global_step"] for row in tables] == list(values)
    for row, value in zip(tables, values.values(), strict=True):
        table = json.loads((folder / "files" / row["val/worst_queries/path"]).read_text())
        ap = [line[table["columns"].index("ap")] for line in table["data"]]
        assert ap == sorted(ap)
        assert len(ap) == 20
        assert ap[-1] < value  # the worst of 297 lie below the mean of all


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")  # MLflow with SQLAlchemy 2.1
def test_mlflow_sqlite(tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow")
    values = logged_values(run(tmp_path, "mlflow_sqlite.py", "--devices", "2", "--epochs", "2"), 2)
    client = tracking.MlflowClient(f"sqlite:///{tmp_path}/mlflow/runs.db")
    (experiment,) = (found for found in client.search_experiments() if found.name == "detection")
    (one,) = client.search_runs([experiment.experiment_id])  # and none of the second rank
    history = client.get_metric_history(one.info.run_id, "val/map")
    assert {metric.step: metric.value for metric in history} == values
    names = [f"val/{name}" for name in ("ap_per_class_step{}.png", "pr_curve_step{}.png", "classes_step{}.csv")]
    found = {item.path for item in client.list_artifacts(one.info.run_id, "val")}
    assert found >= {name.format(step) for name in names for step in values}
    for step, value in values.items():
        with Path(client.download_artifacts(one.info.run_id, f"val/classes_step{step}.csv", tmp_path)).open() as file:
            ap = {row["name"]: float(row["ap"]) for row in csv.DictReader(file)}
        assert list(ap) == [str(digit) for digit in range(10)]
        assert math.fsum(ap.values()) / 10 == pytest.approx(value, abs=1e-12)
        for name, expected in ap.items():
            metrics = client.get_metric_history(one.info.run_id, f"val/ap/{name}")
            assert {metric.step: metric.value for metric in metrics}[step] == expected


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
