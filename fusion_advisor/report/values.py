"""Foreign text made safe to show: functions of strings."""

from __future__ import annotations

import html
import unicodedata


def op_text(op: str) -> str:
    """The short name of an overload: ``aten.add.Tensor`` → ``add``."""
    parts = op.split(".")
    return printable(parts[1] if len(parts) > 1 else op)


def printable(text: str) -> str:
    """Foreign text without anything a terminal or browser would act on.

    Control characters (terminal escapes among them), bidirectional overrides and lone
    surrogates are shown as escapes; newlines and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in "\n\t"
        or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else _escape(character)
        for character in text
    )


def _escape(character: str) -> str:
    code = ord(character)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


def one_line(text: str, width: int = 0) -> str:
    """Printable text on one line, shortened with an ellipsis to ``width`` characters if given."""
    flat = " ".join(printable(text).split())
    return flat if not width or len(flat) <= width else flat[: width - 1] + "…"


def escaped(text: object) -> str:
    """Text for HTML content or a quoted attribute."""
    return html.escape(printable(str(text)), quote=True)


def dedented(text: str) -> str:
    """Without the indentation all lines share, and without a trailing newline."""
    lines = text.rstrip("\n").expandtabs(4).split("\n")
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    common = min(indents, default=0)
    return "\n".join(line[common:] for line in lines)
