"""How many different elements of an operand are read through views of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from itertools import combinations

from fusion_advisor.view_steps import ViewStep

MOST_SETS = 6  # beyond, what overlaps is not taken apart: 2^n intersections

Indices = Collection[int]  # of one dimension: a range where possible
Box = tuple[Indices, ...]  # one per dimension of the operand


def distinct_elements(
    shape: tuple[int, ...], strides: tuple[int, ...], views: Iterable[tuple[ViewStep, ...]]
) -> int:
    """Elements in memory that these views show together; expanded dimensions count once."""
    counted = [step != 0 or size == 0 for size, step in zip(shape, strides, strict=True)]
    boxes = {steps: _box(shape, steps) for steps in dict.fromkeys(views)}
    sets = [
        tuple(
            one if counts else range(min(len(one), 1))
            for one, counts in zip(box, counted, strict=True)
        )
        for box in boxes.values()
    ]
    whole = math.prod(size for size, counts in zip(shape, counted, strict=True) if counts)
    if len(sets) > MOST_SETS:
        return min(whole, sum(map(_count, sets)))
    total = 0
    for number in range(1, len(sets) + 1):
        sign = 1 if number % 2 else -1
        for some in combinations(sets, number):
            total += sign * _count(_common(some))
    return total


def _count(box: Box) -> int:
    return math.prod(len(indices) for indices in box)


def _common(boxes: tuple[Box, ...]) -> Box:
    common = boxes[0]
    for box in boxes[1:]:
        common = tuple(_both(a, b) for a, b in zip(common, box, strict=True))
    return common


def _both(first: Indices, second: Indices) -> Indices:
    if first == second:
        return first
    if isinstance(first, range) and isinstance(second, range) and first.step == second.step == 1:
        return range(max(first.start, second.start), max(0, min(first.stop, second.stop)))
    few, many = sorted((first, second), key=len)
    return frozenset(index for index in few if index in many)


def _box(shape: tuple[int, ...], steps: tuple[ViewStep, ...]) -> Box:
    """Per own dimension, the indices that are reached.

    Each dimension on the way is a part of an own one (or of none), whose index is the sum of
    what its parts contribute.
    """
    parts: list[tuple[int, Indices]] = [(d, range(size)) for d, size in enumerate(shape)]
    gone: list[tuple[int, Indices]] = []
    for kind, at, numbers in steps:
        if kind == "permute":
            parts = [parts[d] for d in numbers]
        elif kind == "unsqueeze":
            parts.insert(at, (-1, range(1)))
        elif kind == "single":
            gone.append(parts.pop(at))
        elif kind == "select":
            own, indices = parts.pop(at)
            gone.append((own, [list(indices)[numbers[0]]]))
        elif kind == "part":
            own, indices = parts[at]
            count = len(indices) // numbers[1]
            within = slice(numbers[0] * count, (numbers[0] + 1) * count)
            kept = indices[within] if isinstance(indices, range) else list(indices)[within]
            parts[at] = (own, kept)
        elif kind == "slice":
            own, indices = parts[at]
            within = slice(*numbers)
            kept = indices[within] if isinstance(indices, range) else list(indices)[within]
            parts[at] = (own, kept)
        else:
            parts[at : at + 1] = _split(parts[at], numbers)
    if not all(indices for _, indices in (*parts, *gone)):
        return (range(0),) * len(shape)
    box: list[Indices] = []
    for d in range(len(shape)):
        several = [indices for place, indices in (*parts, *gone) if place == d]
        box.append(several[0] if len(several) == 1 else _sums(several))
    return tuple(box)


def _split(part: tuple[int, Indices], inner: tuple[int, ...]) -> list[tuple[int, Indices]]:
    """The parts of a dimension; one that was cut before counts from its own first index on."""
    own, indices = part
    listed = list(indices)
    first = listed[0] if listed else 0
    step = listed[1] - first if len(listed) > 1 else 1
    sizes = [len(listed) // math.prod(inner), *inner]
    found: list[tuple[int, Indices]] = []
    for place, size in enumerate(sizes):
        move = step * math.prod(sizes[place + 1 :])
        start = first if place == 0 else 0
        found.append((own, range(start, start + size * move, move)))
    return found


def _sums(parts: list[Indices]) -> Indices:
    total = {0}
    for part in parts:
        total = {done + one for done in total for one in part}
    return frozenset(total)
