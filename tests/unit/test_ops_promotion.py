import itertools

import pytest
import torch

from fusion_advisor.ops.dtypes import SUPPORTED_DTYPES, convert_number
from fusion_advisor.ops.promotion import promote_types, result_type


def torch_dtype(name):
    return getattr(torch, name)


def test_promote_types_agrees_with_torch_on_every_pair():
    for left, right in itertools.product(SUPPORTED_DTYPES, repeat=2):
        expected = torch.promote_types(torch_dtype(left), torch_dtype(right))
        assert f"torch.{promote_types(left, right)}" == str(expected), (left, right)


def test_result_type_agrees_with_torch_on_tensors_scalars_and_numbers():
    numbers = {"bool": True, "int64": 2, "float64": 2.5}
    for left, right in itertools.product(SUPPORTED_DTYPES, repeat=2):
        tensor = torch.ones(2, dtype=torch_dtype(left))
        scalar = torch.ones((), dtype=torch_dtype(right))
        expected = torch.result_type(tensor, scalar)
        assert f"torch.{result_type([(left, 'tensor'), (right, 'scalar tensor')])}" == str(expected)
        for dtype, number in numbers.items():
            for operand, weight in ((tensor, "tensor"), (scalar, "scalar tensor")):
                name = left if weight == "tensor" else right
                expected = torch.result_type(operand, number)
                actual = result_type([(name, weight), (dtype, "number")])
                assert f"torch.{actual}" == str(expected), (name, weight, number)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize(
    "value", [0.1, 1 / 3, 65519.0, 65520.0, 1e39, -1e39, 1e-45, 3.0e-8, float("inf"), 7, -0.0]
)
def test_numbers_become_what_torch_stores(dtype, value):
    expected = (
        torch.tensor(value, dtype=torch.float64).float()
        if dtype != "float64"
        else (torch.tensor(value, dtype=torch.float64))
    )
    expected = expected.to(torch_dtype(dtype)).double()
    actual = torch.tensor(convert_number(value, dtype), dtype=torch.float64)
    assert torch.equal(actual, expected)
    assert torch.signbit(actual) == torch.signbit(expected)


def test_integers_wrap():
    assert convert_number(200, "int8") == -56
    assert convert_number(-1, "uint8") == 255
    assert convert_number(2.9, "int32") == 2
