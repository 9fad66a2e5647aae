"""A hand-made, rich ``Report``: findings, repeats, a refusal, a failure, hostile strings."""

from __future__ import annotations

import hashlib

from fusion_advisor.records import (
    AppliedFix,
    BandwidthPoint,
    Blocker,
    Capture,
    Ceilings,
    CostEstimate,
    Environment,
    Finding,
    Fix,
    FusedProgram,
    FusionCandidate,
    FusionRatio,
    KernelSource,
    OperandMap,
    OpGraph,
    OpKind,
    OpNode,
    OpTime,
    ProgramInput,
    ProgramOutput,
    ReplayProof,
    Report,
    Resources,
    Rung,
    SourceSpan,
    TensorSpec,
    TimingPair,
    ValidationResult,
    ValueRef,
    Verdict,
)

# Everything a page, a terminal or a plot must not act on.
HOSTILE = (
    "<script>alert('x')</script> & \"quotes\" $mathtext$ \x1b[31mred\x1b[0m \u202eabc</details>"
)
SHAPE = (2, 256, 3072)
CHAIN = tuple(
    "mul.Tensor pow.Tensor_Scalar mul.Tensor add.Tensor mul.Tensor tanh.default add.Tensor "
    "mul.Tensor".split()
)

KERNEL_TEXT = '''import torch
from numba import prange, float32
from fusion_advisor.runtime import FusedFunction, Operand, Output, cuda, cpu_kernel

# 8 ops, reads x (6.0 MiB), writes out (6.0 MiB)
def eager_gelu(x):
    """The chain as torch runs it."""
    return 0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))

@cuda.jit
def gelu_cuda(x, out, n):
    i = cuda.grid(1)
    if i < n:
        out[i] = x[i] * float32(0.5)

@cpu_kernel
def gelu_cpu(x, out):
    for i in prange(out.size):
        out[i] = x[i] * float32(0.5)  # "</script>" must not end anything
'''


def _span(line: int, text: str, *, cell: bool = True) -> SourceSpan:
    return SourceSpan(
        kind="cell" if cell else "file",
        file="/tmp/ipykernel_1/42.py" if cell else "/site-packages/transformers/activations.py",
        line=line,
        end_line=line + text.count("\n"),
        column=4,
        end_column=60,
        function="forward",
        text=text,
        cell_id="cell-1" if cell else None,
        execution_count=3 if cell else None,
        installed=not cell,
    )


def _chain(
    start: int, ops: tuple[str, ...], span: SourceSpan
) -> tuple[list[OpNode], list[TensorSpec]]:
    """``ops`` one after the other; each reads the value before it and, if binary, the first one."""
    nodes, values = [], []
    for offset, op in enumerate(ops):
        index = start + offset
        inputs = (f"v{index}",) if "Scalar" in op or "default" in op else (f"v{index}", f"v{start}")
        nodes.append(
            OpNode(
                id=f"n{index}",
                index=index,
                op=f"aten.{op}",
                args=tuple(ValueRef(value=value) for value in inputs),
                inputs=tuple(dict.fromkeys(inputs)),
                outputs=(f"v{index + 1}",),
                kind="elementwise",
                module_path="transformer.h.0.mlp",
                module_class="MLP",
                span=span,
                frame=index,
            )
        )
        values.append(_value(f"v{index + 1}", index + 1))
    return nodes, values


def _value(name: str, storage: int, shape: tuple[int, ...] = SHAPE) -> TensorSpec:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return TensorSpec(
        id=name, dtype="float32", shape=shape, strides=tuple(reversed(strides)), storage=storage
    )


def _estimate(count: int, ops: int, before_us: float, after_us: float) -> CostEstimate:
    size = 4 * 2 * 256 * 3072
    return CostEstimate(
        bytes_before=size * 2 * ops * count,
        bytes_after=size * 2 * count,
        launches_before=ops * count,
        launches_after=count,
        flops=12.0 * size / 4 * count,
        time_before_us=before_us,
        time_after_low_us=after_us * 0.8,
        time_after_mid_us=after_us,
        time_after_high_us=after_us * 1.5,
        saved_low_us=before_us - after_us * 1.5,
        saved_mid_us=before_us - after_us,
        saved_high_us=before_us - after_us * 0.8,
        textbook_before_us=before_us * 0.9,
        textbook_after_us=after_us * 0.9,
        registers=18,
        bound="memory-bound",
        terms=(("memory", after_us * 0.8), ("launch", after_us * 0.2)),
    )


def _candidate(name: str, nodes: list[OpNode]) -> FusionCandidate:
    return FusionCandidate(
        id=name,
        nodes=tuple(node.id for node in nodes),
        inputs=(OperandMap(value=nodes[0].inputs[0], dims=(0, 1, 2)),),
        outputs=(nodes[-1].outputs[0],),
        shape=SHAPE,
        blockers=(Blocker(code="not-elementwise", nodes=(nodes[-1].id, "n99"), message="matmul"),),
    )


def _validation(status: str) -> ValidationResult:
    failed = status == "failed"
    return ValidationResult(
        kernel_hash="0" * 64,
        status="failed" if failed else "passed",
        rungs=(
            Rung(name="program", status="passed", detail="8 statements", seconds=0.01),
            Rung(name="compile sm_80", status="passed", detail="18 registers, 0 spills"),
            Rung(
                name="CPU kernel",
                status="failed" if failed else "passed",
                detail=f"3 of 1024 elements differ {HOSTILE}" if failed else "equal",
                seconds=1.2,
            ),
            Rung(name="GPU", status="not run", detail="this machine has no CUDA device"),
        ),
        cases=37,
        mismatches=3 if failed else 0,
        worst_ulp=0.0 if not failed else float("inf"),
        budget_ulp=4.0,
        resources=(Resources(architecture="sm_80", registers=18, spill_bytes=0),),
        timings=(
            TimingPair(
                target="cpu", eager_us=9100.0, eager_spread_us=210.0, fused_us=1180.0,
                fused_spread_us=35.0, predicted_us=1240.0, bytes=12_582_912, inputs="captured",
            ),
        ),
    )  # fmt: skip


def kernel() -> KernelSource:
    return KernelSource(
        entry="fused_gelu",
        eager_name="eager_gelu",
        cpu_name="gelu_cpu",
        cuda_name="gelu_cuda",
        text=KERNEL_TEXT,
        hash=hashlib.sha256(KERNEL_TEXT.encode()).hexdigest(),
        program=FusedProgram(
            name="fused_gelu", rank=3, groups=((0, 1, 2),), statements=(),
            inputs=(ProgramInput(name="x", kind="tensor", dtype="float32", groups=(0,)),),
            outputs=(ProgramOutput(name="out", result="t1", dtype="float32"),),
        ),
    )  # fmt: skip


def rich_report() -> Report:
    """Three findings: four times repeated and in place; validated; failed and hostile."""
    gelu = _span(
        17, "    return 0.5 * x * (1.0 + torch.tanh(\n        self.c * (x + 0.044715 * x**3)))"
    )
    library = _span(312, "        hidden = gate * torch.sigmoid(gate) * up", cell=False)
    hostile = _span(4, f"y = x + 1  # {HOSTILE}")
    nodes: list[OpNode] = []
    values = [_value("v0", 0)]
    groups: list[list[OpNode]] = []
    for span, ops in (
        (gelu, CHAIN), (gelu, CHAIN), (gelu, CHAIN), (gelu, CHAIN),
        (library, ("sigmoid.default", "mul.Tensor", "mul.Tensor")),
        (hostile, ("add.Tensor", "relu.default")),
    ):  # fmt: skip
        made, produced = _chain(len(nodes), ops, span)
        groups.append(made)
        nodes += made
        values += produced
    for op, kind in (
        ("addmm.default", "matmul"),
        ("view.default", "view"),
        (f"weird{HOSTILE}", "other"),
    ):
        nodes.append(_last(nodes, op, kind))
        values.append(_value(f"v{len(nodes)}", len(nodes)))
    candidates = [_candidate(f"C{number}", group) for number, group in enumerate(groups, 1)]
    estimates = tuple(_estimate(1, len(group), 900.0 * len(group), 1200.0) for group in groups)
    graph = OpGraph(
        nodes=tuple(nodes), values=tuple(values), inputs=("v0",), outputs=(values[-1].id,)
    )
    return Report(
        capture=_capture(graph),
        candidates=tuple(candidates),
        estimates=estimates,
        findings=_findings(candidates, gelu, library, hostile),
        why_not=(
            Blocker(code="not-elementwise", nodes=("n36", "n37"), message="addmm: matrix product"),
            Blocker(code="not-elementwise", nodes=("n36", "n37"), message="addmm: matrix product"),
            Blocker(code="escapes", nodes=("n3", "n99"), message=f"used elsewhere {HOSTILE}"),
        ),
        ratios=(
            FusionRatio(name="as it is", fused_ops=0, ops=39),
            FusionRatio(name="plan", fused_ops=37, ops=39),
        ),
        bounds=tuple((node.id, "memory-bound") for node in nodes[:37]) + (
            ("n37", "compute-bound"),
        ),
        bytes_before=900_000_000,
        bytes_after=310_000_000,
        kernels=(("F1", kernel()), ("F3", kernel())),
        validations=(("F1", _validation("passed")), ("F3", _validation("failed"))),
        fixes=(("F2", (_refused_fix(),)),),
        applied=(
            AppliedFix(finding="F1", where="function", places=("MLP.forward",),
                       before_us=82_000.0, after_us=61_000.0),
        ),
        notes=("torch.compile was not tried", HOSTILE),
    )  # fmt: skip


def _last(nodes: list[OpNode], op: str, kind: OpKind) -> OpNode:
    index = len(nodes)
    return OpNode(
        id=f"n{index}", index=index, op=f"aten.{op}", args=(), inputs=(f"v{index}",),
        outputs=(f"v{index + 1}",), kind=kind,
    )  # fmt: skip


def _capture(graph: OpGraph) -> Capture:
    return Capture(
        title=f"GPT-2, forward {HOSTILE}",
        graph=graph,
        times=tuple(OpTime(node=node.id, host_us=900.0 if node.kind == "elementwise" else 9_000.0)
                    for node in graph.nodes),
        wall_us=82_000.0,
        wall_spread_us=1_100.0,
        environment=Environment(
            python="3.11.7", packages=(("torch", "2.13.0+cpu"), ("numba", "0.68.1")),
            platform="Linux x86_64", cpu=f"Some CPU {HOSTILE}", threads=2,
            recorded_at="2026-01-02T03:04:05Z",
        ),
        ceilings=Ceilings(
            device="cpu", name="Some CPU",
            bandwidth=(BandwidthPoint(working_set_bytes=1 << 20, gb_per_s=60.0),
                       BandwidthPoint(working_set_bytes=1 << 28, gb_per_s=14.0)),
            gflops=(("float32", 110.0), ("float64", 55.0)), dispatch_us=2.4, threads=2,
        ),
        proof=ReplayProof(status="passed", message="every value equal", compared_values=71,
                          isolated=True),
        truncated="recording stopped after 2 optimizer steps",
    )  # fmt: skip


def _findings(
    candidates: list[FusionCandidate], gelu: SourceSpan, library: SourceSpan, hostile: SourceSpan
) -> tuple[Finding, ...]:
    verdicts = (
        Verdict(question="Long enough?", holds=True, reason="1.6 million elements per op."),
        Verdict(question="Several ops?", holds=True, reason="8 ops share one iteration space."),
        Verdict(
            question="Memory-bound?", holds=False, reason="1.0 flop per byte; the ridge is at 7.9."
        ),
    )
    return (
        Finding(
            id="F1", rule="FUS001", title="Elementwise chain: tanh-GELU written out",
            message="8 kernels read and write the same 6.0 MiB.", span=gelu,
            occurrences=tuple(candidates[:4]), estimate=_estimate(4, 8, 28_800.0, 4_800.0),
            share=24_000 / 82_000, verdicts=verdicts,
        ),
        Finding(
            id="F2", rule="FUS002", title="SwiGLU gate", message="", span=library,
            occurrences=(candidates[4],), estimate=_estimate(1, 3, 2_700.0, 1_200.0),
            share=1_500 / 82_000, verdicts=verdicts, notes=("defined in an installed package",),
        ),
        Finding(
            id="F3", rule="FUS001", title=HOSTILE, message=HOSTILE, span=hostile,
            occurrences=(candidates[5],), estimate=_estimate(1, 2, 1_800.0, 1_200.0),
            share=600 / 82_000, verdicts=verdicts, safety="unsafe",
        ),
    )  # fmt: skip


def _refused_fix() -> Fix:
    return Fix(
        finding="F2", where="file", title="edit the file", safety="display-only",
        path="/site-packages/transformers/activations.py",
        blockers=(Blocker(code="installed", nodes=(), message="never edited"),),
    )  # fmt: skip


def empty_report() -> Report:
    """A run with nothing to gain."""
    node = OpNode(id="n0", index=0, op="aten.mm.default", args=(), kind="matmul")
    return Report(
        capture=Capture(
            title="mm",
            graph=OpGraph(nodes=(node,), values=()),
            environment=Environment(python="3.11", packages=(), platform="", cpu="", threads=1),
            proof=ReplayProof(status="not run", message="nothing to compare"),
        ),
        candidates=(),
        estimates=(),
        findings=(),
        why_not=(),
        ratios=(FusionRatio(name="plan", fused_ops=0, ops=0),),
        nothing="all time is in matrix products.",
    )
