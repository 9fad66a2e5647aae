"""A run recorded, fused wherever it may be, and the recording run with the kernels in it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fusion_advisor.analysis import find_candidates, why_not
from fusion_advisor.errors import UnsupportedOpError
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.recorder import CaptureOptions, Recording, record
from fusion_advisor.recorder.substitution import Substitution, run_substituted
from fusion_advisor.records import Blocker, FusionCandidate, OpGraph
from fusion_advisor.runtime import FusedFunction, load_function
from fusion_advisor.validation import whole_call


@dataclass(frozen=True)
class Outcome:
    """What became of a run: its result, its kernels, and why other ops were not fused."""

    result: Any
    kernels: tuple[FusedFunction, ...]
    fused_ops: tuple[tuple[str, ...], ...]
    reasons: frozenset[str]
    refusals: tuple[str, ...]
    graph: OpGraph
    candidates: tuple[FusionCandidate, ...]
    blockers: tuple[Blocker, ...]

    @property
    def kernel(self) -> FusedFunction:
        """The only kernel."""
        assert len(self.kernels) == 1, self.fused_ops
        return self.kernels[0]


def through(
    function: Callable[..., Any],
    *inputs: Any,
    grad: bool = False,
    backward: bool = False,
    framed: bool = False,
    exact: bool = False,
    change: Callable[[OpGraph], OpGraph] = lambda graph: graph,
) -> Outcome:
    """Record a call, fuse all that may be fused, and run the recording with the kernels in it.

    ``framed`` keeps to what one place in the source can hold, ``exact`` asks for equal bits (any
    NaN for any NaN), else a relative error of 1e-6 is let pass.  ``change`` makes another recording
    of the one there is; that one is not run.
    """
    with torch.set_grad_enabled(grad or backward):
        recording = record(lambda: function(*inputs), CaptureOptions(backward=backward))
    graph = change(recording.graph)
    candidates = find_candidates(graph, within_frame=framed)
    kernels, substitutions, refusals, names = [], [], [], []
    short = {node.id: node.op.removeprefix("aten.").rsplit(".", 1)[0] for node in graph.nodes}
    for candidate in candidates:
        try:
            kernel = generate_kernel(graph, candidate)
        except UnsupportedOpError as error:
            refusals.append(str(error))
            continue
        fused = load_function(kernel.text, kernel.entry, kernel.hash)
        values = tuple(one.value for one in kernel.program.given)
        kernels.append(fused)
        names.append(tuple(short[node] for node in candidate.nodes))
        substitutions.append(
            Substitution(
                nodes=candidate.nodes, inputs=values, outputs=candidate.outputs, call=fused
            )
        )
    if graph is recording.graph:
        _same_run(recording, substitutions, rtol=0.0 if exact else 1e-6)
    blockers = tuple(blocker for one in candidates for blocker in one.blockers)
    blockers = blockers if framed else why_not(graph, candidates)
    return Outcome(
        recording.result,
        tuple(kernels),
        tuple(names),
        frozenset(blocker.code for blocker in blockers),
        tuple(refusals),
        graph,
        candidates,
        blockers,
    )


def _same_run(recording: Recording, substitutions: list[Substitution], *, rtol: float) -> None:
    expected = whole_call.snapshot(run_substituted(recording.graph, recording.store, ()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a kernel that does not take its own inputs
        got = run_substituted(recording.graph, recording.store, substitutions)
    for one, two in zip(expected, got, strict=True):
        if one.layout != torch.strided:
            assert two.layout == one.layout and torch.equal(one.to_dense(), two.to_dense())
            continue
        assert (one.dtype, one.shape, one.stride()) == (two.dtype, two.shape, two.stride())
        if one.device.type == "meta":
            continue
        torch.testing.assert_close(two, one, rtol=rtol, atol=rtol / 10, equal_nan=True)
        if one.is_floating_point():
            zero = (one == 0) & (two == 0)
            assert torch.equal(torch.signbit(one[zero]), torch.signbit(two[zero]))
