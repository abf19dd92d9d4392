"""The configuration of a run: one frozen class, each field with its unit, what 0 and None mean, and its drift class.

The drift class says what a resume may change. *Identity* fields make the run what it is and must match what the journal
began with; *horizon* fields may only be extended; *operational* fields may change freely.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin, get_type_hints

import chz

DEFAULT_RECIPE = "guess_number"
TINY = "tiny"
"""The name of the embedded backend's built-in model."""
CONFIG_NAME = "config.json"
"""The view of the newest process's configuration, in the run directory."""


class Drift(StrEnum):
    """What a resume may do to a field."""

    IDENTITY = "identity"
    """Must be what the run was started with, unless ``allow_drift`` names the field."""
    HORIZON = "horizon"
    """May grow: earlier batches keep their order."""
    OPERATIONAL = "operational"
    """May change at every resume."""


def _field(default: Any, doc: str, drift: Drift) -> Any:
    return chz.field(default=default, doc=doc, metadata={"drift": drift, "default": default, "doc": doc})


def _identity(default: Any, doc: str) -> Any:
    return _field(default, doc, Drift.IDENTITY)


def _horizon(default: Any, doc: str) -> Any:
    return _field(default, doc, Drift.HORIZON)


def _operational(default: Any, doc: str) -> Any:
    return _field(default, doc, Drift.OPERATIONAL)


@chz.chz
class LocalConfig:
    """Options of the embedded backend (``backend=local``); the hosted service ignores them."""

    warm_start: str | None = _identity(
        None, "module:attribute giving the transcripts that the built-in model is warm-started on; None: random weights"
    )
    warm_start_steps: int | None = _identity(None, "optimizer steps of the warm start; None: 200")
    num_threads: int = _identity(1, "PyTorch threads; part of the identity because results depend on it bit for bit")
    sample_batch_size: int = _identity(32, "rows of one sampling micro-batch; calls that wait together share one")
    dtype: Literal["float32", "bfloat16"] = _identity("float32", "number format of the weights of a model directory")


@chz.chz
class KLReferenceConfig:
    """The policy that ``kl_penalty_coef`` keeps the trained one near to; by default the run's own base model."""

    base_model: str | None = _identity(
        None, "base model of the KL reference; None: model_name, or what load_checkpoint_path was trained from"
    )
    load_checkpoint_path: str | None = _identity(
        None, "weights of the KL reference, saved for sampling; None: those of its base model"
    )


@chz.chz
class Config:
    """One run. ``key=value`` on the command line, nested keys with dots."""

    # Core
    recipe: str | None = _operational(
        DEFAULT_RECIPE, "named configuration under orchestrator/recipes; none: the plain defaults"
    )
    log_path: str = _operational("runs/default", "the run directory; holding a journal, the run resumes")
    backend: Literal["auto", "tinker", "local"] = _identity(
        "auto", "tinker: the service (TINKER_API_KEY); local: embedded; auto: tinker where a key is set, else local"
    )
    base_url: str | None = _operational(None, "address of a self-hosted Tinker-compatible server; None: the SDK's own")
    session_name: str | None = _operational(None, "name of the session in the service's console; None: wandb_name")
    model_name: str = _identity("tiny", "base model: the service's name, a model directory, or tiny (embedded)")
    lora_rank: int = _identity(32, "rank of the trained adapter; 0: all parameters (embedded backend only)")
    renderer_name: str = _identity("qwen3_instruct", "tinker-cookbook renderer between messages and tokens")
    load_checkpoint_path: str | None = _identity(None, "start from these weights, with a fresh optimizer")
    seed: int = _identity(0, "seed of the adapter, the task order, the sampling and the datum order")

    # Agent and tasks
    agent: str = _identity("", "module:attribute of an @agl.rollout function or LitAgent; required")
    train_file: str | None = _identity(None, "tasks as .jsonl, .csv or .parquet")
    val_file: str | None = _identity(None, "evaluation tasks, in the same formats")
    train_dataset: str | None = _identity(None, "module:attribute of a sequence of tasks, or of a function giving one")
    val_dataset: str | None = _identity(None, "likewise, for evaluation")
    val_fraction: float = _identity(0.0, "part of the training tasks kept aside for evaluation when none are given")
    evals: tuple[str, ...] = _identity(
        (), "more evaluation sets: NAME=FILE or NAME=module:attribute, comma-separated; metrics under test/NAME/"
    )
    shuffle: bool = _identity(True, "a new task order each epoch, a pure function of seed and epoch")
    batch_size: int = _identity(32, "tasks, that is groups, in a batch")
    group_size: int = _identity(4, "rollouts of the same task, whose rewards are compared")
    n_epochs: int = _horizon(1, "passes over the training tasks")
    max_batches: int | None = _horizon(None, "stop after this many batches; None: all epochs")

    # Sampling
    max_tokens: int = _identity(512, "tokens of one reply unless the agent asks for fewer")
    temperature: float = _identity(1.0, "sampling temperature of training rollouts unless the agent sets one")
    top_p: float = _identity(1.0, "nucleus of training rollouts; 1: all tokens")
    top_k: int = _identity(-1, "candidates of training rollouts; -1: all tokens")
    eval_temperature: float = _identity(0.0, "sampling temperature of evaluation rollouts; 0: greedy")
    eval_top_p: float = _identity(1.0, "nucleus of evaluation rollouts")
    eval_top_k: int = _identity(-1, "candidates of evaluation rollouts")
    eval_group_size: int = _identity(1, "rollouts of each evaluation task; pass@k is estimated up to k of as many")
    pass_threshold: float = _identity(1.0, "the reward from which on an evaluation rollout passes, for test/pass_at_k")

    # Rollouts
    adapter: Literal["capture", "tracer", "proxy"] = _identity(
        "capture",
        "where trained turns are read: as sampled (capture), or in the spans of Agent-lightning's tracer or proxy",
    )
    concurrency: int = _operational(64, "rollouts under way at once")
    placement: Literal["inline", "processes", "external", "ray"] = _operational(
        "inline",
        "where agents run. inline: in this process; processes: num_workers processes of this machine; external: "
        "wherever `python -m orchestrator runner` is started; ray: num_workers tasks of a Ray cluster",
    )
    num_workers: int = _operational(4, "workers under placement=processes and ray, one rollout at a time each")
    ray_address: str | None = _operational(
        None, "the cluster under placement=ray, which this machine is a node of: auto, or HOST:PORT of its head"
    )
    ray_num_cpus: float = _operational(1.0, "CPUs that Ray keeps for each worker; 0: none, however many there are")
    store_host: str = _operational(
        "127.0.0.1", "address that workers reach the store at, under placement=external and ray"
    )
    store_port: int = _operational(0, "its port, which must be given under placement=external; 0: any free one")
    worker_lost_seconds: float = _operational(
        30.0, "a worker that is silent for so long is taken for dead, and its rollout is played again by another"
    )
    rollout_timeout_seconds: float = _operational(600.0, "a rollout that takes longer is timed_out")
    on_failure: Literal["drop_member", "drop_group", "stop"] = _identity(
        "drop_member", "what becomes of a rollout that did not succeed once its retries are used up"
    )
    max_retries: int = _identity(0, "how often a rollout that did not succeed is tried again")
    remove_constant_reward_groups: bool = _identity(True, "leave out groups whose rewards are all equal")
    max_no_progress_batches: int = _operational(3, "stop after this many batches in a row without an optimizer step")

    # Training
    learning_rate: float = _identity(1e-4, "Adam learning rate, at the first batch")
    lr_schedule: Literal["constant", "linear", "cosine"] | None = _identity(
        None,
        "how learning_rate changes over the batches the run was started for: towards final_learning_rate, or 0 where "
        "none is given; None: linear where one is given, else constant",
    )
    final_learning_rate: float | None = _identity(
        None, "Adam learning rate at the last batch the run was started for; None: see lr_schedule"
    )
    loss_fn: Literal["importance_sampling", "ppo", "cispo", "dro"] = _identity(
        "importance_sampling", "policy-gradient loss; dro: on the service only"
    )
    loss_fn_config: Mapping[str, float] | None = _identity(
        None, "settings of the loss by name, e.g. loss_fn_config.beta=0.05; None: the loss's own"
    )
    clip_low_threshold: float | None = _identity(
        None, "lower bound of the probability ratio, short for loss_fn_config.clip_low_threshold"
    )
    clip_high_threshold: float | None = _identity(
        None, "upper bound of the probability ratio, short for loss_fn_config.clip_high_threshold"
    )
    num_epochs: int = _identity(1, "passes over a batch's datums, each in an order of its own")
    num_substeps: int = _identity(1, "optimizer steps in one pass")
    shuffle_datums: bool = _identity(
        True, "each pass in a new order, by the seed; false: in that of groups and members"
    )
    kl_penalty_coef: float = _identity(0.0, "weight of the KL penalty against kl_reference_config; 0: none")
    kl_discount_factor: float = _identity(0.0, "discount of the penalty's future sums; 0: none")
    compute_post_kl: bool = _operational(
        False, "measure how far each train step moved the policy; costs the logprobs of every datum"
    )

    # Evaluation and checkpoints
    eval_every: int = _operational(20, "batches between evaluations; 0: never. The final weights always are, unless 0")
    save_every: int = _operational(20, "batches between checkpoints of sampler, weights and optimizer; 0: none")
    rolling_save_every: int = _operational(5, "batches between rolling checkpoints (weights and optimizer); 0: none")
    ttl_seconds: int | None = _operational(604_800, "lifetime of what the service keeps, but the final; None: for ever")
    rolling_ttl_seconds: int | None = _operational(
        86_400, "lifetime of rolling checkpoints on the service; None: for ever"
    )

    # Budgets
    max_tokens_total: int | None = _operational(
        None, "prompt, sampled and trained tokens that the whole run may be charged for, wasted ones too; None: any"
    )
    max_wall_seconds: float | None = _operational(
        None, "time that all processes of the run may be at work, together; None: any. A spent budget stops the run"
    )

    # Operation
    gateway: Literal["slim", "llm_proxy"] = _operational(
        "slim", "what agents call; slim: the orchestrator's own server, llm_proxy: Agent-lightning's LiteLLM proxy"
    )
    gateway_host: str = _operational(
        "127.0.0.1", "address that the gateway listens on; another one lets agents on other machines call it"
    )
    gateway_port: int = _operational(0, "port that agents call; 0: any free one")
    gateway_address: str | None = _operational(
        None, "what agents are told, e.g. http://10.0.0.5:4000; None: gateway_host and its port"
    )
    probe_optimizer_restore: bool = _operational(
        False, "at the first resume, try whether the backend gives optimizers back, and refuse to go on if not"
    )
    backend_timeout_seconds: float = _operational(3_600.0, "longest wait for one reply of the backend")
    state_timeout_seconds: float = _operational(86_400.0, "longest time in one state")
    grace_seconds: float = _operational(10.0, "time given to what is in flight after SIGTERM or SIGINT")
    max_attempts: int = _operational(3, "failures of the same batch and state before the run refuses to go on")
    allow_drift: tuple[str, ...] = _operational(
        (), "identity fields that may differ from the journal's, comma-separated"
    )
    wandb_project: str | None = _operational(None, "Weights & Biases project that gets the metric rows; None: none")
    wandb_name: str | None = _operational(None, "name of the run shown there; None: that of the run directory")
    trackio_project: str | None = _operational(None, "Trackio project that gets the metric rows; None: none")
    tensorboard: bool = _operational(False, "write the metric rows to LOG_PATH/tensorboard, too")
    enable_trace: bool = _operational(
        False, "write LOG_PATH/trace_events.jsonl: when each state and each request to the service began and ended"
    )
    span_chart_every: int = _operational(
        0, "batches between Gantt charts of a batch, LOG_PATH/iteration_NNNNNN/timing_gantt.html; 0: none"
    )
    log_level: Literal["debug", "info", "warning", "error"] = _operational(
        "info", "least level shown on the console; debug also quotes, there and in log.jsonl, what may hold prompts"
    )

    local: LocalConfig = chz.field(default_factory=LocalConfig, doc="options of the embedded backend")
    kl_reference_config: KLReferenceConfig = chz.field(
        default_factory=KLReferenceConfig, doc="what the KL penalty is measured against"
    )


NESTED: Mapping[str, type] = {"local": LocalConfig, "kl_reference_config": KLReferenceConfig}
"""The fields of ``Config`` that have fields themselves."""


def field_drifts() -> dict[str, Drift]:
    """The drift class of every field, nested ones with dots, e.g. ``local.num_threads``."""
    return {name: metadata["drift"] for name, metadata in _fields().items()}


def field_docs() -> list[str]:
    """``name=default  meaning [choices]`` for every field, nested ones with dots."""
    choices = field_choices()
    return [
        f"{name}={metadata['default']}".ljust(44)
        + f" {metadata['doc']}"
        + (f" [{' | '.join(choices[name])}]" if name in choices else "")
        for name, metadata in _fields().items()
    ]


def field_choices() -> dict[str, tuple[str, ...]]:
    """The values of each field that has only a few, as they are written on the command line."""
    hints = get_type_hints(Config)
    for owner, nested in NESTED.items():
        hints |= {f"{owner}.{name}": hint for name, hint in get_type_hints(nested).items()}
    literals = {name: get_args(hints[name]) for name in _fields() if get_origin(hints[name]) is Literal}
    return literals | {name: ("true", "false") for name in _fields() if hints[name] is bool}


def flatten(config: Config) -> dict[str, Any]:
    """Every field's value under its dotted name, as JSON values."""
    values: dict[str, Any] = {}
    for name in field_drifts():
        owner, _, attribute = name.rpartition(".")
        value = getattr(getattr(config, owner) if owner else config, attribute)
        values[name] = _json(value)
    return values


def unflatten(flat: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Config:
    """The configuration that ``flatten`` gave ``flat`` of, with ``changes``.

    A field that ``flat`` lacks, being newer, has its default.
    """
    known = {name: flat[name] for name in field_drifts() if name in flat}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    return chz.Blueprint(Config).apply(values).apply(dict(changes or {})).make()


def config_json(flat: Mapping[str, Any]) -> bytes:
    """What ``config.json`` holds for a flattened configuration."""
    return json.dumps(flat, indent=2).encode()


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: float(number) for name, number in sorted(value.items())}
    return list(value) if isinstance(value, tuple) else value


def _fields() -> dict[str, dict[str, Any]]:
    return {
        prefix + name: field.metadata
        for prefix, owner in (("", Config), *((f"{name}.", nested) for name, nested in NESTED.items()))
        for name, field in chz.chz_fields(owner).items()
        if field.metadata
    }
