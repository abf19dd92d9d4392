"""A tokenizer of one token a character, with the markers of the qwen3 renderers."""

import string
from typing import Any

END = "<|im_end|>"
MARKERS = ("<|endoftext|>", "<|im_start|>", END)
VOCABULARY = {
    entry: number
    for number, entry in enumerate([*MARKERS, *string.ascii_letters, *string.digits, *string.punctuation, " ", "\n"])
}


def character_tokenizer() -> Any:
    """One token a character, and the markers of the qwen3 renderers."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel(VOCABULARY, unk_token=MARKERS[0]))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, additional_special_tokens=list(MARKERS))
