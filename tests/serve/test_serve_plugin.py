"""Every fault that the plugin must turn into a server that does not start."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from decide_fakes import write_model
from fastapi import FastAPI
from vllm_fakes import BUILD, FakeClient, start

from decideploy.errors import ConfigError, IntegrityError, VerificationError
from decideploy.serve.assembly import engine_info
from decideploy.serve.plugin import DecidePlugin


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path)


def test_a_wrong_build_stops_the_server() -> None:
    def refuse() -> Any:
        raise IntegrityError("vllm/envs.py differs")

    app = FastAPI()
    with pytest.raises(IntegrityError, match=r"envs\.py"):
        DecidePlugin(refuse).attach_router(app)
    assert not any(getattr(route, "path", "").startswith("/v1/decide") for route in app.routes)


def test_attaching_adds_the_routes() -> None:
    app = FastAPI()
    DecidePlugin(lambda: BUILD).attach_router(app)
    assert {"/v1/decide", "/v1/decide/info"} <= set(app.openapi()["paths"])


def test_a_folder_that_is_none_stops_the_server(model: Path) -> None:
    with pytest.raises(ConfigError, match="not a local folder"):
        start(model / "absent", FakeClient())


@pytest.mark.parametrize("adapters", [{}, {"other": SimpleNamespace(lora_path="x")}])
def test_a_missing_adapter_stops_the_server(model: Path, adapters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no LoRA adapter named 'system1'"):
        start(model, FakeClient(), adapters)


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"logprobs_mode": "raw_logprobs"}, "logprobs-mode"),
        ({"max_logprobs": 15}, "max-logprobs"),
        ({"max_logprobs": 0}, "max-logprobs"),
        ({"logits_processors": ["a.b:C"]}, "logits-processors"),
    ],
)
def test_engine_settings_that_spoil_read_outs_stop_the_server(
    model: Path, config: dict[str, Any], code: str
) -> None:
    with pytest.raises(VerificationError) as caught:
        start(model, FakeClient(**config))
    assert [issue.code for issue in caught.value.issues] == [code]


@pytest.mark.parametrize("file", ["calibration.json", "adapter_vllm/decision_head.json", "tokenizer.json"])
def test_a_missing_file_stops_the_server(model: Path, file: str) -> None:
    (model / file).unlink()
    with pytest.raises(VerificationError, match=file.rpartition("/")[2]):
        start(model, FakeClient())


def test_every_endpoint_has_a_name_for_vllms_list_of_routes() -> None:
    app = FastAPI()
    DecidePlugin(lambda: BUILD).attach_router(app)
    assert all(route.endpoint.__name__ for route in app.routes if hasattr(route, "endpoint"))


@pytest.mark.parametrize(
    ("speculative_config", "draft"),
    [
        (None, None),
        (
            SimpleNamespace(method="mtp", num_speculative_tokens=4),
            {"method": "mtp", "num_speculative_tokens": 4},
        ),
    ],
)
def test_info_tells_batch_width_and_draft(speculative_config: Any, draft: Any) -> None:
    config = FakeClient().vllm_config
    config.speculative_config = speculative_config
    assert engine_info(config).model_dump(mode="json") == {
        "max_num_seqs": 64,
        "draft": draft,
        "kernel": None,
    }
