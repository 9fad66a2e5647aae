"""The command-line door: ``fusion-advisor`` and ``python -m fusion_advisor``."""

from __future__ import annotations

from fusion_advisor.cli.commands import build_parser, main

__all__ = ["build_parser", "main"]
