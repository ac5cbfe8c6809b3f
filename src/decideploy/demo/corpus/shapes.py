"""Pictures in words: which shape has which colour, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass

from decideploy.demo.corpus.drawing import Decision, Draw, a, choice, noul, score
from decideploy.demo.corpus.words import COLOURS, COUNTS, SHAPES

TOPIC = "shapes"

STATES = (
    "The picture shows {first} and {second}.",
    "There is {first} and {second}.",
    "On the page there is {first} beside {second}.",
    "In the picture there is {first} and {second}.",
    "The page shows {first} beside {second}.",
    "We see {first} above {second}.",
    "There is {first} above {second}.",
    "The picture: {first} and {second}.",
    "In the picture we see {first} above {second}.",
    "On the page we see {first} and {second}.",
)
COUNTED = (
    "There are {first} and {second}.",
    "The picture shows {first} and {second}.",
    "We see {first} and {second}.",
    "In the picture there are {first} and {second}.",
    "On the page there are {first} and {second}.",
)
ASK_COLOUR = (
    "Which colour is the {shape}?",
    "Which colour does the {shape} have?",
    "What colour is the {shape}?",
    "What is the colour of the {shape}?",
    "Which is the colour of the {shape}?",
)
ASK_SHAPE = (
    "Which shape is {colour}?",
    "What is {colour}?",
    "Which of the shapes is {colour}?",
    "What shape is {colour}?",
    "Which of them is {colour}?",
)
ASK_COUNT = (
    "How many {shapes} are there?",
    "How many {shapes} does it show?",
    "What is the number of {shapes}?",
    "How many {shapes} do we see?",
    "How many {shapes} are in the picture?",
)
IS_COLOUR = (
    "Is the {shape} {colour}?",
    "Does the {shape} have the colour {colour}?",
    "Is {colour} the colour of the {shape}?",
    "Is there {a_colour} {shape}?",
    "Is the colour of the {shape} {colour}?",
)


@dataclass(frozen=True, slots=True)
class Picture:
    """Two shapes and their colours."""

    state: str
    shapes: list[str]
    colours: list[str]


def picture(draw: Draw) -> Picture:
    """Two different shapes of different colours."""
    shapes, colours = draw.words_apart(SHAPES, 2), draw.words_apart(COLOURS, 2)
    first, second = (f"{a(colour)} {shape}" for colour, shape in zip(colours, shapes, strict=True))
    return Picture(draw.phrase(STATES).format(first=first, second=second), shapes, colours)


def about_colour(draw: Draw) -> Decision:
    """The colour of one of the shapes."""
    said = picture(draw)
    place = draw.random.randrange(2)
    shape, answer = said.shapes[place], said.colours[place]
    return choice(
        TOPIC,
        said.state,
        draw.phrase(ASK_COLOUR).format(shape=shape),
        options=_options(draw, answer, said.colours[1 - place], COLOURS),
        answer=answer,
        evidence=f"The {shape} is {answer}.",
    )


def about_shape(draw: Draw) -> Decision:
    """The shape of one of the colours."""
    said = picture(draw)
    place = draw.random.randrange(2)
    answer, colour = said.shapes[place], said.colours[place]
    return choice(
        TOPIC,
        said.state,
        draw.phrase(ASK_SHAPE).format(colour=colour),
        options=_options(draw, answer, said.shapes[1 - place], SHAPES),
        answer=answer,
        evidence=f"The {answer} is {colour}.",
    )


def _options(draw: Draw, answer: str, other: str, table: tuple[str, ...]) -> tuple[str, ...]:
    rest = [word for word in draw.beside(answer, table) if word != other]
    options = [answer, other, *draw.random.sample(rest, draw.random.randint(0, min(len(rest), 8)))]
    draw.random.shuffle(options)
    return tuple(options)


def about_count(draw: Draw) -> Decision:
    """How many there are of one of two shapes: 0 to 5."""
    shapes, colours = draw.words_apart(SHAPES, 2), draw.words_apart(COLOURS, 2)
    levels = draw.random.sample((0, 2, 3, 4, 5), 2)
    first, second = (
        f"{COUNTS[level] if level else 'no'} {colour} {shape}s"
        for level, colour, shape in zip(levels, colours, shapes, strict=True)
    )
    place = draw.random.randrange(2)
    return score(
        TOPIC,
        draw.phrase(COUNTED).format(first=first, second=second),
        draw.phrase(ASK_COUNT).format(shapes=f"{shapes[place]}s"),
        level=levels[place],
        evidence=f"The number is {levels[place]}.",
    )


def is_colour(draw: Draw) -> Decision:
    """Whether a shape has a colour, asked with the colour of the other one, or with a third."""
    said = picture(draw)
    place = draw.random.randrange(2)
    shape, colour = said.shapes[place], said.colours[place]
    others = draw.beside(colour, COLOURS)
    wrong = said.colours[1 - place] if draw.either() else draw.random.choice(others)
    asked = colour if draw.either() else wrong
    question = draw.phrase(IS_COLOUR).format(shape=shape, colour=asked, a_colour=a(asked))
    return noul(TOPIC, said.state, question, truth=asked == colour, evidence=f"The {shape} is {colour}.")


QUESTIONS = (about_colour, about_shape, about_count, is_colour)
