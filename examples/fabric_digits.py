"""Fabric: the metric and the loggers in a loop of your own, on one rank or several.

    python examples/fabric_digits.py --devices 2

No Trainer and no callback: the metric gathers from all ranks in `result()`, and ids make the samples that the sampler
repeats count once. Figures and tables are drawn on rank 0. Codes of 32 bits are learned from handwritten digits, as in
hashing_digits.py.
"""

import warnings

import torch
from common import arguments, digits
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger, TensorBoardLogger
from lightning.fabric.strategies import DDPStrategy
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from map_metrics import HashingMAPAtK
from map_metrics.loggers import log_result


class HashNet(nn.Module):
    """64 pixels -> 32 numbers, whose signs are the code, and the scores of the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = self.net(pixels)
        return numbers, self.head(numbers.tanh())


@torch.no_grad()
def evaluate(fabric: Fabric, model: nn.Module, loader: DataLoader, step: int) -> float:
    """The mAP over all ranks; logged with what stands behind it."""
    metric = HashingMAPAtK(denominator="relevant").to(fabric.device)
    for pixels, label, number in loader:
        codes = model(pixels)[0] > 0
        metric.update(codes, label, query=number >= 1500, ids=number)
    result = metric.result()  # on every rank: it gathers
    if fabric.is_global_zero:
        for logger in fabric.loggers:
            log_result(logger, "val", result, step, extra=["chance"])
    return float(result.value())


def main() -> None:
    args = arguments(__doc__, epochs=8)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
    loggers = [TensorBoardLogger(args.logdir, name="fabric"), CSVLogger(args.logdir / "csv", name="fabric")]
    strategy = DDPStrategy(process_group_backend="gloo") if args.devices > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=args.devices, strategy=strategy, loggers=loggers)
    fabric.launch()
    fabric.seed_everything(0)

    pixels, label = digits()
    everything = TensorDataset(pixels, label, torch.arange(len(label)))  # the first 1500 are the gallery
    train = TensorDataset(pixels[:1500], label[:1500])
    train, val = fabric.setup_dataloaders(
        DataLoader(train, 64 // args.devices, shuffle=True), DataLoader(everything, 256)
    )
    net = HashNet()
    model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters(), 2e-3))

    step, before = 0, evaluate(fabric, model, val, 0)
    for _ in range(args.epochs):
        for batch, target in train:
            numbers, scores = model(batch)
            loss = functional.cross_entropy(scores, target) + 0.1 * (1 - numbers.tanh().abs()).mean()
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            step += 1
    after = evaluate(fabric, model, val, step)
    fabric.print(f"fabric: val/map {before:.4f} before training, {after:.4f} after")
    for logger in fabric.loggers:
        logger.finalize("success")


if __name__ == "__main__":
    main()
