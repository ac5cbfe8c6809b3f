"""Rules on the chat template: that it is there, parses, and formats a chat."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache

from decideploy.artifacts import files as names
from decideploy.artifacts import template_probe
from decideploy.artifacts.files import ModelFiles, UnavailableError
from decideploy.artifacts.issue import Finding, RuleSet
from decideploy.artifacts.safetensors_file import NotFetchedError
from decideploy.artifacts.text import TURN_TOKENS

RULES = RuleSet()

_PINNED = "take chat_template.jinja from the pinned revision"
_MAX_TEMPLATE_BYTES = 1_000_000
_PROBE_TIMEOUT_S = 60


def _chat_template(files: ModelFiles) -> str:
    """The template's text; UnavailableError where it is missing or no text."""
    fault, template = _read_template(files)
    if fault:
        raise UnavailableError(names.CHAT_TEMPLATE)
    return template


def _read_template(files: ModelFiles) -> tuple[str, str]:
    """What is wrong with the file, and its text."""
    path = files.root / names.CHAT_TEMPLATE
    if not path.is_file():
        raise UnavailableError(names.CHAT_TEMPLATE)
    if path.stat().st_size > _MAX_TEMPLATE_BYTES:
        return f"has {path.stat().st_size} bytes", ""
    try:
        template = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return f"is no UTF-8 text: {error}", ""
    if template.startswith("\ufeff"):
        return "starts with a byte order mark, which would start every prompt", ""
    return "", template


@RULES.rule(
    "chat-template-empty",
    consequence="System 2 cannot format a chat and adaptive thinking fails",
    next_step=_PINNED,
)
def chat_template_empty(files: ModelFiles) -> Iterator[Finding]:
    """The chat template has content."""
    if not _chat_template(files).strip():
        yield Finding(what="the chat template is empty", where=names.CHAT_TEMPLATE)


@RULES.rule(
    "chat-template-malformed",
    consequence="System 2 cannot format a chat and adaptive thinking fails",
    next_step=_PINNED,
)
def chat_template_malformed(files: ModelFiles) -> Iterator[Finding]:
    """The chat template is UTF-8 text and formats a chat, in Jinja's sandbox, with the user's words in it."""
    fault, template = _read_template(files)
    if fault:
        yield Finding(what=f"the chat template {fault}"[:300], where=names.CHAT_TEMPLATE)
    # The next rule tells what is missing in a template that formats nothing.
    elif template.strip() and not _missing_marks(template):
        for what in _format_faults(template):
            yield Finding(what=f"the chat template {what}"[:300], where=names.CHAT_TEMPLATE)


@lru_cache(maxsize=4)
def _format_faults(template: str) -> tuple[str, ...]:
    """What formatting a chat showed; in a process of its own, since a template may loop or hoard memory."""
    command = [sys.executable, "-P", str(template_probe.__file__)]
    try:
        done = subprocess.run(
            command, input=template.encode(), capture_output=True, check=False, timeout=_PROBE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return ("does not end",)
    if done.returncode == template_probe.NO_JINJA:
        raise NotFetchedError("jinja2")
    if done.returncode != 0:
        return ("needs more than 5 seconds or 1 GB for one chat",)
    return tuple(json.loads(done.stdout))


@RULES.rule(
    "chat-template-tokens",
    consequence="System 2 is prompted in another format than it was trained on, or never asked to think",
    next_step=_PINNED,
)
def chat_template_tokens(files: ModelFiles) -> Iterator[Finding]:
    """The chat template writes turns and knows the switch for thinking."""
    template = _chat_template(files)
    for mark in _missing_marks(template) if template.strip() else ():
        yield Finding(what=f"the chat template has no {mark}", where=names.CHAT_TEMPLATE, key=mark)


def _missing_marks(template: str) -> list[str]:
    return [mark for mark in (*TURN_TOKENS, "enable_thinking") if mark not in template]


@RULES.rule(
    "chat-template-disagrees",
    consequence="which of the two templates formats a chat depends on the library's release",
    next_step="remove chat_template from tokenizer_config.json",
)
def chat_template_disagrees(files: ModelFiles) -> Iterator[Finding]:
    """The tokenizer's configuration carries no other template."""
    inline = files.json(names.TOKENIZER_CONFIG).get("chat_template")
    template = _chat_template(files).strip()
    if inline is not None and template and (not isinstance(inline, str) or inline.strip() != template):
        yield Finding(what="chat_template is another one", where=names.TOKENIZER_CONFIG, key="chat_template")
