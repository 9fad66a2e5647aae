"""Views as steps on shape and strides alone, at whatever sizes a tensor has when they are taken.

A step is ``(kind, dimension, numbers)``; dimensions count from 0 at the moment of the step:

- ``("slice", d, (start, end, step))`` as in Python, ends clamped, negative ones from the back
- ``("part", d, (number, parts))`` one of equal parts of a dimension
- ``("select", d, (index,))`` one index; the dimension goes
- ``("single", d, ())`` a dimension that must have size 1 goes
- ``("unsqueeze", d, ())`` a new dimension of size 1
- ``("permute", 0, order)``
- ``("split", d, inner sizes)`` one dimension as several, the outermost taking what is left
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

ViewStep = tuple[str, int, tuple[int, ...]]


class ViewError(ValueError):
    """A step that these sizes do not allow; the message is a reason for a person."""


@dataclass(frozen=True, slots=True)
class Viewed:
    """Sizes, strides and the first element's offset, in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


def follow(steps: Iterable[ViewStep], shape: tuple[int, ...], strides: tuple[int, ...]) -> Viewed:
    """Where the elements lie after all steps, seen from the tensor's own first element.

    Raises ``ViewError`` where torch itself would refuse, or where what must be one element is not.
    """
    sizes, moves, offset = list(shape), list(strides), 0
    for kind, at, numbers in steps:
        if kind == "permute":
            if len(numbers) != len(sizes):
                raise ViewError(f"it has {len(sizes)} dimensions, not {len(numbers)}")
            sizes, moves = [sizes[d] for d in numbers], [moves[d] for d in numbers]
            continue
        if at > len(sizes) - (kind != "unsqueeze"):
            raise ViewError(f"it has {len(sizes)} dimensions, fewer than are viewed")
        if kind == "unsqueeze":
            sizes.insert(at, 1)
            moves.insert(at, 0)
        elif kind == "single":
            if sizes[at] != 1:
                raise ViewError(f"its size at dimension {at} is {sizes[at]}, not 1")
            del sizes[at], moves[at]
        elif kind == "select":
            offset += _index(numbers[0], sizes[at], at) * moves[at]
            del sizes[at], moves[at]
        elif kind == "part":
            number, parts = numbers
            if sizes[at] % parts:
                raise ViewError(
                    f"its size at dimension {at} is {sizes[at]}, no multiple of {parts}"
                )
            sizes[at] //= parts
            offset += number * sizes[at] * moves[at]
        elif kind == "slice":
            start, count = _span(numbers, sizes[at])
            offset += start * moves[at]
            sizes[at], moves[at] = count, moves[at] * numbers[2]
        elif kind == "split":
            sizes, moves = _split(sizes, moves, at, numbers)
        else:
            raise ViewError(f"there is no view step {kind!r}")
    return Viewed(tuple(sizes), tuple(moves), offset if 0 not in sizes else 0)


def _index(index: int, size: int, at: int) -> int:
    if not -size <= index < size:
        raise ViewError(f"its size at dimension {at} is {size}, too few for index {index}")
    return index % size


def _span(numbers: tuple[int, ...], size: int) -> tuple[int, int]:
    """First index and number of elements of a slice, clamped as torch clamps."""
    start, end, step = numbers
    if step < 1:
        raise ViewError(f"a slice goes in steps of {step}")
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    return start, (end - start + step - 1) // step


def _split(
    sizes: list[int], moves: list[int], at: int, inner: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    parts = math.prod(inner)
    if not parts or sizes[at] % parts:
        raise ViewError(f"its size at dimension {at} is {sizes[at]}, no multiple of {parts}")
    split = [sizes[at] // parts, *inner]
    steps = [moves[at] * math.prod(split[place + 1 :]) for place in range(len(split))]
    return [*sizes[:at], *split, *sizes[at + 1 :]], [*moves[:at], *steps, *moves[at + 1 :]]
