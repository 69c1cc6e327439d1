"""A Lightning callback that measures a metric over validation and test, and logs the exact value of all ranks.

    trainer = Trainer(callbacks=[MAPCallback(RetrievalMAP()), ModelCheckpoint(monitor="val/map", mode="max")])

It works with ``lightning.pytorch`` and with ``pytorch_lightning``.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric

from map_metrics import views
from map_metrics.conventions import flag
from map_metrics.loggers import log_figure, log_table, render
from map_metrics.rows import RowMetric
from map_metrics.shares import Place, Share, State, first, has_ids, length, named_loaders, roles

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

    Figures and tables go to every logger of the Trainer, at the step of the scalars, from rank 0: see
    :mod:`map_metrics.loggers`. One that fails is a warning with its cause, and training goes on.

    Args:
        metric: a metric of this package, or any ``torchmetrics.Metric`` whose `update` names its arguments; it is
            cloned.
        name: tells several of these callbacks in one Trainer apart, in the keys and in the checkpoint.
        feed: ``feed(outputs, batch, dataloader_idx)`` returns the arguments of the metric's `update` as a dict, or None
            to leave a batch out. By default ``outputs`` itself, what `validation_step` or `test_step` returned, is that
            dict. More keys than the arguments are ignored. The first argument holds one entry per sample of the batch.
        prog_bar: whether the progress bar shows ``map`` (or the first key, of a metric that has no such key).
        extra: names of scalars to log beside the value: ``"chance"``, the value of a random order; ``"precision@5"``
            and ``"recall@10"``, for any cut-off; of hashing ``"precision_within@2"``, for any Hamming radius; of
            detection ``"classes"``, the AP of each class as ``ap/{its name}``.
        figures: whether to log pictures: ``pr_curve``; of detection ``ap_per_class``; of the others ``ap_per_query``,
            and of hashing ``hamming_radius``. Needs matplotlib.
        tables: whether to log tables: of detection ``classes`` and ``worst_images``, of the others ``worst_queries``.
        query_loader: of a hashing or embedding metric, the dataloader whose samples are the queries: its key in the
            dict of loaders, or its place in the list. The step then returns no ``query``, and keys name no loader.
        gallery_loader: the one whose samples are the gallery. Other loaders are left to other callbacks.

    Attributes:
        values: key -> result of the last stage, a float, or a tensor where it is no scalar; undefined ones (-1) as
            well.
        best: key -> best value logged so far; kept in checkpoints.
        history: key -> (step, value) of every stage in which it was logged; kept in checkpoints.

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
        self,
        metric: Metric,
        *,
        name: str | None = None,
        feed: Feed | None = None,
        prog_bar: bool = True,
        extra: Sequence[str] = (),
        figures: bool = False,
        tables: bool = False,
        query_loader: str | int | None = None,
        gallery_loader: str | int | None = None,
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
        self.extra, self.figures, self.tables = (
            views.check_extra(extra, metric),
            flag("figures", figures),
            flag("tables", tables),
        )
        if (figures or tables) and not isinstance(metric, RowMetric):
            raise ValueError(f"Arguments `figures` and `tables` need a metric of this package, got {metric}")
        self.values: dict[str, Any] = {}
        self.best: dict[str, float] = {}
        self.history: dict[str, list[tuple[int, float]]] = {}
        self._fixed = roles(query_loader, gallery_loader, [p.name for p in parameters])
        self._accepted = [p.name for p in parameters]
        self._required = [
            p.name for p in parameters if p.default is p.empty and not (self._fixed and p.name == "query")
        ]
        self._clones: dict[str, Metric] = {}
        self._places: list[Place | None] = []  # one per loader; None: another callback's
        self._said: set[str] = set()
        self._set_up = False

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
        """The best values and the history: plain Python, which ``torch.load(weights_only=True)`` takes."""
        return {"best": dict(self.best), "history": {key: list(rows) for key, rows in self.history.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the best values and the history, which checkpoints of the first versions lack."""
        self.best = dict(state_dict["best"])
        self.history = {key: list(rows) for key, rows in state_dict.get("history", {}).items()}

    # --- a stage ---

    def _start(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if trainer.sanity_checking:
            return
        # trainer.val_dataloaders names the loaders of a fit also in a later trainer.validate(dataloaders=...)
        combined = trainer._evaluation_loop._combined_loader
        sequential = combined._mode == "sequential"  # in the other modes one batch holds a batch of each loader
        loaders = list(named_loaders(combined.iterables)) if sequential else [("", combined)]
        start = stage if self.name is None else f"{stage}/{self.name}"
        names = [name.removeprefix("/") for name, _ in loaders]
        if not self._fixed.keys() <= set(names):
            raise ValueError(
                f"Arguments `query_loader` and `gallery_loader` must name dataloaders, got {list(self._fixed)}; "
                f"those of {stage} are {names}"
            )
        states: dict[str, State] = {}
        self._places = []
        with torch.inference_mode(False):  # a state made inside could not be updated in a later fit
            for name, (_, loader) in zip(names, loaders, strict=True):
                if self._fixed and name not in self._fixed:
                    self._places.append(None)
                    continue
                prefix = f"{start}/{name}" if len(loaders) > 1 and not self._fixed else start
                if prefix not in states:
                    states[prefix] = State(prefix, self._clone(prefix, pl_module.device))
                share = Share(loader, trainer.world_size)
                states[prefix].shares.append(share)
                self._places.append(Place(states[prefix], share, self._fixed.get(name, {})))

    def _clone(self, prefix: str, device: torch.device) -> Metric:
        """The metric of this prefix, empty."""
        if prefix not in self._clones:
            self._clones[prefix] = self.metric.clone()
        metric = self._clones[prefix].to(device)
        metric.reset()
        if hasattr(metric, "distinct_samples"):
            metric.distinct_samples = self.metric.distinct_samples
        return metric

    def _update(self, trainer: Any, step: str, outputs: Any, batch: Any, dataloader_idx: int) -> None:
        if trainer.sanity_checking or (place := self._places[dataloader_idx]) is None:
            return
        given = outputs if self.feed is None else self.feed(outputs, batch, dataloader_idx)
        if given is None and self.feed is not None:
            place.share.take(None)
            return
        arguments = self._arguments(given, step if self.feed is None else "feed")
        size = length(next(iter(arguments.values())))
        count = place.share.take(size)
        if not has_ids(arguments):
            self._warn_of_repeats(trainer, place)
            if count < size:
                arguments = first(arguments, count)
            if count == 0 < size:
                return
        place.state.metric.update(**{**arguments, **place.fixed})
        place.state.fed = True

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

    def _warn_of_repeats(self, trainer: Any, place: Place) -> None:
        """Say once, on rank 0, that samples without ids may count twice."""
        known = not place.share.note or getattr(self.metric, "distinct_samples", False)
        if known or "repeats" in self._said or not trainer.is_global_zero:
            return
        self._said.add("repeats")
        warnings.warn(
            f"MAPCallback, {place.state.prefix}: {place.share.note}. Samples may count more than once. Pass `ids` "
            "(detection: `image_id` in every target) and the metric counts each once",
            UserWarning,
            stacklevel=2,
        )

    def _finish(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        states = dict.fromkeys(place.state for place in self._places if place is not None)
        self.values, self._places = {}, []
        shown, results = set(), {}
        for state in states:  # in this order on every rank, at once: a lazy compute could run on rank 0 alone
            # a loader that the feed skips everywhere has no value; the ranks must agree on it
            if self.feed is None or trainer.strategy.reduce_boolean_decision(state.fed, all=False):
                values, results[state.prefix] = self._evaluate(state)
                self.values.update(values)
                shown.add(f"{state.prefix}/map" if f"{state.prefix}/map" in values else next(iter(values), ""))
            with torch.inference_mode(False):
                state.metric.reset()  # the rows are not needed any more
        self._log_values(pl_module, shown, step := trainer.fit_loop.epoch_loop._batches_that_stepped)
        if trainer.is_global_zero and trainer.loggers:
            for prefix, result in results.items():
                self._illustrate(trainer.loggers, prefix, result, step)

    def _evaluate(self, state: State) -> tuple[dict[str, Any], Any]:
        """Key -> value, and what stands behind it where that is asked for: then the value comes from there as well."""
        if not (self.extra or self.figures or self.tables):
            result, found = None, views.named(state.compute())
        else:
            result = state.result()
            found = views.numbers(result, self.extra)
        return {f"{state.prefix}/{key}": value for key, value in found.items()}, result

    def _log_values(self, pl_module: Any, shown: set[str], step: int) -> None:
        better = min if self.metric.higher_is_better is False else max
        for key, value in self.values.items():
            if not views.defined(value):
                continue
            shows = self.prog_bar and key in shown
            self.best[key] = better(value, self.best.get(key, value))
            self.history.setdefault(key, []).append((step, value))
            pl_module.log(
                key, _Logged(value), prog_bar=shows, add_dataloader_idx=False, metric_attribute=self.state_key
            )

    # --- figures and tables, on rank 0 ---

    def _illustrate(self, loggers: list[Any], prefix: str, result: Any, step: int) -> None:
        """To every logger, at the step at which Lightning logs the scalars."""
        for picture in self._survivors(f"{prefix}: figures", lambda: views.pictures(result) if self.figures else ()):
            key = f"{prefix}/{picture.name}"
            with self._warning_instead(key):
                png = render(picture.draw()[0])  # once: drawing takes longer than logging
                for logger in loggers:
                    with self._warning_instead(f"{key} to {type(logger).__name__}"):
                        log_figure(logger, key, png, step, picture.curves)
        for table in self._survivors(f"{prefix}: tables", lambda: views.tables(result) if self.tables else ()):
            key = f"{prefix}/{table.name}"
            for logger in loggers:
                with self._warning_instead(f"{key} to {type(logger).__name__}"):
                    log_table(logger, key, table.columns, table.rows, step)

    def _survivors(self, what: str, items: Callable[[], Any]) -> Iterator[Any]:
        with self._warning_instead(what):
            yield from list(items())

    @contextmanager
    def _warning_instead(self, what: str) -> Iterator[None]:
        """Whatever goes wrong in a drawing must not end a training: say so, once for each cause."""
        try:
            yield
        except Exception as error:
            cause = f"MAPCallback could not log {what}: {type(error).__name__}: {error}"
            if cause not in self._said:
                self._said.add(cause)
                warnings.warn(cause, UserWarning, stacklevel=2)
