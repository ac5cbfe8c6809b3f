from pathlib import Path
from typing import Any

import pytest
from decide_fakes import write_tokenizer
from transformers import PreTrainedTokenizerFast

from decideploy.decide import RequestError
from decideploy.errors import VerificationError
from decideploy.serve.chat_template import ServedTemplate

TURNS = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}{{ mood }}"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder / "tokenizer.json"


def template(file: Path, source: Any) -> ServedTemplate:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file), bos_token="<bos>")
    tokenizer.chat_template = source
    return ServedTemplate(tokenizer)


@pytest.mark.parametrize(
    ("source", "variables"),
    [
        (TURNS, {"mood"}),
        (
            TURNS + "{% if enable_thinking %}{{ tools }}{% endif %}",
            {"mood", "enable_thinking"},
        ),
        (TURNS + "{{ range(3) | list }}{{ raise_exception }}{{ strftime_now('%Y') }}", {"mood"}),
        (TURNS + "{{ add_generation_prompt }}{{ conversations }}{{ documents }}{{ padding }}", {"mood"}),
        (TURNS + "{{ eos_token }}{% set own = 1 %}{{ own }}", {"mood"}),
        (TURNS + "{% generation %}{{ inner }}{% endgeneration %}", {"mood", "inner"}),
    ],
)
def test_a_request_may_set_what_the_template_reads_and_nothing_fills(
    file: Path, source: str, variables: set[str]
) -> None:
    assert template(file, source).variables == variables


def test_the_template_is_rendered_with_the_values(file: Path) -> None:
    assert template(file, TURNS)([{"role": "user", "content": "Hm"}], {"mood": "!"}) == "<bos>Hm!"


def test_values_that_the_template_cannot_use_are_the_requests_fault(file: Path) -> None:
    render = template(file, TURNS + "{{ mood + 1 }}")
    with pytest.raises(RequestError, match="does not take these values") as caught:
        render([], {"mood": []})
    assert (caught.value.param, caught.value.code) == ("chat_template_kwargs", "bad_template_kwargs")


@pytest.mark.parametrize("source", ["{% if %}", {"rag": TURNS}])
def test_what_is_no_template_is_a_fault_of_the_model(file: Path, source: Any) -> None:
    with pytest.raises(VerificationError, match="the chat template cannot be read"):
        template(file, source)
