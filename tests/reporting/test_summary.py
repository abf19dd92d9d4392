"""Laws of the summary: it says what was reached, and never calls nothing zero."""

import io
from dataclasses import replace

from rich.console import Console

from orchestrator.reporting.summary import RunSummary, summary_panel
from orchestrator.reporting.work import Amount, Work, WorkDone

SUMMARY = RunSummary(
    log_path="runs/first",
    finished=True,
    batches_done=40,
    num_batches=40,
    wall_seconds=125.0,
    processes=3,
    rewards=[0.0, None, 0.1, 0.2, 0.5, 0.8, 0.9, 1.0],
    evaluations=[0.25, None, 0.75],
    passes={1: [0.25, 0.75], 4: [0.5, 1.0]},
    sampled_tokens=123_456,
    trained_tokens=100_000,
    optim_steps=320,
    outcomes={"succeeded": 2200, "failed": 40, "timed_out": 0},
    checkpoints=["local://a/000020", "local://a/final"],
    work=WorkDone(
        Work(sampled_tokens=Amount(123_768, 123_456, 312), optim_steps=Amount(324, 320, 4)),
        batches={},
        whole=True,
        unreadable_lines=0,
    ),
)


def shown(summary: RunSummary) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(summary_panel(summary))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_summary_says_what_was_reached_and_where_to_read_more() -> None:
    text = shown(SUMMARY)
    for part in (
        "run finished",
        "40 of 40, 320 optimizer steps",
        "2 min 05 s, 2 restarts survived",
        "0.100 (first 3 batches) -> 0.900 (last 3)  +0.800",
        "0.250 (first) -> 0.750 (final)  +0.500",
        "pass@1       0.250 (first) -> 0.750 (final)  +0.500",
        "pass@4       0.500 (first) -> 1.000 (final)  +0.500",
        "123,456 sampled, 100,000 trained on",
        "312 of 123,768 sampled tokens (0.3 %), 4 of 324 optimizer steps",
        "2,200 succeeded, 40 failed ",
        "2, the newest local://a/final",
        "python -m orchestrator status runs/first",
        "jq . runs/first/journal.jsonl",
    ):
        assert part in text


def test_a_stopped_run_says_how_to_resume_and_invents_no_numbers() -> None:
    text = shown(
        replace(
            SUMMARY, finished=False, processes=1, rewards=[None], evaluations=[], passes={}, checkpoints=[], outcomes={}
        )
    )
    assert "the same command resumes it" in text
    for absent in ("survived", "reward", "evaluation", "->"):
        assert absent not in text
