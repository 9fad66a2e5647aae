"""Kernels of several loops: partial results, slices between ops, other sizes, guards, faults."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from kernel_harness import differing, load
from slow_checker import problems

from fusion_advisor.analysis import find_candidates
from fusion_advisor.analysis.chains import index_graph
from fusion_advisor.analysis.traffic import TrafficModel
from fusion_advisor.codegen import check_program, generate, lower
from fusion_advisor.errors import CodegenError
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.recorder import CaptureOptions, record, replay
from fusion_advisor.report.dataflow import trip_after
from fusion_advisor.runtime import FusionFallbackWarning
from fusion_advisor.validation import validate
from fusion_advisor.validation.program_check import check_kernel
from fusion_advisor.validation.session import Session


def positions(start, step):
    ids = start + step
    return ids, ids.unsqueeze(0).expand(3, -1)[:, :1] - 1


def rotated(x, cosine):
    y = x * cosine
    return y, -y[..., 4:], y[..., :4] + 1.0


def gated(x, bias):
    y = x + bias
    return torch.relu(y[..., :4]) * y[..., 4:]


def differences(x):
    y = x * 0.5
    return y[1:] - y[:-1]


def from_the_back(x):
    y = x + 1.0
    return y, y[-3:-1] * 2.0, y[-1] - 2.0


def every_other(x):
    y = x * 2.0
    return y[:, 1::3] + 1.0, y.abs()


def nothing(x):
    y = x * 2.0
    return y, y[4:4] + 1.0


def one_column(x):
    y = x * 2.0
    return y, y.squeeze(1) - 1.0


def in_two_orders(x):
    y = torch.abs(x)
    return y, y.t() + 1.0


F32, I64 = torch.float32, torch.int64
# Function, shapes of its operands as recorded, other shapes, and the number of loops.
CASES = {
    "positions": (positions, [(16,), ()], [[(5,), ()], [(1,), ()], [(0,), ()], [(700,), ()]], 2),
    "rotated": (rotated, [(2, 3, 8), (8,)], [[(5, 1, 8), (8,)], [(0, 3, 8), (8,)]], 3),
    "lengths apart": (rotated, [(2, 3, 8), (8,)], [[(2, 3, 9), (9,)], [(2, 3, 4), (4,)]], 3),
    "gated": (gated, [(2, 3, 8), (8,)], [[(1, 1, 8), (8,)], [(7, 300, 8), (8,)]], 1),
    "differences": (differences, [(9, 4)], [[(2, 4)], [(1, 4)], [(3000, 5)]], 1),
    "from the back": (from_the_back, [(6, 4)], [[(3, 4)], [(2, 4)], [(1, 9)], [(500, 3)]], 3),
    "every other": (every_other, [(5, 7)], [[(5, 1)], [(2, 2)], [(0, 7)], [(40, 301)]], 2),
    "nothing": (nothing, [(6, 4)], [[(3, 4)], [(4, 2)]], 2),
    "one column": (one_column, [(6, 1)], [[(3, 1)], [(1, 1)], [(0, 1)]], 2),
    "in two orders": (in_two_orders, [(6, 4)], [[(3, 3)], [(1, 9)], [(70, 50)]], 2),
}


def made(name, shapes):
    generator = torch.Generator().manual_seed(0)
    if name == "positions":
        return [torch.randint(-9, 9, shape, generator=generator) for shape in shapes]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def recorded(name):
    function, shapes, _, _ = CASES[name]
    arguments = made(name, shapes)
    with torch.no_grad():
        recording = record(lambda: function(*arguments), CaptureOptions())
    (candidate,) = find_candidates(recording.graph)
    return recording, candidate


def moving(tensor):
    """Strides that mean something: eager is not consistent about those of size 1."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", CASES)
def test_every_size_gives_eager_s_bits_fused(name):
    function, shapes, others, loops = CASES[name]
    recording, candidate = recorded(name)
    graph = recording.graph
    assert problems(graph, [candidate]) == []
    assert len(candidate.regions) == loops
    kernel = generate_kernel(graph, candidate)
    fused = load(kernel)[kernel.entry]
    fused.reset_stats()
    order = [graph.inputs.index(one.value) for one in kernel.program.given]
    for count, sizes in enumerate([shapes, *others], start=1):
        given = made(name, sizes)
        expected = as_tuple(function(*given))
        with torch.no_grad():
            results = as_tuple(fused(*(given[place] for place in order)))
        assert fused.stats.fused == count, fused.stats
        for result, wanted in zip(results, expected, strict=True):
            assert result.shape == wanted.shape
            assert moving(result) == moving(wanted) or 0 in wanted.shape
            assert differing(result, wanted) == 0


@pytest.mark.parametrize("name", ["positions", "rotated", "from the back", "every other"])
def test_both_kernels_validate(name):
    recording, candidate = recorded(name)
    graph = recording.graph
    inputs = tuple(operand.value for operand in candidate.inputs)
    calls = [
        replay.subgraph(graph, candidate.computed, inputs, candidate.outputs, high_precision=high)
        for high in (False, True)
    ]
    result = validate(
        generate_kernel(graph, candidate), graph, candidate,
        reference=calls[0], reference64=calls[1],
        captured=replay.materialize(graph, recording.store, inputs),
        ceilings=None, measure=False,
    )  # fmt: skip
    assert result.status == "passed", [r for r in result.rungs if r.status == "failed"]
    assert result.mismatches == 0 and result.worst_ulp == 0
    assert "CPU kernel" in {r.name for r in result.rungs if r.status == "passed"}


def quietly(fused, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FusionFallbackWarning)
        return fused(*arguments)


def test_sizes_that_eager_takes_otherwise_fall_back_and_are_counted():
    recording, candidate = recorded("gated")
    kernel = generate_kernel(recording.graph, candidate, targets=("cpu",))
    fused = load(kernel)[kernel.entry]
    fused.reset_stats()
    # With one element behind the fourth, the second half is broadcast over the first.
    x, bias = torch.randn(2, 3, 5), torch.randn(5)
    with pytest.warns(FusionFallbackWarning, match="broadcasts differently"):
        result = fused(x, bias)
    assert torch.equal(result, gated(x, bias))
    assert fused.stats.fused == 0 and sum(fused.stats.fallbacks.values()) == 1
    with pytest.raises(RuntimeError):  # halves of 4 and 7: eager refuses them itself
        quietly(fused, torch.randn(2, 3, 11), torch.randn(11))


def test_an_index_out_of_range_is_eager_s_own_error():
    recording, candidate = recorded("from the back")
    kernel = generate_kernel(recording.graph, candidate, targets=("cpu",))
    fused = load(kernel)[kernel.entry]
    fused.reset_stats()
    with pytest.raises(IndexError):
        quietly(fused, torch.randn(0, 4))


def test_gradients_of_parts_and_the_whole_add_up():
    recording, candidate = recorded("rotated")
    kernel = generate_kernel(recording.graph, candidate, targets=("cpu",))
    fused = load(kernel)[kernel.entry]
    fused.reset_stats()
    given = [one.requires_grad_() for one in made("rotated", CASES["rotated"][1])]
    wanted = torch.autograd.grad(sum(one.sum() for one in rotated(*given)), given)
    found = torch.autograd.grad(sum(one.sum() for one in fused(*given)), given)
    assert fused.stats.fused == 1
    for one, two in zip(found, wanted, strict=True):
        assert torch.equal(one, two)


def moved(candidate, steps):
    """The candidate with the first viewed access of its last loop at another place."""
    *front, last = candidate.regions
    place = next(k for k, one in enumerate(last.accesses) if one.steps)
    accesses = list(last.accesses)
    accesses[place] = replace(accesses[place], steps=steps)
    return replace(candidate, regions=(*front, replace(last, accesses=tuple(accesses))))


def test_a_loop_that_reads_its_neighbours_is_found_wrong():
    recording, candidate = recorded("from the back")
    kernel = generate_kernel(recording.graph, candidate)
    program = kernel.program
    wrong_steps = (("slice", 0, (-4, -2, 1)),)
    place = next(k for k, p in enumerate(program.inputs) if p.steps and p.steps[0][0] == "slice")
    inputs = list(program.inputs)
    inputs[place] = replace(inputs[place], steps=wrong_steps)
    shifted = generate(replace(program, inputs=tuple(inputs)), recording.graph)
    with pytest.raises(Exception, match="reads other places"):
        check_kernel(shifted, candidate)
    fused = load(shifted)[shifted.entry]
    x = torch.randn(6, 4)
    assert not torch.equal(fused(x)[1], from_the_back(x)[1])


def test_the_checker_of_candidates_finds_a_wrong_step():
    recording, candidate = recorded("from the back")
    wrong = moved(candidate, (("select", 0, (-2,)),))
    assert problems(recording.graph, [wrong])


def test_programs_with_wrong_regions_are_refused():
    recording, candidate = recorded("rotated")
    program = lower(recording.graph, candidate, name="chain")
    first = program.statements[0]
    for wrong, why in (
        (replace(program, further=()), "region"),
        (replace(program, parameters=program.parameters[:1]), "no view of parameter"),
        (replace(program, parameters=()), "view of what is not a parameter"),
        (replace(program, statements=(replace(first, region=7), *program.statements[1:])), "of 3"),
        (
            replace(
                program,
                outputs=(replace(program.outputs[0], region=1), *program.outputs[1:]),
            ),
            "not defined|writes nothing",
        ),
    ):
        with pytest.raises(CodegenError, match=why):
            check_program(wrong)
    check_program(program)


def test_what_would_be_computed_many_times_stays_apart():
    def tables(x, q):  # a table that is needed itself, and over a batch 40 times its size
        table = torch.abs(x)
        return table, table.unsqueeze(0).expand(40, -1, -1) * q

    x, q = torch.randn(6, 4), torch.randn(40, 6, 4)
    graph = record(lambda: tables(x, q), CaptureOptions()).graph
    assert find_candidates(graph) == ()


def test_of_an_operand_read_in_part_that_part_counts_everywhere():
    def first_rows(x):
        return (x * 2.0)[:3] + 1.0

    x = torch.randn(1000, 8)
    recording = record(lambda: first_rows(x), CaptureOptions())
    graph = recording.graph
    (candidate,) = find_candidates(graph)
    part = 3 * 8 * 4
    assert TrafficModel(index_graph(graph)).candidate(candidate)[1] == 2 * part
    assert trip_after(graph, candidate).reads[0][1] == part
    kernel = generate_kernel(graph, candidate, targets=("cpu",))
    assert f"this reads {part} B and writes {part} B" in kernel.text
    session = Session(kernel, graph, candidate, first_rows, first_rows, {graph.inputs[0]: x})
    session.prepare()
    (captured,) = [one for one in session.prepared if one.case.captured]
    assert session.bytes_moved(captured) == 2 * part
