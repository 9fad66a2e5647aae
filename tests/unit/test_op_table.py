"""The op table against torch's own registry: nothing is missing, and every dtype is eager's."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from fusion_advisor import ops
from fusion_advisor.ops.table import OpInfo

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import op_page  # noqa: E402

pytestmark = pytest.mark.essential

OVERLOADS = {str(overload): overload for overload in op_page.overloads()}
ROWS = {
    info.name: info
    for info in ops.rows()
    if info.name in OVERLOADS
    and info.kind not in ("view", "metadata")
    and op_page.is_functional(OVERLOADS[info.name])
    and op_page.is_recorded(OVERLOADS[info.name])
}
NUMBERS = (True, 2, 2.5)
# Numbers that choose how an op computes, or that are no operands.
SETTINGS = {*op_page.SETTINGS, "lower", "upper", "eps", "scale", "input_scale", "decimals"}


def test_torch_s_registry_is_seen():
    assert len(OVERLOADS) > 2000
    assert len(ROWS) > 150
    assert {"aten.add.Tensor", "aten.gelu.default", "aten.mse_loss.default"} <= ROWS.keys()


def test_every_elementwise_op_of_torch_has_a_recipe_or_a_reason_of_its_own():
    unknown = []
    for name, overload in OVERLOADS.items():
        if not op_page.is_functional(overload) or not op_page.is_recorded(overload):
            continue
        info = ops.lookup(name)
        if not op_page.is_elementwise(overload) or (info is not None and info.recipe):
            continue
        if info is None or not info.reason or "no scalar recipe" in info.reason:
            unknown.append(name)
    assert not unknown


def test_an_op_that_is_on_no_list_is_noticed():
    info = ops.lookup("aten.a_new_op.default")
    assert info is None
    assert ops.classify("aten.a_new_op.default", pointwise_tag=True) == "elementwise"


def test_in_place_ops_are_named_after_ops_of_torch():
    for name in OVERLOADS:
        info = ops.lookup(name)
        if info is not None and info.recipe is not None and ops.is_inplace(name):
            functional = OVERLOADS.get(ops.functional_name(name))
            if functional is None:
                continue  # zero_ and copy_ have functional twins that torch makes when asked
            own = [a.name for a in OVERLOADS[name]._schema.arguments]
            assert own == [a.name for a in functional._schema.arguments], name


def test_rows_know_the_parameters_that_torch_has():
    for name, info in ROWS.items():
        known = [word.removeprefix("*") for word in info.parameters.split()]
        arguments = OVERLOADS[name]._schema.arguments
        assert known == [argument.name for argument in arguments][: len(known)], name
        starred = [word.startswith("*") for word in info.parameters.split()]
        assert starred == [argument.kwarg_only for argument in arguments][: len(known)], name
        assert set(info.unread.split()) <= set(known), name


def test_the_page_is_current():
    written = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    assert written == op_page.page(), "run: make docs"


# -- promotion ---------------------------------------------------------------------------------


def _operand_choices(slot: op_page.Slot, first: bool) -> list[tuple[str, int] | None]:
    """Dtypes and dimensions of a tensor operand; None stands for a fixed one."""
    if slot.name in op_page.MASKS:
        return [None]
    dimensions = (0,) if slot.name in op_page.SCALARS else (1, 0)
    return list(itertools.product(op_page.DTYPES, dimensions))


def promoted_calls(overload):
    """Calls over all pairs of dtypes, each a tensor, one of no dimension, or a number."""
    made = op_page.slots(overload)
    tensors = [slot for slot in made if slot.tensor and slot.name not in op_page.MASKS]
    numbers = [
        slot
        for slot in made
        if not slot.tensor and isinstance(slot.value, int) and slot.name not in SETTINGS
    ]
    first = _operand_choices(tensors[0], True) if tensors else [None]
    others = _operand_choices(tensors[1], False) if len(tensors) > 1 else [None]
    for one, other, number in itertools.product(first, others, NUMBERS if numbers else (None,)):
        values = []
        for slot in made:
            if slot.tensor:
                choice = one if slot in tensors[:1] else other
                dtype, dimensions = choice or ("bool", 1)
                values.append(op_page.operand(slot, dtype, dimensions))
            else:
                values.append(number if slot in numbers else slot.value)
        call = op_page.tiny_call(overload, made, tuple(values))
        if call is not None:
            yield call


@pytest.mark.parametrize("name", ROWS)
def test_dtypes_come_about_as_in_eager(name):
    info: OpInfo = ROWS[name]
    written = 0
    for call in promoted_calls(OVERLOADS[name]):
        if any(result.dtype.is_complex for result in call.results):
            continue
        refused = call.refusal()
        assert " gave " not in refused, (refused, call.args, call.kwargs)
        assert refused == "" or name in refused, (refused, call.args, call.kwargs)
        written += not refused
    assert written, info


@pytest.mark.parametrize("name", ROWS)
def test_what_a_kernel_of_floats_computes_it_computes_of_every_float(name):
    dtypes = op_page.supported_dtypes(OVERLOADS[name])
    floats = set(dtypes) & set(op_page.FLOATS)
    assert floats in (set(), set(op_page.FLOATS)), dtypes
    assert dtypes
