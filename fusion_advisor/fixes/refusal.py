"""How planning says no: an exception inside the planner, a ``Blocker`` outside."""

from __future__ import annotations

from fusion_advisor.errors import FixError
from fusion_advisor.records import Blocker


class Refusal(FixError):  # noqa: N818  # a verdict, not a failure
    """A chain cannot be put in place; carries the blocker that says why."""

    def __init__(self, code: str, message: str, nodes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.blocker = Blocker(code=code, nodes=nodes, message=message)
