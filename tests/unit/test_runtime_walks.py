"""Which dimensions the axes of a kernel walk, for tensors that lie in every way."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_advisor.runtime.layouts import Groups, Shape, row_major_strides
from fusion_advisor.runtime.walks import Placed, choose

pytestmark = pytest.mark.essential


def permuted(shape: Shape, order: tuple[int, ...]) -> Shape:
    """Strides of a dense tensor whose dimensions lie in this order, outermost first."""
    inner = row_major_strides(tuple(shape[d] for d in order))
    return tuple(inner[order.index(d)] for d in range(len(shape)))


def test_one_axis_walks_any_order_that_all_tensors_share() -> None:
    shape, one_axis = (2, 3, 4, 5), ((0, 1, 2, 3),)
    for order in itertools.permutations(range(4)):
        whole = Placed(permuted(shape, order), (0,), True)
        groups = choose(shape, one_axis, [whole, whole], [whole])
        assert groups == (order,)
        layout = whole.layout(shape, groups)
        assert layout is not None and (layout.sizes, layout.strides) == ((120,), (1,))


def test_channels_first_and_last_with_a_number_per_channel() -> None:
    shape, declared = (2, 3, 4, 5), ((0,), (1,), (2, 3))  # as captured: channels first
    first, last = (permuted(shape, order) for order in ((0, 1, 2, 3), (0, 2, 3, 1)))
    scale = Placed((0, 1, 0, 0), (1,), False)
    for flat in (False, True):
        x = Placed(first, (0, 1, 2), flat)
        assert choose(shape, declared, [x, scale], [x]) == declared
    x = Placed(last, (0, 1, 2), False)  # with strides of their own, channels last are as good
    assert choose(shape, declared, [x, scale], [x]) == declared
    x = Placed(last, (0, 1, 2), True)  # all but the channels are one axis, and one is left over
    assert choose(shape, declared, [x, scale], [x]) == ((0, 2, 3), (1,), ())


def test_an_output_may_lie_as_no_axes_do() -> None:
    shape, declared = (2, 3, 4, 5), ((0, 2, 3), (1,))  # as captured: channels last
    x = Placed(permuted(shape, (0, 1, 2, 3)), (0, 1), False)
    assert choose(shape, declared, [x, Placed((0, 1, 0, 0), (1,), False)], [x]) == declared
    layout, copied = x.served(shape, declared)
    assert (layout.sizes, layout.strides) == ((40, 3), (3, 1))  # dense, in walking order
    assert copied == ((2, 4, 5, 3), (60, 5, 1, 20))


def test_what_cannot_lie_along_is_one_operand_not_the_output() -> None:
    shape, declared = (4, 6), ((0, 1),)
    turned, plain = Placed((1, 4), (0,), True), Placed((6, 1), (0,), True)
    groups = choose(shape, declared, [plain, plain], [turned])
    assert turned.layout(shape, groups) is not None and plain.layout(shape, groups) is None
    assert choose(shape, declared, [turned, turned], [plain]) == declared


def test_a_dimension_of_one_element_has_no_place() -> None:
    shape, declared = (4, 1, 6), ((0, 1), (2,))
    odd = Placed((6, 977, 1), (0, 1), True)
    row = Placed((0, 0, 1), (1,), False)
    assert choose(shape, declared, [odd, row], [odd]) == declared
    turned = Placed((1, 977, 4), (0, 1), True)
    groups = choose(shape, declared, [turned], [turned])
    assert groups == ((2,), (0,)) or groups == ((), (2, 0)) or groups == ((2, 0), ())


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_place_is_visited_once_and_broadcasts_stay(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    dimensions = list(range(len(shape)))
    cut = sorted(data.draw(st.sets(st.sampled_from(dimensions))) - {0})
    edges = [0, *cut, len(shape)]
    declared: Groups = tuple(tuple(range(low, high)) for low, high in itertools.pairwise(edges))
    axes = tuple(range(len(declared)))
    placed = []
    for _ in range(data.draw(st.integers(1, 3))):
        own = tuple(sorted(data.draw(st.sets(st.sampled_from(axes)))))
        order = tuple(data.draw(st.permutations(dimensions)))
        inside = {d for axis in own for d in declared[axis]}
        strides = tuple(s if d in inside else 0 for d, s in enumerate(permuted(shape, order)))
        placed.append(Placed(strides, own, data.draw(st.booleans())))
    order = tuple(data.draw(st.permutations(dimensions)))
    output = Placed(permuted(shape, order), axes, data.draw(st.booleans()))
    groups = choose(shape, declared, placed, [output])
    walked = [d for group in groups for d in group]
    assert len(set(walked)) == len(walked)
    assert {d for d in dimensions if shape[d] != 1} <= set(walked)
    assert math.prod(shape[d] for d in walked) == math.prod(shape)
    for one in placed:
        before = {d for axis in one.axes for d in declared[axis] if shape[d] != 1}
        assert {d for axis in one.axes for d in groups[axis] if shape[d] != 1} == before
