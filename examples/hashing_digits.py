"""Deep hashing: learn codes of 32 bits, and log the exact mAP of ranking by Hamming distance.

    python examples/hashing_digits.py --devices 2

With 33 possible distances most items of a ranking are tied, and an implementation that takes them in storage order
reports a number that a shuffle changes. HashingMAPAtK takes the mean over all orders, in closed form. Queries and
gallery come through one loader, in any order and on any rank: a flag tells them apart. Precision-recall curves, the
APs of the queries and precision by Hamming radius stand beside the mAP in TensorBoard, and as files beside the CSV.
"""

from functools import partial

import torch
from common import arguments, digits, one_by_one, run
from lightning.pytorch import LightningModule, seed_everything
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Subset, TensorDataset

from map_metrics import HashingMAPAtK


class HashNet(LightningModule):
    """64 pixels -> 32 numbers, whose signs are the code; a classifier on top gives the training signal."""

    def __init__(self, bits: int = 32) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, bits))
        self.head = nn.Linear(bits, 10)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        pixels, label, _ = batch
        soft = self.net(pixels).tanh()
        quantisation = (1 - soft.abs()).mean()  # pulls the numbers to +-1, where cutting them to bits loses nothing
        return functional.cross_entropy(self.head(soft), label) + 0.1 * quantisation

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        pixels, label, query = batch
        return {"codes": one_by_one(self.net, pixels) > 0, "labels": label, "query": query}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 2e-3)


def data() -> tuple[Subset, TensorDataset]:
    """(pixels, class, whether it is a query): 1500 digits are the gallery, and trained on; 297 are the queries."""
    pixels, label = digits()
    everything = TensorDataset(pixels, label, torch.arange(len(label)) >= 1500)
    return Subset(everything, range(1500)), everything


if __name__ == "__main__":
    args = arguments(__doc__, epochs=8)
    seed_everything(0)
    run("hashing", args, HashNet(), data(), partial(HashingMAPAtK, denominator="relevant"))
