"""Laws of what people see: plain lines where nothing moves, a live display where it can, and no line torn by it."""

import io
import logging
import re
from pathlib import Path

import pytest
import structlog
from rich.console import Console

from orchestrator.reporting.logs import configure_logging
from orchestrator.reporting.progress import Progress, duration


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def plain() -> Console:
    return Console(file=io.StringIO(), width=80)


def terminal() -> Console:
    return Console(file=io.StringIO(), width=160, force_terminal=True, _environ={"TERM": "xterm"})


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def display(progress: Progress) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(progress._display())
    return written(console)


def test_without_a_terminal_there_is_one_line_a_batch_and_nothing_else() -> None:
    console = plain()
    with Progress(console, num_batches=40) as progress:
        for batch in range(2):
            progress.enter("Rollout", batch)
            for done in range(64):
                progress.rollouts(done, 0, 64, done * 10)
            progress.enter("TrainStep", batch)
            metrics = {"rollout/reward_mean": 0.5, "test/reward_mean": 0.25, "optim/lr": 1e-4, "test/env/all/x": 1}
            progress.batch_finished(batch, metrics, 30.0)
    assert written(console).splitlines() == [
        "batch 0  1/40 done  reward 0.500  test/reward_mean 0.250  30.0 s  ETA 19 min 30 s",
        "batch 1  2/40 done  reward 0.500  test/reward_mean 0.250  30.0 s  ETA 19 min 00 s",
    ]


def test_without_a_terminal_a_long_state_says_now_and_then_how_far_it_is(clock: Clock) -> None:
    console = plain()
    progress = Progress(console, num_batches=40, clock=clock)
    progress.enter("Rollout", 3)
    for seconds, done in ((10, 5), (14, 9), (16, 12), (20, 20), (32, 40)):
        clock.seconds = float(seconds)
        progress.rollouts(done, done // 10, 64, done * 100)
        progress.tell_if_quiet()
    progress.enter("TrainStep", 3)
    progress.tell_if_quiet()
    clock.seconds = 32.0 + 15.0
    progress.tell_if_quiet()
    progress.tell_if_quiet()
    assert written(console).splitlines() == [
        "batch 3  Rollout  12/64 rollouts  1 failed  117 tokens/s  16.0 s so far",
        "batch 3  Rollout  40/64 rollouts  4 failed  159 tokens/s  32.0 s so far",
        "batch 3  TrainStep  15.0 s so far",
    ]


def test_a_batch_without_reward_or_step_says_so() -> None:
    console = plain()
    Progress(console, num_batches=1).batch_finished(0, {}, 1.0, skipped="all failed [see log]")
    assert written(console) == "batch 0  1/1 done  no reward  1.0 s  no optimizer step: all failed [see log]\n"


def test_the_estimate_is_the_mean_of_recent_batches_times_what_remains() -> None:
    progress = Progress(plain(), num_batches=30, batches_done=10)
    untimed = progress.eta_seconds
    assert untimed is None
    progress.batch_finished(10, {}, 1000.0)
    assert progress.eta_seconds == 19_000.0
    for batch in range(11, 21):
        progress.batch_finished(batch, {}, 2.0)
    assert progress.eta_seconds == 18.0  # the slow first one is no longer recent


def test_a_batch_is_timed_from_entering_it_unless_its_seconds_are_given(clock: Clock) -> None:
    console = plain()
    progress = Progress(console, num_batches=2, clock=clock)
    clock.seconds = 5.0
    progress.enter("PublishModel", 1)
    clock.seconds = 7.0
    progress.enter("TrainStep", 1)
    clock.seconds = 8.0
    progress.batch_finished(1, {"rollout/reward_mean": 1.0})
    assert written(console) == "batch 1  2/2 done  reward 1  3.0 s\n"


def test_the_final_evaluation_is_no_batch_of_training() -> None:
    console = plain()
    progress = Progress(console, num_batches=2, batches_done=2)
    progress.batch_finished(2, {"test/reward_mean": 1.0}, 4.0)
    assert written(console) == "final evaluation  test/reward_mean 1  4.0 s\n"


def test_the_display_shows_state_batch_rollouts_reward_and_speed(clock: Clock) -> None:
    progress = Progress(terminal(), num_batches=40, batches_done=3, clock=clock)
    progress.batch_finished(3, {"rollout/reward_mean": 0.75}, 60.0)
    progress.enter("Rollout", 4)
    progress.rollouts(61, 1, 64, 50_000)  # kept from before a kill
    assert "tokens/s" not in display(progress)
    clock.seconds = 2.0
    progress.rollouts(64, 2, 64, 53_000)
    shown = display(progress)
    for part in (
        "Rollout",
        "batch 4",
        "4/40",
        "rollouts 64/64",
        "2 failed",
        "reward 0.750",
        "1,500 tokens/s",
        "36 min",
    ):
        assert part in shown
    progress.enter("TrainStep", 4)
    assert "rollouts" not in display(progress)


def test_a_terminal_gets_the_display_and_log_lines_stay_whole_above_it(tmp_path: Path) -> None:
    console = terminal()
    run = configure_logging(tmp_path, console=console)
    try:
        with Progress(console, num_batches=2) as progress:
            progress.enter("Rollout", 0)
            structlog.get_logger("orchestrator.x").info("a line in between")
            print("printed by an agent")
            progress.note("a note")
            logging.getLogger("third.party").warning("noise")
    finally:
        run.close()
    # Each line begins where the display was erased: right after an erasing control sequence or a line feed.
    lines = re.split(r"\x1b\[2K|\n", written(console))
    assert any("Rollout" in line and "batch 0" in line for line in lines)
    for whole in ("a line in between", "printed by an agent", "a note"):
        (line,) = [line for line in lines if whole in line]
        assert "batch 0  " not in line
    assert "noise" not in written(console)


def test_the_display_goes_away_when_the_run_dies() -> None:
    console = terminal()
    with pytest.raises(RuntimeError, match="died"), Progress(console, num_batches=2):
        raise RuntimeError("died")
    assert "\x1b[?25h" in written(console)  # the cursor is back


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_durations_read_naturally(seconds: float, text: str) -> None:
    assert duration(seconds) == text
