"""Image retrieval: train an embedding, and log the exact mAP of finding the digits of the same class.

    python examples/retrieval_digits.py --devices 2

Every validation image is a query, and all the other validation images are ranked for it by their similarity. Each
rank asks its own share of the queries: `validation_step` returns the arguments of `RetrievalMAP.update`, and
MAPCallback does the rest. There are 449 images, an odd number: on two ranks the sampler repeats one, which counts once
all the same.
"""

from functools import partial

import torch
from common import arguments, digits, one_by_one, run
from lightning.pytorch import LightningModule, seed_everything
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from map_metrics import RetrievalMAP


class Embedder(LightningModule):
    """64 pixels -> a unit vector of 32 numbers; digits of one class shall lie close together."""

    def __init__(self, gallery: Tensor, classes: Tensor) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        self.gallery, self.classes = gallery, classes

    def forward(self, pixels: Tensor) -> Tensor:
        return functional.normalize(self.net(pixels), dim=-1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        pixels, label, _ = batch
        vectors = self(pixels)
        alike = (label[:, None] == label).fill_diagonal_(False)
        similarity = (vectors @ vectors.T / 0.1).fill_diagonal_(-torch.inf)
        return -similarity.log_softmax(1)[alike].mean()  # supervised contrastive learning

    def on_validation_epoch_start(self) -> None:
        self.vectors = one_by_one(self, self.gallery)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        pixels, label, index = batch
        preds = torch.stack([self.vectors @ query for query in one_by_one(self, pixels)])
        target = (label[:, None] == self.classes).long()
        target[torch.arange(len(index)), index] = -1  # a query does not retrieve itself: the metric ignores -1
        return {"preds": preds, "target": target}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 2e-3)


def data() -> tuple[TensorDataset, TensorDataset]:
    """(pixels, class, place in the set) of 1348 digits to train on and 449 to measure on."""
    pixels, label = digits()
    parts = (pixels[:1348], label[:1348]), (pixels[1348:], label[1348:])
    train, val = (TensorDataset(x, y, torch.arange(len(x))) for x, y in parts)
    return train, val


if __name__ == "__main__":
    args = arguments(__doc__, epochs=15)
    seed_everything(0)
    train, val = data()
    run("retrieval", args, Embedder(*val.tensors[:2]), (train, val), partial(RetrievalMAP, ignore_index=-1))
