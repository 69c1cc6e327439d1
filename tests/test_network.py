"""Two nodes of two processes each, by torchrun: every node in a network namespace of its own, joined by a cable (veth).

Needs Linux, iproute2 and the right to make namespaces (root, or sudo without a password). Where one is missing the test
is skipped with the reason; with ``REQUIRE_NAMESPACES`` set, as in the workflow, it fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cases import BY_NAME, leaves
from network_worker import NAMES
from tally import held

TESTS = Path(__file__).parent
PORT = 29517


def as_root(*command: str) -> subprocess.CompletedProcess:
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    return subprocess.run([*sudo, *command], capture_output=True, text=True, check=False, timeout=20)


def unavailable(why: str) -> None:
    """Skip with the reason, or fail where namespaces are required."""
    (pytest.fail if "REQUIRE_NAMESPACES" in os.environ else pytest.skip)(f"no network namespaces here: {why}")


@pytest.fixture
def nodes() -> Iterator[list[tuple[str, str]]]:
    """Names and addresses of two namespaces with a cable between them."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        unavailable("Linux and iproute2 are needed")
    names = [f"map{os.getpid()}{end}" for end in "ab"]
    made = as_root("ip", "netns", "add", names[0])
    if made.returncode:
        unavailable(made.stderr.strip())
    try:
        commands = [
            f"netns add {names[1]}",
            f"link add map0 netns {names[0]} type veth peer name map0 netns {names[1]}",
            *(f"-n {name} addr add 10.213.7.{i + 1}/24 dev map0" for i, name in enumerate(names)),
            *(f"-n {name} link set {device} up" for name in names for device in ("lo", "map0")),
        ]
        for command in commands:
            done = as_root("ip", *command.split())
            if done.returncode:
                unavailable(f"ip {command}: {done.stderr.strip()}")
        yield [(name, f"10.213.7.{i + 1}") for i, name in enumerate(names)]
    finally:
        for name in names:
            as_root("ip", "netns", "del", name)


def node(number: int, namespace: str, master: str, folder: Path) -> subprocess.Popen:
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    variables = {
        "PYTHONPATH": os.pathsep.join([str(TESTS), *(path for path in sys.path if path)]),
        "GLOO_SOCKET_IFNAME": "map0",
        "OMP_NUM_THREADS": "1",
    }
    torchrun = f"--nnodes 2 --node-rank {number} --nproc-per-node 2 --master-addr {master} --master-port {PORT}".split()
    command = [
        *(*sudo, "ip", "netns", "exec", namespace, "env", *(f"{k}={v}" for k, v in variables.items())),
        *(sys.executable, "-m", "torch.distributed.run", *torchrun, str(TESTS / "network_worker.py"), str(folder)),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_two_nodes_have_the_values_of_one_process(nodes, tmp_path):
    running = [node(i, name, nodes[0][1], tmp_path) for i, (name, _) in enumerate(nodes)]
    try:
        said = [process.communicate(timeout=120)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], "\n".join(said)
    ranks = [torch.load(path) for path in sorted(tmp_path.glob("rank*.pt"))]
    assert [rank["size"] for rank in ranks] == [4] * 4
    here = os.stat("/proc/self/ns/net").st_ino
    assert len({rank["network"] for rank in ranks} - {here}) == 2
    for name in NAMES:
        expected = leaves(BY_NAME[name].value(BY_NAME[name].batches()))
        for rank in ranks:
            assert rank["values"][name] == expected
            held("values of one rank, of two nodes, with the bits of one process")
