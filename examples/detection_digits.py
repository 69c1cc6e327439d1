"""Object detection: train a small convolutional detector, and log COCO's 12 numbers, exactly as pycocotools has them.

    python examples/detection_digits.py --devices 2

The pictures are scenes of one to five handwritten digits on a canvas of 64 x 64 pixels. `validation_step` returns lists
of dicts in the format of torchvision and torchmetrics. Every target has its `image_id`: the picture that the sampler
repeats on the second rank (there are 201, an odd number) counts once, and equal scores are ordered by it. Curves and a
bar for each class stand beside the numbers in TensorBoard.
"""

import torch
from common import arguments, digits, one_by_one, run
from lightning.pytorch import LightningModule, seed_everything
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from map_metrics import DetectionMAP

CANVAS, STRIDE, MOST = 64, 8, 5  # pixels, pixels of a grid cell, digits in a scene


def scenes(pixels: Tensor, label: Tensor, count: int, seed: int) -> TensorDataset:
    """(image, boxes, labels, place in the set): boxes (5, 4) xyxy in pixels, labels (5,), -1 where none is."""
    rng = torch.Generator().manual_seed(seed)
    images, boxes = torch.zeros(count, 1, CANVAS, CANVAS), torch.zeros(count, MOST, 4)
    labels = torch.full((count, MOST), -1)
    for scene in range(count):
        free = torch.randperm(9, generator=rng)  # one digit at most in each of 3 x 3 places: they hardly overlap
        for i in range(int(torch.randint(1, MOST + 1, (), generator=rng))):
            chosen = int(torch.randint(len(pixels), (), generator=rng))
            size, x, y = (int(torch.randint(*span, (), generator=rng)) for span in ((12, 21), (0, 8), (0, 8)))
            top, left = (min(int(free[i]) // 3 * 20 + y, CANVAS - size), min(int(free[i]) % 3 * 20 + x, CANVAS - size))
            digit = functional.interpolate(pixels[chosen].view(1, 1, 8, 8), size=size, mode="bilinear")[0, 0]
            images[scene, 0, top : top + size, left : left + size].clamp_(min=digit)
            rows, columns = (digit > 0.3).any(1).nonzero(), (digit > 0.3).any(0).nonzero()
            corners = [left + columns.min(), top + rows.min(), left + columns.max() + 1, top + rows.max() + 1]
            boxes[scene, i], labels[scene, i] = torch.tensor(corners), label[chosen]
    return TensorDataset(images, boxes, labels, torch.arange(count))


class Detector(LightningModule):
    """An 8 x 8 grid of cells, each with an objectness, a box and a class: 15 numbers."""

    def __init__(self) -> None:
        super().__init__()
        layers = []
        for before, after, stride in ((1, 16, 2), (16, 32, 2), (32, 48, 2), (48, 48, 1)):
            # no batch norm: its statistics would differ between the ranks
            layers += [nn.Conv2d(before, after, 3, stride, padding=1), nn.GroupNorm(8, after), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Conv2d(48, 15, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, boxes, labels, _ = batch
        output = self.net(images)
        scene, digit = (labels >= 0).nonzero().T
        box, label = boxes[scene, digit], labels[scene, digit]
        centre, size = (box[:, :2] + box[:, 2:]) / 2 / STRIDE, (box[:, 2:] - box[:, :2]) / STRIDE
        column, row = centre.long().T
        found = output[scene, :, row, column]
        there = torch.zeros_like(output[:, 0])
        there[scene, row, column] = 1
        where = torch.cat([centre - centre.floor(), size.log()], 1)
        return (
            functional.binary_cross_entropy_with_logits(output[:, 0], there) * 5
            + functional.smooth_l1_loss(found[:, 1:5], where, beta=0.1) * 5
            + functional.cross_entropy(found[:, 5:], label)
        )

    def detections(self, output: Tensor) -> dict[str, Tensor]:
        """Boxes, scores and labels of one scene: the cells that are more of an object than their neighbours."""
        objects = output[0].sigmoid()
        peaks = (objects == functional.max_pool2d(objects[None], 3, 1, 1)[0]) & (objects > 0.02)
        row, column = peaks.nonzero().T
        found = output[:, row, column].T
        centre = (torch.stack([column, row], 1) + found[:, 1:3]) * STRIDE
        size = found[:, 3:5].exp() * STRIDE
        chance, label = found[:, 5:].softmax(1).max(1)
        boxes = torch.cat([centre - size / 2, centre + size / 2], 1)
        return {"boxes": boxes, "scores": objects[row, column] * chance, "labels": label}

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, list[dict[str, Tensor]]]:
        images, boxes, labels, index = batch
        preds = [self.detections(output) for output in one_by_one(self.net, images)]
        target = [
            {"boxes": box[label >= 0], "labels": label[label >= 0], "image_id": i}
            for box, label, i in zip(boxes, labels, index, strict=True)
        ]
        return {"preds": preds, "target": target}

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.Adam(self.parameters(), 5e-3)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def data() -> tuple[TensorDataset, TensorDataset]:
    """1500 scenes to train on, and 201 of other digits to measure on."""
    pixels, label = digits()
    return scenes(pixels[:1348], label[:1348], 1500, seed=1), scenes(pixels[1348:], label[1348:], 201, seed=2)


if __name__ == "__main__":
    args = arguments(__doc__, epochs=8)
    seed_everything(0)
    run("detection", args, Detector(), data(), DetectionMAP, batch_size=32)
