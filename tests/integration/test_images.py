"""Images: the vision tower against transformers + PEFT, the seam to vLLM, and https for real."""

import asyncio
import datetime
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from image_cases import IMAGE_ID, OPTIONS, PICTURES, STATES, encoded, names, token_ids
from probes import cache_of
from vllm_fakes import FakeClient, lora, output
from waiting import PATIENCE_S

from decideploy.artifacts import verify
from decideploy.decide import DecisionHead, Prompt, PromptEncoder, RequestError, read_out
from decideploy.decide.image_fetch import ImageFetcher, verified_transport
from decideploy.decide.image_sources import EncodedImage, ImageFaultError
from decideploy.decide.readout import allowed_token_ids
from decideploy.errors import EngineError

# vLLM and torch warn about themselves when imported.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

PROBE = Path(__file__).with_name("image_probe.py")
TEMPERATURE = 0.999


# The vision tower


def causal_copy(model: Path, folder: Path) -> Path:
    """The demo model with image tokens that attend as text does: what vLLM's CPU attention can compute."""
    shutil.copytree(model, folder, symlinks=True)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["use_bidirectional_attention"] = None
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def model(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return causal_copy(demo_model, tmp_path_factory.mktemp("causal") / "model")


@pytest.fixture(scope="module")
def head(model: Path) -> DecisionHead:
    return DecisionHead.read(model / "adapter_vllm" / "decision_head.json")


@pytest.fixture(scope="module")
def prompts(model: Path) -> list[list[int]]:
    encoder = PromptEncoder.from_model(model)
    return [token_ids(state, encoder) for state in STATES]


@pytest.fixture(scope="module")
def observed(
    model: Path, head: DecisionHead, prompts, engine_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict:
    folder = tmp_path_factory.mktemp("pictures")
    for name, picture in PICTURES.items():
        picture.save(folder / f"{name}.png")
    cases = [
        {"token_ids": ids, "images": [str(folder / f"{name}.png") for name in names(state)]}
        for ids, state in zip(prompts, STATES, strict=True)
    ]
    (folder / "cases.json").write_text(json.dumps(cases))
    targets = verify(model).known_facts().adapter.lora_target_modules
    command = [sys.executable, PROBE, model, "--adapter", model / "adapter_vllm"]
    command += ["--target-modules", *targets, "--cases", folder / "cases.json"]
    command += ["--allow", *map(str, allowed_token_ids(head, "choice", len(OPTIONS)))]
    quiet = {
        "VLLM_CACHE_ROOT": str(cache_of(None, engine_home)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "",
    }
    done = subprocess.run(command, env={**os.environ, **quiet}, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"alone"')]
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    assert lines, done.stdout[-3000:]
    return json.loads(lines[0])


@pytest.fixture(scope="module")
def expected(model: Path, prompts) -> list:
    from image_reference import ImageReference

    reference = ImageReference(model)
    return [
        reference.read(ids, [PICTURES[name] for name in names(state)], "choice", len(OPTIONS))
        for ids, state in zip(prompts, STATES, strict=True)
    ]


def probabilities(reading: dict, head: DecisionHead) -> np.ndarray:
    return np.array(
        read_out(dict(map(tuple, reading["logprobs"])), "choice", len(OPTIONS), head, TEMPERATURE)
    )


def test_decisions_about_images_agree_with_the_reference(observed, expected, head, figure) -> None:
    found = [probabilities(reading, head) for reading in observed["alone"]]
    largest = np.array([np.abs(a - b).max() for a, (b, _) in zip(found, expected, strict=True)])
    figure(
        f"images vs reference: {len(largest)} decisions, largest probability difference: "
        f"mean {largest.mean():.4f}, max {largest.max():.4f}"
    )
    # In bfloat16 the reference differs from itself in float32 by 0.011 in the mean and by 0.032 at most.
    assert largest.mean() <= 0.015
    assert largest.max() <= 0.04


def test_the_engine_expands_images_as_the_reference_does(observed, expected) -> None:
    lengths = [length for _, length in expected]
    assert [reading["prompt_tokens"] for reading in observed["alone"]] == lengths
    token_id, longest = observed["image_tokens"]
    assert token_id == IMAGE_ID
    assert longest == 282
    assert observed["max_images"] == 2


def test_another_image_another_place_another_answer(observed, head) -> None:
    found = [probabilities(reading, head) for reading in observed["alone"]]
    for one, other in ((0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (6, 7)):
        assert np.abs(found[one] - found[other]).max() > 0.02, (STATES[one], STATES[other])


def test_the_same_image_has_the_same_answer_from_the_cache(observed, head) -> None:
    first = probabilities(observed["alone"][0], head)
    assert np.abs(probabilities(observed["again"], head) - first).max() <= 0.01
    assert observed["again"]["cached_tokens"] > 128
    assert observed["alone"][1]["cached_tokens"] < 128


def test_an_image_that_one_process_forgot_is_sent_again(observed, head) -> None:
    first = probabilities(observed["alone"][0], head)
    assert np.abs(probabilities(observed["recovered"], head) - first).max() <= 0.01


def test_images_at_once_answer_as_alone(observed, head) -> None:
    for alone, together in zip(observed["alone"], observed["together"], strict=True):
        assert np.abs(probabilities(alone, head) - probabilities(together, head)).max() <= 0.03


def test_the_base_model_writes_about_an_image(observed) -> None:
    assert observed["written"] == 4


# The seam


class ImageClient(FakeClient):
    """Prepares images as vLLM's renderer does, or fails with ``refusal``."""

    def __init__(self, *, refusal: Exception | None = None, **changes) -> None:
        super().__init__(**changes)
        self.refusal = refusal
        self.rendered: list[dict] = []
        self.renderer = SimpleNamespace(render_cmpl_async=self._render)

    async def _render(self, prompts: list[dict]) -> list[dict]:
        if self.refusal is not None:
            raise self.refusal
        self.rendered += prompts
        return [{"type": "multimodal", "number": len(self.rendered)} for _ in prompts]


def read(client: ImageClient):
    from decideploy.serve.vllm_engine import VllmEngine

    prompt = Prompt(token_ids=(2, IMAGE_ID, 7), images=(PICTURES["red"],))
    engine = VllmEngine(client, lora(Path()))
    return asyncio.run(engine.read(prompt, [300, 301], request_id="r"))


def test_images_go_to_the_engine_beside_their_tokens() -> None:
    client = ImageClient()
    read(client)
    (rendered,), (call,) = client.rendered, client.calls
    assert rendered["prompt_token_ids"] == [2, IMAGE_ID, 7]
    assert rendered["multi_modal_data"] == {"image": [PICTURES["red"]]}
    assert call["prompt"] == {"type": "multimodal", "number": 1}
    assert call["lora"].lora_name == "system1"


def test_a_lost_image_is_sent_again_and_again_but_not_for_ever() -> None:
    client = ImageClient(outputs=[output(logprobs=None, finish_reason="error")])
    with pytest.raises(EngineError) as caught:
        read(client)
    assert caught.value.status == 502
    assert len(client.rendered) == len({call["id"] for call in client.calls}) == 3


def test_an_image_that_the_model_cannot_read_is_the_requests_fault() -> None:
    with pytest.raises(RequestError) as caught:
        read(ImageClient(refusal=ValueError("0 patches")))
    assert (caught.value.code, caught.value.status) == ("image_malformed", 422)


# https, with a certificate authority and a server of our own


class OtherPort(httpx.AsyncBaseTransport):
    """Connects to ``port`` where 443 was asked for, which only root may listen on."""

    def __init__(self, inner: httpx.AsyncBaseTransport, port: int) -> None:
        self.inner, self.port = inner, port

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(port=self.port)
        return await self.inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self.inner.aclose()


def certificate(folder: Path, name: str) -> Path:
    """A file with a self-signed certificate for ``name`` and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    pem = serialization.Encoding.PEM
    form, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(pem, form, secret) + made.public_bytes(pem))
    return path


@asynccontextmanager
async def tls_server(chain: Path, heads: list[bytes]) -> AsyncIterator[int]:
    content = encoded("red")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        head = f"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        await writer.drain()
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def fetch(served: Path, trusted: Path, heads: list[bytes]) -> EncodedImage:
    """What is fetched from images.example.com, which leads to a server with the certificate ``served``."""

    async def resolve(_: str) -> list[str]:
        return ["127.0.0.1"]

    transport = verified_transport(ssl.create_default_context(cafile=str(trusted)))
    async with tls_server(served, heads) as port:
        fetcher = ImageFetcher(
            ["images.example.com"],
            max_bytes=10**6,
            timeout_s=PATIENCE_S,
            resolve=resolve,
            transport=lambda: OtherPort(transport(), port),
        )
        return await fetcher.fetch("https://images.example.com/a.png")


@pytest.fixture
def loopback_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decideploy.decide.image_fetch.is_public", lambda address: address == "127.0.0.1")


@pytest.mark.usefixtures("loopback_is_public")
def test_https_checks_the_certificate_against_the_name_not_the_address(tmp_path: Path) -> None:
    right, wrong = certificate(tmp_path, "images.example.com"), certificate(tmp_path, "other.example.com")
    heads: list[bytes] = []
    image = asyncio.run(fetch(right, right, heads))
    assert (image.content, image.media_type) == (encoded("red"), "image/png")
    assert b"\r\nHost: images.example.com\r\n" in heads[0]
    for served, trusted in ((wrong, wrong), (right, wrong)):
        with pytest.raises(ImageFaultError) as caught:
            asyncio.run(fetch(served, trusted, heads))
        assert caught.value.code == "image_fetch_failed"
    assert len(heads) == 1


def test_https_asks_a_loopback_address_for_nothing(tmp_path: Path) -> None:
    chain, heads = certificate(tmp_path, "images.example.com"), []
    with pytest.raises(ImageFaultError) as caught:
        asyncio.run(fetch(chain, chain, heads))
    assert caught.value.code == "image_address_not_public"
    assert heads == []
