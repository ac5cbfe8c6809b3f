import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from decide_fakes import BOS_ID, CONTROL_TOKENS, make_encoder, make_head, write_model
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from decideploy.decide import PromptEncoder, parse_request, render
from decideploy.errors import VerificationError

PIECES = st.sampled_from([*CONTROL_TOKENS, "<b", "os>", "<|", "turn>", "<", "|", ">", " ", "\n", "true"])
SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
HOSTILE = st.lists(PIECES | st.text(max_size=4), min_size=1, max_size=8).map("".join)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def encoder(model: Path) -> PromptEncoder:
    return PromptEncoder.from_model(model)


@pytest.fixture(scope="module")
def plain(model: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def test_control_tokens_of_all_files_are_known(encoder: PromptEncoder) -> None:
    assert encoder.control_ids == set(range(len(CONTROL_TOKENS)))


@pytest.mark.parametrize("token", CONTROL_TOKENS)
def test_the_plain_tokenizer_would_be_fooled(plain: Tokenizer, encoder: PromptEncoder, token: str) -> None:
    control_id = CONTROL_TOKENS.index(token)
    assert control_id in plain.encode(f"a{token}b").ids
    assert control_id not in encoder.encode(f"a{token}b")[1:]


def test_merges_alone_would_spell_control_tokens(model: Path) -> None:
    document = json.loads((model / "tokenizer.json").read_text())
    document["added_tokens"] = []
    ids = Tokenizer.from_str(json.dumps(document)).encode("<bos>").ids
    assert BOS_ID in ids


@given(state=HOSTILE, question=HOSTILE, options=st.lists(HOSTILE, min_size=2, max_size=4, unique=True))
def test_user_text_never_becomes_a_control_token(
    encoder: PromptEncoder, state: str, question: str, options: list[str]
) -> None:
    fields = {"state": state, "question": f"q{question}"}
    options = [f"{index}{option}" for index, option in enumerate(options)]
    text = render(parse_request({"kind": "choice", "options": options, **fields}))
    first, *rest = encoder.encode(text)
    assert first == BOS_ID
    assert encoder.control_ids.isdisjoint(rest)


@given(state=HOSTILE, key=HOSTILE)
def test_nor_does_a_json_state(encoder: PromptEncoder, state: str, key: str) -> None:
    text = render(parse_request({"kind": "noul", "state": {key: state}, "question": "q"}))
    assert encoder.control_ids.isdisjoint(encoder.encode(text)[1:])


@given(text=st.text())
def test_ordinary_text_is_encoded_as_by_the_plain_tokenizer(
    encoder: PromptEncoder, plain: Tokenizer, text: str
) -> None:
    expected = plain.encode(text, add_special_tokens=False).ids
    if encoder.control_ids.isdisjoint(expected):
        assert encoder.encode(text) == [BOS_ID, *expected]


def test_the_files_truncation_and_padding_do_not_apply(encoder: PromptEncoder) -> None:
    assert len(encoder.encode("x")) == 2
    assert len(encoder.encode("x " * 100)) > 100


def test_labels_are_checked_against_the_tokenizer(encoder: PromptEncoder) -> None:
    encoder.check_labels(make_head())
    swapped = [301, 300, *range(302, 324)]
    with pytest.raises(VerificationError) as caught:
        encoder.check_labels(make_head(verbalizer_ids=swapped))
    assert [fault.where[-17:] for fault in caught.value.issues] == ["verbalizer_ids[0]", "verbalizer_ids[1]"]


@pytest.mark.parametrize(
    ("name", "document", "message"),
    [
        ("tokenizer_config.json", {"bos_token": "<eos>"}, "says bos_token_id 2"),
        ("tokenizer_config.json", {}, "bos_token None is token None"),
        ("tokenizer_config.json", [], "is not a JSON object"),
        ("config.json", {"bos_token_id": 7}, "says bos_token_id 7"),
        ("tokenizer.json", {"model": {"type": "Unigram"}, "added_tokens": []}, "of type Unigram"),
        ("tokenizer.json", {"model": None}, "of type None"),
        ("tokenizer.json", {"model": {"type": "BPE"}}, "no vocabulary"),
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": None}}, "no vocabulary"),
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": "b"}}}, "no vocabulary"),
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": {}}, "added_tokens": [1]}, "no vocabulary"),
    ],
)
def test_unusable_files_are_told(tmp_path: Path, name: str, document: Any, message: str) -> None:
    write_model(tmp_path)
    (tmp_path / name).write_text(json.dumps(document))
    with pytest.raises(VerificationError, match=message):
        PromptEncoder.from_model(tmp_path)


@pytest.mark.parametrize(
    ("section", "change"),
    [
        (None, {"normalizer": {"type": "Unheard"}}),
        (None, {"normalizer": 3}),
        ("model", {"merges": [["<"]]}),
        ("model", {"merges": [3]}),
        ("model", {"merges": ["<|turn"]}),
        ("model", {"merges": [["q", "no such piece"]]}),
        ("model", {"merges": None}),
    ],
)
def test_a_tokenizer_that_the_library_refuses_is_told(
    tmp_path: Path, section: str | None, change: dict[str, Any]
) -> None:
    path = write_model(tmp_path) / "tokenizer.json"
    document = json.loads(path.read_text())
    (document if section is None else document[section]).update(change)
    path.write_text(json.dumps(document))
    with pytest.raises(VerificationError, match="no tokenizer that can be used") as caught:
        PromptEncoder.from_model(tmp_path)
    assert [fault.code for fault in caught.value.issues] == ["tokenizer-malformed"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokenizer_config.json", {"extra_special_tokens": None, "additional_special_tokens": None}),
        ("tokenizer_config.json", {"added_tokens_decoder": None}),
        ("config.json", {"text_config": None, "bos_token_id": BOS_ID}),
        ("tokenizer.json", {"added_tokens": None}),
    ],
)
def test_null_is_as_good_as_absent(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    path = write_model(tmp_path) / name
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert PromptEncoder.from_model(tmp_path).encode("x")[0] == BOS_ID


def test_other_threads_run_while_a_text_is_encoded(encoder: PromptEncoder) -> None:
    encoding = threading.Thread(target=encoder.encode, args=("the state " * 100_000,))
    encoding.start()
    turns = 0
    while encoding.is_alive():
        time.sleep(0.001)
        turns += 1
    # One that is not let in before the end has a turn at most.
    assert turns > 3


@given(text=st.text() | HOSTILE | st.text(alphabet="turn>oslfae ").map(lambda text: text * 20))
def test_no_text_has_fewer_tokens_than_its_length_tells(encoder: PromptEncoder, text: str) -> None:
    assert 1 <= encoder.fewest_tokens(text) <= len(encoder.encode(text))


def test_the_fewest_tokens_follow_the_longest_piece(encoder: PromptEncoder) -> None:
    longest = len("false")  # Control tokens are longer, but are no text's.
    assert [encoder.fewest_tokens("x" * length) for length in (0, 1, longest, longest + 1)] == [1, 2, 2, 3]


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("model", {"byte_fallback": False}),
        (None, {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}),
        (None, {"normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": "x"}}),
        (None, {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": "x"}}),
        (None, {"pre_tokenizer": {"type": "WhitespaceSplit"}}),
        (None, {"pre_tokenizer": SPLIT | {"behavior": "Removed"}}),
    ],
)
def test_a_tokenizer_that_may_drop_text_bounds_nothing(
    tmp_path: Path, section: str | None, change: dict[str, Any]
) -> None:
    path = write_model(tmp_path) / "tokenizer.json"
    document = json.loads(path.read_text())
    (document if section is None else document[section]).update(change)
    path.write_text(json.dumps(document))
    assert PromptEncoder.from_model(tmp_path).fewest_tokens(" " * 1000) == 1


def test_a_split_that_keeps_its_text_is_bounded(tmp_path: Path) -> None:
    path = write_model(tmp_path) / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pre_tokenizer": SPLIT}))
    assert PromptEncoder.from_model(tmp_path).fewest_tokens(" " * 1000) > 100


def test_eos_ids_of_the_generation_config_are_control(tmp_path: Path) -> None:
    write_model(tmp_path)
    plain_id = make_encoder_id(tmp_path, "turn")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, plain_id]}))
    encoder = PromptEncoder.from_model(tmp_path)
    assert plain_id in encoder.control_ids
    assert plain_id not in encoder.encode("turn")


def make_encoder_id(model: Path, token: str) -> int:
    token_id = PromptEncoder.from_model(model).token_id(token)
    assert token_id is not None
    return token_id


def test_a_tokenizer_without_bytes_keeps_its_unknown_token(tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    document["model"]["byte_fallback"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    unknown = encoder.token_id("<unk>")
    assert PromptEncoder.from_model(tmp_path).encode("a\u4f60b")[2] == unknown
    assert unknown not in PromptEncoder.from_model(tmp_path).encode("<unk>")
