"""The protobuf bodies that the ``tinker`` SDK (0.38) sends and expects, between bytes and the SDK's own types."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tinker
from tinker import types
from tinker.proto import tinker_public_pb2 as wire

PROTOBUF = "application/x-protobuf"
DTYPES: dict[int, tuple[str, Any]] = {
    wire.DTYPE_FLOAT32: ("float32", np.float32),
    wire.DTYPE_INT64: ("int64", np.int64),
}


@dataclass(frozen=True)
class ForwardBackward:
    """One forward_backward request."""

    model_id: str
    seq_id: int
    data: list[tinker.Datum]
    loss_fn: Any
    loss_fn_config: dict[str, float] | None


def read_forward_backward(body: bytes) -> ForwardBackward:
    """The request in ``body``; of the loss options the numbers, which are all that this project sends."""
    message = wire.ForwardBackwardRequest.FromString(body)
    data = [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints(
                [token for chunk in datum.model_input for token in _numbers(chunk.encoded_text.tokens, np.int32)]
            ),
            loss_fn_inputs={name: _tensor(tensor) for name, tensor in datum.loss_fn_inputs.items()},
        )
        for datum in message.data
    ]
    config = {name: value.number for name, value in message.loss_fn_config_v2.items()}
    return ForwardBackward(message.model_id, message.seq_id, data, message.loss_fn, config or None)


def forward_backward_bytes(output: types.ForwardBackwardOutput) -> bytes:
    """The reply to a forward_backward request."""
    message = wire.ForwardBackwardOutput(
        loss_fn_output_type=output.loss_fn_output_type, metrics={name: float(x) for name, x in output.metrics.items()}
    )
    record = message.loss_fn_outputs.add(num_datums=len(output.loss_fn_outputs))
    for name in output.loss_fn_outputs[0] if output.loss_fn_outputs else ():
        arrays = [np.asarray(datum[name].data, np.float32) for datum in output.loss_fn_outputs]
        record.fields[name].dtype = wire.DTYPE_FLOAT32
        record.fields[name].data = b"".join(array.tobytes() for array in arrays)
        offsets = np.cumsum([0, *(array.nbytes for array in arrays)], dtype=np.int64)
        record.fields[name].offsets = offsets.tobytes()
    return bytes(message.SerializeToString())


def sample_bytes(sequences: Sequence[types.SampledSequence], prompt_logprobs: Sequence[float | None] | None) -> bytes:
    """The reply to a sampling request."""
    message = wire.SampleResponse()
    for sequence in sequences:
        reason = wire.STOP_REASON_STOP if sequence.stop_reason == "stop" else wire.STOP_REASON_LENGTH
        message.sequences.add(
            stop_reason=reason,
            tokens=np.asarray(sequence.tokens, np.int32).tobytes(),
            logprobs=np.asarray(sequence.logprobs, np.float32).tobytes(),
        )
    if prompt_logprobs is not None:
        message.prompt_logprobs = np.asarray(prompt_logprobs, np.float32).tobytes()  # None becomes NaN, as it should
    return bytes(message.SerializeToString())


def _tensor(message: Any) -> tinker.TensorData:
    name, dtype = DTYPES[message.dtype]
    return tinker.TensorData(data=_numbers(message.dense, dtype), dtype=name, shape=list(message.shape) or None)  # type: ignore[arg-type]


def _numbers(content: bytes, dtype: Any) -> list[Any]:
    return list(np.frombuffer(content, dtype=dtype).tolist())
