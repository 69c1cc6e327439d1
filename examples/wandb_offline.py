"""Weights & Biases without a network: numbers, pictures, curves and tables in an offline run.

    python examples/wandb_offline.py --devices 2

The codes of hashing_digits.py are learned. Everything goes into a folder below logs/wandb, which `wandb sync` sends to
the server later; with `offline=False` it goes there at once.
"""

from common import arguments, trainer
from hashing_digits import HashNet, data
from lightning.pytorch import seed_everything
from lightning.pytorch.loggers import WandbLogger
from torch.utils.data import DataLoader

from map_metrics import HashingMAPAtK
from map_metrics.callbacks import MAPCallback

if __name__ == "__main__":
    args = arguments(__doc__, epochs=4)
    seed_everything(0)
    logger = WandbLogger(name="hashing", project="map-metrics", save_dir=args.logdir, offline=True)
    callback = MAPCallback(
        HashingMAPAtK(denominator="relevant"),
        extra=["chance", "precision@10", "precision_within@2"],
        figures=True,
        tables=True,
    )
    training = trainer(args, [logger], [callback])
    train, val = data()
    training.fit(HashNet(), DataLoader(train, 64 // args.devices, shuffle=True), DataLoader(val, 64))
    logger.experiment.finish()  # on rank 0 a run, elsewhere a dummy
    if training.is_global_zero:
        for step, value in callback.history["val/map"]:
            print(f"step {step}: val/map {value!r}")
        print(f"Look at it: wandb sync {args.logdir}/wandb/offline-run-*")
