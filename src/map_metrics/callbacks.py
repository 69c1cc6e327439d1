"""A Lightning callback that measures a metric over validation and test, and logs the exact value of all ranks.

    trainer = Trainer(callbacks=[MAPCallback(RetrievalMAP()), ModelCheckpoint(monitor="val/map", mode="max")])

It works with ``lightning.pytorch`` and with ``pytorch_lightning``.
"""

from __future__ import annotations

import importlib
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DistributedSampler
from torchmetrics import Metric

if TYPE_CHECKING:
    from lightning.pytorch import Callback as _Callback
else:

    def _callback_classes() -> tuple[type, ...]:
        """Lightning's Callback, of both of its packages where both are installed: each Trainer knows only its own."""
        found, error = [], None
        for package in ("lightning.pytorch", "pytorch_lightning"):
            try:
                found.append(importlib.import_module(package).Callback)
            except ImportError as missing:
                error = missing
        if not found:
            raise ImportError(
                'map_metrics.callbacks needs Lightning: pip install "torchmetrics-map[lightning]"'
            ) from error
        return tuple(found)

    _Callback = type("_Callback", _callback_classes(), {})

Feed = Callable[[Any, Any, int], "Mapping[str, Any] | None"]

# --- which samples count ---------------------------------------------------------------------------------------------


class _Share:
    """Which samples of one loader are this rank's own: the position rule.

    A DistributedSampler deals its samples in turn to the ranks and, where they do not divide evenly, repeats the first
    ones at the very end. So the first ``len(range(rank, number of samples, ranks))`` samples of a rank's loader are its
    own, shuffled or not, and the rest is padding.

    Attributes:
        note: why samples may count more than once; empty where they do not.
    """

    def __init__(self, loader: Any, world_size: int) -> None:
        self.note = ""
        self._own = sys.maxsize  # samples of this rank without the padding
        self._dealt: int | None = None  # and with it; None where there is none
        self._seen = 0
        batches = getattr(loader, "batch_sampler", None)
        self._batch_size = batches.batch_size if type(batches) is BatchSampler else None  # others may vary
        # a DataLoader with a batch sampler of the user's has an unused default in `sampler`
        sampler = getattr(batches, "sampler", None) or getattr(loader, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            self._deal(sampler)
        elif world_size > 1:
            source = type(getattr(loader, "dataset", loader)).__name__
            self.note = f"the loader of {source} has no DistributedSampler: every rank may see the same samples"

    def _deal(self, sampler: DistributedSampler[Any]) -> None:
        size, ranks = len(sampler.dataset), sampler.num_replicas  # type: ignore[arg-type]
        inner: Any = getattr(sampler.dataset, "_sampler", None)  # Lightning wraps a sampler of the user's
        if ranks > 1 and hasattr(inner, "generator") and inner.generator is None:
            self.note = f"{type(inner).__name__} without a seeded `generator` draws another order on every rank"
        elif len(sampler) * ranks > size:  # not with drop_last, which leaves out instead of repeating
            self._own, self._dealt = len(range(sampler.rank, size, ranks)), len(sampler)

    def take(self, size: int | None) -> int:
        """How many of the next batch's ``size`` samples count: the first ones. A skipped batch has size None."""
        if self._dealt is not None:
            expected = size if self._batch_size is None else min(self._batch_size, self._dealt - self._seen)
            size = expected if size is None else size
            if size is None or size != expected:
                self._lose(size, expected)
        start, self._seen = self._seen, self._seen + (size or 0)
        return max(0, min(size or 0, self._own - start))

    def _lose(self, size: int | None, expected: int | None) -> None:
        """Leave nothing out from here on: where we are in the loader is not known."""
        self._own, self._dealt = sys.maxsize, None
        cause = "a batch of unknown size was skipped"
        if size is not None:
            cause = f"the update's first argument has {size} entries for a batch of {expected} samples"
        self.note = f"{cause}, so that the samples which DistributedSampler repeats cannot be told"


def _length(value: Any) -> int:
    """Number of entries; 0 for what has none (the metric's own check will refuse it)."""
    try:
        return len(value)
    except TypeError:
        return 0


def _first(arguments: dict[str, Any], count: int) -> dict[str, Any]:
    """The first entries of every argument that has one per sample."""
    size = _length(next(iter(arguments.values())))
    return {
        name: value[:count] if isinstance(value, (Tensor, list, tuple)) and _length(value) == size else value
        for name, value in arguments.items()
    }


def _has_ids(arguments: dict[str, Any]) -> bool:
    """Whether every sample has an id: the metric itself then counts it once."""
    target = arguments.get("target")
    if isinstance(target, (list, tuple)):
        return all(isinstance(image, Mapping) and "image_id" in image for image in target)
    return arguments.get("ids") is not None


# --- what is logged --------------------------------------------------------------------------------------------------


class _Logged(Metric):
    """A value that is the same on every rank, in the form in which Lightning leaves it alone.

    Lightning takes a Metric as synchronised already. Of a plain tensor it says on rank 0 that `sync_dist=True` is
    missing, and with that the mean of equal values costs two collectives each and moves the last bit on 3 ranks. And
    where a module logs the same key in the same hook, it refuses this form, but averages two tensors without a word.
    """

    full_state_update = False
    value: Tensor

    def __init__(self, value: float) -> None:
        super().__init__(sync_on_compute=False)
        self.add_state("value", torch.tensor(value, dtype=torch.float64), dist_reduce_fx=None)
        self.update()

    def update(self) -> None:
        """Nothing: the value came with the constructor."""

    def compute(self) -> Tensor:
        """The value, 0-d float64."""
        return self.value


def _plain(value: Any) -> Any:
    """A float where the value is one number; vectors and tables as they are."""
    return value.item() if isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point() else value


def _defined(value: Any) -> bool:
    """Whether this is a number to log: NaN, and -1 in these metrics, say that there was nothing to measure."""
    return isinstance(value, float) and value != -1 and not math.isnan(value)


def _named_loaders(loaders: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The loaders in a (nested) list or dict, in Lightning's order, named by their keys or places."""
    if not isinstance(loaders, (list, tuple, Mapping)):
        yield name, loaders
        return
    for key, loader in loaders.items() if isinstance(loaders, Mapping) else enumerate(loaders):
        yield from _named_loaders(loader, f"{name}/{key}")


class _State:
    """One loader of a running stage: the metric it feeds, and where in the loader we are."""

    def __init__(self, prefix: str, metric: Metric, share: _Share) -> None:
        self.prefix, self.metric, self.share = prefix, metric, share
        self.fed = False

    def results(self) -> dict[str, Any]:
        """Key -> value, over all ranks; one collective call."""
        if not self.share.note and hasattr(self.metric, "distinct_samples"):
            self.metric.distinct_samples = True  # nothing is repeated: the metric need not warn of it
        with warnings.catch_warnings():  # a rank whose every sample was padding has nothing to add
            warnings.filterwarnings("ignore", message="The ``compute`` method of metric .* was called before")
            value = self.metric.compute()
        items = value if isinstance(value, Mapping) else {"map": value}
        return {f"{self.prefix}/{key}": _plain(item) for key, item in items.items()}


class MAPCallback(_Callback):
    """Measures a metric over every validation and test, and logs it: ``val/map``, ``test/map``.

    The value is that of all samples of all ranks, each counted once, with the same bits on every rank:

    - the callback keeps clones of the metric, one per stage and dataloader, on the module's device, which start empty;
    - what DistributedSampler repeats at the end to fill up the ranks is left out, unless the samples have ids: then the
      metric itself counts each once. (A loader without DistributedSampler, such as one of an iterable dataset, and a
      random sampler without a seeded generator cannot be followed: a warning says so; pass ids.)
    - the sanity check is skipped.

    Keys are ``{stage}/{key}``, with a name ``{stage}/{name}/{key}``, with several dataloaders
    ``{stage}/{loader}/{key}``: its key in the dict of loaders, or its place in the list. The key of a metric that
    returns a scalar is ``map``. Scalars are logged, in `on_validation_epoch_end` and `on_test_epoch_end`, so that
    ModelCheckpoint and EarlyStopping can monitor them; vectors, NaN and -1 (nothing to measure) are not.

    Args:
        metric: a metric of this package, or any ``torchmetrics.Metric`` whose `update` names its arguments; it is
            cloned.
        name: tells several of these callbacks in one Trainer apart, in the keys and in the checkpoint.
        feed: ``feed(outputs, batch, dataloader_idx)`` returns the arguments of the metric's `update` as a dict, or None
            to leave a batch out. By default ``outputs`` itself, what `validation_step` or `test_step` returned, is that
            dict. More keys than the arguments are ignored. The first argument holds one entry per sample of the batch.
        prog_bar: whether the progress bar shows ``map`` (or the first key, of a metric that has no such key).

    Attributes:
        values: key -> result of the last stage, a float, or a tensor where it is no scalar; undefined ones (-1) as
            well.
        best: key -> best value logged so far; kept in checkpoints.

    Raises:
        ValueError: if an argument is not as said; if a step returns something else than such a dict; in `setup` if two
            of the Trainer's callbacks have one name.

    Example:
        >>> from map_metrics import RetrievalMAP
        >>> from map_metrics.callbacks import MAPCallback
        >>> callback = MAPCallback(RetrievalMAP(), feed=lambda outputs, batch, dataloader_idx: {
        ...     "preds": outputs["scores"], "target": batch["relevant"]})
    """

    def __init__(
        self, metric: Metric, *, name: str | None = None, feed: Feed | None = None, prog_bar: bool = True
    ) -> None:
        super().__init__()
        if not isinstance(metric, Metric):
            raise ValueError(f"Argument `metric` must be a torchmetrics.Metric, got {type(metric).__name__}")
        if name is not None and not (isinstance(name, str) and name):
            raise ValueError(f"Argument `name` must be None or a string that is not empty, got {name!r}")
        if feed is not None and not callable(feed):
            raise ValueError(f"Argument `feed` must be None or a function, got {type(feed).__name__}")
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = [p for p in inspect.signature(metric.update).parameters.values() if p.kind in kinds]
        if not parameters:
            raise ValueError(f"Argument `metric` must name the arguments of its `update`, got {type(metric).__name__}")
        self.metric, self.name, self.feed, self.prog_bar = metric, name, feed, prog_bar
        self.values: dict[str, Any] = {}
        self.best: dict[str, float] = {}
        self._accepted = [p.name for p in parameters]
        self._required = [p.name for p in parameters if p.default is p.empty]
        self._clones: dict[str, Metric] = {}
        self._states: list[_State] = []
        self._warned = self._set_up = False

    # --- hooks: thin, the work is below ---

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse two callbacks that would log under the same keys: Lightning would average them."""
        others = [c for c in trainer.callbacks if isinstance(c, MAPCallback) and c is not self]
        if any(other.name == self.name for other in others):
            raise ValueError(
                f"Two MAPCallbacks with the name {self.name!r} would log under the same keys; "
                "give each its own: MAPCallback(..., name=...)"
            )
        self._set_up = True

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Start empty."""
        self._start(trainer, pl_module, "val")

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Start empty."""
        self._start(trainer, pl_module, "test")

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Feed the metric."""
        self._update(trainer, "validation_step", outputs, batch, dataloader_idx)

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Feed the metric."""
        self._update(trainer, "test_step", outputs, batch, dataloader_idx)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute and log."""
        self._finish(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute and log."""
        self._finish(trainer, pl_module)

    # --- checkpoints ---

    @property
    def state_key(self) -> str:
        """What the checkpoint calls this callback."""
        # Trainer(...) itself already refuses two equal keys, and does not know what to do about it: `setup` does
        return self._generate_state_key(name=self.name) if self._set_up else f"{type(self).__qualname__}:{id(self)}"

    def state_dict(self) -> dict[str, Any]:
        """The best values: plain Python, which ``torch.load(weights_only=True)`` takes."""
        return {"best": dict(self.best)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the best values."""
        self.best = dict(state_dict["best"])

    # --- a stage ---

    def _start(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if trainer.sanity_checking:
            return
        # trainer.val_dataloaders names the loaders of a fit also in a later trainer.validate(dataloaders=...)
        combined = trainer._evaluation_loop._combined_loader
        sequential = combined._mode == "sequential"  # in the other modes one batch holds a batch of each loader
        loaders = list(_named_loaders(combined.iterables)) if sequential else [("", combined)]
        start = stage if self.name is None else f"{stage}/{self.name}"
        self._states = []
        with torch.inference_mode(False):  # a state made inside could not be updated in a later fit
            for name, loader in loaders:
                prefix = start + (name if len(loaders) > 1 else "")
                if prefix not in self._clones:
                    self._clones[prefix] = self.metric.clone()
                metric = self._clones[prefix].to(pl_module.device)
                metric.reset()
                if hasattr(metric, "distinct_samples"):
                    metric.distinct_samples = self.metric.distinct_samples
                self._states.append(_State(prefix, metric, _Share(loader, trainer.world_size)))

    def _update(self, trainer: Any, step: str, outputs: Any, batch: Any, dataloader_idx: int) -> None:
        if trainer.sanity_checking:
            return
        state = self._states[dataloader_idx]
        given = outputs if self.feed is None else self.feed(outputs, batch, dataloader_idx)
        if given is None and self.feed is not None:
            state.share.take(None)
            return
        arguments = self._arguments(given, step if self.feed is None else "feed")
        size = _length(next(iter(arguments.values())))
        count = state.share.take(size)
        if not _has_ids(arguments):
            self._warn(trainer, state)
            if count < size:
                arguments = _first(arguments, count)
            if count == 0 < size:
                return
        state.metric.update(**arguments)
        state.fed = True

    def _arguments(self, given: Any, source: str) -> dict[str, Any]:
        """The arguments of the metric's `update` among what the step or the feed returned."""
        missing = [name for name in self._required if not (isinstance(given, Mapping) and name in given)]
        if missing:
            came = f"the keys {list(given)}" if isinstance(given, Mapping) else type(given).__name__
            raise ValueError(
                f"`{source}` must return a dict with the arguments of {type(self.metric).__name__}.update, "
                f"{self._required}: {missing} missing, got {came}. Return them, or pass to MAPCallback "
                "`feed=`, a function of (outputs, batch, dataloader_idx) that makes the dict (or None to skip a batch)"
            )
        return {name: given[name] for name in self._accepted if name in given}

    def _warn(self, trainer: Any, state: _State) -> None:
        """Say once, on rank 0, that samples without ids may count twice."""
        known = not state.share.note or getattr(self.metric, "distinct_samples", False)
        if known or self._warned or not trainer.is_global_zero:
            return
        self._warned = True
        warnings.warn(
            f"MAPCallback, {state.prefix}: {state.share.note}. Samples may count more than once. Pass `ids` "
            "(detection: `image_id` in every target) and the metric counts each once",
            UserWarning,
            stacklevel=2,
        )

    def _finish(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        self.values, shown = {}, set()
        for state in self._states:  # in this order on every rank, at once: a lazy compute could run on rank 0 alone
            # a loader that the feed skips everywhere has no value; the ranks must agree on it
            if self.feed is None or trainer.strategy.reduce_boolean_decision(state.fed, all=False):
                results = state.results()
                self.values.update(results)
                shown.add(f"{state.prefix}/map" if f"{state.prefix}/map" in results else next(iter(results), ""))
            with torch.inference_mode(False):
                state.metric.reset()  # the rows are not needed any more
        self._states = []
        better = min if self.metric.higher_is_better is False else max
        for key, value in self.values.items():
            if not _defined(value):
                continue
            shows = self.prog_bar and key in shown
            self.best[key] = better(value, self.best.get(key, value))
            pl_module.log(
                key, _Logged(value), prog_bar=shows, add_dataloader_idx=False, metric_attribute=self.state_key
            )
