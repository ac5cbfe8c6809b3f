"""Images that a ``/v1/systemone`` request brings, and the places in its state where they stand."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from decideploy.api.content import Content, Location, content_text
from decideploy.api.faults import Fault, RequestFaults
from decideploy.api.systemone_wire import Asset

ASSETS: Final[Location] = ("body", "assets")
# The formats that the core reads, by the first bytes of a file.
SIGNATURES: Final = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
)


class AssetFaultError(Exception):
    """One asset cannot be used: ``key`` is its field at fault."""

    def __init__(self, what: str, *key: str) -> None:
        super().__init__(what)
        self.key = key


def asset_urls(assets: Mapping[str, Asset], parts: Mapping[str, bytes]) -> dict[str, str]:
    """The ``data:`` URL of each asset by its placeholder; RequestFaults names every asset at fault.

    ``parts`` are those of a multipart request without its document; each belongs to exactly one asset.
    """
    unclaimed, urls, faults = set(parts), {}, []
    for name, asset in assets.items():
        try:
            urls[name] = _data_url(_content(name, asset, parts, unclaimed))
        except AssetFaultError as error:
            faults.append(Fault(location=(*ASSETS, name, *error.key), message=str(error)))
    faults += [
        Fault(location=ASSETS, message=f"no asset names the part {part!r}") for part in sorted(unclaimed)
    ]
    if faults:
        raise RequestFaults(faults)
    return urls


def _content(name: str, asset: Asset, parts: Mapping[str, bytes], unclaimed: set[str]) -> bytes:
    if not name.strip():
        raise AssetFaultError("a placeholder must not be blank")
    if asset.part is not None:
        if asset.part not in unclaimed:
            told = "another asset has this part" if asset.part in parts else "the request has no such part"
            raise AssetFaultError(told, "part")
        unclaimed.remove(asset.part)
        return parts[asset.part]
    if asset.data_base64 is None:
        raise AssetFaultError("an asset needs data_base64 or, in a multipart request, part")
    try:
        # Line breaks are usual in base64; every other foreign character is a fault.
        return base64.b64decode("".join(asset.data_base64.split()), validate=True)
    except ValueError as error:
        raise AssetFaultError(f"is not base64: {error}", "data_base64") from error


def _data_url(content: bytes) -> str:
    for signature, media_type in SIGNATURES:
        if signature.match(content):
            return f"data:{media_type};base64,{base64.b64encode(content).decode()}"
    raise AssetFaultError("is neither a PNG, a JPEG, a WebP nor a GIF image")


@dataclass(kw_only=True, slots=True)
class Placeholders:
    """The placeholders of ``urls`` in content; ``seen`` are those that stood in a state."""

    urls: Mapping[str, str]
    seen: set[str] = field(default_factory=set)

    def are_in(self, value: Content) -> bool:
        """Whether any placeholder stands in a string of ``value``."""
        return bool(self.urls) and self._replaced(value, lambda _: "") != value

    def state(self, value: Content) -> Any:
        """``value`` as a state of the core, with an image part wherever a placeholder stands.

        A list of strings becomes a list of its parts; every other list is read as its JSON text.
        """
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            return [part for item in value for part in self._parts(item)]
        if self.are_in(value):
            return self._parts(value)
        return content_text(value) if isinstance(value, list) and value else value

    def _parts(self, value: Any) -> list[str | dict[str, str]]:
        if not self.urls:
            return [content_text(value)]
        # A mark that no text holds, and that JSON leaves as it is.
        mark, names = uuid.uuid4().hex, list(self.urls)
        marked = self._replaced(value, lambda name: f"{mark}:{names.index(name)};")
        pieces = re.split(f"{mark}:([0-9]+);", content_text(marked))
        images = [names[int(index)] for index in pieces[1::2]]
        self.seen.update(images)
        pieces[1::2] = images
        parts = [{"image": self.urls[piece]} if index % 2 else piece for index, piece in enumerate(pieces)]
        return [part for part in parts if part]

    def _replaced(self, value: Any, replacement: Callable[[str], str]) -> Any:
        if isinstance(value, str):
            # The longest first: one placeholder may begin with another.
            names = "|".join(re.escape(name) for name in sorted(self.urls, key=len, reverse=True))
            return re.sub(names, lambda found: replacement(found[0]), value)
        if isinstance(value, dict):
            return {key: self._replaced(inner, replacement) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._replaced(inner, replacement) for inner in value]
        return value
