"""Every metric on four ranks: shuffled samples, batches of other sizes and dtypes on each rank, padding, idle ranks.

``test_distributed`` has whole batches on two and three ranks, and what the host calls.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import callback_helpers as helpers
import pytest
import torch
import torch.distributed as dist
from callback_helpers import KINDS
from cases import BY_NAME, CASES, Batch, Case, fed, leaves
from distributed import counted
from tally import held
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from map_metrics.callbacks import MAPCallback
from map_metrics.gallery import GalleryMetric

CHECKS = "values of one rank, of four, with the bits of one process"
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


def over(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("name", [case.name for case in cases])


@functools.cache
def one_process(name: str) -> dict[str, Any]:
    return leaves(BY_NAME[name].value(BY_NAME[name].batches()))


def pieces(batches: list[Batch], size: int) -> list[Batch]:
    """The batches cut into pieces of at most ``size`` samples; an empty one stays."""
    cut = []
    for batch in batches:
        count = len(next(iter(batch.values())))
        for start in range(0, max(count, 1), size):
            cut.append({name: column[start : start + size] for name, column in batch.items()})
    return cut


def recast(value: Any, rank: int, name: str = "", packed: bool = False) -> Any:
    """The same numbers in dtypes that differ from rank to rank."""
    if isinstance(value, dict):
        return {key: recast(item, rank, key, packed) for key, item in value.items()}
    if isinstance(value, list):
        return [recast(item, rank, name, packed) for item in value]
    if not isinstance(value, Tensor) or name == "query" or (name == "codes" and packed):
        return value
    if value.is_floating_point():
        return value.to((torch.float32, torch.float64)[rank % 2])
    if value.dtype == torch.bool:
        return value.to((torch.bool, torch.uint8, torch.bool, torch.int32)[rank]) if name != "masks" else value
    narrow = value.to(SIGNED[rank])
    return narrow if torch.equal(narrow.long(), value.long()) else value


# --- every case -------------------------------------------------------------------------------------------------------


def computed(name: str, batches: list[Batch]) -> tuple[Any, dict[str, int]]:
    """The value, and the collectives that it took."""
    metric = fed(BY_NAME[name].make(), batches)
    with counted() as calls:
        value = metric.compute()
    return leaves(value), {key: count for key, count in calls.items() if count}


def mixed(name: str) -> Any:
    """A shuffled share of samples, in dtypes that are this rank's own."""
    case, rank = BY_NAME[name], dist.get_rank()
    samples = pieces(case.batches(), 1)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(1))
    packed = bool(case.kwargs.get("packed"))
    return computed(name, [recast(samples[i], rank, packed=packed) for i in order[rank::4]])


def in_a_row(name: str) -> Any:
    """Whole batches in their order, in pieces of rank + 1 samples; two ranks have none."""
    rank = dist.get_rank()
    batches = {1: slice(0, 4), 3: slice(4, 6)}
    return computed(name, pieces(BY_NAME[name].batches()[batches[rank]], rank + 1) if rank in batches else [])


def padded(name: str) -> Any:
    """Samples as a shuffling DistributedSampler deals and repeats them."""
    samples = pieces(BY_NAME[name].batches(), 1)
    return computed(name, [samples[i] for i in DistributedSampler(samples, seed=5)])


def nothing(name: str) -> Any:
    return computed(name, [])


def equal_on_four(ranks: Any, function: Any, name: str, expected: Any = None) -> None:
    """One process's bits, by as many collectives as always: a barrier and two gathers for each state, and once more
    where the ranks divide the queries.
    """
    metric = BY_NAME[name].make()
    exchanges = len(metric._defaults) + isinstance(metric, GalleryMetric)
    for outcome in ranks.outcomes(function, name):
        assert not outcome.error, outcome.trace
        value, calls = outcome.value
        assert calls == {"barrier": exchanges, "all_gather": 2 * exchanges}
        assert value == (expected or one_process(name))
        held(CHECKS)


@over([case for case in CASES if case.order_free])
def test_shuffled_samples_of_mixed_dtypes(name, four_ranks):
    equal_on_four(four_ranks, mixed, name)


@over(CASES)
def test_pieces_of_other_sizes_and_idle_ranks(name, four_ranks):
    equal_on_four(four_ranks, in_a_row, name)


@over([case for case in CASES if case.named])
def test_a_padding_sampler_with_ids(name, four_ranks):
    equal_on_four(four_ranks, padded, name)


@over([BY_NAME[name] for name in ("rows-expected", "hashing-packed", "embedding-stable", "detection-boxes-and-masks")])
@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric:UserWarning")
@pytest.mark.filterwarnings("ignore:No query to average over:UserWarning")
def test_no_sample_on_any_rank(name, four_ranks):
    equal_on_four(four_ranks, nothing, name, leaves(BY_NAME[name].value([])))


def test_the_dtypes_do_differ():
    batch = {"preds": torch.zeros(2), "target": torch.zeros(2).bool(), "ids": torch.tensor([1, 2])}
    dtypes = [tuple(column.dtype for column in recast(batch, rank).values()) for rank in range(4)]
    assert len(set(dtypes)) == 4
    assert recast({"ids": torch.tensor([2**40])}, 0)["ids"] == 2**40


# --- the position rule ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["matrix", "rows", "hashing", "detection"])
@pytest.mark.parametrize("n", [2, 11])
@pytest.mark.filterwarnings("ignore:Using `DistributedSampler` with the dataloaders")
@pytest.mark.filterwarnings("ignore:.*use of fork.. may lead to deadlocks")
def test_padding_left_out_by_its_position(kind: str, n: int, tmp_path: Path):
    pl = pytest.importorskip("lightning.pytorch")
    metric, outputs = KINDS[kind]
    callbacks = [MAPCallback(metric()), helpers.recorder(pl, tmp_path)]
    run = helpers.trainer(pl, tmp_path, callbacks, **helpers.ranks(pl, 4))
    run.validate(helpers.model(pl, outputs), DataLoader(range(n), batch_size=3), verbose=False)
    seen = helpers.records(tmp_path)
    assert len(seen) == 4
    whole = {f"val/{key}": value for key, value in KINDS[kind].value(n).items()}
    for record in seen:
        assert record["values"] == [whole]
        held(CHECKS)
