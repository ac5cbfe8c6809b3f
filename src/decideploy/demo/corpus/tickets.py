"""Support tickets: what is wrong, what the customer wants, and how soon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from decideploy.demo.corpus.drawing import Decision, Draw, choice, noul, score, sentence, without
from decideploy.demo.corpus.words import DAYS, ITEMS, NAMES

TOPIC = "tickets"

PROBLEMS: Mapping[str, tuple[str, ...]] = {
    "a defect": ("the {item} is broken", "the {item} does not work", "the {item} does not switch on"),
    "late delivery": (
        "the {item} arrived two weeks late",
        "the {item} has not arrived yet",
        "the parcel with the {item} is late",
    ),
    "a wrong item": (
        "another {item} was sent",
        "the wrong {item} came",
        "this is not the {item} of the order",
    ),
    "a wrong invoice": (
        "the {item} was charged twice",
        "the invoice for the {item} is too high",
        "the {item} was paid twice",
    ),
    "a lost password": ("the password does not work", "the account is locked", "the password is lost"),
    "a missing part": ("a part of the {item} is missing", "the box of the {item} was empty"),
    "damage": ("the {item} has a scratch", "the box of the {item} was torn", "the {item} came damaged"),
    "noise": ("the {item} is too loud", "the {item} makes a strange sound"),
    "heat": ("the {item} gets too hot", "smoke comes out of the {item}"),
    "a bad smell": ("the {item} smells bad", "a strange smell comes from the {item}"),
}
REMEDIES = {
    "a defect": "a replacement",
    "late delivery": "an apology",
    "a wrong item": "an exchange",
    "a wrong invoice": "a refund",
    "a lost password": "a new password",
    "a missing part": "the missing part",
    "damage": "a discount",
    "noise": "a repair",
    "heat": "a safety check",
    "a bad smell": "a cleaning",
}
WISHES: Mapping[str, tuple[str, ...]] = {
    "a refund": ("wants the money back", "asks for a refund", "wants to be paid back"),
    "a replacement": ("wants a new one", "asks for a replacement", "wants another one"),
    "a repair": ("wants it repaired", "asks for a repair"),
    "an apology": ("expects an apology", "wants to hear that we are sorry"),
    "a discount": ("asks for a discount", "wants a lower price"),
    "a call": ("asks for a call", "wants to be called"),
    "a visit": ("asks for a visit", "wants somebody to come"),
    "an answer": ("asks for an answer", "waits for a reply"),
    "the manual": ("asks for the manual", "wants to read how it works"),
    "to cancel": ("wants to cancel the order", "does not want the order any more"),
}
HURRY = (
    ("There is no hurry at all.", "It is not urgent."),
    ("It can wait for a month.", "Any day next month is fine."),
    ("Next week is soon enough.", "It should be done next week."),
    ("It has to be done this week.", "It should not take longer than this week."),
    ("It has to be done by tomorrow.", "Tomorrow is the last day."),
    ("It has to be done today.", "It cannot wait another hour."),
)
NOTES = (
    "The order is from {day}.",
    "The {item} was a gift.",
    "This is the first order.",
    "The address is known.",
    "The receipt is there.",
)

STATES = (
    "{Who} writes that {problem}. {Who} {wish}. {hurry}",
    "{problem_}, says {who}. {Who} {wish}. {hurry}",
    "{hurry} {Who} complains that {problem} and {wish}.",
    "{Who} called on {day}: {problem}. {Who} {wish}. {hurry}",
    "On {day} {who} told us that {problem}. {hurry} {Who} {wish}.",
    "Ticket {number}: {problem}. The customer {wish}. {hurry}",
    "{Who} {wish}, because {problem}. {hurry}",
    "{problem_}. {hurry} {Who} {wish}.",
    "{Who} reports that {problem}. {hurry} {Who} {wish}.",
    "We got a letter from {who} on {day}. {problem_}. {Who} {wish}. {hurry}",
    "{hurry} {problem_}, and so {who} {wish}.",
    "{Who} {wish}. {hurry} The reason is that {problem}.",
    "{note} {Who} says that {problem} and {wish}. {hurry}",
    "{Who} {wish}, as {problem}. {note} {hurry}",
    "{hurry} {note} {Who} writes that {problem}. {Who} {wish}.",
    "A message of {day} from {who}: {problem}. {hurry} {Who} {wish}.",
    "{note} {problem_}. {Who} {wish}. {hurry}",
    "{Who} {wish}. {problem_}. {note} {hurry}",
)
REPORTS = (
    "{problem_}.",
    "{Who} writes that {problem}.",
    "{Who} says that {problem}. {note}",
    "{Who} called on {day}: {problem}.",
    "On {day} {who} told us that {problem}.",
    "{note} {problem_}.",
    "{Who} complains that {problem}. {note}",
    "Ticket {number}: {problem}.",
    "{note} {Who} reports that {problem}.",
    "{note} {Who} called on {day}: {problem}.",
)
ASK_WISH = (
    "What does the customer want?",
    "Which wish does the customer have?",
    "What does {who} ask for?",
    "What does {who} want?",
    "What does the customer ask for?",
    "What is the wish of the customer?",
    "What would the customer like to get?",
    "What is wanted?",
    "Which wish does {who} have?",
    "What is the wish of {who}?",
)
ASK_PROBLEM = (
    "What is the problem?",
    "What is the ticket about?",
    "What is wrong?",
    "Which problem does the customer have?",
    "What is the message about?",
    "What does the customer report?",
    "Which problem is reported?",
    "What went wrong?",
    "What is wrong with the order?",
    "Which problem does {who} have?",
)
ASK_REMEDY = (
    "What should we offer?",
    "What should we offer to the customer?",
    "Which offer fits best?",
    "What can we offer?",
    "What should we offer to {who}?",
)
ASK_HURRY = (
    "How urgent is this?",
    "How urgent is the ticket?",
    "How soon must we act?",
    "How urgent is the message?",
    "How urgent is the problem?",
    "How much hurry is there?",
    "How urgent is the case of {who}?",
    "How soon must we answer?",
    "How urgent is the wish?",
    "How urgent is the case?",
)
IS_WISH = (
    "Does the customer want {wish}?",
    "Does the customer ask for {wish}?",
    "Is the wish {wish}?",
    "Does {who} ask for {wish}?",
    "Does {who} want {wish}?",
)
IS_PROBLEM = (
    "Is the problem {problem}?",
    "Is the ticket about {problem}?",
    "Does the customer report {problem}?",
    "Is it about {problem}?",
    "Is the message about {problem}?",
)


@dataclass(frozen=True, slots=True)
class Ticket:
    """One ticket and what it says: ``hurry`` from 0 to 5."""

    state: str
    who: str
    problem: str
    wish: str
    hurry: int


def ticket(draw: Draw, states: tuple[str, ...] = STATES) -> Ticket:
    """A ticket in one of ``states``."""
    pick = draw.random.choice
    problem, wish, hurry = pick(list(PROBLEMS)), pick(list(WISHES)), draw.random.randrange(6)
    item = draw.word(ITEMS, made_up=True)
    who = draw.word(NAMES, made_up=True) if draw.either() else "the customer"
    told = pick(PROBLEMS[problem]).format(item=item)
    day = pick(DAYS)
    state = draw.phrase(states).format(
        who=who,
        Who=sentence(who),
        problem=told,
        problem_=sentence(told),
        wish=pick(WISHES[wish]),
        hurry=pick(HURRY[hurry]),
        note=pick(NOTES).format(day=day, item=item),
        day=day,
        number=draw.random.randint(1, 99),
    )
    return Ticket(state, who, problem, wish, hurry)


def about_wish(draw: Draw) -> Decision:
    """What the customer wants."""
    said = ticket(draw)
    return choice(
        TOPIC,
        said.state,
        draw.phrase(ASK_WISH).format(who=said.who),
        options=draw.among(said.wish, without(WISHES, said.wish)),
        answer=said.wish,
        evidence=f"The wish is {said.wish}.",
    )


def about_problem(draw: Draw) -> Decision:
    """What is wrong."""
    said = ticket(draw, STATES if draw.either() else REPORTS)
    return choice(
        TOPIC,
        said.state,
        draw.phrase(ASK_PROBLEM).format(who=said.who),
        options=draw.among(said.problem, without(PROBLEMS, said.problem)),
        answer=said.problem,
        evidence=f"The problem is {said.problem}.",
    )


def about_remedy(draw: Draw) -> Decision:
    """What to offer to a customer who has named no wish."""
    said = ticket(draw, REPORTS)
    remedy = REMEDIES[said.problem]
    return choice(
        TOPIC,
        said.state,
        draw.phrase(ASK_REMEDY).format(who=said.who),
        options=draw.among(remedy, without(REMEDIES.values(), remedy)),
        answer=remedy,
        evidence=f"The problem is {said.problem}, so we offer {remedy}.",
    )


def about_hurry(draw: Draw) -> Decision:
    """How urgent it is."""
    said = ticket(draw)
    question = draw.phrase(ASK_HURRY).format(who=said.who)
    return score(TOPIC, said.state, question, level=said.hurry, evidence=f"The hurry is {said.hurry} of 5.")


def is_wish(draw: Draw) -> Decision:
    """Whether the customer wants this."""
    said = ticket(draw)
    asked = said.wish if draw.either() else draw.random.choice(without(WISHES, said.wish))
    question = draw.phrase(IS_WISH).format(wish=asked, who=said.who)
    return noul(TOPIC, said.state, question, truth=asked == said.wish, evidence=f"The wish is {said.wish}.")


def is_problem(draw: Draw) -> Decision:
    """Whether this is wrong."""
    said = ticket(draw, STATES if draw.either() else REPORTS)
    asked = said.problem if draw.either() else draw.random.choice(without(PROBLEMS, said.problem))
    question = draw.phrase(IS_PROBLEM).format(problem=asked)
    return noul(
        TOPIC, said.state, question, truth=asked == said.problem, evidence=f"The problem is {said.problem}."
    )


QUESTIONS = (about_wish, about_problem, about_remedy, about_hurry, is_wish, is_problem)
