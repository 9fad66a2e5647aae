"""Work on the main thread of the kernel while no cell runs.

A person's tensors and models belong to their cells, which run on the main thread.  What measures
or changes them is handed to that thread's event loop, and starts when the running cell has ended,
also when more cells wait behind it.
"""

from __future__ import annotations

import contextlib
import contextvars
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

QUEUED_MESSAGE = "queued behind the running cell"
# A free main thread takes work within a millisecond; so long a wait means that a cell runs.
QUEUED_AFTER_S = 0.05
LOOK_EVERY_S = 0.05  # how soon a cancelled job that waits is let go


class _Ticket:
    """One function on its way to the main thread, and what became of it."""

    def __init__(self, function: Callable[[], Any], context: contextvars.Context) -> None:
        self._function = function
        self._context = context
        self.taken = threading.Event()
        self.ended = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Call the function; an interrupt of the kernel ends it, and nothing else."""
        try:
            with _interruptible():
                self.value = self._context.run(self._function)
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()


class BetweenCells:
    """Hands functions to the main thread of one shell's kernel."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._lock = threading.Lock()
        self._waiting: deque[_Ticket] = deque()
        self._cells = 0  # running now; an asynchronous cell lets the event loop run meanwhile
        shell.events.register("pre_run_cell", self._before)
        shell.events.register("post_run_cell", self._after)

    def close(self) -> None:
        """Take the hooks out again."""
        self._shell.events.unregister("pre_run_cell", self._before)
        self._shell.events.unregister("post_run_cell", self._after)

    @property
    def cell_is_running(self) -> bool:
        return self._cells > 0

    def call(
        self,
        function: Callable[[], Any],
        *,
        context: contextvars.Context,
        on_queued: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> Any:
        """The function's result, from the main thread; called on another one.

        ``on_queued`` is told when it has to wait for a cell.  Returns ``None`` without having
        called it where ``cancelled()`` became true first.  Where there is no kernel, and so no
        event loop, the function is called here.
        """
        if self._loop() is None or threading.current_thread() is threading.main_thread():
            return function()
        ticket = _Ticket(function, context)
        with self._lock:
            self._waiting.append(ticket)
        self._wake()
        if self.cell_is_running or not ticket.taken.wait(QUEUED_AFTER_S):
            on_queued(QUEUED_MESSAGE)
        while not ticket.ended.wait(LOOK_EVERY_S):
            if cancelled() and self._withdraw(ticket):
                return None
        if ticket.error is not None:
            raise ticket.error
        return ticket.value

    def _withdraw(self, ticket: _Ticket) -> bool:
        """Whether the ticket was still waiting, and now is no more."""
        with self._lock:
            if ticket not in self._waiting:
                return False
            self._waiting.remove(ticket)
            return True

    def _loop(self) -> Any:
        return getattr(getattr(self._shell, "kernel", None), "io_loop", None)

    def _wake(self) -> None:
        loop = self._loop()
        if loop is not None:
            loop.add_callback(self._serve_one)

    def _serve_one(self) -> None:
        """On the main thread: one function, then the event loop gets its turn."""
        with self._lock:
            if self.cell_is_running or not self._waiting:
                return  # the end of the cell wakes us
            ticket = self._waiting.popleft()
            ticket.taken.set()
        ticket.run()
        with self._lock:
            more = bool(self._waiting)
        if more:
            self._wake()

    def _before(self, info: Any = None) -> None:
        self._cells += 1

    def _after(self, result: Any = None) -> None:
        self._cells = max(0, self._cells - 1)  # loaded in the middle of a cell: it ends uncounted
        if not self._cells and self._waiting:
            self._wake()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let an interrupt of the kernel reach what runs now, as it reaches a cell.

    Outside of cells the kernel ignores them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler) or signal.SIG_IGN
    try:
        yield
    finally:
        try:
            signal.signal(signal.SIGINT, before)
        except KeyboardInterrupt:  # one that was pending is raised first, and nothing is set
            signal.signal(signal.SIGINT, before)
            raise
