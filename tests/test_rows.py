"""RowMetric: each override of the host, beside what the host does without it."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import BIG, assert_same, fed, leaves, state_of
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.wrappers import Running

from map_metrics import rows
from map_metrics.rows import STREAM, RowMetric, pack_block, unpack_blocks


class Sums(RowMetric):
    """A table of values, the same values in a stream; their sum as a scalar and in vectors."""

    def __init__(self, scale: Any = 1, **kwargs: Any) -> None:
        super().__init__({"scale": scale}, {"values": 1, "stream": STREAM}, **kwargs)
        self.scale = scale

    def update(self, values: Tensor) -> None:
        if bool((values < 0).any()):
            raise ValueError("negative")
        self.append(values=rows.bits(values * self.scale)[:, None], stream=pack_block((3,), values.long()[:, None]))

    def compute(self) -> dict[str, Any]:
        return self._result()

    def _result(self) -> dict[str, Any]:
        values = rows.floats(self.table("values")[:, 0])
        if bool((values == 13).any()):
            raise ValueError("unlucky")
        return {"sum": values.sum(), "values": values, "nested": {"each": values}}


class Sum(Sums):
    """The same as one scalar."""

    def compute(self) -> Tensor:
        return self._result()["sum"]


def without(override: str, base: type[RowMetric] = Sums) -> type[RowMetric]:
    """The class with the host's own method in place of the override."""
    return type("Without", (base,), {override: getattr(Metric, override)})


def values(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def breaks(law: Callable[[type[RowMetric]], None], override: str) -> None:
    """A law that holds, and that the host's own method does not keep."""
    law(Sums)
    with pytest.raises((AssertionError, IndexError, TypeError, UserWarning)):
        law(without(override))


def twice(tensor: Tensor, group: Any = None) -> list[Tensor]:
    return [tensor, tensor]


GATHERED = {"dist_sync_fn": twice, "distributed_available_fn": lambda: True}  # as from two equal ranks


# --- reset -----------------------------------------------------------------------------------------------------------


def test_reset_leaves_lists_that_others_hold_as_they_are():
    def law(cls: type[RowMetric]) -> None:
        metric = fed(cls(), [{"values": values(1, 2)}])
        held = metric.values
        metric.reset()
        assert sum(map(len, held)) == 2

    breaks(law, "reset")


def test_running_sees_its_window_and_not_zero():
    def law(cls: type[RowMetric]) -> None:
        running = Running(cls(), window=2)
        fed(running, [{"values": values(1)}, {"values": values(2)}, {"values": values(4)}])
        assert running.compute()["sum"] == 6

    breaks(law, "reset")


def test_states_start_with_a_typed_block_without_rows_also_after_reset():
    def law(cls: type[RowMetric]) -> None:
        metric = cls()
        for _ in range(2):
            assert [(b.shape, b.dtype) for b in metric.values] == [((0, 1), torch.int64)]
            assert [(b.shape, b.dtype) for b in metric.stream] == [((0,), torch.int64)]
            metric.update(values(1))
            metric.reset()

    breaks(law, "reset")


# --- update and forward ----------------------------------------------------------------------------------------------


def test_a_refused_update_changes_nothing():
    def law(cls: type[RowMetric]) -> None:
        metric = fed(cls(), [{"values": values(1, 2)}])
        metric.compute()
        before = state_of(metric)
        with pytest.raises(ValueError, match="negative"):
            metric.update(values(3, -1))
        assert_same(state_of(metric), before)
        assert metric.update_count == 1

    breaks(law, "_wrap_update")


def test_a_refused_first_update_is_no_update():
    def law(cls: type[RowMetric]) -> None:
        metric = cls()
        with pytest.raises(ValueError, match="negative"):
            metric.update(values(-1))
        assert not metric.update_called

    breaks(law, "_wrap_update")


FORWARDS = [{}, {"sync_on_compute": False}, {"compute_on_cpu": True}, {"dist_sync_on_step": True}]


@pytest.mark.parametrize("kwargs", FORWARDS, ids=str)
@pytest.mark.parametrize("bad", [-1.0, 13.0], ids=["refused by update", "refused by compute"])
def test_a_refused_forward_changes_nothing(kwargs, bad):
    def law(cls: type[RowMetric]) -> None:
        metric = fed(cls(**kwargs), [{"values": values(1, 2)}])
        metric.compute()
        before = state_of(metric)
        with pytest.raises(ValueError, match=r"negative|unlucky"):
            metric(values(3, bad))
        assert_same(state_of(metric), before)
        assert metric(values(4))["sum"] == 4
        assert metric.compute()["sum"] == 7

    law(Sums)
    if (kwargs, bad) != (FORWARDS[3], -1.0):  # there the host refuses before it resets
        breaks(law, "forward")


def test_a_refused_forward_does_not_switch_syncing_off():
    metric = Sums(**GATHERED)
    metric(values(1))
    with pytest.raises(ValueError, match="negative"):
        metric(values(-1))
    assert metric.compute()["sum"] == 2


def test_forward_of_a_synced_metric_is_refused_and_stays_synced():
    metric = fed(Sums(**GATHERED), [{"values": values(1)}])
    metric.sync(twice)
    before = state_of(metric)
    with pytest.raises(TorchMetricsUserError, match="shouldn't be synced"):
        metric(values(1))
    assert_same(state_of(metric), before)
    metric.unsync()
    assert metric.compute()["sum"] == 2


def test_update_of_a_synced_metric_is_refused_and_loses_nothing():
    metric = fed(Sums(**GATHERED), [{"values": values(1)}])
    metric.sync(twice)
    before = state_of(metric)
    with pytest.raises(TorchMetricsUserError, match="call `unsync` before `update`"):
        metric.update(values(5))
    assert_same(state_of(metric), before)
    metric.unsync()
    assert metric.update_count == 1
    metric.update(values(2))
    assert metric.compute()["sum"] == 6


def test_a_batch_without_rows_adds_no_block():
    metric = fed(Sums(), [{"values": values()}] * 3)
    assert len(metric.values) == 1
    assert metric.update_count == 3
    assert metric.compute()["values"].shape == (0,)


def test_append_is_all_or_nothing():
    metric = Sums()
    with pytest.raises(AttributeError):
        metric.append(values=torch.ones(1, 1), stream=None)
    assert len(metric.table("values")) == 0


# --- compute ---------------------------------------------------------------------------------------------------------


def test_vectors_of_one_element_stay_vectors():
    def law(cls: type[RowMetric]) -> None:
        metric = fed(cls(), [{"values": values(5)}])
        for _ in range(2):  # computed, and from the cache
            value = metric.compute()
            assert value["sum"].shape == ()
            assert value["values"].shape == (1,)
            assert value["nested"]["each"].shape == (1,)
        metric.update(values(6))
        assert metric.compute()["values"].shape == (2,)
        assert copy.deepcopy(metric).compute()["values"].shape == (2,)
        assert metric(values(6))["values"].shape == (1,)

    breaks(law, "_wrap_compute")


def test_an_error_in_compute_leaves_the_metric_unsynced():
    def law(cls: type[RowMetric]) -> None:
        metric = fed(cls(**GATHERED), [{"values": values(13)}])
        before = state_of(metric)
        with pytest.raises(ValueError, match="unlucky"):
            metric.compute()
        assert_same(state_of(metric), before)

    breaks(law, "_wrap_compute")


def test_an_error_in_result_leaves_the_metric_unsynced():
    metric = fed(Sums(**GATHERED), [{"values": values(13)}])
    before = state_of(metric)
    with pytest.raises(ValueError, match="unlucky"):
        metric.result()
    assert_same(state_of(metric), before)


def test_an_error_in_compute_leaves_what_was_synced_by_hand_to_the_hand():
    metric = fed(Sums(**GATHERED), [{"values": values(13)}])
    with pytest.raises(ValueError, match="unlucky"), metric.sync_context(twice, should_unsync=False):
        metric._result()
    assert metric._is_synced
    metric.unsync()
    assert metric.table("values").shape == (1, 1)


def test_result_uses_the_gathered_rows_and_lets_them_go():
    metric = fed(Sums(**GATHERED), [{"values": values(1, 2)}])
    before = state_of(metric)
    assert metric.result()["sum"] == 6
    assert_same(state_of(metric), before)
    assert fed(Sums(sync_on_compute=False, **GATHERED), [{"values": values(1, 2)}]).result()["sum"] == 3


def test_result_is_not_defined_by_the_base():
    class Bare(RowMetric):
        update = compute = lambda self: None

    with pytest.raises(NotImplementedError):
        Bare({}, {"rows": 1}).result()


# --- merge_state -----------------------------------------------------------------------------------------------------


def test_merge_puts_own_rows_first_clears_the_cache_and_adds_up_the_updates():
    def law(cls: type[RowMetric]) -> None:
        first, second = fed(cls(), [{"values": values(1)}]), fed(cls(), [{"values": values(2)}, {"values": values(3)}])
        first.compute()
        first.merge_state(second)
        assert first.compute()["values"].tolist() == [1, 2, 3]
        assert first.update_count == 3
        assert second.compute()["values"].tolist() == [2, 3]

    breaks(law, "merge_state")
    for law_of_one in (order_of_merge, cache_of_merge, count_of_merge):  # and each of the three on its own
        law_of_one(Sums)
        with pytest.raises(AssertionError):
            law_of_one(without("merge_state"))


def order_of_merge(cls: type[RowMetric]) -> None:
    first, second = fed(cls(), [{"values": values(1)}]), fed(cls(), [{"values": values(2)}])
    first.merge_state(second)
    assert first.compute()["values"].tolist() == [1, 2]


def cache_of_merge(cls: type[RowMetric]) -> None:
    first, second = fed(cls(), [{"values": values(1)}]), fed(cls(), [{"values": values(2)}])
    first.compute()
    first.merge_state(second)
    assert first.compute()["sum"] == 3


def count_of_merge(cls: type[RowMetric]) -> None:
    first = cls()
    first.merge_state(fed(cls(), [{"values": values(2)}]))
    assert first.update_called


def test_merge_refuses_other_arguments():
    def law(cls: type[RowMetric]) -> None:
        first, second = fed(cls(), [{"values": values(1)}]), fed(cls(2), [{"values": values(2)}])
        before = state_of(first)
        with pytest.raises(ValueError, match="was made with other arguments"):
            first.merge_state(second)
        assert_same(state_of(first), before)

    law(Sums)
    with pytest.raises(pytest.fail.Exception):
        law(without("merge_state"))


MERGE_REFUSALS = {
    "no metric": (3, "to be a dict or an instance of Metric but got <class 'int'>"),
    "another class": (Sum(), "to be an instance of Sums but got"),
    "a state is missing": ({"config": Sums().config, "values": []}, "Expected state variable stream"),
    "no config": ({"values": [], "stream": []}, "Expected state variable config"),
    "another config": ({"config": Sums(2).config, "values": [], "stream": []}, "was made with other arguments"),
}


@pytest.mark.parametrize("name", MERGE_REFUSALS)
def test_merge_refuses(name):
    other, message = MERGE_REFUSALS[name]
    metric = fed(Sums(), [{"values": values(1)}])
    metric.compute()
    before = state_of(metric)
    with pytest.raises(ValueError, match=message):
        metric.merge_state(other)
    assert_same(state_of(metric), before)


def test_merge_of_a_synced_metric_is_refused():
    metric = fed(Sums(**GATHERED), [{"values": values(1)}])
    metric.sync(twice)
    before = state_of(metric)
    with pytest.raises(TorchMetricsUserError, match="call `unsync` before `merge_state`"):
        metric.merge_state(Sums())
    assert_same(state_of(metric), before)


def test_merge_takes_a_dict_of_states_as_lists_or_tensors():
    other = fed(Sums(), [{"values": values(2)}, {"values": values(3)}])
    for states in (other.metric_state, {name: other.table(name) for name in other._tables} | {"config": other.config}):
        metric = fed(Sums(), [{"values": values(1)}])
        metric.merge_state(states)
        assert metric.compute()["values"].tolist() == [1, 2, 3]


def test_merge_with_itself_doubles_the_rows():
    metric = fed(Sums(), [{"values": values(1, 2)}])
    metric.merge_state(metric)
    assert metric.compute()["values"].tolist() == [1, 2, 1, 2]
    assert metric.update_count == 2


# --- casts, loading --------------------------------------------------------------------------------------------------


def test_set_dtype_casts_nothing():
    def law(cls: type[RowMetric]) -> None:
        metric = fed(cls(), [{"values": values(BIG)}])
        assert metric.set_dtype(torch.bfloat16) is metric
        assert {block.dtype for block in metric.values} == {torch.int64}
        assert metric.compute()["sum"] == BIG

    breaks(law, "set_dtype")


def test_a_loaded_state_counts_as_an_update():
    def law(cls: type[RowMetric]) -> None:
        saved = fed(cls(), [{"values": values(1)}])
        saved.persistent(True)
        metric = cls()
        metric.load_state_dict(saved.state_dict())
        assert metric.compute()["sum"] == 1  # a warning of the host is an error here

    breaks(law, "_load_from_state_dict")


def test_a_loaded_state_replaces_a_cached_value():
    def law(cls: type[RowMetric]) -> None:
        saved, metric = fed(cls(), [{"values": values(1)}]), fed(cls(), [{"values": values(5)}])
        saved.persistent(True)
        metric.compute()
        metric.load_state_dict(saved.state_dict())
        assert metric.compute()["sum"] == 1

    breaks(law, "_load_from_state_dict")


def test_a_state_of_other_arguments_is_not_loaded():
    saved, metric = fed(Sums(2), [{"values": values(1)}]), fed(Sums(), [{"values": values(5)}])
    saved.persistent(True)
    metric.compute()
    before = state_of(metric)
    with pytest.raises(RuntimeError, match="Sums: the saved state is of a metric with other arguments"):
        metric.load_state_dict(saved.state_dict())
    assert_same(state_of(metric), before)


def test_metrics_load_as_parts_of_a_module():
    module, twin = (nn.ModuleDict({"linear": nn.Linear(2, 2), "a": Sums(), "b": Sums(2)}) for _ in range(2))
    for i, name in enumerate("ab"):
        module[name].update(values(i + 1))
        module[name].persistent(True)
    twin.load_state_dict(module.state_dict())
    assert [twin[name].compute()["sum"].item() for name in "ab"] == [1, 4]
    state = module.state_dict()
    state.update({f"a.{key}": state[f"b.{key}"] for key in ("config", "values", "stream")})
    with pytest.raises(RuntimeError, match="Sums: the saved state is of a metric with other arguments"):
        twin.load_state_dict(state)


def test_a_checkpoint_without_the_states_leaves_them_alone():
    metric = fed(Sums(), [{"values": values(1)}])
    metric.load_state_dict({})
    assert metric.compute()["sum"] == 1


# --- config ----------------------------------------------------------------------------------------------------------


def test_the_config_is_16_whole_numbers_below_256():
    config = Sums().config
    assert (config.shape, config.dtype) == ((16,), torch.int64)
    assert bool(((config >= 0) & (config < 256)).all())
    assert len(set(config.tolist())) > 4


def test_the_config_tells_classes_and_arguments_apart():
    scales = (1, 2, 100000, 100001, 0.5, 0.505, "1")
    digests = [cls(scale).config for cls in (Sums, Sum) for scale in scales]
    for first, second in itertools.combinations(digests, 2):
        assert not torch.allclose(first, second)
    assert torch.equal(Sums(100000).config, Sums(100000).config)


def test_the_order_of_arguments_does_not_show():
    class Two(Sums):
        def __init__(self, config: dict[str, Any]) -> None:
            RowMetric.__init__(self, config, {"values": 1})

    assert torch.equal(Two({"a": 1, "b": 2}).config, Two({"b": 2, "a": 1}).config)
    assert not torch.equal(Two({"a": 1, "b": 2}).config, Two({"a": 2, "b": 1}).config)


@pytest.mark.parametrize("pair", [(100000, 100001), (0.5, 0.505), (1, 2)])
def test_a_collection_does_not_share_states_of_different_arguments(pair):
    """The states are equal as long as nothing came: the config is all that differs."""
    collection = MetricCollection({"a": Sums(pair[0]), "b": Sums(pair[1])})
    collection.update(values())
    collection.update(values(1))
    assert len(collection.compute_groups) == 2
    assert [collection[name].compute()["sum"].item() for name in "ab"] == list(pair)


def test_rows_of_other_arguments_are_refused_in_compute():
    def other(tensor: Tensor, group: Any = None) -> list[Tensor]:
        return [tensor, Sums(2).config if tensor.shape == (16,) else tensor]

    metric = fed(Sums(dist_sync_fn=other, distributed_available_fn=lambda: True), [{"values": values(1)}])
    before = state_of(metric)
    for call in (metric.compute, metric.result):
        with pytest.raises(ValueError, match="Sums: the states hold rows of a metric with other arguments"):
            call()
        assert_same(state_of(metric), before)


# --- tables, streams, bits -------------------------------------------------------------------------------------------


def test_bits_keep_every_float_and_drop_the_sign_of_zero():
    numbers = [0.0, -0.0, 1.5, -1.5, 5e-324, -1.7976931348623157e308, torch.inf, -torch.inf, 0.1]
    patterns = rows.bits(torch.tensor(numbers, dtype=torch.float64))
    assert patterns.dtype == torch.int64
    assert rows.floats(patterns).tolist() == numbers
    assert patterns[:2].tolist() == [0, 0]
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8):
        low = torch.tensor([0, 1, 3], dtype=dtype)
        assert torch.equal(rows.floats(rows.bits(low)), low.double())


def test_a_column_of_a_table_can_be_read_as_floats():
    table = torch.stack([rows.bits(values(1, 2, 3)), torch.arange(3)], 1)
    assert rows.floats(table[:, 0]).tolist() == [1, 2, 3]


def test_table_is_the_same_of_a_list_and_of_a_gathered_tensor():
    metric = fed(Sums(), [{"values": values(1)}, {"values": values(2)}])
    expected = metric.table("values")
    assert expected.shape == (2, 1)
    metric.values = torch.cat(metric.values)
    assert torch.equal(metric.table("values"), expected)
    assert metric.table("stream").ndim == 1
    assert Sums().table("values").shape == (0, 1)


BLOCKS = [((100, 38), (2, 3)), ((), (1, 1)), ((7,), (0, 5)), ((-(2**40), 1, 2, 3), (3, 2)), ((0, 0), (0, 0))]


def test_blocks_of_a_stream_come_back():
    tables = [torch.arange(n * c).view(n, c) + BIG for _, (n, c) in BLOCKS]
    stream = torch.cat([pack_block(header, table) for (header, _), table in zip(BLOCKS, tables, strict=True)])
    assert (stream.ndim, stream.dtype) == (1, torch.int64)
    found = unpack_blocks(stream)
    expected = [(header, table) for (header, _), table in zip(BLOCKS, tables, strict=True) if len(table)]
    assert [block.header for block in found] == [header for header, _ in expected]
    for block, (_, table) in zip(found, expected, strict=True):
        assert torch.equal(block.rows, table)
    assert unpack_blocks(stream[:0]) == []


# --- warnings --------------------------------------------------------------------------------------------------------


def test_warn_once_is_once_for_each_topic_and_metric():
    metric = Sums()
    with pytest.warns(UserWarning, match="first"):
        metric.warn_once("a", "first")
    metric.warn_once("a", "second")
    with pytest.warns(UserWarning, match="third"):
        metric.warn_once("b", "third")
    metric.reset()
    for same in (metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        same.warn_once("a", "again")
    with pytest.warns(UserWarning, match="other"):
        Sums().warn_once("a", "other")


def test_unnamed_rows_of_one_process_do_not_warn():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Sums().warn_unnamed("rows")
    assert not caught


def test_only_what_the_module_says_is_overridden():
    """Each name below has its test above; another override of the host needs one."""
    own = {name for name in vars(RowMetric) if name in vars(Metric) and callable(getattr(RowMetric, name))}
    assert own - {"__init__", "plot"} == {
        "reset",
        "forward",
        "_wrap_update",
        "_wrap_compute",
        "merge_state",
        "set_dtype",
        "_load_from_state_dict",
        "_sync_dist",  # in test_faults
    }


def test_values_compare_by_bits():
    """``leaves``, on which all these comparisons stand."""
    assert leaves(values(0.0)) != leaves(values(-0.0))
    assert leaves(values(torch.nan)) == leaves(values(torch.nan))
    assert leaves(values(1)) != leaves(values(1).float())
    assert leaves(values(1)) != leaves(values(1)[0])
    assert leaves({"a": [values(1)]}) != leaves({"a": [values(1), values(1)]})
    assert leaves({"a": 1, "b": 2}) != leaves({"b": 2, "a": 1})
    with pytest.raises(AssertionError):
        assert_same(values(1), values(1 + 2**-52))
