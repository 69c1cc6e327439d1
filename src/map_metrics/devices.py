"""Tensors that name no device are made on the CPU, whatever ``torch.set_default_device`` says."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)


def cpu_by_default() -> contextlib.AbstractContextManager[Any]:
    """Nothing where the default is the CPU already: torch's own context costs time in every call of torch."""
    return contextlib.nullcontext() if torch.empty(0).device.type == "cpu" else torch.device("cpu")


def on_cpu(call: Callable[P, T]) -> Callable[P, T]:
    """The function, with the CPU as default device inside."""

    @functools.wraps(call)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with cpu_by_default():
            return call(*args, **kwargs)

    return wrapped


def methods_on_cpu(cls: C) -> C:
    """The class, with the CPU as default device inside all of its methods and properties."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, functools.cached_property):
            member.func = on_cpu(member.func)
        elif isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(on_cpu(member.fget)))
        elif isinstance(member, FunctionType) and not name.startswith("__"):
            setattr(cls, name, on_cpu(member))
    return cls
