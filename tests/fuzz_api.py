"""Send requests made from the server's own description; fail at the first undeclared answer or server error.

    python tests/fuzz_api.py [--examples 2000] [--url http://127.0.0.1:8000]

Without a URL the routes are asked in this process, over an engine that answers at once. Half of the examples
of a route with a body keep to the description, half break it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import schemathesis
from api_fakes import make_app
from decide_fakes import make_encoder
from openapi_fuzz import ROUTES, Fuzzer
from schemathesis.schemas import BaseSchema


def main() -> None:
    """Fuzz every route and print its statuses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--model", default="demo", help="a name that the server lists")
    parser.add_argument("--examples", type=int, default=2000, help="examples a route")
    options = parser.parse_args()
    schema = load(options.url)
    for method, path in ROUTES:
        modes = (False, True) if method == "POST" else (False,)
        fuzzer = Fuzzer(schema=schema, model=options.model, examples=options.examples // len(modes))
        for negative in modes:
            begin = time.monotonic()
            statuses = fuzzer.send(method, path, negative=negative)
            kind = "breaking" if negative else "keeping"
            told = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
            print(f"{method} {path} {kind}: {told} in {time.monotonic() - begin:.0f} s", flush=True)


def load(url: str | None) -> BaseSchema:
    """The description of the server at ``url``, or of the routes over a fake engine."""
    if url:
        return schemathesis.openapi.from_url(f"{url.rstrip('/')}/openapi.json")
    app = make_app(make_encoder(Path(tempfile.mkdtemp())))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


if __name__ == "__main__":
    main()
