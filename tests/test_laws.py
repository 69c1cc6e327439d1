"""Laws that hold for every metric, over the table of cases."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import pickle
from typing import Any

import pytest
import torch
from cases import BY_NAME, CASES, SCALAR, Batch, Case, assert_same, fed, leaves
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.wrappers import BootStrapper, MetricTracker, MinMaxMetric, Running

from map_metrics import DetectionMAP, HashingMAPAtK, RetrievalMAP

# A batch without a query has no mean: the metrics say so, and 0.0.
pytestmark = pytest.mark.filterwarnings("ignore:No query to average over:UserWarning")


def over(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


every = over(CASES)
named = over([case for case in CASES if case.named])
order_free = over([case for case in CASES if case.order_free])
scalar = over(SCALAR)
with_scores = over([case for case in CASES if case.mapped])


@functools.cache
def one_process(name: str, seed: int = 0) -> Any:
    """The value of all batches in order, by one fresh metric."""
    return BY_NAME[name].value(BY_NAME[name].batches(seed))


def singles(batches: list[Batch]) -> list[Batch]:
    """Batches of one sample."""
    length = [len(next(iter(batch.values()))) for batch in batches]
    return [
        {name: column[i : i + 1] for name, column in batch.items()}
        for batch, n in zip(batches, length, strict=True)
        for i in range(n)
    ]


def shuffled(items: list, seed: int) -> list:
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))
    return [items[i] for i in order]


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return [tensor for part in parts for tensor in tensors(part)]


def blocks(metric: Any) -> list[Tensor]:
    return tensors([getattr(metric, name) for name in metric._defaults])


# --- the cases themselves --------------------------------------------------------------------------------------------


@every
def test_each_case_has_an_empty_batch_and_batches_that_matter(case):
    batches = case.batches()
    without = [leaves(case.value(batches[:i] + batches[i + 1 :])) for i in range(len(batches))]
    matters = [other != leaves(one_process(case.name)) for other in without]
    assert [len(singles([batch])) for batch in batches].count(0) == 1
    assert sum(matters) >= 3, matters


@over([case for case in CASES if not case.named])
def test_without_ids_repeated_batches_do_change_something(case):
    batches = case.batches()
    repeated = batches[:1] if case.name == "matrix-anonymous" else batches  # all queries twice have the same mean
    assert leaves(case.value(repeated + batches)) != leaves(one_process(case.name))


# --- update and compute ----------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_class_equals_function(case, seed):
    assert_same(one_process(case.name, seed), case.pure(case.batches(seed)))


@every
def test_compute_twice(case):
    metric = fed(case.make(compute_with_cache=False), case.batches())
    assert_same(metric.compute(), one_process(case.name))
    assert_same(metric.compute(), one_process(case.name))


@every
def test_compute_between_updates_changes_nothing(case):
    batches = case.batches()
    metric = fed(case.make(), batches[:3])
    assert_same(metric.compute(), case.value(batches[:3]))
    fed(metric, batches[3:])
    assert_same(metric.compute(), one_process(case.name))


@every
def test_reset_forgets(case):
    metric = fed(case.make(), case.batches(1))
    metric.compute()
    metric.reset()
    assert not metric.update_called
    fresh = case.make()
    assert_same([getattr(metric, name) for name in metric._defaults], [getattr(fresh, n) for n in fresh._defaults])
    assert_same(fed(metric, case.batches()).compute(), one_process(case.name))


@named
def test_repeated_samples_count_once(case):
    batches = case.batches()
    assert_same(case.value(shuffled(batches + batches + singles(batches), 0)), one_process(case.name))


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_of_torch_does_not_show(case, dtype):
    """A Python float times an int64 tensor, or the quotient of two, is of the default dtype."""
    metric = fed(case.make(), case.batches())
    torch.set_default_dtype(dtype)
    try:
        value = metric.compute()
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same(value, one_process(case.name))


def contrary(batch: Batch) -> Batch:
    """The same samples by their ids, with the opposite content."""
    if "codes" in batch:
        codes = batch["codes"]
        return batch | {"codes": 255 - codes if codes.dtype == torch.uint8 else codes == 0}
    if "embeddings" in batch:
        return batch | {"embeddings": -batch["embeddings"]}
    if isinstance(batch["preds"], list):
        return batch | {"preds": [preds | {"scores": 1 - preds["scores"]} for preds in batch["preds"]]}
    return batch | {"preds": torch.where(batch["preds"].isinf(), batch["preds"], -batch["preds"])}


@named
def test_of_copies_that_differ_the_same_one_is_kept_in_any_order(case):
    batches = case.batches()
    batches.append(contrary(batches[4]))
    values = []
    for order in (range(7), reversed(range(7)), (6, 6, 4, 4, 5, 0, 1, 2, 3), (4, 6, 4, 5, 3, 2, 1, 0)):
        metric = fed(case.make(), [batches[i] for i in order])
        with pytest.warns(UserWarning, match="with another content"):
            values.append(metric.compute())
        result = metric.result()
        first = next(iter(result.values())) if isinstance(result, dict) else result  # one for each type of overlap
        assert first.num_conflicts > 0  # and no second warning
        assert_same(values[-1], values[0])


def test_of_two_rows_of_a_matrix_with_equal_counts_the_same_one_is_kept():
    score, target, ids = torch.tensor([[0.9, 0.1]]), torch.tensor([[1, 0]]), torch.tensor([3])
    copies = [{"preds": score, "target": target, "ids": ids}, {"preds": -score, "target": target, "ids": ids}]
    values = []
    for order in (copies, copies[::-1]):
        metric = fed(RetrievalMAP(), order)
        with pytest.warns(UserWarning, match="1 rows repeat an id with another content"):
            values.append(metric.compute())
    assert_same(*values)


@order_free
@pytest.mark.parametrize("seed", [0, 1])
def test_order_and_size_of_batches_change_nothing(case, seed):
    assert_same(case.value(shuffled(case.batches(), seed)), one_process(case.name))
    assert_same(case.value(shuffled(singles(case.batches()), seed)), one_process(case.name))


@every
def test_size_of_batches_changes_nothing(case):
    assert_same(case.value(singles(case.batches())), one_process(case.name))


@every
@pytest.mark.parametrize("seed", range(3))
def test_values_lie_between_0_and_1_or_are_undefined(case, seed):
    value = one_process(case.name, seed)
    numbers = (
        [value]
        if isinstance(value, Tensor)
        else [v for k, v in value.items() if k.removeprefix("bbox_").removeprefix("segm_")[:3] in ("map", "mar")]
    )
    numbers = torch.cat([number.reshape(-1) for number in numbers])
    assert bool((numbers > 0).any())
    assert bool(((numbers >= 0) | (numbers == -1) * (case.cls is DetectionMAP)).all())
    assert not case.bounded or bool((numbers <= 1).all())


MAPS = {
    "scaled down and moved below 0": lambda x: x * 0.125 - 1000,
    "cubed": lambda x: x**3,
    "sinh": torch.sinh,
    "whole numbers near 2^53": lambda x: x * 8 - 2.0**52,
}


@with_scores
@pytest.mark.parametrize("name", MAPS)
def test_a_strictly_increasing_map_of_the_scores_changes_nothing(case, name):
    value, expected = case.value(case.mapped(case.batches(), MAPS[name])), one_process(case.name)
    if isinstance(value, dict) and "scores" in value:
        value, expected = value | {"scores": None}, expected | {"scores": None}
    assert_same(value, expected)


# --- forward ---------------------------------------------------------------------------------------------------------


@every
def test_forward_returns_the_value_of_the_batch_and_accumulates(case):
    metric = case.make()
    for i, batch in enumerate(case.batches()):
        assert_same(metric(**batch), case.value([batch]))
        assert metric.update_count == i + 1
    assert_same(metric.compute(), one_process(case.name))


# --- merging ---------------------------------------------------------------------------------------------------------


@every
def test_merging_with_an_empty_metric_is_the_identity(case):
    full, empty = fed(case.make(), case.batches()), case.make()
    full.compute()
    full.merge_state(case.make())
    empty.merge_state(full)
    assert_same(full.compute(), one_process(case.name))
    assert_same(empty.compute(), one_process(case.name))
    assert full.update_count == empty.update_count == len(case.batches())


@every
def test_merged_shards_are_one_process_and_their_order_is_own_first(case):
    batches = case.batches()
    shards = [fed(case.make(), batches[start:stop]) for start, stop in ((0, 2), (2, 2), (2, 3), (3, 6))]
    for shard in shards[1:]:
        shards[0].merge_state(shard)
    assert_same(shards[0].compute(), one_process(case.name))


@every
def test_merging_is_associative(case):
    batches = case.batches()

    def parts() -> list:
        return [fed(case.make(), batches[i : i + 2]) for i in (0, 2, 4)]

    a, b, c = parts()
    a.merge_state(b)
    a.merge_state(c)
    x, y, z = parts()
    y.merge_state(z)
    x.merge_state(y)
    assert_same(a.compute(), x.compute())
    assert_same([getattr(a, n) for n in a._tables], [getattr(x, n) for n in x._tables])


@order_free
@pytest.mark.parametrize("seed", range(2))
def test_any_shards_merged_in_any_order_are_one_process(case, seed):
    samples = shuffled(singles(case.batches()), seed)
    shards = shuffled([fed(case.make(), samples[i::3]) for i in range(3)] + [case.make()], seed)
    for shard in shards[1:]:
        shards[0].merge_state(shard)
    assert_same(shards[0].compute(), one_process(case.name))


@every
def test_a_merged_metric_shares_nothing_with_the_other(case):
    batches = case.batches()
    first, second = fed(case.make(), batches[:3]), fed(case.make(), batches[3:])
    first.merge_state(second)
    for block in blocks(second):
        block[-1:].fill_(1)
    fed(second, batches[:1])
    assert_same(first.compute(), one_process(case.name))


# --- copies ----------------------------------------------------------------------------------------------------------


def through_torch_save(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


COPIES = {
    "pickle": lambda metric: pickle.loads(pickle.dumps(metric)),
    "deepcopy": copy.deepcopy,
    "clone": lambda metric: metric.clone(),
}


@every
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_has_the_value_and_is_independent(case, way):
    batches = case.batches()
    metric = fed(case.make(), batches[:4])
    twin = COPIES[way](metric)
    assert type(twin) is type(metric)
    assert_same(fed(twin, batches[4:]).compute(), one_process(case.name))
    assert_same(metric.compute(), case.value(batches[:4]))
    assert_same(COPIES[way](metric).compute(), metric.compute())  # with a cached value
    assert_same(fed(metric, batches[4:]).compute(), one_process(case.name))


@every
def test_state_dict_is_empty_unless_persistent(case):
    assert case.make().state_dict() == {}


@every
def test_state_dict_round_trip(case):
    batches = case.batches()
    metric = fed(case.make(), batches[:4])
    metric.persistent(True)
    twin = case.make()
    fed(twin, batches[4:]).compute()  # what was there is replaced, a cached value too
    twin.load_state_dict(through_torch_save(metric.state_dict()))
    assert twin.update_called
    assert_same(twin.compute(), metric.compute())
    assert_same(fed(twin, batches[4:]).compute(), one_process(case.name))


@every
def test_a_loaded_state_dict_is_not_shared(case):
    batches = case.batches()
    metric = fed(case.make(), batches[:4])
    metric.persistent(True)
    saved = metric.state_dict()
    before = leaves(dict(saved))
    first, second = case.make(), case.make()
    first.load_state_dict(saved)
    second.load_state_dict(saved)
    fed(first, batches[4:])
    assert leaves(dict(saved)) == before
    assert_same(second.compute(), case.value(batches[:4]))


@every
def test_an_untouched_metric_saves_and_loads_as_untouched(case):
    metric, twin = case.make(), case.make()
    metric.persistent(True)
    twin.load_state_dict(metric.state_dict())
    assert not twin.update_called
    assert_same(fed(twin, case.batches()).compute(), one_process(case.name))


# --- what the state holds --------------------------------------------------------------------------------------------


@every
def test_writing_to_the_inputs_afterwards_changes_nothing(case):
    metric, batches = case.make(), case.batches()
    for batch in batches:
        metric.update(**batch)
        for tensor in tensors(list(batch.values())):
            tensor.copy_(~tensor if tensor.dtype == torch.bool else tensor * 0 + 1)
    assert_same(metric.compute(), one_process(case.name))


@every
def test_inputs_are_not_written_to(case):
    batches = case.batches()
    fed(case.make(), batches).compute()
    assert_same(batches, case.batches())


@every
def test_no_graph_is_kept(case):
    def live(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.clone().requires_grad_() * 1 if value.is_floating_point() else value
        if isinstance(value, dict):
            return {key: live(item) for key, item in value.items()}
        return [live(item) for item in value] if isinstance(value, list) else value

    metric = case.make()
    batches = [live(batch) for batch in case.batches(1)]
    assert case.cls is HashingMAPAtK or any(t.requires_grad for t in tensors(batches))
    fed(metric, batches)
    value = metric(**batches[0])
    assert not any(tensor.requires_grad for tensor in [*blocks(metric), *tensors(value), *tensors(metric.compute())])


@every
def test_states_are_whole_numbers(case):
    metric = fed(case.make(), case.batches())
    assert {block.dtype for block in blocks(metric)} == {torch.int64}


CASTS = {
    "half": lambda metric: metric.half(),
    "to(bfloat16)": lambda metric: metric.to(torch.bfloat16),
    "set_dtype": lambda metric: metric.set_dtype(torch.bfloat16),
    "double": lambda metric: metric.double(),
    "child of a bfloat16 module": lambda metric: nn.ModuleList([metric]).to(torch.bfloat16)[0],
    "child of a half module": lambda metric: nn.ModuleList([metric]).half()[0],
}


@every
def test_casts_change_nothing(case):
    for name, cast in CASTS.items():
        metric = cast(fed(cast(case.make()), case.batches()[:3]))
        assert leaves(fed(metric, case.batches()[3:]).compute()) == leaves(one_process(case.name)), name


@every
def test_inference_mode_may_come_and_go(case, num_threads):
    """As in `Trainer.validate()`; the mode belongs to a thread, so a pool of threads does not have it."""
    num_threads(2 if case.cls is HashingMAPAtK else 1)
    batches = case.batches()
    metric = case.make()
    with torch.inference_mode():
        metric.reset()
        fed(metric, [copy.deepcopy(batch) for batch in batches[:2]])
        metric.compute()
    metric.update(**batches[2])
    metric(**batches[3])
    with torch.inference_mode():
        metric(**batches[4])
    metric.update(**batches[5])
    assert_same(metric.compute(), one_process(case.name))
    with torch.inference_mode():
        metric.reset()
    assert_same(fed(metric, batches).compute(), one_process(case.name))
    with torch.inference_mode():
        metric = fed(case.make(), batches)
        twin = metric.clone()
    twin.merge_state(case.make())
    assert_same(twin.compute(), one_process(case.name))


@every
def test_states_follow_the_device(case):
    metric = fed(case.make(), case.batches()[:1])
    assert metric.device == torch.device("cpu")
    metric = metric.to("meta")
    metric.reset()
    assert {block.device.type for block in blocks(metric)} == {metric.device.type} == {"meta"}
    metric.update(**case.batches()[0])
    assert {block.device.type for block in blocks(metric)} == {"meta"}


@every
def test_arguments_of_the_host(case):
    metric = case.make(compute_on_cpu=True, sync_on_compute=False, compute_with_cache=False)
    for i, batch in enumerate(case.batches()):
        metric(**batch) if i % 2 else metric.update(**batch)
    assert_same(metric.compute(), one_process(case.name))


# --- torchmetrics' own checks of a metric ----------------------------------------------------------------------------


@every
def test_class_constants_cannot_be_set(case):
    metric = case.make()
    assert (metric.is_differentiable, metric.higher_is_better, metric.full_state_update) == (False, True, False)
    for name in ("is_differentiable", "higher_is_better", "full_state_update", "plot_lower_bound", "plot_legend_name"):
        with pytest.raises(RuntimeError, match="Can't change const"):
            setattr(metric, name, True)


@every
def test_hash_and_equal_signature(case):
    first, second = case.make(), case.make()
    assert hash(first) != hash(second)
    fed(first, case.batches())
    assert isinstance(hash(first), int)


@over([BY_NAME["rows-expected"], BY_NAME["hashing-classes"], BY_NAME["detection-macro"]])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, and of a property of the host that it reads
def test_the_metric_can_be_scripted(case):
    torch.jit.script(case.make())


@every
def test_unknown_arguments_are_refused(case):
    with pytest.raises(ValueError, match="Unexpected keyword arguments: `foo`"):
        case.make(foo=1)


# --- wrappers and collections ----------------------------------------------------------------------------------------


def test_all_numbers_can_be_logged():
    for case in CASES:
        value = one_process(case.name)
        numbers = value if isinstance(value, dict) else {"map": value}
        vectors = {"map_per_class", "classes", "ious", "precision", "recall", "scores"}
        for key, number in numbers.items():
            if key not in vectors and not key.endswith("per_class"):
                assert isinstance(number, Tensor), key
                assert (number.ndim, number.dtype, number.device.type) == (0, torch.float64, "cpu"), key


@every
def test_metrics_of_equal_arguments_share_states_in_a_collection(case):
    collection = MetricCollection({"a": case.make(), "b": case.make()}, prefix="val/")
    for _ in range(2):
        fed(collection, case.batches())
        assert list(collection.compute_groups.values()) == [["a", "b"]]
        value = collection.compute()
        one = one_process(case.name)
        expected = {f"val/{k}": one for k in "ab"} if isinstance(one, Tensor) else None
        if expected is not None:
            assert_same(value, expected)
        for name in "ab":
            assert_same(collection[name].compute(), one)
        collection.reset()


@every
def test_forward_of_a_collection(case):
    """The first batch decides the groups, here an empty one."""
    batches = case.batches()
    batches = batches[1:] + batches[:1]
    collection = MetricCollection({"a": case.make(), "b": case.make()})
    for batch in batches:
        collection(**batch)
    for name in "ab":
        assert_same(collection[name].compute(), case.value(batches))


SHARING = {  # arguments that only `compute` uses
    "retrieval": (
        "rows-expected",
        RetrievalMAP,
        [{"top_k": 1}, {"denominator": "min", "top_k": 2}, {"ties": "pessimistic"}],
    ),
    "matrix": ("matrix-named", RetrievalMAP, [{"top_k": 1}, {"denominator": "hits"}, {"empty_target_action": "pos"}]),
    "hashing": ("hashing-classes", HashingMAPAtK, [{"top_k": 3}, {"denominator": "min"}, {"relevance": "exact"}]),
    "detection": (
        "detection-macro",
        DetectionMAP,
        [{"average": "micro"}, {"iou_thresholds": [0.5]}, {"max_detection_thresholds": [1]}, {"class_metrics": True}],
    ),
}


@pytest.mark.parametrize("name", SHARING)
def test_arguments_of_compute_do_not_split_a_collection(name):
    case, cls, arguments = SHARING[name]
    batches = BY_NAME[case].batches()
    collection = MetricCollection({str(i): cls(**kwargs) for i, kwargs in enumerate([{}, *arguments])})
    fed(collection, batches)
    assert len(collection.compute_groups) == 1
    for i, kwargs in enumerate([{}, *arguments]):
        assert_same(collection[str(i)].compute(), fed(cls(**kwargs), batches).compute())


SPLITTING = {  # arguments that `update` uses
    "ignore_index None and 0": ("rows-expected", RetrievalMAP, {}, {"ignore_index": 0}),
    "ignore_index 100000 and 100001": (
        "rows-expected",
        RetrievalMAP,
        {"ignore_index": 100000},
        {"ignore_index": 100001},
    ),
    "largest": ("matrix-named", RetrievalMAP, {}, {"largest": False}),
    "stable": ("matrix-named", RetrievalMAP, {}, {"ties": "stable"}),
    "xyxy and xywh": ("detection-macro", DetectionMAP, {}, {"box_format": "xywh"}),
    "xywh and cxcywh": ("detection-macro", DetectionMAP, {"box_format": "xywh"}, {"box_format": "cxcywh"}),
    "packed": ("hashing-classes", HashingMAPAtK, {}, {"packed": True}),
}


@pytest.mark.parametrize("name", SPLITTING)
@pytest.mark.parametrize("first", [0, 1], ids=["a full first batch", "an empty first batch"])
def test_arguments_of_update_split_a_collection(name, first):
    """Also where the first batch is empty, when two lists without rows look the same to the host."""
    case, cls, left, right = SPLITTING[name]
    batches = BY_NAME[case].batches()
    if name == "packed":
        batches = [batch | {"codes": batch["codes"].to(torch.uint8)} for batch in batches]
    batches = batches[first:] + batches[:first]
    collection = MetricCollection({"left": cls(**left), "right": cls(**right)})
    fed(collection, batches)
    assert sorted(collection.compute_groups.values()) == [["left"], ["right"]]
    for side, kwargs in (("left", left), ("right", right)):
        assert_same(collection[side].compute(), fed(cls(**kwargs), batches).compute())


STRICTER = {  # case, class, arguments of the metric that refuses, change of a batch that the other one takes
    "label_weights": (
        "hashing-multi-hot-k5",
        HashingMAPAtK,
        {"relevance": "weighted", "label_weights": [1.0] * 70},
        {"labels": torch.ones(14, 71)},
    ),
    "exclude_self": ("hashing-classes", HashingMAPAtK, {"exclude_self": True}, {"ids": None}),
    "class_names": ("detection-macro", DetectionMAP, {"class_names": ["a", "b", "c", "d"]}, {}),
}


@pytest.mark.parametrize("name", STRICTER)
def test_what_one_metric_refuses_does_not_reach_it_through_another(name):
    """Metrics that share states leave the checks to the first of them: they may not differ in what they refuse."""
    case, cls, kwargs, change = STRICTER[name]
    good = BY_NAME[case].batches()[0]
    bad = good | change
    if name == "class_names":
        bad = good | {"preds": [preds | {"labels": preds["labels"] + 9} for preds in good["preds"]]}
    with pytest.raises(ValueError, match=r"labels|ids"):
        fed(cls(**kwargs), [good, bad])
    collection = fed(MetricCollection({"lenient": cls(), "strict": cls(**kwargs)}), [good])
    with pytest.raises(ValueError, match=r"labels|ids"):
        collection.update(**bad)


def test_ignored_100000_and_100001_have_values_of_their_own():
    batch = {
        "preds": torch.tensor([0.9, 0.8, 0.7, 0.6]),
        "target": torch.tensor([100000, 1, 0, 1]),
        "indexes": torch.zeros(4, dtype=torch.int64),
    }
    collection = MetricCollection({"left": RetrievalMAP(ignore_index=100000), "none": RetrievalMAP()})
    with pytest.raises(ValueError, match=r"Argument `target` must hold only 0 and 1.*got 100000 at position 0"):
        collection.update(**batch)
    assert fed(RetrievalMAP(ignore_index=100000), [batch]).compute() == (1 + 2 / 3) / 2


def test_iou_thresholds_of_one_collection_keep_their_values():
    batches = BY_NAME["detection-macro"].batches()
    grids = {"a": [0.5], "b": [0.505], "c": None}
    collection = MetricCollection({k: DetectionMAP(iou_thresholds=grid, output="map") for k, grid in grids.items()})
    fed(collection, batches)
    expected = {k: fed(DetectionMAP(iou_thresholds=grid, output="map"), batches).compute() for k, grid in grids.items()}
    assert_same(collection.compute(), expected)


@scalar
@pytest.mark.filterwarnings("ignore:The default value for `maximize`:FutureWarning")  # torchmetrics 1.6
def test_metric_tracker(case):
    tracker = MetricTracker(case.make(), maximize=True)
    values = []
    for seed in range(3):
        tracker.increment()
        fed(tracker, case.batches(seed))
        values.append(one_process(case.name, seed))
        assert_same(tracker.compute(), values[-1])
    assert torch.equal(tracker.compute_all(), torch.stack(values))
    best, step = tracker.best_metric(return_step=True)
    assert best == max(float(value) for value in values)
    assert values[step] == best


@scalar
def test_min_max_metric(case):
    metric, values = MinMaxMetric(case.make()), []
    for i, batch in enumerate(case.batches()):
        metric.update(**batch)
        values.append(case.value(case.batches()[: i + 1]))
        assert_same(metric.compute(), {"raw": values[-1], "max": max(values), "min": min(values)})


@order_free
def test_running_is_the_value_of_the_window(case):
    running = Running(case.make(), window=2)
    batches = [batch for batch in case.batches() if singles([batch])]
    previous: list[Batch] = []
    for batch in batches:
        assert_same(running(**batch), case.value([batch]))
        assert_same(running.compute(), case.value([*previous[-1:], batch]))
        previous.append(batch)


@scalar
def test_arithmetic_of_metrics(case):
    metric, other = case.make(), case.make()
    both = (metric + other * 3) / 2
    both.update(**case.batches()[0])
    for batch in case.batches()[1:]:
        both.update(**batch)
    one = one_process(case.name)
    assert_same(both.compute(), (one + one * 3) / 2)


@over([case for case in SCALAR if case.cls is not DetectionMAP])
def test_bootstrapper(case):
    torch.manual_seed(0)
    bootstrap = BootStrapper(case.make(), num_bootstraps=3, raw=True, sampling_strategy="multinomial")
    batches = [batch for batch in case.batches() if singles([batch])]
    for batch in batches:
        bootstrap.update(**batch)
    raw = bootstrap.compute()["raw"]
    assert raw.shape == (3,)
    assert bool((raw >= 0).all())
    assert len(set(itertools.chain(raw.tolist(), [float(one_process(case.name))]))) > 1
