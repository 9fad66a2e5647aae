"""Runs torch's OpInfo samples through kernels and writes build/conformance.json.

    python tests/conformance/run_opinfo.py [--target cpu|cuda] [--dtypes float32,int64]
        [--entries add,mul] [--most-samples N] [--jobs 2] [--fresh] [--summary] [--write]
        [--validate]

What was run is kept in build/conformance and not run again until something it follows from
changes (``--fresh`` runs it again).  ``--validate`` puts a kernel of every entry and some dtypes
through the validator instead.  ``--summary`` runs nothing and tells of what is kept; ``--write``
also writes docs/conformance.md.  Exits with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "conformance"
BATCH = 60  # units per process: a kernel compiled once serves them all, and memory stays bounded
BATCH_TIMEOUT_S = 3600.0
SHOWN_FAULTS = 2  # of each outcome, on the screen


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, write, print."""
    options = _parse(arguments)
    # Kernel texts and machine code stay out of the person's own cache.  Before numba is imported.
    os.environ["XDG_CACHE_HOME"] = str(KEPT / "cache")
    import opinfo
    import opinfo_page
    import opinfo_report
    import opinfo_validate
    from opinfo_targets import TARGETS
    from opinfo_units import Batch, Unit

    names = opinfo.read_entries()
    entries = options.entries.split(",") if options.entries else sum(names.values(), ())
    known = [str(dtype).removeprefix("torch.") for dtype in opinfo.DTYPES]
    dtypes = options.dtypes.split(",") if options.dtypes else known
    if options.validate:
        wanted = options.dtypes.split(",") if options.dtypes else ()
        return opinfo_validate.run(entries, wanted, fresh=options.fresh)
    targets = tuple(options.target or TARGETS)
    supported = opinfo.find_entries()
    units = [
        Unit(entry, dtype)
        for dtype in dtypes
        for entry in entries
        if getattr(opinfo.torch, dtype) in supported[entry].supported_dtypes("cpu")
    ]
    folder = options.kept
    if options.most_samples is not None:
        folder /= f"first-{options.most_samples}"
    batches = [
        Batch(tuple(units[at : at + BATCH]), targets, folder, options.fresh, options.most_samples)
        for at in range(0, len(units), BATCH)
    ]
    started = time.monotonic()
    if not options.summary:
        Pool(batches, len(units) * len(targets)).run(options.jobs)
    summary = opinfo_report.summarize(folder, units, targets, names["required"])
    summary["run_seconds"] = round(time.monotonic() - started, 1)
    summary["most_samples"] = options.most_samples
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(opinfo_report.render_text(summary))
    print(f"written to {options.output}")
    if options.write:
        opinfo_page.write(summary)
    return 1 if summary["mismatches"] or summary["contractions"]["contracted"] else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=["cpu", "cuda"], action="append")
    parser.add_argument("--dtypes", default="")
    parser.add_argument("--entries", default="")
    parser.add_argument("--most-samples", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--kept", type=Path, default=KEPT, help="folder of the outcomes")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "conformance.json")
    return parser.parse_args(arguments)


class Pool:
    """Works batches off in processes side by side; keeps and shows what comes back."""

    def __init__(
        self, batches: Sequence[Any], outcomes: int, start: Callable[..., Any] | None = None
    ) -> None:
        self._waiting = deque(batches)
        self._start = start  # instead of a process
        self._outcomes = outcomes
        self._done = self._mismatches = 0
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []

    def run(self, jobs: int) -> None:
        """Until nothing is waiting; whatever went wrong in our own code is raised."""
        threads = [threading.Thread(target=self._work) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        print(flush=True)

    def _work(self) -> None:
        try:
            while (batch := self._next()) is not None:
                self._run(batch)
        except BaseException as error:
            self._errors.append(error)

    def _next(self) -> Any:
        with self._lock:
            return self._waiting.popleft() if self._waiting and not self._errors else None

    def _run(self, batch: Any) -> None:
        """One process; where it dies, the unit at fault is noted and the rest runs anew."""
        from dataclasses import replace

        from opinfo_units import crashed

        from fusion_advisor import workers

        begun: list[Any] = []
        last = [""]

        def receive(message: Any) -> None:
            if isinstance(message, str):
                return
            if message[0] == "unit":
                begun.append(message[1])
            elif message[0] == "check":
                last[0] = message[1]
            elif message[0] == "sass":
                self._keep_sass(batch.folder, message[1])
            else:
                self._keep(batch, *message[1:])

        try:
            start = self._start or workers.run_isolated
            start("opinfo_units:run_batch", batch, timeout_s=BATCH_TIMEOUT_S, on_progress=receive)
        except (workers.WorkerCrash, workers.WorkerTimeout) as error:
            if not begun:
                raise
            for target in batch.targets:
                self._keep(batch, begun[-1], target, crashed(begun[-1], f"{last[0]}: {error}"))
            rest = batch.units[batch.units.index(begun[-1]) + 1 :]
            if rest:
                with self._lock:
                    self._waiting.appendleft(replace(batch, units=rest))

    def _keep_sass(self, folder: Path, found: dict[str, str]) -> None:
        import opinfo_sass

        with self._lock:
            opinfo_sass.keep(folder, found)

    def _keep(self, batch: Any, unit: Any, target: Any, outcome: dict[str, Any]) -> None:
        from opinfo_units import write_outcome

        write_outcome(unit.file(batch.folder, target), outcome)
        with self._lock:
            self._done += 1
            self._mismatches += outcome["mismatches"]
            for fault in outcome["faults"][:SHOWN_FAULTS]:
                print(f"\r{target} {unit.entry} {unit.dtype}: {fault}", flush=True)
            print(
                f"\r{self._done} of {self._outcomes} units, {self._mismatches} mismatches, "
                f"{time.monotonic() - self._started:.0f} s ({unit.dtype} {unit.entry})\033[K",
                end="",
                flush=True,
            )


if __name__ == "__main__":
    raise SystemExit(main())
