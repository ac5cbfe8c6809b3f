"""The demo model's tokenizer: Gemma's pipeline and ids over a small vocabulary.

Every control token, byte token and verbalizer has the id it has in Gemma's vocabulary, so that code which
assumes one of them is right or wrong on both. The other rows are words of words.txt and ``<unusedN>``
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from decideploy.demo import architecture

CONTROL_TOKENS: dict[str, int] = {
    "<pad>": 0,
    "<eos>": 1,
    "<bos>": 2,
    "<unk>": 3,
    "<mask>": 4,
    "<|tool>": 46,
    "<tool|>": 47,
    "<|tool_call>": 48,
    "<tool_call|>": 49,
    "<|tool_response>": 50,
    "<tool_response|>": 51,
    '<|"|>': 52,
    "<|think|>": 98,
    "<|channel>": 100,
    "<channel|>": 101,
    "<|turn>": 105,
    "<turn|>": 106,
    "<|image>": 255_999,
    "<|audio>": 256_000,
    "<|image|>": 258_880,
    "<|audio|>": 258_881,
    "<image|>": 258_882,
    "<audio|>": 258_883,
    "<|video|>": 258_884,
}

FALSE_TRUE = {"false": 4530, "true": 3397}
DIGITS = dict(zip("012345", (236771, 236770, 236778, 236800, 236812, 236810), strict=True))
LETTERS = dict(
    zip(
        "ABCDEFGHIJKLMNOP",
        (
            *(236776, 236799, 236780, 236796, 236788, 236811, 236823, 236814),
            *(236777, 236863, 236855, 236798, 236792, 236797, 236806, 236791),
        ),
        strict=True,
    )
)
VERBALIZERS: dict[str, int] = FALSE_TRUE | DIGITS | LETTERS
"""The 24 slot labels in slot order and their token ids."""

_NEWLINE_ID = 107
_FIRST_BYTE_ID = 238
_FIRST_MERGED_ID = 494
_FIRST_CHARACTER_ID = 236_743
_CHARACTERS = "▁" + "".join(chr(code) for code in range(33, 127))

# Words that stand bare at the start of a line in a decision's prompt or a chat turn.
_BARE_WORDS = "false true question kind state options decision noul score choice user model system thought"

_WORDS = Path(__file__).with_name("words.txt")


# The tokens that mark images, audio, channels, turns and thought, by their name in tokenizer_config.json.
MARKS = {
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
    "soc_token": "<|channel>",
    "eoc_token": "<channel|>",
    "sot_token": "<|turn>",
    "eot_token": "<turn|>",
    "think_token": "<|think|>",
    "escape_token": '<|"|>',
}


def merged_words(more: Sequence[str] = ()) -> list[str]:
    """Words with a token of their own, in id order; ``▁`` stands for the space before them.

    ``more`` are words of another model, with and without it.
    """
    words = [*(f"▁{word}" for word in _WORDS.read_text("utf-8").split()), *more]
    spaced = [word for word in words if word.startswith("▁")]
    bare = [*_BARE_WORDS.split(), *(word for word in more if not word.startswith("▁"))]
    return list(dict.fromkeys([*spaced, *bare]))


def _merges(words: Sequence[str]) -> list[tuple[str, str]]:
    """Prefix by prefix merges that build each word.

    ``▁``-words come first: a pair that starts with ``▁`` then always wins over a pair inside the word,
    so no bare word's merge can take a spaced word apart.
    """
    pairs = ((word[:end], word[end]) for word in words for end in range(1, len(word)))
    return list(dict.fromkeys(pairs))


def vocabulary(words: Sequence[str] | None = None) -> dict[str, int]:
    """Every token and its id; all ids of ``[0, 262144)`` are taken.

    ``words`` are the merged ones, by default those of the random model.
    """
    vocab = CONTROL_TOKENS | VERBALIZERS | {"\n": _NEWLINE_ID}
    vocab |= {f"<0x{byte:02X}>": _FIRST_BYTE_ID + byte for byte in range(256)}
    merged = dict.fromkeys(left + right for left, right in _merges(_or_merged(words)))
    _assign(vocab, list(merged), _FIRST_MERGED_ID)
    _assign(vocab, list(_CHARACTERS), _FIRST_CHARACTER_ID)
    _assign_unused(vocab)
    return dict(sorted(vocab.items(), key=lambda item: item[1]))


def _assign(vocab: dict[str, int], tokens: list[str], first_id: int) -> None:
    taken = set(vocab.values())
    free = (token_id for token_id in count(first_id) if token_id not in taken)
    for token in tokens:
        if token not in vocab:
            vocab[token] = next(free)


def _assign_unused(vocab: dict[str, int]) -> None:
    taken = set(vocab.values())
    free = (token_id for token_id in range(architecture.VOCAB_SIZE) if token_id not in taken)
    for number, token_id in enumerate(free):
        vocab[f"<unused{number}>"] = token_id


def _or_merged(words: Sequence[str] | None) -> Sequence[str]:
    return merged_words() if words is None else words


def used_ids(words: Sequence[str] | None = None) -> list[int]:
    """Ids of all tokens but the unused ones."""
    return [token_id for token, token_id in vocabulary(words).items() if not token.startswith("<unused")]


def tokenizer_json(words: Sequence[str] | None = None) -> dict[str, Any]:
    """tokenizer.json: normaliser, BPE with byte fallback and decoder as in Gemma's own."""
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token, token_id) for token, token_id in CONTROL_TOKENS.items()],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                bos,
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "<bos>", "type_id": 1}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [architecture.BOS_ID], "tokens": ["<bos>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary(words),
            "merges": [list(pair) for pair in _merges(_or_merged(words))],
        },
    }


def _added_token(token: str, token_id: int) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def tokenizer_config() -> dict[str, Any]:
    """tokenizer_config.json, with the names under which the processor looks for its control tokens."""
    return {
        "tokenizer_class": "GemmaTokenizer",
        "processor_class": "Gemma4Processor",
        "backend": "tokenizers",
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "model_max_length": architecture.MAX_POSITIONS,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
        **MARKS,
        "model_specific_special_tokens": MARKS,
    }


CHAT_TEMPLATE = """\
{%- set thinking = enable_thinking is defined and enable_thinking -%}
{{- bos_token -}}
{%- set turns = messages -%}
{%- set first_is_system = messages and messages[0]['role'] in ('system', 'developer') -%}
{%- macro body(content) -%}
{%- if content is string -%}
{{- content | trim -}}
{%- else -%}
{%- for part in content -%}
{%- if part['type'] == 'text' -%}{{- part['text'] -}}
{%- elif part['type'] in ('image', 'image_url') -%}{{- '<|image|>' -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- if first_is_system or thinking -%}
{{- '<|turn>system\\n' -}}
{%- if thinking -%}{{- '<|think|>\\n' -}}{%- endif -%}
{%- if first_is_system -%}{{- body(messages[0]['content']) -}}{%- set turns = messages[1:] -%}{%- endif -%}
{{- '<turn|>\\n' -}}
{%- endif -%}
{%- for message in turns -%}
{{- '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' -}}
{{- body(message['content']) -}}
{{- '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|turn>model\\n' -}}
{%- if not thinking -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}
{%- endif -%}
"""
