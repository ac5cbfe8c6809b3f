"""Words that fill templates; nothing is known of them but that they are things, people, colours and so on."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
ITEMS = tuple((_FOLDER / "items.txt").read_text("utf-8").split())
NAMES = tuple((_FOLDER / "names.txt").read_text("utf-8").split())
COLOURS = (
    *("red", "blue", "green", "silver", "pink"),
    *("yellow", "black", "white", "gold", "brown"),
    *("orange", "purple", "grey"),
)
SHAPES = (
    *("circle", "square", "star", "arrow", "cloud"),
    *("triangle", "cross", "heart", "cube", "oval"),
    *("line", "dot", "moon"),
)
ASPECTS = (
    *("price", "quality", "sound", "design", "weight"),
    *("size", "colour", "service", "surface", "value"),
    *("battery", "screen", "delivery", "taste", "handle"),
    *("shape", "speed", "packaging", "cable", "comfort"),
    *("light", "material", "manual"),
)
THINGS = (
    *("books", "coins", "apples", "cards", "stamps", "keys", "cups", "plates"),
    *("shirts", "bikes", "lamps", "eggs", "pens", "toys", "boxes", "letters"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
COUNTS = ("zero", "one", "two", "three", "four", "five")
