"""What a run relies on of any backend is required; what it can do without is tolerated, and declared here, with why.

Every test of this folder is required of every backend but for the ones below, which are required of the embedded
backend and of the test servers alone: against another server they are tried, and a failure is told as expected.
"""

from collections.abc import Mapping

TOLERATED: Mapping[str, str] = {
    "test_a_seed_gives_the_same_tokens_again": (
        "a rollout that a kill interrupted may then come out otherwise; what is stored is never sampled again"
    ),
    "test_top_k_and_top_p_leave_out_the_unlikely": "a run that sets neither asks for no such thing",
    "test_the_sum_of_token_losses_is_told": "it is then missing in the metric rows",
    "test_the_gradient_is_summed_over_datums_and_tokens": (
        "the step is then another one, of another scale that Adam evens out; see compat.UNBRIDGED"
    ),
    "test_an_older_sampler_and_the_weights_being_trained_leave_each_other_alone": (
        "a run samples from the newest sampler only, which holds the weights being trained"
    ),
    "test_a_saved_sampler_can_be_deleted": "samplers are then left to the server",
}
"""By test: what becomes of a run without it."""
