from __future__ import annotations

import json
import subprocess
import sys

import pytest

BUDGET_S = 0.2
PROBE = """
import json, sys, time
start = time.perf_counter()
import fusion_advisor
seconds = time.perf_counter() - start
print(json.dumps([seconds, sorted(name.partition(".")[0] for name in sys.modules)]))
"""


def probe() -> tuple[float, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60
    )
    seconds, names = json.loads(done.stdout)
    return seconds, set(names)


@pytest.mark.essential
def test_import_is_quick_and_brings_in_nothing_heavy() -> None:
    runs = [probe() for _ in range(5)]
    heavy = {"torch", "numpy", "numba", "pandas", "matplotlib", "IPython", "ipywidgets"}
    assert heavy & runs[0][1] == set()
    assert min(seconds for seconds, _ in runs) < BUDGET_S  # the minimum: the machine may be busy


def test_loading_the_magics_imports_no_torch() -> None:
    """``%load_ext`` stands in the first cell, before anything is profiled."""
    code = (
        "import sys, fusion_advisor.jupyter\n"
        "heavy = {'torch', 'numba', 'pandas', 'matplotlib', 'ipywidgets'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
