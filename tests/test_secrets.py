"""H19: keys are nowhere, prompts only where they belong, however a run dies and whatever its agents say."""

from pathlib import Path

import pytest
from observers import QuoteAt
from processes import Child, fixture_d, run_child

from orchestrator.journal.log import read_journal
from orchestrator.names import CYCLE, State
from orchestrator.testing import KillAt

CANARY = "CANARY-77 sings"
SECRETS = {"TINKER_API_KEY": "tml-SECRET123", "WANDB_API_KEY": "wandb-SECRET9"}
QUOTED = f"{CANARY} {' '.join(SECRETS.values())}"


def canaries(folder: Path, *settings: str, observer: QuoteAt | KillAt | None = None) -> Child:
    """Two batches of fixture D on the canary tasks, evaluated, with both keys in the environment."""
    given = fixture_d(
        folder,
        "train_dataset=canary:TASKS",
        "val_dataset=canary:VAL_TASKS",
        "agent=canary:discreet",
        "backend=local",
        *settings,
    )
    return Child(given.settings, folder, observer or KillAt("never"), environ=SECRETS)


def quoted_in(folder: Path, text: str) -> set[str]:
    """The files under ``folder`` that hold ``text``; both streams are in ``output.txt``."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)) for path in paths if text.encode() in path.read_bytes()}


def assert_discreet(child: Child) -> None:
    """Neither key nor canary anywhere: prompts are stored as tokens."""
    for text in (CANARY, *SECRETS.values()):
        assert quoted_in(child.folder, text) == set()


DEATHS = {
    **{f"entering {state}": ("append:after:state_entered", CYCLE.index(state)) for state in CYCLE},
    "leaving Rollout": ("append:before:transition", CYCLE.index(State.ROLLOUT)),
    "the first training client": ("request:before:create_lora_training_client", 0),
    "the sampler to publish": ("request:before:create_sampling_client", 0),
    "the gradient": ("request:before:forward_backward", 0),
    "the optimizer step": ("request:after:optim_step", 0),
    "the sampler to save": ("request:before:save_weights_for_sampler", 1),
    "the first record": ("append:before:run_started", 0),
    "the last record": ("append:before:run_finished", 0),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_run_that_dies_quoting_the_prompt_and_the_keys_quotes_them_nowhere(death: str, tmp_path: Path) -> None:
    """The message of the error and of its cause hold all three; the run tells type and place, and resumes."""
    child = canaries(tmp_path, observer=QuoteAt(*DEATHS[death], QUOTED))
    assert run_child(child) == 1
    assert_discreet(child)
    assert "RuntimeError at observers.py:" in child.output
    if death != "the first record":
        stop = read_journal(child.log_path).run.last_stop
        assert stop is not None
        assert "RuntimeError at observers.py:" in str(stop.error)
        assert "caused by KeyError" in (child.log_path / "log.jsonl").read_text()


def test_only_a_run_that_is_asked_to_debug_quotes_and_never_the_keys(tmp_path: Path) -> None:
    observer = QuoteAt("request:before:forward_backward", 0, QUOTED)
    child = canaries(tmp_path, "log_level=debug", observer=observer)
    assert run_child(child) == 1
    assert "run/log.jsonl" in quoted_in(tmp_path, CANARY)
    assert "run/journal.jsonl" not in quoted_in(tmp_path, CANARY)
    for secret in SECRETS.values():
        assert quoted_in(tmp_path, secret) == set()


def test_what_agents_log_raise_warn_and_forget_is_quoted_nowhere(tmp_path: Path) -> None:
    """Half of the agents fail as well, with a message that quotes it; the final batch is trained on the others."""
    child = canaries(tmp_path, "agent=canary:talkative")
    assert run_child(child) == 0
    assert_discreet(child)
    assert read_journal(child.log_path).run.batches[0].results[State.ROLLOUT]["outcomes"]["failed"] > 0


def test_a_backend_that_refuses_samples_quoting_them_is_quoted_nowhere(tmp_path: Path) -> None:
    """The gateway turns it into an answer of 500, the agent into a failed rollout."""
    child = canaries(tmp_path, "max_batches=1", observer=QuoteAt("request:before:sample", 1, QUOTED))
    assert run_child(child) == 0
    assert_discreet(child)
    assert "[prompt, 16 characters]" in (child.log_path / "rollouts" / "000000.train.jsonl").read_text()


def test_what_an_agent_prints_goes_where_it_prints_it_and_into_no_file_of_the_run(tmp_path: Path) -> None:
    child = canaries(tmp_path, "agent=canary:printing", "max_batches=1")
    assert run_child(child) == 0
    assert CANARY in child.output
    assert quoted_in(tmp_path, CANARY) == {"output.txt"}
