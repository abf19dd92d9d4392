"""Options of the train step: the learning rate's schedule, settings of the loss, the KL reference, measures."""

import json
from pathlib import Path

import pytest
from processes import fixture_d, run_child, run_command
from tinker_cookbook.utils.lr_scheduling import compute_schedule_lr_multiplier
from tinker_runs import attempts, service_run
from tinker_server import TinkerServer

from orchestrator.backends.requirements import check_backend
from orchestrator.config import Config, flatten
from orchestrator.errors import ConfigError
from orchestrator.journal.log import read_journal
from orchestrator.names import State
from orchestrator.reporting.spans import TRACE_FILE
from orchestrator.settings import load_config
from orchestrator.testing import KillAt, outcome_of_run
from orchestrator.training.prepare import learning_rate

BASE = ("recipe=none", "agent=a:b", "backend=local", "learning_rate=0.001")


def rates(*settings: str, batches: int, schedule_batches: int) -> list[float]:
    config = load_config([*BASE, *settings], environ={})
    return [learning_rate(config, batch=batch, schedule_batches=schedule_batches) for batch in range(batches)]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_schedule_without_an_end_is_the_cookbooks(schedule: str) -> None:
    expected = [0.001 * compute_schedule_lr_multiplier(schedule, batch, 8) for batch in range(8)]  # type: ignore[arg-type]
    assert rates(f"lr_schedule={schedule}", batches=8, schedule_batches=8) == expected


def test_a_schedule_with_an_end_reaches_it_at_the_last_batch() -> None:
    end = "final_learning_rate=0.0001"
    assert rates(end, batches=3, schedule_batches=3) == pytest.approx([0.001, 0.00055, 0.0001])
    assert rates(end, "lr_schedule=linear", batches=3, schedule_batches=3) == rates(end, batches=3, schedule_batches=3)
    assert rates(end, "lr_schedule=cosine", batches=5, schedule_batches=5) == pytest.approx(
        [0.001, 0.0001 + 0.0009 * 0.8535533905932737, 0.00055, 0.0001 + 0.0009 * 0.14644660940672624, 0.0001]
    )
    assert rates(end, batches=1, schedule_batches=1) == [0.001]


@pytest.mark.parametrize("settings", [(), ("final_learning_rate=0.0002",)])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_batches_that_are_added_later_are_trained_at_the_last_promised_rate(
    schedule: str, settings: tuple[str, ...]
) -> None:
    """H29: the horizon is that of the start, however far the run is extended."""
    found = rates(f"lr_schedule={schedule}", *settings, batches=9, schedule_batches=4)
    assert found[4:] == [found[3]] * 5
    assert min(found) > 0


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (("lr_schedule=constant", "final_learning_rate=0.1"), "lr_schedule=constant never reaches it"),
        (("lr_schedule=warm",), "lr_schedule=warm: expected one of constant, linear, cosine or none"),
        (("loss_fn_config.beta=much",), "loss_fn_config.beta=much: expected a number"),
        (("loss_fn_config.beta=nan",), "loss_fn_config.beta=nan: expected a finite number"),
        (("loss_fn_config=0.1",), "expected a number for each name, e.g. loss_fn_config.beta=0.05"),
        (("loss_fn_confg.beta=1",), "there is no field loss_fn_confg.beta; did you mean loss_fn_config"),
        (("clip_low_threshold=0.8", "loss_fn_config.clip_low_threshold=0.9"), "is its short form and is given as well"),
    ],
)
def test_settings_that_contradict_or_mean_nothing_are_told(settings: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([*BASE, *settings], environ={})
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (("loss_fn=dro",), "loss_fn=dro: the embedded backend has importance_sampling, ppo and cispo"),
        (("loss_fn_config.clip_low_threshold=0.9",), "importance_sampling has no such setting; its settings are: none"),
        (("loss_fn=ppo", "loss_fn_config.beta=1"), "beta: the embedded backend's ppo has no such setting"),
        (("kl_reference_config.base_model=Qwen/Qwen3-8B",), "kl_reference_config.base_model=Qwen/Qwen3-8B"),
    ],
)
def test_what_the_embedded_backend_cannot_train_is_refused_before_anything_is_sampled(
    settings: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_backend(load_config([*BASE, *settings], environ={}), {})
    assert told in str(caught.value)


def test_settings_of_the_loss_come_from_a_table_and_are_journaled_as_one_value(tmp_path: Path) -> None:
    """Where a file and the command line both give some, each name is the command line's first."""
    (tmp_path / "run.toml").write_text("[loss_fn_config]\nbeta = 1\nclip_high_threshold = 1.5\n")
    config = load_config([*BASE, f"config={tmp_path / 'run.toml'}", "loss_fn_config.beta=0.5"], environ={})
    assert flatten(config)["loss_fn_config"] == {"beta": 0.5, "clip_high_threshold": 1.5}
    assert flatten(Config())["loss_fn_config"] is None


def test_a_kl_reference_that_is_not_there_starts_nothing(tmp_path: Path) -> None:
    gone = "kl_reference_config.load_checkpoint_path=gone"
    settings = fixture_d(tmp_path, "kl_penalty_coef=0.1", gone, "log_path=run").settings
    code, _, stderr = run_command(tmp_path, "run", *settings)
    assert (code, "kl_reference_config.load_checkpoint_path=gone: there is no checkpoint" in stderr) == (2, True)
    assert not (tmp_path / "run" / "journal.jsonl").exists()


def test_a_kill_while_a_step_is_measured_changes_neither_the_measures_nor_the_weights(tmp_path: Path) -> None:
    """Four datums a batch: their reference logprobs are asked for in TrainStep, those after the step in SwapSampler."""
    measured = ("kl_penalty_coef=0.2", "compute_post_kl=true", "max_batches=2", "eval_every=0")
    undisturbed = fixture_d(tmp_path / "undisturbed", *measured)
    undisturbed.folder.mkdir()
    assert run_child(undisturbed) == 0, undisturbed.output
    killed = fixture_d(tmp_path / "killed", *measured, observer=KillAt("request:before:compute_logprobs", 5))
    killed.folder.mkdir()
    assert run_child(killed) == -9
    stopped_in = read_journal(killed.log_path).run
    assert (stopped_in.batch, stopped_in.state) == (0, State.SWAP_SAMPLER)
    resumed = fixture_d(tmp_path / "killed", *measured)
    assert run_child(resumed) == 0, resumed.output
    outcome = outcome_of_run(resumed.log_path)
    assert outcome == outcome_of_run(undisturbed.log_path)
    moved = [row["optim/kl_pre_post_v2"] for row in outcome["metrics"][:2]]
    assert all(value > 0 for value in moved), "a step moves the policy"
    assert outcome["metrics"][0]["optim/kl_policy_base"] == pytest.approx(0, abs=1e-6), (
        "the reference is what was sampled"
    )


def test_on_the_service_a_session_is_named_a_step_penalized_and_measured_and_every_request_traced(
    tmp_path: Path, service: TinkerServer
) -> None:
    options = ("session_name=my session", "kl_penalty_coef=0.2", "compute_post_kl=true", "enable_trace=true")
    child = service_run(tmp_path, service, *options, "max_batches=1", "eval_every=0")
    assert run_child(child) == 0, child.output
    assert attempts(service, "create_session")[0]["name"] == "my session"
    row = outcome_of_run(child.log_path)["metrics"][0]
    assert row["optim/kl_pre_post_v2"] > 0
    assert row["optim/kl_policy_base"] == pytest.approx(0, abs=1e-6)
    events = [json.loads(line) for line in (child.log_path / TRACE_FILE).read_text().splitlines()]
    requests = {"sample_async", "compute_logprobs_async", "forward_backward_async", "optim_step_async"}
    assert requests <= {event["name"] for event in events if event["ph"] == "E"}
