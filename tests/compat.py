"""A part of the tests against the oldest and newest supported torchmetrics and Lightning: ``make compat``.

Each environment is made in ``build/compat``, with the torch of ``constraints.txt``. ``python tests/compat.py oldest``
runs one of them. Needs nothing but Python and pip.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "compat"
ENVIRONMENTS = {  # lightning brings pytorch-lightning along, not the other way round
    "oldest": ["torchmetrics==1.6.0", "lightning==2.4.0", "pytorch-lightning==2.4.0"],
    "oldest-pytorch-lightning": ["torchmetrics==1.6.0", "pytorch-lightning==2.4.0"],
    "newest": ["torchmetrics==1.9.0", "lightning==2.6.6", "pytorch-lightning==2.6.6"],
    "newest-pytorch-lightning": ["torchmetrics==1.9.0", "pytorch-lightning==2.6.6"],
    "without-lightning": ["torchmetrics==1.9.0"],
}
TESTS = ["tests/test_rows.py", "tests/test_compatibility.py", "tests/test_callbacks.py"]
# torchmetrics before 1.8 makes torch warn in the ranks of Lightning, where these tests allow no word
OLD = "ranks or padding or sampler or skipped_batch"


def made(name: str) -> Path:
    """The Python of an environment."""
    python = FOLDER / name / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        venv.create(FOLDER / name, with_pip=True)
        torch = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.M)
        packages = [torch[0] if torch else "torch", "numpy>=2", "pytest", *ENVIRONMENTS[name]]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def run(name: str) -> int:
    python = made(name)
    files = TESTS[:2] if name == "without-lightning" else TESTS
    old = f" and not ({OLD})" if "torchmetrics==1.6.0" in ENVIRONMENTS[name] else ""
    options = ["-q", "-p", "no:cacheprovider", "-r", "fE", "-k", "not tensorboard" + old]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    print(f"{name}: {', '.join(ENVIRONMENTS[name])}", flush=True)
    return subprocess.run([python, "-m", "pytest", *options, *files], cwd=ROOT, env=variables, check=False).returncode


if __name__ == "__main__":
    failed = [name for name in sys.argv[1:] or ENVIRONMENTS if run(name)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
