"""Generated text, word for word; regenerate with ``python tests/golden/regenerate.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))

from golden_kernels import GOLDEN, golden_text  # noqa: E402  # stands beside this file


@pytest.mark.parametrize("name", GOLDEN)
def test_kernel_text_is_as_it_was_read(name):
    expected = (HERE / "data" / f"{name}.py.txt").read_text(encoding="utf-8")
    assert golden_text(name) == expected


@pytest.mark.parametrize("name", GOLDEN)
def test_generation_is_repeatable(name):
    assert golden_text(name) == golden_text(name)
