"""Decisions about pictures, for the engine and the reference alike."""

from __future__ import annotations

import base64
from io import BytesIO

import numpy as np
from PIL import Image

from decideploy.decide import PromptEncoder, parse_request
from decideploy.decide.template import render_segments

IMAGE_ID = 258_880
OPTIONS = ("red", "green", "blue", "nothing")
QUESTION = "What is shown here?"


def gradient(width: int, height: int) -> Image.Image:
    ramp = np.linspace(0, 255, width).astype(np.uint8)
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[:, :, 1], pixels[:, :, 2] = ramp, ramp[::-1]
    return Image.fromarray(pixels)


PICTURES = {
    "red": Image.new("RGB", (120, 90), "red"),
    "blue": Image.new("RGB", (120, 90), "blue"),
    "tall": Image.new("RGB", (60, 200), (200, 180, 20)),
    "gradient": gradient(300, 200),
}
# Texts and pictures of one state, in their order.
STATES = (
    ("A photo", "{red}", "of something"),
    ("A photo", "{blue}", "of something"),
    ("A photo", "{tall}", "of something"),
    ("A photo", "{gradient}", "of something"),
    ("{red}", "A photo", "of something"),
    ("A photo", "of something", "{red}"),
    ("A photo", "{red}", "and", "{blue}"),
    ("A photo", "{blue}", "and", "{red}"),
)


def names(state: tuple[str, ...]) -> list[str]:
    """The pictures of ``state``."""
    return [part.strip("{}") for part in state if part.startswith("{")]


def encoded(name: str) -> bytes:
    """A picture as a PNG file."""
    with BytesIO() as file:
        PICTURES[name].save(file, "PNG")
        return file.getvalue()


def body(state: tuple[str, ...]) -> dict:
    """The request about ``state``, its pictures as data URLs."""

    def part(text: str) -> object:
        if not text.startswith("{"):
            return text
        return {"image": "data:image/png;base64," + base64.b64encode(encoded(text.strip("{}"))).decode()}

    return {"kind": "choice", "question": QUESTION, "options": OPTIONS, "state": [*map(part, state)]}


def token_ids(state: tuple[str, ...], encoder: PromptEncoder) -> list[int]:
    """The prompt about ``state``, one image token for each picture."""
    first, *rest = render_segments(parse_request(body(state)))
    ids = [encoder.bos_id, *encoder.encode_text(first)]
    for segment in rest:
        ids += [IMAGE_ID, *encoder.encode_text(segment)]
    return ids
