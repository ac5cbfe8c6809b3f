"""The demo model's tokenizer: Gemma's pipeline and ids over a small vocabulary.

Every control token, byte token and verbalizer has the id it has in Gemma's vocabulary, so that code which assumes
one of them is right or wrong on both. The other rows are words of the list below and ``<unusedN>`` tokens.
"""

from __future__ import annotations

from itertools import count
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

_WORDS = """
a about above accept access account across act action active add after again against age agent all allow almost
alone already also always am amount an and angry annual another answer any anyone appeal application apply are area
army around art article as ask asks at author away back bad bag balance bank base be because become bed before began
behind being best better between big bill bird blue board boat body book both bottom box boy break bridge bring broken
brother budget bug build building business but button buy by call called calm came can cancel cannot car card care
careful carry case cat cause center certain change charge cheap check child children choice choose city claim class
clean clear client close cloud coat code cold color come comes common company complain complete computer confirm
contact contract control cook cool copy correct cost could country course cover credit critical cross crowd customer
cut daily damage danger dark data date day days deal dear decide decision deep delay deliver delivery did different
direct dirty do doctor does dog done door down draft draw dream drive driver dry due during each early earth east easy
eat email empty end engine enough enter error even evening event ever every evidence exact example excellent
exchange expect expensive expired explain eye face fact fail failed fair false family far farm fast father fault fear
feel few field file fill final find fine fire first fish fix flag flat flight floor flower fly follow food for force
forest form found free fresh friend from front fruit full garden gave general get girl give given glass go goal goes
gold good great green ground group grow guest had half hand happen happy hard has have he head health hear heart heat
heavy held help her here high hill him his hold home hope horse hospital hot hotel hour hours house how however human
hundred hungry husband ice idea if image important in inch include income inside intent into invoice is island it item
its job join journey judge just keep kept key kind king kitchen know known lady lake land language large last late
later laugh law lead learn leave left legal less let letter level license lie life light like limit line list little
live load local lock log long look lost loud love low machine made mail main make man manager many map mark market
matter may me mean measure meat medium meet meeting member memory men message metal middle might mile milk mind minor
minute minutes miss missing model money month moon more morning most mother mountain move much music must my name near
need negative neutral never new news next nice night no none nor normal north not note nothing notice now number of off
offer office often oil old on once one only open option or orange order orders other our out outside over own package
paid pain page paper parcel parent part partly party pass password past patient pay payment peace people perfect permit
person phone photo pick picture piece place plan plant play please point police policy poor position positive possible
power present press price private problem process product profit program promise proof protect prove public pull
purple push put quality quarter queen question quick quiet quite rain ran rate reach read ready real reason receipt
received record red refund refuse reject release remain remember repair repeat reply report request rest result return
review rice rich ride right risk river road rock roof room round route rule run safe said sail sale salt same sand
saturday save say says school science screen sea season seat second secret security see seem sell send sensor sent
server service set seven several shall shape share sharp she sheet ship shoe shop short should show shut sick side sign
signal silver simple since sing single sister sit site six size skin sky sleep slow small smile snow so soft sold some
song soon sorry sound south space speak spam special speed spend spoke spring staff stand star start state station stay
steel step still stock stone stop store storm story street strong student study such sugar summer sun supply support
sure surface sweet swim system table take talk tall tax tea teacher team tell ten test text than thank that the their
them then there these they thing think third this those though thousand three through ticket time tiny tired to today
together told tomorrow too took top total touch toward tower town toy track train travel tree trip true trust try turn
two type under unit unknown until unusual up upon urgent us use user usual valid value very view village visit voice
wait walk wall want warm warn was wash watch water way we weak wear weather week weekend well went were west wet what
wheel when where which while white who whole why wide wife wild will wind window winter wire wish with without woman
women wonder wood word work world worse would write wrong year yellow yes yesterday yet you young your zero
"""


def merged_words() -> list[str]:
    """Words with a token of their own, in the order of their ids, ``▁`` standing for the space before them."""
    return [f"▁{word}" for word in dict.fromkeys(_WORDS.split())] + _BARE_WORDS.split()


def _merges(words: list[str]) -> list[tuple[str, str]]:
    """Prefix by prefix merges that build each word.

    ``▁``-words come first: a pair that starts with ``▁`` then always wins over a pair inside the word,
    so no bare word's merge can take a spaced word apart.
    """
    pairs = ((word[:end], word[end]) for word in words for end in range(1, len(word)))
    return list(dict.fromkeys(pairs))


def vocabulary() -> dict[str, int]:
    """Every token and its id; all ids of ``[0, 262144)`` are taken."""
    vocab = CONTROL_TOKENS | VERBALIZERS | {"\n": _NEWLINE_ID}
    vocab |= {f"<0x{byte:02X}>": _FIRST_BYTE_ID + byte for byte in range(256)}
    merged = dict.fromkeys(left + right for left, right in _merges(merged_words()))
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


def used_ids() -> list[int]:
    """Ids of all tokens but the unused ones."""
    return [token_id for token, token_id in vocabulary().items() if not token.startswith("<unused")]


def tokenizer_json() -> dict[str, Any]:
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
            "vocab": vocabulary(),
            "merges": [list(pair) for pair in _merges(merged_words())],
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
        "model_specific_special_tokens": {
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
        },
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
