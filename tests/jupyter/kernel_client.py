"""A real kernel and front ends that speak to it by comm, as a notebook does."""

from __future__ import annotations

import hashlib
import queue
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

from fusion_advisor import __version__

REPOSITORY = str(Path(__file__).parents[2])
Data = dict[str, Any]


def digest(text: str) -> str:
    """Hex SHA-256 of a text, as both sides of the protocol name texts."""
    return hashlib.sha256(text.encode()).hexdigest()


def utf16_slice(text: str, start: int, end: int) -> str:
    """What a browser's ``text.slice(start, end)`` gives."""
    units = text.encode("utf-16-le")
    return units[2 * start : 2 * end].decode("utf-16-le")


def with_edits(text: str, edits: list[Data]) -> str:
    """The text with edits in UTF-16 units made, as an editor makes them."""
    units = text.encode("utf-16-le")
    for edit in sorted(edits, key=lambda one: -one["start"]):
        new = edit["new"].encode("utf-16-le")
        units = units[: 2 * edit["start"]] + new + units[2 * edit["end"] :]
    return units.decode("utf-16-le")


class Kernel:
    """One kernel; everything it publishes is kept in order."""

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(kernel_name="python3")
        self.published: list[Data] = []
        self.replies: dict[str, Data] = {}
        self.run(f"import sys; sys.path.insert(0, {REPOSITORY!r})")

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    # -- cells ---------------------------------------------------------------------------------

    def start(self, code: str, cell_id: str | None = None, *, silent: bool = False) -> str:
        """Send a cell; returns the message id."""
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        message = self.client.session.msg("execute_request", content)
        message["metadata"] = {} if cell_id is None else {"cellId": cell_id}
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def finish(self, message_id: str, *, timeout_s: float = 120.0) -> Data:
        """Wait for a cell's reply."""
        deadline = time.monotonic() + timeout_s
        while message_id not in self.replies:
            self._pump(deadline, f"no reply to {message_id}")
        return self.replies[message_id]

    def run(
        self, code: str, cell_id: str | None = None, *, timeout_s: float = 120.0, ok: bool = True
    ) -> Data:
        """Run a cell to its end."""
        reply = self.finish(self.start(code, cell_id), timeout_s=timeout_s)
        if ok:
            assert reply["content"]["status"] == "ok", "\n".join(reply["content"]["traceback"])
        return reply

    def value(self, expression: str) -> Any:
        """A Python literal from the kernel."""
        name = f"value_{uuid.uuid4().hex}"
        before = len(self.published)
        self.run(f"print({name!r}, repr({expression}))")
        deadline = time.monotonic() + 30
        while True:
            text = "".join(
                message["content"]["text"]
                for message in self.published[before:]
                if message["msg_type"] == "stream" and message["content"]["name"] == "stdout"
            )
            if f"{name} " in text and text.endswith("\n"):
                import ast

                return ast.literal_eval(text.partition(f"{name} ")[2].strip())
            self._pump(deadline, f"no value of {expression}")

    def stream(self, name: str = "stdout") -> str:
        """Everything printed so far."""
        return "".join(
            message["content"]["text"]
            for message in self.published
            if message["msg_type"] == "stream" and message["content"]["name"] == name
        )

    def wait_for(self, text: str, *, timeout_s: float = 60.0) -> None:
        """Until this was printed."""
        deadline = time.monotonic() + timeout_s
        while text not in self.stream():
            self._pump(deadline, f"{text!r} was not printed")

    # -- comms ---------------------------------------------------------------------------------

    def subshell(self) -> str | None:
        """A new subshell's id, or None where the kernel has none."""
        message = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(message)
        while True:
            reply = self.client.control_channel.get_msg(timeout=20)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                found = reply["content"].get("subshell_id")
                return None if found is None else str(found)

    def send(self, kind: str, content: Data, subshell: str | None = None) -> None:
        message = self.client.session.msg(kind, content)
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)

    def pump(self, seconds: float) -> None:
        """Listen for a while."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                self._pump(deadline, "")
            except TimeoutError:
                return

    def _pump(self, deadline: float, otherwise: str) -> None:
        """Take in one message or a moment's silence; ``TimeoutError`` after the deadline."""
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise}; last: {self.published[-3:]}")
        while True:
            try:
                reply = self.client.shell_channel.get_msg(timeout=0)
            except queue.Empty:
                break
            self.replies[reply["parent_header"].get("msg_id", "")] = reply
        try:
            self.published.append(self.client.iopub_channel.get_msg(timeout=0.05))
        except queue.Empty:
            return

    def until(self, found: Callable[[], Any], what: str, *, timeout_s: float = 60.0) -> Any:
        """Listen until ``found()`` is true; returns it."""
        deadline = time.monotonic() + timeout_s
        while not (result := found()):
            self._pump(deadline, what)
        return result


class FrontEnd:
    """One front end's comm."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        protocol: int = 1,
        package: str = __version__,
        client: str = "",
        settings: Data | None = None,
        subshell: str | None = None,
    ) -> None:
        self.kernel = kernel
        self.subshell = subshell
        self.comm_id = uuid.uuid4().hex
        self.client = client or uuid.uuid4().hex
        self._first = len(kernel.published)
        self._count = 0
        data = {
            "type": "hello",
            "protocol": protocol,
            "package": package,
            "client": self.client,
            "settings": settings or {},
        }
        content = {"comm_id": self.comm_id, "target_name": "fusion_advisor", "data": data}
        kernel.send("comm_open", content, subshell)

    @property
    def received(self) -> list[Data]:
        """The data of every message on this comm, in order."""
        return [
            message["content"]["data"]
            for message in self.kernel.published[self._first :]
            if message["msg_type"] == "comm_msg" and message["content"]["comm_id"] == self.comm_id
        ]

    @property
    def closed(self) -> bool:
        return any(
            message["msg_type"] == "comm_close" and message["content"]["comm_id"] == self.comm_id
            for message in self.kernel.published[self._first :]
        )

    def send(self, data: Data) -> None:
        self.kernel.send("comm_msg", {"comm_id": self.comm_id, "data": data}, self.subshell)

    def leave(self) -> None:
        """Close the comm, as a page does whose notebook is closed."""
        content = {"comm_id": self.comm_id, "data": {}}
        self.kernel.send("comm_close", content, self.subshell)

    def ask(self, kind: str, **fields: Any) -> str:
        """Send a request; returns its name."""
        self._count += 1
        name = f"{self.client[:6]}-{self._count}"
        self.send({"type": kind, "req": name, **fields})
        return name

    def about(self, request: str) -> list[Data]:
        """Every answer to a request so far."""
        return [data for data in self.received if data.get("req") == request]

    def answer(self, request: str, *, timeout_s: float = 120.0) -> Data:
        """The end of a request."""
        between = ("started", "progress", "queued")

        def end() -> Data | None:
            return next((one for one in self.about(request) if one["type"] not in between), None)

        found: Data = self.kernel.until(end, f"no answer to {request}", timeout_s=timeout_s)
        return found

    def get(self, kind: str, *, timeout_s: float = 120.0, **fields: Any) -> Data:
        """Ask and wait for the answer."""
        return self.answer(self.ask(kind, **fields), timeout_s=timeout_s)

    def message(self, kind: str, *, timeout_s: float = 60.0) -> Data:
        """The latest message of a kind, once there is one."""
        return self.kernel.until(
            lambda: next((one for one in reversed(self.received) if one["type"] == kind), None),
            f"no {kind}",
            timeout_s=timeout_s,
        )  # type: ignore[no-any-return]

    def profiled(self, code: str, cell_id: str, *, added_lines: int = 0) -> Data:
        """Run a cell that profiles; the best finding of its profile.

        Up to four times: a burst of load from elsewhere may hide what fusing would save.
        """
        for _ in range(4):
            if added_lines:
                self.send({"type": "profiling", "cell_id": cell_id, "added_lines": added_lines})
            self.kernel.run(code, cell_id)
            data = self.get("list")
            number = max(one["advice"] for one in data["profiles"] if one["cell_id"] == cell_id)
            found = [one for one in data["findings"] if one["advice"] == number]
            if found:
                return found[0]
        raise AssertionError(f"nothing worth fusing in {code!r}: {data['profiles'][-1]['nothing']}")

    def findings(self, accept: Callable[[Data], bool], *, timeout_s: float = 60.0) -> Data:
        """The first findings message that is accepted, looking from the latest backwards."""

        def found() -> Data | None:
            for one in reversed(self.received):
                if one["type"] == "findings" and accept(one):
                    return one
            return None

        return self.kernel.until(found, "no such findings", timeout_s=timeout_s)  # type: ignore[no-any-return]


@contextmanager
def running_kernel() -> Iterator[Kernel]:
    """A kernel for the length of a block."""
    kernel = Kernel()
    try:
        yield kernel
    finally:
        kernel.close()
