"""What happens when a rank raises, dies or does not call; and a validation that is interrupted and resumed."""

from __future__ import annotations

import datetime
import io
import os
import re
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import BY_NAME, CASES, assert_same, fed, leaves, state_of
from distributed import Ranks
from tally import held

from map_metrics import RetrievalMAP

NAMES = ["rows-expected", "matrix-named", "hashing-classes", "embedding-cosine", "detection-macro"]
FAULTS = "faults survived: the cause is told, the rows are kept, the next compute is right"
TOLD = "RuntimeError: {}: the ranks could not exchange their states. Did another rank end"
WORK = {"hashing": "map_metrics.hashing.some_queries", "embedding": "map_metrics.embedding.embedding_groups"}
GALLERY = ["hashing-classes", "hashing-stable-without-ids", "embedding-weighted"]


def told(name: str) -> str:
    return TOLD.format(BY_NAME[name].cls.__name__)


def new_group(seconds: float) -> Any:
    """A group of all ranks with a timeout of its own; that of the tests outlives what happens to it."""
    return dist.new_group(timeout=datetime.timedelta(seconds=seconds))


def mine(name: str, **kwargs: Any) -> Any:
    """A metric with this rank's share."""
    case = BY_NAME[name]
    return fed(case.make(**kwargs), case.batches()[dist.get_rank() :: dist.get_world_size()])


def failure(call: Any) -> tuple[str, str, float]:
    """The error of a call, its cause, and how long it took."""
    start = time.monotonic()
    try:
        call()
    except Exception as err:
        return f"{type(err).__name__}: {err}", str(err.__cause__), time.monotonic() - start
    raise AssertionError("nothing was raised")


def whole(name: str) -> Any:
    return leaves(BY_NAME[name].value(BY_NAME[name].batches()))


# --- a rank that does not call ----------------------------------------------------------------------------------------


def only_rank_0(name: str, call: str) -> Any:
    """Rank 0 calls alone; later both, in a new group."""
    metric = mine(name, process_group=new_group(1))
    before, error = state_of(metric), None
    if dist.get_rank() == 0:
        error = failure(getattr(metric, call))
        assert_same(state_of(metric), before)
    metric.process_group = new_group(30)
    return error, leaves(metric.compute())


@pytest.mark.parametrize(
    ("name", "call"), [*((name, "compute") for name in NAMES), (NAMES[0], "result"), (NAMES[-1], "sync")]
)
def test_a_call_on_rank_0_alone_ends_with_the_timeout_of_the_group(name, call, two_ranks):
    (error, value), (_, other) = two_ranks.run(only_rank_0, name, call)
    message, cause, seconds = error
    assert message.startswith(told(name))
    assert "called on every rank" in message
    assert "Timed out" in cause
    assert seconds < 10
    assert value == other == whole(name)
    held(FAULTS)


# --- a rank that raises -----------------------------------------------------------------------------------------------


def raises_in_update(name: str) -> Any:
    """Rank 1 leaves its loop with an error, as a script does; the other one waits for it."""
    metric = mine(name, process_group=new_group(1))
    before = state_of(metric)
    error = failure(lambda: metric.update(None, None)) if dist.get_rank() else failure(metric.compute)
    assert_same(state_of(metric), before)
    metric.process_group = new_group(30)
    return error, leaves(metric.compute())


@pytest.mark.parametrize("name", ["rows-expected", "detection-macro"])
def test_an_error_in_update_on_one_rank(name, two_ranks):
    (waiting, value), (raised, other) = two_ranks.run(raises_in_update, name)
    assert raised[0].startswith("ValueError: Argument `preds` must be")
    assert waiting[0].startswith(told(name))
    assert value == other == whole(name)
    held(FAULTS)


def raises_in_its_share(name: str) -> Any:
    """Rank 1 has no memory for its share of the queries, between the gather of the states and that of the rankings."""
    metric = mine(name)
    before = state_of(metric)
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(WORK[name.partition("-")[0]], no_memory)
        error = failure(metric.compute)
    assert_same(state_of(metric), before)
    return error, leaves(metric.compute())


def no_memory(*args: Any) -> None:
    raise MemoryError("not enough")


@pytest.mark.parametrize("name", GALLERY)
@pytest.mark.filterwarnings("ignore:.*without ids from several ranks")
def test_an_error_in_one_ranks_share_ends_all_at_once(name, three_ranks):
    case = BY_NAME[name]
    outcomes = [outcome.value for outcome in three_ranks.outcomes(raises_in_its_share, name)]
    batches = case.batches()
    expected = leaves(case.value([batches[i] for rank in range(3) for i in range(rank, len(batches), 3)]))
    for rank, (error, value) in enumerate(outcomes):
        message = "RuntimeError: Rank 1 failed in ranking its share of the queries"
        assert error[0].startswith("MemoryError: not enough" if rank == 1 else message)
        assert error[2] < 10  # not the timeout of the group
        assert value == expected
    held(FAULTS)


def raises_in_the_aggregation() -> Any:
    """The user's own function, on every rank."""
    switch = {"on": True}

    def aggregation(ap: torch.Tensor) -> torch.Tensor:
        if switch["on"]:
            raise ZeroDivisionError("of the user")
        return ap.amax()

    metric = RetrievalMAP(aggregation=aggregation)
    fed(metric, BY_NAME["rows-expected"].batches()[dist.get_rank() :: dist.get_world_size()])
    before = state_of(metric)
    error = failure(metric.compute)
    assert_same(state_of(metric), before)
    switch["on"] = False
    return error[0], metric.compute().item()


def test_an_error_in_compute_on_every_rank(two_ranks):
    metric = RetrievalMAP(aggregation="max")
    expected = fed(metric, BY_NAME["rows-expected"].batches()).compute().item()
    assert two_ranks.run(raises_in_the_aggregation) == [("ZeroDivisionError: of the user", expected)] * 2
    held(FAULTS)


# --- a rank that dies -------------------------------------------------------------------------------------------------


def killed_before_compute(name: str) -> Any:
    metric = mine(name)
    before = state_of(metric)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = failure(metric.compute)
    assert_same(state_of(metric), before)
    dist.destroy_process_group()
    return error, leaves(metric.compute())  # of this rank alone


def test_a_rank_that_is_killed():
    """The other one ends at once, with its rows; without the group it has their value."""
    ranks = Ranks(2)
    try:
        ranks.start()
        for _, pipe in ranks.workers:
            pipe.send((killed_before_compute, ("detection-macro",)))
        outcome = ranks._receive(0, ranks.workers[0][1])
        with pytest.raises(ConnectionError, match="rank 1 of 2 died"):
            ranks._receive(1, ranks.workers[1][1])
    finally:
        ranks.stop()
    assert not outcome.error, outcome.trace
    (message, cause, seconds), value = outcome.value
    assert message.startswith(told("detection-macro"))
    assert re.search("[Cc]onnection", cause)
    assert seconds < 10
    case = BY_NAME["detection-macro"]
    assert value == leaves(case.value(case.batches()[::2]))
    held(FAULTS)


# --- interrupted and resumed ------------------------------------------------------------------------------------------


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_interrupted_validation_resumes_from_its_states(case):
    """The process ends after three batches and in the middle of the fourth; a new one loads them and goes on."""
    batches = case.batches()
    metric = fed(case.make(), batches[:3])
    metric.persistent(True)
    saved = through_a_file(metric.state_dict())
    resumed = case.make()
    resumed.load_state_dict(saved)
    assert_same(fed(resumed, batches[3:]).compute(), case.value(batches))
    held("interrupted validations resumed to the same bits")


def saved_of_every_rank(name: str) -> dict[str, Any]:
    """Saved while synced, the file of rank 0 holds the rows of every rank."""
    metric = mine(name)
    metric.persistent(True)
    metric.sync()
    state = {key: value.clone() for key, value in metric.state_dict().items()}
    metric.unsync()
    return state


@pytest.mark.parametrize("name", NAMES)
def test_a_synced_state_saved_by_rank_0_is_that_of_every_rank(name, two_ranks):
    state, _ = two_ranks.run(saved_of_every_rank, name)
    resumed = BY_NAME[name].make()
    resumed.load_state_dict(through_a_file(state))
    assert leaves(resumed.compute()) == whole(name)
    held("interrupted validations resumed to the same bits")
