"""Laws of the tasks: they arrive as written, and which batch holds which never changes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import chz
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import Config
from orchestrator.errors import EXIT_USAGE, ConfigError, DatasetError
from orchestrator.journal.records import eval_set_sizes
from orchestrator.rollouts.dataset import TaskBatches, load_tasks

NAMES = [f"t{index}" for index in range(6)]

FROM_PYTHON: Any = [{"n": np.int64(3), "x": np.float32(0.5), "xs": np.arange(2), "pair": (1, 2)}]
NOT_JSON: Any = [{"blob": b"1"}]
ONE_MAPPING = {"a": 1}


def from_function() -> list[str]:
    return ["made"]


def failing_function() -> list[str]:
    raise RuntimeError("no network")


def load_file(path: Path, text: str) -> list[Any]:
    path.write_text(text, encoding="utf-8")
    return list(load_tasks(Config(train_file=str(path))).train)


def indices(batches: TaskBatches) -> list[list[int]]:
    return [[index for index, _ in batches.batch(batch)] for batch in range(batches.num_batches)]


def test_fixture_d_comes_in_the_order_of_the_reference_loop() -> None:
    batches = TaskBatches(NAMES, batch_size=2, seed=42)
    assert indices(batches) == [[3, 1], [2, 4], [0, 5]]
    assert batches.batch(1) == [(2, "t2"), (4, "t4")]


@given(
    count=st.integers(1, 12),
    batch_size=st.integers(1, 4),
    seed=st.integers(0, 99),
    more=st.integers(1, 4),
    data=st.data(),
)
def test_a_longer_horizon_never_changes_an_earlier_batch(
    count: int, batch_size: int, seed: int, more: int, data: st.DataObject
) -> None:
    count = max(count, batch_size)
    tasks = list(range(count))
    short = TaskBatches(tasks, batch_size=batch_size, seed=seed, n_epochs=2)
    long = TaskBatches(tasks, batch_size=batch_size, seed=seed, n_epochs=2 + more)
    cut = TaskBatches(tasks, batch_size=batch_size, seed=seed, n_epochs=2, max_batches=1)
    asked = data.draw(st.permutations(range(short.num_batches)))  # a resume asks for a late batch first
    assert [long.batch(batch) for batch in asked] == [short.batch(batch) for batch in asked]
    assert cut.num_batches == 1
    assert cut.batch(0) == short.batch(0)


def test_each_epoch_has_its_own_order_and_shows_every_task_once() -> None:
    batches = TaskBatches(NAMES, batch_size=2, seed=42, n_epochs=2)
    shown = [index for batch in indices(batches) for index in batch]
    assert sorted(shown[:6]) == sorted(shown[6:]) == list(range(6))
    assert shown[:6] != shown[6:]


@pytest.mark.parametrize("shuffle", [True, False])
def test_left_over_tasks_are_dropped_in_every_epoch(shuffle: bool) -> None:
    batches = TaskBatches(NAMES[:5], batch_size=2, seed=0, shuffle=shuffle, n_epochs=3)
    assert batches.num_batches == 6
    assert all(len(batch) == 2 for batch in indices(batches))
    if not shuffle:
        assert indices(batches) == [[0, 1], [2, 3]] * 3


def test_a_batch_past_the_end_does_not_exist() -> None:
    with pytest.raises(IndexError, match="batches 0 to 2"):
        TaskBatches(NAMES, batch_size=2, seed=0).batch(3)


def test_fewer_tasks_than_a_batch_is_a_usage_error_with_both_numbers() -> None:
    with pytest.raises(DatasetError, match=r"\b3 rows, batch_size 4\b") as caught:
        TaskBatches(NAMES[:3], batch_size=4, seed=0)
    assert caught.value.exit_code == EXIT_USAGE


def test_jsonl_strings_reach_the_agent_as_the_same_strings(tmp_path: Path) -> None:
    """H16."""
    row = {"id": "007", "n": "1344800117571260417", "date": "2024-01-02", "line": "a\u2028b"}
    assert load_file(tmp_path / "d.jsonl", json.dumps(row, ensure_ascii=False) + "\n\n") == [row]


def test_csv_values_are_strings_as_written(tmp_path: Path) -> None:
    tasks = load_file(tmp_path / "d.csv", '\ufeffid,n,text\n007,1e5,"a, ""b""\nc"\n\nnull,,True\n')
    assert tasks == [{"id": "007", "n": "1e5", "text": 'a, "b"\nc'}, {"id": "null", "n": "", "text": "True"}]


def test_parquet_values_become_json_values(tmp_path: Path) -> None:
    times = pa.array(["2024-01-02T03:04:05"]).cast(pa.timestamp("s"))
    table = pa.table({"id": ["007"], "big": [1344800117571260417], "at": times, "xs": [[1.5, None]], "none": [None]})
    pq.write_table(table, tmp_path / "d.parquet")
    tasks = load_tasks(Config(train_file=str(tmp_path / "d.parquet"))).train
    expected = {"id": "007", "big": 1344800117571260417, "at": "2024-01-02T03:04:05", "xs": [1.5, None], "none": None}
    assert tasks == (expected,)


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("d.jsonl", '{"a":1}\n{bad\n', "line 2"),
        ("d.jsonl", '{"a":NaN}\n', "line 1"),
        ("d.jsonl", "[1e999]\n", "line 1"),
        ("d.csv", "a,b\n1,2\n1,2,3\n", "line 3"),
        ("d.csv", "a,a\n1,2\n", "line 1"),
        ("d.csv", 'a,b\n1,"2\n', "malformed CSV"),
        ("d.parquet", "PAR1 is not enough", "cannot be read as parquet"),
        ("d.json", "[]", "expected .jsonl, .csv, .parquet"),
    ],
)
def test_a_malformed_row_is_refused_with_file_and_place(tmp_path: Path, name: str, text: str, where: str) -> None:
    with pytest.raises(DatasetError) as caught:
        load_file(tmp_path / name, text)
    assert where in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_a_missing_file_is_refused_with_its_field(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"val_file=.*cannot be read"):
        load_tasks(Config(train_dataset=f"{__name__}:NAMES", val_file=str(tmp_path / "none.jsonl")))


def test_python_datasets_are_sequences_or_functions_giving_one() -> None:
    assert load_tasks(Config(train_dataset=f"{__name__}:from_function")).train == ("made",)
    assert load_tasks(Config(train_dataset=f"{__name__}:FROM_PYTHON")).train == (
        {"n": 3, "x": 0.5, "xs": [0, 1], "pair": [1, 2]},
    )


@pytest.mark.parametrize(
    ("attribute", "problem"),
    [
        ("NOT_JSON", r"task 0, 'blob': .*bytes"),
        ("ONE_MAPPING", "expected a sequence of tasks"),
        ("failing_function", r"RuntimeError at test_dataset\.py:\d+; `python -c .*` shows its message"),
    ],
)
def test_a_python_dataset_that_is_no_list_of_json_values_is_refused(attribute: str, problem: str) -> None:
    with pytest.raises(DatasetError, match=problem):
        load_tasks(Config(train_dataset=f"{__name__}:{attribute}"))


def test_training_tasks_are_named_exactly_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_file=FILE or train_dataset"):
        load_tasks(Config())
    with pytest.raises(ConfigError, match="not both"):
        load_tasks(Config(train_file=str(tmp_path / "d.csv"), train_dataset=f"{__name__}:NAMES"))


def test_the_validation_split_is_a_partition_that_only_the_seed_decides() -> None:
    config = Config(train_dataset=f"{__name__}:NAMES", val_fraction=0.34, seed=3)
    tasks = load_tasks(config)
    assert sorted(tasks.train + tasks.val) == NAMES
    assert len(tasks.val) == 2
    assert list(tasks.train) == sorted(tasks.train)
    assert load_tasks(config) == tasks
    assert len({load_tasks(chz.replace(config, seed=seed)).val for seed in range(10)}) > 1
    assert load_tasks(chz.replace(config, val_dataset=f"{__name__}:from_function")).val == ("made",)


def test_the_fingerprint_covers_content_and_order_but_not_spelling(tmp_path: Path) -> None:
    def fingerprint(text: str) -> dict[str, Any]:
        (tmp_path / "d.jsonl").write_text(text)
        return load_tasks(Config(train_file=str(tmp_path / "d.jsonl"))).fingerprint()

    first = fingerprint('{"a":1,"b":2}\n{"a":3}\n')
    assert first["val"] is None
    assert first["train"]["rows"] == 2
    assert fingerprint('{ "b": 2, "a": 1 }\n\n{"a":3}') == first
    assert fingerprint('{"a":3}\n{"a":1,"b":2}\n') != first
    assert fingerprint('{"a":1,"b":2}\n{"a":"3"}\n') != first


def test_reading_jsonl_loads_neither_pandas_nor_pyarrow(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text("1\n")
    program = (
        "import sys; from orchestrator.config import Config; from orchestrator.rollouts.dataset import load_tasks; "
        f"load_tasks(Config(train_file={str(tmp_path / 'd.jsonl')!r})); "
        "print({'pandas', 'pyarrow', 'numpy'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "set()"


def test_further_evaluation_sets_come_after_the_first_each_with_its_own_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "hard.jsonl").write_text('"h"\n')
    evals = (f"hard={tmp_path / 'hard.jsonl'}", f"long={__name__}:from_function")
    tasks = load_tasks(Config(train_dataset=f"{__name__}:NAMES", val_dataset=f"{__name__}:NAMES", evals=evals))
    assert list(tasks.eval_sets.items()) == [("test", tuple(NAMES)), ("test/hard", ("h",)), ("test/long", ("made",))]
    fingerprint = tasks.fingerprint()
    assert list(fingerprint) == ["train", "val", "test/hard", "test/long"]
    assert eval_set_sizes(fingerprint) == {area: len(found) for area, found in tasks.eval_sets.items()}


@pytest.mark.parametrize(
    ("evals", "told"),
    [
        (("hard.jsonl",), "expected NAME=FILE"),
        (("a/b=hard.jsonl",), "letters, digits"),
        (("a=",), "expected NAME=FILE"),
        (("a=empty.jsonl",), "no tasks"),
        (("a=missing.jsonl",), "evals=a=missing.jsonl: cannot be read"),
        ((f"a={__name__}:NAMES", f"a={__name__}:NAMES"), "names that differ"),
    ],
)
def test_an_evaluation_set_that_cannot_be_is_refused(
    evals: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigError, match=told):
        load_tasks(Config(train_dataset=f"{__name__}:NAMES", evals=evals))
