"""Whether a kernel may write its results into tensors that the caller gives."""

from __future__ import annotations

from typing import Any

import torch

from fusion_advisor.errors import UsageError
from fusion_advisor.runtime.guards import exact_match, stretch
from fusion_advisor.runtime.launch import check_outputs
from fusion_advisor.runtime.plan import Plan, Signature


class GivenOutputs:
    """The test of one kind of call: memory reaches as far in every call, from other addresses."""

    def __init__(
        self, signature: Signature, plan: Plan, args: tuple[Any, ...], out: tuple[torch.Tensor, ...]
    ) -> None:
        self._check_kind(plan, out)
        self._signature, self._plan = signature, plan
        self._matches = exact_match(out)
        self._read = tuple(map(_extent, args[: len(signature.parameters)]))
        self._written = tuple(map(_extent, out))

    def check(self, args: tuple[Any, ...], out: tuple[torch.Tensor, ...]) -> bool:
        """Refuse tensors that are not what the plan makes, or whose memory is read elsewhere.

        An operand itself may be given: a kernel reads an element before it writes that place.
        The result says whether one is.

        Raises:
            UsageError: naming the tensor and what is wrong with it.
        """
        if self._matches is None or len(out) != len(self._written) or not self._matches(*out):
            self._check_kind(self._plan, out)
        overwrites = False
        places: list[tuple[int, int]] = []
        for index, (tensor, bytes_) in enumerate(zip(out, self._written, strict=True)):
            start = tensor.data_ptr()
            end = start + bytes_
            for first, last in places:
                if first < end and start < last:
                    raise UsageError(f"out[{index}] shares memory with another of out=")
            places.append((start, end))
        for parameter, (tensor, bytes_) in enumerate(zip(args, self._read, strict=False)):
            first = tensor.data_ptr()
            last = first + bytes_
            for index, (start, end) in enumerate(places):
                if first < end and start < last:
                    self._refuse_other_elements(parameter, tensor, index, out[index])
                    overwrites = True
        return overwrites

    @staticmethod
    def _check_kind(plan: Plan, out: tuple[torch.Tensor, ...]) -> None:
        _check_tensors(out)
        check_outputs(plan, out)
        for index, tensor in enumerate(out):
            if tensor.is_neg():  # a kernel would write the numbers that the view shows negated
                raise UsageError(f"out[{index}] has a lazy neg bit: give its resolve_neg()")

    def _refuse_other_elements(
        self, parameter: int, operand: torch.Tensor, index: int, out: torch.Tensor
    ) -> None:
        if not _is_the_operand(self._signature, out, operand):
            name = self._signature.parameters[parameter][0]
            raise UsageError(
                f"out[{index}] shares memory with {name}, which is read at other elements: "
                "give a tensor of its own"
            )


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to behind its last."""
    start, end = stretch(tensor)
    return end - start


def _is_the_operand(signature: Signature, out: torch.Tensor, operand: torch.Tensor) -> bool:
    return (
        not signature.viewed
        and out.data_ptr() == operand.data_ptr()
        and out.shape == operand.shape
        and out.stride() == operand.stride()
        and out.element_size() == operand.element_size()
    )


def _check_tensors(out: tuple[Any, ...]) -> None:
    for index, one in enumerate(out):
        if not isinstance(one, torch.Tensor):
            raise UsageError(f"out[{index}] is a {type(one).__name__}, not a tensor")


def fill(out: tuple[torch.Tensor, ...], results: Any) -> None:
    """Copy eager's results into the tensors given.

    Raises:
        UsageError: a tensor is not of its result's shape and dtype.
    """
    _check_tensors(out)
    made = results if isinstance(results, tuple) else (results,)
    if len(made) != len(out):
        raise UsageError(f"out= holds {len(out)} tensors; this function has {len(made)}")
    for index, (target, result) in enumerate(zip(out, made, strict=True)):
        if target.shape != result.shape or target.dtype != result.dtype:
            raise UsageError(
                f"out[{index}] must be a {result.dtype} tensor of shape {tuple(result.shape)}"
            )
        if any(_overlap(target, other) for other in out[:index]):
            raise UsageError(f"out[{index}] shares memory with another of out=")
    for target, result in zip(out, made, strict=True):
        target.copy_(result)


def _overlap(one: torch.Tensor, two: torch.Tensor) -> bool:
    try:
        (first, last), (start, end) = stretch(one), stretch(two)
    except RuntimeError:  # no memory of its own: torch itself watches over such tensors
        return False
    return first < end and start < last
