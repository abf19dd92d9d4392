"""The commands on a run's past as they are typed: what they are given, what they say of themselves, what they print."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import EXIT_FINISHED

REBUILD_HELP = """\
settings:
  ttl_seconds=SECONDS      how long the service keeps what is saved; default: as the run says
  base_url=, ...           operational fields of the run command; default: as the run says

Restores the newest live checkpoint of at most N batches, with its optimizer, and takes the train steps since again
from their stored datums; no token is sampled. Sampler and weights are saved under a name of their own and printed, on
the embedded backend as directories under LOG_PATH/rebuilt. Either path can be given as load_checkpoint_path=. Nothing
else of the run is written and it is not locked, so it may be at work."""

REPLAY_HELP = """\
settings:
  key=value ...   fields of the run command that decide what a train step does: learning_rate, loss_fn, ...

Takes the train step of batch N twice from the run's weights of that batch: once as it was, from the stored datums,
and once with the changed settings, from datums that are made anew from the stored rollouts. Prints both side by side:
what each optimizer step gave, and what became of the trained tokens' logprobs. No token is sampled and nothing is
written; a service charges for both. With nothing changed there is no difference, where the backend computes the same
twice."""

FORK_HELP = """\
settings:
  log_path=NEW    the new run's directory; required
  key=value ...   fields of the run command, identity fields too; all others are the parent's

The new run begins at batch N with the weights that the parent has after N batches trained, and with their optimizer;
its learning-rate schedule is the parent's. With nothing changed it comes to what the parent comes to from batch N on,
bit for bit. The parent may be at work, and may be deleted once the fork has its first checkpoint. The same command
resumes the fork, and so does the run command with its settings."""

PLAIN_WIDTH = 160
"""Columns of a table that no terminal shows."""

Command = Callable[[argparse.Namespace], int]


def add_lineage_commands(commands: Any, *, fork: Command) -> None:
    """Adds ``rebuild``, ``replay`` and ``fork`` to ``argparse``'s subcommands; ``fork`` runs a run, which is above."""
    _add(commands, "rebuild", "make the weights after any batch again, sampling nothing", REBUILD_HELP, _rebuild)
    _add(commands, "replay", "repeat one train step with other settings, and compare", REPLAY_HELP, _replay)
    _add(commands, "fork", "start another run with the weights that a run has after any batch", FORK_HELP, fork)


def settings_together(arguments: Sequence[str]) -> list[str]:
    """``arguments`` with ``--batch N`` before the words of such a command: argparse wants those all in one place."""
    words = list(arguments)
    options: list[str] = []
    if words and words[0] in ("rebuild", "replay", "fork"):
        while "--batch" in words:
            at = words.index("--batch")
            options += words[at : at + 2]
            del words[at : at + 2]
        options += [word for word in words if word.startswith("--batch=")]
        words = [word for word in words if not word.startswith("--batch=")]
    return [*words[:1], *options, *words[1:]]


def _add(commands: Any, name: str, summary: str, help_text: str, carry_out: Command) -> None:
    command = commands.add_parser(
        name,
        help=summary,
        description=f"{summary.capitalize()}.",
        epilog=help_text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("log_path", type=Path, metavar="LOG_PATH", help="the run; it may be at work")
    command.add_argument("--batch", type=int, required=True, metavar="N", help="of batches trained")
    command.add_argument("settings", nargs="*", metavar="key=value", help="see below")
    command.set_defaults(command=carry_out)


def _rebuild(options: argparse.Namespace) -> int:
    from orchestrator.lineage.asked import asked_to_rebuild  # start-up time, as below

    past, config = asked_to_rebuild(options.log_path, options.batch, options.settings)
    print("loading PyTorch and the tinker SDK (some seconds)", file=sys.stderr)
    from orchestrator.lineage.rebuild import rebuild
    from orchestrator.lineage.words import speak

    speak()
    for line in rebuild(past, config, options.batch).lines():
        print(line)
    return EXIT_FINISHED


def _replay(options: argparse.Namespace) -> int:
    from orchestrator.lineage.asked import asked_to_replay  # start-up time, as below

    past, config = asked_to_replay(options.log_path, options.batch, options.settings)
    print("loading PyTorch and the tinker SDK (some seconds)", file=sys.stderr)
    from rich.console import Console

    from orchestrator.lineage.replay import replay
    from orchestrator.lineage.tables import replay_lines, replay_tables
    from orchestrator.lineage.words import speak

    speak()
    replayed = replay(past, config, options.batch)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    console.print(*replay_tables(replayed), sep="\n")
    print("\n".join(replay_lines(replayed)))
    return EXIT_FINISHED
