"""Whole runs of fixture D against the test Tinker server, and what can be compared between them."""

import json
import re
from pathlib import Path
from typing import Any

from processes import Child, fixture_d, run_child
from tinker_server import KEY, TinkerServer

from orchestrator.journal.log import read_journal
from orchestrator.journal.records import Kind
from orchestrator.testing import outcome_of_run, watch_nothing

OWNER = re.compile(r"tinker://session-\d+:train:\d+/")
TRAINING = ("forward_backward", "optim_step", "save_weights_for_sampler", "save_weights")


def service_run(folder: Path, server: TinkerServer, *settings: str, observer: Any = watch_nothing) -> Child:
    """Fixture D on the server's model."""
    folder.mkdir(exist_ok=True)
    given = fixture_d(
        folder,
        "backend=tinker",
        f"base_url={server.url}",
        f"model_name={server.model}",
        "renderer_name=qwen3_instruct",
        "lora_rank=4",
        *settings,
    )
    return Child(given.settings, folder, observer, environ={"TINKER_API_KEY": KEY})


def run_unseen(child: Child) -> int:
    """Runs to the end; the exit code, once it is sure that the key is in no file and in no stream."""
    code = run_child(child)
    seen = [file for file in child.folder.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]
    assert not seen, f"the key is in {seen}"
    return code


def outcome(child: Child, server: TinkerServer) -> dict[str, Any]:
    """All that must be equal between two runs: ``outcome_of_run``, and the sha256 of the final weights and optimizer.

    The owner in the paths of checkpoints is another one in each process, as on the real service, and left out.
    """
    found = {**outcome_of_run(child.log_path), "weights": server.checkpoints()[final_path(child)]}
    comparable: dict[str, Any] = json.loads(OWNER.sub("tinker://owner/", json.dumps(found)))
    return comparable


def final_path(child: Child) -> str:
    """Where the newest checkpoint of a run is."""
    return max(read_journal(child.log_path).run.checkpoints, key=lambda checkpoint: checkpoint.batch).state_path


def records(child: Child, kind: Kind) -> list[Any]:
    """The journal's records of one kind."""
    return [record for record in read_journal(child.log_path).records if record.kind == kind]


def log_lines(child: Child, event: str) -> list[dict[str, Any]]:
    """The lines of ``log.jsonl`` with this event."""
    lines = [json.loads(line) for line in (child.log_path / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def attempts(server: TinkerServer, *requests: str) -> list[dict[str, Any]]:
    """The requests of some kinds, in the order in which they arrived."""
    return [attempt for attempt in server.log() if attempt["request"] in requests]


def lineage(server: TinkerServer, path: str) -> list[str]:
    """Every training request that the checkpoint at ``path`` is the result of, over all processes, in order."""
    log = server.log()
    model, _, rest = path.removeprefix("tinker://").partition("/")
    of_model = [attempt for attempt in log if attempt["model"] == model and attempt["applied"]]
    made = next(attempt for attempt in of_model if attempt["request"] in {"create_model", "load_weights"})
    before = lineage(server, made["name"]) if made["request"] == "load_weights" else []
    requests = []
    for attempt in of_model:
        if attempt["request"] in TRAINING:
            requests.append(attempt["request"])
        if attempt["request"] == "save_weights" and attempt["name"] == rest.rpartition("/")[2]:
            break
    return before + requests
