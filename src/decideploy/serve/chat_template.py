"""The chat template of the served tokenizer, and which of its variables a request may set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Final

from jinja2 import TemplateSyntaxError
from jinja2.meta import find_undeclared_variables
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from decideploy.decide.thinking import template_fault
from decideploy.errors import Diagnostic, VerificationError

# What transformers gives the template besides the caller's values: its own parameters under their own names.
TAKEN: Final = frozenset(
    {
        "messages",
        *signature(PreTrainedTokenizerBase.apply_chat_template).parameters,
        *signature(render_jinja_template).parameters,
    }
)


class ServedTemplate:
    """The chat template of transformers' ``tokenizer``; VerificationError when it is no Jinja template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.variables = settable_variables(tokenizer)

    def __call__(self, messages: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> str:
        """``messages`` as a prompt; RequestError when the template does not take ``values``."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **values
            )
        # A template may do anything with a caller's values, and fail in any way.
        except Exception as error:
            raise template_fault(f"the chat template does not take these values: {error}") from error
        return text


def settable_variables(tokenizer: Any) -> frozenset[str]:
    """The names that the chat template reads and that neither Jinja nor transformers fills."""
    try:
        source = tokenizer.get_chat_template()
        # Its globals and tags are those with which the template is rendered.
        compiled = _compile_jinja_template(source)
        read = find_undeclared_variables(compiled.environment.parse(source))
    except (TemplateSyntaxError, ValueError) as error:
        raise _malformed(str(error)) from error
    special = {*tokenizer.special_tokens_map, *PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES}
    return frozenset(read - compiled.globals.keys() - TAKEN - special)


def _malformed(reason: str) -> VerificationError:
    fault = Diagnostic(
        code="chat-template-malformed",
        what=f"the chat template cannot be read: {reason}",
        where="chat_template.jinja",
        next_step="take chat_template.jinja from the pinned revision",
    )
    return VerificationError(fault.what, issues=(fault,))
