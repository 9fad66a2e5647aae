"""Loading kernel text: hash checked, private files, one module per text."""

from __future__ import annotations

import inspect
import linecache
import os
import stat
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import runtime_samples as samples
import torch

from fusion_advisor.errors import ValidationError
from fusion_advisor.runtime import loading


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fusion_advisor" / "kernels"


def load(text: str, entry: str = "value") -> dict[str, Any]:
    return loading.load_kernel(text, entry, loading.text_hash(text))


def test_changed_text_is_refused_and_not_run(cache: Path) -> None:
    text = "raise AssertionError('ran')\nvalue = 1\n"
    with pytest.raises(ValidationError, match="was changed"):
        loading.load_kernel(text + " ", "value", loading.text_hash(text))
    assert not cache.exists()


def test_file_is_private_and_named_by_content(cache: Path) -> None:
    text = "value = 'private'\n"
    path = Path(load(text)["__file__"])
    assert path.parent == cache and path.read_text() == text
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert [*cache.iterdir()] == [path]  # no temporary file is left


def test_a_file_that_was_tampered_with_does_not_run(cache: Path) -> None:
    text = "value = 'true text'\n"
    path = cache / f"{loading.text_hash(text)[:32]}.py"
    cache.mkdir(parents=True, mode=0o700)
    path.write_text("value = 'planted'\n")
    assert load(text)["value"] == "true text"
    assert path.read_text() == text


def test_a_directory_others_can_write_to_is_closed_or_avoided(cache: Path, tmp_path: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert loading.cache_directory() == cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    cache.rmdir()
    (tmp_path / "elsewhere").mkdir()
    cache.symlink_to(tmp_path / "elsewhere")
    directory = loading.cache_directory()
    assert directory != cache and stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_read_only_home_still_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no directory can be made here
    assert load("value = 'read-only home'\n")["value"] == "read-only home"


def test_the_same_text_is_one_module_and_a_failing_one_leaves_none(cache: Path) -> None:
    text = "value = object()\n"
    assert load(text)["value"] is load(text)["value"]
    broken = "1 / 0\nvalue = 1\n"
    before = set(sys.modules)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            load(broken)
    assert set(sys.modules) == before
    with pytest.raises(ValidationError, match="does not define 'other'"):
        loading.load_kernel(text, "other", loading.text_hash(text))


def test_source_is_found_by_tracebacks_and_inspect(cache: Path) -> None:
    text = "def value():\n    raise KeyError('inside the kernel text')\n"
    value = load(text)["value"]
    assert inspect.getsource(value) == text
    with pytest.raises(KeyError) as raised:
        value()
    linecache.checkcache()
    assert "raise KeyError('inside" in "".join(traceback.format_exception(raised.value))


def test_pickled_function_is_rebuilt_in_another_process(tmp_path: Path) -> None:
    import pickle

    function = samples.load(samples.GELU)["fused"]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    model.activation = function
    file = tmp_path / "model.pt"
    torch.save(model, file)
    (tmp_path / "function.pickle").write_bytes(pickle.dumps(function))
    code = (
        "import sys, torch\n"
        "model = torch.load(sys.argv[1], weights_only=False)\n"
        "x = torch.randn(2, 3, 4)\n"
        "assert torch.allclose(model.activation(x), model.activation.eager(x), atol=1e-6)\n"
        "assert model.activation.stats.fused == 1\n"
    )
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(file)], env=environment, check=True)
