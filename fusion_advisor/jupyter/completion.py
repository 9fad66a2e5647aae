"""Tab completion of the magics: options, their values, finding ids, file names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.error import TryNext

from fusion_advisor.devices import device_table
from fusion_advisor.jupyter.options import APPLY_OPTIONS, PROFILE_OPTIONS, SHOW_OPTIONS, Option

if TYPE_CHECKING:
    from fusion_advisor.jupyter.magics import FuseMagics

_OPTIONS: dict[str, tuple[Option, ...]] = {
    "%fuse_profile": PROFILE_OPTIONS,
    "%%fuse_profile": PROFILE_OPTIONS,
    "%fuse_show": SHOW_OPTIONS,
    "%fuse_apply": APPLY_OPTIONS,
    "%fuse_undo": (),
}
_TAKES_IDS = ("%fuse_show", "%fuse_apply", "%fuse_undo")


def install(shell: Any, magics: FuseMagics) -> None:
    """Add a completer for each magic."""
    for command in _OPTIONS:
        shell.set_hook(
            "complete_command",
            lambda _shell, event, command=command: complete(command, event, magics),
            str_key=command,
        )


def uninstall(shell: Any) -> None:
    """Take the completers out again."""
    strings = shell.strdispatchers["complete_command"].strs
    for command in _OPTIONS:
        strings.pop(command, None)


def complete(command: str, event: Any, magics: FuseMagics) -> list[str]:
    """What may come at the cursor; ``TryNext`` leaves it to Python's own completion."""
    options = _OPTIONS[command]
    before = event.text_until_cursor.split()[1:]
    if event.symbol and before:
        before = before[:-1]  # the word being typed
    previous = before[-1] if before else ""
    expected = next((option for option in options if previous in option.flags), None)
    if expected is not None and expected.kind != "flag":
        words = _values(expected)
    elif event.symbol.startswith("-") or (command in _TAKES_IDS and not event.symbol):
        words = [flag for option in options for flag in option.flags if flag not in before]
        words += magics.finding_ids() if command in _TAKES_IDS else []
    elif command in _TAKES_IDS:
        words = magics.finding_ids()
    else:
        return _python(event.symbol, magics)
    found = [word for word in words if word.lower().startswith(event.symbol.lower())]
    if not found:
        raise TryNext
    return found


def _python(symbol: str, magics: FuseMagics) -> list[str]:
    """Names of the expression, which IPython does not complete behind a magic's name."""
    completer = magics.host.Completer
    found = (completer.attr_matches if "." in symbol else completer.global_matches)(symbol)
    if not symbol or not found:
        raise TryNext
    return list(found)


def _values(option: Option) -> list[str]:
    if option.name == "device":
        return [entry.device for entry in device_table()]
    return list(option.choices)
