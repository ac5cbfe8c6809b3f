"""``modal deploy modal_app.py`` really runs here; only what answers it is ours."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version

import pytest
from control_plane import TOKEN_SECRET, ControlPlane, control_plane
from modal_checkout import ROOT, WHEEL_BYTES, Checkout
from modal_proto.api_grpc import ModalClientBase

# Each deployment runs Modal's own command line, seconds of imports at a time.
pytestmark = pytest.mark.integration

# The protocol has no number of its own, so the release and a digest of its RPC names stand for it.
CLIENT_SERIES = "1.6"
USED_RPCS = {
    "AppClientDisconnect",
    "AppCreate",
    "AppGetByDeploymentName",
    "AppGetLayout",
    "AppHeartbeat",
    "AppPublish",
    "ClientHello",
    "EnvironmentGetOrCreate",
    "FunctionCreate",
    "FunctionPrecreate",
    "ImageGetOrCreate",
    "MountBatchedCheckExistence",
    "MountGetOrCreate",
    "MountPutFile",
    "SecretGetOrCreate",
    "TaskResult",
    "VolumeCommit",
    "VolumeGetOrCreate",
}


@dataclass(frozen=True)
class Deployed:
    """What one deployment with a hub secret sent."""

    plane: ControlPlane
    checkout: Checkout
    output: str


@pytest.fixture(scope="module")
def deployed(shared_checkout: Checkout) -> Iterator[Deployed]:
    with control_plane() as plane:
        shared_checkout.configure(hub_secret="huggingface", compute_regions=["us-east"])
        result = shared_checkout.deploy(plane)
        shared_checkout.configure()
        assert result.returncode == 0, result.stdout + result.stderr
        yield Deployed(plane, shared_checkout, result.stdout + result.stderr)


def server(plane: ControlPlane) -> list:
    return [entry.function for entry in plane.function("Decideploy").function_data.ranked_functions]


def test_the_protocol_is_the_one_that_this_was_written_for() -> None:
    assert version("modal").startswith(f"{CLIENT_SERIES}."), "read the client's change log, then adapt"
    assert not USED_RPCS - ModalClientBase.__abstractmethods__


def test_only_known_rpcs_are_used_and_the_app_is_published(deployed: Deployed) -> None:
    plane = deployed.plane
    assert {name for name, _ in plane.requests} <= USED_RPCS
    published = plane.one("AppPublish")
    assert published.name == "decideploy"
    assert dict(published.function_ids) == {"fill_weights": "fu-fill_weights", "Decideploy": "fu-Decideploy"}
    # Two functions, a server among them, and nothing else that could be called from outside.
    assert len(plane.sent("FunctionCreate")) == 2


def test_the_server_asks_for_what_the_settings_name(deployed: Deployed) -> None:
    preferred, other = server(deployed.plane)
    gpus = [(f.resources.gpu_config.gpu_type, f.resources.gpu_config.count) for f in (preferred, other)]
    assert gpus == [("H200", 1), ("H100", 1)]
    assert preferred.resources.milli_cpu == 8000
    assert preferred.resources.memory_mb == 48 * 1024
    assert preferred.is_server
    assert list(preferred.scheduler_placement.regions) == ["us-east"]


def test_no_default_of_the_server_object_is_left_in_place(deployed: Deployed) -> None:
    function = server(deployed.plane)[0]
    http = function.http_config
    assert (http.port, http.startup_timeout, http.exit_grace_period) == (8000, 1800, 120)
    assert list(http.proxy_regions) == ["us-east"]
    assert http.unauthenticated is False
    assert function.startup_timeout_secs == 1800
    assert function.max_concurrent_inputs == 64
    scaling = function.autoscaler_settings
    assert (scaling.min_containers, scaling.max_containers, scaling.scaledown_window) == (0, 4, 900)
    assert scaling.target_concurrency_float == 48
    assert not function.is_checkpointing_function


def test_volumes_lie_where_the_plan_and_the_hub_client_look(deployed: Deployed) -> None:
    mounts = {mount.mount_path: mount for mount in server(deployed.plane)[0].volume_mounts}
    assert set(mounts) == {"/weights", "/var/lib/decideploy/cache"}
    assert mounts["/weights"].read_only
    assert not mounts["/var/lib/decideploy/cache"].read_only
    (filled,) = deployed.plane.function("fill_weights").function.volume_mounts
    assert (filled.volume_id, filled.read_only) == (mounts["/weights"].volume_id, False)
    env = commands(deployed.plane)[-3:]
    assert env[:2] == ["ENV DECIDEPLOY_HOME=/var/lib/decideploy", "ENV HF_HOME=/weights/hub"]


def test_only_the_filling_job_has_the_secret_and_it_has_no_gpu(deployed: Deployed) -> None:
    fill = deployed.plane.function("fill_weights").function
    assert list(fill.secret_ids) == ["st-huggingface"]
    assert fill.resources.gpu_config.gpu_type == ""
    assert fill.timeout_secs == 3600
    assert all(not function.secret_ids for function in server(deployed.plane))
    request = deployed.plane.one("SecretGetOrCreate")
    assert (list(request.required_keys), dict(request.env_dict)) == (["HF_TOKEN"], {})


def commands(plane: ControlPlane) -> list[str]:
    return [line for request in plane.sent("ImageGetOrCreate") for line in request.image.dockerfile_commands]


def test_the_image_is_the_locks(deployed: Deployed) -> None:
    lines = commands(deployed.plane)
    assert lines[0].startswith("FROM nvidia/cuda:13.0.1-devel-ubuntu24.04@sha256:")
    bootstrap = (ROOT / "build" / "locks" / "bootstrap.txt").read_text()
    (uv,) = [line.split("==")[1].split()[0] for line in bootstrap.splitlines() if line.startswith("uv==")]
    assert f"COPY --from=ghcr.io/astral-sh/uv:{uv} /uv /.uv/uv" in lines
    (locked,) = [line for line in lines if "--require-hashes" in line]
    assert "bootstrap.txt" in locked
    assert "cuda-py312.txt" in locked
    others = [line for line in lines if "pip install" in line and line != locked]
    assert len(others) == 2
    assert all("--no-deps" in line for line in others)
    images = [request.image for request in deployed.plane.sent("ImageGetOrCreate")]
    sent = {file.filename: file.data for image in images for file in image.context_files}
    assert sent["/.1_cuda-py312.txt"] == (ROOT / "build" / "locks" / "cuda-py312.txt").read_bytes()


def test_the_staged_wheel_is_the_one_in_the_lock(deployed: Deployed) -> None:
    files = {
        file.filename: file.sha256_hex
        for request in deployed.plane.sent("MountGetOrCreate")
        for file in request.files
    }
    lock = json.loads((deployed.checkout.folder / "build" / "locks" / "cuda.json").read_bytes())
    wheel = f"/opt/decideploy/wheels/{lock['wheel']['filename']}"
    assert files[wheel] == hashlib.sha256(WHEEL_BYTES).hexdigest() == lock["wheel"]["sha256"]
    assert "/opt/decideploy/deploy/modal.toml" in files
    assert "/opt/decideploy/src/decideploy/cli/__init__.py" in files
    assert not [name for name in files if name.endswith((".pyc", ".env"))]


def test_no_secret_is_sent_or_printed(deployed: Deployed) -> None:
    everything = b"".join(request.SerializeToString() for _, request in deployed.plane.requests)
    for word in (TOKEN_SECRET.encode(), b"hf_"):
        assert word not in everything
        assert word.decode() not in deployed.output


def test_a_second_deployment_replaces_the_first(deployed: Deployed) -> None:
    plane, before = deployed.plane, len(deployed.plane.requests)
    deployed.checkout.configure(hub_secret="huggingface", max_containers=2)
    result = deployed.checkout.deploy(plane)
    deployed.checkout.configure()
    assert result.returncode == 0, result.stdout + result.stderr
    again = plane.requests[before:]
    assert "AppCreate" not in [name for name, _ in again]
    created = [request for name, request in again if name == "FunctionCreate"]
    assert {request.existing_function_id for request in created} == {"fu-fill_weights", "fu-Decideploy"}
    del plane.requests[before:]


@dataclass(frozen=True)
class Refusal:
    """How one deployment ended, and what the control plane had got by then."""

    plane: ControlPlane
    status: int
    output: str
    seconds: float


@pytest.fixture(scope="module")
def refusals(shared_checkout: Checkout) -> dict[str, Refusal]:
    """Deployments that must fail, all at once: a process spends most of its time on imports."""
    shared_checkout.configure(hub_secret="huggingface")
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        planes = {name: stack.enter_context(control_plane()) for name in FAULTS}
        planes["secret"].secrets = {}
        planes["key"].secrets = {"huggingface": ["OTHER"]}
        planes["image"].failing_image_step = "--require-hashes"
        planes["spend"].refusal = "workspace has reached its spend limit"
        closed = stack.enter_context(socket.socket())
        closed.bind(("127.0.0.1", 0))
        planes["unreachable"].url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        tasks = {name: pool.submit(refuse, shared_checkout, name, plane) for name, plane in planes.items()}
        ended = {name: task.result() for name, task in tasks.items()}
    shared_checkout.configure()
    return ended


def refuse(checkout: Checkout, fault: str, plane: ControlPlane) -> Refusal:
    begin = time.monotonic()
    result = checkout.deploy(plane, **({"MODAL_TOKEN_ID": "ak-other"} if fault == "token" else {}))
    seconds = time.monotonic() - begin
    return Refusal(plane, result.returncode, result.stdout + result.stderr, seconds)


FAULTS = {
    "secret": "Secret 'huggingface' not found",
    "key": "missing key(s) HF_TOKEN",
    "image": "the step --require-hashes failed",
    "spend": "spend limit",
    "token": "Token validation failed",
    "unreachable": "cannot be reached",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_the_deployment_and_is_told(fault: str, refusals: dict[str, Refusal]) -> None:
    refused = refusals[fault]
    assert refused.status == 1
    assert FAULTS[fault] in refused.output
    assert not refused.plane.sent("AppPublish")
    assert TOKEN_SECRET not in refused.output


def test_an_unreachable_control_plane_is_found_in_seconds(refusals: dict[str, Refusal]) -> None:
    # The client alone takes 57 s; a deployment refused by a control plane tells how slow this machine is now.
    assert refusals["unreachable"].seconds < 2 * refusals["token"].seconds + 25
    assert refusals["unreachable"].plane.requests == []
