"""Both real clients, sync and async, against the real server: answers are those of ``/v1/decide``."""

import asyncio
import base64
import io
import re
from pathlib import Path

import httpx
import openai
import pytest
import typesafe_sdk
from PIL import Image as Pixels
from typesafe_sdk import Box, Choice, Image, Noul, RetryPolicy, Score

pytestmark = pytest.mark.integration

# Two readings of one prompt may run in different batches, whose sums round differently.
BATCH_NOISE = 5e-3
STATE = {"subject": "Duplicate charge", "message": "I was charged twice. Please help."}
STATE_TEXT = '{"subject": "Duplicate charge", "message": "I was charged twice. Please help."}'
SIX = ["no harm", "little", "some", "much", "great", "ruin"]
SIX_LINES = "\n".join(f"{level}: {text}" for level, text in enumerate(SIX))


@pytest.fixture(scope="module")
def model(server):
    return server.started["plan"]["served_model_name"]


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


@pytest.fixture(scope="module", params=["sync", "async"])
def system_one(request, server, model):
    """``system_one`` of the sync client, or of the async one awaited."""
    options = {
        "api_key": "unused",
        "base_url": server.url,
        "model": model,
        "timeout": 120,
        "retry": RetryPolicy(max_retries=0),
    }
    if request.param == "sync":
        with typesafe_sdk.TypeSafeClient(**options) as client:
            yield client.system_one
        return

    def ask(*arguments, **fields):
        async def once():
            async with typesafe_sdk.AsyncTypeSafeClient(**options) as client:
                return await client.system_one(*arguments, **fields)

        return asyncio.run(once())

    yield ask


@pytest.fixture(scope="module", params=["sync", "async"])
def create(request, server, model):
    """``decisions.create`` of the sync client, or of the async one awaited."""
    options = {"api_key": "unused", "base_url": f"{server.url}/v1", "timeout": 120, "max_retries": 0}
    if request.param == "sync":
        with openai.OpenAI(**options) as client:
            yield lambda **fields: client.decisions.create(**{"model": model, **fields})
        return

    def ask(**fields):
        async def once():
            async with openai.AsyncOpenAI(**options) as client:
                return await client.decisions.create(**{"model": model, **fields})

        return asyncio.run(once())

    yield ask


def decide(http, kind, question, options=None, state=STATE):
    fields = {"kind": kind, "state": state, "question": question}
    reply = http.post("/v1/decide", json=fields | ({"options": options} if options else {}))
    assert reply.status_code == 200, reply.text
    return reply.json()["probabilities"]


def close(probabilities):
    return pytest.approx(probabilities, abs=BATCH_NOISE)


def test_every_question_of_systemone(system_one, http, model):
    answer = system_one(
        STATE,
        {
            "billing": Noul(instructions="Is it about billing?"),
            "criteria": Noul(criteria={"true": "A complaint", "false": None}),
            "structured": Noul(instructions={"task": "Is it urgent?", "for": ["support"]}),
            "tone": Choice(instructions="What is the tone?", criteria={"calm": None, "angry": "Upset"}),
            "many": Choice(criteria={f"option {index}": None for index in range(40)}),
            "only": Choice(criteria={"only": "one"}),
            "six": Score(instructions="How bad?", criteria=SIX),
            "three": Score(instructions="How urgent?", criteria=["can wait", "this week", "today"]),
            "one": Score(criteria=["all the same"]),
        },
    )
    assert answer.model == model
    assert answer.request_id
    asked = {
        "billing": decide(http, "noul", "Is it about billing?"),
        "criteria": decide(http, "noul", "true: A complaint"),
        "structured": decide(http, "noul", '{"task": "Is it urgent?", "for": ["support"]}'),
    }
    assert {name: noul.noul for name, noul in answer.nouls.items()} == {
        name: close(probabilities[1]) for name, probabilities in asked.items()
    }
    tone = decide(http, "choice", "What is the tone?", ["calm", "angry: Upset"])
    assert list(answer.choices["tone"].probabilities.values()) == close(tone)
    assert answer.choices["tone"].confidence == close(2 * max(tone) - 1)
    many = decide(http, "choice", "Which option applies?", [f"option {index}" for index in range(40)])
    assert list(answer.choices["many"].probabilities.values()) == close(many)
    assert (answer.choices["only"].choice, answer.choices["only"].probabilities) == ("only", {"only": 1.0})
    six = decide(http, "score", f"How bad?\n{SIX_LINES}")
    assert list(answer.scores["six"].probabilities.values()) == close(six)
    assert answer.scores["six"].legend == dict(enumerate(SIX))
    assert answer.scores["six"].score == pytest.approx(sum(n * p for n, p in enumerate(six)), abs=0.05)
    three = decide(http, "choice", "How urgent?", ["can wait", "this week", "today"])
    assert list(answer.scores["three"].probabilities.values()) == close(three)
    assert (answer.scores["one"].score, answer.scores["one"].confidence) == (0.0, 1.0)
    # Forty options take three groups and a final; the two questions with one option take nothing.
    assert answer.usage.output_tokens == 6 + 4


@pytest.mark.parametrize(
    ("state", "same_as"),
    [
        ("A text.", "A text."),
        (["one", "two"], ["one", "two"]),
        (["one", {"n": 2}], '["one", {"n": 2}]'),
        (STATE, STATE_TEXT),
    ],
)
def test_every_form_of_a_state(system_one, http, state, same_as):
    answer = system_one(state, {"q": Noul(instructions="Is it so?")})
    assert answer.answers["q"].noul == close(decide(http, "noul", "Is it so?", state=same_as)[1])


def test_every_question_of_decisions(create, http, model):
    decision = create(
        input=STATE_TEXT,
        questions=[
            {"type": "predicate", "name": "billing", "instructions": "It is about billing."},
            {
                "type": "predicate",
                "instructions": [
                    {"type": "input_text", "text": "It is urgent."},
                    {"type": "input_json", "data": {"for": ["support"]}},
                ],
            },
            {
                "type": "choice",
                "instructions": "Is it spam?",
                "choices": [
                    {"value": True},
                    {"value": False, "description": "wanted"},
                    {"value": "true", "description": "the word"},
                ],
            },
            {
                "type": "score",
                "instructions": "How bad?",
                "levels": [{"label": "none"}, {"label": "some", "description": "a little"}],
            },
            {"type": "score", "instructions": "How bad?", "levels": [{"label": text} for text in SIX]},
        ],
    )
    billing, urgent, spam, two, six = decision.answers
    assert decision.model == model
    assert (billing.type, billing.name) == ("predicate", "billing")
    assert billing.probability == close(decide(http, "noul", "It is about billing.")[1])
    assert urgent.probability == close(decide(http, "noul", 'It is urgent.\n{"for": ["support"]}')[1])
    options = ["true", "false: wanted", "true: the word"]
    probabilities = decide(http, "choice", "Is it spam?", options)
    assert [(type(item.value), item.value) for item in spam.probabilities] == [
        (bool, True),
        (bool, False),
        (str, "true"),
    ]
    assert [item.probability for item in spam.probabilities] == close(probabilities)
    likeliest = spam.probabilities[probabilities.index(max(probabilities))].value
    assert (type(spam.choice), spam.choice) == (type(likeliest), likeliest)
    assert spam.confidence == close((3 * max(probabilities) - 1) / 2)
    assert [item.probability for item in two.probabilities] == close(
        decide(http, "choice", "How bad?", ["none", "some: a little"])
    )
    assert [(item.label, item.value) for item in six.probabilities] == list(zip(SIX, range(6), strict=True))
    assert [item.probability for item in six.probabilities] == close(
        decide(http, "score", f"How bad?\n{SIX_LINES}")
    )
    usage = decision.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert (usage.output_tokens, usage.output_tokens_details.reasoning_tokens) == (5, 0)
    assert 0 <= usage.input_tokens_details.cached_tokens < usage.input_tokens


def test_a_conversation_is_a_state(create, http):
    decision = create(
        input=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Where is it?"}]},
            {"type": "function_call", "call_id": "1", "name": "find", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "in the box"},
            {"role": "assistant", "content": "In the box."},
        ],
        questions=[{"type": "predicate", "instructions": "It was found."}],
    )
    state = [
        "developer: Be brief.",
        "user:",
        "Where is it?",
        "function_call 1: find({})",
        "function_call_output 1: in the box",
        "assistant: In the box.",
    ]
    found = decide(http, "noul", "It was found.", state=state)
    assert decision.answers[0].probability == close(found[1])


def test_questions_share_the_state_in_the_engine_s_cache(create):
    """Every question after the first finds the state's prefix there, as does the same request again."""
    text = " ".join(f"Line {number} says nothing." for number in range(200))
    questions = [{"type": "predicate", "instructions": f"Line {number} is true."} for number in range(10)]
    create(input=text, questions=questions)
    again = create(input=text, questions=questions).usage
    assert again.input_tokens_details.cached_tokens > 0.9 * again.input_tokens


def image_bytes(format_="png"):
    buffer = io.BytesIO()
    Pixels.new("RGB", (64, 64), (200, 30, 30)).save(buffer, format=format_)
    return buffer.getvalue()


def data_url(content, media_type="image/png"):
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


@pytest.fixture(scope="module")
def takes_images(http):
    return http.get("/v1/decide/info").json()["images"] is not None


def test_images_come_by_every_way_to_the_same_answer(system_one, create, http, takes_images):
    content = image_bytes()
    question = {"q": Noul(instructions="Is it red?")}
    asset = {"<p>": {"type": "image", "format": "png", "data_base64": base64.b64encode(content).decode()}}
    ways = {
        "multipart": lambda: system_one(["See:", Image(content)], question).answers["q"].noul,
        "base64": lambda: (
            system_one(["See:", "<p>"], question, extra_body={"assets": asset}).answers["q"].noul
        ),
        "data URL": lambda: (
            create(
                input=[
                    {
                        "role": "user",
                        "content": [
                            {"type": "input_text", "text": "See:"},
                            {"type": "input_image", "image_url": data_url(content)},
                        ],
                    }
                ],
                questions=[{"type": "predicate", "instructions": "Is it red?"}],
            )
            .answers[0]
            .probability
        ),
    }
    if not takes_images:
        for way in ways.values():
            with pytest.raises(
                (typesafe_sdk.TypeSafeUnprocessableEntityError, openai.UnprocessableEntityError)
            ):
                way()
        return
    state = ["See:", {"image": data_url(content)}]
    expected = decide(http, "noul", "Is it red?", state=state)[1]
    assert {name: way() for name, way in ways.items()} == dict.fromkeys(ways, close(expected))


def test_each_client_raises_its_own_errors(system_one, create):
    noul = {"q": Noul(instructions="Is it so?")}
    with pytest.raises(typesafe_sdk.TypeSafeUnprocessableEntityError, match="box is not served") as refused:
        system_one("s", {"b": Box(instructions="The dog")})
    assert refused.value.request_id
    with pytest.raises(typesafe_sdk.TypeSafeUnprocessableEntityError, match=r"temperature: .*not serve"):
        system_one("s", noul, extra_body={"temperature": 1})
    with pytest.raises(typesafe_sdk.TypeSafeNotFoundError, match="jev-latest"):
        system_one("s", noul, model="jev-latest")
    with pytest.raises(typesafe_sdk.TypeSafeBadRequestError, match="max_model_len"):
        system_one("word " * 9000, noul)
    predicate = [{"type": "predicate", "instructions": "It is so."}]
    with pytest.raises(openai.UnprocessableEntityError, match="not serve") as wrong:
        create(input="s", questions=predicate, extra_body={"stream": True})
    assert wrong.value.param == "stream"
    with pytest.raises(openai.NotFoundError, match="gpt-6-luna"):
        create(input="s", questions=predicate, model="gpt-6-luna")
    with pytest.raises(openai.BadRequestError, match="max_model_len"):
        create(input="word " * 9000, questions=predicate)


def test_a_large_compressed_body_is_read(server, model):
    with typesafe_sdk.TypeSafeClient(
        api_key="unused", base_url=server.url, model=model, timeout=120, compression="zstd"
    ) as client:
        answer = client.system_one("word " * 500, {"q": Noul(instructions="Is it so?")})
    assert answer.usage.input_tokens > 500


def test_models_answers_both_clients(server, model):
    with openai.OpenAI(api_key="unused", base_url=f"{server.url}/v1") as client:
        listed = {card.id: card for card in client.models.list()}
    assert listed[model].object == "model"
    assert listed[model].max_model_len > 0
    with typesafe_sdk.TypeSafeClient(api_key="unused", base_url=server.url) as client:
        models = client.models.list().models
    assert model in {one.name for one in models}
    assert {one.name for one in models} <= set(listed)


def test_chat_and_completions_stay_the_engine_s(server, model):
    with openai.OpenAI(api_key="unused", base_url=f"{server.url}/v1", timeout=120) as client:
        messages = [{"role": "user", "content": "Hello"}]
        assert client.chat.completions.create(model=model, messages=messages, max_tokens=2).choices
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="none", messages=messages, max_tokens=2)


def test_the_examples_of_the_documentation_run(server, capsys):
    text = (Path(__file__).parents[2] / "docs/api.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        exec(example.replace("http://127.0.0.1:8000", server.url), {})
    assert "probability=" in capsys.readouterr().out


def test_the_served_description_holds_our_routes(http):
    paths = http.get("/openapi.json").json()["paths"]
    ours = ("/v1/decide", "/v1/decide/info", "/v1/systemone", "/v1/decisions", "/v1/models")
    assert set(ours) < set(paths)
    assert "/v1/chat/completions" in paths
    assert "models" in paths["/v1/models"]["get"]["tags"]
