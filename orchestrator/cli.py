"""The commands and their exit codes; what is slow to import is imported by the command that needs it."""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator import __version__
from orchestrator.command import carry_out
from orchestrator.doctor.findings import DOCTOR_HELP, exit_code
from orchestrator.errors import EXIT_FAILED, EXIT_FINISHED, EXIT_REFUSED, EXIT_USAGE, ConfigError
from orchestrator.lineage.commands import add_lineage_commands, settings_together
from orchestrator.process import importing

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
    run.set_defaults(command=_run)

    init = commands.add_parser(
        "init",
        help="write a small project that trains as it stands: agent, tasks, configuration, test",
        description="Writes agent.py, tasks.jsonl, val.jsonl, run.toml, test_agent.py and README.md into a new or "
        "empty folder. It trains on the embedded backend as it stands, and its pieces are there to be replaced.",
    )
    init.add_argument("folder", type=Path, metavar="FOLDER")
    init.set_defaults(command=_init)

    recipes = commands.add_parser(
        "recipes",
        help="the runs that come with the program, and what each shows",
        description="Lists the named configurations of orchestrator/recipes; each file there is meant to be read.",
    )
    recipes.add_argument("--json", action="store_true", help="one JSON object a line")
    recipes.set_defaults(command=_recipes)

    status = commands.add_parser("status", help="where a run is, why, and what a resume would do and cost")
    status.add_argument("log_path", type=Path)
    status.add_argument("--json", action="store_true", help="one JSON object")
    status.set_defaults(command=_status)

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
    journal.set_defaults(command=_journal)

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
    chaos.set_defaults(command=_chaos)
    verify = commands.add_parser(
        "verify",
        help="journal, side files, views, checkpoints: PASS or the first counter-example",
        description="Reads all that a resume relies on, writes nothing, and may be used on a run at work. Prints what "
        "was checked and PASS, or the first thing that no kill can have left there (exit 3).",
    )
    verify.add_argument("log_path", type=Path)
    verify.add_argument("--json", action="store_true", help="one JSON object")
    verify.set_defaults(command=_verify)

    doctor = commands.add_parser(
        "doctor",
        help="what a run relies on: libraries, key, backend, model, disk, ports, and a restored optimizer",
        epilog=DOCTOR_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("words", nargs="*", metavar="LOG_PATH | key=value", help="a run directory, and fields of a run")
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.set_defaults(command=_doctor)
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
    report.set_defaults(command=_report)

    runner = commands.add_parser(
        "runner",
        help="play rollouts for a run with placement=external, from this or any other machine",
        description="Starts worker processes that play an agent's rollouts for the store of a run. They may join "
        "before the run starts, leave at any time, and live through its death and resume.",
        epilog=RUNNER_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runner.add_argument("settings", nargs="*", metavar="key=value", help="settings below")
    runner.set_defaults(command=_runner)

    add_lineage_commands(commands, fork=_fork)
    completion = commands.add_parser(
        "completion",
        help="a shell's completion of commands, fields, recipes and choices",
        description=COMPLETION_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(command=_completion, commands=commands)

    graph = commands.add_parser("graph", help="the machine as a Mermaid diagram")
    graph.set_defaults(command=_graph)
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


def _run(options: argparse.Namespace) -> int:
    # The libraries of the run take seconds to import, which no other command should wait for.
    from orchestrator.preflight import check_before_start, tell_finished
    from orchestrator.settings import load_config

    config = load_config(options.settings)
    if not check_before_start(config):
        tell_finished(Path(config.log_path))
        return EXIT_FINISHED
    print("loading PyTorch, Agent-lightning and LiteLLM (some seconds)", file=sys.stderr)
    with importing():
        from orchestrator.run import run_to_end

    return run_to_end(config)


def _fork(options: argparse.Namespace) -> int:
    # As _run: everything that can be refused is refused before the imports.
    from orchestrator.lineage.fork import plan_fork
    from orchestrator.preflight import check_before_start

    fork = plan_fork(options.log_path, options.batch, options.settings)
    check_before_start(fork.config)
    print("loading PyTorch, Agent-lightning and LiteLLM (some seconds)", file=sys.stderr)
    with importing():
        from orchestrator.run import run_to_end

    return run_to_end(fork.config, fork=fork)


def _init(options: argparse.Namespace) -> int:
    from orchestrator.newproject import make_project  # not needed by the other commands' start

    print("\n".join(make_project(options.folder)))
    return EXIT_FINISHED


def _recipes(options: argparse.Namespace) -> int:
    from orchestrator.listing import recipe_lines, recipe_objects  # start-up time

    print("\n".join(map(json.dumps, recipe_objects()) if options.json else recipe_lines()))
    return EXIT_FINISHED


def _status(options: argparse.Namespace) -> int:
    from orchestrator.reporting.status import read_status  # start-up time

    status = read_status(options.log_path)
    print(json.dumps(status.to_json()) if options.json else "\n".join(status.lines()))
    return EXIT_FINISHED


def _verify(options: argparse.Namespace) -> int:
    from orchestrator.verify import verify  # start-up time: it reads tensors and datums

    verdict = verify(options.log_path)
    print(json.dumps(verdict.to_json()) if options.json else "\n".join(verdict.lines()))
    return EXIT_FINISHED if verdict.passed else EXIT_REFUSED


def _repair(log_path: Path) -> int:
    from orchestrator.repair import repair  # start-up time

    if not repair(log_path, tell=print):
        print("nothing to do: there is nothing that can be repaired, and no fault")
    return EXIT_FINISHED


def _journal(options: argparse.Namespace) -> int:
    if options.repair:
        if options.follow or options.json or options.batch is not None:
            raise ConfigError("--repair tells what it does; leave --follow, --json and --batch out")
        return _repair(options.log_path)
    from orchestrator.journal.log import require_journal  # start-up time
    from orchestrator.journal.records import encode
    from orchestrator.reporting.story import follow_records, story_line

    records = require_journal(options.log_path).records
    for record in follow_records(options.log_path) if options.follow else records:
        if options.batch is None or record.fields.get("batch") == options.batch:
            print(encode(record).decode().rstrip() if options.json else story_line(record), flush=options.follow)
    return EXIT_FINISHED


def _chaos(options: argparse.Namespace) -> int:
    # Start-up time: rich and what reads runs; the libraries of the runs are imported by the children's server.
    from rich.console import Console

    from orchestrator.chaos.campaign import run_campaign
    from orchestrator.chaos.table import verdict_lines, verdict_table
    from orchestrator.chaos.wanted import read_wanted

    words = Console(stderr=True, highlight=False, soft_wrap=True)
    verdict = run_campaign(read_wanted(options.settings), words.print)
    Console(highlight=False).print(verdict_table(verdict))
    print("\n".join(verdict_lines(verdict)), flush=True)
    if verdict.failed is not None:
        return EXIT_FAILED
    shutil.rmtree(verdict.folder)
    return EXIT_FINISHED


def _doctor(options: argparse.Namespace) -> int:
    # Start-up time: the backends' libraries take seconds to import, which wrong usage need not wait for.
    from orchestrator.doctor.wanted import read_wanted

    config, run = read_wanted(options.words)
    print("loading PyTorch, Agent-lightning and LiteLLM (some seconds)", file=sys.stderr)
    with importing():
        from orchestrator.doctor.examination import examine

    findings = examine(config, run, lambda finding: None if options.json else print(finding.line(), flush=True))
    if options.json:
        print(json.dumps({"findings": [finding.to_json() for finding in findings]}))
    return exit_code(findings)


def _report(options: argparse.Namespace) -> int:
    from orchestrator.report.command import follow_run, write_report  # start-up time

    if options.follow:
        if options.output is not None:
            raise ConfigError("--follow serves the report and writes no file; leave --output out, or --follow")
        follow_run(
            options.log_path,
            port=options.port or 0,
            with_prompts=options.with_prompts,
            tell=lambda address: print(address, flush=True),
        )
    elif options.port is not None:
        raise ConfigError("--port is for --follow; give both or neither")
    else:
        print(write_report(options.log_path, output=options.output, with_prompts=options.with_prompts))
    return EXIT_FINISHED


def _runner(options: argparse.Namespace) -> int:
    # Start-up time: Agent-lightning takes seconds to import, which a wrong setting need not wait for.
    from orchestrator.rollouts.runners.settings import read_settings

    settings = read_settings(options.settings)
    print("loading Agent-lightning (some seconds)", file=sys.stderr)
    with importing():
        from orchestrator.rollouts.runners.standalone import run_workers

    return run_workers(settings)


def _completion(options: argparse.Namespace) -> int:
    from orchestrator.completion import completion_script, words_of  # not needed by the other commands' start

    print(completion_script(options.shell, words_of(options.commands)), end="")
    return EXIT_FINISHED


def _graph(_options: argparse.Namespace) -> int:
    from orchestrator.reporting.diagram import mermaid  # start-up time

    print(mermaid())
    return EXIT_FINISHED
