"""The same bits on 1, 2 and 3 ranks: real gloo processes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import BY_NAME, CASES, Batch, Case, assert_same, fed, leaves, state_of
from distributed import counted
from tally import held
from torch import Tensor
from torch.utils.data import DistributedSampler
from torchmetrics import MetricCollection

from map_metrics import DetectionMAP, HashingMAPAtK, RetrievalMAP
from map_metrics.detection.result import DetectionResult
from map_metrics.sharing import rank_queries

UNNAMED = "without ids from several ranks"


def my(shards: Any) -> Any:
    return shards[dist.get_rank()]


def over(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def both(value: Any) -> list[Any]:
    return [value, value]


def captured(call: Any, *args: Any, **kwargs: Any) -> str:
    """The error of a call that must fail."""
    try:
        call(*args, **kwargs)
    except Exception as err:
        return f"{type(err).__name__}: {err}"
    raise AssertionError("nothing was raised")


# --- all cases, all ways to deal batches to ranks --------------------------------------------------------------------

LAYOUTS = {  # the numbers of the batches that each rank sees, in order
    "even": ((0, 1, 2), (3, 4, 5)),
    "no update on rank 0": ((), (0, 1, 2, 3, 4, 5)),
    "padded": ((5, 0, 3, 1), (1, 4, 2, 5)),
    "3, 2 and 0": ((0, 1, 2), (3, 4), ()),
    "shuffled, on three": ((5, 0), (1, 4), (3, 2)),
}


def compute_shard(name: str, layout: tuple) -> Any:
    """Compute, with another compute before the last batch, and see that the local state comes back."""
    case = BY_NAME[name]
    batches = [case.batches()[i] for i in my(layout)]
    metric = case.make()
    if all(layout):  # a rank without a new batch would answer from its cache, and not join the others
        fed(metric, batches[:-1]).compute()
        batches = batches[-1:]
    before = state_of(fed(metric, batches))
    value = metric.compute()
    metric._computed = None
    assert_same(state_of(metric), before)
    return leaves(value)


def promised(case: Case, layout: str) -> bool:
    """Padding needs ids; where the order of ties shows, ranks must hold consecutive batches."""
    consecutive = layout not in ("padded", "shuffled, on three")
    return (case.named or layout != "padded") and (case.order_free or consecutive)


@pytest.mark.parametrize(
    ("case", "layout"),
    [
        pytest.param(case, layout, id=f"{case.name}, {layout}")
        for case in CASES
        for layout in LAYOUTS
        if promised(case, layout)
    ],
)
def test_every_rank_has_the_value_of_one_process(case, layout, two_ranks, three_ranks):
    shards = LAYOUTS[layout]
    batches = case.batches()
    expected = leaves(case.value([batches[i] for i in dict.fromkeys(i for shard in shards for i in shard)]))
    outcomes = (two_ranks if len(shards) == 2 else three_ranks).outcomes(compute_shard, case.name, shards)
    for rank, outcome in enumerate(outcomes):
        assert not outcome.error, outcome.trace
        assert outcome.value == expected
        held("values of one rank, of two or three, with the bits of one process")
        texts = outcome.warnings
        before_update = [text for text in texts if "was called before the ``update``" in text]
        unnamed = [text for text in texts if UNNAMED in text]
        no_query = [text for text in texts if "No query to average over" in text]
        assert len(before_update) == (rank == 0 and not shards[0]), texts
        assert len(unnamed) == (rank == 0 and not case.named), texts
        assert len(no_query) <= (rank == 0), texts
        assert len(texts) == len(before_update) + len(unnamed) + len(no_query), texts


# --- data that differ from rank to rank ------------------------------------------------------------------------------


def cast(batch: Batch, dtypes: dict[str, torch.dtype]) -> Batch:
    """The tensors of a batch under other dtypes, in nested dicts and lists too."""

    def walk(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: walk(key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(name, item) for item in value]
        return value.to(dtypes[name]) if name in dtypes else value

    return walk("", batch)


DTYPES = {
    "rows-expected": (
        {"preds": torch.float64, "target": torch.uint8},
        {"preds": torch.float32, "target": torch.bool, "ids": torch.int64},
        {"target": torch.float16},
    ),
    "matrix-named": (
        {"preds": torch.float64, "target": torch.float32},
        {"target": torch.int8},
        {"target": torch.int32},
    ),
    "hashing-multi-hot-k5": (
        {"codes": torch.bool, "labels": torch.float32},
        {"codes": torch.int8, "labels": torch.int16},
        {"codes": torch.float64, "labels": torch.uint8},
    ),
    "detection-crowds-areas": (
        {"boxes": torch.int64, "scores": torch.float64, "labels": torch.uint8, "iscrowd": torch.int32},
        {"scores": torch.bfloat16, "labels": torch.int16, "iscrowd": torch.float32, "area": torch.int64},
        {"boxes": torch.float64, "scores": torch.float16, "iscrowd": torch.uint8, "area": torch.float64},
    ),
}


def compute_cast(name: str) -> Any:
    case, rank = BY_NAME[name], dist.get_rank()
    batches = [cast(batch, DTYPES[name][rank]) for batch in case.batches()[2 * rank : 2 * rank + 2]]
    return leaves(fed(case.make(), batches).compute())


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_may_differ(name, three_ranks):
    case = BY_NAME[name]
    assert three_ranks.run(compute_cast, name) == [leaves(case.value(case.batches()))] * 3


def wide_codes_here_and_nothing_there(busy: int) -> Any:
    metric = HashingMAPAtK(top_k=4)
    if dist.get_rank() == busy:
        metric.update(**wide_codes())
    return leaves(metric.compute())


def wide_codes() -> Batch:
    """100 bits and 38 labels: the widths that the data decide."""
    generator = torch.Generator().manual_seed(0)
    codes, labels = torch.rand(30, 100, generator=generator) < 0.5, torch.rand(30, 38, generator=generator) < 0.1
    return {"codes": codes, "labels": labels, "query": torch.arange(30) < 10, "ids": torch.arange(30)}


@pytest.mark.parametrize("busy", [0, 1])
def test_widths_that_only_one_rank_knows(busy, two_ranks):
    expected = leaves(fed(HashingMAPAtK(top_k=4), [wide_codes()]).compute())
    warns = "was called before the ``update``" if busy else ""
    assert two_ranks.run(wide_codes_here_and_nothing_there, busy, warns=warns) == both(expected)


def different_widths() -> Any:
    metric = HashingMAPAtK()
    metric.update(torch.ones(2, 8 + dist.get_rank()), torch.ones(2, dtype=torch.int64), query=True, ids=torch.arange(2))
    before = state_of(metric)
    error = captured(metric.compute)
    assert_same(state_of(metric), before)
    return error


def test_widths_that_differ_are_refused_on_every_rank(two_ranks):
    errors = two_ranks.run(different_widths)
    assert errors[0] == errors[1]
    assert errors[0].startswith("ValueError: Arguments `codes` and `labels` must have the same width")
    assert "8 bits with one label(s) a row, 9 bits" in errors[0]


def rows_here_and_a_matrix_there(clash: bool) -> Any:
    metric = RetrievalMAP()
    if dist.get_rank():
        metric.update(torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([[1, 0, 0]]), ids=torch.tensor([7]))
    else:
        query = torch.tensor([7 if clash else 8] * 2)
        metric.update(torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), query, ids=torch.tensor([1, 2]))
    return captured(metric.compute) if clash else metric.compute().item()


def test_rows_and_a_matrix_may_meet_unless_they_share_a_query(two_ranks):
    assert two_ranks.run(rows_here_and_a_matrix_there, False) == both((1 / 3 + 1) / 2)
    errors = two_ranks.run(rows_here_and_a_matrix_there, True)
    assert all(error.startswith("ValueError: Query 7 came both as rows") for error in errors)


# --- samples that a sampler repeats ----------------------------------------------------------------------------------


def three_samples(name: str) -> Any:
    """As a loader of one sample a batch deals them with DistributedSampler, which pads."""
    sampler = DistributedSampler(range(3), shuffle=False)
    numbers = list(sampler)
    assert len(numbers) == 2
    return leaves(fed(BY_NAME[name].make(), [sample(name, i) for i in numbers]).compute())


def sample(name: str, number: int) -> Batch:
    batch = BY_NAME[name].batches()[{"matrix-named": 3, "detection-macro": 0}[name]]
    return {key: value[number : number + 1] for key, value in batch.items()}


@pytest.mark.parametrize("name", ["matrix-named", "detection-macro"])
def test_three_samples_on_two_ranks_with_a_padding_sampler(name, two_ranks):
    expected = leaves(BY_NAME[name].value([sample(name, i) for i in range(3)]))
    assert two_ranks.run(three_samples, name) == both(expected)


def equal_matrices(named: bool) -> Any:
    metric = RetrievalMAP()
    ids = torch.tensor([5, 6]) if named else None
    metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([[1, 0], [1, 0]]), ids=ids)
    result = metric.result()
    return metric.compute().item(), len(result.query), result.num_duplicates, result.named.tolist()


def test_rows_of_a_matrix_without_ids_are_never_merged(two_ranks):
    assert two_ranks.run(equal_matrices, False, warns=UNNAMED) == both((0.75, 4, 0, [False] * 4))
    assert two_ranks.run(equal_matrices, True) == both((0.75, 2, 2, [True] * 2))


def warnings_of(name: str, distinct: bool) -> None:
    metric = BY_NAME[name].make()
    metric.distinct_samples = distinct
    for batch in BY_NAME[name].batches()[2:5]:
        metric.update(**batch)
        metric.compute()
        metric.result()


@over([case for case in CASES if not case.named])
def test_samples_without_ids_warn_once_on_rank_0(case, two_ranks):
    outcomes = two_ranks.outcomes(warnings_of, case.name, False)
    texts = [outcome.warnings for outcome in outcomes]
    assert [outcome.error for outcome in outcomes] == both("")
    unnamed = [[text for text in rank if UNNAMED in text] for rank in texts]
    assert [len(rank) for rank in unnamed] == [1, 0]
    assert unnamed[0][0].startswith(f"UserWarning: {case.cls.__name__} gathered")
    texts = [outcome.warnings for outcome in two_ranks.outcomes(warnings_of, case.name, True)]
    assert not any(UNNAMED in text for rank in texts for text in rank)


@over([case for case in CASES if case.named and case.cls is not HashingMAPAtK])
def test_samples_with_ids_do_not_warn(case, two_ranks):
    for outcome in two_ranks.outcomes(warnings_of, case.name, False):
        assert not outcome.error, outcome.trace
        assert not any(UNNAMED in text for text in outcome.warnings)


def conflicting_copies() -> Any:
    metric = RetrievalMAP()
    score = 0.1 + dist.get_rank()
    query, ids = torch.tensor([0, 0]), torch.tensor([1, 2])
    metric.update(torch.tensor([score, 0.5]), torch.tensor([1, 0]), query, ids=ids)
    return metric.compute().item()


def test_copies_that_differ_give_the_same_on_every_rank_and_warn(two_ranks):
    assert two_ranks.run(conflicting_copies, warns="1 rows repeat an id with another content") == both(0.5)


# --- collectives -----------------------------------------------------------------------------------------------------


def collectives(name: str, numbers: tuple) -> dict[str, int]:
    metric = fed(BY_NAME[name].make(), [BY_NAME[name].batches()[i] for i in my(numbers)])
    with counted() as calls:
        metric.sync(distributed_available=dist.is_initialized)
    metric.unsync()
    return calls


@pytest.mark.parametrize(
    ("name", "states"), [("rows-expected", 5), ("matrix-anonymous", 5), ("hashing-classes", 2), ("detection-macro", 5)]
)
def test_the_number_of_collectives_does_not_depend_on_the_data(name, states, two_ranks):
    """Per state one barrier, and a gather each of shapes and values."""
    expected = {"barrier": states, "all_gather": 2 * states}
    for numbers in (((), ()), ((0,), ()), ((), (1,)), ((0, 1, 2, 3, 4, 5), (3,)), ((0, 0, 0, 0), (4, 5))):
        for calls in two_ranks.run(collectives, name, numbers):
            assert {key: count for key, count in calls.items() if count} == expected, numbers


def shares_of_the_queries(name: str) -> tuple[list[int], int, Any]:
    """How many queries this rank ranked, the gathers of `compute` beyond those of the states, and the value."""
    case = BY_NAME[name]
    metric = fed(case.make(), case.batches()[dist.get_rank() :: dist.get_world_size()])
    ranked = []

    def recording(count, work, share):
        def counted_work(rows):
            ranked.append(rows.stop - rows.start)
            return work(rows)

        return rank_queries(count, counted_work, share)

    with pytest.MonkeyPatch.context() as patch, counted() as calls:
        for module in ("hashing", "embedding"):
            patch.setattr(f"map_metrics.{module}.rank_queries", recording)
        value = metric.compute()
        forward = case.make(dist_sync_on_step=True)
        forward(**case.batches()[0])  # the value of a batch is not divided
    return ranked, calls["barrier"], value


@pytest.mark.parametrize(
    "name", ["hashing-classes", "hashing-weighted", "embedding-weighted", "embedding-euclidean-multi-hot"]
)
def test_every_rank_ranks_its_share_of_the_queries(name, three_ranks):
    whole = BY_NAME[name].value(BY_NAME[name].batches())
    replies = three_ranks.run(shares_of_the_queries, name)
    firsts = [ranked[0] for ranked, _, _ in replies]
    total = len(fed(BY_NAME[name].make(), BY_NAME[name].batches()).result().query)
    assert sum(firsts) == total
    assert max(firsts) - min(firsts) <= 1
    for ranked, barriers, value in replies:
        assert barriers == 2 + 1 + 2  # two states, one exchange, two states in forward
        assert len(ranked) == 2
        assert_same(value, whole)


# --- errors on the way -----------------------------------------------------------------------------------------------


def an_empty_query_that_is_an_error() -> Any:
    metric = RetrievalMAP(empty_target_action="error")
    rank = dist.get_rank()
    metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([[rank, 0]]), ids=torch.tensor([rank]))
    before = state_of(metric)
    error = captured(metric.compute)
    assert_same(state_of(metric), before)
    metric.reset()
    metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([[1, 0]]), ids=torch.tensor([rank]))
    return error, metric.compute().item(), len(metric.result().query)


def test_an_error_in_compute_leaves_the_metric_unsynced_and_the_next_compute_works(two_ranks):
    for error, value, queries in two_ranks.run(an_empty_query_that_is_an_error):
        assert error.startswith("ValueError: 1 queries have no relevant item, the first of them query 0")
        assert (value, queries) == (1.0, 2)


def repaired_after_the_error() -> Any:
    """The same rows go on, and count once: the missing relevant item arrives later, on the other rank."""
    metric = RetrievalMAP(empty_target_action="error")
    metric.distinct_samples = True
    rank = dist.get_rank()
    metric.update(torch.tensor([0.9, 0.1]), torch.tensor([rank, 0]), torch.tensor([rank, rank]))
    error = captured(metric.compute)
    metric.update(torch.tensor([0.2]), torch.tensor([1]), torch.tensor([1 - rank]))
    return error, metric.compute().item()


def test_rows_gathered_before_an_error_are_not_kept_as_local_ones(two_ranks):
    for error, value in two_ranks.run(repaired_after_the_error):
        assert "1 queries have no relevant item" in error
        assert value == (1 / 2 + 1) / 2


def refused_result() -> Any:
    metric = RetrievalMAP()
    matrix, one = torch.tensor([[0.9, 0.1]]), torch.tensor([7])
    if dist.get_rank():
        metric.update(matrix, matrix > 0.5, ids=one)
    else:
        metric.update(matrix[0, :1], one > 0, one)
    before = state_of(metric)
    error = captured(metric.result)
    assert_same(state_of(metric), before)
    return error


def test_an_error_in_result_leaves_the_metric_unsynced(two_ranks):
    assert all("Query 7 came both as rows" in error for error in two_ranks.run(refused_result))


BAD = {
    "rows-expected": {"preds": torch.tensor([0.5, torch.nan]), "target": torch.ones(2), "indexes": torch.arange(2)},
    "matrix-named": {"preds": torch.zeros(1, 2), "target": torch.full((1, 2), 2), "ids": torch.tensor([3])},
    "hashing-classes": {"codes": torch.tensor([[0.0, 1, -1]]), "labels": torch.tensor([1]), "query": True},
    "detection-macro": {"preds": [], "target": [{}]},
}


def refused_on_rank_1(name: str, call: str) -> Any:
    case, rank = BY_NAME[name], dist.get_rank()
    first, second = case.batches()[2 * rank : 2 * rank + 2]
    metric = fed(case.make(), [first])
    before = state_of(metric)
    if rank == 1:
        assert captured(getattr(metric, call), **BAD[name]).startswith("ValueError")
        assert_same(state_of(metric), before)
    getattr(metric, call)(**second)
    assert metric.update_count == 2
    return leaves(metric.compute())


@pytest.mark.parametrize("call", ["update", "forward"])
@pytest.mark.parametrize("name", BAD)
def test_a_refused_batch_on_one_rank_loses_nothing_and_leaves_syncing_on(name, call, two_ranks):
    case = BY_NAME[name]
    outcomes = two_ranks.outcomes(refused_on_rank_1, name, call)
    assert [outcome.error for outcome in outcomes] == both("")
    assert [outcome.value for outcome in outcomes] == both(leaves(case.value(case.batches()[:4])))


CONFIGS = {
    "ignore_index": (RetrievalMAP, {"ignore_index": 100000}, {"ignore_index": 100001}),
    "largest": (RetrievalMAP, {"largest": True}, {"largest": False}),
    "stable": (RetrievalMAP, {"ties": "expected"}, {"ties": "stable"}),
    "packed": (HashingMAPAtK, {"packed": True}, {"packed": False}),
    "box_format": (DetectionMAP, {"box_format": "xywh"}, {"box_format": "cxcywh"}),
}


def different_arguments(name: str) -> Any:
    cls, *kwargs = CONFIGS[name]
    metric = cls(**kwargs[dist.get_rank()])
    metric._update_count = 1
    before = state_of(metric)
    errors = [captured(metric.compute), captured(metric.result)]
    assert_same(state_of(metric), before)
    return errors


@pytest.mark.parametrize("name", CONFIGS)
def test_ranks_with_different_arguments_are_refused_on_every_rank(name, two_ranks):
    for errors in two_ranks.run(different_arguments, name):
        assert all(error.startswith("ValueError") and "other arguments (another rank" in error for error in errors)


# --- calls of the host -----------------------------------------------------------------------------------------------


def by_hand(name: str) -> Any:
    case, rank = BY_NAME[name], dist.get_rank()
    batches = case.batches()[3 * rank : 3 * rank + 3]
    metric = fed(case.make(sync_on_compute=False), batches[:2])
    alone = leaves(metric.compute())
    before = state_of(metric)
    metric.sync()
    synced = state_of(metric)
    refused = [
        captured(metric.update, **batches[2]),
        captured(metric.forward, **batches[2]),
        captured(metric.merge_state, case.make()),
        captured(metric.sync),
    ]
    assert_same(state_of(metric), synced)
    metric.unsync()
    assert_same(state_of(metric), before)
    metric.update(**batches[2])
    with metric.sync_context():
        inside = {table: len(metric.table(table)) for table in metric._tables}
    assert all(isinstance(getattr(metric, table), list) for table in metric._tables)
    metric.sync()
    return alone, refused, inside, leaves(metric.compute())


@pytest.mark.parametrize("name", ["rows-expected", "matrix-named", "detection-macro", "hashing-multi-hot-k5"])
@pytest.mark.filterwarnings("ignore:No query to average over:UserWarning")
def test_sync_and_unsync_by_hand(name, two_ranks):
    case = BY_NAME[name]
    batches = case.batches()
    outcomes = two_ranks.outcomes(by_hand, name)
    whole = fed(case.make(), batches)
    for rank, outcome in enumerate(outcomes):
        assert not outcome.error, outcome.trace
        alone, refused, inside, value = outcome.value
        assert alone == leaves(case.value(batches[3 * rank : 3 * rank + 2]))
        assert all(error.startswith("TorchMetricsUserError: The Metric") for error in refused), refused
        assert inside == {table: len(whole.table(table)) for table in whole._tables}
        assert value == leaves(case.value(batches))


@functools.cache
def on_one_rank_after_sync_by_hand(name: str) -> Any:
    case = BY_NAME[name]
    metric = fed(case.make(sync_on_compute=False), case.batches()[dist.get_rank() * 3 : dist.get_rank() * 3 + 3])
    metric.sync()
    if dist.get_rank():
        metric.unsync()
        return None
    return leaves(metric.compute())  # nobody joins it in a collective call


@pytest.mark.parametrize("name", ["rows-expected", "hashing-multi-hot-k5", "embedding-cosine", "detection-macro"])
def test_one_rank_alone_may_compute_after_a_sync_by_hand(name, two_ranks):
    assert two_ranks.run(on_one_rank_after_sync_by_hand, name) == [
        leaves(BY_NAME[name].value(BY_NAME[name].batches())),
        None,
    ]


def subgroups() -> list[Any]:
    return [dist.new_group([0, 2]), dist.new_group([1])]


def in_a_subgroup(name: str) -> Any:
    case, rank = BY_NAME[name], dist.get_rank()
    metric = case.make(process_group=subgroups()[rank % 2])
    fed(metric, case.batches()[2 * rank : 2 * rank + 2])
    return leaves(metric.compute())


@pytest.mark.parametrize("name", ["rows-expected", "matrix-named", "hashing-exclude-self", "detection-extended"])
def test_a_process_group_of_some_ranks(name, three_ranks):
    case = BY_NAME[name]
    batches = case.batches()
    pair, alone = leaves(case.value(batches[:2] + batches[4:])), leaves(case.value(batches[2:4]))
    assert three_ranks.run(in_a_subgroup, name) == [pair, alone, pair]


def alone_without_ids() -> Any:
    metric = BY_NAME["detection-without-ids"].make(process_group=subgroups()[dist.get_rank() % 2])
    metric.update(**BY_NAME["detection-without-ids"].batches()[dist.get_rank() + 2])
    metric.compute()


def test_a_group_of_one_needs_no_ids(three_ranks):
    warned = [len(outcome.warnings) for outcome in three_ranks.outcomes(alone_without_ids)]
    assert warned == [1, 0, 0]  # rank 1 is alone; rank 2 is not the one that speaks


def results(name: str, layout: tuple) -> Any:
    case = BY_NAME[name]
    metric = fed(case.make(), [case.batches()[i] for i in my(layout)])
    before = state_of(metric)
    result = metric.result()
    assert_same(state_of(metric), before)
    return numbers_of(result)


def numbers_of(result: Any) -> Any:
    if isinstance(result, dict):  # one for each type of overlap
        return {name: numbers_of(one) for name, one in result.items()}
    return leaves({key: value for key, value in result.to_dict().items() if key != "conventions"})


@over([case for case in CASES if case.named])
def test_result_is_that_of_one_process(case, two_ranks):
    expected = numbers_of(fed(case.make(), case.batches()).result())
    assert two_ranks.run(results, case.name, ((4, 1, 0), (2, 5, 3))) == both(expected)


def value_of_each_step(name: str) -> Any:
    case, rank = BY_NAME[name], dist.get_rank()
    metric = case.make(dist_sync_on_step=True)
    steps = [leaves(metric(**batch)) for batch in case.batches()[3 * rank : 3 * rank + 3]]
    return steps, leaves(metric.compute())


@pytest.mark.parametrize("name", ["rows-expected", "matrix-named", "hashing-multi-hot-k5", "detection-macro"])
@pytest.mark.filterwarnings("ignore:No query to average over:UserWarning")
def test_forward_may_sync_on_each_step(name, two_ranks):
    case = BY_NAME[name]
    batches = case.batches()
    steps = [leaves(case.value([batches[i], batches[3 + i]])) for i in range(3)]
    assert two_ranks.run(value_of_each_step, name) == both((steps, leaves(case.value(batches))))


def refused_while_syncing_on_each_step() -> Any:
    """Compute fails on both ranks in the middle of a synced forward."""
    metric = RetrievalMAP(empty_target_action="error", dist_sync_on_step=True)
    good = {"preds": torch.tensor([[0.9, 0.1]]), "target": torch.tensor([[1, 0]])}
    metric(**good, ids=torch.tensor([dist.get_rank()]))
    before = state_of(metric)
    error = captured(metric.forward, good["preds"], good["target"] * 0, ids=torch.tensor([7]))
    assert_same(state_of(metric), before)
    return error, metric.compute().item()


def test_a_forward_that_fails_while_synced_changes_nothing(two_ranks):
    for error, value in two_ranks.run(refused_while_syncing_on_each_step):
        assert error.startswith("ValueError: 1 queries have no relevant item")
        assert value == 1.0


def in_inference_mode(name: str) -> Any:
    case, rank = BY_NAME[name], dist.get_rank()
    batches = case.batches()[3 * rank : 3 * rank + 3]
    metric = case.make()
    with torch.inference_mode():
        metric.reset()
        first = leaves(fed(metric, batches[:2]).compute())
    metric.update(**batches[2])
    second = leaves(metric.compute())
    with torch.inference_mode():
        result = metric.result()
        third = leaves(result.values() if isinstance(result, DetectionResult) else result.value())
    metric.sync()
    metric.unsync()
    return first, second, third


@pytest.mark.parametrize("name", ["rows-expected", "matrix-named", "hashing-classes", "detection-macro"])
def test_sync_in_and_after_inference_mode(name, two_ranks):
    case = BY_NAME[name]
    batches = case.batches()
    part, whole = leaves(case.value(batches[:2] + batches[3:5])), leaves(case.value(batches))
    assert two_ranks.run(in_inference_mode, name) == both((part, whole, whole))


def collection_of(name: str, layout: tuple) -> Any:
    case = BY_NAME[name]
    collection = MetricCollection({"a": case.make(), "b": case.make()})
    fed(collection, [case.batches()[i] for i in my(layout)])
    collection.compute()
    return [leaves(collection[name].compute()) for name in "ab"]


@pytest.mark.parametrize("name", ["rows-expected", "hashing-classes", "detection-macro"])
@pytest.mark.parametrize("layout", ["even", "no update on rank 0"])
def test_collections_where_a_rank_has_formed_no_groups(name, layout, two_ranks):
    case = BY_NAME[name]
    outcomes = two_ranks.outcomes(collection_of, name, LAYOUTS[layout])
    assert [outcome.error for outcome in outcomes] == both("")
    assert [outcome.value for outcome in outcomes] == both(both(leaves(case.value(case.batches()))))


class Gathered(RetrievalMAP):
    """Stands in for a gather of two equal ranks without any process group."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(dist_sync_fn=twice, distributed_available_fn=lambda: True, **kwargs)


def twice(tensor: Tensor, group: Any = None) -> list[Tensor]:
    return [tensor, tensor]


def test_a_gather_function_of_the_users_own():
    """``dist_sync_fn`` of the host works where torch.distributed is not initialised."""
    metric = Gathered()
    metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([[0, 1]]), ids=torch.tensor([1]))
    assert metric.compute() == 0.5
    assert metric.result().num_duplicates == 1
    metric.reset()
    metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([[0, 1]]))
    with pytest.warns(UserWarning, match=UNNAMED):
        assert metric.compute() == 0.5


def test_one_process_does_not_warn_about_ids():
    case = BY_NAME["detection-without-ids"]
    assert isinstance(case.value(case.batches())["map"], Tensor)


def raise_on_rank_1() -> None:
    if dist.get_rank() == 1:
        raise RuntimeError("here")


def test_the_processes_report_errors_and_warnings(two_ranks):
    with pytest.raises(AssertionError, match="rank 1: RuntimeError: here"):
        two_ranks.run(raise_on_rank_1)
    with pytest.raises(AssertionError, match=UNNAMED):
        two_ranks.run(equal_matrices, False)
    with pytest.raises(AssertionError):
        two_ranks.run(equal_matrices, True, warns=UNNAMED)
