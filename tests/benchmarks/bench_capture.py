"""What recording costs: ``python tests/benchmarks/bench_capture.py``.

A GPT-2 of twelve narrow layers runs plainly and under the recorder, by turns, on one thread.  The
figure is processor time per dispatched op above the plain call, the minimum of 20: other work on
the machine then counts little.  Turning the recording into a graph afterwards is shown beside it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from bench_rows import holds, write_row
from transformers import GPT2Config, GPT2LMHeadModel

from fusion_advisor.recorder import CaptureOptions, Recorder

LIMIT_US_PER_OP = 60.0
ROUNDS = 20


def main() -> int:
    """Run, print, keep the row; 1 where the bound is missed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=128, n_embd=64, n_layer=12, n_head=4, n_positions=64, bos_token_id=0,
        eos_token_id=0, use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, 128, (2, 16))
    plain, recorded, finished, ops = [], [], [], 1
    with torch.no_grad():
        model(ids)
        for _ in range(ROUNDS):
            start = time.process_time()
            model(ids)
            plain.append(time.process_time() - start)
            start = time.process_time()
            recorder = Recorder(CaptureOptions())
            with recorder:
                model(ids)
            recorded.append(time.process_time() - start)
            ops = len(recorder.finish().graph.nodes)
            finished.append(time.process_time() - start)
    base = min(plain)
    bare, whole = ((min(times) - base) / ops * 1e6 for times in (recorded, finished))
    print(f"recording {ops} ops: plain call {base / ops * 1e6:.1f} us an op,")
    print(f"  recording adds {bare:.1f} us an op, making the graph {whole - bare:.1f} us an op")
    print(f"  {min(recorded) / base:.2f} x the plain call")
    write_row(
        "capture",
        {
            "ops": ops,
            "plain_us_per_op": base / ops * 1e6,
            "recording_us_per_op": bare,
            "graph_us_per_op": whole - bare,
        },
    )
    return int(not holds("recording, us per op", bare, at_most=LIMIT_US_PER_OP))


if __name__ == "__main__":
    sys.exit(main())
