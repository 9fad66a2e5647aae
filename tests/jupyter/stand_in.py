"""A stand-in for the advice object: a ready report, and a memory of what it was asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report_fixture import rich_report


class FakeAdvice:
    """Remembers what it was asked."""

    def __init__(self, result: Any, options: dict[str, Any]) -> None:
        self.result = result
        self.options = options
        self.report = rich_report()
        self.calls: list[tuple[Any, ...]] = []

    def observe(self, observer: Any) -> Any:
        return lambda: None

    def fuse(self, finding: str, target: str | None = None, *, match: str | None = None) -> None:
        self.calls.append(("fuse", finding, target, *([match] if match else [])))

    def validate(self, finding: str) -> None:
        self.options["progress"]("validating", 0.5)
        self.calls.append(("validate", finding))

    def apply(
        self, finding: Any = None, *, where: str | None = None, match: str | None = None
    ) -> list[Any]:
        self.calls.append(("apply", finding, where, *([match] if match else [])))
        return list(self.report.applied)

    def undo(self, finding: str | None = None) -> list[str]:
        self.calls.append(("undo", finding))
        return ["MLP.forward"]

    def export(self, path: Any) -> Path:
        from fusion_advisor.report import export_report

        return export_report(self.report, path)
