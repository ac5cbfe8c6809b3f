"""Pixels of untrusted image files: Pillow, told beforehand what may be there and how much of it.

Upright by the EXIF orientation, transparency on white, as vLLM's own loader does it; colour profiles are
ignored, as there. CMYK is converted without a profile and 16-bit grey keeps its high byte.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

from PIL import Image, ImageOps, UnidentifiedImageError

from decideploy.decide.image_sources import MEDIA_TYPES, EncodedImage, ImageFaultError

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF")
# Progressive JPEGs have about ten scans. Each passes over the whole picture, so that thousands take hours.
MAX_JPEG_SCANS: Final = 100
START_OF_SCAN: Final = b"\xff\xda"
_WIDE_GREY: Final = ("I;16", "I;16B", "I;16L", "I;16N", "I")


def decode(source: EncodedImage, max_pixels: int) -> Image.Image:
    """``source`` as a new RGB image without metadata; ImageFaultError whatever is wrong with it."""
    _check_before_opening(source, max_pixels)
    try:
        with Image.open(BytesIO(source.content), formats=FORMATS) as image:
            _check_header(image, source, max_pixels)
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return _plain(image)
    except ImageFaultError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many_pixels(max_pixels) from error
    except UnidentifiedImageError as error:
        raise ImageFaultError("image_malformed", f"is no {source.media_type} file") from error
    # What a decoder raises for broken files is not documented, and differs from format to format.
    except Exception as error:
        raise ImageFaultError("image_malformed", f"cannot be decoded: {error}") from error


def _check_before_opening(source: EncodedImage, max_pixels: int) -> None:
    if source.content[:3] == b"\xff\xd8\xff" and source.content.count(START_OF_SCAN) > MAX_JPEG_SCANS:
        raise ImageFaultError("image_malformed", f"has more than {MAX_JPEG_SCANS} scans")
    # Opening a WebP file already takes the memory of its canvas, twice.
    size = webp_size(source.content)
    if size is not None and size[0] * size[1] > max_pixels:
        raise _too_many_pixels(max_pixels)


def webp_size(content: bytes) -> tuple[int, int] | None:
    """Width and height of the canvas that a WebP header tells, None for what is none.

    Source: the container's specification (RFC 9649).
    """
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP" or len(content) < 30:
        return None
    if content[12:16] == b"VP8X":
        return 1 + int.from_bytes(content[24:27], "little"), 1 + int.from_bytes(content[27:30], "little")
    if content[12:16] == b"VP8L":
        bits = int.from_bytes(content[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = int.from_bytes(content[26:28], "little"), int.from_bytes(content[28:30], "little")
    return width & 0x3FFF, height & 0x3FFF


def _check_header(image: Image.Image, source: EncodedImage, max_pixels: int) -> None:
    if image.format not in MEDIA_TYPES[source.media_type]:
        raise ImageFaultError(
            "image_type_mismatch", f"is declared as {source.media_type}, but is a {image.format} file"
        )
    if image.width * image.height > max_pixels:
        raise _too_many_pixels(max_pixels)
    # The further pictures of an MPO are no animation.
    if image.format != "MPO" and getattr(image, "is_animated", False):
        raise ImageFaultError("image_animated", "is animated; send one picture")


def _plain(image: Image.Image) -> Image.Image:
    """A new image: the engine's cache would trust an identifier in the metadata of the old one."""
    if image.mode in _WIDE_GREY:
        # Pillow's own conversion would turn every value above 255 white.
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    plain = Image.new("RGB", image.size, "white")
    if image.has_transparency_data:
        layers = image.convert("RGBA")
        plain.paste(layers, mask=layers.getchannel("A"))
    else:
        plain.paste(image if image.mode == "RGB" else image.convert("RGB"))
    return plain


def _too_many_pixels(max_pixels: int) -> ImageFaultError:
    return ImageFaultError("image_too_many_pixels", f"has more than {max_pixels} pixels")
