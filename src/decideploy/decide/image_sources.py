"""The bytes of an image before anything is known of them, and ``data:`` URLs that carry them."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

# Pillow's names of what each type may be. An MPO is a JPEG with further pictures behind the photo.
MEDIA_TYPES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "image/png": ("PNG",),
        "image/jpeg": ("JPEG", "MPO"),
        "image/webp": ("WEBP",),
        "image/gif": ("GIF",),
    }
)
_DATA_URL: Final = re.compile(r"data:([^;,]{0,100})(;[^,]{0,100})?,", re.IGNORECASE)
_SHOWN_CHARACTERS: Final = 60


class ImageFaultError(Exception):
    """One image cannot be used: ``code`` for programs, the message for people."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedImage:
    """Bytes that claim to be of ``media_type``, a key of :data:`MEDIA_TYPES`."""

    content: bytes
    media_type: str


def read_data_url(url: str, max_bytes: int) -> EncodedImage:
    """The image in a base64 ``data:`` URL; ImageFaultError when it is none or longer than ``max_bytes``."""
    head = _DATA_URL.match(url)
    if head is None or (head[2] or "").lower() != ";base64":
        raise ImageFaultError(
            "image_url_malformed", "must have the form data:image/png;base64,…, without other parameters"
        )
    media_type = checked_media_type(head[1])
    encoded_length = len(url) - head.end()
    if encoded_length // 4 * 3 > max_bytes + 2:
        raise too_large(max_bytes)
    try:
        content = b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageFaultError("image_url_malformed", f"is not base64: {error}") from error
    if len(content) > max_bytes:
        raise too_large(max_bytes)
    return EncodedImage(content=content, media_type=media_type)


def checked_media_type(declared: str) -> str:
    """``declared`` without parameters; ImageFaultError unless it is a type that is read."""
    media_type = declared.partition(";")[0].strip().lower()
    if media_type not in MEDIA_TYPES:
        raise ImageFaultError(
            "image_type_unsupported",
            f"its type {media_type[:_SHOWN_CHARACTERS]!r} is none of {', '.join(MEDIA_TYPES)}",
        )
    return media_type


def too_large(max_bytes: int) -> ImageFaultError:
    """The fault of an image with more than ``max_bytes`` encoded bytes."""
    return ImageFaultError("image_too_large", f"has more than {max_bytes} bytes")
