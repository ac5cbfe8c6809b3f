"""Images from URLs: what is decoded, what is refused and with which code; nothing else ever comes out."""

import asyncio
import base64
import io
import random
import struct
import zlib
from collections.abc import Sequence

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from decideploy.decide.image_fetch import ImageFetcher, is_public
from decideploy.decide.images import ImageLoader, ImagePolicy
from decideploy.decide.schema import RequestError
from decideploy.errors import ConfigError

TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}


def picture(width: int = 24, height: int = 16, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(width * height)
    # Smooth, so that JPEG keeps it.
    small = Image.fromarray(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8))
    return small.resize((width, height)).convert(mode)


def encode(image: Image.Image, form: str, **options: object) -> bytes:
    with io.BytesIO() as file:
        image.save(file, form, **options)
        return file.getvalue()


def data_url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def load(*urls: str, **limits: object) -> tuple[Image.Image, ...]:
    with ImageLoader(ImagePolicy(**limits)) as loader:
        return asyncio.run(loader.load(urls))


def refusal(*urls: str, **limits: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        load(*urls, **limits)
    assert (caught.value.status, caught.value.param) == (422, "state")
    return caught.value


def refused_with(*urls: str, **limits: object) -> str:
    return refusal(*urls, **limits).code


@pytest.mark.parametrize("form", TYPES)
@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_every_format_and_colour_mode_becomes_rgb(form: str, mode: str) -> None:
    original = picture(mode=mode)
    if form == "JPEG" and mode == "P":
        original = original.convert("CMYK")
    (image,) = load(data_url(encode(original, form), TYPES[form]))
    assert (image.mode, image.size) == ("RGB", original.size)
    wanted = np.asarray(original.convert("RGB"), dtype=int)
    assert np.abs(np.asarray(image, dtype=int) - wanted).mean() < (0.1 if form in ("PNG",) else 30)


def test_images_keep_the_order_of_their_urls() -> None:
    urls = [data_url(encode(picture(w, 9), "PNG")) for w in (7, 8, 9, 10)]
    assert [image.width for image in load(*urls)] == [7, 8, 9, 10]
    assert load() == ()


def test_transparency_lies_on_white() -> None:
    (image,) = load(data_url(encode(Image.new("RGBA", (2, 2), (255, 0, 0, 0)), "PNG")))
    assert image.getpixel((0, 0)) == (255, 255, 255)


def test_sixteen_bits_of_grey_keep_the_high_byte() -> None:
    grey = Image.fromarray(np.array([[0, 256, 0x8000, 0xFFFF]], dtype=np.uint16))
    (image,) = load(data_url(encode(grey, "PNG")))
    assert [image.getpixel((x, 0))[0] for x in range(4)] == [0, 1, 128, 255]


def test_the_orientation_is_applied_and_the_metadata_left_out() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (image,) = load(data_url(encode(picture(24, 16), "JPEG", exif=exif), "image/jpeg"))
    assert image.size == (16, 24)
    assert not image.getexif()
    assert not image.info


def test_of_a_phones_picture_in_several_parts_the_first_is_read() -> None:
    photo = encode(picture(24, 16), "MPO", save_all=True, append_images=[picture(8, 8)])
    assert load(data_url(photo, "image/jpeg"))[0].size == (24, 16)


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF"])
def test_an_animation_is_refused(form: str) -> None:
    frames = [picture(), picture().rotate(180)]
    content = encode(frames[0], form, save_all=True, append_images=frames[1:])
    assert refused_with(data_url(content, TYPES[form])) == "image_animated"


@pytest.mark.parametrize("form", TYPES)
def test_a_truncated_image_is_refused(form: str) -> None:
    content = encode(picture(64, 64), form)
    for length in (0, 1, 11, 30, len(content) // 2, len(content) * 3 // 4):
        code = refused_with(data_url(content[:length], TYPES[form]))
        assert code == "image_malformed", (length, code)


def test_a_type_that_the_content_is_not_is_refused() -> None:
    png = encode(picture(), "PNG")
    assert refused_with(data_url(png, "image/jpeg")) == "image_type_mismatch"
    assert refused_with(data_url(encode(picture(), "BMP"), "image/png")) == "image_malformed"
    for other in ("image/bmp", "image/svg+xml", "text/html", "", "application/octet-stream"):
        assert refused_with(data_url(png, other)) == "image_type_unsupported"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("", "image_url_unsupported"),
        ("image.png", "image_url_unsupported"),
        ("file:///etc/passwd", "image_url_unsupported"),
        ("http://images.example.com/a.png", "image_url_unsupported"),
        ("ftp://images.example.com/a.png", "image_url_unsupported"),
        ("https://images.example.com/a.png", "image_url_unsupported"),
        ("data:", "image_url_malformed"),
        ("data:image/png,abc", "image_url_malformed"),
        ("data:image/png;charset=utf-8;base64,QUJD", "image_url_malformed"),
        ("data:image/png;base64,****", "image_url_malformed"),
        ("data:image/png;base64,QUJ", "image_url_malformed"),
        ("data:image/png;base64,QUJD\u00e9", "image_url_malformed"),
        ("data:image/png;base64,", "image_malformed"),
    ],
)
def test_a_url_that_is_not_read(url: str, code: str) -> None:
    assert refused_with(url) == code


def test_every_image_at_fault_is_named() -> None:
    good = data_url(encode(picture(), "PNG"))
    error = refusal(good, "file:///a", good, "data:image/png;base64,QUJD")
    assert error.code == "image_url_unsupported"
    assert "image [1]" in error.what
    assert "image [3]" in error.what
    assert "image [0]" not in error.what


def test_counts_and_bytes_are_limited() -> None:
    content = encode(picture(), "PNG")
    url = data_url(content)
    assert refused_with(url, url, max_count=1) == "image_too_many"
    assert refused_with(url, max_count=0) == "images_not_served"
    assert refused_with(url, max_bytes=len(content) - 1) == "image_too_large"
    assert refused_with(url, url, max_total_bytes=2 * len(content) - 1) == "image_too_large"
    assert len(load(url, url, max_bytes=len(content), max_total_bytes=2 * len(content), max_count=2)) == 2


def test_the_limits_are_told() -> None:
    policy = ImagePolicy(max_count=2, max_bytes=3, max_pixels=4, allowed_hosts=("a.example",))
    with ImageLoader(policy) as loader:
        assert loader.limits.model_dump() == {
            "max_count": 2,
            "max_bytes": 3,
            "max_pixels": 4,
            "allowed_hosts": ("a.example",),
        }


def huge_png(width: int, height: int) -> bytes:
    """A header alone: reading more would fail."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


def huge_webp(width: int, height: int) -> bytes:
    canvas = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + canvas
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("size", [(5000, 5000), (12_000, 10_000), (16_000, 16_000)])
def test_pixels_are_counted_before_they_are_decoded(size: tuple[int, int]) -> None:
    for content, media_type in ((huge_png(*size), "image/png"), (huge_webp(*size), "image/webp")):
        assert refused_with(data_url(content, media_type)) == "image_too_many_pixels"


@pytest.mark.parametrize("form", TYPES)
@pytest.mark.parametrize("lossless", [False, True])
def test_the_limit_of_pixels_is_exact(form: str, lossless: bool) -> None:
    options = {"lossless": lossless} if form == "WEBP" else {}
    url = data_url(encode(picture(10, 20), form, **options), TYPES[form])
    assert load(url, max_pixels=200)[0].size == (10, 20)
    assert refused_with(url, max_pixels=199) == "image_too_many_pixels"


def test_a_jpeg_of_endless_scans_is_refused() -> None:
    content = encode(picture(), "JPEG", progressive=True)
    start = content.index(b"\xff\xda")
    bomb = content[:start] + content[start:-2] * 101 + content[-2:]
    assert refused_with(data_url(bomb, "image/jpeg")) == "image_malformed"


SOURCES = [(form, encode(picture(), form)) for form in TYPES]
SOURCES += [("JPEG", encode(picture(), "JPEG", progressive=True)), ("PNG", encode(picture(mode="P"), "PNG"))]


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    source=st.sampled_from(SOURCES),
    seed=st.integers(0, 2**32),
    edits=st.integers(0, 12),
    declared=st.sampled_from([None, *TYPES.values()]),
)
def test_a_damaged_image_is_an_image_or_a_refusal(
    source: tuple[str, bytes], seed: int, edits: int, declared: str | None
) -> None:
    form, content = source
    rng, damaged = random.Random(seed), bytearray(content)
    for _ in range(edits):
        place = rng.randrange(len(damaged))
        match rng.randrange(3):
            case 0:
                damaged[place] = rng.randrange(256)
            case 1:
                del damaged[place : place + rng.randrange(1, 40)]
            case _:
                damaged[place:place] = rng.randbytes(rng.randrange(1, 9))
        damaged = damaged or bytearray(b"\0")
    check_outcome(data_url(bytes(damaged), declared or TYPES[form]))


@settings(deadline=None, max_examples=30)
@given(st.one_of(st.text(max_size=60), st.text(max_size=60).map(lambda t: f"data:image/png;base64,{t}")))
def test_any_text_is_refused_as_a_url(url: str) -> None:
    check_outcome(url)


LOADER = ImageLoader(ImagePolicy(max_pixels=10**6))


def check_outcome(url: str) -> None:
    outcome = outcome_of(url)
    if isinstance(outcome, RequestError):
        assert 400 <= outcome.status < 500
        assert len(outcome.what) < 500
    else:
        assert outcome.mode == "RGB"
        assert outcome.width * outcome.height <= 10**6


def outcome_of(url: str) -> Image.Image | RequestError:
    try:
        return asyncio.run(LOADER.load([url]))[0]
    except RequestError as error:
        return error


@pytest.mark.parametrize(
    "limits",
    [
        {"allowed_hosts": (host,)}
        for host in ("https://a.example", "a", "*.example.com", "10.0.0.1", "a.b:1", "")
    ]
    + [{"max_bytes": 0}, {"max_pixels": -1}, {"max_count": -1}, {"fetch_timeout_s": float("nan")}],
)
def test_a_policy_that_makes_no_sense_is_refused(limits: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ImagePolicy(**limits)


# Fetching


PRIVATE = (
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
    *("224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "192.88.99.1", "192.0.0.8"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "fec0::1", "2001:db8::1", "3fff::1"),
    *("::ffff:10.0.0.1", "::ffff:8.8.8.8", "::8.8.8.8", "64:ff9b::8.8.8.8", "64:ff9b:1::a00:1"),
    *("2002:a00:1::", "2002:808:808::", "2001:0:a00:1::", "2606:4700::1%1", "100::1", "5f00::1"),
    *("", "localhost", "0x7f.1", "127.1", "2130706433", "010.0.0.1"),
)


def test_an_address_that_is_not_public() -> None:
    assert [address for address in PRIVATE if is_public(address)] == []


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::1"])
def test_a_public_address(address: str) -> None:
    assert is_public(address)


class Network:
    """A name server with ``addresses`` and hosts that answer ``handler``, each request recorded."""

    def __init__(self, handler, addresses: Sequence[str] = ("8.8.8.8",)) -> None:
        self.handler, self.addresses = handler, addresses
        self.requests: list[httpx.Request] = []
        self.resolved: list[str] = []

    async def resolve(self, host: str) -> Sequence[str]:
        self.resolved.append(host)
        if not self.addresses:
            raise OSError("no such name")
        return self.addresses

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return await self.handler(request)

    def load(self, *urls: str, **limits: object) -> tuple[Image.Image, ...]:
        policy = ImagePolicy(allowed_hosts=("images.example.com",), **limits)
        fetcher = ImageFetcher(
            policy.allowed_hosts,
            max_bytes=policy.max_bytes,
            timeout_s=policy.fetch_timeout_s,
            resolve=self.resolve,
            transport=lambda: httpx.MockTransport(self.answer),
        )
        with ImageLoader(policy, fetcher=fetcher) as loader:
            return asyncio.run(loader.load(urls))

    def refused_with(self, url: str = "https://images.example.com/a.png", **limits: object) -> str:
        with pytest.raises(RequestError) as caught:
            self.load(url, **limits)
        assert caught.value.status == 422
        return caught.value.code


PNG = encode(picture(), "PNG")


async def serve_png(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "image/png; charset=binary"}, stream=Chunks(PNG))


def test_an_image_comes_from_the_address_that_was_checked() -> None:
    network = Network(serve_png, ["2606:4700::1111", "8.8.8.8"])
    (image,) = network.load("https://IMAGES.example.com/a.png?b=%2F#c")
    assert image.size == (24, 16)
    (request,) = network.requests
    assert str(request.url) == "https://[2606:4700::1111]/a.png?b=%2F"
    assert request.headers["host"] == "images.example.com"
    assert request.extensions["sni_hostname"] == "images.example.com"
    assert request.method == "GET"
    assert network.resolved == ["images.example.com"]


@pytest.mark.parametrize("address", ["169.254.169.254", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"])
def test_nothing_is_asked_of_an_address_that_is_not_public(address: str) -> None:
    network = Network(serve_png, ["8.8.8.8", address])
    assert network.refused_with() == "image_address_not_public"
    assert network.requests == []


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://other.example.com/a.png", "image_host_not_allowed"),
        ("https://images.example.com.other.com/a.png", "image_host_not_allowed"),
        ("https://images.example.com./a.png", "image_host_not_allowed"),
        ("https://127.0.0.1/a.png", "image_host_not_allowed"),
        ("https://[::1]/a.png", "image_host_not_allowed"),
        ("https:///a.png", "image_host_not_allowed"),
        ("https:images.example.com", "image_host_not_allowed"),
        ("https://images.example.com:8443/a.png", "image_url_malformed"),
        ("https://images.example.com@127.0.0.1/a.png", "image_url_malformed"),
        ("https://user:secret@images.example.com/a.png", "image_url_malformed"),
        ("https://images.example.com\\@127.0.0.1/a.png", "image_url_malformed"),
        ("https://images.example.com:port/a", "image_url_malformed"),
        ("https://images.example.com/\n", "image_url_malformed"),
        ("https://images.example.com/" + "a" * 2048, "image_url_malformed"),
        ("http://images.example.com/a.png", "image_url_unsupported"),
    ],
)
def test_a_url_that_is_not_fetched(url: str, code: str) -> None:
    network = Network(serve_png)
    assert network.refused_with(url) == code
    assert network.requests == []


def responding(status: int = 200, content: bytes = PNG, **headers: str):
    async def answer(request: httpx.Request) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.Response(status, headers={"content-type": "image/png"} | named, stream=Chunks(content))

    return answer


class Chunks(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self.content, self.sent = content, 0

    async def __aiter__(self):
        for start in range(0, len(self.content), 16):
            self.sent += 16
            yield self.content[start : start + 16]


@pytest.mark.parametrize(
    ("handler", "code"),
    [
        (responding(302, location="https://127.0.0.1/"), "image_fetch_failed"),
        (responding(404), "image_fetch_failed"),
        (responding(206), "image_fetch_failed"),
        (responding(content_encoding="gzip"), "image_fetch_failed"),
        (responding(content_type="text/html"), "image_type_unsupported"),
        (responding(content_type="image/gif"), "image_type_mismatch"),
        (responding(content=PNG[:100]), "image_malformed"),
    ],
)
def test_an_answer_that_is_not_taken(handler, code: str) -> None:
    network = Network(handler)
    assert network.refused_with() == code
    assert len(network.requests) == 1


def test_a_transfer_ends_at_the_limit() -> None:
    stream = Chunks(bytes(10**6))

    async def endless(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "image/png"}, stream=stream)

    assert Network(endless).refused_with(max_bytes=1000) == "image_too_large"
    assert stream.sent < 1100


def test_a_name_without_an_address() -> None:
    assert Network(serve_png, []).refused_with() == "image_fetch_failed"


def test_a_host_that_does_not_answer_in_time() -> None:
    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(60)
        raise AssertionError

    assert Network(hang).refused_with(fetch_timeout_s=0.05) == "image_fetch_failed"


def test_the_next_address_is_tried_when_one_takes_no_connection() -> None:
    async def first_is_down(request: httpx.Request) -> httpx.Response:
        if request.url.host == "8.8.8.8":
            raise httpx.ConnectError("refused")
        return await serve_png(request)

    network = Network(first_is_down, ["8.8.8.8", "8.8.4.4"])
    assert len(network.load("https://images.example.com/a.png")) == 1
    assert Network(first_is_down).refused_with() == "image_fetch_failed"


def test_a_broken_transfer_is_told() -> None:
    async def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("reset")

    network = Network(broken, ["8.8.8.8", "8.8.4.4"])
    assert network.refused_with() == "image_fetch_failed"
    assert len(network.requests) == 1
