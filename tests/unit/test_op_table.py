"""The op table against torch's own registry: nothing is missing, and every dtype is eager's."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import op_cases
import program_interpreter as interpreter
import pytest
import torch

from fusion_advisor import ops
from fusion_advisor.errors import UnsupportedOpError
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


def test_forms_with_out_are_taken_by_their_functional_twin_or_say_what_to_do():
    taken = 0
    for name, overload in OVERLOADS.items():
        arguments = overload._schema.arguments
        given = [a for a in arguments if a.is_out]
        info = ops.lookup(name)
        if not given or info is None:
            continue
        if info.recipe is None:
            assert info.reason, name
            continue
        assert [a.name for a in given] == [ops.out_keyword(name)], name
        twin = OVERLOADS[ops.functional_name(name)]
        own = [(a.name, str(a.type)) for a in arguments if not a.is_out]
        assert own == [(a.name, str(a.type)) for a in twin._schema.arguments], name
        taken += 1
    assert taken > 150
    assert "without out=" in ops.lookup("aten.log_sigmoid_forward.output").reason


def test_in_place_ops_are_named_after_ops_of_torch():
    for name in OVERLOADS:
        info = ops.lookup(name)
        if info is not None and info.recipe is not None and ops.is_inplace(name):
            functional = OVERLOADS.get(ops.functional_name(name))
            if functional is None:
                continue  # zero_ and copy_ have functional twins that torch makes when asked
            own = [(a.name, str(a.type)) for a in OVERLOADS[name]._schema.arguments]
            twin = [(a.name, str(a.type)) for a in functional._schema.arguments]
            assert own == twin, name


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


# -- in place ---


IN_PLACE = {
    "add_.Tensor": ("x", "y"),
    "sub_.Tensor": ("x", "y"),
    "mul_.Tensor": ("x", "y"),
    "div_.Tensor": ("x", "y"),
    "add_.Scalar": ("x", 0.7),
    "copy_.default": ("x", "y"),
    "fill_.Scalar": ("x", 0.7),
    "fill_.Tensor": ("x", "scalar"),
    "zero_.default": ("x",),
    "masked_fill_.Scalar": ("x", "mask", 2),
    "masked_fill_.Tensor": ("x", "mask", "scalar"),
    "clamp_.default": ("x", -1, 1),
    "addcmul_.default": ("x", "y", "z"),
    "addcdiv_.default": ("x", "y", "z"),
    "lerp_.Scalar": ("x", "y", 0.25),
    "relu_.default": ("x",),
    "neg_.default": ("x",),
    "pow_.Scalar": ("x", 2),
    "eq_.Tensor": ("x", "y"),
    "lt_.Scalar": ("x", 0),
    "logical_and_.default": ("x", "y"),
    "bitwise_xor_.Tensor": ("x", "y"),
}


def _in_place_inputs(own, other):
    values = torch.tensor([-2.0, -0.6, 0.0, 0.3, 1.0, 2.7, 3.0, 5.9])

    def made(numbers, dtype):
        return (numbers.abs() if dtype == "uint8" else numbers).to(getattr(torch, dtype))

    return {
        "x": made(values, own),
        "y": made(values.roll(3), other),
        "z": made(values.roll(5).abs() + 1, other),
        "scalar": made(torch.tensor(2.3), other),
        "mask": values > 0.5,
    }


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_written_in_place_keeps_its_dtype_and_gets_eager_s_values(name):
    written = 0
    for own, other in itertools.product(op_page.DTYPES, op_page.DTYPES):
        values = _in_place_inputs(own, other)
        arguments = [values[a] if isinstance(a, str) else a for a in IN_PLACE[name]]
        try:
            expected = OVERLOADS[f"aten.{name}"](arguments[0].clone(), *arguments[1:])
        except (RuntimeError, TypeError):
            continue
        builder = ops.Builder(
            {key: str(tensor.dtype).removeprefix("torch.") for key, tensor in values.items()}
        )
        node = op_cases.make_node(op_cases.Case(name, IN_PLACE[name]), values)
        info = ops.lookup(node.op)
        try:
            (result,) = ops.write_call(
                node, info, builder, lambda one, v=values: _operand_of(one, v[one]), [own]
            )
        except UnsupportedOpError:
            continue
        written += 1
        arrays = {key: interpreter.to_numpy(tensor) for key, tensor in values.items()}
        made = interpreter.run_statements(builder.statements, arrays)
        got = made[result] if isinstance(result, str) else np.asarray(result.value)
        wanted = interpreter.to_numpy(expected)
        got = np.broadcast_to(got, wanted.shape)
        assert np.array_equal(got.astype(wanted.dtype), wanted, equal_nan=own in op_page.FLOATS), (
            name, own, other, got, wanted,
        )  # fmt: skip
    assert written >= 4  # lerp_ takes floats of one dtype


def _operand_of(name, tensor):
    dtype = str(tensor.dtype).removeprefix("torch.")
    return ops.Operand(
        value=name, dtype=dtype, weight="tensor" if tensor.dim() else "scalar tensor"
    )


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
