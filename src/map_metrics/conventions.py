"""The named conventions behind an average precision: one frozen record, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

TopK = int | Literal["R"] | Sequence[int] | None
Aggregation = str | Callable[[Tensor], Tensor]

DENOMINATORS = ("relevant", "min", "hits", "k")
EMPTY_ACTIONS = ("neg", "pos", "skip", "error")
AGGREGATIONS = ("mean", "median", "min", "max")
TIES_OF = {  # which tie rules have a definition under which interpolation
    "step": ("expected", "optimistic", "pessimistic", "stable", "threshold"),
    "trapezoid": ("expected", "stable"),
    "envelope": ("stable", "threshold"),
    "11-point": ("stable", "threshold"),
    "40-point": ("stable", "threshold"),
    "101-point": ("stable", "threshold"),
}


@dataclass(frozen=True)
class Conventions:
    """How a ranking becomes a number.

    Attributes:
        top_k: cut-off: None, a positive int, ``"R"`` (each query's own number of relevant items), or a sequence of
            ints.
        denominator: ``"relevant"`` R (trec_eval, ranx), ``"min"`` min(R, k) (Kaggle, sentence-transformers), ``"hits"``
            the relevant items found in the first k (hashing papers, torchmetrics), ``"k"``.
        ties: ``"expected"``, ``"optimistic"``, ``"pessimistic"``, ``"stable"`` or ``"threshold"``.
        interpolation: ``"step"``, ``"trapezoid"``, ``"envelope"``, ``"11-point"``, ``"40-point"`` or ``"101-point"``.
        empty_target_action: value of a query without relevant items: ``"neg"`` 0, ``"pos"`` 1, ``"skip"``, ``"error"``.
        aggregation: ``"mean"``, ``"median"`` (the lower one, as torch), ``"min"``, ``"max"`` or a function of the
            float64 vector of APs.

    Raises:
        ValueError: if a value, or a pair of values, has no definition.
    """

    top_k: TopK = None
    denominator: str = "relevant"
    ties: str = "expected"
    interpolation: str = "step"
    empty_target_action: str = "neg"
    aggregation: Aggregation = "mean"

    def __post_init__(self) -> None:
        object.__setattr__(self, "top_k", _checked_top_k(self.top_k))
        one_of("denominator", self.denominator, DENOMINATORS)
        one_of("interpolation", self.interpolation, tuple(TIES_OF))
        one_of("ties", self.ties, TIES_OF["step"])
        one_of("empty_target_action", self.empty_target_action, EMPTY_ACTIONS)
        if not callable(self.aggregation):
            one_of("aggregation", self.aggregation, AGGREGATIONS, "or a function of the vector of APs")
        if self.ties not in TIES_OF[self.interpolation]:
            raise ValueError(
                f"Argument `ties` must be one of {TIES_OF[self.interpolation]} with interpolation="
                f"{self.interpolation!r}, got {self.ties!r}"
            )
        if self.ties == "threshold" and self.cutoffs != (None,):
            raise ValueError(
                f"Argument `ties`='threshold' has one point per distinct score and so no `top_k`, got {self.top_k!r}"
            )
        if self.denominator == "k" and None in self.cutoffs:
            raise ValueError("Argument `denominator`='k' needs a `top_k`, got None")

    @property
    def cutoffs(self) -> tuple[int | Literal["R"] | None, ...]:
        """Every cut-off asked for, as a tuple."""
        return self.top_k if isinstance(self.top_k, tuple) else (self.top_k,)

    def aggregate(self, ap: Tensor) -> Tensor:
        """The vector of the queries' APs -> one 0-d float64; the mean does not depend on the order of the queries.

        Raises:
            ValueError: if a function of the user's returns anything but one number.
        """
        if not len(ap):
            rank_zero_warn("No query to average over: the mean average precision is reported as 0.0.", UserWarning)
            return torch.tensor(0.0, dtype=torch.float64)
        if callable(self.aggregation):
            value = torch.as_tensor(self.aggregation(ap))
            if value.numel() != 1:
                raise ValueError(f"Argument `aggregation` must return one number, got the shape {tuple(value.shape)}")
            return value.double().reshape(())
        if self.aggregation == "mean":  # an exact sum; torch.mean depends on the order
            return torch.tensor(math.fsum(ap.tolist()) / len(ap), dtype=torch.float64)
        reduced: Tensor = getattr(torch, self.aggregation)(ap)
        return reduced


def _checked_top_k(top_k: TopK) -> int | Literal["R"] | tuple[int, ...] | None:
    if top_k is None or (isinstance(top_k, str) and top_k == "R"):
        return top_k
    several = isinstance(top_k, Sequence) and not isinstance(top_k, str | bytes)
    cutoffs: list[Any] = [*top_k] if several else [top_k]  # type: ignore[misc]
    valid = all(isinstance(k, Integral) and not isinstance(k, bool) and int(k) > 0 for k in cutoffs)
    if not cutoffs or not valid or len(set(cutoffs)) < len(cutoffs):
        raise ValueError(
            f"Argument `top_k` must be None, a positive int, 'R' or a sequence of distinct positive ints, got {top_k!r}"
        )
    return tuple(int(k) for k in cutoffs) if several else int(cutoffs[0])


def flag(name: str, value: object) -> bool:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise ValueError(f"Argument `{name}` must be True or False, got {value!r}")
    return value


def one_of(name: str, value: object, allowed: tuple[str, ...], more: str = "") -> None:
    """Refuse a value that is not one of the named ones."""
    if not (isinstance(value, str) and value in allowed):
        raise ValueError(f"Argument `{name}` must be one of {allowed}{more and ' ' + more}, got {value!r}")
