"""A fresh shell per test, and a stand-in advisor that runs the code and returns a ready report."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fusion_advisor

sys.path.insert(0, str(Path(__file__).parent))
from stand_in import FakeAdvice


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A shell of its own, with the extension loaded and the advisor replaced."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "NoColor" if sys.version_info < (3, 11) else "nocolor"
    InteractiveShell.clear_instance()
    instance = InteractiveShell.instance(config=config)
    yield instance
    from fusion_advisor.jupyter import unload

    unload(instance)
    InteractiveShell.clear_instance()


@pytest.fixture
def advisor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``fusion_advisor.advisor`` with a ``profile_code`` that only runs the code."""
    fake = types.ModuleType("fusion_advisor.advisor")
    fake.advices = []  # type: ignore[attr-defined]

    def profile_code(run: Callable[[], Any], **options: Any) -> FakeAdvice:
        options["progress"]("recording", 0.0)
        advice = FakeAdvice(run(), options)
        options["progress"]("analysing", 0.9)
        fake.advices.append(advice)  # type: ignore[attr-defined]
        return advice

    fake.profile_code = profile_code  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fusion_advisor.advisor", fake)
    monkeypatch.setattr(fusion_advisor, "advisor", fake, raising=False)
    return fake


@pytest.fixture
def loaded(shell: Any, advisor: Any) -> Any:
    """The shell with the magics."""
    shell.run_line_magic("load_ext", "fusion_advisor")
    return shell
