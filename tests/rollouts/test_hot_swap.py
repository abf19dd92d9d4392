"""Laws of a swap: whoever calls meanwhile is answered, by one policy, and knows nothing of it."""

import asyncio
import resource
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from rollouts.calls import Attempt, text_of

from orchestrator.errors import StateFailedError
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, StoredRollout
from orchestrator.rollouts.trajectories import form_training_batch
from orchestrator.testing import FakeSamplingClient

NUM_SWAPS = 1_000
NUM_CLIENTS = 4
WEIGHTS_BYTES = 2**20
MAX_GROWTH_BYTES = 64 * 2**20
"""Of the second half of the swaps, whose policies come to 500 MB."""


def peak_bytes() -> int:
    """The most memory that this process ever had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Weights(FakeSamplingClient):
    """A sampling client that says its version, and is large enough to be missed if it were kept."""

    def __init__(self, tokens: list[int]) -> None:
        super().__init__(lambda _prompt, _params: tokens)
        self.weights = bytearray(b"x" * WEIGHTS_BYTES)


async def test_a_thousand_swaps_under_load_mix_nothing_and_keep_nothing(
    served: Any, http: Any, encode: Callable[[str], list[int]], decode: Callable[..., str]
) -> None:
    """H25: every call is held until the next version is published, so all of them straddle a swap."""
    keys = [RolloutKey(0, "train", 0, member) for member in range(NUM_CLIENTS)]
    answered: list[int] = []
    swapping = True

    async def calls(key: RolloutKey) -> None:
        while swapping:
            attempt = Attempt(served, http, key)
            answer = text_of(await attempt.ask())
            (turn,) = attempt.turns()
            assert decode(turn.sampled_tokens) == answer == str(turn.policy_version)
            answered.append(turn.policy_version)

    async def swap(version: int, old: FakeSamplingClient) -> Weights:
        await asyncio.to_thread(old.arrived.get, timeout=10)
        new = Weights(encode(f"{version}"))
        new.hold()
        await served.publish(new, policy_version=version)
        old.release()
        return new

    policy = Weights(encode("0"))
    policy.hold()
    await served.publish(policy)
    policies, peaks = [weakref.ref(policy)], []
    async with asyncio.TaskGroup() as clients:
        for key in keys:
            clients.create_task(calls(key))
        for version in range(1, NUM_SWAPS + 1):
            policy = await swap(version, policy)
            policies.append(weakref.ref(policy))
            if version % (NUM_SWAPS // 2) == 0:
                peaks.append(peak_bytes())
        swapping = False
        policy.release()
    assert set(answered) >= set(range(NUM_SWAPS))
    assert sum(kept() is not None for kept in policies) <= 2
    assert peaks[1] - peaks[0] < MAX_GROWTH_BYTES


async def test_a_rollout_that_straddles_two_versions_is_known_as_such_and_not_trained(
    attempt: Attempt, served: Any, saying: Callable[..., Any]
) -> None:
    for version in (4, 5):
        await served.publish(saying("7"), policy_version=version)
        await attempt.ask(messages=[{"role": "user", "content": str(version)}])
    turns = attempt.turns()
    assert [turn.policy_version for turn in turns] == [4, 5]
    stored = StoredRollout(
        key=RolloutKey(5, "train", 0, 0),
        attempt=0,
        last=True,
        outcome=Outcome.SUCCEEDED,
        reward=1.0,
        turns=turns,
        error=None,
        task_sha256="",
    )
    with pytest.raises(StateFailedError, match=r"turn 0: sampled under policy version 4, expected 5"):
        form_training_batch([stored], policy_version=5, group_size=1)
