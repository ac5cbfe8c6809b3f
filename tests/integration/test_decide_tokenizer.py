"""Ordinary text is encoded exactly as transformers' own tokenizer of the model encodes it."""

from pathlib import Path

import pytest

from decideploy.decide import PromptEncoder, parse_request, render

pytestmark = pytest.mark.integration

TEXTS = (
    "plain text",
    "  two  spaces, a\ttab and\n\n\nlines ",
    "Zoë naïve 你好 🙂 \u200b\u0301",
    '{"key": [1, 2.5, null], "html": "<b>bold</b> & <i>"}',
    render(parse_request({"kind": "score", "state": {"a": 1}, "question": "How good\nis it?"})),
    render(parse_request({"kind": "choice", "state": "s", "question": "q", "options": ["x", "y z"]})),
)


@pytest.mark.parametrize("text", TEXTS)
def test_equals_transformers(demo_model: Path, text: str) -> None:
    from transformers import AutoTokenizer

    assert (
        PromptEncoder.from_model(demo_model).encode(text)
        == AutoTokenizer.from_pretrained(demo_model)(text).input_ids
    )
