"""The wiring check must see a wrong output and put side effects back."""

from __future__ import annotations

import torch

from fusion_advisor.validation import whole_call


def test_random_state_and_buffers_are_put_back() -> None:
    norm = torch.nn.BatchNorm1d(3)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with whole_call.preserved_state([norm]):
        norm(torch.randn(8, 3))
        assert int(norm.num_batches_tracked) == 1
    assert torch.equal(state, torch.get_rng_state())
    assert int(norm.num_batches_tracked) == 0
    assert torch.equal(norm.running_mean, torch.zeros(3))


def test_rounding_is_accepted_but_not_called_bitwise() -> None:
    value = torch.linspace(-2, 2, 1001)
    nudged = torch.nextafter(value, torch.tensor(9.0))
    result = whole_call.compare([value], [nudged])
    assert result.equal and not result.bitwise


def test_wrong_values_shapes_and_nans_are_refused() -> None:
    value = torch.linspace(-2, 2, 1001)
    broken = value.clone()
    broken[1000] = 0.0  # one skipped element
    assert not whole_call.compare([value], [broken]).equal
    assert not whole_call.compare([value], [value.double()]).equal
    assert not whole_call.compare([value], []).equal
    nan_value = value.clone()
    nan_value[3] = float("nan")
    assert not whole_call.compare([value], [nan_value]).equal
    assert not whole_call.compare([nan_value], [value]).equal
    assert whole_call.compare([nan_value], [nan_value.clone()]).bitwise
    infinite = value.clone()
    infinite[3] = float("inf")
    assert not whole_call.compare([infinite], [-infinite]).equal
    assert not whole_call.compare([torch.tensor([1, 2])], [torch.tensor([1, 3])]).equal


def test_a_model_output_object_is_compared_by_its_tensors() -> None:
    class Output:
        def __init__(self, logits: torch.Tensor) -> None:
            self.logits = logits

    before = whole_call.snapshot(Output(torch.ones(3)))
    assert len(before) == 1
    assert not whole_call.compare(before, whole_call.snapshot(Output(torch.zeros(3)))).equal


def test_timing_ends_with_the_kernels_in() -> None:
    log: list[bool] = []
    times = whole_call.time_interleaved(lambda: None, log.append, budget_s=0.01)
    assert log[-1] is True and log.count(True) >= log.count(False)
    assert times.rounds >= 5
