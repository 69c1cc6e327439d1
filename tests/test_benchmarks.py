"""The benchmarks run, and what they measure becomes a page. No time is looked at here."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return import_module


def test_a_task_is_measured(tmp_path):
    """Peers that are not installed are left out."""
    path = tmp_path / "measured.json"
    command = [sys.executable, FOLDER / "run.py", "--quick", "--only", "matrix-10", "--json", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    row, other = json.loads(path.read_text())["tasks"]["matrix-10"]["rows"]
    assert row["state"] == "ok"
    assert row["ratio"] == row["our_seconds"] / row["peer_seconds"]
    assert other["state"] in {"ok", "not installed"}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_memory_is_that_of_a_run(load):
    peaks = load("memory").in_a_process("matrix-10", "torch.sort", quick=True)
    assert peaks["bytes"] > 20 * 100_000 * 8  # the order of the items alone
    assert peaks["set"] > 20 * 100_000 * 5  # a float and a bool each


def test_a_peer_that_disagrees_is_not_timed(load):
    tasks, measuring = load("tasks"), load("run")
    peers = {
        "same": lambda data: ({"map": 0.5}, {"evaluate": [2.0]}),
        "other": lambda data: ({"map": 0.6}, {"evaluate": [2.0]}),
    }
    bars = [tasks.Ratio("function", name, "evaluate") for name in peers]
    task = tasks.Task(None, None, lambda data: ({"map": 0.5}, {"function": [1.0]}), peers, bars)
    same, other = measuring.rows(task, *measuring.measure(task, None, 1, False), {"": 4, "same": 8})
    assert (same["ratio"], same["our_bytes"], same["peer_bytes"]) == (0.5, 4, 8)
    assert other["state"] == "values differ: map: ours 0.5, theirs 0.6"
    assert "ratio" not in other


def test_every_bar_names_a_peer_of_its_task(load):
    tasks = load("tasks")
    for task in tasks.TASKS.values():
        assert {bar.peer for bar in task.bars if isinstance(bar, tasks.Ratio)} == set(task.peers)


def test_sets_are_what_they_say(load):
    sets = load("sets")
    assert sets.crowded(20).num_targets > 20 * 60
    spread, collapsed = (sets.hashing(10, 2_000, collapsed=part).gallery_codes for part in (0, 0.7))
    assert len(spread.unique(dim=0)) > 1_900
    assert len(collapsed.unique(dim=0)) < 800


MEASURED = {
    "machine": "a machine",
    "quick": False,
    "versions": {"torch": "1.0"},
    "with_torchvision": {"torchvision": "2.0"},
    "tasks": {
        "coco": {
            "set": "3 images",
            "set_bytes": 2**20,
            "rows": [
                {
                    **{"ours": "total", "peer": "faster: total", "state": "ok", "unit": "x", "at_most": None},
                    **{"our_seconds": 0.2, "peer_seconds": 0.1, "ratio": 2.0, "goal": 0.7},
                    **{"our_bytes": 2**21, "peer_bytes": 2**22},
                },
                {
                    **{"ours": "total", "peer": "absent: total", "state": "not installed", "unit": "x"},
                    **{"our_seconds": 0.2, "our_bytes": None, "peer_bytes": None, "at_most": None, "goal": 1},
                },
                {
                    **{"ours": "memory", "peer": "fed in batches", "state": "ok", "unit": "MiB", "at_most": None},
                    **{"our_bytes": 2**21, "ratio": 2**21, "goal": 2**22},
                },
            ],
        }
    },
}
GROWTH = {
    "sizes": [1, 2],
    "metrics": {"rows": {"unit": "5 rows", "seconds": [1.0, 2.0], "bytes": [2**20, 2**21], "exponent": 1.0}},
}


def test_the_page_has_what_was_measured(load, tmp_path):
    pytest.importorskip("matplotlib")
    page = load("page")
    text = page.page(MEASURED, GROWTH, "## Where a goal is missed, and why\n")
    for expected in (
        "torchvision 2.0",
        "3 images. The set itself takes 1 MiB.",
        "| total | faster: total | 0.2000 | 0.1000 | 2 | 0.7 | missed | 2 | 4 |",
        "| total | absent: total | 0.2000 |  |  | 1 | not installed |  |  |",
        "| memory | fed in batches |  |  | 2 MiB | 4 MiB | reached | 2 |  |",
        "| rows | 5 rows | 1.000, 2.000 | 1.00 | 1, 2 |",
        "images/growth.svg",
    ):
        assert expected in text
    page.picture(GROWTH, tmp_path / "images" / "growth.svg")
    assert "seconds" in (tmp_path / "images" / "growth.svg").read_text()
