"""The same traffic through each adapter and store, in a process of its own: a tracer and a gateway are process-wide."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import agentlightning as agl
import litellm
import numpy as np
import openai
from agentlightning.store.client_server import LightningStoreClient, LightningStoreServer
from rollouts.characters import END, MARKERS
from tinker import types
from tinker_cookbook.renderers import get_renderer

from orchestrator.chaos.children import print_into
from orchestrator.rollouts.adapters import SpanTurns
from orchestrator.rollouts.attempts import AttemptResult, judge, report_of, returned
from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.gateway import Gateway
from orchestrator.rollouts.outcomes import RolloutKey, StoredRollout
from orchestrator.rollouts.provider import Completion, Policy, Provider
from orchestrator.rollouts.rendering import Rendering
from orchestrator.rollouts.requests import SamplingDefaults
from orchestrator.rollouts.rewards import Rewards
from orchestrator.rollouts.runners.inline import InlineRunner

POLICY_VERSION = 3
rollout_agent: Callable[[Callable[..., Any]], Any] = agl.rollout
Way = tuple[str, bool]
"""An adapter, and whether the store is reached over HTTP."""
TASKS = ("héllo ☃ 你好", "strip the ids", "drop a logprob", "by LiteLLM's client")
"""Four groups: what the agents of the second and the third are answered is tampered with on its way to the spans."""
GROUP_SIZE = 3
KEYS = [
    RolloutKey(POLICY_VERSION, "train", group, member) for group in range(len(TASKS)) for member in range(GROUP_SIZE)
]
PATIENCE_SECONDS = {"proxy": 30.0, "tracer": 1.0}
"""The tracer has stored its spans when the agent returns."""
REPLIES = ("né ☃", "a longer reply that is cut off", "你好")


def byte_tokenizer() -> Any:
    """One token a byte of UTF-8, so that a character may be several, and the markers of the qwen3 renderers."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(
        models.WordLevel({entry: i for i, entry in enumerate([*MARKERS, *alphabet])}, unk_token=MARKERS[0])
    )
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, additional_special_tokens=list(MARKERS))


class Sampler:
    """Says what its seed chooses, each token with a logprob of its own."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    async def sample_async(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams
    ) -> types.SampleResponse:
        seed = sampling_params.seed or 0
        answer = self._tokenizer.encode(REPLIES[seed % len(REPLIES)] + END)
        tokens = answer[: sampling_params.max_tokens]
        sequence = types.SampledSequence(
            stop_reason="stop" if len(tokens) == len(answer) else "length",
            sequence_id="0",
            tokens_np=np.array(tokens, dtype=np.int32),
            logprobs_np=-np.random.default_rng(seed).random(len(tokens), dtype=np.float32),
        )
        return types.SampleResponse(sequences=[sequence])

    async def compute_logprobs_async(self, prompt: types.ModelInput) -> list[float | None]:
        return [None] * prompt.length


class Tampering(Provider):
    """A provider whose replies to the agents of two tasks lack something, unlike what it has captured."""

    async def complete(self, rollout_id: str, attempt_id: str, messages: Any, params: Any, **more: Any) -> Completion:
        completion = await super().complete(rollout_id, attempt_id, messages, params, **more)
        task = messages[0]["content"]
        (reply,) = completion.replies
        if task == TASKS[1]:
            reply = replace(reply, turn=replace(reply.turn, prompt_tokens=()))
        if task == TASKS[2]:
            reply = replace(reply, turn=replace(reply.turn, logprobs=reply.turn.logprobs[:-1]))
        return replace(completion, replies=(reply,))


@rollout_agent
async def agent(task: str, llm: agl.LLM) -> float:
    """Two turns; the reward tells the texts."""
    messages: list[Any] = [{"role": "user", "content": task}]
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        for _ in range(2):
            if task == TASKS[3]:
                completion: Any = await litellm.acompletion(
                    model=f"openai/{llm.model}", messages=messages, api_base=llm.endpoint, api_key=llm.api_key
                )
            else:
                completion = await client.chat.completions.create(model=llm.model, messages=messages)
            reply = completion.choices[0].message.content
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "et puis…"}]
    return sum(map(ord, str(messages))) / 1000


def no_otlp(self: Any) -> dict[str, bool]:
    """What a store over HTTP must say of itself, else every span is lost."""
    return {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": False}


class Server(LightningStoreServer):  # type: ignore[misc]
    capabilities = property(no_otlp)


class Client(LightningStoreClient):  # type: ignore[misc]
    capabilities = property(no_otlp)


@asynccontextmanager
async def opened(store: Any, *, over_http: bool) -> AsyncIterator[Any]:
    """``store`` itself, or a client of it."""
    if not over_http:
        yield store
        return
    server = Server(store, host="127.0.0.1", port=free_port())
    await server.start()
    client = Client(server.endpoint)
    try:
        yield client
    finally:
        await client.close()
        await server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def play(adapter: Any, *, over_http: bool, worker: Connection | None = None) -> list[str]:
    """The stored line of every rollout of ``KEYS``; ``worker`` leads to the process that runs ``trace_into``."""
    tokenizer = byte_tokenizer()
    capture = Capture(run_seed=7)
    provider = Tampering(
        rendering=Rendering(get_renderer("qwen3_instruct", tokenizer), tokenizer),
        capture=capture,
        reveal=adapter != "capture",
    )
    gateway = Gateway(provider=provider, kind="llm_proxy" if adapter == "proxy" else "slim", spans=adapter == "proxy")
    async with opened(gateway.store, over_http=over_http) as store:
        gateway.store = store
        await gateway.start()
        defaults = SamplingDefaults(16)
        resources_id = await gateway.publish(Policy(Sampler(tokenizer), POLICY_VERSION, defaults, defaults))
        spans = None if adapter == "capture" else SpanTurns(adapter, store, patience_seconds=PATIENCE_SECONDS[adapter])
        if adapter == "tracer":
            results = await play_traced(store, capture, resources_id, spans, worker)
        else:
            runner = InlineRunner(agent, store=store, capture=capture, timeout_seconds=60, spans=spans)
            results = await asyncio.gather(
                *(runner.run(key, attempt=0, task=TASKS[key.group], resources_id=resources_id) for key in KEYS)
            )
            runner.close()
        await gateway.stop()
    return [
        StoredRollout(key, 0, True, result.outcome, result.reward, result.turns, result.error).to_json()
        for key, result in zip(KEYS, results, strict=True)
    ]


async def play_traced(
    store: Any, capture: Capture, resources_id: str, spans: Any, worker: Connection | None
) -> list[AttemptResult]:
    """One rollout after another, run here or where ``worker`` leads; rewards are what the store has of them."""
    ids = []
    for key in KEYS:
        rollout = await store.start_rollout(TASKS[key.group], mode="train", resources_id=resources_id)
        ids.append((rollout.rollout_id, rollout.attempt.attempt_id))
        capture.register(*ids[-1], key, 0)
    if worker is None:
        await trace(store, [rollout_id for rollout_id, _ in ids])
    else:
        worker.send((store.server_address_root, [rollout_id for rollout_id, _ in ids]))
        await asyncio.to_thread(worker.recv)
    results = []
    for rollout_id, attempt_id in ids:
        reward = agl.find_final_reward(await store.query_spans(rollout_id, attempt_id))
        turns = capture.collect(rollout_id, attempt_id)
        result = judge(report_of(returned(reward), Rewards()), turns, 60)
        results.append(await spans.adapt(rollout_id, attempt_id, result))
    return results


async def trace(store: Any, rollout_ids: Sequence[str]) -> None:
    """Agent-lightning's own runner with its own tracer, one rollout after another."""
    runner = agl.LitAgentRunner(agl.AgentOpsTracer())
    runner.init(agent)
    runner.init_worker(0, store)
    for rollout_id in rollout_ids:
        await runner._step_impl(await store.get_rollout_by_id(rollout_id), raise_on_exception=True)
    runner.teardown_worker(0)


def name_of(adapter: str, over_http: bool) -> str:
    """Of the files of one way through ``adapter``."""
    return f"{adapter}-{'http' if over_http else 'local'}"


def play_into(folder: Path, ways: Sequence[Way], worker: Connection | None) -> None:
    """A process of its own: writes what ``play`` gives for each adapter, with its store over HTTP or here."""
    for way in ways:
        print_into(folder, f"{name_of(*way)}.txt", f"{name_of(*way)}.txt")
        lines = asyncio.run(play(way[0], over_http=way[1], worker=worker))
        (folder / f"{name_of(*way)}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def trace_into(folder: Path, orders: Connection) -> None:
    """A process of its own, without a store and a gateway: runs the rollouts that it is told of."""
    print_into(folder, "worker.txt", "worker.txt")
    address, rollout_ids = orders.recv()

    async def run() -> None:
        client = Client(address)
        await trace(client, rollout_ids)
        await client.close()

    asyncio.run(run())
    orders.send("done")
