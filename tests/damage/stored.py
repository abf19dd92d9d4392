"""Faults of what is stored beside the journal: rollouts, train steps, and the embedded backend's checkpoints."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

from damage import BASE, STATES, Fault, changes, delete, rewrite, rewriting
from orchestrator.journal.log import read_journal
from orchestrator.training.datums import load, store


def rollout_faults(name: str) -> Iterator[Fault]:
    """A stored rollout changed, with its crc made right again."""
    changes: Mapping[str, Callable[[dict[str, Any]], Any]] = {
        "reward": lambda rollout: rollout.update(reward=0.25),
        "reward of null": lambda rollout: rollout.update(reward=None),
        "outcome": lambda rollout: rollout.update(outcome="failed"),
        "group": lambda rollout: rollout.update(group=9),
        "member": lambda rollout: rollout.update(member=9),
        "batch": lambda rollout: rollout.update(batch=2),
        "attempt": lambda rollout: rollout.update(attempt=1),
        "policy version": lambda rollout: rollout["turns"][0].update(policy_version=0),
        "logprob missing": lambda rollout: rollout["turns"][0]["logprobs"].pop(),
        "logprob of text": lambda rollout: rollout["turns"][0].update(logprobs=["a", "b", "c", "d"]),
        "no turns": lambda rollout: rollout.update(turns=[]),
        "task": lambda rollout: rollout.update(task_sha256="0" * 16),
    }
    for what, change in changes.items():
        yield Fault(f"{name}: {what} changed", name, partial(_change_line, name, change))


def turn_faults(name: str) -> Iterator[Fault]:
    """A stored turn changed, with its crc made right again."""
    changes: Mapping[str, Callable[[dict[str, Any]], Any]] = {
        "group": lambda turn: turn.update(group=9),
        "member": lambda turn: turn.update(member=9),
        "batch": lambda turn: turn.update(batch=2),
        "mode": lambda turn: turn.update(mode="eval"),
        "policy version": lambda turn: turn.update(policy_version=0),
        "no samples": lambda turn: turn.update(samples=[]),
        "no prompt": lambda turn: turn.pop("prompt_tokens"),
    }
    for what, change in changes.items():
        yield Fault(f"{name}: {what} changed", name, partial(_change_line, name, change))


def datum_faults(batch: int, *, journaled: bool) -> Iterator[Fault]:
    """A train step changed and stored again as this program stores it."""
    name = f"datums/{batch:06d}.jsonl.zst"

    def advantage(run: Path) -> None:
        step = load(run, batch)
        store(run, replace(step, datums=(*step.datums[1:], step.datums[0])))

    def order(run: Path) -> None:
        step = load(run, batch)
        store(run, replace(step, orders=(step.orders[0][:-1],)))

    def rate(run: Path) -> None:
        store(run, replace(load(run, batch), learning_rate=0.5))

    yield Fault(f"{name}: datums in another order", name, advantage)
    yield Fault(f"{name}: a datum left out of its pass", name, order)
    if journaled:
        yield Fault(f"{name}: another learning rate", name, rate)


def checkpoint_faults(log_path: Path) -> Iterator[Fault]:
    """What can happen to what the embedded backend has saved."""
    run = read_journal(log_path).run
    needed = {f"{STATES}/{live.name}" for live in run.checkpoints if live.checkpoint_kind != "rolling"}
    needed |= {f"local/{path.removeprefix('local://')}" for path in _samplers(log_path)}
    for folder in sorted(needed):
        yield delete(folder)
        for file in sorted((log_path / folder).iterdir()):
            name = f"{folder}/{file.name}"
            yield replace(delete(name), blamed=folder)
            if file.suffix == ".safetensors":
                yield from _tensor_faults(file.read_bytes(), name, folder)
            else:
                yield from _metadata_faults(json.loads(file.read_bytes()), name, folder)
        nearby = next(name for name in sorted(needed) if name != folder and Path(name).parent == Path(folder).parent)
        yield Fault(f"{folder} is {nearby}", folder, partial(_replace_folder, folder, nearby))
    base = (log_path / BASE / "model.safetensors").read_bytes()
    yield from islice(_tensor_faults(base, f"{BASE}/model.safetensors", BASE), 2)
    yield delete(BASE)
    config = (log_path / BASE / "config.json").read_bytes()
    other = config.replace(b'"hidden_size": ', b'"hidden_size": 1')
    yield replace(rewriting("is another model's", f"{BASE}/config.json", other), blamed=BASE)


def _change_line(name: str, change: Callable[[dict[str, Any]], Any], run: Path) -> None:
    """Changes the second line, which is the second member of the first group."""
    path = run / name
    lines = path.read_bytes().splitlines(keepends=True)
    rollout = json.loads(lines[1])
    del rollout["crc"]
    change(rollout)
    body = json.dumps(rollout, separators=(",", ":"))
    lines[1] = f'{body[:-1]},"crc":"{crc32(body.encode()):08x}"}}\n'.encode()
    rewrite(path, b"".join(lines))


def _samplers(log_path: Path) -> set[str]:
    run = read_journal(log_path).run
    return {live.sampler_path for live in run.checkpoints if live.sampler_path} | {str(run.sampler_path)}


def _tensor_faults(data: bytes, name: str, blamed: str) -> Iterator[Fault]:
    for position in (len(data) - 1, 8, len(data) // 2):
        flipped = bytearray(data)
        flipped[position] ^= 1
        yield replace(rewriting(f"byte {position} flipped", name, bytes(flipped)), blamed=blamed)
    yield replace(rewriting("cut", name, data[: len(data) // 2]), blamed=blamed)


def _metadata_faults(metadata: dict[str, Any], name: str, blamed: str) -> Iterator[Fault]:
    for path, changed in changes(metadata):
        yield replace(rewriting(f"{path} changed", name, json.dumps(changed).encode()), blamed=blamed)
    yield replace(rewriting("expired", name, json.dumps({**metadata, "expires_at": 1.0}).encode()), blamed=blamed)
    yield replace(rewriting("is no JSON", name, b"{"), blamed=blamed)


def _replace_folder(name: str, by: str, run: Path) -> None:
    shutil.rmtree(run / name)
    shutil.copytree(run / by, run / name)
