"""MLflow in a file: numbers in a SQLite database, pictures and tables in a folder beside it.

    python examples/mlflow_sqlite.py --devices 2

The detector of detection_digits.py is trained, and the AP of every class logged beside COCO's numbers. No server runs:
`mlflow ui` shows the file later. With `tracking_uri` an address, the same goes to a server.
"""

from common import arguments, trainer
from detection_digits import Detector, data
from lightning.pytorch import seed_everything
from lightning.pytorch.loggers import MLFlowLogger
from torch.utils.data import DataLoader

from map_metrics import DetectionMAP
from map_metrics.callbacks import MAPCallback

if __name__ == "__main__":
    args = arguments(__doc__, epochs=4)
    seed_everything(0)
    folder = args.logdir.resolve() / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    uri = f"sqlite:///{folder / 'runs.db'}"
    logger = MLFlowLogger("detection", tracking_uri=uri, artifact_location=(folder / "artifacts").as_uri())
    callback = MAPCallback(DetectionMAP(), extra=["classes"], figures=True, tables=True)
    training = trainer(args, [logger], [callback])
    train, val = data()
    training.fit(Detector(), DataLoader(train, 32 // args.devices, shuffle=True), DataLoader(val, 64))
    if training.is_global_zero:
        for step, value in callback.history["val/map"]:
            print(f"step {step}: val/map {value!r}")
        print(f"Look at it: mlflow ui --backend-store-uri {uri}")
