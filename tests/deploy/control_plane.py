"""A stand-in for Modal's API: every RPC of the client's own protocol, each request kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import Message
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream
from modal_proto import api_pb2
from modal_proto.api_grpc import ModalClientBase

TOKEN_ID, TOKEN_SECRET = "ak-test", "as-test-secret"
BUILDER_VERSION = "2025.06"

Answer = Callable[["ControlPlane", Any], Message]


class ControlPlane:
    """``requests`` holds (RPC, request) in order. ``secrets`` names those that exist; the rest are knobs."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.secrets = {"huggingface": ["HF_TOKEN"]}
        self.failing_image_step = ""
        self.refusal = ""
        self.deployed = False
        self.url = ""
        self._images: dict[bytes, str] = {}

    def sent(self, rpc: str) -> list[Any]:
        """The requests of one RPC."""
        return [request for name, request in self.requests if name == rpc]

    def forget(self, *rpcs: str) -> None:
        """Drop the requests of these RPCs."""
        self.requests[:] = [entry for entry in self.requests if entry[0] not in rpcs]

    def one(self, rpc: str) -> Any:
        """The only request of one RPC."""
        (request,) = self.sent(rpc)
        return request

    def function(self, name: str) -> Any:
        """The function or server that was created under ``name``."""
        for request in self.sent("FunctionCreate"):
            if _functions(request)[0].function_name == name:
                return request
        raise AssertionError(f"no function {name}")

    def image_id(self, image: Message) -> str:
        return self._images.setdefault(image.SerializeToString(deterministic=True), f"im-{len(self._images)}")


def _functions(request: Any) -> list[Any]:
    ranked = request.function_data.ranked_functions
    return [entry.function for entry in ranked] if ranked else [request.function]


def _create_image(plane: ControlPlane, request: Any) -> Message:
    result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
    step = plane.failing_image_step
    if step and any(step in command for command in request.image.dockerfile_commands):
        result = api_pb2.GenericResult(
            status=api_pb2.GenericResult.GENERIC_STATUS_FAILURE, exception=f"the step {step} failed"
        )
    return api_pb2.ImageGetOrCreateResponse(
        image_id=plane.image_id(request.image),
        result=result,
        metadata=api_pb2.ImageMetadata(
            python_version_info="Python 3.12", image_builder_version=BUILDER_VERSION
        ),
    )


def _create_function(plane: ControlPlane, request: Any) -> Message:
    if plane.refusal:
        raise GRPCError(Status.RESOURCE_EXHAUSTED, plane.refusal)
    handle = _handle(_functions(request)[0].function_name)
    ranked = [api_pb2.FunctionData.RankedFunction(function=function) for function in _functions(request)]
    return api_pb2.FunctionCreateResponse(
        function_id=f"fu-{handle.function_name}",
        function_data=api_pb2.FunctionData(ranked_functions=ranked),
        handle_metadata=handle,
    )


def _handle(name: str) -> Any:
    return api_pb2.FunctionHandleMetadata(
        function_name=name,
        function_type=api_pb2.Function.FUNCTION_TYPE_FUNCTION,
        definition_id=f"de-{name}",
        _experimental_flash_urls=["https://test--decideploy.example"],
    )


def _precreate_function(_plane: ControlPlane, request: Any) -> Message:
    name = request.function_name
    return api_pb2.FunctionPrecreateResponse(function_id=f"fu-{name}", handle_metadata=_handle(name))


def _get_secret(plane: ControlPlane, request: Any) -> Message:
    name = request.deployment_name
    if name and name not in plane.secrets:
        raise GRPCError(Status.NOT_FOUND, f"Secret '{name}' not found")
    missing = [key for key in request.required_keys if key not in plane.secrets.get(name, [])]
    if missing:
        raise GRPCError(Status.FAILED_PRECONDITION, f"Secret '{name}' is missing key(s) {', '.join(missing)}")
    return api_pb2.SecretGetOrCreateResponse(secret_id=f"st-{name or 'dict'}")


def _find_app(plane: ControlPlane, _request: Any) -> Message:
    return api_pb2.AppGetByDeploymentNameResponse(app_id="ap-1" if plane.deployed else "")


def _publish(plane: ControlPlane, _request: Any) -> Message:
    plane.deployed = True
    return api_pb2.AppPublishResponse(url="https://test.example/app", deployed_at=1.0)


def _layout(_plane: ControlPlane, _request: Any) -> Message:
    names = ("fill_weights", "Decideploy")
    return api_pb2.AppGetLayoutResponse(
        app_layout=api_pb2.AppLayout(function_ids={name: f"fu-{name}" for name in names})
    )


ANSWERS: dict[str, Answer] = {
    "ClientHello": lambda _p, _r: api_pb2.ClientHelloResponse(image_builder_version=BUILDER_VERSION),
    "EnvironmentGetOrCreate": lambda _p, _r: api_pb2.EnvironmentGetOrCreateResponse(
        environment_id="en-1",
        metadata=api_pb2.EnvironmentMetadata(
            name="main", settings=api_pb2.EnvironmentSettings(image_builder_version=BUILDER_VERSION)
        ),
    ),
    "AppGetByDeploymentName": _find_app,
    "AppCreate": lambda _p, _r: api_pb2.AppCreateResponse(app_id="ap-1", app_page_url="https://test.example"),
    "AppGetLayout": _layout,
    "AppPublish": _publish,
    "MountGetOrCreate": lambda _p, r: api_pb2.MountGetOrCreateResponse(
        mount_id=f"mo-{abs(hash(r.SerializeToString(deterministic=True)))}",
        handle_metadata=api_pb2.MountHandleMetadata(content_checksum_sha256_hex="0" * 64),
    ),
    "ImageGetOrCreate": _create_image,
    "VolumeGetOrCreate": lambda _p, r: api_pb2.VolumeGetOrCreateResponse(
        volume_id=f"vo-{r.deployment_name}", metadata=api_pb2.VolumeMetadata(name=r.deployment_name)
    ),
    "SecretGetOrCreate": _get_secret,
    "FunctionPrecreate": _precreate_function,
    "FunctionCreate": _create_function,
}


def _service(plane: ControlPlane) -> Any:
    """An object that answers every RPC of the protocol: from ANSWERS, else with an empty reply."""

    def method(name: str) -> Callable[..., Any]:
        async def answer(_self: Any, stream: Stream[Any, Any]) -> None:
            await _answer(plane, name, stream)

        return answer

    names = ModalClientBase.__abstractmethods__
    return type("Service", (ModalClientBase,), {name: method(name) for name in names})()


async def _answer(plane: ControlPlane, name: str, stream: Stream[Any, Any]) -> None:
    request = await stream.recv_message()
    plane.requests.append((name, request))
    metadata = stream.metadata or {}
    # A container has no token: the worker that runs it vouches for it.
    if metadata.get("x-modal-token-id", TOKEN_ID) != TOKEN_ID:
        raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")
    reply = ANSWERS[name](plane, request) if name in ANSWERS else stream._send_type()
    await stream.send_message(reply)


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """A control plane on a free loopback port for as long as the context lasts."""
    plane = ControlPlane()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(_start(plane), loop).result(120)
    try:
        yield plane
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server), loop).result(120)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(120)
        loop.close()


async def _start(plane: ControlPlane) -> Server:
    server = Server([_service(plane)])
    await server.start("127.0.0.1", 0)
    port = server._server.sockets[0].getsockname()[1]
    plane.url = f"http://127.0.0.1:{port}"
    return server


async def _stop(server: Server) -> None:
    server.close()
    await server.wait_closed()
