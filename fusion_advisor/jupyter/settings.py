"""Which of several people's words counts: option of the magic, %config, front end, default."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from traitlets import HasTraits, TraitError
from traitlets.config import Config
from traitlets.config.loader import DeferredConfig

if TYPE_CHECKING:
    from fusion_advisor.jupyter.magics import FuseMagics

# What a front end may set.  Kernels are generated to match eager, so "match" is not among them.
SETTINGS = ("target", "device", "top", "min_saving_us", "marks")


def possible_config(shell: Any, magics_class: type[FuseMagics]) -> Config | None:
    """The shell's configuration without values that the magics' traits refuse, which are said.

    A mistyped ``%config`` stays in the shell's own; it must not stop the next ``%reload_ext``.
    """
    config: Config | None = deepcopy(getattr(shell, "config", None))
    if config is None:
        return None
    section = config.get(magics_class.__name__, {})
    traits: Mapping[str, Any] = magics_class.class_traits(config=True)
    for name in [name for name in section if name in traits]:
        value = section[name]
        try:
            if isinstance(value, DeferredConfig):
                value = value.get_value(traits[name])
            traits[name]._validate(HasTraits(), value)
        except (TraitError, ValueError) as error:
            print(f"{magics_class.__name__}.{name} = {value!r} is left out: {error}")
            del section[name]
    return config


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
