"""A byte-level BPE tokenizer with NFC, as the large models have, and the special tokens of every renderer's format."""

from functools import cache
from typing import Any

BAR = "\N{FULLWIDTH VERTICAL LINE}"
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    *(
        f"<{BAR}{name}{BAR}>"
        for name in ("begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant", "System", "Tool")
    ),
    *(
        f"<{BAR}tool▁{name}{BAR}>"
        for name in (
            *("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep"),
            *("outputs▁begin", "outputs▁end", "output▁begin", "output▁end"),
        )
    ),
    *(f"<|{name}|>" for name in ("system", "user", "assistant", "observation")),
    *(f"<|im_{name}|>" for name in ("system", "user", "assistant", "middle")),
    *(f"<|tool_calls_section_{end}|>" for end in ("begin", "end")),
    *(f"<|tool_call_{name}|>" for name in ("begin", "end", "argument_begin")),
    *(f"<|{name}|>" for name in ("start", "end", "message", "channel", "constrain", "return", "call")),
    "[gMASK]",
    "<sop>",
)
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""One token each, but not special ones, as in Qwen3."""
TEXT = "hello world, the assistant calls a tool with name and arguments; naïve café 你好 😀 User: Assistant:\n\n"


@cache
def byte_pair_tokenizer() -> Any:
    """Every byte is a token, frequent ones are merged; texts are brought to NFC before they are encoded."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([TEXT] * 3, trainer)
    inner.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=SPECIAL[0], additional_special_tokens=list(SPECIAL)
    )
