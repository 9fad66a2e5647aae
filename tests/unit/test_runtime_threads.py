"""Threads, forks and Numba's threading layers: each scenario in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRELUDE = """
import threading, torch
torch.set_num_threads(2)
import numba
import runtime_samples as samples
from fusion_advisor.runtime import cpu_kernels, threads
space = samples.load(samples.GELU)
fused, eager = space["fused"], space["eager_gelu"]
large = torch.randn(2, 300, 200)
assert large.numel() > cpu_kernels.SERIAL_BELOW

def check(x):
    assert torch.allclose(fused(x), eager(x), atol=1e-6)
"""


def run(code: str, **environment: str) -> str:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "unit")])
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stderr[-3000:]}"
    return result.stdout.strip()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_serial_then_forked_then_threads_then_forked_workers() -> None:
    """One process goes through every order of threads and forks; nothing aborts or hangs."""
    output = run("""
    import os
    from numba.core import config

    # One torch thread: serial, and no threading layer is started for it.
    torch.set_num_threads(1)
    check(large)
    try:
        numba.threading_layer()
    except ValueError:
        pass
    else:
        raise AssertionError("a layer was started")
    torch.set_num_threads(2)

    # A child forked before the first parallel call runs serially.
    child = os.fork()
    if child == 0:
        check(large)
        os._exit(0 if threads.worker_count() == 1 else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    # A parallel call leaves Numba's settings as they were.
    before = config.THREADING_LAYER, numba.get_num_threads()
    check(large)
    assert (config.THREADING_LAYER, numba.get_num_threads()) == before

    errors = []
    def work():
        try:
            for size in (7, 40_000, 90_000):
                for _ in range(20):
                    check(torch.randn(1, 1, size))
        except BaseException as error:
            errors.append(error)
    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    assert not errors, errors

    class Data(torch.utils.data.Dataset):
        def __len__(self): return 6
        def __getitem__(self, index):
            assert threads.worker_count() == 1
            return fused(torch.full((1, 300, 200), float(index)))[0]
    loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2,
                                         multiprocessing_context="fork")
    batches = list(loader)
    expected = eager(torch.arange(6.0)[:, None, None].expand(6, 300, 200))
    assert torch.allclose(torch.cat(batches), expected, atol=1e-6)
    check(large)  # the parent still runs, in parallel
    assert not fused.stats.fallbacks
    print(threads.threading_layer() or "serial")
    """)
    assert output in ("omp", "tbb", "serial")


def test_a_layer_the_person_chose_and_started_is_judged_not_changed() -> None:
    """With workqueue, which aborts on concurrent calls, fused kernels run serially."""
    output = run(
        """
        import numpy
        print(repr(threads.threading_layer()), threads.worker_count())

        @numba.njit(parallel=True)
        def own(x):
            for i in numba.prange(x.size):
                x[i] += 1

        own(numpy.zeros(10))
        check(large)
        print(numba.threading_layer(), threads.worker_count())
        """,
        NUMBA_THREADING_LAYER="workqueue",
    )
    assert output.split("\n") == ["'' 1", "workqueue 1"]


def test_torchs_number_of_threads_is_what_it_was_after_a_parallel_kernel() -> None:
    code = """
        torch.set_num_threads(2)
        fused.run_cpu((large,), parallel=True)  # starts Numba's team
        assert torch.get_num_threads() == 2, torch.get_num_threads()
        check(large)
        assert threads.threading_layer() == "" or threads.worker_count() == 2
        assert torch.get_num_threads() == 2, torch.get_num_threads()
    """
    run(code, NUMBA_NUM_THREADS="4", OMP_NUM_THREADS="2")
