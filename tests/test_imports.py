"""What `import map_metrics` brings, and what it does not."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import map_metrics
from map_metrics import functional

OPTIONAL = {
    *(
        "lightning",
        "pytorch_lightning",
        "lightning_fabric",
        "matplotlib",
        "pyarrow",
        "shtab",
        "tensorboard",
        "wandb",
        "mlflow",
    ),
    *("pycocotools", "hotcoco", "faster_coco_eval", "torchvision", "sklearn", "scipy", "pandas", "pytrec_eval", "ranx"),
}
REQUIRED = {"map_metrics", "torch", "torchmetrics", "numpy"}
SCRIPT = """
import json, sys
import numpy, torch, torchmetrics
before = set(sys.modules)
import map_metrics, map_metrics.functional, map_metrics.presets
print(json.dumps([sorted(set(sys.modules) - before), sorted(sys.modules)]))
"""


@pytest.fixture(scope="module")
def loaded() -> tuple[list[str], list[str]]:
    """Modules that the import adds to those of torch and torchmetrics, and all of them; in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    added, everything = json.loads(done.stdout)
    return added, everything


def test_nothing_optional_is_imported(loaded):
    added, everything = loaded
    assert not {name.partition(".")[0] for name in added} & OPTIONAL
    assert not {"lightning", "pytorch_lightning", "tensorboard", "wandb", "pycocotools"} & set(everything)
    assert "map_metrics.retrieval" in added
    assert "map_metrics.callbacks" not in added


def module_imports(path: Path) -> set[str]:
    """Packages imported when the module is: not those inside of functions."""

    def walk(node: ast.AST) -> set[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return set()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return set()
        found = {name for child in ast.iter_child_nodes(node) for name in walk(child)}
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add("map_metrics" if node.level else str(node.module).partition(".")[0])
        return found

    return walk(ast.parse(path.read_text()))


def test_the_modules_of_the_metrics_import_only_what_is_required(loaded):
    """Also what torchmetrics happens to have imported before them."""
    for name in loaded[0]:
        if name.partition(".")[0] == "map_metrics":
            path = Path(str(importlib.import_module(name).__file__))
            assert module_imports(path) <= REQUIRED | set(sys.stdlib_module_names), name


def test_public_names():
    classes = {"DetectionMAP", "EmbeddingMAPAtK", "HashingMAPAtK", "RetrievalMAP"}
    assert set(map_metrics.__all__) == classes | {"average_precision"}
    functions = {"detection_map", "embedding_map", "hashing_map", "retrieval_map"}
    assert set(functional.__all__) == functions | {"average_precision"}
    for module in (map_metrics, functional):
        for name in module.__all__:
            assert getattr(module, name).__doc__, name
    from map_metrics.callbacks import MAPCallback

    assert MAPCallback.__doc__


def test_presets_are_plain_dicts_that_the_classes_take():
    from map_metrics import presets

    found = {name: preset for name, preset in vars(presets).items() if name.isupper() and isinstance(preset, dict)}
    expected = {"TREC", "KAGGLE", "HASHING", "TORCHMETRICS", "MARKET1501", "TORCHREID", "REVISITED_OXFORD", "MAP_AT_R"}
    assert set(found) >= expected
    for name, preset in found.items():
        cls = map_metrics.HashingMAPAtK if name == "HASHING" else map_metrics.RetrievalMAP
        assert isinstance(cls(**{"top_k": 5, **preset}), cls), name


def test_the_package_is_typed():
    assert (resources.files("map_metrics") / "py.typed").is_file()
