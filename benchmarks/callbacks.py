"""What MAPCallback adds to the end of a validation epoch, on two ranks: ``python benchmarks/callbacks.py``.

COCO's val2017 in size: 5,000 images of 80 classes with 100 detections each, shared by two gloo ranks with one thread
each. At the end of every epoch the metric is computed on its own, then the callback's hook runs; what the hook takes
longer is the overhead, on rank 0, the median over the epochs after the first, which imports and opens what it needs.

- scalars: the value over all ranks, logged
- figures and tables: the same with curves, bars, the classes and the worst images, for each logger by itself
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import sets
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from map_metrics import DetectionMAP
from map_metrics.callbacks import MAPCallback

GOALS = {"scalars": 30, "figures and tables": 500}  # ms
LOGGERS: dict[str, Callable[[Path], Logger]] = {
    "TensorBoard": lambda folder: TensorBoardLogger(folder),
    "CSV": lambda folder: CSVLogger(folder),
    "W&B offline": lambda folder: WandbLogger(save_dir=folder, project="bench", offline=True),
    "MLflow sqlite": lambda folder: MLFlowLogger(
        tracking_uri=f"sqlite:///{folder}/runs.db", artifact_location=(folder / "artifacts").as_uri()
    ),
}


class Timed(MAPCallback):
    """Writes down, on rank 0, how long the metric and the hook take at the end of each epoch."""

    def __init__(self, file: Path, **kwargs: Any) -> None:
        super().__init__(DetectionMAP(), **kwargs)
        self.file = file

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metric = self._clones["val"]
        computed = self._seconds(trainer, metric.compute)
        metric._computed = None  # the hook is to compute it again
        hook = self._seconds(trainer, lambda: super(Timed, self).on_validation_epoch_end(trainer, pl_module))
        if trainer.is_global_zero:
            with self.file.open("a") as file:
                file.write(json.dumps([computed, hook]) + "\n")

    def _seconds(self, trainer: Trainer, work: Callable[[], Any]) -> float:
        trainer.strategy.barrier()
        start = time.perf_counter()
        work()
        return time.perf_counter() - start


class Replay(LightningModule):
    """A model that has detected already."""

    def __init__(self, images: list[tuple[Any, Any]]) -> None:
        super().__init__()
        self.images, self.layer = images, torch.nn.Linear(1, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch[:, None].float()).mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> dict[str, Any]:
        preds, target = zip(*(self.images[i] for i in batch.tolist()), strict=True)
        return {"preds": list(preds), "target": list(target)}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-6)


def measure(images: list[tuple[Any, Any]], logger: Logger, epochs: int, file: Path, **kwargs: Any) -> dict[str, float]:
    """Medians in ms: of the metric, and of what the hook takes longer than it."""
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo", start_method="fork"),
        max_epochs=epochs + 1,
        callbacks=[Timed(file, **kwargs)],
        logger=logger,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=file.parent,
    )
    trainer.fit(Replay(images), DataLoader(range(4), 2), DataLoader(range(len(images)), 16))
    laps = [json.loads(line) for line in file.read_text().splitlines()][1:]
    found = {"compute": median(alone for alone, _ in laps), "overhead": median(hook - alone for alone, hook in laps)}
    return {name: round(1000 * seconds, 1) for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5_000, help="(default: 5000)")
    parser.add_argument("--epochs", type=int, default=7, help="timed epochs (default: 7)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write what was measured there as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for name in ("WANDB_SILENT", "MLFLOW_DISABLE_TELEMETRY"):
        os.environ[name] = "true"

    chosen = sets.coco_like(options.images)
    images = [pair for preds, target in chosen.batches for pair in zip(preds, target, strict=True)]
    print(f"{chosen}; two ranks, {options.epochs} epochs", flush=True)
    report: dict[str, Any] = {"set": str(chosen), "goals": GOALS, "rows": []}
    runs = [
        ("scalars", "CSV", {}),
        *(("figures and tables", name, {"figures": True, "tables": True}) for name in LOGGERS),
    ]
    for what, logger, kwargs in runs:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            row = measure(images, LOGGERS[logger](folder), options.epochs, folder / "laps", **kwargs)
        report["rows"].append({"what": what, "logger": logger, **row})
        print(
            f"{what:18} {logger:13} {row['overhead']:7.1f} ms over compute ({row['compute']:.1f} ms); "
            f"goal {GOALS[what]} ms",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
