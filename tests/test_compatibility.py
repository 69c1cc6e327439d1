"""What of torchmetrics works with which of the metrics: every cell of ``docs/compatibility.md`` is run here.

``python tests/test_compatibility.py`` writes the table again.
"""

from __future__ import annotations

import copy
import functools
import io
import pickle
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import BY_NAME, Batch, Case, assert_same, fed, leaves, state_of
from distributed import Ranks
from torchmetrics import MetricCollection
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.wrappers import BootStrapper, ClasswiseWrapper, MetricTracker, MinMaxMetric, Running

from map_metrics import DetectionMAP

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"
COLUMNS = {  # heading -> case
    "`RetrievalMAP`": "rows-expected",
    "`HashingMAPAtK`": "hashing-classes",
    "`EmbeddingMAPAtK`": "embedding-cosine",
    "`DetectionMAP`": "detection-macro",
    '`DetectionMAP(output="map")`': "detection-output",
}
YES, OUTPUT = "yes", '`output="map"`'
pytestmark = [
    pytest.mark.filterwarnings("ignore:No query to average over:UserWarning"),
    pytest.mark.filterwarnings("ignore:The default value for `maximize`:FutureWarning"),  # torchmetrics 1.6
]


@functools.cache
def whole(name: str) -> Any:
    return BY_NAME[name].value(BY_NAME[name].batches())


def filled(case: Case) -> list[Batch]:
    """The batches that have samples."""
    return [batch for batch in case.batches() if len(next(iter(batch.values())))]


def has_dict(case: Case) -> bool:
    return isinstance(whole(case.name), dict)


def refused(error: type[Exception] | tuple[type[Exception], ...], call: Callable[[], Any]) -> None:
    """The host cannot: it says so by an error, and does not go on with another number."""
    with pytest.raises(error):
        call()


# --- in one process ---------------------------------------------------------------------------------------------------


def collection(case: Case) -> str:
    metrics = MetricCollection({"a": case.make(), "b": case.make()}, prefix="val/", postfix="_")
    fed(metrics, case.batches())
    assert list(metrics.compute_groups.values()) == [["a", "b"]]
    value = metrics.compute()
    keys = [f"{k}_{key}" for k in "ab" for key in whole(case.name)] if has_dict(case) else ["a", "b"]
    assert set(value) == {f"val/{key}_" for key in keys}
    for name in "ab":
        assert_same(metrics[name].compute(), whole(case.name))
    return YES


def tracker(case: Case) -> str:
    """Each step, and the best one, where the result is one number."""
    metrics, values = MetricTracker(case.make(), maximize=True), []
    for seed in range(2):
        metrics.increment()
        fed(metrics, case.batches(seed))
        values.append(case.value(case.batches(seed)))
        assert_same(metrics.compute(), values[-1])
    if has_dict(case):
        assert metrics.compute_all()["map"].tolist() == [float(value["map"]) for value in values]
        refused(TypeError, metrics.best_metric)
        return OUTPUT
    assert metrics.best_metric() == max(float(value) for value in values)
    return YES


def bootstrapper(case: Case) -> str:
    metric = BootStrapper(case.make(), num_bootstraps=3, raw=True, sampling_strategy="multinomial")
    if case.cls is DetectionMAP:
        refused((TypeError, ValueError, AttributeError, RuntimeError), lambda: fed(metric, filled(case)).compute())
        return "`result().bootstrap()`"
    raw = fed(metric, filled(case)).compute()["raw"]
    assert raw.shape == (3,)
    assert bool(((raw >= 0) & (raw <= 1)).all())
    return YES


def min_max(case: Case) -> str:
    metric, values = MinMaxMetric(case.make()), []
    if has_dict(case):
        refused(RuntimeError, lambda: fed(metric, filled(case)).compute())
        return OUTPUT
    for i, batch in enumerate(case.batches()):
        metric.update(**batch)
        values.append(case.value(case.batches()[: i + 1]))
        assert_same(metric.compute(), {"raw": values[-1], "max": max(values), "min": min(values)})
    return YES


def classwise(case: Case) -> str:
    """It takes a vector with a value for each class."""
    if case.cls is not DetectionMAP:
        refused((TypeError, ValueError), lambda: fed(ClasswiseWrapper(case.make()), filled(case)).compute())
        return "no classes"
    value = fed(ClasswiseWrapper(DetectionMAP()), case.batches()).compute()
    assert len(value) == len(whole("detection-macro"))  # the keys of the result, numbered as if they were classes
    value = fed(DetectionMAP(class_metrics=True), case.batches()).compute()
    assert value["map_per_class"].shape == value["classes"].shape
    return "`class_metrics=True`"


def running(case: Case) -> str:
    metric, batches = Running(case.make(), window=2), filled(case)
    for previous, batch in zip([None, *batches], batches, strict=False):
        assert_same(metric(**batch), case.value([batch]))
        assert_same(metric.compute(), case.value([*([previous] if previous else []), batch]))
    return YES


def arithmetic(case: Case) -> str:
    metric = (case.make() + case.make() * 3) / 2
    if has_dict(case):
        refused(TypeError, lambda: fed(metric, filled(case)).compute())
        return OUTPUT
    one = whole(case.name)
    assert_same(fed(metric, case.batches()).compute(), (one + one * 3) / 2)
    return YES


def copies(copied: Callable[[Any], Any], case: Case) -> str:
    batches = case.batches()
    metric = fed(case.make(), batches[:3])
    twin = copied(metric)
    assert type(twin) is type(metric)
    assert_same(fed(twin, batches[3:]).compute(), whole(case.name))
    assert_same(metric.compute(), case.value(batches[:3]))
    return YES


def hashed(case: Case) -> str:
    first, second = case.make(), case.make()
    assert hash(first) == hash(first) != hash(second)
    return YES


def state_dict(case: Case) -> str:
    batches = case.batches()
    assert case.make().state_dict() == {}
    metric, twin, file = fed(case.make(), batches[:3]), case.make(), io.BytesIO()
    metric.persistent(True)
    torch.save(metric.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert_same(fed(twin, batches[3:]).compute(), whole(case.name))
    return YES


def scripted(case: Case) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, and of a property of the host
        torch.jit.script(case.make())
    return YES


def merged(case: Case) -> str:
    batches = case.batches()
    metric = fed(case.make(), batches[:3])
    metric.merge_state(fed(case.make(), batches[3:]))
    assert_same(metric.compute(), whole(case.name))
    return YES


def forward(case: Case) -> str:
    metric = case.make()
    for batch in case.batches():
        assert_same(metric(**batch), case.value([batch]))
    assert_same(metric.compute(), whole(case.name))
    return YES


def plotted(case: Case) -> str:
    pytest.importorskip("matplotlib")
    import matplotlib.pyplot as plt

    figure, _ = fed(case.make(), case.batches()).plot()
    plt.close(figure)
    return YES


# --- on two ranks -----------------------------------------------------------------------------------------------------


def halves(name: str) -> list[Batch]:
    rank = dist.get_rank()
    return BY_NAME[name].batches()[3 * rank : 3 * rank + 3]


def on_ranks(name: str, facility: str) -> None:
    """One facility on every rank; the caller looks at errors."""
    warnings.simplefilter("ignore")  # torchmetrics before 1.8 indexes by a list, of which torch warns
    case, batches = BY_NAME[name], BY_NAME[name].batches()
    expected, mine = leaves(alone(case, batches)), halves(name)
    if facility == "sync and unsync":
        metric = fed(case.make(sync_on_compute=False), mine)
        before = state_of(metric)
        metric.sync()
        with pytest.raises(TorchMetricsUserError):
            metric.sync()
        metric.unsync()
        assert_same(state_of(metric), before)
        metric.sync()
        assert leaves(metric.compute()) == expected  # and releases the rows of the others
        metric._computed = None
        assert_same(state_of(metric), before)
    elif facility == "dist_sync_on_step":
        metric = case.make(dist_sync_on_step=True)
        for i, batch in enumerate(mine):
            assert leaves(metric(**batch)) == leaves(alone(case, [batches[i], batches[3 + i]]))
        assert leaves(metric.compute()) == expected
    elif facility == "compute_on_cpu":
        assert leaves(fed(case.make(compute_on_cpu=True), mine).compute()) == expected
    elif facility == "sync_on_compute":
        assert leaves(fed(case.make(sync_on_compute=False), mine).compute()) == leaves(alone(case, mine))
    elif facility == "process_group":
        groups = [dist.new_group([0]), dist.new_group([1])]
        metric = fed(case.make(process_group=groups[dist.get_rank()]), mine)
        assert leaves(metric.compute()) == leaves(alone(case, mine))
    else:
        collection = fed(MetricCollection({"a": case.make(), "b": case.make()}), mine)
        collection.compute()
        assert leaves(collection["b"].compute()) == expected


def alone(case: Case, batches: list[Batch]) -> Any:
    return fed(case.make(distributed_available_fn=lambda: False), batches).compute()


# --- the table --------------------------------------------------------------------------------------------------------

ALONE: dict[str, tuple[str, Callable[[Case], str]]] = {
    "forward": ("`forward`: the value of a batch", forward),
    "collection": ("`MetricCollection`, one compute group", collection),
    "tracker": ("`MetricTracker`", tracker),
    "bootstrapper": ("`BootStrapper`", bootstrapper),
    "min-max": ("`MinMaxMetric`", min_max),
    "classwise": ("`ClasswiseWrapper`", classwise),
    "running": ("`Running`", running),
    "arithmetic": ("`a + b`, `a * 3` (`CompositionalMetric`)", arithmetic),
    "clone": ("`clone`", functools.partial(copies, lambda metric: metric.clone())),
    "deepcopy": ("`copy.deepcopy`", functools.partial(copies, copy.deepcopy)),
    "pickle": ("`pickle`", functools.partial(copies, lambda metric: pickle.loads(pickle.dumps(metric)))),
    "hash": ("`hash`", hashed),
    "state_dict": ("`state_dict` (`persistent(True)`)", state_dict),
    "jit": ("`torch.jit.script` of a module that holds one", scripted),
    "merge_state": ("`merge_state`", merged),
    "plot": ("`plot`", plotted),
}
RANKS = {
    "sync and unsync": "`sync`, `unsync` by hand",
    "dist_sync_on_step": "`dist_sync_on_step=True`",
    "compute_on_cpu": "`compute_on_cpu=True`",
    "sync_on_compute": "`sync_on_compute=False`: this rank alone",
    "process_group": "`process_group`: some of the ranks",
    "collection on ranks": "`MetricCollection` on several ranks",
}
SAID: dict[tuple[str, str], str] = {}  # (facility, column) -> what its run said


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("facility", ALONE)
def test_alone(facility, column):
    SAID[facility, column] = ALONE[facility][1](BY_NAME[COLUMNS[column]])


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("facility", RANKS)
def test_on_ranks(facility, column, two_ranks):
    for outcome in two_ranks.outcomes(on_ranks, COLUMNS[column], facility):
        assert not outcome.error, outcome.trace
    SAID[facility, column] = YES


def page() -> str:
    """The page with the table of what was said."""
    titles = {name: title for name, (title, _) in ALONE.items()} | RANKS
    table = [["", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    table += [[title, *(SAID[name, column] for column in COLUMNS)] for name, title in titles.items()]
    rows = "".join(f"| {' | '.join(row)} |\n" for row in table)
    return re.sub(r"(^\|.*\n)+", lambda _: rows, PAGE.read_text(), flags=re.M)


def test_the_page_is_what_was_run():
    if len(SAID) < (len(ALONE) + len(RANKS)) * len(COLUMNS):
        run_all()
    assert PAGE.read_text() == page(), "python tests/test_compatibility.py writes it again"


def run_all() -> None:
    for name, (_, run) in ALONE.items():
        for column, case in COLUMNS.items():
            SAID[name, column] = run(BY_NAME[case])
    ranks = Ranks(2)
    try:
        for name in RANKS:
            for column, case in COLUMNS.items():
                assert not any(outcome.error for outcome in ranks.outcomes(on_ranks, case, name)), (name, case)
                SAID[name, column] = YES
    finally:
        ranks.stop()


if __name__ == "__main__":
    run_all()
    PAGE.write_text(page())
    sys.stdout.write(f"{PAGE}\n")
