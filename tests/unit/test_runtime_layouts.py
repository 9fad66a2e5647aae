"""Axis layouts against what torch itself says about views."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_advisor.analysis import find_candidates
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.recorder import CaptureOptions, record
from fusion_advisor.runtime import layouts, load_kernel


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    seed=st.integers(0, 10_000),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_collapsed_axes_reach_the_same_elements_in_the_same_order(
    sizes: list[int], seed: int, data: st.DataObject
) -> None:
    rank = len(sizes)
    order = data.draw(st.permutations(range(rank)))
    base = torch.arange(1000.0)[seed % 7 :]
    padded = [size + data.draw(st.integers(0, 1)) for size in sizes]
    stored = base[: torch.Size(padded).numel()].reshape(padded).permute(order)
    shape = [sizes[dimension] for dimension in order]
    view = stored[tuple(slice(0, size) for size in shape)]
    walk = data.draw(st.permutations(range(rank)))
    cut = data.draw(st.integers(0, rank))
    groups = tuple(group for group in (tuple(walk[:cut]), tuple(walk[cut:])) if group)

    layout = layouts.axis_layout(tuple(view.shape), view.stride(), groups)
    walked = view.permute(walk).reshape(-1).tolist()
    if layout is None:
        merged = view.permute(walk)
        size = layouts.group_sizes(tuple(view.shape), groups)
        try:
            merged.view(size)
        except RuntimeError:
            return  # torch cannot either
        raise AssertionError(f"{view.shape} {view.stride()} collapses over {groups}")
    collapsed = view.as_strided(layout.sizes, layout.strides)
    assert collapsed.reshape(-1).tolist() == walked
    assert layout.is_dense == collapsed.is_contiguous()
    reached = layout.largest_offset + view.storage_offset()
    assert reached == max(int(value) for value in walked) if seed % 7 == 0 else True


def test_sizes_of_one_do_not_break_a_group() -> None:
    # A batch of one keeps any stride for its first dimension.
    assert layouts.collapsed_stride((1, 4, 5), (999, 5, 1), (0, 1, 2)) == 1
    assert layouts.collapsed_stride((2, 4, 5), (999, 5, 1), (0, 1, 2)) is None
    assert layouts.collapsed_stride((1, 1), (7, 3), (0, 1)) == 1


def test_broadcast_pattern_is_exact() -> None:
    groups = ((0, 1), (2,))
    space = (2, 3, 5)
    assert layouts.broadcast_problem((5,), space, groups, (1,)) == ""
    assert layouts.broadcast_problem((1, 1, 5), space, groups, (1,)) == ""
    assert layouts.broadcast_problem((), space, groups, ()) == ""
    assert "dimension 2 is 1, not 5" in layouts.broadcast_problem((1,), space, groups, (1,))
    assert "dimension 0 is 1, not 2" in layouts.broadcast_problem((3, 5), space, groups, (0, 1))
    assert "dimension 2 is 5, not 1" in layouts.broadcast_problem((2, 3, 5), space, groups, (0,))
    assert "more than" in layouts.broadcast_problem((1, 2, 3, 5), space, groups, (0, 1))


def test_a_size_of_one_where_the_space_has_one_counts_as_full() -> None:
    groups = ((0, 1), (2,))
    assert layouts.broadcast_problem((1, 1, 5), (1, 1, 5), groups, (0, 1)) == ""
    assert layouts.broadcast_problem((5,), (1, 1, 5), groups, (0, 1)) == ""


def test_largest_offset_is_the_last_element_of_any_view() -> None:
    for sizes in itertools.product((1, 2, 5), repeat=2):
        strides = (11, 3)
        assert layouts.largest_offset(sizes, strides) == (sizes[0] - 1) * 11 + (sizes[1] - 1) * 3
    assert layouts.largest_offset((0, 7), (7, 1)) == 0


def test_an_empty_tensor_is_dense_in_any_order() -> None:
    layout = layouts.axis_layout((0, 3), (3, 1), ((1,), (0,)))
    assert layout is not None and layout.is_dense and layout.elements == 0


def test_nothing_of_an_operand_is_reached_in_an_empty_space() -> None:
    row = torch.zeros(1).expand(257)  # shown 257 times, but one number of memory
    layout = layouts.axis_layout((0, 257), (0, 0), ((1,),))
    assert layout is not None
    assert row.as_strided(layout.sizes, layout.strides).numel() == 0


@given(st.lists(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3), min_size=1, max_size=3))
def test_broadcast_shape_is_torchs(shapes: list[list[int]]) -> None:
    try:
        expected = tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        expected = None
    assert layouts.broadcast_shape([tuple(shape) for shape in shapes]) == expected


@given(st.lists(st.sampled_from([0, 1, 2, 5]), max_size=4))
def test_row_major_strides_are_those_of_a_fresh_tensor(sizes: list[int]) -> None:
    assert layouts.row_major_strides(tuple(sizes)) == torch.empty(sizes).stride()


def test_strides_are_those_of_torchs_kernels_not_of_its_meta_functions() -> None:
    """Whatever else the process has loaded."""
    import torch._dynamo  # with it, results could be seen without running the chain

    a, b = torch.randn(6).as_strided((2, 3, 1), (1, 2, 2)), torch.randn(6)
    on_meta = torch.logaddexp(b.to("meta"), a.to("meta"))
    assert on_meta.stride() != torch.logaddexp(b, a).stride()  # else there is nothing to see here

    def chain() -> torch.Tensor:
        return torch.neg(torch.logaddexp(b, a))

    graph = record(chain, CaptureOptions()).graph
    (candidate,) = find_candidates(graph)
    kernel = generate_kernel(graph, candidate, targets=("cpu",))
    fused = load_kernel(kernel.text, kernel.entry, kernel.hash)[kernel.entry]
    assert fused.why_not(b, a) == ""
    assert fused(b, a).stride() == chain().stride()


def test_a_stride_of_size_1_may_turn_the_result_over() -> None:
    """torch calls both rows contiguous; what one call showed of fresh ones is no word on these."""
    x, y = torch.randn(1, 2, 1, 4), torch.randn(2, 1, 1, 4)

    def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.neg(torch.mul(x, y))

    graph = record(lambda: chain(x, y), CaptureOptions()).graph
    (candidate,) = find_candidates(graph)
    kernel = generate_kernel(graph, candidate, targets=("cpu",))
    fused = load_kernel(kernel.text, kernel.entry, kernel.hash)[kernel.entry]
    assert fused(x, y).stride() == chain(x, y).stride() == (8, 4, 4, 1)
    odd = y.as_strided(y.shape, (4, 4, 8, 1))
    assert odd.is_contiguous()
    assert fused(x, odd).stride() == chain(x, odd).stride() != (8, 4, 4, 1)


def test_dtypes_are_those_of_torchs_kernels_not_of_its_meta_functions() -> None:
    import torch._dynamo  # with it, results could be seen without running the chain

    x, y = torch.randn(6).half(), torch.randn(6).bfloat16()

    def chain() -> torch.Tensor:
        return torch.neg(torch.ops.aten.threshold_backward(x, y, 1.0))

    on_meta = torch.ops.aten.threshold_backward(x.to("meta"), y.to("meta"), 1.0)
    assert on_meta.dtype != chain().dtype  # else there is nothing to see here
    graph = record(chain, CaptureOptions()).graph
    (candidate,) = find_candidates(graph)
    kernel = generate_kernel(graph, candidate, targets=("cpu",))
    fused = load_kernel(kernel.text, kernel.entry, kernel.hash)[kernel.entry]
    assert fused.why_not(x, y) == ""
