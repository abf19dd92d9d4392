"""The command line: which commands there are, their arguments and help, and one exit code for each end."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator import __version__
from orchestrator.command import carry_out
from orchestrator.commands import (
    do_chaos,
    do_completion,
    do_doctor,
    do_fork,
    do_graph,
    do_init,
    do_journal,
    do_recipes,
    do_report,
    do_run,
    do_runner,
    do_status,
    do_verify,
)
from orchestrator.doctor.findings import DOCTOR_HELP
from orchestrator.errors import EXIT_USAGE
from orchestrator.lineage.commands import add_lineage_commands, settings_together

EXIT_CODES = "exit codes: 0 finished; 1 failed, resumable; 2 usage or configuration error, nothing started; 3 refused \
(drift, damage, lock); 130 or 143 interrupted, resumable"

CHAOS_HELP = """\
settings:
  kills=20           random kills, at least; eight a run
  seed=0             of the runs and of the kills: the same seed, the same kills
  every_point=false  also kill one run at each point (append, request, step of a file's write) that a run passes
  jobs=1             runs at a time
  only=NAME          only the round of that name, e.g. round-3 or point-17
  log_path=          a new directory for the runs; default: a temporary one, kept when a run comes out differently
  recipe=hello ...   settings of the run command; max_batches=3 eval_every=2 save_every=2 rolling_save_every=1 unless
                     given here

exit codes: 0 nothing differed; 1 a run came out differently, its seed, round and kills are printed; 2 usage, or a run
that trains nothing"""


RUNNER_HELP = """\
settings:
  store_address=http://HOST:PORT   where the run serves its store (its store_host and store_port); required
  agent=module:attribute           the agent of the run, importable from the current directory; required
  adapter=capture                  tracer: for a run with adapter=tracer, whose turns are read in what workers trace
  num_workers=1                    processes, one rollout at a time each
  key_file=PATH                    store.key of the run directory, where this machine sees it

environment:
  ORCHESTRATOR_STORE_KEY           the run's key, where no key_file is given

The agent's code runs here, with this user's rights. Standard error gets one JSON object a line. The first SIGTERM or
SIGINT lets each worker end its rollout, the second does not wait for it.

exit codes: 2 usage, a wrong key or another agent than the run's; 130 or 143 ended by a signal"""


COMPLETION_HELP = """\
Prints the completion of the orchestrator command, which is `python -m orchestrator` under a shorter name.

  bash, in ~/.bashrc:                 eval "$(orchestrator completion bash)"
  zsh, in ~/.zshrc after compinit:    eval "$(orchestrator completion zsh)"
  fish, once:                         orchestrator completion fish > ~/.config/fish/completions/orchestrator.fish"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carries out one command and returns its exit code; every error is one message on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):  # how Python reads bytes that are no text
            print(f"orchestrator: argument {argument!a}: its bytes are no UTF-8; expected text", file=sys.stderr)
            return EXIT_USAGE
    parser = _parser(arguments)
    options, unknown = parser.parse_known_args(settings_together(arguments))
    if unknown:
        return _unknown(parser, options, unknown[0])
    command: Callable[[argparse.Namespace], int] = options.command
    return carry_out(lambda: command(options))


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator",
        description="Crash-safe reinforcement-learning post-training of LLM agents.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="start a run, or resume what log_path holds",
        description="Starts a run, or resumes the one that log_path holds. Without TINKER_API_KEY it trains on the "
        "embedded backend.",
        epilog=_fields_help() if {"-h", "--help"} & set(arguments) else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("settings", nargs="*", metavar="key=value", help="recipe=NAME, config=FILE.toml, or a field below")
    run.set_defaults(command=do_run)

    init = commands.add_parser(
        "init",
        help="write a small project that trains as it stands: agent, tasks, configuration, test",
        description="Writes agent.py, tasks.jsonl, val.jsonl, run.toml, test_agent.py and README.md into a new or "
        "empty folder. It trains on the embedded backend as it stands, and its pieces are there to be replaced.",
    )
    init.add_argument("folder", type=Path, metavar="FOLDER")
    init.set_defaults(command=do_init)

    recipes = commands.add_parser(
        "recipes",
        help="the runs that come with the program, and what each shows",
        description="Lists the named configurations of orchestrator/recipes; each file there is meant to be read.",
    )
    recipes.add_argument("--json", action="store_true", help="one JSON object a line")
    recipes.set_defaults(command=do_recipes)

    status = commands.add_parser("status", help="where a run is, why, and what a resume would do and cost")
    status.add_argument("log_path", type=Path)
    status.add_argument("--json", action="store_true", help="one JSON object")
    status.set_defaults(command=do_status)

    journal = commands.add_parser("journal", help="the story of a run, from its journal")
    journal.add_argument("log_path", type=Path)
    journal.add_argument("--follow", action="store_true", help="go on printing until the run is finished")
    journal.add_argument("--json", action="store_true", help="the records as they are stored")
    journal.add_argument("--batch", type=int, metavar="N", help="only records of batch N")
    journal.add_argument(
        "--repair",
        action="store_true",
        help="cut off a torn last record and make stale views anew, telling each action first and keeping the original",
    )
    journal.set_defaults(command=do_journal)

    chaos = commands.add_parser(
        "chaos",
        help="kill runs on purpose, resume them, and compare with one that was not",
        description="Kills runs with SIGKILL at points and moments drawn from the seed, takes each up again with the "
        "same command, and compares weights, optimizer, rollouts, datums, metrics and journal results with those of "
        "an undisturbed run, bit for bit. On the embedded backend.",
        epilog=CHAOS_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    chaos.add_argument("settings", nargs="*", metavar="key=value", help="settings below, or of the run command")
    chaos.set_defaults(command=do_chaos)
    verify = commands.add_parser(
        "verify",
        help="journal, side files, views, checkpoints: PASS or the first counter-example",
        description="Reads all that a resume relies on, writes nothing, and may be used on a run at work. Prints what "
        "was checked and PASS, or the first thing that no kill can have left there (exit 3).",
    )
    verify.add_argument("log_path", type=Path)
    verify.add_argument("--json", action="store_true", help="one JSON object")
    verify.set_defaults(command=do_verify)

    doctor = commands.add_parser(
        "doctor",
        help="what a run relies on: libraries, key, backend, model, disk, ports, and a restored optimizer",
        epilog=DOCTOR_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("words", nargs="*", metavar="LOG_PATH | key=value", help="a run directory, and fields of a run")
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.set_defaults(command=do_doctor)
    report = commands.add_parser(
        "report",
        help="one HTML file that tells the run in pictures, or a live page of it",
        description="Writes one self-contained HTML file: curves, timeline, outcomes, checkpoints, what kills cost, a "
        "sample of rollouts, configuration and verdict. It asks nothing of any network. The run may be at work.",
    )
    report.add_argument("log_path", type=Path)
    report.add_argument(
        "--with-prompts", action="store_true", help="show prompts and replies, and not only their numbers"
    )
    report.add_argument("--output", type=Path, metavar="FILE", help="default: LOG_PATH/report.html")
    report.add_argument("--follow", action="store_true", help="serve it on 127.0.0.1, following the run, until Ctrl-C")
    report.add_argument("--port", type=int, metavar="N", help="with --follow; default: any free one")
    report.set_defaults(command=do_report)

    runner = commands.add_parser(
        "runner",
        help="play rollouts for a run with placement=external, from this or any other machine",
        description="Starts worker processes that play an agent's rollouts for the store of a run. They may join "
        "before the run starts, leave at any time, and live through its death and resume.",
        epilog=RUNNER_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runner.add_argument("settings", nargs="*", metavar="key=value", help="settings below")
    runner.set_defaults(command=do_runner)

    add_lineage_commands(commands, fork=do_fork)
    completion = commands.add_parser(
        "completion",
        help="a shell's completion of commands, fields, recipes and choices",
        description=COMPLETION_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(command=do_completion, commands=commands)

    graph = commands.add_parser("graph", help="the machine as a Mermaid diagram")
    graph.set_defaults(command=do_graph)
    return parser


def _unknown(parser: argparse.ArgumentParser, options: argparse.Namespace, argument: str) -> int:
    """Tells that ``argument`` is none; settings written with dashes are told as they should be written."""
    if not hasattr(options, "settings"):
        parser.error(f"unrecognized argument {argument}; `python -m orchestrator COMMAND --help` tells what there is")
    name, _, value = argument.lstrip("-").partition("=")
    wanted = f"write {name.replace('-', '_')}={value or 'VALUE'}"
    print(f"orchestrator: argument {argument}: settings have no dashes before them; {wanted}", file=sys.stderr)
    return EXIT_USAGE


def _fields_help() -> str:
    """Every field of the configuration with its default and meaning."""
    from orchestrator.config import field_docs  # not needed by the other commands' start

    return "\n".join(["fields (nested ones with dots):", *(f"  {line}" for line in field_docs()), "", EXIT_CODES])
