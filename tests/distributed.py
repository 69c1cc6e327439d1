"""Real gloo processes for the tests, and what runs inside them.

A group starts once and runs one function after the other, so a test costs its own work and not an import of torch.
Functions and results cross a pipe: functions by name, results as plain Python values (see ``leaves``).
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchmetrics.utilities.prints import rank_zero_only

TIMEOUT = 60  # seconds for one call; a collective that the others do not join fails after half of that


@dataclass
class Outcome:
    """What a function did on one rank."""

    value: Any = None
    error: str = ""
    trace: str = ""
    warnings: list[str] = field(default_factory=list)


class Ranks:
    """Processes of one group; started at the first call, and again after one that hung or died."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.workers: list[tuple[Any, Any]] = []

    def start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torchmetrics", "map_metrics"])
        store = Path(tempfile.mkdtemp()) / "store"
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, rank, self.size, str(store)), daemon=True)
            process.start()
            theirs.close()
            self.workers.append((process, ours))

    def stop(self) -> None:
        for process, pipe in self.workers:
            pipe.close()
            process.kill()
            process.join()
        self.workers = []

    def outcomes(self, function: Callable, *args: Any) -> list[Outcome]:
        """Run ``function(*args)`` on every rank at once."""
        if not self.workers:
            self.start()
        for _, pipe in self.workers:
            pipe.send((function, args))
        try:
            return [self._receive(rank, pipe) for rank, (_, pipe) in enumerate(self.workers)]
        except BaseException:
            self.stop()
            raise

    def _receive(self, rank: int, pipe: Any) -> Outcome:
        if not pipe.poll(TIMEOUT):
            raise TimeoutError(f"rank {rank} of {self.size} did not answer")
        try:
            return pipe.recv()
        except EOFError as err:
            raise ConnectionError(f"rank {rank} of {self.size} died") from err

    def run(self, function: Callable, *args: Any, warns: str = "") -> list[Any]:
        """The values of every rank. Fails on an error, and on any warning but the one expected on rank 0."""
        outcomes = self.outcomes(function, *args)
        for rank, outcome in enumerate(outcomes):
            if outcome.error:
                self.stop()
                raise AssertionError(f"rank {rank}: {outcome.error}\n{outcome.trace}")
            expected = [warns] * (rank == 0 and bool(warns))
            assert len(outcome.warnings) == len(expected), outcome.warnings
            assert all(part in text for part, text in zip(expected, outcome.warnings, strict=True)), outcome.warnings
        return [outcome.value for outcome in outcomes]


def serve(pipe: Any, rank: int, size: int, store: str) -> None:
    """The life of one process."""
    torch.set_num_threads(1)
    rank_zero_only.rank = rank
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=TIMEOUT / 2),
    )
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        outcome = Outcome()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                outcome.value = function(*args)
            except Exception as err:
                outcome.error, outcome.trace = f"{type(err).__name__}: {err}", traceback.format_exc()
        outcome.warnings = [f"{w.category.__name__}: {w.message}" for w in caught]
        pipe.send(outcome)


COLLECTIVES = [
    *("all_gather", "all_gather_object", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single"),
    *("barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "gather", "gather_object"),
    *("reduce", "reduce_scatter", "scatter", "send", "recv", "isend", "irecv"),
]


@contextlib.contextmanager
def counted() -> Iterator[dict[str, int]]:
    """How often each collective was called inside."""
    calls = dict.fromkeys(COLLECTIVES, 0)
    originals = {name: getattr(dist, name) for name in COLLECTIVES}

    def counting(name: str) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return originals[name](*args, **kwargs)

        return call

    try:
        for name in COLLECTIVES:
            setattr(dist, name, counting(name))
        yield calls
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
