"""What the examples share: the command line, the data, the training, and the check of the value on several ranks."""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset
from torchmetrics import Metric

from map_metrics.report_callback import MAPReport


def arguments(description: str, epochs: int) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1, help="number of processes, on the CPU (default: 1)")
    parser.add_argument("--epochs", type=int, default=epochs, help=f"training epochs (default: {epochs})")
    parser.add_argument("--logdir", type=Path, default=Path("logs"), help="where the logs go (default: logs)")
    return parser.parse_args()


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The 1797 handwritten digits that come with scikit-learn, shuffled: (n, 64) pixels in [0, 1], (n,) classes."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(data.data / 16, dtype=torch.float32)[order], torch.tensor(data.target)[order]


def board_and_csv(name: str, args: argparse.Namespace) -> list[Logger]:
    """TensorBoard's files and a CSV."""
    return [TensorBoardLogger(args.logdir, name=name), CSVLogger(args.logdir / "csv", name=name)]


def trainer(args: argparse.Namespace, loggers: list[Logger], callbacks: list[Callback]) -> Trainer:
    """A quiet Trainer on the CPU."""
    # One thread for each rank: two would fight for two cores. And the last bits of a sum depend on their number.
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")  # Lightning's own use of torch
    # Lightning fears the samples that DistributedSampler repeats; the callback leaves them out.
    warnings.filterwarnings("ignore", message=".*it is recommended to use `Trainer.devices=1.*")
    return Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy=DDPStrategy(process_group_backend="gloo") if args.devices > 1 else "auto",
        max_epochs=args.epochs,
        callbacks=callbacks,
        logger=loggers,
        default_root_dir=args.logdir,  # for checkpoints, where the logger has no folder
        log_every_n_steps=10,
        enable_model_summary=False,
    )


def run(
    name: str,
    args: argparse.Namespace,
    model: LightningModule,
    sets: tuple[Dataset, Dataset],
    build_metric: Callable[..., Metric],
    batch_size: int = 64,
) -> None:
    """Measure, train, measure again; then ask one process for the same numbers and compare."""
    callback = MAPReport(build_metric(), figures=True, tables=True)  # a MAPCallback that also writes a page
    best = ModelCheckpoint(monitor="val/map", mode="max")  # what the callback logs can be monitored
    train = DataLoader(sets[0], batch_size // args.devices, shuffle=True)
    val = DataLoader(sets[1], 64)
    ranks = trainer(args, board_and_csv(name, args), [callback, best])
    ranks.validate(model, val, verbose=False)
    before = callback.values
    ranks.fit(model, train, val)
    ranks.validate(model, val, verbose=False)
    after = callback.values
    if ranks.is_global_zero:
        alone = single_process(model, val, build_metric(sync_on_compute=False))
        if after != alone:
            raise SystemExit(f"{args.devices} rank(s) say {after}, one process on the same weights says {alone}")
        print(f"\n{name}: val/map {before['val/map']:.4f} before training, {after['val/map']:.4f} after")
        value = after["val/map"]
        print(f"{args.devices} rank(s) and one process on the same weights: {value!r}, equal to the last bit.")
        print(f"Logs: tensorboard --logdir {args.logdir}")
        print(f"Report: {callback.pages['val']}")


@torch.no_grad()
def single_process(model: LightningModule, loader: DataLoader, metric: Metric) -> dict[str, float]:
    """The same numbers without Lightning, ranks or sampler: a plain loop on this process."""
    model.eval()
    model.on_validation_epoch_start()
    for i, batch in enumerate(loader):
        metric.update(**model.validation_step(batch, i))
    value = metric.compute()
    items = value if isinstance(value, dict) else {"map": value}
    return {f"val/{key}": float(item) for key, item in items.items()}


def one_by_one(net: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """The network's output for each sample alone, stacked.

    The last bits of a matrix product or a convolution can change with the size of the batch, and two ranks cut the data
    into other batches than one process does. We compare bits, so the model has to give the same ones.
    """
    return torch.cat([net(sample[None]) for sample in batch])
