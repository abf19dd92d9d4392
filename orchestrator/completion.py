"""Shell completion: commands, their options, and the settings of ``key=value`` with their choices, as a script.

The script holds the words themselves, so that a key costs a shell's lookup and no start of Python.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.config import field_choices, field_drifts
from orchestrator.settings import recipe_names

TAKES_FIELDS = ("run", "chaos")
WITH_VALUE = "|".join(rf"{name}\ *=*" for name in TAKES_FIELDS)
WITHOUT_VALUE = "|".join(rf"{name}\ *" for name in TAKES_FIELDS)
"""Patterns of a shell for a command and the word that is being typed."""


@dataclass(frozen=True, slots=True)
class Words:
    """What can be completed."""

    helps: Mapping[str, str]
    """What each command does."""
    options: Mapping[str, Sequence[str]]
    """Options, and arguments of few choices, of each command."""

    @property
    def fields(self) -> list[str]:
        """``config=`` and each field, with its ``=``."""
        return [f"{name}=" for name in ("config", *field_drifts())]

    @property
    def values(self) -> list[str]:
        """``field=choice`` where there are few, recipes among them."""
        choices = field_choices() | {"recipe": (*recipe_names(), "none")}
        return [f"{name}={choice}" for name, of in choices.items() for choice in of]


def words_of(commands: Any) -> Words:
    """The words of argparse's ``commands``, as ``add_subparsers`` gave them."""
    helps = {action.dest: action.help or "" for action in commands._choices_actions}  # noqa: SLF001 - no public way
    options: dict[str, list[str]] = {}
    for name, parser in commands.choices.items():
        actions: list[argparse.Action] = parser._actions  # noqa: SLF001 - likewise
        options[name] = [option for action in actions for option in action.option_strings if option.startswith("--")]
        options[name] += [
            str(choice) for action in actions if not action.option_strings for choice in action.choices or ()
        ]
    return Words(helps, options)


def completion_script(shell: str, words: Words) -> str:
    """The script for ``bash``, ``zsh`` or ``fish``."""
    scripts: Mapping[str, Callable[[Words], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return scripts[shell](words)


def _bash(words: Words) -> str:
    options = "\n".join(f"        {name}) words='{' '.join(of)}' ;;" for name, of in words.options.items())
    # Readline takes `=` for the end of a word: what is before it must not be given again.
    return f"""\
_orchestrator() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" words word
    word="${{line##*[[:space:]]}}"
    if [[ $COMP_CWORD -le 1 ]]; then
        words='{" ".join(words.helps)}'
    else
        case "${{COMP_WORDS[1]}}" in
{options}
        esac
        case "${{COMP_WORDS[1]}} $word" in
        {WITH_VALUE}) words='{" ".join(words.values)}' ;;
        {WITHOUT_VALUE}) words+=' {" ".join(words.fields)}' ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace
    [[ $word == *=* && $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${{COMPREPLY[@]#*=}}")
}}
complete -o default -F _orchestrator orchestrator
"""


def _zsh(words: Words) -> str:
    options = "\n".join(f"        {name}) compadd -- {' '.join(of)} ;;" for name, of in words.options.items() if of)
    return f"""\
_orchestrator() {{
    if (( CURRENT == 2 )); then
        compadd -- {" ".join(words.helps)}
        return
    fi
    case "$words[2] $words[CURRENT]" in
        ({WITH_VALUE})
            compadd -- {" ".join(words.values)} || {{ compset -P '*='; _files; }}
            return ;;
        ({WITHOUT_VALUE}) compadd -S '' -- {" ".join(words.fields)} ;;
    esac
    case "$words[2]" in
{options}
    esac
    _files
}}
compdef _orchestrator orchestrator
"""


def _fish(words: Words) -> str:
    seen = "__fish_seen_subcommand_from"
    lines = ["complete -c orchestrator -n __fish_use_subcommand -f"]
    for name, told in words.helps.items():
        lines.append(f"complete -c orchestrator -n __fish_use_subcommand -a {name} -d {_quoted(told)}")
    for name, of in words.options.items():
        if of:
            lines.append(f"complete -c orchestrator -n '{seen} {name}' -a '{' '.join(of)}'")
    settings = " ".join([*words.fields, *words.values])
    lines.append(f"complete -c orchestrator -n '{seen} {' '.join(TAKES_FIELDS)}' -a '{settings}'")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
