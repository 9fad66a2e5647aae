"""Compiled kernels on disk: found again by content, never by mistake, never in the way."""

import os
import subprocess
import sys
import types
from pathlib import Path

import numba
import numpy as np
import pytest

from fusion_advisor.runtime import compile_cache, cpu_kernel

TEXT = """
from numba import float32, prange
from fusion_advisor.runtime import cpu_math

def kernel(x, out):
    for i in prange(out.size):
        out[i] = cpu_math.tanh(x[i]) * float32(FACTOR)
"""

PROGRAM = """
import sys
import numpy as np
from fusion_advisor.runtime import load_kernel
from fusion_advisor.runtime.loading import text_hash
text = sys.stdin.read()
kernel = load_kernel(text, "fused", text_hash(text))["fused"]
x = np.linspace(-2, 2, 7, dtype=np.float32)
outs = [np.empty_like(x), np.empty_like(x)]
kernel.serial(x, outs[0])
kernel.parallel(x, outs[1])
assert np.array_equal(*outs)
print([twin.stats.cache_hits[next(iter(twin.stats.cache_hits))] if twin.stats.cache_hits else 0
       for twin in (kernel.serial, kernel.parallel)], float(outs[0][0]))
"""


def _function(factor: float, **more: object) -> types.FunctionType:
    namespace: dict[str, object] = {"__name__": "kernels_of_a_test", **more}
    exec(TEXT.replace("FACTOR", repr(factor)), namespace)
    found = namespace["kernel"]
    assert isinstance(found, types.FunctionType)
    return found


def test_a_literal_a_variant_and_the_module_are_part_of_the_content() -> None:
    one = _function(0.5)
    key = compile_cache.content_key(one, "serial")
    assert key and key == compile_cache.content_key(_function(0.5), "serial")
    assert key != compile_cache.content_key(_function(0.25), "serial")
    assert key != compile_cache.content_key(one, "parallel")
    assert key != compile_cache.content_key(_function(0.5, __name__="another"), "serial")


def test_what_a_kernel_calls_is_part_of_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    key = compile_cache.content_key(_function(0.5))
    monkeypatch.setattr(compile_cache, "_maths_digest", lambda: "another version of the maths")
    assert compile_cache.content_key(_function(0.5)) != key


def test_functions_whose_code_may_change_elsewhere_are_not_kept() -> None:
    own = numba.njit(lambda value: value)
    for name in ("helper", "FACTOR"):
        namespace: dict[str, object] = {"__name__": "m", "helper": own, "FACTOR": 2.0}
        exec(f"def kernel(x, out):\n    out[0] = {name}", namespace)
        assert compile_cache.content_key(namespace["kernel"]) == ""  # type: ignore[arg-type]
    factor = 3.0

    def closure(x: np.ndarray, out: np.ndarray) -> None:
        out[0] = factor * x[0]

    assert compile_cache.content_key(closure) == ""


def _run(text: str, cache: Path) -> str:
    environment = dict(os.environ, XDG_CACHE_HOME=str(cache))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=text, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_another_process_finds_both_twins_and_survives_damage(tmp_path: Path) -> None:
    text = TEXT.replace("FACTOR", "0.5").replace("def kernel", "def body")
    text += "\nfrom fusion_advisor.runtime import cpu_kernel\nfused = cpu_kernel(body)\n"
    first = _run(text, tmp_path)
    assert first.startswith("[0, 0]")
    assert _run(text, tmp_path) == first.replace("[0, 0]", "[1, 1]")
    folder = tmp_path / "fusion_advisor" / "kernels" / "compiled"
    assert folder.stat().st_mode & 0o077 == 0
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:40] + b"damaged")
    assert _run(text, tmp_path) == first


def test_the_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "MOST_FILES", 8)
    for number in range(9):
        file = tmp_path / str(number)
        file.touch()
        os.utime(file, (number, number))
    compile_cache._prune(tmp_path.iterdir())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["3", "4", "5", "6", "7", "8"]


def test_a_place_that_cannot_be_written_costs_only_the_compilation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> Path:
        raise OSError("read-only")

    monkeypatch.setattr(compile_cache, "folder", refuse)
    x = np.ones(5, np.float32)
    out = np.empty_like(x)
    cpu_kernel(_function(2.0, __name__=__name__)).serial(x, out)
    assert np.allclose(out, 2 * np.tanh(1.0))


def test_every_parallel_twin_is_compiled_with_the_same_options() -> None:
    from fusion_advisor.runtime import cpu_kernels

    before = dict(cpu_kernels._PARALLEL)
    for factor in (1.5, 2.5):
        kernel = cpu_kernel(_function(factor, __name__=__name__))
        assert kernel.parallel.targetoptions["parallel"] == before
        x = np.ones(5, np.float32)
        kernel.parallel(x, np.empty_like(x))
        assert before == cpu_kernels._PARALLEL
