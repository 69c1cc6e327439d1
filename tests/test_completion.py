"""Completion in a shell: what bash offers after a part of a command."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from map_metrics import cli
from map_metrics.detection.protocols import PROTOCOLS

BASH = shutil.which("bash")
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_map_metrics
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path, capsys) -> Path:
    pytest.importorskip("shtab")
    assert cli.main(["--completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    return tmp_path / "script"


def offered(script: Path, *words: str) -> set[str]:
    """For the last word."""
    command = [BASH, "--norc", "-c", ASK, "bash", script, "map-metrics", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=script.parent)
    assert not [line for line in done.stderr.splitlines() if "compopt" not in line]  # which is for a prompt alone
    return set(done.stdout.split())


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_completes_commands_options_values_and_files(script):
    assert offered(script, "") == {*cli.OPTIONS}
    assert offered(script, "ha") == {"hashing"}
    options = offered(script, "retrieval", "--")
    assert {"--level", "--per-query", "--no-largest"} < options
    assert "--protocol" not in options
    assert offered(script, "detection", "--protocol", "") == {*PROTOCOLS}
    assert offered(script, "detection", "--box-format", "x") == {"xyxy", "xywh"}
    assert offered(script, "hashing", "--relevance", "") == {"any", "exact", "weighted"}
    (script.parent / "qrels.txt").touch()
    assert offered(script, "retrieval", "qr") == offered(script, "retrieval", "--by", "qr") == {"qrels.txt"}


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_a_script(capsys, shell):
    pytest.importorskip("shtab")
    assert cli.main(["--completion", shell]) == 0
    assert "--per-query" in capsys.readouterr().out or shell == "tcsh"


def test_without_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["--completion", "bash"]) == 2
    expected = 'map-metrics: error: Completion needs shtab: pip install "torchmetrics-map[completion]"\n'
    assert capsys.readouterr() == ("", expected)
