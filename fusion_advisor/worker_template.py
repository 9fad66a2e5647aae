"""The child's side of ``workers``: a template process that forks one process per job.

Also the small message format that both sides speak.  Imported by the child
before anything else, so: standard library only, and quick.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import pickle
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

# A forked copy of a process that has imported torch but run nothing is sound on Linux;
# on macOS system libraries refuse to work after a fork.
CAN_FORK = sys.platform == "linux"

_HEADER = struct.Struct("<I")
# Writes up to PIPE_BUF are atomic: a job killed while it reports leaves a whole message or none.
_FRAME_LIMIT_BYTES = min(select.PIPE_BUF, 4096)
_BOOT = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from fusion_advisor.worker_template import main; main(sys.argv[1])"
)


class DamagedStreamError(Exception):
    """Bytes that are no message: the sender's memory is not to be trusted any more."""


class Frame(NamedTuple):
    """One message: ``preload`` (names) and ``job`` (path) to the child; the others back."""

    kind: Literal["preload", "job", "started", "progress", "progress-file", "ended"]
    body: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the child must know beside the payload."""

    function: str
    preload: tuple[str, ...]
    result: str
    search_path: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    threads: int


def command(folder: str) -> list[str]:
    """The command line of a template; -P: no module of the current folder shadows ours."""
    return [sys.executable, "-P", "-c", _BOOT, folder, *map(str, sys.path)]


def in_worker() -> bool:
    """Whether this process runs a job."""
    return _channel is not None


class ForkedTemplate:
    """A template of a job's own, forked from it before it has run anything.

    It has the libraries that the job's process has, without importing them again.  For its owner
    it is what ``subprocess.Popen`` of ``command`` is: it leaves when the owner's pipe is closed.
    """

    def __init__(self, folder: str, errors: int) -> None:
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            for descriptor, number in ((read_in, 0), (write_out, 1), (errors, 2)):
                os.dup2(descriptor, number)
            assert _channel is not None  # a job has one
            for descriptor in (read_in, write_in, read_out, write_out, _channel):
                os.close(descriptor)
            main(folder)
        os.close(read_in)
        os.close(write_out)
        self.stdin = open(write_in, "wb", buffering=0)  # noqa: SIM115 - closed by the owner
        self.stdout = open(read_out, "rb", buffering=0)  # noqa: SIM115

    def poll(self) -> int | None:
        """The exit code, once there is one."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit code; ``subprocess.TimeoutExpired`` where there is none in time."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a worker template", timeout)
            time.sleep(0.005)
        assert self.returncode is not None  # poll has set it
        return self.returncode


# Messages


def write_frame(descriptor: int, frame: Frame) -> bool:
    """Write one message in one piece; False where it is too long for that."""
    body = pickle.dumps(tuple(frame), protocol=5)
    if len(body) + _HEADER.size > _FRAME_LIMIT_BYTES:
        return False
    os.write(descriptor, _HEADER.pack(len(body)) + body)
    return True


class FrameReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending = b""

    def read(self) -> list[Frame] | None:
        """The messages that have arrived, after waiting for bytes; None at the end."""
        received = os.read(self._descriptor, 65536)
        if not received:
            return None
        self._pending += received
        frames = []
        while len(self._pending) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._pending)
            if length > _FRAME_LIMIT_BYTES:
                raise DamagedStreamError
            if len(self._pending) < _HEADER.size + length:
                break
            body = self._pending[_HEADER.size : _HEADER.size + length]
            self._pending = self._pending[_HEADER.size + length :]
            try:
                frames.append(Frame(*pickle.loads(body)))
            except Exception:
                raise DamagedStreamError from None
        return frames


# The template

_channel: int | None = None  # where messages to the parent go; None outside a worker process
_folder = ""


def main(folder: str) -> NoReturn:
    """Serve jobs until the parent closes the pipe or is gone."""
    global _channel, _folder
    incoming, _channel = _take_over_pipes()
    _folder = folder
    faulthandler.enable()  # a crash leaves its Python stack in the parent's error message
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
    reader = FrameReader(incoming)
    while True:
        frames = reader.read()
        if frames is None:
            _leave(folder)
        for frame in frames:
            if frame.kind == "preload":
                _preload(frame.body)
            else:
                _serve(str(frame.body), incoming)


def _take_over_pipes() -> tuple[int, int]:
    """The pipe's two ends under other numbers; what jobs print goes to the error file."""
    incoming, outgoing = os.dup(0), os.dup(1)  # not inherited by programs that jobs start
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return incoming, outgoing


def _leave(folder: str) -> NoReturn:
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # with whatever jobs have left running
    os._exit(0)


def _serve(path: str, incoming: int) -> None:
    with open(path, "rb") as file:
        job: Job = pickle.load(file)
        payload_offset = file.tell()
    _preload(job.preload)
    if not CAN_FORK:
        _send(Frame("started"))
        _run_job(job, path, payload_offset)
        _send(Frame("ended", 0))
        return
    gc.freeze()  # keeps the garbage collector from touching, and so copying, shared pages
    template = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(incoming)
        _become_job(template)
        _run_job(job, path, payload_offset)
        os._exit(0)  # no clean-up in a process whose memory may be damaged
    _send(Frame("started"))
    _send(Frame("ended", _wait_for(child, incoming)))


def _preload(names: tuple[str, ...]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            traceback.print_exc()  # the job meets the same error, and reports it


def _wait_for(child: int, incoming: int) -> int:
    """The exit code of the job's process; leaves with it when the parent goes away."""
    handle = os.pidfd_open(child)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(incoming, select.POLLIN)
    ended = False
    while not ended:
        for descriptor, _ in poll.poll():
            ended = ended or descriptor == handle
            if descriptor == incoming:  # nothing is sent during a job: this is the end
                _leave(_folder)
    os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _become_job(template: int) -> None:
    """Die with the template, and be the first to go when memory runs out."""
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != template:
        os._exit(1)
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        pass  # a hardened system: the notebook is then as likely a victim as we are


def _run_job(job: Job, path: str, payload_offset: int) -> None:
    """Leave ``(status, value)`` in the job's result file, whatever the function does."""
    try:
        outcome: tuple[str, Any] = ("value", _call(job, path, payload_offset))
        data = pickle.dumps(outcome, protocol=5)
    except BaseException as error:
        data = pickle.dumps(_describe_error(error), protocol=5)
    Path(job.result).write_bytes(data)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _call(job: Job, path: str, payload_offset: int) -> Any:
    sys.path[:] = job.search_path
    os.environ.clear()
    os.environ.update(job.environment)
    if job.folder:
        os.chdir(job.folder)
    _set_threads(job.threads)
    module_name, _, qualname = job.function.partition(":")
    function: Any = importlib.import_module(module_name)
    for part in qualname.split("."):
        function = getattr(function, part)
    with open(path, "rb") as file:
        file.seek(payload_offset)
        payload = pickle.load(file)
    return function(payload)


def _set_threads(count: int) -> None:
    torch, numba = sys.modules.get("torch"), sys.modules.get("numba")
    if torch is not None:
        torch.set_num_threads(count)
    if numba is not None:  # takes effect because the template never ran a parallel kernel
        numba.config.NUMBA_NUM_THREADS = min(count, numba.config.NUMBA_NUM_THREADS)


def _describe_error(error: BaseException) -> tuple[str, Any]:
    from fusion_advisor.errors import FusionAdvisorError

    trace = "".join(traceback.format_exception(error))
    if isinstance(error, FusionAdvisorError):
        try:
            return "ours", (pickle.loads(pickle.dumps(error)), trace)
        except Exception:
            return "ours", (FusionAdvisorError(str(error)), trace)  # its class does not pickle
    return "foreign", (type(error).__name__, str(error), trace)


def _send(frame: Frame) -> bool:
    assert _channel is not None  # set by main before any job
    return write_frame(_channel, frame)


def report_progress(message: Any) -> None:
    """Send a picklable ``message`` to ``on_progress`` of the caller; nothing outside a worker."""
    if _channel is None or _send(Frame("progress", message)):
        return
    handle, path = tempfile.mkstemp(prefix="progress-", dir=_folder)
    with os.fdopen(handle, "wb") as file:
        pickle.dump(message, file, protocol=5)
    _send(Frame("progress-file", path))
