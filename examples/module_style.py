"""The metrics without the callback, as attributes of the LightningModule.

    python examples/module_style.py

A metric with one value is logged as it is, `self.log("val/map", self.map)`: Lightning computes it at the end of the
epoch and resets it. One with several is computed and reset by the module, `self.log_dict(self.det.compute())`. What
the callback does besides is then up to you: here the samples get ids, so that copies made by a sampler count once.
"""

from common import arguments, board_and_csv, trainer
from detection_digits import Detector
from detection_digits import data as scenes
from lightning.pytorch import LightningModule, seed_everything
from retrieval_digits import Embedder
from retrieval_digits import data as pictures
from torch.utils.data import DataLoader

from map_metrics import DetectionMAP, RetrievalMAP


class EmbedderWithMetric(Embedder):
    """Logs one value."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.map = RetrievalMAP(ignore_index=-1)

    def validation_step(self, batch, batch_idx) -> None:
        self.map.update(**super().validation_step(batch, batch_idx), ids=batch[2])
        self.log("val/map", self.map)


class DetectorWithMetric(Detector):
    """Logs COCO's numbers, under their own names; -1 stands for "nothing of that size"."""

    def __init__(self) -> None:
        super().__init__()
        self.det = DetectionMAP()

    def validation_step(self, batch, batch_idx) -> None:
        self.det.update(**super().validation_step(batch, batch_idx))

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.det.compute())
        self.det.reset()


def run(name: str, key: str, args, model: LightningModule, train, val) -> None:
    """Measure, train, measure again."""
    training = trainer(args, board_and_csv(name, args), [])
    training.validate(model, DataLoader(val, 64), verbose=False)
    before = float(training.callback_metrics[key])
    training.fit(model, DataLoader(train, 64, shuffle=True), DataLoader(val, 64))
    training.validate(model, DataLoader(val, 64), verbose=False)
    after = float(training.callback_metrics[key])
    if training.is_global_zero:
        print(f"\n{name}: {key} {before:.4f} before training, {after:.4f} after")


if __name__ == "__main__":
    args = arguments(__doc__, epochs=3)
    seed_everything(0)
    retrieval, detection = pictures(), scenes()
    run("module_retrieval", "val/map", args, EmbedderWithMetric(*retrieval[1].tensors[:2]), *retrieval)
    run("module_detection", "map", args, DetectorWithMetric(), *detection)
