"""A real kernel with a panel in it, driven by the messages that a front end sends."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SETUP = f"""
import sys
sys.path[:0] = [{str(HERE.parents[1])!r}, {str(HERE)!r}, {str(HERE.parent / "unit")!r}]
%load_ext fusion_advisor
import torch
from panel_support import Model
torch.manual_seed(0)
model, x = Model(), torch.randn(512, 32)
"""


class FrontEnd:
    """Keeps the widget models that a kernel opens, as a front end's widget manager does."""

    def __init__(self, *setup: str) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3")
        self.models: dict[str, dict[str, Any]] = {}
        self.values: dict[str, list[Any]] = {}  # what each model's ``value`` was, in order
        self.outputs: list[dict[str, Any]] = []
        self.logged: list[str] = []
        for code in (SETUP, *setup):
            self.run(code)

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def start(self, code: str, cell_id: str = "") -> str:
        """Begin to execute a cell; the id of the request."""
        self.outputs = []
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {},
                   "allow_stdin": False, "stop_on_error": True}  # fmt: skip
        metadata = {"cellId": cell_id} if cell_id else {}
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def run(self, code: str, cell_id: str = "") -> list[dict[str, Any]]:
        """Execute a cell; its outputs."""
        return self.finish(self.start(code, cell_id))

    def finish(self, sent: str) -> list[dict[str, Any]]:
        """Until a cell has ended; its outputs."""

        def idle(message: dict[str, Any]) -> bool:
            return (
                message["msg_type"] == "status"
                and message["content"]["execution_state"] == "idle"
                and message["parent_header"].get("msg_id") == sent
            )

        self.until(idle)
        errors = [one for one in self.outputs if one["output_type"] == "error"]
        assert not errors, "\n".join(errors[0]["traceback"])
        return self.outputs

    def until(self, there: Callable[[dict[str, Any]], Any], timeout_s: float = 120.0) -> None:
        """Take in what the kernel says until ``there(message)``."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=0.2)
            except queue.Empty:
                continue
            self._take(message)
            if there(message):
                return
        raise AssertionError(f"not within {timeout_s} s; said: {self.said()}")

    def until_said(self, text: str, timeout_s: float = 120.0) -> None:
        """Until some HTML widget holds ``text``."""
        if not any(text in html for html in self.said()):
            self.until(lambda _: any(text in html for html in self.said()), timeout_s)

    def said(self) -> list[str]:
        """What the HTML widgets hold now."""
        return [
            str(state.get("value"))
            for state in self.models.values()
            if state.get("_view_name") == "HTMLView" and "<style>" not in str(state.get("value"))
        ]

    def model(self, **wanted: Any) -> str:
        """The id of the only model with these values."""
        found = [
            name
            for name, state in self.models.items()
            if all(state.get(key) == value for key, value in wanted.items())
        ]
        assert len(found) == 1, (wanted, len(found))
        return found[0]

    def click(self, model: str) -> None:
        """Press a button."""
        self._comm(model, {"method": "custom", "content": {"event": "click"}})

    def set(self, model: str, **values: Any) -> None:
        """Change values, as typing and choosing do."""
        self._comm(model, {"method": "update", "state": values, "buffer_paths": []})

    def _comm(self, model: str, data: dict[str, Any]) -> None:
        message = self.client.session.msg("comm_msg", {"comm_id": model, "data": data})
        self.client.shell_channel.send(message)

    def _take(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "comm_open":
            self.models[content["comm_id"]] = dict(content["data"].get("state", {}))
        elif kind == "comm_close":
            self.models.pop(content["comm_id"], None)
        elif kind == "comm_msg" and content["data"].get("method") == "update":
            state = content["data"]["state"]
            self.models.get(content["comm_id"], {}).update(state)
            if "value" in state:
                self.values.setdefault(content["comm_id"], []).append(state["value"])
        elif kind == "stream":
            self.logged.append(content["text"])
            self.outputs.append({"output_type": kind, **content})
        elif kind in ("display_data", "execute_result", "error"):
            self.outputs.append({"output_type": kind, **content})
