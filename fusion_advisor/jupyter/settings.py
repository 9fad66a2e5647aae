"""Which of several people's words counts: option of the magic, %config, front end, default."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from traitlets import TraitError

if TYPE_CHECKING:
    from fusion_advisor.jupyter.magics import FuseMagics

# What a front end may set.  Kernels are generated to match eager, so "match" is not among them.
SETTINGS = ("target", "device", "top", "min_saving_us", "marks")


class Settings:
    """The defaults of one shell's magics, as ``%config`` and its front ends have them."""

    def __init__(self, magics: FuseMagics) -> None:
        self._magics = magics
        self._lock = threading.Lock()
        self._from_front_end: dict[str, Any] = {}

    def update(self, values: object) -> list[str]:
        """Take a front end's settings; returns what is wrong with those that were left out."""
        problems: list[str] = []
        if not isinstance(values, Mapping):
            return ["settings must be an object of names and values"]
        checked = {}
        for name in SETTINGS:
            if name not in values or values[name] is None:
                continue
            try:
                checked[name] = self._checked(name, values[name])
            except TraitError as error:
                problems.append(f"{name}: {error}")
        with self._lock:
            self._from_front_end = checked
        return problems

    def value(self, name: str, option: Any = None) -> Any:
        """The option if it was given, else what ``%config`` set, the front end's, the default."""
        if option is not None:
            return option
        if name not in self._configured():
            with self._lock:
                if name in self._from_front_end:
                    return self._from_front_end[name]
        return getattr(self._magics, name)

    def _configured(self) -> Mapping[str, Any]:
        """What a person set for the magics, by ``%config`` or in a configuration file."""
        found: Mapping[str, Any] = self._magics.config.get(type(self._magics).__name__, {})
        return found

    def _checked(self, name: str, value: Any) -> Any:
        """The value as the trait of that name takes it; raises ``TraitError``."""
        if name == "min_saving_us" and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        trait: Any = self._magics.traits()[name]
        return trait._validate(self._magics, value)
