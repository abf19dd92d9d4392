"""What each command does with its arguments, and the exit code it comes to; heavy imports only where they are used."""

import argparse
import json
import shutil
import sys
from pathlib import Path

from orchestrator.doctor.findings import exit_code
from orchestrator.errors import EXIT_FAILED, EXIT_FINISHED, EXIT_REFUSED, ConfigError
from orchestrator.process import importing


def do_run(options: argparse.Namespace) -> int:
    """Starts or resumes a run."""
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


def do_fork(options: argparse.Namespace) -> int:
    """Starts or resumes a fork."""
    # As do_run: everything that can be refused is refused before the imports.
    from orchestrator.lineage.fork import plan_fork
    from orchestrator.preflight import check_before_start

    fork = plan_fork(options.log_path, options.batch, options.settings)
    check_before_start(fork.config)
    print("loading PyTorch, Agent-lightning and LiteLLM (some seconds)", file=sys.stderr)
    with importing():
        from orchestrator.run import run_to_end

    return run_to_end(fork.config, fork=fork)


def do_init(options: argparse.Namespace) -> int:
    """Writes a small project."""
    from orchestrator.newproject import make_project  # not needed by the other commands' start

    print("\n".join(make_project(options.folder)))
    return EXIT_FINISHED


def do_recipes(options: argparse.Namespace) -> int:
    """Lists the recipes."""
    from orchestrator.listing import recipe_lines, recipe_objects  # start-up time

    print("\n".join(map(json.dumps, recipe_objects()) if options.json else recipe_lines()))
    return EXIT_FINISHED


def do_status(options: argparse.Namespace) -> int:
    """Tells where a run is."""
    from orchestrator.reporting.status import read_status  # start-up time

    status = read_status(options.log_path)
    print(json.dumps(status.to_json()) if options.json else "\n".join(status.lines()))
    return EXIT_FINISHED


def do_verify(options: argparse.Namespace) -> int:
    """Reads all that a resume relies on."""
    from orchestrator.verify import verify  # start-up time: it reads tensors and datums

    verdict = verify(options.log_path)
    print(json.dumps(verdict.to_json()) if options.json else "\n".join(verdict.lines()))
    return EXIT_FINISHED if verdict.passed else EXIT_REFUSED


def _repair(log_path: Path) -> int:
    from orchestrator.repair import repair  # start-up time

    if not repair(log_path, tell=print):
        print("nothing to do: there is nothing that can be repaired, and no fault")
    return EXIT_FINISHED


def do_journal(options: argparse.Namespace) -> int:
    """Tells the story of a run, or repairs its journal."""
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


def do_chaos(options: argparse.Namespace) -> int:
    """Kills runs and compares them with one that was not."""
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


def do_doctor(options: argparse.Namespace) -> int:
    """Looks at what a run relies on."""
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


def do_report(options: argparse.Namespace) -> int:
    """Writes or serves the report of a run."""
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


def do_runner(options: argparse.Namespace) -> int:
    """Plays rollouts for a run."""
    # Start-up time: Agent-lightning takes seconds to import, which a wrong setting need not wait for.
    from orchestrator.rollouts.runners.settings import read_settings

    settings = read_settings(options.settings)
    print("loading Agent-lightning (some seconds)", file=sys.stderr)
    with importing():
        from orchestrator.rollouts.runners.standalone import run_workers

    return run_workers(settings)


def do_completion(options: argparse.Namespace) -> int:
    """Prints a shell's completion."""
    from orchestrator.completion import completion_script, words_of  # not needed by the other commands' start

    print(completion_script(options.shell, words_of(options.commands)), end="")
    return EXIT_FINISHED


def do_graph(_options: argparse.Namespace) -> int:
    """Prints the machine."""
    from orchestrator.reporting.diagram import mermaid  # start-up time

    print(mermaid())
    return EXIT_FINISHED
