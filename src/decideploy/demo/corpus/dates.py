"""Dates: on which day something happened, what came first, and how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decideploy.demo.corpus.drawing import Decision, Draw, choice, noul, score, without
from decideploy.demo.corpus.words import DAYS, ITEMS, MONTHS

TOPIC = "dates"

STATES = (
    "The {item} was sent on {start} and arrived on {end}.",
    "The {item} was sent on {start}. It arrived on {end}.",
    "We sent the {item} on {start}. The {item} arrived on {end}.",
    "The {item} that was sent on {start} arrived on {end}.",
    "On {start} the {item} was sent, and on {end} it arrived.",
    "On {end} the {item} arrived. It was sent on {start}.",
    "The {item} arrived on {end}. It was sent on {start}.",
    "Sent on {start}, the {item} arrived on {end}.",
    "We sent the {item} on {start}, and it arrived on {end}.",
    "On {end} the {item} arrived that was sent on {start}.",
)
ASK_START = (
    "When was the {item} sent?",
    "On which day was the {item} sent?",
    "When was it sent?",
    "On which date was the {item} sent?",
    "On which day was it sent?",
)
ASK_END = (
    "When did the {item} arrive?",
    "On which day did the {item} arrive?",
    "When did it arrive?",
    "On which date did the {item} arrive?",
    "On which day did it arrive?",
)
ASK_LENGTH = (
    "How many days did it take?",
    "How many days did the {item} take?",
    "How long did it take?",
    "How long did the {item} take?",
    "How many days did the delivery take?",
)
IS_BEFORE = (
    "Did the {item} arrive before {day}?",
    "Did it arrive before {day}?",
    "Was it there before {day}?",
    "Was the {item} there before {day}?",
    "Had it arrived before {day}?",
)
IS_START = (
    "Was the {item} sent on {day}?",
    "Was it sent on {day}?",
    "Is {day} the day when it was sent?",
    "Is {day} the day when the {item} was sent?",
    "Is it right that it was sent on {day}?",
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery; ``start`` and ``end`` are places in the calendar."""

    state: str
    item: str
    start: int
    end: int


def delivery(draw: Draw, calendar: Sequence[str], *, most: int) -> Delivery:
    """A delivery that takes 0 to ``most`` days of one week, or months of one year."""
    start = draw.random.randrange(len(calendar))
    end = min(start + draw.random.randint(0, most), len(calendar) - 1)
    item = draw.word(ITEMS, made_up=True)
    state = draw.phrase(STATES).format(item=item, start=_on(calendar, start), end=_on(calendar, end))
    return Delivery(state.replace("on in", "in").replace("On in", "In"), item, start, end)


def _on(calendar: Sequence[str], place: int) -> str:
    """A day stands after "on", a month after "in"."""
    return calendar[place] if calendar is DAYS else f"in {calendar[place]}"


def about_start(draw: Draw) -> Decision:
    """When it was sent."""
    return _about_date(draw, ASK_START, start=True)


def about_end(draw: Draw) -> Decision:
    """When it arrived."""
    return _about_date(draw, ASK_END, start=False)


def _about_date(draw: Draw, questions: tuple[str, ...], *, start: bool) -> Decision:
    calendar = DAYS if draw.either() else MONTHS
    said = delivery(draw, calendar, most=6)
    place = said.start if start else said.end
    answer, other = calendar[place], calendar[said.end if start else said.start]
    options = list(draw.among(answer, without(without(calendar, answer), other)))
    if other != answer:
        options.append(other)
    draw.random.shuffle(options)
    return choice(
        TOPIC,
        said.state,
        draw.phrase(questions).format(item=said.item),
        options=tuple(options),
        answer=answer,
        evidence=f"It {'was sent' if start else 'arrived'} in {answer}."
        if calendar is MONTHS
        else f"It {'was sent' if start else 'arrived'} on {answer}.",
    )


def about_length(draw: Draw) -> Decision:
    """How many days it took, within one week."""
    said = delivery(draw, DAYS, most=5)
    days = said.end - said.start
    question = draw.phrase(ASK_LENGTH).format(item=said.item)
    evidence = f"From {DAYS[said.start]} to {DAYS[said.end]} it is {days}."
    return score(TOPIC, said.state, question, level=days, evidence=evidence)


def is_before(draw: Draw) -> Decision:
    """Whether it arrived before a day."""
    calendar = DAYS if draw.either() else MONTHS
    said = delivery(draw, calendar, most=6)
    asked = draw.random.randrange(len(calendar))
    question = draw.phrase(IS_BEFORE).format(item=said.item, day=calendar[asked])
    evidence = f"It arrived {'on' if calendar is DAYS else 'in'} {calendar[said.end]}."
    return noul(TOPIC, said.state, question, truth=said.end < asked, evidence=evidence)


def is_start(draw: Draw) -> Decision:
    """Whether it was sent on a day, asked of the two days that were named or of a third."""
    said = delivery(draw, DAYS, most=6)
    asked = said.start if draw.either() else draw.random.choice([d for d in range(7) if d != said.start])
    question = draw.phrase(IS_START).format(item=said.item, day=DAYS[asked])
    evidence = f"It was sent on {DAYS[said.start]}."
    return noul(TOPIC, said.state, question, truth=asked == said.start, evidence=evidence)


QUESTIONS = (about_start, about_end, about_length, is_before, is_start)
