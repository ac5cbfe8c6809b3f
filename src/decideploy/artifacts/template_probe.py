"""Format one chat with the template on standard input; print what is wrong with it as a JSON list.

Run by path in a process of its own, with 5 seconds of CPU and 1 GB: a template may loop or hoard memory.
Exit status 3 when jinja2 is not installed. Only the standard library is imported beside it.
"""

import json
import resource
import sys
from typing import Any, NoReturn

NO_JINJA = 3
_CPU_S, _MEMORY_BYTES = 5, 1 << 30
_WORDS = "Is water wet?"


def main() -> int:
    """Print the faults; return the exit status."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    try:
        fault = _fault(sys.stdin.buffer.read().decode("utf-8"))
    except ImportError:
        return NO_JINJA
    print(json.dumps([fault] if fault else []))
    return 0


def _fault(source: str) -> str:
    environment = _environment()
    try:
        template = environment.from_string(source)
    except Exception as error:
        return f"is no Jinja template: {type(error).__name__}: {error}"
    said = {
        "messages": [{"role": "user", "content": _WORDS}],
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "add_generation_prompt": True,
    }
    try:
        plain, thought = (template.render(**said, enable_thinking=on) for on in (False, True))
    except Exception as error:
        return f"cannot format a chat: {type(error).__name__}: {error}"
    if _WORDS not in plain or _WORDS not in thought:
        return "leaves the user's words out"
    return "formats a chat the same with thinking and without" if plain == thought else ""


def _environment() -> Any:
    """Jinja as transformers sets it up for chat templates."""
    from jinja2.ext import Extension, loopcontrols  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    class Generation(Extension):
        """Marks what the model wrote; here its content alone counts."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **_options: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda _form: "2026-01-01"
    return environment


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


if __name__ == "__main__":
    sys.exit(main())
