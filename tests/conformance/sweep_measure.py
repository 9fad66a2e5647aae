"""Sweeps one call over many inputs: float32 by chunks that stay in the cache, 16 bits whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import sweep_judge
import torch
from sweep_judge import Chunk, Errors
from sweep_kernels import Kernel, as_array
from swept_calls import Reference, SweptCall, reference

from fusion_advisor.validation.compare import same_bits
from fusion_advisor.validation.intervals import HALF_STEP_ULP, ulp

CHUNK = 1 << 15  # float64 operands, truth and float32 results of one chunk fill half a MiB
EAGER_EVERY = 16  # where only errors count, eager is run on every so many chunks
STRIDED_EVERY = 64  # eager's strided loop is slow: it is run on every so many chunks
ALL = 1 << 32
HALF_PAIRS = 1 << 20
_PAIR_KINDS = 4
_NOTHING = np.full(CHUNK, np.nan, np.float32)


@dataclass
class Target:
    """One kernel's findings.

    ``body_differs`` of ``compared`` results are not the very bits of eager's vector body.
    """

    digest: str
    inputs: int = 0
    compared: int = 0
    errors: Errors = field(default_factory=Errors)
    body_differs: int = 0
    differs_at: tuple[float, ...] = ()


@dataclass
class Eager:
    """Eager's own findings.  ``spread_ulp``: how far apart its two forms are, over a sample."""

    inputs: int = 0
    errors: Errors = field(default_factory=Errors)
    spread_inputs: int = 0
    spread_differs: int = 0
    spread_ulp: float = 0.0


def unary_chunks(stride: int, offset: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Every ``stride``-th bit pattern of float32; before a part of them the specials."""
    if stride > 1:
        yield (_whole_vectors(specials()),)
    first = np.arange(CHUNK, dtype=np.uint32) * np.uint32(stride)
    for start in range(offset, ALL, CHUNK * stride):
        count = min(CHUNK, -(-(ALL - start) // stride))
        yield ((first[:count] + np.uint32(start)).view(np.float32),)


def specials() -> np.ndarray:
    """Numbers at which functions turn, vanish, overflow or end; in float32."""
    magnitudes = [0.0, 1.0, 0.5, 2.0, 3.0, 4.0, 1.5, 2.5, 10.0, 0.1, 1 / 3, 1e-3, 6.0, 20.0, 88.7]
    magnitudes += [103.9, 127.0, 128.0, 1e-45, 1.1754942e-38, 1.1754944e-38, 1e-30, 1e-20, 1e-8]
    magnitudes += [1e8, 1e20, 1e30, 3.4028235e38, 16777216.0, 16777217.0, 8388607.5, 1e10, np.inf]
    magnitudes += [np.pi, np.pi / 2, np.pi / 4, np.e, np.log(2), np.sqrt(0.5), 1.2784645, 0.7]
    near = np.array([1.0, 0.5, 2.0, 3.0], np.float32)
    values = np.concatenate(
        [np.array(magnitudes, np.float32), np.nextafter(near, np.float32(0)), near * (1 + 2e-7)]
    ).astype(np.float32)
    return np.concatenate([values, -values, [np.float32(np.nan)]]).astype(np.float32)


def _whole_vectors(values: np.ndarray) -> np.ndarray:
    """Padded by repetition: what is left of a vector would go through eager's other form."""
    return np.resize(values, -(-values.size // 64) * 64)


def binary_chunks(pairs: int, seed: int) -> Iterator[tuple[np.ndarray, ...]]:
    """The specials with each other, then as many pairs of four kinds by turns.

    Bit patterns; ordinary magnitudes, the second with few digits; nearly equal operands;
    magnitudes around the first's by a power of two.
    """
    grid = np.meshgrid(specials(), specials())
    yield tuple(_whole_vectors(side.ravel()) for side in grid)
    generator = np.random.default_rng(seed)
    for number in range(-(-pairs // CHUNK)):
        with np.errstate(all="ignore"):
            yield _pairs(generator, number % _PAIR_KINDS)


def _pairs(generator: np.random.Generator, kind: int) -> tuple[np.ndarray, ...]:
    if kind == 0:
        bits = generator.integers(0, 1 << 32, (2, CHUNK), dtype=np.uint32).view(np.float32)
        return bits[0], bits[1]
    x = (generator.standard_normal(CHUNK) * 8.0).astype(np.float32)
    if kind == 1:
        y = (np.round(generator.standard_normal(CHUNK) * 64.0) / 8.0).astype(np.float32)
        return x, y
    if kind == 2:
        steps = generator.integers(-9, 10, CHUNK, dtype=np.int32)
        return x, (x.view(np.int32) + steps).view(np.float32)
    power = generator.integers(-30, 31, CHUNK)
    return x, np.ldexp(generator.standard_normal(CHUNK).astype(np.float32), power.astype(np.int32))


def _in_domain(call: SweptCall, operands: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """The operands, of a probability its fractional part."""
    if not call.second_in_unit:
        return operands
    with np.errstate(invalid="ignore"):
        return operands[0], np.abs(np.fmod(operands[1], np.float32(1.0)))


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between them, for which eager takes another loop."""
    gaps = torch.empty(2 * tensor.numel(), dtype=tensor.dtype)
    gaps[::2] = tensor
    return gaps[::2]


def sweep_float32(
    call: SweptCall, kernels: dict[str, Kernel], stride: int, offset: int = 0
) -> tuple[dict[str, Target], Eager]:
    """Every ``stride``-th float32; or for two operands the specials and 2**24 / stride pairs."""
    chunks = (
        unary_chunks(stride, offset)
        if call.arity == 1
        else binary_chunks(max(CHUNK * _PAIR_KINDS, (1 << 24) // stride), offset)
    )
    sweep = _Sweep(call, kernels)
    with torch.no_grad():
        for number, operands in enumerate(chunks):
            sweep.one(number, _in_domain(call, operands))
    return sweep.found, sweep.eager


class _Sweep:
    """One call's kernels over chunks of float32 operands.

    Eager is run on each chunk where it decides: to compare bits, or to explain an error beyond the
    budget; else on every so many.
    """

    def __init__(self, call: SweptCall, kernels: dict[str, Kernel]) -> None:
        self.call = call
        self.budget = float(call.budget_ulp)
        self.kernels = kernels
        self.true = reference(call)
        self.runs = {name: kernel.prepare() for name, kernel in kernels.items()}
        self.outputs = {
            name: [np.empty(CHUNK, kind) for kind in kernel.outputs]
            for name, kernel in kernels.items()
        }
        self.found = {name: Target(kernel.digest) for name, kernel in kernels.items()}
        self.eager = Eager()

    def one(self, number: int, operands: tuple[np.ndarray, ...]) -> None:
        """Sweep one chunk."""
        chunk = _Operands(self.call, operands)
        truth = chunk.truth(self.true) if self.budget else None
        with_eager = truth is None or number % EAGER_EVERY == 0
        if number % STRIDED_EVERY == 0:
            self._compare_forms(chunk, truth)
        for name, run in self.runs.items():
            outputs = [whole[: chunk.size] for whole in self.outputs[name]]
            run(*operands, *outputs)
            target = self.found[name]
            target.inputs += chunk.size
            if with_eager:
                self._against_bits(target, outputs[0], chunk, exact=truth is None)
            if truth is not None:
                self._against_truth(target, outputs[0], chunk, truth)
        if chunk.has_body or with_eager:
            self.eager.inputs += chunk.size
            if truth is not None:
                own = sweep_judge.judge(chunk.body(), truth, chunk.body())
                sweep_judge.record(self.eager.errors, own, operands, np.inf)

    def _compare_forms(self, chunk: _Operands, truth: Chunk | None) -> None:
        body, strided = chunk.body(), chunk.strided()
        self.eager.spread_inputs += chunk.size
        self.eager.spread_differs += sweep_judge.count_different(body, strided, chunk.dtype)
        if truth is None:
            return
        with np.errstate(all="ignore"):
            apart = np.abs(body.astype(np.float64) - strided) * truth.scale
        apart = apart[np.isfinite(apart)]
        if apart.size:
            self.eager.spread_ulp = max(self.eager.spread_ulp, float(apart.max()))

    def _against_bits(
        self, target: Target, got: np.ndarray, chunk: _Operands, *, exact: bool
    ) -> None:
        body = chunk.body()
        target.compared += chunk.size
        different = sweep_judge.count_different(got, body, chunk.dtype)
        if not different:
            return
        target.body_differs += different
        if not target.differs_at:
            target.differs_at = chunk.at(sweep_judge.first_different(got, body, chunk.dtype))
        if exact:
            width = np.dtype(f"i{got.dtype.itemsize}")
            strided = chunk.strided()
            apart = (got.view(width) != body.view(width)) & (got.view(width) != strided.view(width))
            if got.dtype.kind == "f":
                apart &= ~(np.isnan(got) & (np.isnan(body) | np.isnan(strided)))
            target.errors.over += int(apart.sum())
            if apart.any() and not target.errors.fault_at:
                target.errors.fault_at = chunk.at(int(apart.argmax()))

    def _against_truth(
        self, target: Target, got: np.ndarray, chunk: _Operands, truth: Chunk
    ) -> None:
        forms = chunk.known_forms(got)
        judged = sweep_judge.judge(got, truth, *forms)
        if judged.faults or judged.worst_charged > self.budget:
            judged = sweep_judge.judge(got, truth, chunk.body(), chunk.strided())
        sweep_judge.record(target.errors, judged, chunk.operands, self.budget)


class _Operands:
    """One chunk's operands, and what eager makes of them, worked out where it is asked for."""

    def __init__(self, call: SweptCall, operands: tuple[np.ndarray, ...]) -> None:
        self.call, self.operands = call, operands
        self.size = operands[0].size
        self.tensors = tuple(torch.from_numpy(operand) for operand in operands)
        self.dtype = ""
        self._body: np.ndarray | None = None
        self._strided: np.ndarray | None = None

    def truth(self, reference: Reference) -> Chunk:
        """The true results, and the ULP that count."""
        wide = [tensor.double() for tensor in self.tensors]
        true = reference(*wide).contiguous().numpy()
        scaled = self.call.info.error_scale == "operand"
        return Chunk(true, sweep_judge.inverse_ulp(true, wide[0].numpy() if scaled else None))

    @property
    def has_body(self) -> bool:
        """Whether eager's results were worked out."""
        return self._body is not None

    def body(self) -> np.ndarray:
        """Eager's results on contiguous operands of whole vectors."""
        if self._body is None:
            result = self.call.run(*self.tensors)
            self.dtype = str(result.dtype).removeprefix("torch.")
            self._body = as_array(result.contiguous())
        return self._body

    def strided(self) -> np.ndarray:
        """Eager's results on operands with gaps."""
        if self._strided is None:
            gaps = [_strided(tensor) for tensor in self.tensors]
            self._strided = as_array(self.call.run(*gaps).contiguous())
        return self._strided

    def known_forms(self, otherwise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those of eager's two forms that were worked out; NaN explains nothing."""
        known = [form for form in (self._body, self._strided) if form is not None]
        if not known:
            known = [_NOTHING[: otherwise.size]]
        return known[0], known[-1]

    def at(self, place: int) -> tuple[float, ...]:
        """The operands at one place."""
        return tuple(float(operand[place]) for operand in self.operands)


# --- 16 bits -----------------------------------------------------------------------------------


def sweep_half(
    call: SweptCall, kernels: dict[str, Kernel], dtype: torch.dtype
) -> tuple[dict[str, Target], Eager]:
    """All 2**16 values of a 16-bit float, or 2**20 random pairs; judged as the validator does."""
    if call.arity == 1:
        patterns = [np.arange(1 << 16, dtype=np.uint16)]
    else:
        patterns = list(
            np.random.default_rng(16).integers(0, 1 << 16, (2, HALF_PAIRS), dtype=np.uint16)
        )
    tensors = [torch.from_numpy(bits.view(np.int16)).view(dtype) for bits in patterns]
    if call.second_in_unit:
        tensors[1] = tensors[1].fmod(1.0).abs()
        patterns[1] = as_array(tensors[1])
    with torch.no_grad():
        body = call.run(*tensors)
        strided = call.run(*(_strided(tensor) for tensor in tensors))
        true = reference(call, dtype)(*(tensor.double() for tensor in tensors))
    floating = body.dtype.is_floating_point
    eager = Eager(inputs=body.numel(), spread_inputs=body.numel())
    eager.spread_differs = int((~same_bits(body, strided)).sum())
    if floating and call.budget_ulp:
        scale = _scale(call, true, tensors)
        _half_errors(eager.errors, body, true, scale, tensors)
        apart = _distance(body, strided.double(), scale)
        eager.spread_ulp = float(apart.max())
    found = {}
    for name, kernel in kernels.items():
        outputs = [np.empty(body.numel(), kind) for kind in kernel.outputs]
        kernel.prepare()(*patterns, *outputs)
        got = _as_tensor(outputs[0], body.dtype)
        target = found[name] = Target(kernel.digest, inputs=body.numel(), compared=body.numel())
        differs = ~same_bits(got, body)
        target.body_differs = int(differs.sum())
        if target.body_differs:
            target.differs_at = _at(tensors, int(differs.nonzero()[0]))
        if floating and call.budget_ulp:
            _half_errors(target.errors, got, true, scale, tensors)
            bad = ~_allowed(call, got, body, strided, true, scale)
        else:
            bad = differs & ~same_bits(got, strided)
        target.errors.over = int(bad.sum())
        if target.errors.over:
            target.errors.fault_at = _at(tensors, int(bad.nonzero()[0]))
    return found, eager


def _as_tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    if dtype in (torch.float16, torch.bfloat16):
        return torch.from_numpy(array.view(np.int16)).view(dtype)
    return torch.from_numpy(array)


def _at(tensors: list[torch.Tensor], place: int) -> tuple[float, ...]:
    return tuple(float(tensor[place]) for tensor in tensors)


def _scale(call: SweptCall, true: torch.Tensor, tensors: list[torch.Tensor]) -> torch.Tensor:
    """The magnitudes whose ULP counts."""
    if call.info.error_scale == "operand":
        return torch.fmax(true.abs(), tensors[0].double().abs())
    return true.abs()


def _distance(got: torch.Tensor, true: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Distance in ULP at ``scale``; 0 where it is no number."""
    apart = (got.double() - true).abs() / ulp(scale, got.dtype)
    return torch.where(torch.isfinite(apart), apart, 0.0)


def _half_errors(
    found: Errors,
    got: torch.Tensor,
    true: torch.Tensor,
    scale: torch.Tensor,
    tensors: list[torch.Tensor],
) -> None:
    apart = _distance(got, true, scale)
    place = int(apart.argmax())
    found.ulp, found.at = float(apart[place]), _at(tensors, place)
    rounded = true.to(got.dtype)
    overflow = torch.isinf(rounded) != torch.isinf(got)
    found.faults = 0
    found.eager_faults = int(((got.isnan() != rounded.isnan()) | overflow).sum())


def _allowed(
    call: SweptCall,
    got: torch.Tensor,
    body: torch.Tensor,
    strided: torch.Tensor,
    true: torch.Tensor,
    scale: torch.Tensor,
) -> torch.Tensor:
    """Within the float32 budget around the true value, rounded; or eager's, or between them."""
    room = float(call.budget_ulp) * ulp(scale, torch.float32)
    low, high = (true - room).to(got.dtype).double(), (true + room).to(got.dtype).double()
    steps = HALF_STEP_ULP if call.info.half_steps else 0
    for form in (body.double(), strided.double()):
        around = steps * ulp(form, got.dtype)
        low, high = torch.fmin(low, form - around), torch.fmax(high, form + around)
    value = got.double()
    inside = (value >= low) & (value <= high)
    # A zero between bounds of one sign has that sign.
    inside &= (value != 0) | (low < 0) & (high > 0) | (torch.signbit(got) == torch.signbit(true))
    same = same_bits(got, body) | same_bits(got, strided) | same_bits(got, true.to(got.dtype))
    return inside | same
