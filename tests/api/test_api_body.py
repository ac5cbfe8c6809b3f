"""Bodies: their encoding, their parts, and what no text can hold."""

import json
from typing import Any

import pytest
from api_fakes import make_app, png, send
from backports import zstd

from decideploy.api.content import content_fault
from decideploy.api.json_body import MAX_BODY_BYTES, MAX_BODY_VALUES, decoded, parse_bounded
from decideploy.api.multipart import read_parts
from decideploy.decide import PromptEncoder, RequestError

TYPE = "multipart/form-data; boundary=b"


def part(name: str, content: bytes, extra: bytes = b"") -> bytes:
    return b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % (
        name.encode(),
        extra,
        content,
    )


def test_parts_are_read_byte_for_byte() -> None:
    image = png() + b"\r\n--\r\n\n\r"
    body = part("request", "é".encode()) + part("a", image, b'; filename="a"') + b"--b--\r\n"
    assert read_parts(TYPE, body) == {"request": "é".encode(), "a": image}


def test_a_part_larger_than_the_parser_keeps_in_memory_is_read() -> None:
    large = bytes(3 * 2**20)
    assert read_parts(TYPE, part("a", large, b'; filename="a"') + b"--b--\r\n") == {"a": large}


@pytest.mark.parametrize(
    ("content_type", "body", "words"),
    [
        ("multipart/form-data", b"", "boundary"),
        (TYPE, b"garbage", "boundary"),
        (TYPE, part("a", b"1") + part("a", b"2") + b"--b--\r\n", "two parts"),
        (TYPE, b"".join(part(str(n), b"") for n in range(65)) + b"--b--\r\n", "more than 64"),
        (TYPE, b"--b\r\nContent-Type: text/plain\r\n\r\nx\r\n--b--\r\n", "name"),
        (TYPE, b'--b\r\nContent-Disposition: form-data; name="\xff"\r\n\r\nx\r\n--b--\r\n', "utf-8"),
    ],
)
def test_malformed_parts_are_400(content_type: str, body: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        read_parts(content_type, body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_multipart")


def test_zstd_is_decoded() -> None:
    assert decoded(zstd.compress(b"{}"), "ZSTD") == b"{}"
    assert decoded(b"{}", "identity") == b"{}"


@pytest.mark.parametrize(
    ("content", "encoding", "status"),
    [
        (b"{}", "gzip", 415),
        (b"{}", "zstd, zstd", 415),
        (b"{}", "zstd", 400),
        (zstd.compress(b"{}")[:-1], "zstd", 400),
        (zstd.compress(b"{}") * 2, "zstd", 400),
        (zstd.compress(b" " * (MAX_BODY_BYTES + 1)), "zstd", 413),
    ],
)
def test_other_encodings_are_refused(content: bytes, encoding: str, status: int) -> None:
    with pytest.raises(RequestError) as caught:
        decoded(content, encoding)
    assert caught.value.status == status


def test_a_body_that_decodes_to_the_largest_size_is_read() -> None:
    assert len(decoded(zstd.compress(b" " * MAX_BODY_BYTES), "zstd")) == MAX_BODY_BYTES


def test_a_frame_that_wants_more_memory_than_any_body_is_refused() -> None:
    options = {zstd.CompressionParameter.window_log: 27}
    compressor = zstd.ZstdCompressor(options=options)
    content = compressor.compress(b"{}") + compressor.flush()
    with pytest.raises(RequestError, match="zstd"):
        decoded(content, "zstd")


def test_every_route_reads_zstd(encoder: PromptEncoder) -> None:
    content = zstd.compress(json.dumps({"kind": "noul", "state": "s", "question": "q"}).encode())
    headers = {"content-type": "application/json", "content-encoding": "zstd"}
    assert send(make_app(encoder), "POST", "/v1/decide", content=content, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "document",
    [
        [0] * MAX_BODY_VALUES,
        {str(number): 0 for number in range(MAX_BODY_VALUES)},
        [[{"a": {}}]] * (MAX_BODY_VALUES // 3) + [0, 0],
    ],
)
def test_as_many_values_are_read_as_the_limit_says(document: Any) -> None:
    assert parse_bounded(json.dumps(document).encode()) == document
    more = [*document, 0] if isinstance(document, list) else {**document, "one": "more"}
    with pytest.raises(RequestError, match="has 50001 JSON values or more; this server reads at most 50000"):
        parse_bounded(json.dumps(more).encode())


@pytest.mark.parametrize("path", ["/v1/decide", "/v1/systemone", "/v1/decisions"])
@pytest.mark.parametrize("padding", [0, 2**20], ids=["short", "long"])
def test_more_values_are_refused_before_any_field_is_looked_at(
    encoder: PromptEncoder, path: str, padding: int
) -> None:
    content = json.dumps({"unknown": [{}] * (MAX_BODY_VALUES + 1)}).encode() + b" " * padding
    reply = send(
        make_app(encoder), "POST", path, content=content, headers={"content-type": "application/json"}
    )
    assert reply.status_code == 413
    assert "too_many_values" in reply.text
    assert "unknown" not in reply.text


def nested(depth: int) -> Any:
    return {"k": nested(depth - 1)} if depth else 0


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"a": [1, "x", None, True]}, None),
        (nested(64), None),
        (nested(65), (("k",), "nests more than 64")),
        ({"a": ["\ud800"]}, (("a", 0), "lone surrogate")),
        ({"a": {"\udfff": 1}}, (("a",), "lone surrogate")),
        ({"a": float("inf")}, (("a",), "beyond the range")),
    ],
)
def test_what_no_text_can_hold_is_found(document: Any, fault: tuple[tuple[Any, ...], str] | None) -> None:
    found = content_fault(document)
    if fault is None:
        assert found is None
    else:
        assert found is not None
        assert found[0] == fault[0]
        assert fault[1] in found[1]
