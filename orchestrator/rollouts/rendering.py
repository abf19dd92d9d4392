"""Between messages and tokens: what the model is shown for a conversation, and what the tokens it sampled say.

A prompt shows the model its own earlier replies as it sampled them. Rendered again, a reply may come out as other
tokens that read the same: text has many tokenizations, and a tool call many spellings. Where the renderer reads the
same message in both, the sampled ones are put back (``Rendering.as_sampled``), so that the prompt extends the turn
before it. Where it does not (thinking left out of the history, a reply that was cut or that the agent changed) the
prompt stays as rendered, and the trajectory splits into datums there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from tinker import types
from tinker_cookbook.renderers import (
    Message,
    ParseTermination,
    RenderContext,
    Renderer,
    ToolCall,
    ensure_text,
    get_text_content,
)

from orchestrator.rollouts.outcomes import Turn
from orchestrator.rollouts.requests import RequestError
from orchestrator.rollouts.tools import TOOL_RENDERERS, Tools, identified

log = structlog.get_logger(__name__)

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """One sampled sequence: what is kept of it, and what the agent is answered."""

    turn: Turn
    """What is kept and trained."""
    text: str
    thinking: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    """Each with an id."""

    @property
    def finish_reason(self) -> str:
        """Why the reply ends, in OpenAI's words."""
        return "tool_calls" if self.tool_calls else self.turn.stop_reason


@dataclass(frozen=True, slots=True)
class Rendering:
    """The renderer and the tokenizer of the served model."""

    renderer: Renderer
    tokenizer: Any

    def prompt_tokens(self, messages: Sequence[Message], tools: Tools, turns: Sequence[Turn] = ()) -> Tokens:
        """The prompt for the reply to ``messages``, with ``tools`` declared at its beginning.

        ``turns`` are those of the same attempt so far, in an order that arrival did not decide, shorter prompts first.

        Raises:
            RequestError: the renderer has no form for the messages or the tools.
        """
        whole = [*self._declared(messages, tools)]
        try:
            rendered = self.renderer.build_generation_prompt(whole).to_ints()
        except Exception as error:  # what a renderer raises for messages it has no form for is its own affair
            raise RequestError(
                f"messages: the renderer {self._name} cannot render this conversation ({type(error).__name__}: {error})"
            ) from error
        return self.as_sampled(tuple(rendered), turns)

    def as_sampled(self, rendered: Tokens, turns: Sequence[Turn]) -> Tokens:
        """``rendered`` with the replies in it as ``turns`` sampled them, where that reads the same.

        A turn counts where its prompt is how the tokens begin, up to and with its own earlier replies, and the renderer
        reads the same message, ended by the same stop token, in what follows as in what was sampled. Of several replies
        to one prompt that read the same, the first in ``turns`` is taken: which of them the agent has cannot be told.
        """
        tokens, settled = rendered, 0
        for turn in turns:
            begin, end = len(turn.prompt_tokens), len(turn.prompt_tokens) + len(turn.sampled_tokens)
            if begin < settled or tokens[:begin] != turn.prompt_tokens:
                continue
            if tokens[begin:end] != turn.sampled_tokens:
                length = self._length_of_same(tokens[begin:], turn.sampled_tokens)
                if length is None:
                    continue
                tokens = tokens[:begin] + turn.sampled_tokens + tokens[begin + length :]
            settled = end
        return tokens

    def stop_sequences(self, stop: Sequence[str]) -> list[Any]:
        """Where sampling ends: the service takes strings or tokens, not both.

        Beside stop tokens the agent's strings ``stop`` are left to ``reply``.
        """
        ours: list[Any] = list(self.renderer.get_stop_sequences())
        return [*ours, *stop] if all(isinstance(entry, str) for entry in ours) else ours

    def reply(self, sampled: Turn, tools: Tools, *, stop: Sequence[str] = ()) -> Reply:
        """What is kept and what is answered: up to the agent's stop string, as if sampling had ended there.

        What is no message in the renderer's form, or calls tools as ``tools`` does not allow, is all text. The answer
        follows from these arguments alone, and the turn that is kept gives the same answer again.
        """
        tokens = sampled.sampled_tokens
        ending = self._first_stop(tokens, stop)
        if ending is not None:
            kept, text = ending
            cut = replace(sampled, sampled_tokens=tokens[:kept], logprobs=sampled.logprobs[:kept], stop_reason="stop")
            return Reply(cut, text)
        message = self._message(tokens)
        calls = [] if message is None else message.get("tool_calls", [])
        if message is None or (calls and not tools.accept(calls)):
            return Reply(sampled, self.tokenizer.decode(self._without_stop(tokens)))
        made = identified(calls, sampled.prompt_tokens, tokens)
        return Reply(sampled, self._text_beside(calls, message), _thinking(message), made)

    @property
    def _name(self) -> str:
        return type(self.renderer).__name__

    def _declared(self, messages: Sequence[Message], tools: Tools) -> Sequence[Message]:
        """``messages``, their system message merged with the declaration of the tools."""
        if not tools.specs and not any("tool_calls" in message for message in messages):
            return messages
        system = [messages[0]] if messages[0]["role"] == "system" else []
        try:
            declaration = self.renderer.create_conversation_prefix_with_tools(
                list(tools.specs), "".join(ensure_text(message["content"]) for message in system)
            )
        except NotImplementedError as error:
            raise RequestError(
                f"tools: the renderer of this run ({self._name}) has no form for tools and their calls; describe them "
                f"in a message, or start a run with a renderer_name of {', '.join(TOOL_RENDERERS)}"
            ) from error
        except Exception as error:  # as in prompt_tokens
            raise RequestError(
                f"tools: the renderer {self._name} cannot render them ({type(error).__name__}: {error})"
            ) from error
        return [*declaration, *messages[len(system) :]] if tools.specs else messages

    def _length_of_same(self, tokens: Tokens, sampled: Tokens) -> int | None:
        """How many of ``tokens`` make, at their beginning, the message that ``sampled`` makes; None if they do not."""
        length = self._length_of_message(tokens)
        if length is None:
            return None
        if not self._ends(sampled):
            length -= 1  # cut off by max_tokens: the stop token was the renderer's to add, and stays
        elif tokens[length - 1] != sampled[-1] and not self._stops_at_strings:
            return None
        read = self._read(sampled)
        return length if read is not None and read == self._read(tokens[:length]) else None

    def _length_of_message(self, tokens: Tokens) -> int | None:
        """How many tokens the message at the beginning of ``tokens`` has, with its stop; None when it does not end."""
        stops: list[Any] = list(self.renderer.get_stop_sequences())
        if self._stops_at_strings:
            ending = self._first_stop(tokens, stops)
            if ending is None or not self.tokenizer.decode(tokens[: ending[0]]).endswith(tuple(stops)):
                return None
            return ending[0]
        return next((number for number, token in enumerate(tokens, start=1) if token in stops), None)

    @property
    def _stops_at_strings(self) -> bool:
        return all(isinstance(entry, str) for entry in self.renderer.get_stop_sequences())

    def _ends(self, tokens: Tokens) -> bool:
        """Whether ``tokens`` end in a stop of the renderer's; where it stops at strings, the parser says so."""
        return self._stops_at_strings or (bool(tokens) and tokens[-1] in self.renderer.get_stop_sequences())

    def _read(self, tokens: Sequence[int]) -> tuple[Message, ParseTermination] | None:
        """What the renderer reads in sampled tokens; None where it cannot say."""
        try:
            return self.renderer.parse_response(list(tokens))
        except Exception as error:  # a policy samples anything, and what a parser raises for it is its own affair
            log.debug("a reply is in no form that the renderer reads", renderer=self._name, error=type(error).__name__)
            return None

    def _message(self, tokens: Tokens) -> Message | None:
        """The message that ``tokens`` are in the renderer's form; None where they are in none."""
        read = self._read(tokens)
        if read is None or read[0].get("unparsed_tool_calls"):
            return None
        message, termination = read
        # MALFORMED is truthy. A reply that was cut off is read where nothing but text is in it.
        plain = isinstance(message["content"], str) and not message.get("tool_calls")
        return message if termination.is_clean or plain else None

    def _text_beside(self, calls: Sequence[ToolCall], message: Message) -> str:
        """The text of ``message``, without the newline before the calls where the renderer itself writes one there.

        With it, the renderer would write two when the agent sends the message back, and the prompt would not extend the
        turn.
        """
        text = get_text_content(message)
        if not calls or not text.endswith("\n"):
            return text
        context = RenderContext(idx=1, is_last=False, prev_message=Message(role="user", content=""), last_user_index=0)
        shorter = Message(role="assistant", content=text[:-1], tool_calls=list(calls))
        output = types.ModelInput(chunks=self.renderer.render_message(shorter, context).output)
        again = self._read(output.to_ints())
        return text[:-1] if again is not None and get_text_content(again[0]) == text else text

    def _first_stop(self, tokens: Tokens, stop: Sequence[str]) -> tuple[int, str] | None:
        """How many tokens complete the first stop string, and the text before it; None when there is none."""
        if not stop or not _holds(self.tokenizer.decode(tokens), stop):
            return None
        low, high = 1, len(tokens)
        while low < high:
            middle = (low + high) // 2
            if _holds(self.tokenizer.decode(tokens[:middle]), stop):
                high = middle
            else:
                low = middle + 1
        text = self.tokenizer.decode(tokens[:low])
        return low, text[: min(text.find(entry) for entry in stop if entry in text)]

    def _without_stop(self, tokens: Tokens) -> Tokens:
        return tokens[:-1] if not self._stops_at_strings and self._ends(tokens) else tokens


def _thinking(message: Message) -> str | None:
    content = message["content"]
    if isinstance(content, str):
        return None
    return "".join(part["thinking"] for part in content if part["type"] == "thinking") or None


def _holds(text: str, stop: Sequence[str]) -> bool:
    return any(entry in text for entry in stop)
