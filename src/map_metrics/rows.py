"""RowMetric: a torchmetrics.Metric whose state is tables of rows, gathered exactly on any number of ranks.

A state is an int64 table (rows, columns), or a 1-d int64 stream of blocks where the data decide the width. Floats are
stored as the bit pattern of their float64 value: no cast of a module can touch them, and one table is one collective.
Each list starts with a typed block of zero rows, so ranks with few updates, or none, issue the same collectives as the
others. Rows are copied and detached; a state is replaced or appended to, never written to.

What is overridden of the host, and why, stands at each method; nothing else is.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import rank_zero_warn
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from map_metrics.devices import cpu_by_default
from map_metrics.saved import Header, check_header, plain, read_state, write_state

CPU = torch.device("cpu")
STREAM = 0  # the width of a state that is a 1-d stream of blocks


def bits(values: Tensor) -> Tensor:
    """Floats -> int64 bit patterns of their float64 values; -0.0 is stored as 0.0."""
    return (values.double() + 0.0).view(torch.int64)


def floats(patterns: Tensor) -> Tensor:
    """Inverse of :func:`bits`."""
    return patterns.contiguous().view(torch.float64)


def compute_device(device: torch.device) -> torch.device:
    """Where large counts are made: on a CUDA device, else on the CPU (others lack float64 or integer histograms)."""
    return device if device.type == "cuda" else CPU


class Block(NamedTuple):
    """One block of a stream: rows of int64 and a header of whole numbers that says how to read them."""

    header: tuple[int, ...]
    rows: Tensor


def pack_block(header: Sequence[int], rows: Tensor) -> Tensor:
    """(n, c) rows -> a 1-d stream [n, c, len(header), *header, *rows]; rows are flattened in order."""
    head = torch.tensor([*rows.shape, len(header), *header], device=rows.device)
    return torch.cat([head, rows.reshape(-1)])


def header_of(block: Tensor) -> tuple[int, ...]:
    """The header of a stream's first block."""
    return tuple(block[3 : 3 + int(block[2])].tolist())


def unpack_blocks(stream: Tensor) -> list[Block]:
    """The blocks of a stream on the CPU, those without rows left out."""
    blocks, at = [], 0
    while at < len(stream):
        n, width, extra = stream[at : at + 3].tolist()
        header, start = header_of(stream[at:]), at + 3 + extra
        at = start + n * width
        if n:
            blocks.append(Block(header, stream[start:at].view(n, width)))
    return blocks


def _scalars(value: Any) -> Any:
    """Of a dict, the tensors of one element."""
    if not isinstance(value, dict):
        return value
    return {key: item for key, item in value.items() if isinstance(item, Tensor) and item.numel() == 1}


def _shapes(value: Any) -> dict[Any, Any]:
    """Shapes of the tensors of a (nested) dict."""
    if not isinstance(value, dict):
        return {}
    return {k: item.shape if isinstance(item, Tensor) else _shapes(item) for k, item in value.items()}


def _reshape(value: Any, shapes: dict[Any, Any]) -> None:
    """Give the tensors of a (nested) dict these shapes."""
    for key, shape in shapes.items():
        if isinstance(value[key], Tensor):
            value[key] = value[key].reshape(shape)
        else:
            _reshape(value[key], shape)


def _same(first: Any, second: Any) -> bool:
    return torch.equal(first.cpu(), second.cpu())


class RowMetric(Metric):
    """Base of the metrics of this package.

    Args:
        config: the arguments that change what `update` stores or refuses: metrics that differ in them never share or
            merge states.
        tables: name and number of columns of each state; :data:`STREAM` for a stream.
        kwargs: arguments of ``torchmetrics.Metric``.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    plot_legend_name = "Class"

    distinct_samples: bool = False
    """Set to True where the ranks' samplers repeat no sample: silences the warning about rows without ids."""

    def __init__(self, config: Mapping[str, object], tables: dict[str, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._tables = tables
        self._arguments = dict(config)
        self._warned: set[str] = set()
        digest = hashlib.blake2b(repr((type(self).__name__, sorted(config.items()))).encode(), digest_size=16).digest()
        # values below 256: compute groups compare states with allclose, which takes 100000 for 100001
        self.add_state("config", torch.tensor(list(digest), dtype=torch.int64), dist_reduce_fx="max")
        for name in tables:
            self.add_state(name, [], dist_reduce_fx="cat")
        self._seed()

    def _seed(self) -> None:
        for name, width in self._tables.items():
            shape = (0, width) if width != STREAM else (0,)
            setattr(self, name, [torch.zeros(shape, dtype=torch.int64, device=self.device)])

    # --- what subclasses use ---

    def append(self, **blocks: Tensor) -> None:
        """Add freshly made rows to the tables; called last in `update`, when every check has passed."""
        if self._is_synced:
            raise TorchMetricsUserError("The Metric is synced: call `unsync` before `update`.")
        ready = {name: block.detach().to(self.device, torch.int64) for name, block in blocks.items()}
        for name, block in ready.items():
            if len(block):
                getattr(self, name).append(block)

    def table(self, name: str) -> Tensor:
        """All rows of a state on the CPU: of this rank, or of every rank (in rank order) while synced."""
        state = getattr(self, name)
        blocks = [state] if isinstance(state, Tensor) else state
        filled = [block for block in blocks if len(block)] or list(blocks[:1])
        return (torch.cat(filled) if len(filled) > 1 else filled[0]).cpu()

    def warn_once(self, topic: str, message: str) -> None:
        """A UserWarning on rank 0, once in the life of the metric."""
        if topic not in self._warned:
            self._warned.add(topic)
            rank_zero_warn(message, UserWarning)

    def warn_unnamed(self, what: str) -> None:
        """Warn, once, that samples without ids cannot be told from repeated ones on more than one rank."""
        one_rank = torch.distributed.is_initialized() and torch.distributed.get_world_size(self.process_group) == 1
        if self._is_synced and not self.distinct_samples and not one_rank:
            self.warn_once(
                "unnamed",
                f"{type(self).__name__} gathered {what} without ids from several ranks. A sample that the sampler "
                "repeated (DistributedSampler pads) counts twice, and the order of equal scores follows the ranks "
                "where the tie rule depends on order. Pass ids, or set `metric.distinct_samples = True` if none is "
                "repeated.",
            )

    def result(self) -> Any:
        """The breakdown behind `compute`, from the same states: gathered from all ranks, then released again.

        Like `compute`, this is a collective call: every rank must make it.
        """
        return self._gathered(self._result)

    def _gathered(self, call: Callable[[], Any]) -> Any:
        """Call with the rows of every rank in the tables."""
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
        ):
            return self._guarded(call)()

    def _is_first_rank(self) -> bool:
        """Whether this is the first rank, or the only one."""
        return not torch.distributed.is_initialized() or torch.distributed.get_rank(self.process_group) == 0

    def save(self, path: str | Path, note: Mapping[str, Any] | None = None) -> None:
        """Write the state to one file (npz, without pickle), so that other numbers can be computed later.

        What `compute` does with the rows (cut-offs, denominators, a detection protocol) may differ when the file is
        loaded; what `update` did may not. Like `compute`, this is a collective call: the first rank writes the rows of
        all. A file in its place is replaced at once, when all is written.

        Args:
            path: of the file.
            note: plain JSON to keep beside the state, such as names; `load` returns it.

        Example:
            >>> import tempfile, torch
            >>> from map_metrics import RetrievalMAP
            >>> metric = RetrievalMAP()
            >>> metric.update(torch.tensor([[0.9, 0.1, 0.2]]), torch.tensor([[0, 1, 1]]))
            >>> path = f"{tempfile.mkdtemp()}/state.npz"
            >>> metric.save(path, note={"model": "a"})
            >>> other = RetrievalMAP(top_k=2, denominator="min")
            >>> other.load(path)
            {'model': 'a'}
            >>> metric.compute(), other.compute()
            (tensor(0.5833, dtype=torch.float64), tensor(0.2500, dtype=torch.float64))
        """

        def write() -> None:
            tables = {name: self.table(name) for name in self._tables}
            if self._is_first_rank():
                write_state(path, Header(type(self).__name__, plain(self._arguments), dict(note or {})), tables)

        self._gathered(write)

    def load(self, path: str | Path) -> dict[str, Any]:
        """Replace the state of this rank by one that `save` wrote; on several ranks, load it on one of them.

        Returns:
            The note that was saved with it.

        Raises:
            ValueError: if the file is no saved state, or one of another class or of arguments under which `update`
                stores something else, naming what differs; the state stays as it was.
        """
        if self._is_synced:
            raise TorchMetricsUserError("The Metric is synced: call `unsync` before `load`.")
        header, tables = read_state(path)
        check_header(path, header, type(self).__name__, self._arguments)
        broken = self._broken(tables) or next((name for name in self._tables if name not in tables), None)
        if broken is not None:
            raise ValueError(f"{path}: the table `{broken}` is missing or broken")
        self.reset()
        self.append(**{name: tables[name] for name in self._tables})
        self._update_count = int(any(len(tables[name]) for name in self._tables))
        return header.note

    def _result(self) -> Any:
        raise NotImplementedError

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot a value of `compute` (by default the current one), or a list of them, as torchmetrics does.

        Of a dict only the scalars are drawn. Needs matplotlib: ``pip install "torchmetrics-map[plot]"``.

        Returns:
            The figure and its axes.
        """
        val = self.compute() if val is None else val
        values = [_scalars(v) for v in val] if isinstance(val, list | tuple) else _scalars(val)
        return self._plot(values, ax)

    def _check_config(self) -> None:
        if not _same(self.config, self._defaults["config"]):
            raise ValueError(
                f"{type(self).__name__}: the states hold rows of a metric with other arguments (another rank, a loaded "
                "state or a merged one); metrics that share states need equal arguments"
            )

    @contextlib.contextmanager
    def _exchanging(self, what: str) -> Iterator[None]:
        """Around every exchange with other ranks: what torch says of one that failed names no metric and no cure."""
        try:
            yield
        except RuntimeError as err:
            raise RuntimeError(
                f"{type(self).__name__}: the ranks could not exchange {what}. Did another rank end (its own error "
                "tells why) or take longer than the timeout of the process group? `compute`, `result` and `sync` must "
                "be called on every rank, with new batches since the last call on every rank or on none (a metric "
                "without new ones answers from its cache). The rows of this rank are kept; the process group may be "
                "broken: a new one can be set as `metric.process_group`."
            ) from err

    # --- overrides of the host ---

    def _sync_dist(
        self, dist_sync_fn: Callable[..., list[Tensor]] = gather_all_tensors, process_group: Any = None
    ) -> None:
        """An error that names the metric and the cure; the host would keep its copy of the states."""
        try:
            with self._exchanging("their states"):
                super()._sync_dist(dist_sync_fn, process_group)
        except BaseException:
            self._cache = None
            raise

    def reset(self) -> None:
        """Forget all rows; new lists first: the host clears in place, which empties every alias (`Running`)."""
        for name in self._tables:
            setattr(self, name, [])
        super().reset()
        self._seed()

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Update, and return the value of this batch alone. Costs a copy of the states: prefer `update` in a loop.

        The host resets before it updates: a refused batch would lose every row and leave syncing switched off.
        """
        states = {name: getattr(self, name) for name in self._defaults}
        states = {name: list(value) if isinstance(value, list) else value for name, value in states.items()}
        names = ("_update_count", "_computed", "_is_synced", "_cache", "compute_on_cpu")
        kept = {name: getattr(self, name) for name in names}
        try:
            return super().forward(*args, **kwargs)
        except BaseException:
            settings = {"_to_sync": self.sync_on_compute, "_should_unsync": True, "_enable_grad": False}
            for name, value in {**states, **kept, **settings}.items():
                setattr(self, name, value)
            raise

    def _wrap_update(self, update: Callable[..., None]) -> Callable[..., None]:
        """The host counts an update before it runs: a refused batch must not count."""
        counted = super()._wrap_update(update)

        @functools.wraps(update)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            kept = self._update_count, self._computed
            try:
                with cpu_by_default():
                    counted(*args, **kwargs)
            except BaseException:
                self._update_count, self._computed = kept
                raise

        return wrapped

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The host has no try/finally around its sync: an error inside would leave the gathered rows as local ones."""

        @functools.wraps(call)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                self._check_config()
                with cpu_by_default():
                    return call(*args, **kwargs)
            except BaseException:
                if self._is_synced and self._should_unsync:
                    self.unsync()
                raise

        return guarded

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """The host squeezes one-element vectors to scalars: give them their shape back."""
        shapes: dict[Any, Any] = {}

        @functools.wraps(compute)
        def remembered(*args: Any, **kwargs: Any) -> Any:
            value = compute(*args, **kwargs)
            shapes.clear()
            shapes.update(_shapes(value))
            return value

        host = super()._wrap_compute(self._guarded(remembered))

        @functools.wraps(compute)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            value = host(*args, **kwargs)
            _reshape(value, shapes)
            return value

        return wrapped

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the rows of another metric (or of a dict of states) behind this metric's own.

        The host puts the incoming rows first, keeps a stale cached value and does not add up the updates.

        Raises:
            ValueError: if the other one is of another class or was made with other arguments.
        """
        if self._is_synced:
            raise TorchMetricsUserError("The Metric is synced: call `unsync` before `merge_state`.")
        if isinstance(incoming_state, Metric):
            if type(incoming_state) is not type(self):
                raise ValueError(
                    f"Expected incoming state to be an instance of {type(self).__name__} but got {type(incoming_state)}"
                )
            if incoming_state._is_synced:
                raise TorchMetricsUserError("The other Metric is synced, it holds the rows of every rank: `unsync` it.")
            count, states = incoming_state._update_count, dict(incoming_state.metric_state)
        elif isinstance(incoming_state, dict):
            count, states = 1, incoming_state
        else:
            raise ValueError(
                f"Expected incoming state to be a dict or an instance of Metric but got {type(incoming_state)}"
            )
        missing = [name for name in self._defaults if name not in states]
        if missing:
            raise ValueError(f"Expected state variable {missing[0]} to be present in incoming state")
        broken = self._broken(states)
        if broken is not None:
            raise ValueError(
                f"merge_state: state `{broken}` must be an int64 tensor, or a list of them, of its own width"
            )
        if not _same(states["config"], self.config):
            raise ValueError(f"merge_state: the other {type(self).__name__} was made with other arguments")
        for name in self._tables:
            incoming: Any = states[name] if isinstance(states[name], list) else [states[name]]
            copies = [block.detach().to(self.device, copy=True) for block in incoming]
            setattr(self, name, [*getattr(self, name), *copies])
        self._update_count += count
        self._computed = None

    def _broken(self, states: Mapping[str, Any]) -> str | None:
        """The name of a state that is not what this metric would hold."""
        for name, state in states.items():
            width = self._tables.get(name, STREAM)
            blocks = state if isinstance(state, list) and name in self._tables else [state]
            for block in blocks:
                if not isinstance(block, Tensor) or block.dtype != torch.int64:
                    return name
                if block.ndim != (1 if width == STREAM else 2) or (width != STREAM and block.shape[1] != width):
                    return name
        return None

    def set_dtype(self, dst_type: str | torch.dtype) -> RowMetric:
        """No effect: the host would cast the int64 tables."""
        return self

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Other arguments are an error. The host shares the loaded lists and forgets that they were updates."""
        states = {name: state_dict[prefix + name] for name in self._defaults if prefix + name in state_dict}
        broken = self._broken(states)
        other = broken is None and "config" in states and not _same(states["config"], self.config)
        if broken is not None or other:
            what = "is of a metric with other arguments" if other else f"has a broken table `{broken}`"
            error_msgs.append(f"{type(self).__name__}: the saved state {what}.")
            for name in self._defaults:
                state_dict.pop(prefix + name, None)
        loaded = any(prefix + name in state_dict for name in self._tables)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if loaded:
            for name in self._tables:  # the host takes the very lists of the dict
                state = getattr(self, name)
                blocks = state if isinstance(state, list) else [state]
                setattr(self, name, [block.detach().to(self.device, copy=True) for block in blocks])
            self._computed = None
            self._update_count = max(self._update_count, int(any(len(self.table(name)) for name in self._tables)))
