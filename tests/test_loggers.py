"""Scalars, figures and tables in every logger, read back from what is on the disk."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import callback_helpers as helpers
import numpy as np
import pytest
import torch
from callback_helpers import model, trainer
from torch.utils.data import DataLoader

from map_metrics import DetectionMAP, HashingMAPAtK
from map_metrics.callbacks import MAPCallback
from map_metrics.loggers import log_figure, log_result, log_scalars, log_table
from map_metrics.plots import plot_radius
from map_metrics.views import pictures, tables

PACKAGES = ("lightning", "pytorch_lightning", "matplotlib", "tensorboard", "wandb", "mlflow")
if not all(map(importlib.util.find_spec, PACKAGES)):  # to import them all takes seconds
    pytest.skip("the extra `test` is not installed", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),  # MLflow with SQLAlchemy 2.1
    pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated"),  # TensorBoard's dashboard
    pytest.mark.filterwarnings("ignore:.*use of fork.. may lead to deadlocks"),
]
STEPS = [3, 7]  # the last of four batches, and of four more
NAMES = {0: "cat", 1: "a small dog"}


def result(n: int = 11) -> Any:
    metric = DetectionMAP(class_names=NAMES)
    metric.update(*helpers.detection(torch.arange(n)).values())
    return metric.result()


def table_rows() -> list[dict[str, Any]]:
    return result().per_class()


def images() -> list[dict[str, Any]]:
    """Each image by a metric of its own."""
    rows = []
    for image in range(11):
        metric = DetectionMAP(class_names=NAMES)
        metric.update(**helpers.detection(torch.tensor([image])))
        (row,) = metric.result().per_image()
        rows.append({**row, "image": image, "ap": pytest.approx(float(metric.compute()["map"]), abs=1e-12)})
    return rows


TABLES = ("val/classes", "val/worst_images")


def check_table(key: str, found: list[dict[str, Any]]) -> None:
    """It holds what it should."""
    if key == "val/classes":
        assert found == table_rows()
    else:
        ap = [row["ap"] for row in found]
        assert ap == sorted(ap)
        assert sorted(found, key=lambda row: row["image"]) == images()


class Written(NamedTuple):
    """The folders and names of a run with four loggers."""

    board: Path
    csv: Path
    wandb: Path
    mlflow: tuple[str, str]  # where, and which run
    callback: MAPCallback


@pytest.fixture(scope="module")
def flow_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty database of MLflow, which takes seconds to make."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture(scope="module", params=["lightning.pytorch", "pytorch_lightning"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, flow_uri: str) -> Written:
    """Two epochs of a fit with figures and tables, by each Lightning package."""
    import wandb

    pl, folder = importlib.import_module(request.param), tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The ``noload`` loader strategy")
        for variable in ("WANDB_SILENT", "WANDB_DISABLE_CODE", "WANDB_DISABLE_GIT"):
            patch.setenv(variable, "true")
        patch.setenv("WANDB_CONSOLE", "off")
        board = pl.loggers.TensorBoardLogger(folder, "board")
        files = pl.loggers.CSVLogger(folder, "csv")
        cloud = pl.loggers.WandbLogger(save_dir=folder, project="p", offline=True)
        flow = pl.loggers.MLFlowLogger(
            request.param, tracking_uri=flow_uri, artifact_location=(folder / "artifacts").as_uri()
        )
        loggers = [board, files, cloud, flow]
        settings = {"figures": True, "tables": True, "extra": ["classes"]}
        callback = MAPCallback(DetectionMAP(class_names=NAMES), **settings)
        run = trainer(pl, folder, [callback], logger=loggers, max_epochs=2)
        run.fit(model(pl, helpers.detection), DataLoader(range(8), 2), DataLoader(range(11), 3))
        wandb.finish()
    (offline,) = folder.glob("wandb/offline-run-*")
    return Written(Path(board.log_dir), Path(files.log_dir), offline, (flow_uri, flow.run_id), callback)


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), {"images": 0, "tensors": 0}).Reload()


def image(content: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def drawn(figure: Any) -> np.ndarray:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return image(buffer.getvalue())


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    """Key -> the picture, drawn here."""
    return {f"val/{picture.name}": drawn(picture.draw()[0]) for picture in pictures(result())}


CURVES = ["IoU 0.50 to 0.95", "IoU 0.50", "IoU 0.75", "cat", "a small dog"]


def precision(name: str) -> np.ndarray:
    """The line of this name by another way: from the table that `compute` returns."""
    metric = DetectionMAP(extended_summary=True)
    metric.update(*helpers.detection(torch.arange(11)).values())
    table = metric.compute()["precision"].numpy()[..., 0, 2]  # [thresholds, recalls, classes]
    part = {CURVES[0]: table, CURVES[1]: table[:1], CURVES[2]: table[5:6], "cat": table[..., :1]}
    return part.get(name, table[..., 1:]).mean((0, 2))


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def test_tensorboard_has_the_pictures_at_the_steps_of_the_scalars(
    written: Written, expected: dict[str, np.ndarray]
) -> None:
    found = events(written.board)
    assert [event.step for event in found.Scalars("val/map")] == STEPS
    assert set(found.Tags()["images"]) == set(expected) == {"val/pr_curve", "val/ap_per_class"}
    for key, picture in expected.items():
        seen = found.Images(key)
        assert [event.step for event in seen] == STEPS
        for event in seen:
            assert np.array_equal(image(event.encoded_image_string), picture)


@pytest.mark.parametrize("name", CURVES)
def test_tensorboard_shows_the_whole_curves(written: Written, name: str) -> None:
    """By the dashboard's own reader, which cuts off points without counts."""
    from tensorboard.plugins.pr_curve.pr_curves_plugin import PrCurvesPlugin
    from tensorboard.util.tensor_util import make_ndarray

    seen = events(written.board).Tensors(f"val/pr_curve/{name}")
    assert [event.step for event in seen] == STEPS
    entry = PrCurvesPlugin._make_pr_entry(None, 3, 0.0, make_ndarray(seen[0].tensor_proto))
    np.testing.assert_allclose(entry["recall"], np.linspace(0, 1, 101)[::-1], atol=1e-7)
    np.testing.assert_allclose(entry["precision"], precision(name)[::-1], atol=1e-6)
    relevant = [hits + missed for hits, missed in zip(entry["true_positives"], entry["false_negatives"], strict=True)]
    assert set(relevant) == {10_000}
    for r, p, hits, false in zip(
        *(entry[k] for k in ("recall", "precision", "true_positives", "false_positives")), strict=True
    ):
        assert hits / 10_000 == pytest.approx(r, abs=1e-4)  # the counts say what the curve says
        if r > 0:
            assert hits / (hits + false) == pytest.approx(p, abs=5e-3)


def test_tensorboard_has_the_table_as_text(written: Written) -> None:
    (first, second) = events(written.board).Tensors("val/classes/text_summary")
    assert [first.step, second.step] == STEPS
    text = first.tensor_proto.string_val[0].decode()
    header, rule, *lines = text.splitlines()
    assert header == "| label | name | ap | ap_50 | ar | ground_truths | detections | unjudged |"
    assert set(rule) == set("| -")
    assert [line.count("|") for line in lines] == [9, 9]
    assert [line.split(" | ")[0] for line in lines] == ["| 0", "| 1"]
    assert f"| {table_rows()[0]['ap']:.4g} |" in lines[0]


# --- CSV, W&B, MLflow -------------------------------------------------------------------------------------------------


def read_table(text: str) -> list[dict[str, Any]]:
    return [{k: v if k == "name" else float(v) for k, v in row.items()} for row in csv.DictReader(io.StringIO(text))]


def test_beside_a_csv_logger_lie_files(written: Written, expected: dict[str, np.ndarray]) -> None:
    with (written.csv / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == STEPS
    assert [float(row["val/ap/cat"]) for row in rows] == [table_rows()[0]["ap"]] * 2
    for step in STEPS:
        for key, picture in expected.items():
            assert np.array_equal(image((written.csv / f"{key}_step{step}.png").read_bytes()), picture)
        for key in TABLES:
            check_table(key, read_table((written.csv / f"{key}_step{step}.csv").read_text()))
    assert len(list(written.csv.glob("val/*"))) == 8


def test_wandb_has_image_chart_and_table(written: Written, expected: dict[str, np.ndarray]) -> None:
    (path,) = written.wandb.glob("*.wandb")
    rows = helpers.wandb_history(path)
    assert [row["trainer/global_step"] for row in rows if "val/map" in row] == STEPS
    files = written.wandb / "files"
    for key, picture in expected.items():
        seen = [row for row in rows if row.get(f"{key}/_type") == "image-file"]
        assert [row["trainer/global_step"] for row in seen] == STEPS
        assert all(np.array_equal(image((files / row[f"{key}/path"]).read_bytes()), picture) for row in seen)
    for key in (*TABLES, "val/pr_curve_chart_table"):
        seen = [row for row in rows if f"{key}/path" in row]
        assert [row["trainer/global_step"] for row in seen] == STEPS
        content = json.loads((files / seen[0][f"{key}/path"]).read_text())
        found = [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]
        if key in TABLES:
            check_table(key, found)
            continue
        assert list(dict.fromkeys(row["class"] for row in found)) == CURVES
        for name in CURVES:
            line = [(row["recall"], row["precision"]) for row in found if row["class"] == name]
            np.testing.assert_allclose(line, np.stack([np.linspace(0, 1, 101), precision(name)], 1), atol=1e-12)


def test_the_chart_of_wandb_is_the_one_of_areas_under_curves(written: Written) -> None:
    (path,) = written.wandb.glob("*.wandb")
    assert b"wandb/area-under-curve/v0" in path.read_bytes()


def test_mlflow_has_a_picture_and_a_table_for_each_step(written: Written, expected: dict[str, np.ndarray]) -> None:
    from mlflow import MlflowClient

    uri, run = written.mlflow
    client = MlflowClient(uri)
    assert [metric.step for metric in client.get_metric_history(run, "val/map")] == STEPS
    found = {item.path for item in client.list_artifacts(run, "val")}
    names = [*(f"{key}_step{step}.png" for key in expected for step in STEPS)]
    assert found == {*names, *(f"{key}_step{step}.csv" for key in TABLES for step in STEPS)}
    folder = Path(client.get_run(run).info.artifact_uri.removeprefix("file://"))
    for step in STEPS:
        for key in TABLES:
            check_table(key, read_table((folder / f"{key}_step{step}.csv").read_text()))
    for name in names:
        assert np.array_equal(image((folder / name).read_bytes()), expected[name.rpartition("_step")[0]])


def test_what_is_logged_twice_at_one_step_is_there_once(tmp_path: Path, flow_uri: str) -> None:
    """A second `validate()` has the step of the first: MLflow's own tables would have each row twice."""
    from lightning.pytorch.loggers import MLFlowLogger
    from mlflow import MlflowClient

    flow = MLFlowLogger("twice", tracking_uri=flow_uri, artifact_location=(tmp_path / "artifacts").as_uri())
    for logger in (flow, tmp_path):
        for _ in range(2):
            log_table(logger, "val/t", ["a"], [[1], [2]], 3)
            log_figure(logger, "val/f", result().plot_curve()[0], 3)
    run = flow.run_id
    assert {item.path for item in MlflowClient(flow_uri).list_artifacts(run, "val")} == {
        "val/t_step3.csv",
        "val/f_step3.png",
    }
    for folder in (tmp_path / "artifacts" / run / "artifacts", tmp_path):
        assert (folder / "val/t_step3.csv").read_text() == "a\n1\n2\n"


# --- without a Trainer ------------------------------------------------------------------------------------------------


def log_all(logger: Any, step: int = 5) -> np.ndarray:
    """A scalar, a picture with curves, and a table; returns what the picture looks like."""
    figure, _ = result().plot_curve()
    figure.draw_without_rendering()  # matplotlib's layout moves a little at the second drawing
    figure.set_layout_engine("none")
    looks = drawn(figure)
    log_scalars(logger, {"val/map": torch.tensor(0.5, dtype=torch.float64)}, step)
    log_figure(logger, "val/pr", figure, step, {"line": (torch.tensor([0.0, 0.5, 1.0]), torch.tensor([1.0, 1.0, 0.0]))})
    log_table(
        logger, "val/t", ("name", "ap"), [("cat", 0.5), ("a | b", None)], step
    )  # a bar would end a cell of Markdown
    return looks


@pytest.mark.parametrize("package", ["lightning.fabric", "lightning_fabric", "torch.utils.tensorboard"])
def test_tensorboard_of_fabric_and_of_torch(tmp_path: Path, package: str) -> None:
    module = importlib.import_module(package + (".loggers" if "fabric" in package else ""))
    logger = module.TensorBoardLogger(tmp_path) if "fabric" in package else module.SummaryWriter(str(tmp_path))
    looks = log_all(logger)
    (logger if hasattr(logger, "flush") else logger.experiment).flush()
    found = events(Path(logger.log_dir))
    assert [(e.step, e.value) for e in found.Scalars("val/map")] == [(5, 0.5)]
    assert np.array_equal(image(found.Images("val/pr")[0].encoded_image_string), looks)
    assert [e.step for e in found.Tensors("val/pr/line")] == [5]
    assert "| a \\| b | None |" in found.Tensors("val/t/text_summary")[0].tensor_proto.string_val[0].decode()


@pytest.mark.parametrize("package", ["lightning.fabric", "lightning_fabric"])
def test_csv_of_fabric(tmp_path: Path, package: str) -> None:
    logger = importlib.import_module(f"{package}.loggers").CSVLogger(tmp_path)
    log_table(logger, "val/t", ["a"], [[1]], 4)  # before any scalar: the folder must still be the logger's own
    looks = log_all(logger)
    logger.save()
    folder = Path(logger.log_dir)
    assert (folder / "metrics.csv").read_text().split() == ["step,val/map", "5,0.5"]
    assert (folder / "val/t_step5.csv").read_text() == "name,ap\ncat,0.5\na | b,\n"
    assert np.array_equal(image((folder / "val/pr_step5.png").read_bytes()), looks)


def test_a_folder(tmp_path: Path) -> None:
    for folder in (tmp_path / "a", str(tmp_path / "b")):
        log_all(folder)
        log_all(folder, 6)
        assert (Path(folder) / "scalars.csv").read_text().split() == [
            "step,key,value",
            "5,val/map,0.5",
            "6,val/map,0.5",
        ]
        assert len(list(Path(folder).glob("val/*_step[56].*"))) == 4


def test_a_run_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="p", dir=tmp_path, mode="offline", settings=wandb.Settings(console="off"))
    log_all(run)
    run.finish()
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = helpers.wandb_history(path)
    assert [(row["trainer/global_step"], row["val/map"]) for row in rows if "val/map" in row] == [(5, 0.5)]
    assert {row.get("val/pr/_type") for row in rows} > {"image-file"}
    assert {row.get("val/t/nrows") for row in rows} > {2}


def test_a_whole_result_is_what_the_callback_logs(written: Written, tmp_path: Path) -> None:
    log_result(tmp_path, "val", result(), 3, extra=["classes"])
    names = ["val/ap_per_class_step3.png", "val/classes_step3.csv", "val/pr_curve_step3.png"]
    names.append("val/worst_images_step3.csv")
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("val/*")) == names
    assert all((tmp_path / name).read_bytes() == (written.csv / name).read_bytes() for name in names)
    with (tmp_path / "scalars.csv").open() as file:
        seen = {row["key"]: float(row["value"]) for row in csv.DictReader(file)}
    assert seen == {key: rows[0][1] for key, rows in written.callback.history.items()}


class Unknown:
    """A logger that nobody here has heard of."""

    def __init__(self, folder: Path | None = None) -> None:
        self.seen: list[Any] = []
        if folder:
            self.save_dir = str(folder)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.seen.append((metrics, step))


def test_an_unknown_logger_gets_scalars_and_files(tmp_path: Path) -> None:
    logger = Unknown(tmp_path)
    log_all(logger)
    assert logger.seen == [({"val/map": 0.5}, 5)]
    assert {path.name for path in tmp_path.glob("val/*")} == {"pr_step5.png", "t_step5.csv"}


def test_a_logger_without_a_folder_gets_scalars() -> None:
    logger = Unknown()
    log_scalars(logger, {"a": 1}, 2)
    assert logger.seen == [({"a": 1.0}, 2)]
    with pytest.raises(ValueError, match="Unknown has no place for figures and tables"):
        log_table(logger, "t", ["a"], [[1]], 2)
    with pytest.raises(ValueError, match="object has no place"):
        log_scalars(object(), {"a": 1}, 2)


@pytest.mark.parametrize("key", ["val/a:b*c?", "../up", "val//x", "val/précision@5", "/etc/x", "val/ ."])
def test_no_key_leaves_the_folder(tmp_path: Path, key: str) -> None:
    log_table(tmp_path / "logs", key, ["a"], [[1]], 0)
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert (tmp_path / "logs") in path.parents
    assert not set(':*?"<>|\\') & set(str(path.relative_to(tmp_path)))


def test_a_dummy_logger_takes_everything() -> None:
    from lightning.pytorch.loggers.logger import DummyLogger

    log_all(DummyLogger())


def test_names_are_enough(tmp_path: Path) -> None:
    """Neither the verbs nor a drawing import a logger's package, pyplot or Lightning."""
    code = f"""
import sys
import torch
from map_metrics import plots, loggers, RetrievalMAP
before = set(sys.modules)
metric = RetrievalMAP()
metric.update(torch.rand(3, 9), torch.eye(3, 9))
loggers.log_figure({str(tmp_path)!r}, "a", metric.result().plot_curve()[0], 1)
names = {{"lightning", "pytorch_lightning", "wandb", "mlflow", "tensorboard"}}
print(names & set(sys.modules), "matplotlib.pyplot" in set(sys.modules) - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set() False\n"


# --- views ------------------------------------------------------------------------------------------------------------


def test_the_views_of_a_hashing_result() -> None:
    metric = HashingMAPAtK(top_k=[2, 5])
    metric.update(**helpers.hashing(torch.arange(30)))
    found = {picture.name: picture for picture in pictures(metric.result())}
    assert list(found) == ["pr_curve", "ap_per_query", "hamming_radius"]
    assert np.array_equal(drawn(found["hamming_radius"].draw()[0]), drawn(plot_radius(metric.result())[0]))
    (table,) = tables(metric.result())
    assert table.name == "worst_queries"
    cuts = ["ap@2", "ap@5", "num_hits@2", "num_hits@5"]
    assert [column for column in table.columns if "@" in column] == cuts
    ap = [row[table.columns.index("ap@2")] for row in table.rows]
    assert ap == sorted(ap)
    assert len(ap) == 10


def test_of_many_classes_no_curves_are_logged_one_by_one() -> None:
    metric, boxes = DetectionMAP(), torch.tensor([[0.0, 0, 9, 9]]).repeat(21, 1)
    target = {"boxes": boxes, "labels": torch.arange(21)}
    metric.update([{**target, "scores": torch.rand(21)}], [target])
    assert list(next(pictures(metric.result())).curves) == CURVES[:3]


def test_two_types_of_overlap_have_prefixes() -> None:
    metric = DetectionMAP(iou_type=("bbox", "segm"))
    masks = torch.zeros(1, 20, 20, dtype=torch.bool)
    masks[:, :9, :9] = True
    target = {"boxes": torch.tensor([[0.0, 0, 9, 9]]), "labels": torch.tensor([3]), "masks": masks}
    metric.update([{**target, "scores": torch.tensor([0.5])}], [target])
    names = [picture.name for picture in pictures(metric.result())]
    assert names == ["bbox_pr_curve", "bbox_ap_per_class", "segm_pr_curve", "segm_ap_per_class"]
    assert [table.name for table in tables(metric.result())] == [
        "bbox_classes",
        "bbox_worst_images",
        "segm_classes",
        "segm_worst_images",
    ]


def test_the_worst_images_of_many() -> None:
    """Image i of 30 holds as many detections that are better than the right one: its AP is 1 / (i + 1)."""
    metric, box = DetectionMAP(), torch.tensor([[0.0, 0, 10, 10]])
    for i in (7 * i % 30 for i in range(30)):
        boxes, scores = torch.cat([box + 20] * i + [box]), torch.arange(i + 1, 0, -1) / 100
        preds = {"boxes": boxes, "scores": scores, "labels": torch.zeros(i + 1, dtype=torch.int64)}
        target = {"boxes": box, "labels": torch.zeros(1, dtype=torch.int64), "image_id": 100 + i}
        metric.update([preds], [target])
    (_, table) = tables(metric.result())
    assert table.name == "worst_images"
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["image"] for row in rows] == [100 + i for i in range(29, 9, -1)]
    assert [row["ap"] for row in rows] == pytest.approx([1 / (i + 1) for i in range(29, 9, -1)], abs=1e-12)
    assert [row["false_positives"] for row in rows] == list(range(29, 9, -1))
    assert {(row["true_positives"], row["missed"]) for row in rows} == {(1, 0)}


def test_a_result_of_nothing_has_no_views() -> None:
    for metric in (DetectionMAP(), HashingMAPAtK()):
        assert list(pictures(metric.result())) == list(tables(metric.result())) == []
