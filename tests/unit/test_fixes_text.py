"""Fixes of cell and file text: what is planned, what is kept, what is refused and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fix_support import candidates_of, fuse_all, plan, record_call, run_text, same, stand_in

from fusion_advisor.errors import FixError
from fusion_advisor.fixes import edited_text, fix_diff, plan_text, runtime_scalars, text_hash
from fusion_advisor.records import Fix, FusionCandidate

HEAD = "import math\nimport torch\nimport torch.nn.functional as F\n\n\n"


def matrices(count: int) -> Callable[[], tuple[Any, ...]]:
    generator = torch.Generator().manual_seed(1)
    values = tuple(torch.randn(4, 6, generator=generator) for _ in range(count))
    return lambda: values


def only(body: str, path: Path, count: int, head: str = HEAD) -> tuple[FusionCandidate, Fix, str]:
    """The single candidate of a function ``f``, checked for equal results where planned."""
    text = head + body
    found = fuse_all(text, path / "plain.py", "f", matrices(count))
    assert len(found) == 1, [candidate.nodes for candidate, _, _ in found]
    candidate, fix, new = found[0]
    if new:
        wanted = run_text(text, path / "plain.py")["f"](*matrices(count)())
        assert same(wanted, run_text(new, path / "fused.py")["f"](*matrices(count)()))
    return candidate, fix, new


def code_of(fix: Fix) -> str:
    return fix.blockers[0].code if fix.blockers else ""


def test_statements_become_one_call_and_comments_stay(tmp_path: Path) -> None:
    body = (
        "def f(x, b, s):\n"
        "    h = x + b            # bias é\n"
        '    g = F.gelu(h, approximate="tanh")\n'
        "    y = g * s\n"
        "    return torch.relu(y - x * 0.5) + b, x.sum()  # end\n"
    )
    _, fix, new = only(body, tmp_path, 3)
    assert fix.safety == "safe"
    assert new.endswith(
        "def f(x, b, s):\n    # bias é\n    return fused_chain(x, b, s), x.sum()  # end\n"
    )


def test_escaping_intermediate_is_bound(tmp_path: Path) -> None:
    body = "def f(x, b):\n    t = x + b\n    u = t * x\n    return u.sigmoid(), t\n"
    _, _, new = only(body, tmp_path, 2)
    assert "    t, fused_chain_out1 = fused_chain(x, b)\n    return fused_chain_out1, t\n" in new


def test_in_place_ops_of_own_tensors_are_functionalised(tmp_path: Path) -> None:
    body = (
        "def f(x, y):\n    h = x * 2\n    h += y\n    h.mul_(y)\n    g = h.relu_()\n"
        "    return h / 3, g\n"
    )
    candidate, _, new = only(body, tmp_path, 2)
    assert len(candidate.nodes) == 5
    assert "relu_" not in new.split("def f")[1]


def test_rebound_name_reads_its_old_value(tmp_path: Path) -> None:
    body = "def f(x, v):\n    x = x * torch.rsqrt(v.abs() + 1)\n    return x * v\n"
    _, _, new = only(body, tmp_path, 2)
    assert new.endswith("def f(x, v):\n    return fused_chain(v, x)\n")


def test_operand_rebound_in_between_is_kept_in_a_temporary(tmp_path: Path) -> None:
    body = "def f(x, y):\n    t = x + y\n    x = y\n    return t * x\n"
    text = HEAD + body
    namespace = run_text(text, tmp_path / "a.py")
    x, y = matrices(2)()
    graph = record_call(lambda: namespace["f"](x, y.clone()))
    (candidate,) = candidates_of(graph)
    assert code_of(plan(graph, candidate, text)) == "same-tensor"  # `y` and `x` are one tensor

    body = "def f(x, y, z):\n    t = x + y\n    x = z\n    return t * x\n"
    _, _, new = only(body, tmp_path, 3)
    assert "fused_chain_in0 = x\n    x = z\n    return fused_chain(fused_chain_in0, y, x)" in new


def test_number_divided_by_tensor_is_one_expression(tmp_path: Path) -> None:
    candidate, _, new = only("def f(x):\n    a = 2 / x\n    return (1 - a) ** 2\n", tmp_path, 1)
    assert len(candidate.nodes) == 4
    assert new.endswith("    return fused_chain(x)\n")


def test_calls_among_operands_keep_their_order(tmp_path: Path) -> None:
    body = (
        "CALLS = []\n\n\ndef note(name, value):\n    CALLS.append(name)\n    return value.clone()\n"
        "\n\ndef f(x, y):\n    t = note('a', x) * 2\n    u = y + 1\n"
        "    return u * note('b', y) + t, list(CALLS)\n"
    )
    text = HEAD + body
    for _, fix, new in fuse_all(text, tmp_path / "p.py", "f", matrices(2)):
        if new:
            assert run_text(new, tmp_path / "q.py")["f"](*matrices(2)())[1] == ["a", "b"]
        else:
            assert fix.blockers


REFUSED = {
    "foreign-statement": "t = x + b\nprint('side')\nreturn t.sigmoid()",
    "several-blocks": "t = x + b\nif x.dim():\n    t = t * x\nreturn t.sigmoid() * x",
    "repeated": "t = x\nfor i in range(3):\n    t = t * 0.5 + b\nreturn t",
    "conditional": "t = x + b\nreturn t.sigmoid() * b if b.dim() else t",
    "dynamic-names": "t = x + b\nv = locals()\nreturn t.sigmoid() * v['t']",
    "turned-off": "t = x + b  # fuse: off\nreturn t.sigmoid()",
    "in-place-outside": "h = torch.mm(x, b.t())\nh += 1\nreturn h.sigmoid()",
    "scope": "g = lambda v: (v + b).sigmoid()\nreturn g(x)",
    "hidden-flow": "return ((t := x + b) * 2).sigmoid() + t",
    "number-not-literal": "p = x.dim()\nreturn (x + b) ** p",
    "name-clash": "fused_chain = 1\nreturn (x + b).sigmoid() * fused_chain",
}


@pytest.mark.parametrize(("code", "lines"), REFUSED.items())
def test_refusals_say_why(tmp_path: Path, code: str, lines: str) -> None:
    body = "def f(x, b):\n    " + lines.replace("\n", "\n    ") + "\n"
    _, fix, new = only(body, tmp_path, 2)
    assert not new
    assert code_of(fix) == code
    assert fix.safety == "display-only"
    assert fix.blockers[0].message


def test_same_tensor_given_twice_is_not_assumed_again(tmp_path: Path) -> None:
    text = HEAD + "def f(a, b):\n    return (a * 2 + b).sigmoid()\n"
    namespace = run_text(text, tmp_path / "p.py")
    x = matrices(1)()[0]
    graph = record_call(lambda: namespace["f"](x, x))
    (candidate,) = candidates_of(graph)
    fix = plan(graph, candidate, text)
    assert code_of(fix) == "same-tensor"
    assert "`a`" in fix.blockers[0].message
    assert "`b`" in fix.blockers[0].message


def test_call_that_reaches_an_operand_is_not_passed(tmp_path: Path) -> None:
    """``self.block`` could write to ``x`` in place; a module-level function was seen not to."""
    body = (
        "class M(torch.nn.Module):\n    def forward(self, x):\n"
        "        return torch.tanh(x) * 2 + self.block(x)\n\n\n"
        "m = M()\nm.block = torch.nn.Identity()\n\n\n"
        "def turn(v):\n    return torch.cat((v, v))[:4]\n"
        "\n\ndef g(x):\n    return torch.tanh(x) * 2 + turn(x)\n\n\n"
        "def f(x, y):\n    return m(x), g(y)\n"
    )
    found = fuse_all(HEAD + body, tmp_path / "p.py", "f", matrices(2))
    codes = [code_of(fix) for _, fix, _ in found]
    assert sorted(codes) == ["", "call-between"] or codes == ["same-tensor", ""]


RMS = (
    "def f(x, w, eps=1e-6):\n"
    "    dtype = x.dtype\n"
    "    x = x.to(torch.float32)\n"
    "    v = x.pow(2).mean(-1, keepdim=True)\n"
    "    x = x * torch.rsqrt(v + eps)\n"
    "    return w * x.to(dtype)\n"
)


def test_cast_without_effect_is_guarded(tmp_path: Path) -> None:
    """The Hugging Face norm: in half precision the original statements run."""
    text = HEAD + RMS
    ((_, _, new),) = fuse_all(text, tmp_path / "p.py", "f", matrices(2))
    assert "if dtype == x.dtype == v.dtype == torch.float32:" in new
    assert "return fused_chain(v, x, w, eps)" in new
    plain, fused = run_text(text, tmp_path / "p.py")["f"], run_text(new, tmp_path / "q.py")["f"]
    x, w = matrices(2)()
    for given in ((x, w), (x.half(), w.half()), (x.double(), w), (x.bfloat16(), w)):
        assert same(plain(*given), fused(*given))


def test_numbers_that_are_not_literal_are_passed(tmp_path: Path) -> None:
    text = HEAD + RMS
    namespace = run_text(text, tmp_path / "p.py")
    graph = record_call(lambda: namespace["f"](*matrices(2)()))
    (candidate,) = candidates_of(graph)
    assert runtime_scalars(graph, candidate, text) == {(candidate.nodes[0], 1)}
    baked = stand_in(graph, candidate)
    fix = plan_text(graph, candidate, baked, text)
    assert code_of(fix) == "operands-differ"

    text = HEAD + "def f(x):\n    return x * math.sqrt(2 / math.pi) + 0.5 * -1\n"
    namespace = run_text(text, tmp_path / "c.py")
    graph = record_call(lambda: namespace["f"](matrices(1)()[0]))
    (candidate,) = candidates_of(graph)
    assert runtime_scalars(graph, candidate, text) == frozenset()


def test_diff_hash_and_second_application(tmp_path: Path) -> None:
    text = HEAD + "def f(x, b):\n    return (x + b).sigmoid()\n"
    namespace = run_text(text, tmp_path / "p.py")
    graph = record_call(lambda: namespace["f"](*matrices(2)()))
    (candidate,) = candidates_of(graph)
    fix = plan(graph, candidate, text)
    diff = fix_diff(fix, text)
    assert "-    return (x + b).sigmoid()\n+    return fused_chain(x, b)\n" in diff
    new = edited_text(fix, text)
    with pytest.raises(FixError, match="changed since it was profiled"):
        edited_text(fix, new)
    with pytest.raises(FixError, match="changed since"):
        edited_text(replace(fix, old_hash="0"), text)
    assert code_of(plan(graph, candidate, new)) in ("no-expression", "name-clash")


def test_cell_with_magics_crlf_tabs_and_non_ascii(tmp_path: Path) -> None:
    plain = (
        '"""Zelle"""\r\nimport torch\r\n\r\ndef f(x, b):\r\n\t# größe €\r\n\tt = x + b;  é = 1\r\n'
        "\tu = (t\r\n\t\t.sigmoid()\r\n\t\t.mul(x))\r\n\treturn u, é\r\n"
    )
    path = tmp_path / "cell.py"
    namespace = run_text(plain, path)
    graph = record_call(lambda: namespace["f"](*matrices(2)()))
    (candidate,) = candidates_of(graph)
    for prefix in ("", "%matplotlib inline\r\n!ls -l\r\n"):
        raw = prefix + plain
        shift = prefix.count("\r\n")
        nodes = tuple(
            node
            if node.span is None
            else replace(
                node,
                span=replace(
                    node.span,
                    kind="cell",
                    line=node.span.line + shift,
                    end_line=node.span.end_line + shift,
                ),
            )
            for node in graph.nodes
        )
        shifted = replace(graph, nodes=nodes)
        fix = plan(shifted, candidate, raw)
        assert not fix.blockers, fix.blockers
        new = edited_text(fix, raw)
        assert fix.where == "cell"
        assert new.startswith(prefix + '"""Zelle"""\r\nimport torch\r\n\r\ndef fused_chain')
        assert new.endswith(
            "def f(x, b):\r\n\t# größe €\r\n\tpass;  é = 1\r\n\tu = fused_chain(x, b)\r\n"
            "\treturn u, é\r\n"
        )
        assert "\n" not in new.replace("\r\n", "")


def test_the_line_of_a_magic_is_refused_with_what_to_do(tmp_path: Path) -> None:
    plain = "y = (x * 2.0 + 1.0).relu()\n"
    path = tmp_path / "cell.py"
    code = compile(plain, str(path), "exec")
    path.write_text(plain)
    namespace = {"x": matrices(1)()[0]}
    graph = record_call(lambda: (exec(code, namespace), namespace["y"])[1])
    (candidate,) = candidates_of(graph)
    assert not plan(graph, candidate, plain).blockers
    # As a line magic stands in the cell: the same expression, further to the right.
    raw = "y = %fuse_profile (x * 2.0 + 1.0).relu()\n"
    right = len("%fuse_profile ")
    nodes = tuple(
        replace(
            node,
            span=replace(
                node.span,
                kind="cell",
                column=node.span.column + right,
                end_column=node.span.end_column + right,
            ),
        )
        for node in graph.nodes
        if node.span is not None
    )
    fix = plan(replace(graph, nodes=nodes), candidate, raw)
    assert code_of(fix) == "magic-line"
    assert "under %%fuse_profile" in fix.blockers[0].message


def test_global_intermediates_stay_bound_or_refuse(tmp_path: Path) -> None:
    text = "import torch\nx = torch.arange(6.0)\nt = x + 1\nu = t.sigmoid()\ndel t\n"
    graph = record_call(lambda: run_text(text, tmp_path / "cell.py"))
    (candidate,) = candidates_of(graph)
    fix = plan(graph, candidate, text)
    assert code_of(fix) == "escapes"
    assert "global" in fix.blockers[0].message

    text = "import torch\nx = torch.arange(6.0)\nt = x + 1\nu = t.sigmoid()\n"
    kept = {}
    graph = record_call(lambda: kept.update(run_text(text, tmp_path / "cell2.py")))
    (candidate,) = candidates_of(graph)
    new = edited_text(plan(graph, candidate, text), text)
    assert new.endswith("t, u = fused_chain(x)\n")
    assert same(kept["t"], run_text(new, tmp_path / "cell3.py")["t"])


def test_names_of_the_kernel_disturb_nobody(tmp_path: Path) -> None:
    text = HEAD + "cuda = 3\n\n\ndef f(x, b):\n    return (x + b).sigmoid()\n"
    namespace = run_text(text, tmp_path / "p.py")
    graph = record_call(lambda: namespace["f"](*matrices(2)()))
    (candidate,) = candidates_of(graph)
    kernel = stand_in(graph, candidate)
    changed = "from fusion_advisor.runtime import cuda\n" + kernel.text
    edited = replace(kernel, text=changed)  # its hash is that of the text before
    assert code_of(plan_text(graph, candidate, edited, text)) == "kernel-text"
    kernel = replace(edited, hash=text_hash(changed))
    assert code_of(plan_text(graph, candidate, kernel, text)) == "name-clash"
    other = text.replace("cuda = 3", "pass")
    live = {"cuda": object()}
    assert code_of(plan_text(graph, candidate, kernel, other, namespace=live)) == "name-clash"
    assert not plan_text(graph, candidate, kernel, other).blockers


def test_installed_files_are_never_edited(tmp_path: Path) -> None:
    text = HEAD + "def f(x, b):\n    return (x + b).sigmoid()\n"
    namespace = run_text(text, tmp_path / "p.py")
    graph = record_call(lambda: namespace["f"](*matrices(2)()))
    (candidate,) = candidates_of(graph)
    span = graph.nodes[-1].span
    assert span is not None
    kernel = stand_in(graph, candidate)
    fix = plan_text(graph, candidate, kernel, text, replace(span, installed=True))
    assert code_of(fix) == "installed-package"


def test_decorated_async_and_nested_functions(tmp_path: Path) -> None:
    body = (
        "def twice(g):\n    return g\n\n\n# about f\n@twice\ndef f(x, b):\n    def inner(v):\n"
        "        t = v + b\n        return t.sigmoid()\n    return inner(x)\n"
    )
    _, _, new = only(body, tmp_path, 2)
    assert new.index("def fused_chain") < new.index("# about f\n@twice\ndef f")
    assert "        return fused_chain(v, b)\n" in new


ACTIVATION = (
    "class M(torch.nn.Module):\n    def __init__(self, act):\n        super().__init__()\n"
    "        self.act = act\n\n    def forward(self, x, b):\n"
    "        return self.act(x + b) * b\n\n\n"
    "class N(M):\n    def forward(self, x, b):\n        h = x + b\n        y = self.act(h)\n"
    "        return y * 2, h\n\n\n"
    "def f(x, b):\n    return {kind}(torch.nn.{act})(x, b)\n"
)


@pytest.mark.parametrize("kind", ["M", "N"])
@pytest.mark.parametrize("act", ["GELU('tanh')", "ReLU(inplace=True)", "LeakyReLU(0.3)"])
def test_activation_modules_are_guarded(tmp_path: Path, kind: str, act: str) -> None:
    """Another activation, other settings or a hook: the original text runs."""
    body = ACTIVATION.replace("{kind}", kind).replace("{act}", act)
    _, fix, new = only(body, tmp_path, 2)
    assert not fix.blockers, fix.blockers
    assert "from fusion_advisor.runtime.modules import runs_plain\n" in new
    plain, fused = (
        run_text(text, tmp_path / name)[kind]
        for text, name in ((HEAD + body, "p.py"), (new, "q.py"))
    )
    for other in (
        torch.nn.GELU("tanh"),
        torch.nn.GELU(),
        torch.nn.ReLU(),
        torch.nn.ReLU(inplace=True),
        torch.nn.LeakyReLU(0.3),
        torch.nn.LeakyReLU(0.1),
        torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()),
    ):
        assert same(plain(other)(*matrices(2)()), fused(other)(*matrices(2)())), other
        seen: list[object] = []
        hook = other.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        fused(other)(*matrices(2)())
        hook.remove()
        assert seen == [1]
