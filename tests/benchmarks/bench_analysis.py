"""How long analysis takes as a recording grows: ``python tests/benchmarks/bench_analysis.py``.

The recordings are residual transformer blocks as a recorder sees them: views around matrix
products, a written-out norm and GELU, rotary terms, residual additions; and the same with a
backward-like second half.  About a third of the ops are elementwise, as in real models.  Prints
processor seconds (other work on the machine counts little) for 1,000, 10,000 and 100,000 ops and
the ratio of the last two.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parent))

from bench_rows import holds, write_row
from graph_builder import GraphBuilder

from fusion_advisor.analysis import analyze
from fusion_advisor.records import (
    BandwidthPoint,
    Capture,
    Ceilings,
    Environment,
    OpGraph,
    OpTime,
    ReplayProof,
    SourceSpan,
)

LIMIT_SECONDS = 2.0  # for 100,000 ops
LIMIT_RATIO = 12.0  # for ten times the ops
REPEATS = 3

CEILINGS = Ceilings(
    device="cpu",
    name="bench",
    bandwidth=tuple(
        BandwidthPoint(working_set_bytes=2**k, gb_per_s=rate)
        for k, rate in ((16, 90.0), (20, 60.0), (24, 30.0), (28, 12.0))
    ),
    gflops=(("float32", 100.0),),
    dispatch_us=2.0,
    call_us=4.0,
    page_fault_us_per_mb=250.0,
)


def transformer(ops: int, *, backward: bool = False) -> OpGraph:
    """Residual blocks until there are ``ops`` ops, then, if asked, a chain of backward blocks."""
    b = GraphBuilder()
    wide, narrow = (2, 256, 3072), (2, 256, 768)
    x = b.input(narrow)
    weight, scale = b.input((768, 3072)), b.input((768,))
    cosine = b.op("aten.cos.default", b.input((256, 64)))
    saved: list[str] = []
    block = 0
    while len(b.nodes) < (ops // 2 if backward else ops):
        block += 1
        x = _block(b, block, x, cosine, weight, scale, wide, saved)
    gradient = b.input(narrow)
    while backward and len(b.nodes) < ops:
        with b.context(phase="backward", frame=0):
            for value in reversed(saved[-8:]):
                step = b.op("aten.mul.Tensor", gradient, value, shape=narrow)
                gradient = b.op("aten.add.Tensor", gradient, step)
                gradient = b.op("aten.mm.default", gradient, weight, shape=narrow)
            del saved[-8:]
            saved = saved or [x]
    return b.build(x, gradient)


def _block(
    b: GraphBuilder,
    block: int,
    x: str,
    cosine: str,
    weight: str,
    scale: str,
    wide: tuple[int, ...],
    saved: list[str],
) -> str:
    narrow = b.values[x].shape

    def at(line: int) -> SourceSpan:
        return SourceSpan(
            kind="file", file="model.py", line=line, end_line=line, column=4, end_column=30,
            function="forward", text="expression",
        )  # fmt: skip

    with b.context(frame=4 * block, module_class="Norm", span=at(10)):
        square = b.op("aten.pow.Tensor_Scalar", x, 2)
        mean = b.op("aten.mean.dim", square, shape=(*narrow[:2], 1))
        root = b.op("aten.rsqrt.default", b.op("aten.add.Scalar", mean, 1e-5))
        normed = b.op("aten.mul.Tensor", b.op("aten.mul.Tensor", x, root), scale)
    with b.context(frame=4 * block + 1, module_class="Attention", span=at(20)):
        heads = [_project(b, normed, weight, (2, 256, 12, 64)) for _ in range(3)]
        turned = [_rotate(b, head, cosine) for head in heads[:2]]
        mixed = b.op("aten._scaled_dot_product_flash_attention.default", *turned, heads[2])
        mixed = b.view("aten.transpose.int", mixed, (2, 256, 12, 64))
        mixed = b.op("aten.clone.default", mixed)
        mixed = b.view("aten.view.default", mixed, narrow)
        mixed = _project(b, mixed, weight, narrow)
    with b.context(frame=4 * block + 2, module_class="Block", span=at(30)):
        x = b.op("aten.add.Tensor", x, mixed)
    with b.context(frame=4 * block + 3, module_class="MLP", span=at(40)):
        up = _project(b, x, weight, wide)
        cube = b.op("aten.mul.Tensor", b.op("aten.pow.Tensor_Scalar", up, 3.0), 0.044715)
        inner = b.op("aten.mul.Tensor", b.op("aten.add.Tensor", up, cube), 0.79788)
        gate = b.op("aten.add.Tensor", b.op("aten.tanh.default", inner), 1.0)
        act = b.op("aten.mul.Tensor", b.op("aten.mul.Tensor", up, 0.5), gate)
        down = _project(b, act, weight, narrow)
        down = b.inplace("aten.add_.Tensor", down, x)
        saved.append(x)
        return b.op("aten.mul.Tensor", down, 1.0)


def _project(b: GraphBuilder, x: str, weight: str, shape: tuple[int, ...]) -> str:
    """A linear layer as eager dispatches it: views around one matrix product."""
    flat = b.view("aten.view.default", x, (512, b.values[x].shape[-1]))
    turned = b.view("aten.t.default", weight, (3072, 768))
    wide = shape[-1] if len(shape) == 3 else 768
    out = b.op("aten.addmm.default", turned, flat, turned, shape=(512, wide))
    out = b.view("aten.view.default", out, (2, 256, wide))
    if len(shape) == 4:
        out = b.view("aten.view.default", out, shape)
        out = b.view("aten.transpose.int", out, (2, 12, 256, 64))
    return out


def _rotate(b: GraphBuilder, x: str, cosine: str) -> str:
    """Rotary position terms: x * cos + cat(-x[half:], x[:half]) * sin."""
    half = (2, 12, 256, 32)
    first = b.view("aten.slice.Tensor", x, half)
    second = b.op("aten.neg.default", b.view("aten.slice.Tensor", x, half))
    turned = b.op("aten.cat.default", second, first, shape=b.values[x].shape)
    table = b.view("aten.unsqueeze.default", cosine, (256, 64))
    return b.op(
        "aten.add.Tensor",
        b.op("aten.mul.Tensor", x, table),
        b.op("aten.mul.Tensor", turned, table),
    )


def capture(graph: OpGraph) -> Capture:
    return Capture(
        title="bench",
        graph=graph,
        times=tuple(OpTime(node=node.id, host_us=20.0) for node in graph.nodes),
        wall_us=20.0 * len(graph.nodes),
        environment=Environment(python="", packages=(), platform="", cpu="", threads=2),
        ceilings=CEILINGS,
        proof=ReplayProof(status="not run"),
    )


def seconds(ops: int, *, backward: bool = False) -> float:
    """Best time of a few to analyse a recording of this many ops."""
    recording = capture(transformer(ops, backward=backward))
    best = float("inf")
    for _ in range(REPEATS):
        gc.collect()
        start = time.process_time()
        analyze(recording)
        best = min(best, time.process_time() - start)
    return best


def main() -> int:
    failed = False
    for name, backward in (("forward", False), ("forward + backward", True)):
        times = {ops: seconds(ops, backward=backward) for ops in (1_000, 10_000, 100_000)}
        ratio = times[100_000] / times[10_000]
        shown = "  ".join(f"{ops:,} ops {time:.3f} s" for ops, time in times.items())
        print(f"analysis, {name}: {shown}  ratio of the last two {ratio:.1f}")
        failed |= not holds("100,000 ops, seconds", times[100_000], at_most=LIMIT_SECONDS)
        failed |= not holds("times as long for ten times the ops", ratio, at_most=LIMIT_RATIO)
        figures = {f"{ops}_ops_s": time for ops, time in times.items()}
        write_row(f"analysis_{name.replace(' + ', '_')}", figures)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
