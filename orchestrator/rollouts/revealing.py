"""Puts what was sampled where Agent-lightning's tracer and adapters look for it: into replies and into spans."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.rollouts.compat import (
    LightningOpenTelemetry,
    LightningSpanExporter,
    OpenTelemetryConfig,
)
from orchestrator.rollouts.outcomes import Turn

RESPONSE_ID = "gen_ai.response.id"
PROMPT_IDS = "prompt_token_ids"
SAMPLED_IDS = "response_token_ids"
LOGPROBS = "logprobs.content"
FINGERPRINT = "gen_ai.openai.system_fingerprint"
FINISH_REASON = "gen_ai.completion.0.finish_reason"
"""The span attributes of a call, under the names that Agent-lightning's tracer gives them."""

_FINGERPRINT_PREFIX = "policy-version-"


def revealed(turn: Turn) -> dict[str, Any]:
    """Beside its choices a reply tells the prompt's tokens and, as ``system_fingerprint``, the version."""
    return {
        "prompt_token_ids": list(turn.prompt_tokens),
        "system_fingerprint": f"{_FINGERPRINT_PREFIX}{turn.policy_version}",
    }


def logprobs_of(turn: Turn, decode: Callable[[list[int]], str]) -> dict[str, Any] | None:
    """Each sampled token's logprob in OpenAI's form; a turn without one for each token tells none at all."""
    if not turn.valid:
        return None
    return {
        "content": [
            {"token": decode([token]), "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in zip(turn.sampled_tokens, turn.logprobs, strict=True)
        ]
    }


def revealed_version(attributes: Mapping[str, Any]) -> int | None:
    """The policy version that a call's span tells; None where it tells none."""
    told = str(attributes.get(FINGERPRINT, "")).removeprefix(_FINGERPRINT_PREFIX)
    return int(told) if told.isdecimal() else None


class TokenTelemetry(LightningOpenTelemetry):  # type: ignore[misc]  # Agent-lightning's classes are Any here
    """The proxy's spans, with what ``revealed`` and ``logprobs_of`` tell in them."""

    def __init__(self) -> None:
        """With a tracer provider of its own, and no text of a message in a span.

        Agent-lightning's own constructor takes, or becomes, the provider of the process. There a store server in the
        same process finds it, and the spans of its requests wait for the exporter, which waits for the server.
        """
        config = OpenTelemetryConfig(
            exporter=LightningSpanExporter(), skip_set_global=True, capture_message_content="NO_CONTENT"
        )
        super(LightningOpenTelemetry, self).__init__(config=config)

    def set_attributes(self, span: Any, kwargs: Any, response_obj: Any) -> None:
        """Ids are written as text: OpenTelemetry makes tuples of lists, and the adapter takes no tuple for ids."""
        super().set_attributes(span, kwargs, response_obj)
        choices = (response_obj or {}).get("choices")
        if not choices:
            return
        ids = {PROMPT_IDS: response_obj.get("prompt_token_ids"), SAMPLED_IDS: choices[0].get("token_ids")}
        logprobs = choices[0].get("logprobs")
        told = {
            **{name: json.dumps(value) for name, value in ids.items() if value},
            FINGERPRINT: response_obj.get("system_fingerprint") or "",
            FINISH_REASON: choices[0].get("finish_reason") or "",
        }
        if logprobs is not None:
            told[LOGPROBS] = json.dumps([{"logprob": entry.logprob} for entry in logprobs.content])
        span.set_attributes(told)
