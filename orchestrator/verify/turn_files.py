"""The turns of unfinished rollouts: each is as it was written, and of a rollout that its state plays."""

from orchestrator.errors import FaultFoundError, SideFileDamagedError
from orchestrator.rollouts.outcomes import PLAYS
from orchestrator.rollouts.turns import read_calls, turn_path
from orchestrator.verify.evidence import Evidence, lines_of
from orchestrator.verify.rollout_files import group_sizes

CURE = "The next resume sets the file aside and samples its turns again; removing it does the same"


def check_turns(evidence: Evidence) -> str:
    """The turns of the state under way; those of states that were left decide nothing any more.

    Raises:
        FaultFoundError: a line is damaged, or of a rollout that the state does not play.
    """
    run, num_turns = evidence.run, 0
    mode = PLAYS.get(run.state)
    path = None if mode is None else turn_path(evidence.log_path, run.batch, mode)
    if mode is None or path is None or path.name not in evidence.names["turns"] or not path.exists():
        return "none of unfinished rollouts"
    num_groups, group_size = group_sizes(run.config, run.dataset, mode)
    for number, offset, line in lines_of(path):
        try:
            [call] = read_calls(path, [line.decode()])
        except (SideFileDamagedError, UnicodeDecodeError) as error:
            problem = str(error).partition(": ")[2]
            raise FaultFoundError(path, line=number, offset=offset, problem=problem, cure=CURE) from error
        key = call.key
        if key.group not in range(num_groups) or key.member not in range(group_size):
            problem = f"a turn of rollout {key}, which is none of {num_groups} groups of {group_size}"
        elif call.policy_version != run.batch:
            problem = f"a turn of policy version {call.policy_version}, expected {run.batch}"
        else:
            num_turns += len(call.turns)
            continue
        raise FaultFoundError(path, line=number, offset=offset, problem=problem, cure=CURE)
    return f"{num_turns} of the rollouts of the state under way"
