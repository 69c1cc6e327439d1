"""The dataloaders of a running stage: which samples are a rank's own and not a repetition, and whom they feed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import BatchSampler, DistributedSampler
from torchmetrics import Metric

from map_metrics.views import Result


class Share:
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


def length(value: Any) -> int:
    """Number of entries; 0 for what has none (the metric's own check will refuse it)."""
    try:
        return len(value)
    except TypeError:
        return 0


def first(arguments: dict[str, Any], count: int) -> dict[str, Any]:
    """The first entries of every argument that has one per sample."""
    size = length(next(iter(arguments.values())))
    return {
        name: value[:count] if isinstance(value, (Tensor, list, tuple)) and length(value) == size else value
        for name, value in arguments.items()
    }


def has_ids(arguments: dict[str, Any]) -> bool:
    """Whether every sample has an id: the metric itself then counts it once."""
    target = arguments.get("target")
    if isinstance(target, (list, tuple)):
        return all(isinstance(image, Mapping) and "image_id" in image for image in target)
    return arguments.get("ids") is not None


def named_loaders(loaders: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The loaders in a (nested) list or dict, in Lightning's order, named by their keys or places."""
    if not isinstance(loaders, (list, tuple, Mapping)):
        yield name, loaders
        return
    for key, loader in loaders.items() if isinstance(loaders, Mapping) else enumerate(loaders):
        yield from named_loaders(loader, f"{name}/{key}")


class State:
    """What a running stage measures under one prefix of keys: the metric, and the shares of its loaders."""

    def __init__(self, prefix: str, metric: Metric) -> None:
        self.prefix, self.metric = prefix, metric
        self.shares: list[Share] = []
        self.fed = False

    def compute(self) -> Any:
        """The value over all ranks; one collective call."""
        with self._ready():
            return self.metric.compute()

    def result(self) -> Result:
        """What stands behind it; one collective call."""
        with self._ready():
            return self.metric.result()  # type: ignore[operator]

    @contextmanager
    def _ready(self) -> Iterator[None]:
        if not any(share.note for share in self.shares) and hasattr(self.metric, "distinct_samples"):
            self.metric.distinct_samples = True  # nothing is repeated: the metric need not warn of it
        with warnings.catch_warnings():  # a rank whose every sample was padding has nothing to add
            warnings.filterwarnings("ignore", message="The ``compute`` method of metric .* was called before")
            yield


class Place(NamedTuple):
    """One loader of a running stage: what it feeds, where in it we are, and arguments that are the same throughout."""

    state: State
    share: Share
    fixed: dict[str, Any]


def roles(query_loader: Any, gallery_loader: Any, arguments: list[str]) -> dict[str, dict[str, Any]]:
    """Name of a loader -> the arguments of `update` that it stands for; empty where none is named."""
    if query_loader is None and gallery_loader is None:
        return {}
    valid = all(isinstance(name, str | int) and not isinstance(name, bool) for name in (query_loader, gallery_loader))
    if not valid or str(query_loader) == str(gallery_loader):
        raise ValueError(
            "Arguments `query_loader` and `gallery_loader` must be the names or places of two dataloaders, got "
            f"{query_loader!r} and {gallery_loader!r}"
        )
    if "query" not in arguments:
        raise ValueError("Arguments `query_loader` and `gallery_loader` need a metric whose `update` takes `query`")
    return {str(query_loader): {"query": True}, str(gallery_loader): {"query": False}}
