import base64

import pytest
from api_fakes import png

from decideploy.api.assets import Placeholders, asset_urls
from decideploy.api.faults import RequestFaults
from decideploy.api.systemone_wire import Asset

PNG = png()
BASE64 = base64.b64encode(PNG).decode()
URL = f"data:image/png;base64,{BASE64}"


def places(assets: dict[str, Asset], parts: dict[str, bytes]) -> list[tuple[str | int, ...]]:
    with pytest.raises(RequestFaults) as caught:
        asset_urls(assets, parts)
    return [fault.location[2:] for fault in caught.value.faults]


def test_base64_and_parts_become_data_urls() -> None:
    wrapped = "\n".join(BASE64[start : start + 20] for start in range(0, len(BASE64), 20))
    assets = {"a": Asset(data_base64=wrapped, format="png"), "b": Asset(part="p", data_base64="ignored")}
    assert asset_urls(assets, {"p": b"\xff\xd8\xff\xe0"}) == {
        "a": URL,
        "b": "data:image/jpeg;base64,/9j/4A==",
    }


@pytest.mark.parametrize(
    ("content", "media_type"),
    [(b"GIF89a...", "image/gif"), (b"RIFF\0\0\0\0WEBP", "image/webp"), (PNG, "image/png")],
)
def test_the_format_is_read_from_the_bytes(content: bytes, media_type: str) -> None:
    (url,) = asset_urls({"a": Asset(format="jpg", part="p")}, {"p": content}).values()
    assert url.startswith(f"data:{media_type};base64,")


@pytest.mark.parametrize(
    ("assets", "parts", "location"),
    [
        ({"a": Asset()}, {}, ("a",)),
        ({" ": Asset(data_base64=BASE64)}, {}, (" ",)),
        ({"a": Asset(data_base64="%%")}, {}, ("a", "data_base64")),
        ({"a": Asset(data_base64="AAAA")}, {}, ("a",)),
        ({"a": Asset(part="absent")}, {}, ("a", "part")),
        ({"a": Asset(part="p"), "b": Asset(part="p")}, {"p": PNG}, ("b", "part")),
        ({}, {"p": PNG}, ()),
    ],
)
def test_faults_name_the_asset(
    assets: dict[str, Asset], parts: dict[str, bytes], location: tuple[str, ...]
) -> None:
    assert places(assets, parts) == [location]


def test_all_faults_are_told() -> None:
    assert places({"a": Asset(), "b": Asset(part="x")}, {"y": PNG}) == [("a",), ("b", "part"), ()]


IMAGE = {"image": "url-1"}


@pytest.mark.parametrize(
    ("state", "core"),
    [
        ("no image", "no image"),
        ({"a": 1}, {"a": 1}),
        ("<one>", [IMAGE]),
        ("see <one>, then <one>!", ["see ", IMAGE, ", then ", IMAGE, "!"]),
        ({"photo": "<one>", "n": [1]}, ['{"photo": "', IMAGE, '", "n": [1]}']),
        (["text", "<one>"], ["text", IMAGE]),
        (["text", {"photo": "<one>"}], ['["text", {"photo": "', IMAGE, '"}]']),
        # The longer placeholder wins; one with a quote is found although JSON escapes it.
        ("<one><one>2", [IMAGE, {"image": "url-2"}]),
        ({"a": 'q"q'}, ['{"a": "', {"image": "url-3"}, '"}']),
    ],
)
def test_placeholders_become_images(state: object, core: object) -> None:
    placeholders = Placeholders(urls={"<one>": "url-1", "<one>2": "url-2", 'q"q': "url-3"})
    assert placeholders.state(state) == core  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "core"),
    [
        ("s", "s"),
        ({"a": "é"}, {"a": "é"}),
        (["a", "b"], ["a", "b"]),
        (["a", 1, None], '["a", 1, null]'),
        ([{"é": 1}], '[{"é": 1}]'),
        ([], []),
    ],
)
def test_a_state_without_images(state: object, core: object) -> None:
    assert Placeholders(urls={}).state(state) == core  # type: ignore[arg-type]


def test_seen_placeholders_are_known() -> None:
    placeholders = Placeholders(urls={"a!": "1", "b!": "2"})
    placeholders.state({"x": "a!"})
    assert placeholders.seen == {"a!"}
    assert placeholders.are_in([{"y": "b!"}])
    assert not placeholders.are_in({"b!": 1})
