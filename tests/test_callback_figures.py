"""What MAPCallback logs beside the value: scalars, figures, tables; and queries and gallery from two loaders."""

from __future__ import annotations

import csv
import itertools
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import callback_helpers as helpers
import numpy as np
import pytest
import torch
from callback_helpers import KINDS, TRAIN, Constant, agreed, loader, model, prefixed, ranks, recorder, records, trainer
from torch.utils.data import DataLoader
from torchmetrics import Metric

from map_metrics import DetectionMAP, HashingMAPAtK, RetrievalMAP
from map_metrics.callbacks import MAPCallback

PACKAGES = ["lightning.pytorch", "pytorch_lightning"]

pytestmark = [
    # what Lightning says of samplers that repeat is what the callback deals with
    pytest.mark.filterwarnings("ignore:Using `DistributedSampler` with the dataloaders"),
    pytest.mark.filterwarnings("ignore:.*use of fork.. may lead to deadlocks"),
]


@pytest.fixture(params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    """Each of the Lightning packages."""
    return pytest.importorskip(request.param)


@pytest.fixture
def lightning() -> Any:
    """One of them, where it makes no difference."""
    return pytest.importorskip("lightning.pytorch")


# --- extra, figures, tables -------------------------------------------------------------------------------------------


def files(folder: Path) -> list[str]:
    """What lies there besides the logger's own files, by relative path."""
    own = {"metrics.csv", "hparams.yaml"}
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*") if path.name not in own)


def steps(folder: Path) -> list[int]:
    """At which a CSVLogger logged the mAP."""
    with (folder / "metrics.csv").open() as file:
        return [int(row["step"]) for row in csv.DictReader(file) if row["val/map"]]


def test_extra_of_rankings(pl: Any, tmp_path: Path) -> None:
    extra = ["chance", "precision@2", "recall@3"]
    callback = MAPCallback(RetrievalMAP(), extra=extra)
    run = trainer(pl, tmp_path, [callback])

    def outputs(sample: torch.Tensor) -> dict[str, Any]:
        given = helpers.matrix_ids(sample)
        return {**given, "target": given["target"] & (sample != 3)[:, None]}  # query 3 has no relevant item

    (seen,) = run.validate(model(pl, outputs), loader(11), verbose=False)
    given = outputs(torch.arange(11))
    precision, recall, chance = [], [], []
    for scores, target in zip(given["preds"].tolist(), given["target"].tolist(), strict=True):
        # the mean over all orders of tied documents, by brute force
        orders = [sorted(order, key=lambda i: -scores[i]) for order in itertools.permutations(range(6))]
        hits = [[target[i] for i in order] for order in orders]
        precision.append(np.mean([sum(row[:2]) / 2 for row in hits]))
        recall.append(np.mean([sum(row[:3]) / max(sum(row), 1) for row in hits]))
        values = [
            sum(sum(row[: i + 1]) / (i + 1) for i in range(6) if row[i]) / max(sum(row), 1)
            for row in set(itertools.permutations(target))
        ]
        chance.append(np.mean(values))
    whole = RetrievalMAP()
    whole.update(given["preds"], given["target"], ids=torch.arange(11))
    expected = {"map": float(whole.compute()), "chance": np.mean(chance)}
    expected |= {"precision@2": np.mean(precision), "recall@3": np.mean(recall)}
    assert seen == {f"val/{key}": pytest.approx(value, abs=1e-12) for key, value in expected.items()}
    assert seen["val/map"] == expected["map"]


def test_extra_leaves_out_the_queries_that_the_metric_skips(lightning: Any, tmp_path: Path) -> None:
    metric = RetrievalMAP(empty_target_action="skip")
    callback = MAPCallback(metric, extra=("precision@1",))
    outputs = {"preds": torch.tensor([[2.0, 1], [2.0, 1], [2.0, 1]]), "target": torch.tensor([[1, 0], [0, 0], [0, 1]])}
    trainer(lightning, tmp_path, [callback]).validate(model(lightning, lambda batch: outputs), loader(3), verbose=False)
    assert callback.values == {"val/map": 0.75, "val/precision@1": 0.5}


def test_extra_of_hashing_and_of_detection(lightning: Any, tmp_path: Path) -> None:
    callbacks = [
        MAPCallback(HashingMAPAtK(), name="hash", extra=["precision_within@4"], feed=lambda out, batch, i: out[0]),
        MAPCallback(
            DetectionMAP(class_names=["cat", "dog"]), name="boxes", extra=["classes"], feed=lambda out, batch, i: out[1]
        ),
    ]
    module = model(lightning, lambda batch: (helpers.hashing(batch), helpers.detection(batch)))
    (seen,) = trainer(lightning, tmp_path, callbacks).validate(module, loader(12), verbose=False)

    given = helpers.hashing(torch.arange(12))
    rows = list(zip(given["codes"], given["labels"].tolist(), given["query"].tolist(), strict=True))
    precision = []
    for code, label, is_query in rows:
        if is_query:
            near = [other == label for c, other, q in rows if not q and int((c != code).sum()) <= 4]
            precision.append(sum(near) / len(near) if near else 0)
    assert seen["val/hash/precision_within@4"] == pytest.approx(np.mean(precision))

    whole = KINDS["detection"].value(12, class_metrics=True)
    per_class = dict(zip(("val/boxes/ap/cat", "val/boxes/ap/dog"), whole["map_per_class"].tolist(), strict=True))
    assert {key: value for key, value in seen.items() if "/ap/" in key} == pytest.approx(per_class)
    assert seen["val/boxes/map"] == whole["map"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_asked_for_besides_leaves_the_values_as_they_are(lightning: Any, tmp_path: Path, kind: str) -> None:
    callback = MAPCallback(KINDS[kind].metric(), figures=True, tables=True)
    board = lightning.loggers.CSVLogger(tmp_path)
    run = trainer(lightning, tmp_path, [callback], logger=board)
    run.validate(model(lightning, KINDS[kind].outputs), loader(11), verbose=False)
    assert callback.values == prefixed("val", KINDS[kind].value(11))
    names = {
        "hash": "ap_per_query hamming_radius pr_curve worst_queries",
        "dete": "ap_per_class classes pr_curve worst_images",
    }
    expected = names.get(kind[:4], "ap_per_query pr_curve worst_queries").split()
    assert [name.partition("_step0")[0] for name in files(Path(board.log_dir))] == [f"val/{name}" for name in expected]


def two_optimizers(pl: Any) -> Any:
    """Both step for every batch, so that `global_step` counts twice."""
    module = model(pl, helpers.matrix)
    module.automatic_optimization = False

    def training_step(batch: torch.Tensor, batch_idx: int) -> None:
        for optimizer in module.optimizers():
            loss = module.layer(batch[:, None].float()).square().mean()
            optimizer.zero_grad()
            module.manual_backward(loss)
            optimizer.step()

    module.training_step = training_step
    module.configure_optimizers = lambda: [torch.optim.SGD(module.parameters(), 1e-4) for _ in range(2)]
    return module


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [3, 7]),
        ({"accumulate_grad_batches": 2}, [1, 3]),
        ({"val_check_interval": 0.5}, [1, 3, 5, 7]),
        ({"check_val_every_n_epoch": 2}, [7]),
        ({"precision": "bf16-true"}, [3, 7]),
        ({"limit_val_batches": 1, "num_sanity_val_steps": 2}, [3, 7]),
        ("two optimizers", [3, 7]),
    ],
    ids=str,
)
def test_figures_and_tables_stand_at_the_step_of_the_scalars(
    pl: Any, tmp_path: Path, settings: Any, expected: list[int]
) -> None:
    module = two_optimizers(pl) if settings == "two optimizers" else model(pl, helpers.matrix)
    settings = {} if settings == "two optimizers" else settings
    logger = pl.loggers.CSVLogger(tmp_path)
    callback = MAPCallback(RetrievalMAP(), figures=True, tables=True)
    trainer(pl, tmp_path, [callback], logger=logger, max_epochs=2, **settings).fit(module, TRAIN, loader(11))
    folder = Path(logger.log_dir)
    assert steps(folder) == expected
    names = ("val/ap_per_query_step{}.png", "val/pr_curve_step{}.png", "val/worst_queries_step{}.csv")
    assert files(folder) == sorted(name.format(step) for name in names for step in expected)
    assert callback.history == {"val/map": [(step, callback.values["val/map"]) for step in expected]}


def test_several_loaders_and_stages_have_their_own_figures(lightning: Any, tmp_path: Path) -> None:
    logger = lightning.loggers.CSVLogger(tmp_path)
    callback = MAPCallback(RetrievalMAP(), name="x", figures=True)
    run, module = trainer(lightning, tmp_path, [callback], logger=logger), model(lightning, helpers.matrix)
    run.validate(module, {"day": loader(5), "night": loader(6)}, verbose=False)
    run.test(module, loader(5), verbose=False)
    stages = ["test/x", "val/x/day", "val/x/night"]
    expected = [f"{stage}/{name}_step0.png" for stage in stages for name in ("ap_per_query", "pr_curve")]
    assert files(Path(logger.log_dir)) == expected


def test_a_fast_run_for_development_leaves_nothing(lightning: Any, tmp_path: Path) -> None:
    logger = lightning.loggers.CSVLogger(tmp_path)
    callback = MAPCallback(DetectionMAP(), figures=True, tables=True)
    run = trainer(lightning, tmp_path, [callback], logger=logger, fast_dev_run=True)
    run.fit(model(lightning, helpers.detection), TRAIN, loader(11))
    assert callback.values == prefixed("val", KINDS["detection"].value(3))
    assert list(tmp_path.rglob("*.*")) == []


def broken(what: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Break something on the way to a figure; returns what must be said of it."""
    if what == "matplotlib":
        for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
            monkeypatch.setitem(sys.modules, name, None)
        return r'could not log val/pr_curve: ImportError: Pictures need matplotlib: pip install "torchmetrics-map\[plot'
    if what == "disk":
        monkeypatch.setattr(Path, "write_bytes", lambda path, content: 1 / 0)
        return "could not log val/pr_curve to CSVLogger: ZeroDivisionError: division by zero"
    monkeypatch.setattr("map_metrics.views.plots.curves", lambda result: 1 / 0)
    return "could not log val: figures: ZeroDivisionError: division by zero"


@pytest.mark.parametrize("what", ["matplotlib", "disk", "view"])
def test_a_figure_that_fails_is_a_warning(
    lightning: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    logger = lightning.loggers.CSVLogger(tmp_path)
    callback = MAPCallback(RetrievalMAP(), figures=True, tables=True)
    run = trainer(lightning, tmp_path, [callback], logger=logger, max_epochs=2)
    message = broken(what, monkeypatch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.fit(model(lightning, helpers.matrix), TRAIN, loader(11))
    assert run.current_epoch == 2
    said = [str(warning.message) for warning in caught if "could not log" in str(warning.message)]
    assert re.search(message, said[0])
    assert len(said) == len(set(said)) == (1 if what == "view" else 2)  # of each figure once, not in each epoch
    assert files(Path(logger.log_dir)) == ["val/worst_queries_step3.csv", "val/worst_queries_step7.csv"]
    assert steps(Path(logger.log_dir)) == [3, 7]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"extra": ["map"]}, r"`extra` must hold names .* got 'map'; RetrievalMAP has \['chance', 'precision@K', 'rec"),
        ({"extra": ["precision@0"]}, "got 'precision@0'"),
        ({"extra": ["precision_within@2"]}, "got 'precision_within@2'"),
        ({"extra": "chance"}, "`extra` must be a sequence of names, got 'chance'"),
        ({"extra": [3]}, "`extra` must hold names that the metric has, got 3"),
        ({"metric": DetectionMAP(), "extra": ["chance"]}, r"got 'chance'; DetectionMAP has \['classes'\]"),
        ({"metric": Constant(0.5), "extra": ["chance"]}, r"Constant has \[\]"),
        ({"figures": 1}, "`figures` must be True or False, got 1"),
        ({"tables": "yes"}, "`tables` must be True or False, got 'yes'"),
        ({"metric": Constant(0.5), "figures": True}, "`figures` and `tables` need a metric of this package"),
        ({"query_loader": "q", "gallery_loader": "g"}, "need a metric whose `update` takes `query`"),
        ({"metric": HashingMAPAtK(), "query_loader": 0}, "names or places of two dataloaders, got 0 and None"),
        ({"metric": HashingMAPAtK(), "query_loader": 1, "gallery_loader": "1"}, "of two dataloaders, got 1 and '1'"),
        ({"metric": HashingMAPAtK(), "query_loader": 1.5, "gallery_loader": 0}, "of two dataloaders, got 1.5 and 0"),
    ],
)
def test_what_cannot_be_shown_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MAPCallback(**{"metric": RetrievalMAP(), **arguments})


# --- queries and gallery from two loaders -----------------------------------------------------------------------------


def items(sample: torch.Tensor) -> dict[str, Any]:
    """Codes and labels; which of them are queries the loader says."""
    return {key: value for key, value in helpers.hashing(sample).items() if key != "query"}


def searched(queries: range, gallery: range, metric: Metric | None = None) -> float:
    metric = HashingMAPAtK() if metric is None else metric
    metric.update(**items(torch.tensor(queries)), query=True)
    metric.update(**items(torch.tensor(gallery)), query=False)
    return float(metric.compute())


QUERIES, GALLERY = range(7), range(7, 20)


@pytest.mark.parametrize(
    ("loaders", "names"),
    [
        ({"query": DataLoader(QUERIES, 3), "gallery": DataLoader(GALLERY, 4)}, ("query", "gallery")),
        ([DataLoader(GALLERY, 4), DataLoader(QUERIES, 3)], (1, 0)),
        ({"noise": loader(5), "a": [DataLoader(GALLERY, 4), DataLoader(QUERIES, 3)]}, ("a/1", "a/0")),
    ],
)
def test_queries_and_gallery_from_two_loaders(pl: Any, tmp_path: Path, loaders: Any, names: tuple[Any, Any]) -> None:
    callback = MAPCallback(HashingMAPAtK(), query_loader=names[0], gallery_loader=names[1])
    run, module = trainer(pl, tmp_path, [callback], num_sanity_val_steps=1), model(pl, items)
    whole = searched(QUERIES, GALLERY)
    run.validate(module, loaders, verbose=False)
    assert callback.values == {"val/map": whole}
    run.fit(module, TRAIN, loaders)
    assert callback.values == {"val/map": whole}
    run.test(module, loaders, verbose=False)
    assert callback.values == {"test/map": whole}


def test_two_searches_over_one_set_of_loaders(lightning: Any, tmp_path: Path) -> None:
    loaders = {"image": DataLoader(QUERIES, 3), "text": DataLoader(GALLERY, 4)}
    callbacks = [
        MAPCallback(HashingMAPAtK(), name="i2t", query_loader="image", gallery_loader="text"),
        MAPCallback(HashingMAPAtK(), name="t2i", query_loader="text", gallery_loader="image"),
    ]
    trainer(lightning, tmp_path, callbacks).validate(model(lightning, items), loaders, verbose=False)
    assert callbacks[0].values == {"val/i2t/map": searched(QUERIES, GALLERY)}
    assert callbacks[1].values == {"val/t2i/map": searched(GALLERY, QUERIES)}


def test_the_loaders_say_which_are_queries_whatever_the_step_returns(lightning: Any, tmp_path: Path) -> None:
    callback = MAPCallback(HashingMAPAtK(), query_loader=0, gallery_loader=1)
    loaders = [DataLoader(QUERIES, 3), DataLoader(GALLERY, 4)]
    trainer(lightning, tmp_path, [callback]).validate(model(lightning, helpers.hashing), loaders, verbose=False)
    assert callback.values == {"val/map": searched(QUERIES, GALLERY)}


def test_a_loader_that_is_not_there_is_named(lightning: Any, tmp_path: Path) -> None:
    callback = MAPCallback(HashingMAPAtK(), query_loader="query", gallery_loader="gallery")
    run = trainer(lightning, tmp_path, [callback])
    with pytest.raises(ValueError, match=r"got \['query', 'gallery'\]; those of val are \['query', 'base'\]"):
        run.validate(model(lightning, items), {"query": loader(3), "base": loader(4)}, verbose=False)


def test_queries_and_gallery_on_two_ranks(pl: Any, tmp_path: Path) -> None:
    """7 queries and 13 items: the sampler repeats one of each."""
    callback = MAPCallback(HashingMAPAtK(), query_loader="query", gallery_loader="gallery", extra=["chance"])
    loaders = {"query": DataLoader(QUERIES, 3), "gallery": DataLoader(GALLERY, 4)}
    run = trainer(pl, tmp_path, [callback, recorder(pl, tmp_path)], **ranks(pl))
    run.validate(model(pl, items), loaders, verbose=False)
    assert agreed(tmp_path)["metrics"]["val/map"] == searched(QUERIES, GALLERY)


# --- two ranks, one package -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "count"), [("matrix_ids", 2), ("hashing_ids", 3), ("detection_ids", 2)])
def test_figures_of_several_ranks_are_those_of_one_process(
    lightning: Any, tmp_path: Path, kind: str, count: int
) -> None:
    """Drawn once, by rank 0, at the step of the scalars."""
    folders = []
    for name, settings in (("one", {}), ("more", ranks(lightning, count))):
        logger = lightning.loggers.CSVLogger(tmp_path, name, version=0)
        extra = {"m": ["chance", "recall@2"], "h": ["precision@3"], "d": ["classes"]}[kind[0]]
        callback = MAPCallback(KINDS[kind].metric(), figures=True, tables=True, extra=extra)
        callbacks = [callback, recorder(lightning, tmp_path / name)]
        run = trainer(lightning, tmp_path, callbacks, logger=logger, **settings)
        run.validate(model(lightning, KINDS[kind].outputs), loader(11), verbose=False)
        folders.append(Path(logger.log_dir))
    one, more = folders
    assert files(one) == files(more) != []
    for name in files(one):
        assert (one / name).read_bytes() == (more / name).read_bytes(), name
    alone, *_ = records(tmp_path / "one")
    assert agreed(tmp_path / "more")["values"] == alone["values"]


@pytest.mark.parametrize("missing", PACKAGES)
def test_a_run_with_the_other_package_not_installed(tmp_path: Path, missing: str) -> None:
    pytest.importorskip("lightning.pytorch")
    pytest.importorskip("pytorch_lightning")
    (other,) = set(PACKAGES) - {missing}
    code = f"""
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {str(Path(__file__).parent)!r})
sys.modules.update({{name: None for name in ({missing!r}, {missing.partition(".")[0]!r}, "lightning.fabric")[: 1 if
    {missing!r} == "pytorch_lightning" else 3]}})
import importlib
from pathlib import Path
import callback_helpers as helpers
from torch.utils.data import DataLoader
from map_metrics import RetrievalMAP
from map_metrics.callbacks import MAPCallback
pl, callback = importlib.import_module({other!r}), MAPCallback(RetrievalMAP(), figures=True)
logger = pl.loggers.CSVLogger({str(tmp_path)!r})
run = helpers.trainer(pl, Path({str(tmp_path)!r}), [callback], logger=logger)
run.validate(helpers.model(pl, helpers.matrix), DataLoader(range(11), 3), verbose=False)
print(callback.values, len(list(Path(logger.log_dir).glob("val/*.png"))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == f"{{'val/map': {KINDS['matrix'].value(11)['map']}}} 2"
