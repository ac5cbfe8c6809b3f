import asyncio
import json
import os
from pathlib import Path

import pytest
from gateway_harness import KEY, OTHER_KEY, Check, Proof
from prometheus_client import CollectorRegistry, generate_latest

from decideploy.errors import ConfigError
from decideploy.gateway import GatewayMetrics, ServerSettings, read_settings
from decideploy.gateway.access_log import AccessLog
from decideploy.gateway.admission import Admission
from decideploy.gateway.keys import KeyFile, Keyring, read_keys
from decideploy.gateway.lifecycle import own_url
from decideploy.gateway.metrics import TALLY, Tally
from decideploy.gateway.readiness import Readiness, Rules
from decideploy.gateway.refusals import QUEUE_FULL, TIMEOUT, UNAUTHORIZED, body, dialect


def test_keys_come_from_variable_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# who has it\n{KEY}\n\n{OTHER_KEY}\n")
    assert read_keys(None, {}) == ()
    assert read_keys(file, {"DECIDEPLOY_API_KEYS": f"{KEY} third-key-of-the-server"}) == (
        KEY,
        "third-key-of-the-server",
        OTHER_KEY,
    )


def test_every_key_at_fault_is_named_and_none_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("short-one\nkeyß-of-more-than-sixteen\n")
    with pytest.raises(ConfigError) as caught:
        read_keys(file, {"DECIDEPLOY_API_KEYS": f"{KEY},tiny"})
    text = str(caught.value)
    assert [place in text for place in ("key 2", "line 1", "line 2")] == [True] * 3
    assert not [key for key in (KEY, "tiny", "short-one", "keyß") if key in text]


@pytest.mark.parametrize("content", [None, "", "# nothing\n"])
def test_a_key_file_without_keys_opens_nothing(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=r"key"):
        read_keys(file, {})


def test_callers_are_told_apart() -> None:
    ring = Keyring((KEY, OTHER_KEY), token="the-server-itself")
    mine, other = ring.caller(f"Bearer {KEY}"), ring.caller(f"bearer  {OTHER_KEY}")
    assert mine
    assert other
    assert mine.fingerprint != other.fingerprint
    assert (ring.caller("Bearer the-server-itself") or mine).internal
    for header in (None, "", KEY, "Bearer", "Bearer ", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY} x"):
        assert ring.caller(header) is None, header
    anybody = Keyring((), token="t").caller(None)
    assert anybody
    assert not anybody.internal


def test_a_changed_key_file_is_read_again_and_a_broken_one_is_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(KEY)
    keys = KeyFile(file, token="t", environ={})
    assert keys.refresh() is None
    file.write_text(f"{OTHER_KEY}\n")
    assert keys.refresh() is None
    assert keys.keyring.caller(f"Bearer {KEY}") is None
    assert keys.keyring.caller(f"Bearer {OTHER_KEY}")
    file.write_text("")
    assert isinstance(keys.refresh(), ConfigError)
    assert keys.keyring.caller(f"Bearer {OTHER_KEY}")


def test_settings_file(tmp_path: Path) -> None:
    assert read_settings({}) == ServerSettings()
    file = tmp_path / "settings.json"
    written = ServerSettings(max_queue=3, api_key_file=tmp_path / "k", access_log=Path("/logs/a.jsonl"))
    file.write_text(written.model_dump_json())
    assert read_settings({"DECIDEPLOY_SETTINGS": str(file)}) == written
    file.write_text('{"max_queue": -1, "max_concurency": 2}')
    with pytest.raises(ConfigError, match=r"max_queue.*max_concurency"):
        read_settings({"DECIDEPLOY_SETTINGS": str(file)})
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings({"DECIDEPLOY_SETTINGS": str(tmp_path / "absent")})


def test_slots_go_to_the_first_that_waits() -> None:
    async def story() -> list[int]:
        admission, order = Admission(1, 5), []

        async def work(number: int) -> None:
            async with admission.slot():
                order.append(number)
                await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(work(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert (admission.running, admission.queued, admission.full) == (1, 4, False)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (admission.running, admission.queued) == (0, 0)
        return order

    assert asyncio.run(story()) == [0, 1, 3, 4]


def test_a_slot_that_comes_with_the_cancellation_is_passed_on() -> None:
    async def story() -> None:
        admission = Admission(1, 5)
        entered = asyncio.Event()

        async def work() -> None:
            async with admission.slot():
                entered.set()

        async with admission.slot():
            first, second = (asyncio.ensure_future(work()) for _ in range(2))
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert entered.is_set()
        assert (admission.running, admission.queued) == (0, 0)

    asyncio.run(story())


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def proven(clock: Clock) -> Readiness:
    readiness = Readiness(Rules(failures_in_a_row=3, stall_s=60.0, canary_s=20.0), now=clock)
    readiness.test()
    readiness.tested(Proof())
    return readiness


def test_requests_that_fail_do_not_turn_readiness_off_by_themselves() -> None:
    clock = Clock()
    readiness = proven(clock)
    for _ in range(50):
        readiness.request_failed()
    assert readiness.is_ready
    assert not readiness.wants_canary
    clock.now_s += 1
    assert readiness.wants_canary
    readiness.canary_failed()
    assert (readiness.phase, readiness.admits) == ("failing", True)
    assert "3 requests failed" in readiness.document()["reasons"][0]
    readiness.progress()
    assert readiness.is_ready


def test_an_idle_server_is_asked_and_a_silent_one_fails() -> None:
    clock = Clock()
    readiness = proven(clock)
    clock.now_s += 19
    assert not readiness.wants_canary
    clock.now_s += 2
    assert readiness.wants_canary
    readiness.canary_sent()
    assert not readiness.wants_canary
    clock.now_s += 38
    assert readiness.is_ready
    clock.now_s += 3
    assert readiness.phase == "failing"
    assert "nothing for 62 s" in readiness.document()["reasons"][0]


def test_a_busy_server_that_answers_stays_ready() -> None:
    clock = Clock()
    readiness = proven(clock)
    for _ in range(100):
        clock.now_s += 50
        readiness.progress()
        assert readiness.is_ready
    assert not readiness.wants_canary


def test_the_first_fault_stands_and_draining_hides_it() -> None:
    readiness = Readiness(Rules())
    assert readiness.phase == "starting"
    readiness.fail("the engine has died")
    readiness.tested(Proof(failures=(Check(),)))
    assert readiness.document()["reasons"] == ["the engine has died"]
    readiness.drain()
    assert readiness.phase == "draining"


def test_decisions_are_counted_and_internal_ones_are_not() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    told = {"dialect": "systemone", "outcome": "ok", "seconds": 0.03}
    tally = Tally()
    TALLY.set(tally)
    metrics.decided(kind="noul", passes=1, thought=False, **told)
    metrics.decided(kind="choice", passes=18, thought=True, **told)
    metrics.answered(dialect="systemone", kinds=tally.kinds, outcome="ok", seconds=0.1)
    TALLY.set(Tally(internal=True))
    metrics.decided(kind="score", passes=1, thought=False, **told)
    text = generate_latest(registry).decode()
    assert 'decideploy_requests_total{dialect="systemone",kind="mixed",outcome="ok"} 1.0' in text
    assert 'decideploy_passes_total{dialect="systemone"} 19.0' in text
    assert 'decideploy_thinking_total{dialect="systemone"} 1.0' in text
    assert "score" not in text


def test_access_log_writes_to_files_and_descriptors(tmp_path: Path) -> None:
    file = tmp_path / "access.jsonl"
    log = AccessLog(file)
    log.write({"route": "/v1/decide", "key": None})
    log.close()
    with open(file, "ab") as same:
        log = AccessLog(same.fileno())
        log.write({"route": "/x"})
        log.close()
        os.fstat(same.fileno())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["route"] for line in lines] == ["/v1/decide", "/x"]
    assert "key" not in lines[0]
    with pytest.raises(ConfigError, match="access log"):
        AccessLog(tmp_path / "absent" / "log")


def test_own_url_and_dialects() -> None:
    class Args:
        host, port = "::", 8123

    assert own_url(Args) == "http://[::1]:8123"
    paths = ("/v1/decide", "/v1/systemone", "/v1/decisions", "/v1/chat/completions", "/tokenize")
    assert [dialect(path) for path in paths] == ["decide", "systemone", "decisions", "openai", "other"]


def test_a_refusal_has_the_type_that_the_clients_of_its_api_turn_into_an_exception() -> None:
    def kinds(path: str) -> list[str]:
        told = [json.loads(body(refusal, path)) for refusal in (UNAUTHORIZED, QUEUE_FULL, TIMEOUT)]
        return [document["error"]["type"] for document in told]

    openai = ["invalid_request_error", "rate_limit_error", "server_error"]
    assert kinds("/v1/decide") == kinds("/v1/chat/completions") == openai
    assert kinds("/v1/messages") == ["authentication_error", "rate_limit_error", "api_error"]
    assert json.loads(body(QUEUE_FULL, "/v1/messages"))["type"] == "error"
    (detail,) = json.loads(body(QUEUE_FULL, "/v1/systemone"))["detail"]
    assert (detail["loc"], detail["type"]) == (["request"], "queue_full")
