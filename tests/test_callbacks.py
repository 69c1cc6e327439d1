"""MAPCallback in real Trainers: both Lightning packages, one process and two."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import callback_helpers as helpers
import pytest
import torch
from callback_helpers import (
    KINDS,
    TRAIN,
    Constant,
    agreed,
    loader,
    model,
    prefixed,
    ranks,
    recorder,
    records,
    scalars,
    trainer,
)
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, SubsetRandomSampler
from torchmetrics import Metric

from map_metrics import DetectionMAP, HashingMAPAtK, RetrievalMAP
from map_metrics.callbacks import MAPCallback
from map_metrics.shares import first

PACKAGES = ["lightning.pytorch", "pytorch_lightning"]

pytestmark = [
    # what Lightning says of samplers that repeat is what the callback deals with
    pytest.mark.filterwarnings("ignore:Using `DistributedSampler` with the dataloaders"),
    pytest.mark.filterwarnings(
        "ignore:.*use of fork.. may lead to deadlocks"
    ),  # Python 3.12 on the strategy of these tests
]


@pytest.fixture(params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    """Each of the Lightning packages."""
    return pytest.importorskip(request.param)


@pytest.fixture
def lightning() -> Any:
    """One of them, where it makes no difference."""
    return pytest.importorskip("lightning.pytorch")


# --- one process ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_validate_fit_test_with_one_callback(pl: Any, tmp_path: Path, kind: str) -> None:
    metric, outputs = KINDS[kind]
    callback, module = MAPCallback(metric()), model(pl, outputs)
    run = trainer(pl, tmp_path, [callback], max_epochs=2)

    for n in (11, 7):  # the second time in other loaders than those of the fit
        whole = prefixed("val", KINDS[kind].value(n))
        assert run.validate(module, loader(n), verbose=False) == [scalars(whole)]
        assert callback.values == whole
        run.fit(module, TRAIN, loader(5))
        assert callback.values == prefixed("val", KINDS[kind].value(5))
        run.fit_loop.max_epochs += 2

    assert run.test(module, loader(9), verbose=False) == [scalars(prefixed("test", KINDS[kind].value(9)))]
    assert callback.values == prefixed("test", KINDS[kind].value(9))
    assert callback.metric.update_count == 0  # the callback feeds clones,
    assert not any(clone.update_count for clone in callback._clones.values())  # and keeps no rows after a stage


def test_the_sanity_check_is_neither_fed_nor_logged(pl: Any, tmp_path: Path) -> None:
    fed, during = [], []

    def feed(outputs: Any, batch: Any, dataloader_idx: int) -> Any:
        fed.append(batch)
        return outputs

    class Look(pl.Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.sanity_checking:
                during.append((dict(trainer.callback_metrics), len(fed)))

    callback = MAPCallback(RetrievalMAP(), feed=feed)
    trainer(pl, tmp_path, [callback, Look()], num_sanity_val_steps=2).fit(model(pl, helpers.matrix), TRAIN, loader(11))
    assert during == [({}, 0)]
    assert len(fed) == 4
    assert callback.values == {"val/map": KINDS["matrix"].value(11)["map"]}


@pytest.mark.parametrize(
    ("metric", "outputs", "logged"),
    [
        (RetrievalMAP(top_k=[1, 3]), helpers.matrix, {"map@1", "map@3"}),
        (DetectionMAP(output="map_50"), helpers.detection, {"map"}),
        (
            DetectionMAP(class_metrics=True, extended_summary=True, iou_thresholds=[0.6, 0.7]),
            helpers.detection,
            # neither vectors, tables and dicts, nor -1: no threshold is .5 or .75, no box is large
            {"map", "map_small", "map_medium", "mar_1", "mar_10", "mar_100", "mar_small", "mar_medium"},
        ),
        (Constant({"map": torch.tensor(torch.nan), "b": torch.tensor(0.5)}), helpers.matrix, {"b"}),
        (Constant({"map": torch.tensor([0.5, 0.5]), "n": torch.tensor(3), "b": 0.25}), helpers.matrix, {"b"}),
        (Constant(torch.tensor(-1.0)), helpers.matrix, set()),
    ],
)
def test_only_defined_scalars_are_logged(
    lightning: Any, tmp_path: Path, metric: Metric, outputs: Any, logged: set[str]
) -> None:
    callback = MAPCallback(metric)
    (seen,) = trainer(lightning, tmp_path, [callback]).validate(model(lightning, outputs), loader(9), verbose=False)
    assert set(seen) == {f"val/{key}" for key in logged}
    assert seen == {key: callback.values[key] for key in seen}  # the bits are those of `compute`
    assert callback.best == seen
    assert set(callback.values) >= set(seen)


def test_a_metric_that_adds_in_place_survives_validate_then_fit(lightning: Any, tmp_path: Path) -> None:
    callback = MAPCallback(Constant(torch.tensor(0.5)))
    run, module = trainer(lightning, tmp_path, [callback]), model(lightning, helpers.matrix)
    run.validate(module, loader(5), verbose=False)
    run.fit(module, TRAIN, loader(5))
    assert callback.values == {"val/map": 0.5}


def test_a_stage_after_one_that_failed_starts_empty(lightning: Any, tmp_path: Path) -> None:
    outputs = [helpers.matrix, lambda batch: None, helpers.matrix, helpers.matrix]  # of one batch after another
    callback = MAPCallback(RetrievalMAP())
    run = trainer(lightning, tmp_path, [callback])
    module = model(lightning, lambda batch: outputs.pop(0)(batch))
    with pytest.raises(ValueError, match="NoneType"):
        run.validate(module, loader(6), verbose=False)
    run.validate(module, loader(6), verbose=False)
    assert callback.values == {"val/map": KINDS["matrix"].value(6)["map"]}


@pytest.mark.parametrize(
    ("loaders", "names"),
    [
        ([loader(11)], {"": 11}),
        ({"only": loader(11)}, {"": 11}),
        ([loader(11), loader(7)], {"/0": 11, "/1": 7}),
        ({"day": loader(11), "night": loader(7)}, {"/day": 11, "/night": 7}),
        ({"day": [loader(3), loader(4)], "night": loader(5)}, {"/day/0": 3, "/day/1": 4, "/night": 5}),
    ],
)
@pytest.mark.parametrize("name", [None, "x"])
def test_keys(pl: Any, tmp_path: Path, loaders: Any, names: dict[str, int], name: str | None) -> None:
    callback, start = MAPCallback(RetrievalMAP(), name=name), "" if name is None else f"/{name}"
    seen = trainer(pl, tmp_path, [callback]).test(model(pl, helpers.matrix), loaders, verbose=False)
    expected = {f"test{start}{key}/map": KINDS["matrix"].value(n)["map"] for key, n in names.items()}
    assert callback.values == expected
    assert seen == [expected] * len(names)  # Lightning repeats what is logged at the end for every loader


def test_a_combined_loader_in_another_mode_is_one_loader(lightning: Any, tmp_path: Path) -> None:
    combined = lightning.utilities.CombinedLoader({"a": loader(6), "b": loader(6)}, "max_size")
    callback = MAPCallback(RetrievalMAP())
    module = model(lightning, lambda batch: helpers.matrix(batch["a"]))
    trainer(lightning, tmp_path, [callback]).validate(module, combined, verbose=False)
    assert callback.values == {"val/map": KINDS["matrix"].value(6)["map"]}


def test_feed(lightning: Any, tmp_path: Path) -> None:
    def feed(outputs: torch.Tensor, batch: torch.Tensor, dataloader_idx: int) -> dict[str, Any] | None:
        assert torch.equal(outputs, batch)
        return None if dataloader_idx == 0 or 4 in batch else helpers.matrix(batch)

    callback = MAPCallback(RetrievalMAP(), feed=feed)
    module = model(lightning, lambda batch: batch)  # a bare tensor
    trainer(lightning, tmp_path, [callback]).validate(module, [loader(3), loader(5)], verbose=False)
    assert callback.values == {"val/1/map": KINDS["matrix"].value(3)["map"]}  # the first loader has no value at all


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"fast_dev_run": True}, 3),
        ({"limit_val_batches": 1}, 3),
        ({"limit_val_batches": 0}, None),
        ({"limit_val_batches": 0.5}, 6),
        ({"precision": "bf16-true"}, 11),
        ({"barebones": True, "logger": None, "enable_checkpointing": None, "log_every_n_steps": None}, 11),
        ({"check_val_every_n_epoch": 2, "max_epochs": 2}, 11),
        ({"val_check_interval": 0.5}, 11),
        ({"inference_mode": False}, 11),
        ({"reload_dataloaders_every_n_epochs": 1, "max_epochs": 2}, 11),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:You are trying to `self.log..` but `Trainer.barebones=True.` is configured")
@pytest.mark.filterwarnings("ignore:Skipping val loop|You are running in `Trainer")
def test_settings_of_the_trainer(
    lightning: Any, tmp_path: Path, settings: dict[str, Any], expected: int | None
) -> None:
    callback = MAPCallback(RetrievalMAP())
    trainer(lightning, tmp_path, [callback], **settings).fit(model(lightning, helpers.matrix), TRAIN, loader(11))
    assert callback.values == ({} if expected is None else {"val/map": KINDS["matrix"].value(expected)["map"]})


@pytest.mark.parametrize(("prog_bar", "shown"), [(True, {"val/map"}), (False, set())])
def test_the_progress_bar_shows_the_headline(lightning: Any, tmp_path: Path, prog_bar: bool, shown: set[str]) -> None:
    callback = MAPCallback(DetectionMAP(), prog_bar=prog_bar)
    run = trainer(lightning, tmp_path, [callback])
    run.validate(model(lightning, helpers.detection), loader(4), verbose=False)
    assert set(run.progress_bar_metrics) == shown


# --- monitors and checkpoints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("settings", [{}, {"val_check_interval": 0.5}, {"check_val_every_n_epoch": 2}], ids=str)
def test_monitors_find_the_key(pl: Any, tmp_path: Path, order: int, settings: dict[str, Any]) -> None:
    stop = pl.callbacks.EarlyStopping("val/map", mode="max", patience=1)
    save = pl.callbacks.ModelCheckpoint(tmp_path, "{epoch}", monitor="val/map", mode="max")
    callbacks = [MAPCallback(RetrievalMAP()), stop, save][::order]
    run = trainer(pl, tmp_path, callbacks, enable_checkpointing=True, max_epochs=9, **settings)
    run.fit(model(pl, helpers.matrix), TRAIN, loader(11))
    value = KINDS["matrix"].value(11)["map"]
    assert float(save.best_model_score) == value
    assert float(stop.best_score) == value
    assert run.current_epoch < 9  # the value never improves


def test_checkpoints_keep_the_best_values(pl: Any, tmp_path: Path) -> None:
    def callbacks() -> list[MAPCallback]:
        return [MAPCallback(RetrievalMAP()), MAPCallback(RetrievalMAP(top_k=2), name="two")]

    first, second = callbacks(), callbacks()
    run = trainer(pl, tmp_path, first)
    run.fit(model(pl, helpers.matrix), TRAIN, loader(11))
    run.save_checkpoint(tmp_path / "x.ckpt")

    saved = torch.load(tmp_path / "x.ckpt", weights_only=True)["callbacks"]
    assert saved == {c.state_key: {"best": c.best, "history": c.history} for c in first}
    assert "two" in first[1].state_key

    again = trainer(pl, tmp_path, second, max_epochs=2)
    again.fit(model(pl, helpers.matrix), TRAIN, loader(2), ckpt_path=tmp_path / "x.ckpt")
    assert again.current_epoch == 2
    two = KINDS["matrix"].value(2)["map"], KINDS["matrix"].value(11)["map"]
    assert second[0].values == {"val/map": two[0]}
    assert second[0].best == {"val/map": max(two)}
    assert second[0].history == {"val/map": [(3, two[1]), (7, two[0])]}


def test_a_fresh_callback_can_be_pickled() -> None:
    callback = pickle.loads(pickle.dumps(MAPCallback(RetrievalMAP(top_k=3), name="x")))
    assert (callback.name, callback.metric.conventions.top_k) == ("x", 3)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "map"}, "`metric` must be a torchmetrics.Metric, got str"),
        ({"metric": RetrievalMAP}, "`metric` must be a torchmetrics.Metric"),
        ({"metric": RetrievalMAP(), "name": 3}, "`name` must be None or a string that is not empty, got 3"),
        ({"metric": RetrievalMAP(), "name": ""}, "`name`.*got ''"),
        ({"metric": RetrievalMAP(), "feed": {}}, "`feed` must be None or a function, got dict"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MAPCallback(**arguments)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda batch: torch.tensor(0.5), r"`validation_step`.*\['preds', 'target'\] missing, got Tensor.*`feed=`"),
        (lambda batch: None, "got NoneType.*`feed=`"),
        (lambda batch: {"preds": 1, "loss": 2}, r"\['target'\] missing, got the keys \['preds', 'loss'\].*`feed=`"),
        (lambda batch: {**helpers.matrix(batch), "target": 1}, "Argument `target` must be a torch.Tensor, got int"),
        (lambda batch: {**helpers.matrix(batch), "preds": torch.tensor(1.0)}, "Argument `preds`"),
    ],
)
def test_outputs_that_are_not_the_arguments(pl: Any, tmp_path: Path, outputs: Any, message: str) -> None:
    run = trainer(pl, tmp_path, [MAPCallback(RetrievalMAP())])
    with pytest.raises(ValueError, match=message):
        run.validate(model(pl, outputs), loader(5), verbose=False)


@pytest.mark.parametrize("names", [(None, None), ("x", "x")])
@pytest.mark.parametrize("second", [RetrievalMAP(), DetectionMAP()])
def test_two_callbacks_of_one_name_are_refused(pl: Any, tmp_path: Path, names: tuple[Any, Any], second: Metric) -> None:
    run = trainer(pl, tmp_path, [MAPCallback(RetrievalMAP(), name=names[0]), MAPCallback(second, name=names[1])])
    with pytest.raises(ValueError, match=r"Two MAPCallbacks with the name .* give each its own"):
        run.validate(model(pl, helpers.matrix), loader(5), verbose=False)


def test_a_module_that_logs_the_same_key_is_refused_by_lightning(pl: Any, tmp_path: Path) -> None:
    module = model(pl, helpers.matrix)
    module.on_validation_epoch_end = lambda: module.log("val/map", torch.tensor(0.0))
    with pytest.raises(Exception, match="twice in `on_validation_epoch_end` with different arguments"):
        trainer(pl, tmp_path, [MAPCallback(RetrievalMAP())]).validate(module, loader(5), verbose=False)


# --- the two packages -------------------------------------------------------------------------------------------------


def imported_without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> Any:
    """A fresh copy of the module, made as if the packages were not installed."""
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    spec = importlib.util.find_spec("map_metrics.callbacks")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_lightning_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match=r'pip install "torchmetrics-map\[lightning\]"'):
        imported_without(monkeypatch, *PACKAGES)


@pytest.mark.parametrize("missing", PACKAGES)
def test_with_one_package_the_callback_is_of_that_one(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    modules = {package: pytest.importorskip(package) for package in PACKAGES}
    callback = imported_without(monkeypatch, missing).MAPCallback
    assert {p for p, module in modules.items() if issubclass(callback, module.Callback)} == set(PACKAGES) - {missing}


def test_importing_map_metrics_imports_no_lightning() -> None:
    code = "import sys, map_metrics; print([m for m in sys.modules if m.split('.')[0] in ('lightning', 'wandb')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_hooks_take_the_index_and_log_is_left_to_lightning() -> None:
    for hook in ("on_validation_batch_end", "on_test_batch_end"):
        assert inspect.signature(getattr(MAPCallback, hook)).parameters["dataloader_idx"].default == 0
    callback = MAPCallback(RetrievalMAP())
    assert not {"log", "log_dict"} & {*vars(MAPCallback), *vars(callback)}


# --- two ranks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "count"), [(1, 2), (2, 2), (3, 2), (11, 2), (11, 3)])
def test_ranks_equal_one_process(lightning: Any, tmp_path: Path, kind: str, n: int, count: int) -> None:
    metric, outputs = KINDS[kind]
    callbacks = [MAPCallback(metric()), recorder(lightning, tmp_path)]
    run = trainer(lightning, tmp_path, callbacks, **ranks(lightning, count))
    run.validate(model(lightning, outputs), loader(n), verbose=False)
    whole = prefixed("val", KINDS[kind].value(n))
    seen = agreed(tmp_path)
    assert seen["values"] == [whole]
    assert seen["metrics"] == scalars(whole)


class Varying(BatchSampler):
    """Batches of 1, 2, 3, ... samples."""

    def __iter__(self) -> Any:
        samples, size = list(self.sampler), 1
        while samples:
            yield samples[:size]
            samples, size = samples[size:], size + 1


def seeded() -> SubsetRandomSampler:
    return SubsetRandomSampler(range(2, 11), torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore:Your `test_dataloader`'s sampler has shuffling enabled")
def test_the_padding_of_every_sampler_is_left_out(pl: Any, tmp_path: Path) -> None:
    loaders = {
        "plain": loader(11),
        "shuffled": loader(11, shuffle=True),
        "even": loader(12),
        "whole": loader(11, batch_size=20),
        "custom": loader(11, sampler=seeded()),
        "batches": DataLoader(range(11), batch_sampler=Varying(SequentialSampler(range(11)), 2, False)),
        "last": loader(13, drop_last=True),  # two batches of three on each rank
    }
    run = trainer(pl, tmp_path, [MAPCallback(HashingMAPAtK()), recorder(pl, tmp_path)], **ranks(pl))
    run.test(model(pl, helpers.hashing), loaders, verbose=False)

    alone = MAPCallback(HashingMAPAtK())
    loaders |= {"custom": loader(11, sampler=range(2, 11)), "last": loader(12)}
    loaders["batches"] = loader(11)
    trainer(pl, tmp_path, [alone]).test(model(pl, helpers.hashing), loaders, verbose=False)
    assert agreed(tmp_path)["values"] == [alone.values]


def test_a_sampler_that_drops_instead_of_repeating(lightning: Any, tmp_path: Path) -> None:
    module = model(lightning, helpers.matrix)
    module.val_dataloader = lambda: loader(
        11, sampler=torch.utils.data.DistributedSampler(range(11), shuffle=False, drop_last=True)
    )
    settings = {"use_distributed_sampler": False, **ranks(lightning)}
    run = trainer(lightning, tmp_path, [MAPCallback(RetrievalMAP()), recorder(lightning, tmp_path)], **settings)
    run.validate(module, verbose=False)
    assert agreed(tmp_path)["metrics"] == {"val/map": KINDS["matrix"].value(10)["map"]}


def test_a_skipped_batch_keeps_its_place(lightning: Any, tmp_path: Path) -> None:
    feed = lambda outputs, batch, dataloader_idx: None if 4 in batch else outputs  # noqa: E731
    callbacks = [MAPCallback(RetrievalMAP(), feed=feed), recorder(lightning, tmp_path)]
    run = trainer(lightning, tmp_path, callbacks, **ranks(lightning))
    run.validate(model(lightning, helpers.matrix), loader(11, batch_size=2), verbose=False)
    # rank 0 has (0, 2), (4, 6), (8, 10), rank 1 (1, 3), (5, 7), (9, and 0 once more)
    metric = RetrievalMAP()
    metric.update(*list(helpers.matrix(torch.tensor([0, 2, 8, 10, 1, 3, 5, 7, 9])).values())[:2])
    first, second = records(tmp_path)
    assert first["metrics"] == second["metrics"] == {"val/map": float(metric.compute())}
    assert first["warnings"] == second["warnings"] == []


def test_every_argument_with_an_entry_per_sample_is_cut() -> None:
    scalar, long = torch.tensor(True), torch.arange(7)
    given = {
        "a": torch.arange(6).view(3, 2),
        "b": [1, 2, 3],
        "c": scalar,
        "d": long,
        "e": {1: 1, 2: 2, 3: 3},
        "f": None,
    }
    kept = first(given, 2)
    assert (kept["a"].tolist(), kept["b"]) == ([[0, 1], [2, 3]], [1, 2])
    assert all(kept[name] is given[name] for name in "cdef")


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(6))


@pytest.mark.parametrize(
    ("loaders", "outputs", "cause"),
    [
        (DataLoader(Stream(), 3), "matrix", "the loader of Stream has no DistributedSampler"),
        (loader(11, sampler=SubsetRandomSampler(range(11))), "matrix", "SubsetRandomSampler without a seeded `gen"),
        (loader(11), "flat_rows", "first argument has 18 entries for a batch of 3 samples"),
    ],
)
def test_where_samples_may_repeat_the_callback_says_so_once(
    lightning: Any, tmp_path: Path, loaders: Any, outputs: str, cause: str
) -> None:
    callbacks = [MAPCallback(RetrievalMAP()), recorder(lightning, tmp_path)]
    run = trainer(lightning, tmp_path, callbacks, max_epochs=2, **ranks(lightning))
    run.validate(model(lightning, getattr(helpers, outputs)), [loaders, loaders], verbose=False)
    first, second = records(tmp_path)
    said = [text for text in first["warnings"] if text.startswith("MAPCallback")]
    assert len(said) == 1
    assert cause in said[0]
    assert "Pass `ids`" in said[0]
    assert not [text for text in second["warnings"] if text.startswith("MAPCallback")]
    assert first["values"] == second["values"]  # whatever counts twice, the ranks agree


def test_ids_make_a_stream_exact(lightning: Any, tmp_path: Path) -> None:
    callbacks = [MAPCallback(RetrievalMAP()), recorder(lightning, tmp_path)]
    run = trainer(lightning, tmp_path, callbacks, **ranks(lightning))
    run.validate(model(lightning, helpers.matrix_ids), DataLoader(Stream(), 3), verbose=False)
    assert agreed(tmp_path)["metrics"] == {"val/map": KINDS["matrix"].value(6)["map"]}


def test_fit_on_two_ranks_with_monitors(pl: Any, tmp_path: Path) -> None:
    stop = pl.callbacks.EarlyStopping("val/map", mode="max", patience=1)
    save = pl.callbacks.ModelCheckpoint(tmp_path, monitor="val/map", mode="max")
    callbacks = [stop, MAPCallback(DetectionMAP()), save, recorder(pl, tmp_path)]
    settings = {"enable_checkpointing": True, "max_epochs": 5, **ranks(pl)}
    run = trainer(pl, tmp_path, callbacks, **settings)
    run.fit(model(pl, helpers.detection), TRAIN, loader(11))
    whole = prefixed("val", KINDS["detection"].value(11))
    assert agreed(tmp_path)["metrics"] == scalars(whole)
    assert run.current_epoch < 5
    best = torch.load(save.best_model_path, weights_only=True)["callbacks"]
    history = {key: [(1, value)] for key, value in scalars(whole).items()}  # two batches on each rank
    assert best["MAPCallback{'name': None}"] == {"best": scalars(whole), "history": history}


# --- the loggers, read back -------------------------------------------------------------------------------------------


def test_tensorboard_csv_and_wandb_hold_the_values(pl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    wandb = pytest.importorskip("wandb")
    for variable in ("WANDB_SILENT", "WANDB_DISABLE_CODE", "WANDB_DISABLE_GIT"):
        monkeypatch.setenv(variable, "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    board = pl.loggers.TensorBoardLogger(tmp_path, "board")
    table = pl.loggers.CSVLogger(tmp_path, "csv")
    cloud = pl.loggers.WandbLogger(save_dir=tmp_path, project="p", offline=True)
    run = trainer(pl, tmp_path, [MAPCallback(DetectionMAP())], logger=[board, table, cloud], max_epochs=2)
    run.fit(model(pl, helpers.detection), TRAIN, loader(11))
    wandb.finish()
    expected = scalars(prefixed("val", KINDS["detection"].value(11)))
    steps = [3, 7]  # the last of four batches, and of four more

    with (Path(table.log_dir) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == steps
    assert all({key: float(row[key]) for key in expected} == expected for row in rows)
    assert not [key for key in rows[0] if key.startswith("val/") and key not in expected]

    events = reader.EventAccumulator(board.log_dir).Reload()
    for key, value in expected.items():  # TensorBoard stores float32
        assert [(e.step, e.value) for e in events.Scalars(key)] == [(s, torch.tensor(value).item()) for s in steps]

    history = [row for (path,) in [tmp_path.glob("wandb/offline-run-*/*.wandb")] for row in helpers.wandb_history(path)]
    assert [row["trainer/global_step"] for row in history] == steps
    assert all({key: row[key] for key in expected} == expected for row in history)
