"""Pieces of HTML that the panel's tabs share.  All foreign text is cut to length, then escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusion_advisor.report.highlight import highlight
from fusion_advisor.report.values import dedented, escaped, one_line

MAX_NAME = 160  # characters of a name or message in a table; the whole of it is in the report
MAX_TEXT = 2_000  # of a message that stands alone
MAX_SOURCE = 60_000  # of a source text; longer ones are cut at a line

STATE_TAGS = {
    "in place": "good",
    "validated": "good",
    "passed": "good",
    "failed": "bad",
    "failed validation": "bad",
    "taken out": "warn",
    "not applied": "warn",
    "not validated": "warn",
}


def short(text: object, width: int = MAX_NAME) -> str:
    """Foreign text on one line, at most ``width`` characters of it, escaped."""
    return escaped(plain(text, width))


def plain(text: object, width: int = 100) -> str:
    """Foreign text for a label, which shows text as it is: on one line and cut, not escaped."""
    whole = str(text)
    return one_line(whole[: 4 * width], width)


def tag(state: str) -> str:
    """A state as a coloured word."""
    return f'<span class="fadv-tag {STATE_TAGS.get(state, "")}">{short(state)}</span>'


def note(html: str, kind: str = "") -> str:
    """A remark set apart; ``kind`` is ``bad`` or ``good``."""
    return f'<div class="fadv-note {kind}">{html}</div>'


def table(
    label: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[str] = ()
) -> str:
    """A scrolling table that the keyboard reaches; cells are HTML, the first one heads its row.

    ``numbers`` are the heads of columns to align right.
    """
    right = [head in set(numbers) for head in heads]
    styles = [' class="fadv-num"' if one else "" for one in right]
    head = "".join(
        f'<th scope="col"{style}>{escaped(name)}</th>'
        for name, style in zip(heads, styles, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row"{style}>{cell}</th>' if position == 0 else f"<td{style}>{cell}</td>"
            for position, (cell, style) in enumerate(zip(row, styles, strict=True))
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="fadv-scroll" tabindex="0" role="region" aria-label="{escaped(label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def bar_pair(name: str, before: tuple[float, str], after: tuple[float, str]) -> str:
    """Two bars, each a share (0..1) of the widest one and its figure in words; ``name`` is HTML."""
    widths = [max(0.0, min(1.0, share)) * 100 for share, _ in (before, after)]
    return (
        f'<div class="fadv-pair"><span class="name">{name}</span>'
        f'<span class="track"><i style="width:{widths[0]:.1f}%"></i></span>'
        f'<span><span class="fadv-hidden">before </span>{escaped(before[1])}</span>'
        f'<span class="track"><i class="after" style="width:{widths[1]:.1f}%"></i></span>'
        f'<span><span class="fadv-hidden">after </span>{escaped(after[1])}</span></div>'
    )


BAR_KEY = (
    '<p class="fadv-key"><span><i></i>before</span><span><i class="after"></i>after fusion '
    "(estimate)</span></p>"
)


def source(text: str, label: str) -> str:
    """Python source, highlighted, in a box that the keyboard reaches and scrolls."""
    shown, rest = text[:MAX_SOURCE], len(text) - MAX_SOURCE
    if rest > 0:
        shown = shown[: shown.rfind("\n") + 1] or shown[:MAX_NAME] + "\n"
    cut = f"<p>Cut here: {len(text) - len(shown):,} more characters.</p>" if rest > 0 else ""
    return (
        f'<pre tabindex="0" aria-label="{escaped(label)}">{highlight(dedented(shown))}</pre>{cut}'
    )
