"""No undeclared answer and no server error to requests made from the description."""

# tests/fuzz_api.py sends as many as one likes.

from pathlib import Path

import pytest
import schemathesis
from api_fakes import make_app
from decide_fakes import make_encoder
from openapi_fuzz import ROUTES, Fuzzer

pytestmark = pytest.mark.integration

IN_PROCESS, REAL = 40, 10
CASES = [
    pytest.param(method, path, negative, id=f"{method} {path} {'breaking' if negative else 'keeping'}")
    for method, path in ROUTES
    for negative in ((False, True) if method == "POST" else (False,))
]


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Fuzzer:
    app = make_app(make_encoder(Path(tmp_path_factory.mktemp("model"))))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    return Fuzzer(schema=schema, model="demo", examples=IN_PROCESS)


@pytest.fixture(scope="module")
def real_fuzzer(server) -> Fuzzer:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    return Fuzzer(schema=schema, model=server.started["plan"]["served_model_name"], examples=REAL)


@pytest.mark.parametrize(("method", "path", "negative"), CASES)
def test_the_routes_over_a_fake_engine(fuzzer, method, path, negative):
    statuses = fuzzer.send(method, path, negative=negative)
    assert (200 in statuses) is not negative
    assert statuses.total() >= IN_PROCESS


@pytest.mark.parametrize(("method", "path", "negative"), CASES)
def test_the_real_server(real_fuzzer, method, path, negative):
    assert real_fuzzer.send(method, path, negative=negative).total() >= REAL
