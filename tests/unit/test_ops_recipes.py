"""Every recipe against eager: bit for bit wherever eager agrees with itself, else in its budget."""

from __future__ import annotations

import dataclasses

import numpy as np
import op_cases
import program_interpreter as interpreter
import pytest
import torch

from fusion_advisor import ops

N = 631  # 441 pairs of special values, random ones, and a tail
PIECES = 90  # elements that are also computed in pieces shorter than a vector
# In 16 bits eager's vector body keeps float32 where its tail and strided loops round in between:
# these follow the body, which the last elements of a tensor do not take.
_TAIL_ROUNDS_APART = {"add.Tensor", "sub.Tensor", "softshrink.default"}
# erf in 16 bits is computed by eager with an absolute, not a relative, error near 0.
_ABSOLUTE_NEAR_ZERO = {"erf.default"}


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def run_recipe(case, inputs):
    """The recipe's results (arrays and dtypes) and the op's row."""
    builder = ops.Builder({name: dtype_name(tensor) for name, tensor in inputs.items()})
    node = op_cases.make_node(case, inputs)
    info = ops.lookup(node.op)
    assert info is not None
    assert info.recipe is not None

    def operand(value):
        return ops.Operand(value=value, dtype=dtype_name(inputs[value]), weight="tensor")

    result = info.recipe(ops.bind(node, info.parameters, builder, operand, lambda _: None))
    arrays = {name: interpreter.to_numpy(tensor) for name, tensor in inputs.items()}
    values = interpreter.run_statements(builder.statements, arrays)
    results = []
    for item in result if isinstance(result, tuple) else (result,):
        array = (
            values[item]
            if isinstance(item, str)
            else np.asarray(item.value, interpreter.NUMPY_DTYPES[item.dtype])
        )
        results.append((array, builder.dtype(item)))
    return results, info


def eager(case, inputs, arrange):
    """The op's results on rearranged operands, brought back into order."""
    args = [arrange(inputs[a]) if isinstance(a, str) and a in inputs else a for a in case.args]
    result = op_cases.overload(case.op)(*args, **case.kwargs)
    return result if isinstance(result, tuple) else (result,)


def eager_variants(case, inputs):
    """Eager by its vector body, by its strided loop, and in pieces shorter than a vector."""

    def strided(tensor):
        return tensor.repeat_interleave(2)[::2]

    pieces = [
        eager(case, {k: v[i : i + 3] for k, v in inputs.items()}, lambda t: t)
        for i in range(0, PIECES, 3)
    ]
    whole = eager(case, inputs, lambda t: t)
    short = tuple(
        torch.cat([*parts, result[PIECES:]])
        for parts, result in zip(zip(*pieces, strict=True), whole, strict=True)
    )
    return whole, eager(case, inputs, strided), short


def same_bits(a, b):
    if a.dtype.kind != "f":
        return a == b
    return (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))


def unit_in_last_place(magnitude, dtype):
    """Spacing of a dtype's numbers at a magnitude."""
    bits, lowest = {
        "float32": (24, -149),
        "float64": (53, -1074),
        "bfloat16": (8, -133),
        "float16": (11, -24),
    }[dtype]
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(np.maximum(magnitude, 1e-320)))
    return np.exp2(np.maximum(exponent - bits + 1, lowest))


def within_budget(case, info, inputs, got, candidates, dtype):
    """Which elements lie within the op's budget of some eager variant."""
    scale = np.abs(got).astype(np.float64)
    if info.error_scale == "operand":
        first = next(a for a in case.args if isinstance(a, str) and a in inputs)
        scale = np.maximum(scale, np.abs(interpreter.to_numpy(inputs[first])))
    if case.op in _ABSOLUTE_NEAR_ZERO:
        scale = np.maximum(scale, 1.0)
    # A float32 error moves a 16-bit result by at most one; float64 has no measured budget.
    budget = {"float32": info.budget_ulp, "float64": 8 * info.budget_ulp}.get(dtype, 1.0)
    allowed = (budget + 0.5) * unit_in_last_place(scale, dtype)
    ok = np.zeros(got.shape, bool)
    with np.errstate(all="ignore"):
        for candidate in candidates:
            ok |= same_bits(got, candidate)
            ok |= np.abs(got.astype(np.float64) - candidate) <= allowed
    return ok


def _with_single_numbers(case):
    """The call with its numbers as a float32 kernel knows them."""
    numbers = (float(np.float32(arg)) if isinstance(arg, float) else arg for arg in case.args)
    return dataclasses.replace(case, args=tuple(numbers))


@pytest.mark.parametrize("dtype", op_cases.FLOATS, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("case", op_cases.CASES, ids=str)
def test_recipe_reproduces_eager(case, dtype):
    inputs = op_cases.make_inputs(dtype, N, special=True)
    variants = eager_variants(case, inputs)
    results, info = run_recipe(case, inputs)
    for position, (got, name) in enumerate(results):
        candidates = []
        for variant in variants:
            assert dtype_name(variant[position]) == name
            candidates.append(interpreter.to_numpy(variant[position]))
        got = np.broadcast_to(got, candidates[0].shape).astype(candidates[0].dtype)
        if name == "float32" and info.budget_ulp:
            # A budget is a distance from the true value, which eager may be further away from.
            wide = {key: v.double() if v.is_floating_point() else v for key, v in inputs.items()}
            true = eager(_with_single_numbers(case), wide, lambda t: t)[position]
            candidates.append(interpreter.to_numpy(true).astype(np.float64))
        agree = same_bits(candidates[0], candidates[1]) & same_bits(candidates[0], candidates[2])
        exact = same_bits(got, candidates[0])
        if name in ("bfloat16", "float16") and case.op in _TAIL_ROUNDS_APART:
            agree[N - 64 :] = False
            exact[N - 64 :] = True
        if info.budget_ulp == 0:
            ok = exact | ~agree
            # Where eager disagrees with itself one of its answers must still be near.
            if got.dtype.kind == "f":
                ok &= exact | within_budget(case, info, inputs, got, candidates, name) | agree
        else:
            ok = within_budget(case, info, inputs, got, candidates, name)
        bad = np.nonzero(~ok)[0]
        assert not len(bad), (
            f"{len(bad)} of {N}: element {bad[0]} is {got[bad[0]]}, eager "
            f"{[candidate[bad[0]] for candidate in candidates]}"
        )


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
@pytest.mark.parametrize(
    ("op", "args"),
    [("add.Tensor", ("x", "y")), ("sub.Tensor", ("x", 3)), ("mul.Tensor", ("x", "y")),
     ("neg.default", ("x",)), ("abs.default", ("x",)), ("maximum.default", ("x", "y")),
     ("clamp.default", ("x", 1, 9)), ("remainder.Scalar", ("x", 7)),
     ("remainder.Scalar", ("x", -7)), ("fmod.Scalar", ("x", 7)), ("fmod.Scalar", ("x", -7)),
     ("floor_divide.default", ("x", 7)), ("floor_divide.default", ("x", -1)),
     ("floor_divide.default", ("x", "divisor")), ("floor_divide.default", (9, "divisor")),
     ("remainder.Tensor", ("x", "divisor")), ("remainder.Scalar_Tensor", (9, "divisor")),
     ("fmod.Tensor", ("x", "divisor")), ("fmod.Scalar", ("x", -1)),
     ("pow.Tensor_Scalar", ("x", 3)), ("pow.Tensor_Scalar", ("x", 61)),
     ("pow.Tensor_Tensor", ("x", "count")), ("pow.Scalar", (-3, "count")),
     ("pow.Scalar", (1, "x")),
     ("__lshift__.Tensor", ("x", "count")), ("__rshift__.Scalar", ("x", 2)),
     ("bitwise_left_shift.Tensor_Scalar", ("x", 3)),
     ("bitwise_right_shift.Scalar_Tensor", (100, "count")),
     ("bitwise_and.Tensor", ("x", "y")), ("bitwise_not.default", ("x",)),
     ("lt.Scalar", ("x", 5)), ("div.Tensor", ("x", 3)), ("relu.default", ("x",)),
     ("logical_not.default", ("x",)), ("sign.default", ("x",)), ("square.default", ("x",)),
     ("addcmul.default", ("x", "y", "z")), ("heaviside.default", ("x", "y")),
     ("isinf.default", ("x",)), ("isposinf.default", ("x",)), ("isneginf.default", ("x",)),
     ("signbit.default", ("x",)), ("clamp_min.Tensor", ("x", "y")),
     ("clamp_max.Tensor", ("x", "y"))],
)  # fmt: skip
def test_integer_recipes_reproduce_eager(op, args, dtype):
    torch_dtype = getattr(torch, dtype)
    info = torch.iinfo(torch_dtype)
    generator = torch.Generator().manual_seed(1)
    inputs = {
        name: torch.randint(max(info.min, -300), min(info.max, 300), (N,), generator=generator).to(
            torch_dtype
        )
        for name in ("x", "y", "z")
    }
    inputs["divisor"] = torch.where(inputs["y"] == 0, torch.ones_like(inputs["y"]), inputs["y"])
    inputs["count"] = (torch.arange(N) % 75 - 5).to(torch_dtype)
    case = op_cases.Case(op, args)
    results, _ = run_recipe(case, inputs)
    (expected,) = eager(case, inputs, lambda t: t)
    assert results[0][1] == dtype_name(expected)
    np.testing.assert_array_equal(
        np.broadcast_to(results[0][0], (N,)), interpreter.to_numpy(expected)
    )


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64"])
@pytest.mark.parametrize("value", [3, -2])
def test_integer_addcmul_wraps_at_every_step(value, dtype):
    torch_dtype = getattr(torch, dtype)
    most = torch.iinfo(torch_dtype).max
    inputs = {
        "x": torch.tensor([most, 1, 0, most - 1], dtype=torch_dtype),
        "y": torch.tensor([most, most, 7, 2], dtype=torch_dtype),
        "z": torch.tensor([most, 2, 9, 3], dtype=torch_dtype),
    }
    case = op_cases.Case("addcmul.default", ("x", "y", "z"), {"value": value})
    results, _ = run_recipe(case, inputs)
    (expected,) = eager(case, inputs, lambda t: t)
    assert results[0][1] == dtype
    assert results[0][0].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("op", "args"),
    [("sign.default", ("x",)), ("sgn.default", ("x",)), ("signbit.default", ("x",)),
     ("isinf.default", ("x",)), ("isposinf.default", ("x",)), ("isneginf.default", ("x",)),
     ("heaviside.default", ("x", "y")), ("clamp_min.Tensor", ("x", "y")),
     ("clamp_max.Tensor", ("x", "y"))],
)  # fmt: skip
def test_bool_recipes_reproduce_eager(op, args):
    inputs = {
        "x": torch.tensor([True, True, False, False]),
        "y": torch.tensor([True, False, True, False]),
    }
    case = op_cases.Case(op, args)
    results, _ = run_recipe(case, inputs)
    (expected,) = eager(case, inputs, lambda t: t)
    assert results[0][1] == "bool"
    assert np.broadcast_to(results[0][0], (4,)).tolist() == expected.tolist()


@pytest.mark.parametrize("alpha", [True, False, 2, 0])
def test_a_factor_of_bool_addition_counts_as_true_or_false(alpha):
    inputs = {"x": torch.tensor([True, True, False]), "y": torch.tensor([True, False, True])}
    case = op_cases.Case("add.Tensor", ("x", "y"), {"alpha": alpha})
    results, _ = run_recipe(case, inputs)
    (expected,) = eager(case, inputs, lambda t: t)
    assert results[0][0].tolist() == expected.tolist() == [True, True, bool(alpha)]


def test_bool_addition_is_or_and_multiplication_and():
    inputs = {"x": torch.tensor([True, True, False]), "y": torch.tensor([True, False, False])}
    for op, expected in (("add.Tensor", [True, True, False]), ("mul.Tensor", [True, False, False])):
        results, _ = run_recipe(op_cases.Case(op, ("x", "y")), inputs)
        assert results[0][1] == "bool"
        assert results[0][0].tolist() == expected


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (op_cases.Case("floor_divide.default", ("i", 0)), "division by zero raises in eager"),
        (op_cases.Case("remainder.Scalar", ("i", 0)), "division by zero raises in eager"),
        (op_cases.Case("pow.Tensor_Scalar", ("i", -1)), "int64 to the power -1 raises in eager"),
        (op_cases.Case("__lshift__.Scalar", ("b", True)), "no recipe for dtype bool"),
        (op_cases.Case("sub.Tensor", ("b", "b")), "bool"),
    ],
)
def test_refusals_name_op_and_reason(case, reason):
    inputs = {"i": torch.tensor([1, 2]), "b": torch.tensor([True])}
    from fusion_advisor.errors import UnsupportedOpError

    with pytest.raises(UnsupportedOpError, match=reason) as caught:
        run_recipe(case, inputs)
    assert case.op in str(caught.value)


@pytest.mark.parametrize("dtype", op_cases.FLOATS, ids=lambda d: str(d).removeprefix("torch."))
def test_ldexp_reaches_the_ends_of_the_range(dtype):
    bits = torch.finfo(dtype)
    values = [1.0, -3.0, bits.max, bits.tiny, bits.smallest_normal / 4, 0.0, float("inf"), 1.25]
    exponents = [0, 5, -7, 130, -160, 1100, -1100, 2100, -2100, 2**31 - 1, -(2**31), 2**32 + 3]
    x, n = zip(*[(a, b) for a in values for b in exponents], strict=True)
    inputs = {"x": torch.tensor(x, dtype=dtype), "n": torch.tensor(n)}
    results, _ = run_recipe(op_cases.Case("ldexp.Tensor", ("x", "n")), inputs)
    (expected,) = eager(op_cases.Case("ldexp.Tensor", ("x", "n")), inputs, lambda t: t)
    assert results[0][1] == dtype_name(expected)
    wanted = interpreter.to_numpy(expected)
    got = results[0][0].astype(wanted.dtype)
    apart = np.abs(got.astype(np.float64) - wanted)
    ok = same_bits(got, wanted)
    if dtype == torch.float64:
        ok |= (np.abs(wanted) < bits.smallest_normal) & (apart <= 5e-324)
    assert ok.all(), (got[~ok], wanted[~ok])
