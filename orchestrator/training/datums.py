"""A train step as it is stored before it is sent: every datum, and all that decides what is done with them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tinker
import zstandard

from orchestrator.disk import DISK, Disk
from orchestrator.errors import SideFileDamagedError
from orchestrator.journal.durable import sha256_of, write_durably
from orchestrator.names import batch_name

ADVICE = "restore the file from a backup; without it the batches since the last checkpoint cannot be redone"


@dataclass(frozen=True, slots=True)
class TrainStepInput:
    """What one batch's train step sends, independent of the configuration of the process that sends it."""

    batch: int
    learning_rate: float
    loss_fn: str
    loss_fn_config: dict[str, float] | None
    num_substeps: int
    """Optimizer steps in one pass; fewer where there are fewer datums."""
    orders: tuple[tuple[int, ...], ...]
    """For each pass over the datums, the order in which they are sent: a permutation of ``range(len(datums))``."""
    metrics: dict[str, float]
    """What was measured while the datums were made: stored, so that a step sent again reports the same."""
    datums: tuple[tinker.Datum, ...]
    """With their ``mask``, which is not sent."""

    @property
    def optim_steps(self) -> int:
        """Optimizer steps taken by all passes."""
        return len(self.orders) * min(self.num_substeps, len(self.datums))

    @property
    def trained_tokens(self) -> int:
        """Input tokens sent, every pass counted."""
        return len(self.orders) * sum(datum.model_input.length for datum in self.datums)


def datum_path(log_path: Path, batch: int) -> Path:
    """Where the train step of ``batch`` is stored."""
    return log_path / "datums" / f"{batch_name(batch)}.jsonl.zst"


def store(log_path: Path, step: TrainStepInput, *, disk: Disk = DISK) -> str:
    """Writes ``step`` durably, whole or not at all, and returns the file's sha256.

    The file is zstd-compressed JSON lines: a header with every field but the datums, then a datum a line.
    """
    header = asdict(step)
    del header["datums"]
    lines = [header, *(_datum_to_json(datum) for datum in step.datums)]
    text = "".join(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n" for line in lines)
    path = datum_path(log_path, step.batch)
    data = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(text.encode())
    write_durably(path, data, disk=disk)
    return sha256_of(path)


def same_datum(one: tinker.Datum, other: tinker.Datum) -> bool:
    """Whether both are stored as the same bytes; the SDK's own ``==`` also compares where their tensors are kept."""
    return _datum_to_json(one) == _datum_to_json(other)


def check(log_path: Path, batch: int, *, sha256: str | None) -> None:
    """Looks at the stored train step of ``batch`` without decoding it.

    Raises:
        SideFileDamagedError: the file is missing, or does not have the journaled ``sha256`` (None: any).
    """
    path = datum_path(log_path, batch)
    if not path.exists():
        raise SideFileDamagedError(f"{path}: the stored datums of batch {batch} are missing; {ADVICE}")
    if sha256 is not None and (found := sha256_of(path)) != sha256:
        raise SideFileDamagedError(f"{path}: sha256 is {found}, the journal says {sha256}; {ADVICE}")


def load(log_path: Path, batch: int, *, sha256: str | None = None) -> TrainStepInput:
    """The train step that ``store`` wrote for ``batch``.

    Raises:
        SideFileDamagedError: the file is missing, does not have the journaled ``sha256``, or does not decode.
    """
    path = datum_path(log_path, batch)
    check(log_path, batch, sha256=sha256)
    try:
        header, *rows = (json.loads(line) for line in _decompress(path.read_bytes()).splitlines())
        header["orders"] = tuple(tuple(order) for order in header["orders"])
        step = TrainStepInput(**header, datums=tuple(_datum_from_json(row) for row in rows))
    except (zstandard.ZstdError, ValueError, KeyError, TypeError) as error:
        raise SideFileDamagedError(f"{path}: cannot be decoded ({type(error).__name__}: {error}); {ADVICE}") from error
    if step.batch != batch:
        raise SideFileDamagedError(f"{path}: holds the datums of batch {step.batch}, expected {batch}; {ADVICE}")
    return step


def _decompress(data: bytes) -> bytes:
    """The content of one whole zstd frame, which must be all that ``data`` is.

    Not with ``stream_reader``: read line by line it never ends where the frame was cut short.
    """
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    content = decompressor.decompress(data)
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("it was cut short, or something follows it")
    return content


def _datum_to_json(datum: tinker.Datum) -> dict[str, Any]:
    # Each float32 is written as the double of the same value, so reading it back gives the same bits.
    tensors = {
        name: {"dtype": tensor.dtype, "shape": tensor.shape, "data": tensor.data}
        for name, tensor in datum.loss_fn_inputs.items()
    }
    return {"tokens": datum.model_input.to_ints(), "loss_fn_inputs": tensors}


def _datum_from_json(row: dict[str, Any]) -> tinker.Datum:
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(row["tokens"]),
        loss_fn_inputs={name: tinker.TensorData(**tensor) for name, tensor in row["loss_fn_inputs"].items()},
    )
