"""An exported ``fused_<name>.py``: only the text that was written runs, and names stay data."""

from __future__ import annotations

import ast
import importlib
import py_compile
import runpy
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from fix_support import candidates_of, record_call
from report_formats import HOSTILE_TEXTS

from fusion_advisor.errors import FixError
from fusion_advisor.fixes import (
    ModulePiece,
    function_source,
    global_name,
    module_file,
    plan_function,
    reapply_cell,
)
from fusion_advisor.kernels import generate_kernel

pytestmark = pytest.mark.essential

PERSON = """import torch


def gate(x, y):
    return torch.relu(x * y + 1.0)
"""


@dataclass(frozen=True)
class Exported:
    """A person's function, and the module text with its kernel."""

    function: types.FunctionType
    piece: ModulePiece
    text: str
    folder: Path

    def imported(self, text: str | None = None) -> types.ModuleType:
        """The module, from a file with this text."""
        path = self.folder / "fused_gate.py"
        path.write_text(self.text if text is None else text, newline="")
        importlib.invalidate_caches()
        sys.modules.pop("fused_gate", None)
        return importlib.import_module("fused_gate")


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exported]:
    name = f"gate_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(PERSON)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # every import reads the file
    importlib.invalidate_caches()
    function = importlib.import_module(name).gate
    x, y = torch.ones(4, 6), torch.ones(4, 6)
    graph = record_call(lambda: function(x, y))
    (candidate,) = candidates_of(graph)
    kernel = generate_kernel(graph, candidate)
    fix = plan_function(
        graph,
        candidate,
        kernel,
        function_source(function),
        call_name=global_name(kernel),
        namespace=function.__globals__,
    )
    assert not fix.blockers, fix.blockers
    piece = ModulePiece(kernel, function, fix)
    yield Exported(function, piece, module_file([piece], title="The gate"), tmp_path)
    for module in ("fused_gate", name):
        sys.modules.pop(module, None)


def test_the_written_text_runs_its_kernel(exported: Exported) -> None:
    module = exported.imported()
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    wanted = exported.function(x, y)
    assert module.apply() == [f"{exported.function.__module__}:gate"]
    try:
        assert torch.equal(exported.function(x, y), wanted)
        (stats,) = module.stats().values()
        assert (stats.fused, dict(stats.fallbacks)) == (1, {})
    finally:
        module.undo()


def test_any_change_is_refused_before_a_kernel_is_made(exported: Exported) -> None:
    text = exported.text
    places = {
        "a constant": text.index("1.0", text.index("def eager_")),
        "an operator": text.index("* y"),
        "a comment": text.index("# fused_") + 3,
        "the title": text.index("The gate"),
        "its hash": text.index('SHA256 = "') + 12,
        "a function's hash": text.index("REPLACEMENTS = (") + 160,
        "what undoes": text.index("_originals.clear()") + 4,
    }
    for place, at in places.items():
        new = {"*": "+", "1": "2"}.get(text[at], "1")
        changed = text[:at] + new + text[at + 1 :]
        ast.parse(changed)  # or there would be nothing to run
        with pytest.raises(RuntimeError, match="was changed after it was exported") as refused:
            exported.imported(changed)
        assert "take the change out, or export the module again" in str(refused.value), place
        assert "fused_gate" not in sys.modules, place
    for changed in (text + "\n", text[:-1], text.replace("\n# ruff", "\n\n# ruff", 1)):
        with pytest.raises(RuntimeError, match="was changed after it was exported"):
            exported.imported(changed)


def test_line_ends_of_another_system_are_no_change(exported: Exported) -> None:
    assert exported.imported(exported.text.replace("\n", "\r\n")).REPLACEMENTS


def test_without_its_text_it_is_not_trusted(exported: Exported, tmp_path: Path) -> None:
    exported.imported()
    path = exported.folder / "fused_gate.py"
    assert "REPLACEMENTS" in runpy.run_path(str(path))  # as %run does: by its file
    with pytest.raises(RuntimeError, match=r"save it as a \.py file"):
        exec(compile(exported.text, "<cell>", "exec"), {"__name__": "__main__"})
    (tmp_path / "compiled_only").mkdir()
    compiled = tmp_path / "compiled_only" / "fused_bare.pyc"
    py_compile.compile(str(path), str(compiled), doraise=True)
    sys.path.insert(0, str(compiled.parent))
    try:
        with pytest.raises((RuntimeError, UnicodeDecodeError, SyntaxError)):
            importlib.import_module("fused_bare")
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("name", sorted(set(HOSTILE_TEXTS) - {"million"}))
def test_a_hostile_title_stays_inside_its_docstring(exported: Exported, name: str) -> None:
    title = HOSTILE_TEXTS[name]
    for text in (title, f'{title}"""', f"{title}\\", f'"""\nraise SystemExit\n"""{title}'):
        module = module_file([exported.piece], title=text)
        tree, plain = ast.parse(module), ast.parse(exported.text)
        for one in (tree, plain):  # equal but for the docstring and the hash
            del one.body[0]
            for node in one.body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SHA256":
                    node.value = ast.Constant("")
        assert ast.dump(tree) == ast.dump(plain)
        assert all(c.isprintable() for line in module.split("\n") for c in line)


def test_source_with_unseen_characters_is_written_escaped(exported: Exported) -> None:
    hidden = "# \u202e fi :eslE \x0c \u2028 \u200b"
    edits = (
        replace(exported.piece.fix.edits[-1], new=exported.piece.fix.edits[-1].new + "  " + hidden),
    )
    fix = replace(exported.piece.fix, edits=(*exported.piece.fix.edits[:-1], *edits))
    text = module_file([replace(exported.piece, fix=fix)])
    assert "\u202e" not in text and "\u2028" not in text
    module = exported.imported(text)
    assert hidden in module.REPLACEMENTS[0][2]


@pytest.mark.parametrize(
    ("module", "model"),
    [
        ("fused-model", "model"),
        ("class", "model"),
        ("fused; import os", "model"),
        ("fused\nimport os", "model"),
        ("", "model"),
        ("os.path", "model"),
        ("fused", "model); import os; ("),
        ("fused", "model\n"),
        ("fused", "lambda"),
        ("fused", "a..b"),
    ],
)
def test_the_cell_that_reapplies_takes_names_only(module: str, model: str) -> None:
    with pytest.raises(FixError, match=r"cannot be imported|is not the name of a model"):
        reapply_cell(module, model)


def test_the_cell_that_reapplies_names_models_by_attribute() -> None:
    assert "fused_net.apply(self.net)" in reapply_cell("fused_net", "self.net")
