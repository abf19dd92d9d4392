"""Reads an attempt's turns in the spans that Agent-lightning's tracer or proxy left of it, through its own adapters."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from orchestrator.rollouts.attempts import AttemptResult
from orchestrator.rollouts.compat import (
    LightningStore,
    LlmProxyTraceToTriplet,
    Span,
    TracerTraceToTriplet,
)
from orchestrator.rollouts.outcomes import Outcome, Turn
from orchestrator.rollouts.revealing import FINISH_REASON, LOGPROBS, RESPONSE_ID, revealed_version

CALL_SPANS: Mapping[str, str] = {"tracer": "openai.chat.completion", "proxy": "litellm_request"}
"""The name of the span that each adapter takes a call's turn from."""
PATIENCE_SECONDS: Mapping[str, float] = {"tracer": 0.0, "proxy": 10.0}
"""The proxy's span is usually stored within 15 ms of its call's reply; a loaded machine may need more. A worker's
tracer has stored its spans before it tells that the attempt is over, after which the store takes none."""
LONGEST_PAUSE_SECONDS = 0.1


class SpanTurns:
    """The turns of attempts, as the spans in the store tell them.

    The gateway knows how many calls it answered and what it sampled for each. So it is known how many spans are still
    to come; and a turn of which the spans tell anything else than what was sampled is never trained on.
    """

    def __init__(
        self,
        adapter: Literal["tracer", "proxy"],
        store: LightningStore,
        *,
        patience_seconds: float | None = None,
    ) -> None:
        """``patience_seconds`` bounds the wait for the spans of one attempt; None: as long as those of ``adapter``."""
        self._name = adapter
        self._adapter = TracerTraceToTriplet() if adapter == "tracer" else LlmProxyTraceToTriplet()
        self._store = store
        self._patience_seconds = PATIENCE_SECONDS[adapter] if patience_seconds is None else patience_seconds

    async def adapt(self, rollout_id: str, attempt_id: str, result: AttemptResult) -> AttemptResult:
        """``result``, an attempt that succeeded by the turns that were captured, as its spans have it.

        It stands where the spans tell of those very turns; in which order, no span decides. Elsewhere its outcome is
        ``invalid``, and the captured turns are kept to account for their tokens. An attempt that did not succeed is not
        trained on, and returned as it is.
        """
        if result.outcome is not Outcome.SUCCEEDED:
            return result
        spans = await self._spans(rollout_id, attempt_id, num_calls=len(result.turns))
        turns = self.turns(spans)
        # A reply that its client lost and got when it asked again is told twice: by its seed it is the same.
        if set(turns) == set(result.turns) and Counter(turns) >= Counter(result.turns):
            return result
        problem = f"adapter={self._name}: {_difference(turns, result.turns)}; adapter=capture needs no spans"
        return replace(result, outcome=Outcome.INVALID, error=problem)

    async def _spans(self, rollout_id: str, attempt_id: str, *, num_calls: int) -> Sequence[Span]:
        """The attempt's spans, once those of all calls are among them or patience is at its end."""
        deadline = time.monotonic() + self._patience_seconds
        pause = 0.005
        while True:
            spans: Sequence[Span] = await self._store.query_spans(rollout_id, attempt_id)
            if len(self._calls(spans)) >= num_calls or time.monotonic() >= deadline:
                return spans
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _calls(self, spans: Sequence[Span]) -> dict[str, Mapping[str, Any]]:
        """The attributes of each answered call's span, by the id of the response."""
        calls = [span.attributes for span in spans if span.name == CALL_SPANS[self._name]]
        return {attributes[RESPONSE_ID]: attributes for attributes in calls if RESPONSE_ID in attributes}

    def turns(self, spans: Sequence[Span]) -> list[Turn]:
        """What the adapter makes of the spans of one attempt, in its own order; a call that was refused gives none."""
        calls = self._calls(spans)
        if not calls:
            return []
        triplets = [(triplet.metadata["response_id"], triplet) for triplet in self._adapter.adapt(spans)]
        return [_turn(triplet, calls[response_id]) for response_id, triplet in triplets if response_id in calls]


def _turn(triplet: Any, attributes: Mapping[str, Any]) -> Turn:
    """One of Agent-lightning's triplets, with what its adapters leave in the span."""
    logprobs = json.loads(attributes.get(LOGPROBS, "[]"))
    version = revealed_version(attributes)
    return Turn(
        prompt_tokens=tuple(triplet.prompt["token_ids"]),
        sampled_tokens=tuple(triplet.response["token_ids"]),
        logprobs=tuple(float(entry["logprob"]) for entry in logprobs),
        policy_version=-1 if version is None else version,
        # What is sampled ends in one of these two; a reply that is read as a call of tools ended in a stop.
        stop_reason="length" if attributes.get(FINISH_REASON) == "length" else "stop",
    )


def _difference(turns: Sequence[Turn], sampled: Sequence[Turn]) -> str:
    """What is wrong with ``turns``, in counts: tokens and texts are told nowhere."""
    counts = {
        "have no span that tells their tokens": max(len(sampled) - len(turns), 0),
        "lack token ids or logprobs in their span, or have unequal numbers of them": sum(
            not turn.valid for turn in turns
        ),
        "are not what was sampled": sum(turn.valid and turn not in sampled for turn in turns),
    }
    told = "; ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"of {len(sampled)} turns, {told or 'some are told too seldom'}"
