"""The tools that an agent offers the model with a request, and the calls of them that its replies hold."""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinker_cookbook.renderers import ToolCall, ToolSpec

from orchestrator.rollouts.requests import RequestError, is_json_object

TOOL_RENDERERS = ("qwen3", "deepseekv3", "deepseekv4_1", "glm5_3", "gpt_oss", "kimi_k2", "nemotron3", "tml_v0")
"""How the names of the renderers begin that have a form for tools."""
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tools:
    """What a request offers."""

    specs: tuple[ToolSpec, ...] = ()
    """Declared to the model, in the agent's order."""
    callable: bool = False
    """Whether calls are given back as such; else they are text, as the model wrote them."""
    parallel: bool = True
    """Whether a reply may hold more than one call."""

    def accept(self, calls: Sequence[ToolCall]) -> bool:
        """Whether ``calls``, which one reply holds, can be given to the agent as calls of its tools.

        That a tool is unknown is for the agent to say: it is told which one the model called.
        """
        return (
            self.callable
            and (self.parallel or len(calls) <= 1)
            and all(call.function.name and is_json_object(call.function.arguments) for call in calls)
        )


def read_tools(params: Mapping[str, Any]) -> Tools:
    """What the request's ``tools``, ``tool_choice`` and ``parallel_tool_calls`` offer.

    Under ``tool_choice`` "none" the tools stay declared, so that the prompt goes on being an extension of those before
    it, but nothing that the model writes is a call. ``strict`` is no part of what is declared: replies are sampled
    freely, and the agent checks the arguments.

    Raises:
        RequestError: the tools are not functions, or a choice would force what is sampled.
    """
    given = params.get("tools")
    if given is None:
        given = []
    if not isinstance(given, list):
        raise RequestError(f"tools: expected a list, found {type(given).__name__}")
    specs = tuple(_spec(f"tools[{position}]", tool) for position, tool in enumerate(given))
    choice = params.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise RequestError(
            "tool_choice: only auto and none are served, because the policy is trained on what it samples freely and "
            "cannot be forced to call; ask for the call in a message, or leave tool_choice out"
        )
    parallel = params.get("parallel_tool_calls")
    if not isinstance(parallel, bool | None):
        raise RequestError(f"parallel_tool_calls: expected true or false, found {parallel!r}")
    return Tools(specs, bool(specs) and choice != "none", parallel is not False)


def identified(calls: Sequence[ToolCall], prompt_tokens: Sequence[int], tokens: Sequence[int]) -> tuple[ToolCall, ...]:
    """``calls`` with an id each.

    An id that the model wrote is kept, because then it is part of the conversation, unless two calls share it. The
    others follow from what was asked and sampled, so a turn that is given again has the ids it had.
    """
    written = [call.id for call in calls]
    digest = hashlib.blake2b(struct.pack(f"<{len(prompt_tokens)}q", *prompt_tokens), digest_size=12)
    digest.update(struct.pack(f"<{len(tokens)}q", *tokens))
    made = digest.hexdigest()
    return tuple(
        call if call.id and written.count(call.id) == 1 else call.model_copy(update={"id": f"call_{made}_{position}"})
        for position, call in enumerate(calls)
    )


def _spec(where: str, tool: Any) -> ToolSpec:
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}: expected an object of type function with a `function`; no other tools are served")
    name, description, parameters = (function.get(key) for key in ("name", "description", "parameters"))
    if not (isinstance(name, str) and name):
        raise RequestError(f"{where}.function.name: expected a text that is not empty")
    if not isinstance(description, str | None):
        raise RequestError(f"{where}.function.description: expected a text, found {type(description).__name__}")
    if not isinstance(parameters, Mapping | None):
        raise RequestError(f"{where}.function.parameters: expected a JSON schema, found {type(parameters).__name__}")
    # Every key is there, because some renderers read them all; an empty schema is one without parameters.
    return ToolSpec(name=name, description=description or "", parameters=dict(parameters or NO_PARAMETERS))
