"""MAPReport in real Trainers: what it writes, where, and what stops it."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import callback_helpers as helpers
import pytest
import torch
from callback_helpers import KINDS, model, ranks, trainer
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.retrieval import RetrievalMAP as TheirMAP

from map_metrics import DetectionMAP, RetrievalMAP
from map_metrics.report_callback import MAPReport

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using `DistributedSampler` with the dataloaders"),
    pytest.mark.filterwarnings("ignore:.*use of fork.. may lead to deadlocks"),
]
TRAIN = DataLoader(range(8), 2)


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def pl(request: pytest.FixtureRequest) -> Any:
    """Each of the Lightning packages."""
    return pytest.importorskip(request.param)


@pytest.fixture
def lightning() -> Any:
    """One of them, where it makes no difference."""
    return pytest.importorskip("lightning.pytorch")


def loader(n: int) -> DataLoader:
    return DataLoader(range(n), batch_size=3)


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def pair(*folders: str) -> list[str]:
    return [f"{folder}/{name}" for folder in folders for name in ("report.html", "result.json")]


def told(kind: str, n: int, **kwargs: Any) -> dict[str, Any]:
    """What `to_dict` says of the first n samples, through JSON."""
    metric = KINDS[kind].metric(**kwargs)
    given = KINDS[kind].outputs(torch.arange(n))
    given.pop("loss", None)
    metric.update(**given)
    return through_json(metric.result().to_dict())


def through_json(value: Any) -> Any:
    """Tuples become lists, and what is not finite nothing."""
    if isinstance(value, dict):
        return {key: through_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [through_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def strictly(path: Path) -> Any:
    """JSON without the words Infinity and NaN, which are none."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


@pytest.mark.parametrize("kind", ["matrix_ids", "hashing", "detection"])
def test_validate_and_test_write_the_result(pl: Any, tmp_path: Path, kind: str) -> None:
    metric, outputs = KINDS[kind]
    callback = MAPReport(metric())
    run = trainer(pl, tmp_path, [callback])
    run.validate(model(pl, outputs), loader(11), verbose=False)
    folder = tmp_path / "reports"
    assert files(tmp_path) == pair("reports/val")
    assert strictly(folder / "val/result.json") == told(kind, 11)
    assert callback.pages == {"val": folder / "val/report.html"}

    run.test(model(pl, outputs), loader(9), verbose=False)
    assert files(tmp_path) == pair("reports/test", "reports/val")
    assert strictly(folder / "test/result.json") == told(kind, 9)
    assert strictly(folder / "val/result.json") == told(kind, 11)
    value = told(kind, 9)["value"]
    assert callback.values == {
        f"test/{key}": number for key, number in (value if isinstance(value, dict) else {"map": value}).items()
    }
    page = (folder / "test/report.html").read_text(encoding="utf-8")
    assert "<title>test, step 0</title>" in page


def test_a_fit_writes_the_last_validation_and_not_the_sanity_check(pl: Any, tmp_path: Path) -> None:
    metric, outputs = KINDS["matrix"]
    seen: list[list[str]] = []

    class Look(pl.Callback):
        def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append(files(tmp_path))

    run = trainer(pl, tmp_path, [MAPReport(metric()), Look()], max_epochs=2)
    run.fit(model(pl, outputs), TRAIN, loader(7))
    assert seen == [[]]
    assert files(tmp_path) == pair("reports/val")
    assert strictly(tmp_path / "reports/val/result.json") == told("matrix", 7)
    page = (tmp_path / "reports/val/report.html").read_text(encoding="utf-8")
    assert "<title>val, step 8</title>" in page  # two epochs of four steps


@pytest.mark.parametrize("logger", ["CSVLogger", "TensorBoardLogger"])
def test_reports_stand_beside_the_logs(lightning: Any, tmp_path: Path, logger: str) -> None:
    metric, outputs = KINDS["matrix"]
    logs = getattr(lightning.loggers, logger)(tmp_path, name="run", version=3)
    callback = MAPReport(metric())
    run = trainer(lightning, tmp_path / "root", [callback], logger=logs)
    run.validate(model(lightning, outputs), loader(5), verbose=False)
    assert set(files(tmp_path)) >= set(pair("run/version_3/reports/val"))


def test_loaders_and_names_have_folders_of_their_own(lightning: Any, tmp_path: Path) -> None:
    metric, outputs = KINDS["matrix"]
    callback = MAPReport(metric(), dirpath=tmp_path / "out" / "here", name="../a b")
    run = trainer(lightning, tmp_path, [callback])
    run.test(model(lightning, outputs), {"photos": loader(5), "..": loader(4), "a:b": loader(3)}, verbose=False)
    names = ("%2E%2E", "a%3Ab", "photos")
    assert files(tmp_path) == pair(*(f"out/here/test/%2E%2E/a b/{name}" for name in names))
    assert set(callback.pages) == {f"test/../a b/{name}" for name in ("..", "a:b", "photos")}
    for name, n in (("photos", 5), ("..", 4), ("a:b", 3)):
        page = callback.pages[f"test/../a b/{name}"]
        assert strictly(page.with_name("result.json")) == told("matrix", n)


def test_two_types_of_overlap_are_two_pages(lightning: Any, tmp_path: Path) -> None:
    def outputs(sample: torch.Tensor) -> dict[str, Any]:
        given = helpers.detection(sample)
        for image in (*given["preds"], *given["target"]):
            x, y = torch.meshgrid(torch.arange(130), torch.arange(130), indexing="xy")
            left, top, right, bottom = (edge[:, None, None] for edge in image["boxes"].T)
            image["masks"] = (left <= x) & (x < right) & (top <= y) & (y < bottom)
        return given

    callback = MAPReport(DetectionMAP(iou_type=("bbox", "segm")))
    trainer(lightning, tmp_path, [callback]).validate(model(lightning, outputs), loader(4), verbose=False)
    assert files(tmp_path) == pair("reports/val/bbox", "reports/val/segm")
    for iou_type in ("bbox", "segm"):
        value = strictly(tmp_path / f"reports/val/{iou_type}/result.json")["value"]
        assert value["map"] == callback.values[f"val/{iou_type}_map"]
    assert "<title>val, step 0, segm</title>" in callback.pages["val/segm"].read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["matrix", "hashing_ids", "detection"])
def test_two_ranks_write_what_one_process_writes(lightning: Any, tmp_path: Path, kind: str) -> None:
    metric, outputs = KINDS[kind]
    callback = MAPReport(metric(), dirpath=tmp_path / "reports")

    class Look(lightning.Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            (tmp_path / f"{trainer.global_rank} {len(callback.pages)}").touch()

    run = trainer(lightning, tmp_path, [callback, Look()], **ranks(lightning))
    run.validate(model(lightning, outputs), loader(11), verbose=False)
    assert files(tmp_path) == ["0 1", "1 0", *pair("reports/val")]  # the second rank has written nothing
    found, expected = strictly(tmp_path / "reports/val/result.json"), told(kind, 11)
    if kind == "hashing_ids":  # the sample that the sampler repeats is seen, and left out by its id
        expected |= {"num_duplicates": 1, "num_duplicate_queries": 1}
    if kind == "matrix":  # without ids the queries come rank by rank
        for result in (found, expected):
            for query in result["queries"]:
                del query["query"]
            result["queries"].sort(key=repr)
    assert found == expected


def test_an_area_without_a_bound_is_null(lightning: Any, tmp_path: Path) -> None:
    callback = MAPReport(DetectionMAP(protocol="voc2012"))
    run = trainer(lightning, tmp_path, [callback])
    run.validate(model(lightning, helpers.detection), loader(5), verbose=False)
    found = strictly(tmp_path / "reports/val/result.json")
    assert found["protocol"]["areas"] == [["all", 0.0, None]]
    assert found == told("detection", 5, protocol="voc2012")


def test_what_cannot_be_written_is_a_warning(pl: Any, tmp_path: Path) -> None:
    metric, outputs = KINDS["matrix"]
    (tmp_path / "file").write_text("in the way")
    callback = MAPReport(metric(), dirpath=tmp_path / "file")
    run = trainer(pl, tmp_path, [callback])
    with pytest.warns(
        UserWarning, match=r"MAPReport could not write the report of val into .*file.*(Exists|Directory)"
    ):
        (values,) = run.validate(model(pl, outputs), loader(5), verbose=False)
    assert values == {"val/map": told("matrix", 5)["value"]}
    assert files(tmp_path) == ["file"]
    assert callback.pages == {}


def test_a_logger_in_a_remote_place_needs_a_dirpath(lightning: Any, tmp_path: Path, monkeypatch: Any) -> None:
    metric, outputs = KINDS["matrix"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lightning.Trainer, "log_dir", "s3://bucket/logs")
    run = trainer(lightning, tmp_path, [MAPReport(metric())])
    with pytest.warns(UserWarning, match=r"into s3://bucket/logs: .* pass `dirpath=`"):
        run.validate(model(lightning, outputs), loader(5), verbose=False)
    assert files(tmp_path) == []


def test_a_loader_that_the_feed_skips_has_no_page(lightning: Any, tmp_path: Path) -> None:
    metric, outputs = KINDS["matrix"]
    callback = MAPReport(metric(), feed=lambda given, batch, index: None if index == 0 else given)
    run = trainer(lightning, tmp_path, [callback])
    run.validate(model(lightning, outputs), [loader(5), loader(4)], verbose=False)
    assert files(tmp_path) == pair("reports/val/1")


def test_a_fast_dev_run_writes_nothing(lightning: Any, tmp_path: Path) -> None:
    metric, outputs = KINDS["matrix"]
    run = trainer(lightning, tmp_path, [MAPReport(metric())], fast_dev_run=True)
    run.fit(model(lightning, outputs), TRAIN, loader(7))
    assert files(tmp_path) == []


def test_padding_is_told_apart_without_a_warning(lightning: Any, tmp_path: Path) -> None:
    """The result is gathered once more: the metric must know by then that no sample is repeated."""
    metric, outputs = KINDS["matrix"]
    run = trainer(lightning, tmp_path, [MAPReport(metric())], **ranks(lightning))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message="Using `DistributedSampler` with the dataloaders")
        run.validate(model(lightning, outputs), loader(7), verbose=False)
    assert strictly(tmp_path / "reports/val/result.json")["num_queries"] == 7


def test_checkpoints_keep_the_best_values(lightning: Any, tmp_path: Path) -> None:
    metric, outputs = KINDS["matrix"]
    run = trainer(lightning, tmp_path, [MAPReport(metric())])
    run.fit(model(lightning, outputs), TRAIN, loader(7))
    run.save_checkpoint(tmp_path / "last.ckpt")
    fresh = MAPReport(metric())
    resumed = trainer(lightning, tmp_path, [fresh], max_epochs=1)
    resumed.fit(model(lightning, outputs), TRAIN, loader(7), ckpt_path=tmp_path / "last.ckpt")
    assert fresh.best == {"val/map": told("matrix", 7)["value"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": TheirMAP()}, "`metric` must be a metric of map_metrics, got RetrievalMAP"),
        ({"metric": "map"}, "`metric` must be a torchmetrics.Metric, got str"),
        ({"metric": RetrievalMAP(), "dirpath": 3}, "`dirpath` must be None or a path, got 3"),
        ({"metric": RetrievalMAP(), "name": ""}, "`name` must be None or a string that is not empty"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MAPReport(**arguments)


def test_the_readers_names_are_escaped(lightning: Any, tmp_path: Path) -> None:
    data = TensorDataset(torch.rand(4, 5), torch.rand(4, 5) < 0.5)
    callback = MAPReport(RetrievalMAP(), name="<script>x")
    step = model(lightning, lambda batch: {"preds": batch[0], "target": batch[1]})
    trainer(lightning, tmp_path, [callback]).validate(step, DataLoader(data, 2), verbose=False)
    (page,) = callback.pages.values()
    assert page.parent.name == "%3Cscript%3Ex"
    assert "<script>x" not in page.read_text(encoding="utf-8")
