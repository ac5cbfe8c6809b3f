"""Product reviews: how good a product is, in one respect or in all."""

from __future__ import annotations

from dataclasses import dataclass

from decideploy.demo.corpus.drawing import Decision, Draw, choice, noul, score, sentence, without
from decideploy.demo.corpus.words import ASPECTS, ITEMS, MONTHS

TOPIC = "reviews"

GRADES = (
    ("terrible", "awful", "useless"),
    ("bad", "poor"),
    ("weak", "not good"),
    ("average", "okay"),
    ("good", "nice"),
    ("excellent", "perfect", "wonderful"),
)
LOWEST_GOOD, HIGHEST_BAD = 4, 1
NOTES = (
    "I bought it in {month}.",
    "We use it every day.",
    "It came in {month}.",
    "It was a gift.",
    "The shop is in our street.",
)

STATES = (
    "The {item} is {grade}. {note}",
    "{note} The {item} is {grade}.",
    "This {item} is {grade}. {note}",
    "{note} I find the {item} {grade}.",
    "{note} In short, the {item} is {grade}.",
    "My new {item} is {grade}. {note}",
    "I think that the {item} is {grade}.",
    "{grade_}, this {item}. {note}",
    "We find the {item} {grade}. {note}",
    "I think this {item} is {grade}. {note}",
    "{note} All in all the {item} is {grade}.",
    "Here is my review of the {item}: {grade}. {note}",
    "{note} We think that it is {grade}, this {item}.",
    "{note} For me the {item} is {grade}.",
    "All in all I find this {item} {grade}. {note}",
)
PAIRS = (
    "The {first} of the {item} is {grade}, but the {second} is {other}.",
    "The {item} has {a_grade} {first}. The {second} is {other}.",
    "{note} The {first} is {grade} and the {second} is {other}.",
    "I find the {first} {grade}. The {second} of this {item} is {other}.",
    "The {first} is {grade}, while the {second} of the {item} is {other}.",
    "About the {item}: {first} {grade}, {second} {other}. {note}",
    "We find the {first} of the {item} {grade} and the {second} {other}.",
    "The {item}: the {first} is {grade}. {note} The {second} is {other}.",
    "{note} About the {item}: the {first} is {grade}, but the {second} is {other}.",
    "{note} I find the {first} {grade} and the {second} of the {item} {other}.",
)
ASK_GRADE = (
    "How good is the {item}?",
    "How happy is the customer?",
    "How good is the review?",
    "How good is this {item}?",
    "How happy is the writer of the review?",
    "How happy is the writer?",
    "How much does the customer like the {item}?",
    "How many stars does the {item} get?",
    "How happy is the customer with the {item}?",
    "How much does the writer like the {item}?",
)
ASK_ASPECT_GRADE = (
    "How good is the {aspect}?",
    "How good is the {aspect} of the {item}?",
    "How happy is the customer with the {aspect}?",
    "How happy is the writer with the {aspect}?",
    "How good does the customer find the {aspect}?",
    "How much does the writer like the {aspect}?",
    "How good does the writer find the {aspect}?",
    "How many stars does the {aspect} get?",
    "How much does the customer like the {aspect}?",
    "How many stars does the {aspect} of the {item} get?",
)
IS_GOOD = (
    "Is the review positive?",
    "Does the customer like the {item}?",
    "Is the customer happy?",
    "Does the writer like the {item}?",
    "Is the customer happy with the {item}?",
    "Is the {item} good?",
    "Is it a good review?",
    "Is the writer happy?",
    "Is this a positive review?",
    "Is the writer happy with the {item}?",
)
IS_ASPECT_GOOD = (
    "Is the {aspect} good?",
    "Does the customer like the {aspect}?",
    "Is the customer happy with the {aspect}?",
    "Is the {aspect} of the {item} good?",
    "Does the writer like the {aspect}?",
)
ASK_BEST = (
    "What does the customer like?",
    "What is good about the {item}?",
    "What does the writer like?",
    "What does the customer like about the {item}?",
    "What is good?",
)
ASK_WORST = (
    "What does the customer not like?",
    "What is bad about the {item}?",
    "What does the writer not like?",
    "What does the customer not like about the {item}?",
    "What is bad?",
)
ASK_ITEM = (
    "Which product is it?",
    "What is the review about?",
    "Which product does the writer have?",
    "Which product is the review about?",
    "Which product does the customer have?",
)


@dataclass(frozen=True, slots=True)
class Review:
    """A review of ``item`` as a whole."""

    state: str
    item: str
    level: int


@dataclass(frozen=True, slots=True)
class PairReview:
    """A review of two aspects of ``item`` and their levels."""

    state: str
    item: str
    aspects: tuple[str, str]
    levels: tuple[int, int]


def review(draw: Draw, levels: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> Review:
    """A review with one of ``levels``."""
    level, item = draw.random.choice(levels), draw.word(ITEMS, made_up=True)
    grade = draw.random.choice(GRADES[level])
    state = draw.phrase(STATES).format(item=item, grade=grade, grade_=sentence(grade), note=_note(draw))
    return Review(state.strip(), item, level)


def pair_review(draw: Draw, levels: tuple[int, int]) -> PairReview:
    """A review of two aspects with ``levels``."""
    first, second = draw.words_apart(ASPECTS, 2)
    item = draw.word(ITEMS, made_up=True)
    grade, other = (draw.random.choice(GRADES[level]) for level in levels)
    state = draw.phrase(PAIRS).format(
        item=item,
        first=first,
        second=second,
        grade=grade,
        other=other,
        a_grade=grade if grade.startswith("not") else f"{'an' if grade[0] in 'aeiou' else 'a'} {grade}",
        note=_note(draw),
    )
    return PairReview(state, item, (first, second), levels)


def _note(draw: Draw) -> str:
    return draw.random.choice(NOTES).format(month=draw.random.choice(MONTHS))


def about_grade(draw: Draw) -> Decision:
    """How good the product is."""
    said = review(draw)
    question = draw.phrase(ASK_GRADE).format(item=said.item)
    return score(TOPIC, said.state, question, level=said.level, evidence=f"The grade is {said.level} of 5.")


def about_aspect_grade(draw: Draw) -> Decision:
    """How good one of two aspects is."""
    said = pair_review(draw, (draw.random.randrange(6), draw.random.randrange(6)))
    place = draw.random.randrange(2)
    aspect, level = said.aspects[place], said.levels[place]
    question = draw.phrase(ASK_ASPECT_GRADE).format(item=said.item, aspect=aspect)
    return score(TOPIC, said.state, question, level=level, evidence=f"The {aspect} is {level} of 5.")


def is_good(draw: Draw) -> Decision:
    """Whether the review is positive; none is asked about that lies in between."""
    said = review(draw, (*range(HIGHEST_BAD + 1), *range(LOWEST_GOOD, 6)))
    question = draw.phrase(IS_GOOD).format(item=said.item)
    truth = said.level >= LOWEST_GOOD
    return noul(TOPIC, said.state, question, truth=truth, evidence=f"The grade is {said.level} of 5.")


def is_aspect_good(draw: Draw) -> Decision:
    """Whether one of two aspects is good, the other being bad."""
    said, good = _good_and_bad(draw)
    place = draw.random.randrange(2)
    aspect = said.aspects[place]
    question = draw.phrase(IS_ASPECT_GOOD).format(item=said.item, aspect=aspect)
    evidence = f"The {aspect} is {said.levels[place]} of 5."
    return noul(TOPIC, said.state, question, truth=place == good, evidence=evidence)


def about_best(draw: Draw) -> Decision:
    """Which aspect is good."""
    return _about_aspect(draw, ASK_BEST, want_good=True)


def about_worst(draw: Draw) -> Decision:
    """Which aspect is bad."""
    return _about_aspect(draw, ASK_WORST, want_good=False)


def about_item(draw: Draw) -> Decision:
    """Which product is reviewed."""
    said = review(draw)
    options = draw.among(said.item, draw.beside(said.item, ITEMS))
    evidence = f"It is a review of the {said.item}."
    question = draw.phrase(ASK_ITEM)
    return choice(TOPIC, said.state, question, options=options, answer=said.item, evidence=evidence)


def _good_and_bad(draw: Draw) -> tuple[PairReview, int]:
    """A review of a good and a bad aspect, and the place of the good one."""
    good = draw.random.randrange(LOWEST_GOOD, 6)
    bad = draw.random.randrange(HIGHEST_BAD + 1)
    return (pair_review(draw, (good, bad)), 0) if draw.either() else (pair_review(draw, (bad, good)), 1)


def _about_aspect(draw: Draw, questions: tuple[str, ...], *, want_good: bool) -> Decision:
    said, good = _good_and_bad(draw)
    place = good if want_good else 1 - good
    answer, other = said.aspects[place], said.aspects[1 - place]
    # Mostly with the other aspect among the options: else the right one is the only one that was named.
    others = without(draw.beside(answer, ASPECTS), other)
    options = draw.among(answer, others)
    if len(options) < 16 and other not in options:
        options = _with(draw, options, other)
    question = draw.phrase(questions).format(item=said.item)
    evidence = f"The {answer} is {said.levels[place]} of 5."
    return choice(TOPIC, said.state, question, options=options, answer=answer, evidence=evidence)


def _with(draw: Draw, options: tuple[str, ...], other: str) -> tuple[str, ...]:
    longer = [*options, other]
    draw.random.shuffle(longer)
    return tuple(longer)


QUESTIONS = (
    about_grade,
    about_aspect_grade,
    is_good,
    is_aspect_good,
    about_best,
    about_worst,
    about_item,
)
