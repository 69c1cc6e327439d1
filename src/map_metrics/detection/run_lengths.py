"""COCO's run-length codes of masks: decoded, checked and cut to strips, all of a batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from map_metrics.detection.masks import Strips
from map_metrics.detection.pairs import Integers, ranges

LONGEST = 7  # characters of a count, 5 bits each


class Place:
    """Names the image and the row of a mask."""

    def __init__(self, name: str, counts: Integers, size: Integers) -> None:
        self.name, self.counts, self.size = name, counts, size

    def refuse(self, bad: NDArray[np.bool_], rows: Integers, message: str, got: Sequence[Any] | Integers) -> None:
        """Raise for the first of ``rows`` that is bad, if any; ``got`` holds what came for each."""
        if not bad.any():
            return
        at = int(np.flatnonzero(bad)[0])
        image = int(np.searchsorted(self.counts.cumsum(), rows[at], side="right"))
        row = rows[at] - self.counts[:image].sum()
        height, width = self.size[rows[at]]
        message = message.format(pixels=f"{height} x {width}")
        raise ValueError(f"{self.name}[{image}]['masks'] must {message}, got {short(got[at])} in row {row}")


def short(value: Any) -> str:
    """A value as it stands in a message."""
    text = str(value) if isinstance(value, np.integer) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class Runs(NamedTuple):
    """Runs of pixels down the columns, outside and inside a mask by turns, of masks one after the other.

    Attributes:
        outside: (runs,) int64, length of the run before each.
        inside: (runs,) int64, length of each run, 0 where a mask ends outside.
        number: (masks,) int64, how many runs each mask has.
    """

    outside: Integers
    inside: Integers
    number: Integers

    @classmethod
    def of(cls, counts: Integers, length: Integers) -> Runs:
        """From the counts of all masks and how many each has."""
        number = (length + 1) // 2
        is_count = np.ones(2 * number.sum(), np.bool_)
        is_count[2 * number.cumsum()[length % 2 == 1] - 1] = False
        padded = np.zeros(len(is_count), np.int64)
        padded[np.flatnonzero(is_count)] = counts
        return cls(padded[::2].copy(), padded[1::2].copy(), number)


def join(place: Place, rows: Integers, codes: Sequence[Integers]) -> Runs:
    """Plain counts."""
    length = np.fromiter(map(len, codes), np.int64, len(codes))
    place.refuse(length == 0, rows, "have counts that add up to {pixels}", codes)
    return Runs.of(np.concatenate(codes), length)


def unpack(place: Place, rows: Integers, codes: Sequence[bytes]) -> Runs:
    """COCO's compressed strings.

    A count is written in characters of 5 bits, low ones first, from ``chr(48)``, the sixth bit telling that more
    follow; from the fourth count on, it is the difference to the last but one (``rleFrString`` in maskApi.c).
    """
    length = np.fromiter(map(len, codes), np.int64, len(codes))
    place.refuse(length == 0, rows, "have counts that add up to {pixels}", codes)
    character = np.frombuffer(b"".join(codes), np.uint8) - np.uint8(48)
    is_last = character < 32  # of a count
    stop = length.cumsum()
    if character.max() > 63 or not is_last[stop - 1].all():
        bad = np.maximum.reduceat(character, stop - length) > 63
        place.refuse(bad | ~is_last[stop - 1], rows, "have compressed counts of COCO's alphabet", codes)
    last = np.flatnonzero(is_last)
    value = ((character[last].view(np.int8) ^ 16) - 16).astype(np.int64)  # 5 bits in two's complement
    before = np.flatnonzero(~is_last)
    count = before - np.arange(len(before))  # which one a character belongs to: the number of last ones before it
    nearest = np.flatnonzero(is_last[before + 1])
    for _ in range(LONGEST):
        before, count = before[nearest], count[nearest]
        value[count] = value[count] * 32 + (character[before] & 31)
        before -= 1
        nearest = np.flatnonzero(~is_last[before])
        if not len(nearest):
            break
    too_long = np.bincount(np.searchsorted(stop, before[nearest], side="right"), minlength=len(rows)) > 0
    place.refuse(too_long, rows, "have compressed counts below 2^32", codes)
    return _sums(value, np.diff(np.searchsorted(last, stop), prepend=0))


def _sums(counts: Integers, length: Integers) -> Runs:
    """Counts of which, from a mask's fourth on, each is given as the difference to the last but one."""
    runs = Runs.of(counts, length)
    start = runs.number.cumsum() - runs.number
    second = start[runs.number > 1] + 1
    runs.outside[second] -= runs.outside[second - 1]  # the third count is itself
    for side in (runs.outside, runs.inside):
        side[start[1:]] -= np.add.reduceat(side, start)[:-1]  # each mask begins anew
        np.cumsum(side, out=side)
    runs.inside[(start + runs.number - 1)[length % 2 == 1]] = 0
    return runs


def strips_of_runs(place: Place, rows: Integers, runs: Runs) -> Strips:
    """Strips of the masks of these rows."""
    stop = runs.number.cumsum()
    start = stop - runs.number
    both = runs.outside | runs.inside  # negative, or large, where one of the two is
    if both.min() < 0 or both.max() >= 2**32:
        low, high = np.minimum.reduceat(both, start), np.maximum.reduceat(both, start)
        place.refuse((low < 0) | (high >= 2**32), rows, "have counts >= 0 that add up to {pixels}", _counts(runs))
    end = (runs.outside + runs.inside).cumsum()
    total = np.diff(end[stop - 1], prepend=0)
    size = place.size[rows]
    pixels = size[:, 0] * size[:, 1]
    place.refuse(total != pixels, rows, "have counts that add up to {pixels}", total)
    filled = runs.inside > 0
    run = np.flatnonzero(filled)
    number = np.add.reduceat(filled, start, dtype=np.int64)
    mask, height = np.repeat(rows, number), np.repeat(size[:, 0], number)
    bottom = end[run] - np.repeat(pixels.cumsum() - pixels, number)
    top = bottom - runs.inside[run]
    column = _quotient(top, height)
    offset = column * height
    top, bottom = top - offset, bottom - offset
    crossing = np.flatnonzero(bottom > height)
    if len(crossing):  # runs that go on in the next columns
        parts = np.ones(len(run), np.int64)
        parts[crossing] += (bottom[crossing] - 1) // height[crossing]
        of = np.repeat(np.arange(len(run)), parts)
        moved = (ranges(column, parts) - column[of]) * height[of]
        mask, column, height = mask[of], ranges(column, parts), height[of]
        top, bottom = np.maximum(top[of] - moved, 0), np.minimum(bottom[of] - moved, height)
    return Strips(mask, column, top, bottom)


def _counts(runs: Runs) -> list[list[int]]:
    """The counts of each mask, with the 0 that makes their number even."""
    flat = np.stack([runs.outside, runs.inside], 1)
    return [part.ravel().tolist() for part in np.split(flat, runs.number.cumsum()[:-1])]


def _quotient(values: Integers, by: Integers) -> Integers:
    """Floor division, in 32 bits where they suffice: several times as fast."""
    if len(values) and max(values.max(), by.max()) >= 2**31:
        return values // by
    return (values.astype(np.int32) // by.astype(np.int32)).astype(np.int64)
