"""The parts of ``run.sh`` that give figures: one process each, so that one may crash alone.

    python tests/gpu/parts.py PART FILE.json [--device cuda] [--elements 3e7] [--seconds N]
        [--chains words]

``correct``  every chain in every variant and layout against eager on that device, in its budget
``race``     each chain's GB/s beside a copy of as many bytes, and beside eager and torch.compile
``layouts``  GB/s of one chain aligned, off by one element, with gaps, transposed, broadcast
``host``     what a call costs on the host: by addresses, by numba's launch, and torch's own ops
``models``   three models as they are and with what is advised in place

Rows go to FILE.json as they come; what fails says why and leaves the rest.  Chains still waiting
when the seconds are up are named as not tried.  ``--device cpu`` runs all but the copy of a GPU.
Exit status: 0 every row gave its figures, 1 some did not, 3 no such device.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from chains import CHAINS, Chain
from fused_groups import (
    LAYOUTS,
    Groups,
    by_turns,
    copies_of,
    judged,
    laid_out,
    synchronize,
    tensors,
)

DONE, PART_FAILED, NO_DEVICE = 0, 1, 3
DTYPES = (torch.float32, torch.bfloat16)
MODELS = ("GPT-2", "Llama", "ConvNeXt")
Row = dict[str, Any]


class Part:
    """The rows of a part, kept in a file as they come."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        self.device, self.elements = options.device, int(float(options.elements))
        self.rows: list[Row] = []
        self._ends = time.monotonic() + options.seconds

    def chains(self) -> Iterator[tuple[Chain, torch.dtype]]:
        """Chains and dtypes; those beyond the time are noted."""
        words = self.options.chains.split(",")
        for dtype in DTYPES:
            for chain in CHAINS:
                if not any(word in chain.name for word in words):
                    continue
                name = f"{chain.name}, {str(dtype).removeprefix('torch.')}"
                if time.monotonic() > self._ends:
                    self.keep({"name": name, "failed": "not tried: the time was up"})
                else:
                    yield chain, dtype

    def row(self, name: str, make: Callable[[], Row]) -> None:
        """Keep what ``make`` gives, or why it gives nothing."""
        try:
            found = {"name": name, **make()}
        except Exception as error:
            traceback.print_exc()
            first = (str(error).strip().splitlines() or [""])[0]
            found = {"name": name, "failed": f"{type(error).__name__}: {first[:200]}"}
        self.keep(found)

    def keep(self, row: Row) -> None:
        """Put a row into the file and print it."""
        self.rows.append(row)
        print(text_of(row), flush=True)
        data = {"part": self.name, "device": device_name(self.device), "rows": self.rows}
        Path(self.options.file).write_text(json.dumps(data, indent=1), encoding="utf-8")


def correct(part: Part) -> None:
    """Every chain, dtype, layout and match, judged by the budgets with eager of this device."""
    for chain, dtype in part.chains():
        for layout in LAYOUTS:
            inputs = laid_out(chain, min(part.elements, 100_000), dtype, part.device, layout)
            if inputs is None:
                continue
            name = f"{chain.name}, {str(dtype).removeprefix('torch.')}, {layout}"
            part.row(name, lambda chain=chain, inputs=inputs: judged(chain, inputs, part.device))


def race(part: Part) -> None:
    """Times of one call in us, and GB/s beside a device copy of as many bytes."""
    for chain, dtype in part.chains():
        name = f"{chain.name}, {str(dtype).removeprefix('torch.')}"
        part.row(name, lambda chain=chain, dtype=dtype: raced(chain, dtype, part))


def raced(chain: Chain, dtype: torch.dtype, part: Part) -> Row:
    """One row of the race; a compiler that fails is named in it."""
    torch.manual_seed(0)
    inputs = laid_out(chain, part.elements, dtype, part.device, "aligned")
    assert inputs is not None
    row: Row = {}
    groups = {match: Groups(chain.function, inputs, part.device, match)
              for match in ("eager", "fast")}  # fmt: skip
    results = tensors(chain.function(*inputs))
    moved = sum(one.numel() * one.element_size() for one in (*inputs, *results))
    calls: dict[str, Callable[[], Any]] = {
        "copy": copies_of(moved, part.device),
        "eager": lambda: chain.function(*inputs),
        "ours": groups["eager"].call,
        "ours_fast": groups["fast"].call,
        "ours_into": groups["eager"].call_into,
    }
    for name, mode in (("compile", None), ("max_autotune", "max-autotune-no-cudagraphs")):
        if part.device == "cpu" and mode:
            continue
        torch._dynamo.reset()
        compiled = torch.compile(chain.function, mode=mode, dynamic=False)
        try:
            compiled(*inputs)
        except Exception as error:
            row[f"{name}_failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        else:
            calls[name] = lambda compiled=compiled: compiled(*inputs)
    times = by_turns(calls, part.device)
    row |= {f"{name}_us": us for name, us in times.items()}
    row |= {f"{name}_gb_per_s": moved / (times[name] * 1e3) for name in ("ours_fast", "copy")}
    row["fallbacks"] = {**groups["eager"].fallbacks, **groups["fast"].fallbacks}
    if row["fallbacks"]:
        row["failed"] = f"ran eager: {next(iter(row['fallbacks']))}"
    return row


def layouts(part: Part) -> None:
    """What alignment, gaps, transposition and broadcasting cost."""
    chain = next(one for one in CHAINS if one.name == "SwiGLU")
    for dtype in DTYPES:
        for layout in LAYOUTS:
            inputs = laid_out(chain, part.elements, dtype, part.device, layout)
            if inputs is None:
                continue

            def make(inputs: Any = inputs) -> Row:
                groups = Groups(chain.function, inputs, part.device, "fast")
                moved = sum(one.numel() * one.element_size() for one in (*inputs, inputs[0]))
                calls = {"ours": groups.call, "copy": copies_of(moved, part.device)}
                times = by_turns(calls, part.device)
                return {f"{name}_gb_per_s": moved / (us * 1e3) for name, us in times.items()} | {
                    "copied_first": groups.copied
                }

            part.row(f"SwiGLU, {str(dtype).removeprefix('torch.')}, {layout}", make)


def host(part: Part) -> None:
    """Microseconds of the host per call, tensors so small that the device is never behind."""
    x, y, z = (torch.randn(4, 64, device=part.device) for _ in range(3))

    def chain(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * y + z)

    def make() -> Row:
        ours = Groups(chain, (x, y, z), part.device, "eager")
        calls: dict[str, Callable[[], Any]] = {
            "ours": ours.call,
            "eager_3_ops": lambda: chain(x, y, z),
            "one_torch_op": lambda: torch.relu(x),
        }
        if part.device != "cpu":
            calls["numba_launch"] = ours.call_the_long_way
        torch._dynamo.reset()
        compiled = torch.compile(chain, dynamic=False)
        compiled(x, y, z)
        calls["compile"] = lambda: compiled(x, y, z)
        return {f"{name}_us": us for name, us in on_host(calls, part.device).items()}

    with torch.no_grad():
        part.row("relu(x * y + z), three tensors of 256 elements", make)


def on_host(calls: dict[str, Callable[[], Any]], device: str) -> dict[str, float]:
    """The least time per call of 200 in a row, the device having caught up before each series."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(30):
        for name, call in calls.items():
            synchronize(device)
            begin = time.perf_counter()
            for _ in range(200):
                call()
            best[name] = min(best[name], (time.perf_counter() - begin) / 200 * 1e6)
    return best


def models(part: Part) -> None:
    """The whole call, as it is and with every advised kernel in place."""
    import fusion_advisor as fa

    for name in MODELS:

        def make(name: str = name) -> Row:
            torch.manual_seed(0)
            model, given = built(name, part.elements)
            model = model.to(part.device).eval()
            given = {key: one.to(part.device) for key, one in given.items()}
            times: dict[str, float] = {}

            def timed(what: str) -> tuple[torch.Tensor, ...]:
                times.update(by_turns({what: lambda: model(**given)}, part.device))
                return tensors(tuple(model(**given).values()))

            before = timed("before_us")
            advice = fa.profile(model, (), given, title=name)
            try:
                applied = advice.apply()
                after = timed("with_us")
                advice.undo()
                back = timed("undone_us")
            finally:
                advice.close()
            if not all(map(torch.equal, before, back)):
                raise AssertionError("undo did not bring back every bit")
            return {
                "findings": len(advice.report.findings),
                "in_place": sum(bool(fix.places) for fix in applied),
                "reasons": [fix.reason for fix in applied if fix.reason],
                "largest_change": max(
                    float((a.double() - b.double()).abs().max())
                    for a, b in zip(before, after, strict=True)
                ),
                **times,
            }

        part.row(name, make)


def built(name: str, elements: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model of published size with random weights, less deep and wide for few elements."""
    import transformers as hf

    whole = elements > 1_000_000
    if name == "GPT-2":
        sizes = {} if whole else {"n_layer": 2, "n_embd": 192, "n_head": 4, "vocab_size": 500}
        model = hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False, **sizes))
    elif name == "Llama":
        sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8,
                 "num_attention_heads": 32, "num_key_value_heads": 4}  # fmt: skip
        if not whole:
            sizes = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2,
                     "num_attention_heads": 4, "vocab_size": 500}  # fmt: skip
        model = hf.LlamaForCausalLM(hf.LlamaConfig(use_cache=False, **sizes))
    else:
        sizes = {} if whole else {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64]}
        model = hf.ConvNextForImageClassification(hf.ConvNextConfig(**sizes))
        side = 224 if whole else 64
        return model, {"pixel_values": torch.randn(32 if whole else 2, 3, side, side)}
    shape = (8, 512) if whole else (2, 64)
    return model, {"input_ids": torch.randint(0, model.config.vocab_size, shape)}


PARTS: dict[str, Callable[[Part], None]] = {
    "correct": correct, "race": race, "layouts": layouts, "host": host, "models": models,
}  # fmt: skip


def text_of(row: Row) -> str:
    """One row as a line."""
    cells = []
    for key, value in row.items():
        if key != "name" and value not in ({}, []):
            cells.append(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}")
    return f"{row['name']}: {', '.join(cells)}"


def device_name(device: str) -> str:
    """The card, or the processor."""
    return str(torch.cuda.get_device_name()) if device != "cpu" else "CPU"


def main(arguments: Iterable[str] | None = None) -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("file")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--elements", default="3e7")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--chains", default="", help="words that names must hold, by commas")
    options = parser.parse_args(None if arguments is None else list(arguments))
    if options.device != "cpu" and not torch.cuda.is_available():
        print(f"no CUDA device (torch {torch.__version__}): nothing was tried")
        return NO_DEVICE
    part = Part(options.part, options)
    with torch.no_grad():
        PARTS[options.part](part)
    return PART_FAILED if any("failed" in row for row in part.rows) else DONE


if __name__ == "__main__":
    sys.exit(main())
