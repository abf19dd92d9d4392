"""The six states of a batch, one module each, in the order of the cycle."""

from collections.abc import Mapping

from orchestrator.context import Body
from orchestrator.names import State
from states import log, maybe_evaluate, publish_model, rollout, swap_sampler, train_step

BODIES: Mapping[State, Body] = {
    State.PUBLISH_MODEL: publish_model.body,
    State.MAYBE_EVALUATE: maybe_evaluate.body,
    State.ROLLOUT: rollout.body,
    State.TRAIN_STEP: train_step.body,
    State.SWAP_SAMPLER: swap_sampler.body,
    State.LOG: log.body,
}
