"""The comm between this kernel and the notebooks that show it (docs/notebook-protocol.md).

A front end opens a comm and says hello; it is answered the findings, now and whenever they change.
Requests are answered to the one who asked.  Handlers start a job and return; they run on the main
thread, or on the thread of a subshell while a cell runs.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from typing import TYPE_CHECKING, Any

from fusion_advisor._version import __version__
from fusion_advisor.errors import FusionAdvisorError, UsageError
from fusion_advisor.jupyter.jobs import INTERRUPTED_MESSAGE, Job, JobRunner, Listener, Outcome
from fusion_advisor.jupyter.payloads import Data, findings_data, rungs_data
from fusion_advisor.jupyter.requests import Requests

if TYPE_CHECKING:
    from fusion_advisor.jupyter.cells import CellBook
    from fusion_advisor.jupyter.profiles import Profiles
    from fusion_advisor.jupyter.settings import Settings

TARGET = "fusion_advisor"
PROTOCOL = 1
MAX_CLIENTS = 32  # a page that was closed says nothing; the oldest are let go
WAITING = "waiting for the job before it"
_log = logging.getLogger(__name__)


class Client:
    """One front end: its comm, and the jobs it asked for."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.name = ""
        self.ready = False
        self.problem = ""  # why it is not served
        self.revision_sent = 0
        self.jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._context = contextvars.copy_context()

    def heard(self) -> None:
        """A message came: answers belong to it, and so find their way to its subshell."""
        self._context = contextvars.copy_context()

    def send(self, data: Data) -> None:
        """Send a message, from any thread; a comm that is gone is left alone."""
        with self._lock:
            context = self._context.copy()
            try:
                context.run(self.comm.send, data)
            except Exception:  # a kernel that goes down closes its sockets under us
                _log.warning("a message to the notebook was not sent", exc_info=True)

    def close(self) -> None:
        """Tell the front end that nothing more will come."""
        self.ready = False
        with self._lock:
            self.comm.close()


class Channel:
    """All front ends of one kernel."""

    def __init__(
        self,
        shell: Any,
        *,
        profiles: Profiles,
        book: CellBook,
        settings: Settings,
        runner: JobRunner,
    ) -> None:
        self._shell = shell
        self._profiles = profiles
        self._book = book
        self._settings = settings
        self._runner = runner
        self._requests = Requests(profiles)
        self._clients: dict[str, Client] = {}  # by comm id, oldest first
        self._lock = threading.RLock()  # revisions leave in order
        self._revision = 0
        self._last: object = None

    # -- coming and going ----------------------------------------------------------------------

    def open(self) -> None:
        """Listen, and tell the front ends that are there already."""
        import comm

        comm.get_comm_manager().register_target(TARGET, self._opened)
        announced = comm.create_comm(
            target_name=TARGET,
            data={"type": "announce", "protocol": PROTOCOL, "package": __version__},
        )
        announced.close()

    def close(self) -> None:
        """Stop listening and close every comm."""
        import comm

        manager = comm.get_comm_manager()
        if getattr(manager, "targets", {}).get(TARGET) == self._opened:
            manager.unregister_target(TARGET, self._opened)
        for client in tuple(self._clients.values()):
            client.close()
        self._clients.clear()

    def _opened(self, comm: Any, message: Data) -> None:
        client = Client(comm)
        comm.on_msg(lambda received: self._received(client, received))
        comm.on_close(lambda _: self._left(client))
        with self._lock:
            self._clients[comm.comm_id] = client
            extra = list(self._clients.values())[:-MAX_CLIENTS]
        for old in extra:
            self._drop(old)
        self._received(client, message)

    def _left(self, client: Client) -> None:
        # Nobody waits for its jobs any more, and those of others stand behind them.
        self._clients.pop(client.comm.comm_id, None)
        client.ready = False
        for job in tuple(client.jobs.values()):
            self._runner.cancel(job)

    def _drop(self, client: Client) -> None:
        self._clients.pop(client.comm.comm_id, None)
        client.close()

    # -- telling -------------------------------------------------------------------------------

    def broadcast(self) -> None:
        """Tell every front end how things stand, if that has changed."""
        with self._lock:
            data = self._findings()
            for client in tuple(self._clients.values()):
                if client.ready and client.revision_sent != data["revision"]:
                    client.revision_sent = data["revision"]
                    client.send(data)

    def _findings(self) -> Data:
        """The findings, under a new revision where anything is new."""
        data = findings_data(self._profiles, revision=self._revision, busy=self._runner.busy)
        if (data["profiles"], data["findings"]) != self._last:
            self._last = (data["profiles"], data["findings"])
            self._revision += 1
        return {**data, "revision": self._revision}

    # -- being asked ---------------------------------------------------------------------------

    def _received(self, client: Client, message: Data) -> None:
        data = message["content"]["data"]
        if not isinstance(data, dict):
            return
        client.heard()
        request = data.get("req") if isinstance(data.get("req"), str) else None
        try:
            self._handle(client, data, request)
        except KeyboardInterrupt:
            self._answer(client, request, {"type": "cancelled", "message": INTERRUPTED_MESSAGE})
        except FusionAdvisorError as error:
            self._answer(client, request, {"type": "failed", "message": str(error)})
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            self._answer(client, request, {"type": "failed", "message": said})

    def _handle(self, client: Client, data: Data, request: str | None) -> None:
        kind = data.get("type")
        if kind == "hello":
            self._hello(client, data)
        elif kind == "cancel":
            self._cancel(client, data)
        elif client.problem:
            raise UsageError(client.problem)
        elif kind == "settings":
            self._settings.update(data.get("values"))
        elif kind == "profiling":
            self._expect(data)
        elif request is None:
            return
        elif not isinstance(kind, str):
            raise UsageError(f"a request's type is a text, not {kind!r:.60}")
        elif kind == "list":
            self._started(client, request, "now")
            with self._lock:
                self._answer(client, request, self._findings())
        elif kind in self._requests.now:
            self._started(client, request, "now")
            self._answer(client, request, self._requests.now[kind](data))
            if kind in ("accepted", "reverted"):
                self.broadcast()
        elif kind in self._requests.jobs:
            self._start(client, request, data)
        else:
            raise UsageError(f"this version of Fusion Advisor knows no request {kind!r}")

    def _hello(self, client: Client, data: Data) -> None:
        client.problem = _mismatch(data)
        if client.problem:
            client.send({"type": "mismatch", "message": client.problem})
            return
        name = data.get("client")
        with self._lock:
            for other in tuple(self._clients.values()):
                if other is not client and name and other.name == name:
                    self._drop(other)  # the same page has opened another comm
        client.name = name if isinstance(name, str) else ""
        if data.get("settings"):  # one that says nothing leaves the others' as they are
            self._settings.update(data["settings"])
        kernel = getattr(self._shell, "kernel", None)
        client.send(
            {
                "type": "hello",
                "protocol": PROTOCOL,
                "package": __version__,
                "subshell": bool(getattr(kernel, "_supports_kernel_subshells", False)),
                "config": {
                    "target": self._settings.value("target"),
                    "device": self._settings.value("device"),
                    "top": self._settings.value("top"),
                    "match": "eager",
                    "marks": self._settings.value("marks"),
                },
            }
        )
        with self._lock:
            data = self._findings()
            client.ready, client.revision_sent = True, data["revision"]
            client.send(data)

    def _expect(self, data: Data) -> None:
        cell_id, lines = data.get("cell_id"), data.get("added_lines")
        if isinstance(cell_id, str) and isinstance(lines, int):
            self._book.expect_added_lines(cell_id, max(0, lines))

    def _started(self, client: Client, request: str, where: str) -> None:
        client.send({"type": "started", "req": request, "where": where})

    def _answer(self, client: Client, request: str | None, data: Data) -> None:
        if request is not None:
            client.send({**data, "req": request})

    # -- jobs ----------------------------------------------------------------------------------

    def _start(self, client: Client, request: str, data: Data) -> None:
        where, function = self._requests.jobs[data["type"]]
        self._started(client, request, where)
        waits = self._runner.busy

        def ended(outcome: Outcome) -> None:
            client.jobs.pop(request, None)
            self._answer(client, request, _end(outcome))
            self.broadcast()

        listener = Listener(
            progress=lambda stage, fraction: self._answer(
                client, request, {"type": "progress", "stage": stage, "fraction": fraction}
            ),
            queued=lambda said: self._answer(
                client, request, {"type": "queued", "message": said}
            ),
            ended=ended,
        )  # fmt: skip
        if waits:
            listener.progress(WAITING, 0.0)
        job = self._runner.submit(lambda job: function(job, data), listener)
        client.jobs[request] = job
        if job.outcome is not None:  # it was quicker than we
            client.jobs.pop(request, None)

    def _cancel(self, client: Client, data: Data) -> None:
        wanted = data.get("req")
        job = client.jobs.get(wanted) if isinstance(wanted, str) else None
        if job is not None:
            self._runner.cancel(job)


def _end(outcome: Outcome) -> Data:
    """The last word about a job."""
    if outcome.status == "done":
        answer: Data = outcome.value
        return answer
    data: Data = {"type": outcome.status, "message": outcome.message}
    rungs: Any = getattr(outcome.error, "rungs", None)
    if rungs is not None:
        data["rungs"] = rungs_data(rungs)
    return data


def _mismatch(data: Data) -> str:
    """Why a front end cannot be served, or an empty string."""
    theirs = data.get("package")
    theirs = theirs if isinstance(theirs, str) else "unknown"
    if data.get("protocol") == PROTOCOL and _release(theirs) == _release(__version__):
        return ""
    return (
        f"The notebook's Fusion Advisor extension is version {theirs}, the kernel's package is "
        f"{__version__}. Install one version in both environments (pip install "
        f"fusion-advisor=={__version__} beside JupyterLab, or upgrade it beside the kernel), "
        "restart the kernel and reload the page."
    )


def _release(version: str) -> tuple[str, ...]:
    """The part of a version that must agree: major and minor number."""
    return tuple(version.split(".")[:2])


__all__ = ["Channel", "Client"]
