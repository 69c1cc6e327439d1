"""The wheel alone, in a fresh environment that has the dependencies and not these sources; and the workflows."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.name: path for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
SMOKE = """
import importlib.metadata, pathlib, sys
import torch
import map_metrics
from map_metrics import DetectionMAP, EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP, presets
from map_metrics.functional import retrieval_map

assert pathlib.Path(map_metrics.__file__).is_relative_to(sys.prefix), map_metrics.__file__
assert importlib.metadata.version("torchmetrics-map") == "{version}"
assert pathlib.Path(map_metrics.__file__).with_name("py.typed").exists()
assert not [name for name in sys.modules if name.split(".")[0] in ("lightning", "pytorch_lightning")]
scores, target = torch.tensor([[0.9, 0.1, 0.2], [0.3, 0.8, 0.7]]), torch.tensor([[1, 0, 0], [1, 0, 0]])
assert abs(float(retrieval_map(scores, target)) - 2 / 3) < 1e-12
metric = RetrievalMAP(**presets.TREC)
metric.update(scores, target)
assert abs(float(metric.compute()) - 2 / 3) < 1e-12
for cls in (HashingMAPAtK, EmbeddingMAPAtK):
    metric = cls()
    metric.update(torch.ones(1, 4), torch.tensor([7]), query=True)
    metric.update(torch.tensor([[1.0, 1, 1, 1], [-1, -1, -1, -1]]), torch.tensor([7, 3]), query=False)
    assert float(metric.compute()) == 1.0
metric = DetectionMAP()
found = dict(boxes=torch.tensor([[0.0, 0, 10, 6]]), scores=torch.tensor([0.9]), labels=torch.tensor([1]))
metric.update([found], [dict(boxes=torch.tensor([[0.0, 0, 10, 10]]), labels=torch.tensor([1]))])
assert abs(float(metric.compute()["map"]) - 0.3) < 1e-12
print("smoke")
"""


def run(*command: Any, **kwargs: Any) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=300, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    files = [path for path in (ROOT / "src").rglob("*.*") if path.is_file() and "__pycache__" not in path.parts]
    sources = {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert {"map_metrics/py.typed", "map_metrics/report.css", "map_metrics/report.js"} < sources
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == sources


def test_the_wheel_alone_in_a_fresh_environment(wheel, tmp_path):
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=False)
    python = fresh / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # the dependencies, but no .pth file beside them, and so not the editable install
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert run(python, "-c", SMOKE.format(version=version), cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}) == "smoke\n"


# --- workflows --------------------------------------------------------------------------------------------------------


def steps(name: str) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(WORKFLOWS[name].read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def test_there_are_workflows():
    assert set(WORKFLOWS) == {"ci.yml", "release.yml"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_permissions_minimal(name):
    workflow = yaml.safe_load(WORKFLOWS[name].read_text())
    assert workflow["permissions"] == {}
    for title, job in workflow["jobs"].items():
        expected = {"id-token": "write"} if title == "publish" else {"contents": "read"}
        assert job["permissions"] == expected
        assert job["timeout-minutes"] <= 60
    used = re.findall(r"uses: (\S+)(.*)", WORKFLOWS[name].read_text())
    assert len(used) == sum("uses" in step for step in steps(name)) > 0
    for action, comment in used:
        assert re.fullmatch(r"(actions|pypa)/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r"  # v\d+\.\d+\.\d+", comment), comment
    for step in steps(name):
        assert step.get("with", {}).get("persist-credentials", True) is ("checkout" not in step.get("uses", ""))
        assert "${{" not in step.get("run", "")  # values reach a shell through its environment only


def test_the_matrix_has_every_python_of_the_package():
    matrix = yaml.safe_load(WORKFLOWS["ci.yml"].read_text())["jobs"]["newest"]["strategy"]["matrix"]
    known = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert matrix["python"] == known
    assert len(matrix["os"]) == 3


def test_a_release_checks_its_files_and_holds_no_secret():
    text = WORKFLOWS["release.yml"].read_text()
    assert yaml.safe_load(text)[True] == {"push": {"tags": ["v*"]}}  # YAML takes `on` for a truth value
    assert "twine check --strict" in text
    assert "secrets." not in text + WORKFLOWS["ci.yml"].read_text()
