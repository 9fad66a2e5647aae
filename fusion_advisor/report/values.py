"""Foreign text made safe to show: functions of strings."""

from __future__ import annotations

import html
import unicodedata

# A name of a million characters is no name: what is shown is cut here, the JSON keeps it whole.
MAX_SHOWN = 2_000  # characters of a sentence or an expression
MAX_NAME = 120  # characters of a name among others
MAX_CODE = 200_000  # characters of a kernel's text


def op_text(op: str) -> str:
    """The short name of an overload: ``aten.add.Tensor`` → ``add``."""
    parts = op.split(".", 2)
    return name_text(parts[1] if len(parts) > 1 else op)


def name_text(name: str) -> str:
    """A name among others, on one line."""
    return one_line(name, MAX_NAME)


def shortened(text: str, width: int = MAX_SHOWN) -> str:
    """At most ``width`` characters, the last an ellipsis where some are left out."""
    return text if len(text) <= width else text[: width - 1] + "…"


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


def one_line(text: str, width: int = MAX_SHOWN) -> str:
    """Printable text on one line, shortened with an ellipsis to ``width`` characters."""
    # Spaces that fall away make room: look a little further than what is shown.
    return shortened(" ".join(printable(text[: 4 * width]).split()), width)


def escaped(text: object, width: int = MAX_SHOWN) -> str:
    """Text for HTML content or a quoted attribute, of at most ``width`` characters."""
    return html.escape(shortened(printable(str(text)[: width + 1]), width), quote=True)


def excerpt(text: str) -> str:
    """Source text to be shown: printable, without common indentation, shortened."""
    return printable(shortened(dedented(shortened(text))))


def dedented(text: str) -> str:
    """Without the indentation all lines share, and without a trailing newline."""
    lines = text.rstrip("\n").expandtabs(4).split("\n")
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    common = min(indents, default=0)
    return "\n".join(line[common:] for line in lines)
