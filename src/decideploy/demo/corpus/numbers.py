"""Numbers: who has how many, and who has more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decideploy.demo.corpus.drawing import Decision, Draw, choice, noul, score
from decideploy.demo.corpus.words import COUNTS, NAMES, THINGS

TOPIC = "numbers"
LARGEST = 99

OPENINGS = (
    "This is the list.",
    "We have counted.",
    "Here are the numbers.",
    "Somebody has counted the {things}.",
    "Here is the list of the {things}.",
)
HOLDINGS = (
    "{name} has {count} {things}.",
    "{name} got {count} {things}.",
    "There are {count} {things} with {name}.",
    "{name} found {count} {things}.",
    "{count} {things} are with {name}.",
    "{name} bought {count} {things}.",
    "{name} keeps {count} {things}.",
    "{count} {things} go to {name}.",
    "{name} took {count} {things}.",
    "There are {count} {things} for {name}.",
)
ASK_MOST = (
    "Who has the most {things}?",
    "Who has the largest number?",
    "Who has most?",
    "Who has the largest number of {things}?",
    "Who has the most?",
)
ASK_COUNT = (
    "How many {things} does {name} have?",
    "What is the number of {name}?",
    "How many does {name} have?",
    "Which number of {things} does {name} have?",
    "How many {things} are with {name}?",
)
ASK_OWNER = (
    "Who has {count} {things}?",
    "Who has {count}?",
    "With whom are {count} {things}?",
    "Who has the number {count}?",
    "Who has exactly {count} {things}?",
)
IS_MORE = (
    "Does {first} have more {things} than {second}?",
    "Does {first} have more than {second}?",
    "Is the number of {first} larger than the number of {second}?",
    "Is the number of {first} larger than that of {second}?",
    "Does {first} have a larger number of {things} than {second}?",
)
IS_COUNT = (
    "Does {name} have {count} {things}?",
    "Is {count} the number of {name}?",
    "Does {name} have {count}?",
    "Does {name} have exactly {count} {things}?",
    "Is the number of {name} {count}?",
)


@dataclass(frozen=True, slots=True)
class Holdings:
    """Who has how many of the ``things``; ``counts`` as they are written."""

    state: str
    things: str
    names: list[str]
    counts: list[str]


def holdings(draw: Draw, counts: Sequence[str]) -> Holdings:
    """One sentence for each of ``counts``."""
    names = draw.words_apart(NAMES, len(counts), made_up=True)
    things = draw.word(THINGS)
    holding = draw.phrase(HOLDINGS)
    lines = [
        holding.format(name=name, count=count, things=things)
        for name, count in zip(names, counts, strict=True)
    ]
    if draw.either():
        lines.insert(0, draw.phrase(OPENINGS).format(things=things))
    return Holdings(" ".join(lines), things, names, list(counts))


def _different(draw: Draw, most: int) -> list[str]:
    return [str(count) for count in draw.random.sample(range(1, LARGEST + 1), draw.random.randint(2, most))]


def about_most(draw: Draw) -> Decision:
    """Who has the most."""
    said = holdings(draw, _different(draw, 3))
    place = max(range(len(said.counts)), key=lambda place: int(said.counts[place]))
    options = draw.random.sample(said.names, len(said.names))
    return choice(
        TOPIC,
        said.state,
        draw.phrase(ASK_MOST).format(things=said.things),
        options=tuple(options),
        answer=said.names[place],
        evidence=f"The most is {said.counts[place]}, with {said.names[place]}.",
    )


def about_owner(draw: Draw) -> Decision:
    """Who has this number."""
    said = holdings(draw, _different(draw, 4))
    place = draw.random.randrange(len(said.names))
    name, count = said.names[place], said.counts[place]
    others = [other for other in draw.beside(name, NAMES) if other not in said.names]
    options = [*said.names, *draw.random.sample(others, draw.random.randint(0, min(12, len(others))))]
    draw.random.shuffle(options)
    return choice(
        TOPIC,
        said.state,
        draw.phrase(ASK_OWNER).format(count=count, things=said.things),
        options=tuple(options),
        answer=name,
        evidence=f"{name} has {count}.",
    )


def about_number(draw: Draw) -> Decision:
    """Which number somebody has."""
    said = holdings(draw, _different(draw, 3))
    place = draw.random.randrange(len(said.names))
    name, count = said.names[place], said.counts[place]
    others = [str(other) for other in range(1, LARGEST + 1) if str(other) not in said.counts]
    options = [*said.counts, *draw.random.sample(others, draw.random.randint(0, 4))]
    draw.random.shuffle(options)
    question = draw.phrase(ASK_COUNT).format(name=name, things=said.things)
    evidence = f"{name} has {count}."
    return choice(TOPIC, said.state, question, options=tuple(options), answer=count, evidence=evidence)


def about_count(draw: Draw) -> Decision:
    """How many somebody has: 0 to 5, in digits or in words."""
    levels = draw.random.sample(range(6), draw.random.randint(1, 3))
    written = [COUNTS[level] if draw.either() else str(level) for level in levels]
    said = holdings(draw, written)
    place = draw.random.randrange(len(levels))
    question = draw.phrase(ASK_COUNT).format(name=said.names[place], things=said.things)
    evidence = f"{said.names[place]} has {levels[place]}."
    return score(TOPIC, said.state, question, level=levels[place], evidence=evidence)


def is_more(draw: Draw) -> Decision:
    """Whether the first has more than the second, named in either order."""
    said = holdings(draw, _different(draw, 2))
    first, second = (0, 1) if draw.either() else (1, 0)
    told = (f"{said.names[place]} has {said.counts[place]}" for place in (first, second))
    return noul(
        TOPIC,
        said.state,
        draw.phrase(IS_MORE).format(first=said.names[first], second=said.names[second], things=said.things),
        truth=int(said.counts[first]) > int(said.counts[second]),
        evidence=", ".join(told) + ".",
    )


def is_count(draw: Draw) -> Decision:
    """Whether somebody has this number."""
    said = holdings(draw, _different(draw, 3))
    place = draw.random.randrange(len(said.names))
    name, count = said.names[place], said.counts[place]
    others = [other for other in said.counts if other != count]
    asked = count if draw.either() else draw.random.choice(others)
    question = draw.phrase(IS_COUNT).format(name=name, count=asked, things=said.things)
    return noul(TOPIC, said.state, question, truth=asked == count, evidence=f"{name} has {count}.")


QUESTIONS = (about_most, about_owner, about_number, about_count, is_more, is_count)
