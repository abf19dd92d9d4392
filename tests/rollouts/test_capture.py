"""Laws of capture: nothing depends on timing, and what is over takes no more."""

from itertools import permutations

from orchestrator.rollouts.capture import Call, Capture, call_seed
from orchestrator.rollouts.outcomes import RolloutKey, Turn

KEY = RolloutKey(3, "train", 1, 2)


def turn(prompt: tuple[int, ...], sampled: int) -> Turn:
    return Turn(prompt, (sampled,), (-0.5,), 3, "stop")


def test_a_seed_is_a_function_of_run_rollout_attempt_prompt_and_repeat() -> None:
    base = (7, KEY, 0, (1, 2, 3), 0)
    variants = [
        (8, KEY, 0, (1, 2, 3), 0),
        (7, RolloutKey(4, "train", 1, 2), 0, (1, 2, 3), 0),
        (7, RolloutKey(3, "eval", 1, 2), 0, (1, 2, 3), 0),
        (7, KEY, 1, (1, 2, 3), 0),
        (7, KEY, 0, (1, 2), 0),
        (7, KEY, 0, (1, 2, 3), 1),
    ]
    assert len({call_seed(*base), *(call_seed(*variant) for variant in variants)}) == 1 + len(variants)
    assert all(0 <= call_seed(*variant) < 2**31 for variant in variants)


def test_the_same_prompt_asked_again_gets_another_seed_and_the_attempt_replayed_gets_the_same_ones() -> None:
    def seeds() -> list[int]:
        capture = Capture(run_seed=7)
        capture.register("r", "a", KEY, 0)
        calls = [capture.begin("r", "a", (1, 2)) for _ in range(3)]
        return [call.seed for call in calls if call is not None]

    assert len(set(seeds())) == 3
    assert seeds() == seeds()


def test_turns_taken_one_after_another_keep_their_order_whatever_their_prompts() -> None:
    prompts = [(9, 1), (1,), (5, 5)]
    capture = Capture(run_seed=7)
    capture.register("r", "a", KEY, 0)
    for index, prompt in enumerate(prompts):
        call = capture.begin("r", "a", prompt)
        assert call is not None
        assert capture.record(call, [turn(prompt, index)])
    assert [taken.prompt_tokens for taken in capture.collect("r", "a")] == prompts


def test_a_call_that_came_to_nothing_does_not_overlap_with_those_after_it() -> None:
    capture = Capture(run_seed=7)
    capture.register("r", "a", KEY, 0)
    failed = capture.begin("r", "a", (7,))
    assert failed is not None
    capture.abandon(failed)
    for index, prompt in enumerate([(9, 1), (1,)]):
        call = capture.begin("r", "a", prompt)
        assert call is not None
        assert capture.record(call, [turn(prompt, index)])
    assert [taken.prompt_tokens for taken in capture.collect("r", "a")] == [(9, 1), (1,)]


def test_turns_in_flight_at_once_are_ordered_by_their_prompts_whatever_finished_first() -> None:
    prompts = [(1,), (1, 5, 2), (1, 5, 2, 6, 3), (9, 1)]
    collected = set()
    for order in permutations(range(len(prompts))):
        capture = Capture(run_seed=7)
        capture.register("r", "a", KEY, 0)
        calls = [capture.begin("r", "a", prompt) for prompt in prompts]
        for index in order:
            call = calls[index]
            assert call is not None
            assert capture.record(call, [turn(prompts[index], index)])
        collected.add(capture.collect("r", "a"))
    assert collected == {tuple(turn(prompt, index) for index, prompt in enumerate(prompts))}


def test_a_turn_sampled_after_its_attempt_is_over_is_dropped_and_counted() -> None:
    capture = Capture(run_seed=7)
    capture.register("r", "a", KEY, 0)
    call = capture.begin("r", "a", (1,))
    assert call is not None
    assert capture.collect("r", "a") == ()
    assert not capture.record(call, [turn((1,), 4)])
    assert capture.late_turns == 1
    assert capture.begin("r", "a", (1,)) is None
    assert capture.key_of("r", "a") is None


def test_a_late_turn_never_reaches_the_next_attempt_of_the_same_rollout() -> None:
    capture = Capture(run_seed=7)
    capture.register("r", "first", KEY, 0)
    late = capture.begin("r", "first", (1,))
    assert late is not None
    capture.collect("r", "first")
    capture.register("r", "second", KEY, 1)
    capture.record(late, [turn((1,), 4)])
    assert capture.collect("r", "second") == ()


def begun(capture: Capture, prompt: tuple[int, ...], *, again: bool = False) -> Call:
    call = capture.begin("r", "a", prompt, again=again)
    assert call is not None
    return call


def test_a_call_made_again_for_want_of_a_reply_takes_the_place_of_the_newest_one_of_its_prompt() -> None:
    """In flight or answered: the agent got its reply to neither, and has one reply more than it has turns otherwise."""
    for answered in (True, False):
        capture = Capture(run_seed=7)
        capture.register("r", "a", KEY, 0)
        other, lost = begun(capture, (1,)), begun(capture, (1,))
        assert capture.record(other, [turn((1,), 3)])
        if answered:
            assert capture.record(lost, [turn((1,), 4)])
        retried = begun(capture, (1,), again=True)
        assert retried.seed == lost.seed
        if not answered:
            assert not capture.record(lost, [turn((1,), 4)])
        assert capture.record(retried, [turn((1,), 4)])
        assert [taken.sampled_tokens for taken in capture.collect("r", "a")] == [(3,), (4,)]
        assert capture.late_turns == 1


def test_where_a_call_is_known_to_be_lost_making_it_again_replaces_no_other() -> None:
    """As the gateway knows when sampling failed, or when the client went away before the reply was sent."""
    for recorded in (True, False):
        capture = Capture(run_seed=7)
        capture.register("r", "a", KEY, 0)
        lost, other = begun(capture, (1,)), begun(capture, (1,))
        if recorded:
            assert capture.record(lost, [turn((1,), 4)])
        capture.abandon(lost)
        assert capture.record(other, [turn((1,), 3)])
        retried = begun(capture, (1,), again=True)
        assert retried.seed == lost.seed
        assert capture.record(retried, [turn((1,), 4)])
        assert [taken.sampled_tokens for taken in capture.collect("r", "a")] == [(4,), (3,)]
        assert capture.late_turns == int(recorded)
