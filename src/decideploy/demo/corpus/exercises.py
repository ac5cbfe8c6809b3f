"""Exercises: many small look-ups in one text, which teach attention what every decision needs.

Which letter stands before an option, and what was said of a thing, are learnt within minutes where each text
asks it ten times, and hardly at all where it asks once.
"""

from __future__ import annotations

from collections.abc import Callable

from decideploy.decide.slots import CHOICE_LETTERS
from decideploy.demo.corpus.drawing import Draw, part_of
from decideploy.demo.corpus.tickets import PROBLEMS, REMEDIES, WISHES
from decideploy.demo.corpus.words import ASPECTS, COLOURS, DAYS, ITEMS, MONTHS, NAMES, SHAPES

_CLOSED = (tuple(PROBLEMS), tuple(WISHES), tuple(REMEDIES.values()), DAYS, MONTHS)
_OPEN = (ASPECTS, COLOURS, ITEMS, NAMES, SHAPES)
_SAID = (
    "The {first} is {second}.",
    "{first} has {second}.",
    "There is {second} with {first}.",
    "{first}, {second}.",
    "{second} is {first}.",
)


def lettered(draw: Draw) -> tuple[str, str]:
    """Lettered options, and which letter each has, in another order."""
    options = _words(draw, draw.random.randint(3, 12))
    lines = [f"{letter}) {option}" for letter, option in zip(CHOICE_LETTERS, options, strict=False)]
    asked = draw.random.sample(range(len(options)), len(options))
    return "\n".join(lines) + "\n", "".join(f"\n {options[place]}:{CHOICE_LETTERS[place]}" for place in asked)


def paired(draw: Draw) -> tuple[str, str]:
    """Sentences that tie two words, and for each word its other, in another order."""
    count = draw.random.randint(3, 6)
    firsts, seconds = _words(draw, count), _words(draw, count)
    said = draw.random.choice(_SAID)
    text = " ".join(
        said.format(first=first, second=second) for first, second in zip(firsts, seconds, strict=True)
    )
    pairs = [*zip(firsts, seconds, strict=True), *zip(seconds, firsts, strict=True)]
    draw.random.shuffle(pairs)
    return text + "\n", "".join(f"\n {asked}: {answer}" for asked, answer in pairs)


def _words(draw: Draw, count: int) -> list[str]:
    if draw.random.random() < 0.2:
        return [str(number) for number in draw.random.sample(range(1, 100), count)]
    tables = [table for table in _CLOSED if len(table) >= count]
    if tables and draw.random.random() < 0.3:
        return draw.random.sample(draw.random.choice(tables), count)
    table = draw.random.choice([table for table in _OPEN if len(part_of(table, draw.words)) > count])
    return draw.words_apart(table, count, made_up=table in (ITEMS, NAMES))


EXERCISES: tuple[Callable[[Draw], tuple[str, str]], ...] = (lettered, paired)
