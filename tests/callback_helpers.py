"""Data, modules and a flight recorder for the tests of the Lightning callback.

A dataset is ``range(n)``, so a batch is a tensor of sample numbers, and what the step returns for them is looked up:
the values depend neither on the batches nor on a model.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric

from map_metrics import DetectionMAP, HashingMAPAtK, RetrievalMAP

TRAIN = DataLoader(range(8), 2)
_MOST = 40  # samples
_rng = torch.Generator().manual_seed(0)
_scores = torch.randint(0, 5, (_MOST, 6), generator=_rng) / 4  # with ties
_relevant = torch.rand(_MOST, 6, generator=_rng) < 0.4
_codes, _labels = torch.rand(_MOST, 12, generator=_rng) < 0.5, torch.randint(0, 3, (_MOST,), generator=_rng)


def _scene(number: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Predictions and targets of one image: boxes of 10 to 60 pixels, found with some error."""
    rng = torch.Generator().manual_seed(number)
    corner, size = torch.rand(3, 2, generator=rng) * 50, torch.rand(3, 2, generator=rng) * 50 + 10
    boxes, labels = torch.cat([corner, corner + size], 1), torch.randint(0, 2, (3,), generator=rng)
    moved = boxes + torch.randn(3, 4, generator=rng) * 2
    return {"boxes": moved, "scores": torch.rand(3, generator=rng), "labels": labels}, {
        "boxes": boxes,
        "labels": labels,
    }


def matrix(sample: Tensor) -> dict[str, Any]:
    return {"preds": _scores[sample], "target": _relevant[sample], "loss": torch.tensor(0.0)}


def matrix_ids(sample: Tensor) -> dict[str, Any]:
    return {**matrix(sample), "ids": sample}


def rows(sample: Tensor) -> dict[str, Any]:
    return {**matrix(sample), "indexes": sample[:, None].expand(-1, 6)}


def flat_rows(sample: Tensor) -> dict[str, Any]:
    return {name: value.flatten() for name, value in rows(sample).items()}


def flat_rows_ids(sample: Tensor) -> dict[str, Any]:
    return {**flat_rows(sample), "ids": torch.arange(6).repeat(len(sample))}


def hashing(sample: Tensor) -> dict[str, Any]:
    return {"codes": _codes[sample], "labels": _labels[sample], "query": sample % 3 == 0}


def hashing_ids(sample: Tensor) -> dict[str, Any]:
    return {**hashing(sample), "ids": sample}


def detection(sample: Tensor) -> dict[str, Any]:
    preds, target = zip(*(_scene(int(i)) for i in sample), strict=True)
    return {"preds": list(preds), "target": list(target)}


def detection_ids(sample: Tensor) -> dict[str, Any]:
    given = detection(sample)
    target = [{**image, "image_id": i} for image, i in zip(given["target"], sample, strict=True)]
    return {"preds": given["preds"], "target": target}


class Kind(NamedTuple):
    """A metric and what a step returns for it."""

    metric: Callable[..., Metric]
    outputs: Callable[[Tensor], dict[str, Any]]

    def value(self, n: int, **kwargs: Any) -> dict[str, Any]:
        """The result over the first n samples: key -> float, or tensor where it is a vector."""
        metric = self.metric(**kwargs)
        given = self.outputs(torch.arange(n))
        given.pop("loss", None)
        metric.update(**given)
        value = metric.compute()
        items = value if isinstance(value, dict) else {"map": value}
        return {key: float(item) if item.ndim == 0 else item for key, item in items.items()}


KINDS = {
    "matrix": Kind(RetrievalMAP, matrix),
    "matrix_ids": Kind(RetrievalMAP, matrix_ids),
    "rows": Kind(RetrievalMAP, rows),
    "flat_rows_ids": Kind(RetrievalMAP, flat_rows_ids),
    "hashing": Kind(HashingMAPAtK, hashing),
    "hashing_ids": Kind(HashingMAPAtK, hashing_ids),
    "detection": Kind(DetectionMAP, detection),
    "detection_ids": Kind(DetectionMAP, detection_ids),
}


class Constant(Metric):
    """Returns what it is told to; adds in place, as many metrics do."""

    full_state_update = False

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value
        self.add_state("seen", torch.zeros(1), dist_reduce_fx="sum")

    def update(self, preds: torch.Tensor) -> None:
        self.seen[0] += len(preds)

    def compute(self) -> Any:
        return self.value


def loader(n: int, **kwargs: Any) -> DataLoader:
    return DataLoader(range(n), **{"batch_size": 3, **kwargs})


def prefixed(prefix: str, items: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{key}": value for key, value in items.items()}


def scalars(items: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in items.items() if isinstance(value, float) and value != -1}


def model(pl: Any, outputs: Callable[[Tensor], Any]) -> Any:
    """A LightningModule whose steps return ``outputs(batch)``."""

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return self.layer(batch[:, None].to(self.layer.weight.dtype)).square().mean()

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return outputs(batch)

        test_step = validation_step

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-4)

    return Model()


def trainer(pl: Any, folder: Path, callbacks: list[Any], **kwargs: Any) -> Any:
    """A quiet Trainer on the CPU."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    settings = {"max_epochs": 1, "log_every_n_steps": 1, "enable_model_summary": False, "default_root_dir": folder}
    return pl.Trainer(accelerator="cpu", callbacks=callbacks, **{**quiet, **settings, **kwargs})


def ranks(pl: Any, count: int = 2) -> dict[str, Any]:
    """Trainer arguments for forked processes, which take 0.4 s."""
    strategy = pl.strategies.DDPStrategy(
        start_method="fork", process_group_backend="gloo", timeout=timedelta(seconds=20)
    )
    return {"devices": count, "strategy": strategy}


def recorder(pl: Any, folder: Path) -> Any:
    """A callback that writes down, on every rank, what is to be seen there after a validation or test."""

    class Recorder(pl.Callback):
        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            self.warnings, self.reduced = [], 0
            if trainer.world_size > 1 and not trainer.sanity_checking:  # in a process of its own: no need to restore
                warnings.simplefilter("always")
                warnings.showwarning = lambda message, *args, **kwargs: self.warnings.append(str(message))
                reduce = torch.distributed.all_reduce

                def counted(*args: Any, **kwargs: Any) -> Any:
                    self.reduced += 1
                    return reduce(*args, **kwargs)

                torch.distributed.all_reduce = counted

        on_test_start = on_validation_start

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
                values = [c.values for c in trainer.callbacks if hasattr(c, "values")]
                seen = {"metrics": metrics, "values": values, "warnings": self.warnings, "reduced": self.reduced}
                torch.save(seen, folder / f"rank{trainer.global_rank}.pt")

        on_test_end = on_validation_end

    return Recorder()


def records(folder: Path) -> list[dict[str, Any]]:
    """What the recorders of all ranks wrote last."""
    return [torch.load(path) for path in sorted(folder.glob("rank*.pt"))]


def agreed(folder: Path) -> dict[str, Any]:
    """What all ranks recorded: the same values, with the same bits, and nothing said or reduced."""
    first, *others = records(folder)
    assert others
    assert all(other == first for other in others)
    assert (first["warnings"], first["reduced"]) == ([], 0)
    return first


def wandb_history(path: Path) -> list[dict[str, Any]]:
    """The logged rows of an offline run that has ended; wandb writes the last of them some time after `finish`."""
    give_up = time.monotonic() + 30
    while not (records := _wandb_records(path)) or records[-1].WhichOneof("record_type") != "exit":
        assert time.monotonic() < give_up, f"{path} has no end"
        time.sleep(0.1)
    found = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            row = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            found.append({key: json.loads(value) for key, value in row.items()})
    return found


def _wandb_records(path: Path) -> list[Any]:
    """All records. wandb has no reader any more, but their classes.

    The file is a LevelDB log: blocks of 32 KiB, records of checksum (4 bytes), length (2), kind (1; 1 a whole record,
    2, 3, 4 the first, middle and last part of one) and payload.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, payload, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        payload += data[at + 7 : at + 7 + length]
        at += 7 + length
        if at > len(data):
            break  # still being written
        if kind in (1, 4):
            found.append(Record.FromString(payload))
            payload = b""
    return found
