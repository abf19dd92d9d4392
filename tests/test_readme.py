"""What the README says of the machine is what the table says."""

import json
import re
from pathlib import Path

from processes import run_command

from orchestrator.reporting.diagram import mermaid

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_readmes_diagram_is_drawn_from_the_table() -> None:
    assert f"```mermaid\n{mermaid()}\n```" in README


def test_the_readme_is_one_sitting() -> None:
    assert len(README.splitlines()) <= 250


def test_the_readmes_agent_and_command_train_as_they_stand(tmp_path: Path) -> None:
    """Its own lines, on a model and tasks that this machine has."""
    (agent,) = re.findall(r"^```python\n(# my_agent\.py\n.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_agent.py").write_text(agent)
    for name in ("tasks.jsonl", "val.jsonl"):
        tasks = [{"question": f"{number}?", "answer": str(number % 3)} for number in range(8)]
        (tmp_path / name).write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    (command,) = re.findall(r"^python -m orchestrator (run recipe=none.*?)\n```$", README, re.MULTILINE | re.DOTALL)
    given = dict(setting.partition("=")[::2] for setting in command.replace("\\\n", "").split()[1:])
    here = {
        "model_name": "tiny",
        "renderer_name": "qwen3_instruct",
        "lora_rank": "0",
        "n_epochs": "1",
        "max_tokens": "4",
    }
    code, _, told = run_command(tmp_path, "run", *(f"{name}={value}" for name, value in (given | here).items()))
    assert code == 0, told
    assert (tmp_path / "runs" / "mine" / "journal.jsonl").is_file()
