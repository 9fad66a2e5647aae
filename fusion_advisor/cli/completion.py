"""Tab-completion scripts, made from the argument parser itself; no dependency.

``eval "$(fusion-advisor completion bash)"`` in ``~/.bashrc`` (``zsh`` likewise);
``fusion-advisor completion fish > ~/.config/fish/completions/fusion-advisor.fish``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

_BASH = """\
_fusion_advisor() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words
    case "${{COMP_WORDS[1]}} $before" in
{values}
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"; else
        case "${{COMP_WORDS[1]}}" in
{flags}
        esac
        case "$word" in -*) ;; *) words="$words $(compgen -f -- "$word")" ;; esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o filenames -F _fusion_advisor fusion-advisor"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flag:
    names: tuple[str, ...]
    choices: tuple[str, ...]
    help: str


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for ``bash``, ``zsh`` or ``fish``."""
    commands = _commands(parser)
    if shell == "fish":
        return _fish(commands)
    script = _bash(commands)
    if shell == "zsh":
        return "autoload -U +X bashcompinit && bashcompinit\n" + script
    return script


def _commands(parser: argparse.ArgumentParser) -> dict[str, tuple[str, tuple[_Flag, ...]]]:
    """Command name → its help and options."""
    found: dict[str, tuple[str, tuple[_Flag, ...]]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest: one.help or "" for one in action._choices_actions}
            for name, command in action.choices.items():
                found[name] = (helps.get(name, ""), _flags(command))
    return found


def _flags(parser: argparse.ArgumentParser) -> tuple[_Flag, ...]:
    return tuple(
        _Flag(
            names=tuple(action.option_strings),
            choices=tuple(str(choice) for choice in action.choices or ()),
            help=(action.help or "").replace("'", ""),
        )
        for action in parser._actions
    )


def _bash(commands: dict[str, tuple[str, tuple[_Flag, ...]]]) -> str:
    values, flags = [], []
    for name, (_, options) in commands.items():
        words = [flag for option in options for flag in option.names]
        words += [choice for option in options if not option.names for choice in option.choices]
        flags.append(f'            {name}) words="{" ".join(words)}" ;;')
        for option in options:
            if option.names and option.choices:
                pattern = "|".join(f'"{name} {flag}"' for flag in option.names)
                choices = " ".join(option.choices)
                values.append(
                    f'        {pattern}) COMPREPLY=($(compgen -W "{choices}" -- "$word")); '
                    f"return ;;"
                )
    return _BASH.format(
        values="\n".join(values), flags="\n".join(flags), commands=" ".join(commands)
    )


def _fish(commands: dict[str, tuple[str, tuple[_Flag, ...]]]) -> str:
    lines = []
    for name, (text, options) in commands.items():
        lines.append(
            f"complete -c fusion-advisor -n __fish_use_subcommand -f -a {name} -d '{text}'"
        )
        condition = f"-n '__fish_seen_subcommand_from {name}'"
        for option in options:
            choices = f" -x -a '{' '.join(option.choices)}'" if option.choices else ""
            flags = "".join(
                f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}"
                for flag in option.names
            )
            if flags or choices:
                described = f" -d '{option.help}'" if flags else ""
                lines.append(f"complete -c fusion-advisor {condition}{flags}{choices}{described}")
    return "\n".join(lines)
