"""The catalogue of findings: one code, one page, written once here.

``python -m fusion_advisor.rules docs/rules`` writes the pages; a test compares.  The examples are
whole: other tests run what stands before and after, and compare the values.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fusion_advisor.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of finding; the fields are the sections of its page."""

    code: str
    name: str
    title: str
    what_it_does: str
    why_it_matters: str
    example_before: str
    example_after: str
    fix_safety: str
    references: tuple[str, ...]


_ROOFLINE = (
    "S. Williams, A. Waterman, D. Patterson, “Roofline: an insightful visual performance model "
    "for multicore architectures”, Communications of the ACM 52(4), 2009"
)
_CUDA_GUIDE = "NVIDIA, CUDA C++ Best Practices Guide, “Memory optimizations”"
_NUMERICS = "PyTorch documentation, “Numerical accuracy”"
_READING = "Notebook `notebooks/02_reading_a_report.ipynb`: why not fused, when not to fuse"
_BY_HAND = "Notebook `notebooks/03_from_finding_to_kernel.ipynb`: such a kernel, written by hand"
_EAGER_SAFETY = """\
Safe when every rung of the validation ladder passed: the kernel rounds after every op, as
eager does, and is compared with eager on the captured, random and adversarial inputs. The
edit is offered only where the whole chain stands in one place in the source and no
intermediate is used elsewhere; otherwise the finding says which of the two fails, and the
live function or module can still be swapped. `%fuse_undo` takes it back exactly."""

_RULES = (
    Rule(
        code="FUS001",
        name="elementwise-chain",
        title="Chain of elementwise ops",
        what_it_does="""\
Finds ops that follow one another, each computing every output element from the matching
input elements, where each result is read by the next op only.""",
        why_it_matters="""\
Eager PyTorch runs every op as a kernel of its own: N ops over L elements read and write
2·N·L elements, although only the first input and the last result are wanted. Such ops do a
few arithmetic operations per byte, so memory sets the time. One fused kernel reads each
input once, keeps intermediates in registers and writes the result once: 2·L·(N − 1)
elements less traffic and N − 1 kernel launches less.""",
        example_before="""\
def laplace(x):
    return torch.exp(-torch.abs(x / 2.0))""",
        example_after="""\
def laplace(x):
    return fused_laplace(x)  # one kernel: reads x once, writes the result once""",
        fix_safety=_EAGER_SAFETY,
        references=(_ROOFLINE, _CUDA_GUIDE, _READING),
    ),
    Rule(
        code="FUS002",
        name="elementwise-dag",
        title="Elementwise ops with shared or several results",
        what_it_does="""\
Finds groups of elementwise ops over one iteration space in which a result is read more than
once, or in which several results are needed afterwards. Groups are grown convexly: no path
leaves the group and comes back through an op outside it.""",
        why_it_matters="""\
A value that several ops read is fetched from memory by each of them. A fused kernel reads it
once and keeps it in a register; it writes only the results that are needed later, which may
be several. What cannot be saved, the writes of those results, is counted in the estimate.""",
        example_before="""\
def gated(x, residual):
    gate = torch.sigmoid(x)
    y = x * gate  # x is read by two ops, and y is needed twice
    return y, y + residual""",
        example_after="""\
def gated(x, residual):
    return fused_gated(x, residual)  # one kernel with two results""",
        fix_safety=_EAGER_SAFETY
        + """
Results that only the backward pass needs are recomputed there from the saved inputs, which
costs arithmetic and saves memory.""",
        references=(_ROOFLINE, _READING),
    ),
    Rule(
        code="FUS003",
        name="broadcast-chain",
        title="Elementwise chain with a broadcast operand",
        what_it_does="""\
Finds chains in which at least one operand is smaller than the result: a bias, a scale per
channel, a mask, a row of position terms.""",
        why_it_matters="""\
A broadcast operand costs only its own bytes and usually stays in cache, so the fused kernel's
traffic is almost that of the large operands alone. Eager pays a full read and write of the
large tensor for every such small correction.""",
        example_before="""\
def scale_shift_relu(x, scale, bias):  # scale, bias: one number per channel
    return torch.relu(x * scale + bias)""",
        example_after="""\
def scale_shift_relu(x, scale, bias):
    return fused_scale_shift_relu(x, scale, bias)""",
        fix_safety=_EAGER_SAFETY
        + """
The kernel is guarded by its broadcast pattern: an operand of another shape runs eager, is
counted and shown by `advice.stats()`.""",
        references=(
            _ROOFLINE,
            "PyTorch documentation, “Broadcasting semantics”",
            _BY_HAND,
        ),
    ),
    Rule(
        code="FUS004",
        name="chain-in-package",
        title="Fusable chain in an installed package",
        what_it_does="""\
Finds chains, of any of the kinds above, whose source lies in an installed package or in the
standard library.""",
        why_it_matters="""\
The saving is the same, but the place is not yours: files in installed packages are never
edited. The running function or module is replaced instead, for this session only.""",
        example_before="""\
from transformers.activations import NewGELUActivation

activation = NewGELUActivation()  # eight ops in an installed file
y = activation(x)""",
        example_after="""\
advice = fusion_advisor.profile(activation, args=(x,))
advice.apply()  # swaps the live function; a notebook says %fuse_apply
y = activation(x)
advice.export("fused_gelu.py")  # to keep it: a module with apply(model) and undo(model)
advice.undo()""",
        fix_safety="""\
Safe for the session when validated, with undo: outputs, `state_dict` and hooks are as before
afterwards. Every user of the swapped function is affected, so the places are listed. Not
kept over a restart, unless the exported file or the cell that re-applies it is run:
`import fused_gelu; fused_gelu.apply(model)`.""",
        references=(_ROOFLINE, _READING),
    ),
    Rule(
        code="FUS005",
        name="cast-chain",
        title="Casts between 16- and 32-bit inside a chain",
        what_it_does="""\
Finds chains that convert to another floating-point type and back: a norm or activation that
computes in float32 over a bfloat16 tensor, or what autocast inserted.""",
        why_it_matters="""\
Each conversion is a kernel of its own, and the float32 copy between the two moves twice the
bytes of the 16-bit tensors around it. In a fused kernel a cast is one instruction on a
register, and only 16-bit values travel.""",
        example_before="""\
def rescale(x, scale, weight):  # x, weight: bfloat16; scale: float32
    return (x.float() * scale).to(torch.bfloat16) * weight""",
        example_after="""\
def rescale(x, scale, weight):
    return fused_rescale(x, scale, weight)  # casts in registers""",
        fix_safety=_EAGER_SAFETY
        + """
With `match="eager"` the fused kernel rounds exactly where eager's casts do. Code under
another autocast state than the one recorded runs eager.""",
        references=(
            _ROOFLINE,
            _NUMERICS,
            "PyTorch documentation, “Automatic mixed precision”",
            _BY_HAND,
        ),
    ),
    Rule(
        code="FUS006",
        name="optimizer-step",
        title="Optimizer that updates parameters one by one",
        what_it_does="""\
Finds optimizer steps that run several elementwise ops per parameter.""",
        why_it_matters="""\
These ops are not one chain: they belong to different parameters, most of them small, so
launching them costs more than their memory traffic. PyTorch's own multi-tensor optimizers
update all parameters in a few kernels. A generated kernel per parameter would not.""",
        example_before="""\
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
optimizer.step()""",
        example_after="""\
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
optimizer.step()
# or foreach=True, where the optimizer or device has no fused form""",
        fix_safety="""\
Display only: nothing is changed for you. `foreach` needs memory for one more copy of the
parameters; `fused` rounds differently in the last place, so a run is not bitwise repeated.""",
        references=("PyTorch documentation, “torch.optim: algorithms”",),
    ),
)

RULES: Mapping[str, Rule] = MappingProxyType({rule.code: rule for rule in _RULES})


def explain(code: str) -> str:
    """The page of one rule, as markdown.  Takes the code or the name, in any case.

    Raises:
        UsageError: there is no such rule; the message lists those there are.
    """
    wanted = code.strip().lower()
    for rule in _RULES:
        if wanted in (rule.code.lower(), rule.name):
            return _page(rule)
    close = difflib.get_close_matches(wanted.upper(), RULES, n=1, cutoff=0.8)
    hint = f" Did you mean {close[0]}?" if close and re.search(r"[1-9]", wanted) else ""
    known = ", ".join(f"{rule.code} ({rule.name})" for rule in _RULES)
    raise UsageError(f"No rule {code!r}.{hint} Known: {known}.")


def _page(rule: Rule) -> str:
    references = "\n".join(f"- {reference}" for reference in rule.references)
    return f"""\
# {rule.code}: {rule.title} (`{rule.name}`)

## What it does

{rule.what_it_does}

## Why it matters

{rule.why_it_matters}

## Example

```python
{rule.example_before}
```

Use instead:

```python
{rule.example_after}
```

## Fix safety

{rule.fix_safety}

## References

{references}
"""


def pages() -> dict[str, str]:
    """File name to text of every page under ``docs/rules``, the index included."""
    rows = "\n".join(
        f"| [{rule.code}]({rule.code}.md) | `{rule.name}` | {rule.title} |" for rule in _RULES
    )
    index = f"""\
# Rules

Made from `fusion_advisor/rules.py` by `python -m fusion_advisor.rules docs/rules`.

| code | name | finds |
|---|---|---|
{rows}
"""
    return {"README.md": index} | {f"{rule.code}.md": _page(rule) for rule in _RULES}


def main(arguments: list[str]) -> int:
    """Write every page into the folder named by the first argument."""
    if len(arguments) != 1:
        print("usage: python -m fusion_advisor.rules FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
