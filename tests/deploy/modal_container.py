"""Modal's own container entrypoint, run here for what a deployment sent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from control_plane import ControlPlane
from modal_checkout import ROOT, Checkout
from modal_proto import api_pb2
from waiting import PATIENCE_S, alive, until

CHECKPOINT_ID = "ch-1"


@dataclass
class Container:
    """One run of the entrypoint; ``port`` is where its server listens, ``volume`` its weights volume."""

    checkout: Checkout
    plane: ControlPlane
    port: int
    volume: Path
    home: Path
    process: subprocess.Popen[str] | None = field(default=None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid_file(self) -> Path:
        return self.home / "serve.pid"

    def start(self, behaviour: str, *, snapshot: bool = False) -> None:
        self.home.mkdir(exist_ok=True)
        for path in (self.pid_file, self.restore_file):
            path.unlink(missing_ok=True)
        arguments = self.home / "arguments"
        arguments.write_bytes(_arguments(self.plane, snapshot=snapshot).SerializeToString())
        environment = self.checkout.environment(
            self.plane.url,
            MODAL_CONTAINER_ARGUMENTS_PATH=str(arguments),
            MODAL_TASK_ID="ta-1",
            MODAL_IS_REMOTE="1",
            MODAL_RESTORE_STATE_PATH=str(self.restore_file),
            FAKE_SERVE=behaviour,
            DECIDEPLOY_HOME=str(self.home),
            FAKE_SERVE_PID=str(self.pid_file),
            PYTHONUNBUFFERED="1",
            **({"MODAL_ENABLE_SNAP_RESTORE": "1"} if snapshot else {}),
        )
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "modal._container_entrypoint"],
                cwd=self.checkout.folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    @property
    def log(self) -> Path:
        return self.home / "container.log"

    @property
    def restore_file(self) -> Path:
        return self.home / "restore-state.json"

    def output(self) -> str:
        return self.log.read_text("utf-8")

    def restore(self, task_id: str) -> None:
        """Wake the container from its snapshot; the runtime, which polls, must not see half a file."""
        written = self.restore_file.with_suffix(".partial")
        written.write_text(json.dumps({"task_id": task_id}))
        written.replace(self.restore_file)

    def until(self, condition: Callable[[], Any], within_s: float = PATIENCE_S) -> None:
        until(condition, within_s, told=self.output)

    def terminate(self) -> None:
        """SIGTERM, once the runtime listens for it: until its hooks have returned it does not."""
        assert self.process is not None
        self.until(lambda: self.ended() or catches_sigterm(self.process.pid))
        os.kill(self.process.pid, signal.SIGTERM)

    def until_serving(self) -> None:
        self.until(lambda: "ready after" in self.output() or self.ended())
        assert httpx.get(f"{self.url}/health", timeout=PATIENCE_S, trust_env=False).status_code == 200

    def ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        assert self.process is not None
        return self.process.wait(timeout_s)

    def child_is_gone(self) -> bool:
        """Whether the process that stands for the server has ended; it must have been started."""
        return not alive(int(self.pid_file.read_text()))

    def failure(self) -> str:
        """The exception that the container reported to Modal."""
        return str(self.plane.one("TaskResult").result.exception)


def _arguments(plane: ControlPlane, *, snapshot: bool) -> Any:
    function = plane.function("Decideploy").function_data.ranked_functions[0].function
    layout = api_pb2.AppLayout(
        function_ids={name: f"fu-{name}" for name in ("fill_weights", "Decideploy")},
        objects=[_object(name) for name in ("fill_weights", "Decideploy")],
    )
    for dependency in function.object_dependencies:
        layout.objects.append(api_pb2.Object(object_id=dependency.object_id))
    arguments = api_pb2.ContainerArguments(
        task_id="ta-1",
        function_id="fu-Decideploy",
        app_id="ap-1",
        function_def=function,
        environment_name="main",
        app_layout=layout,
    )
    if snapshot:
        arguments.checkpoint_id = CHECKPOINT_ID
        # Modal's side turns the wish of the client, checkpointing_enabled, into this.
        arguments.function_def.is_checkpointing_function = function.checkpointing_enabled
        # Without a GPU there is nothing for Modal's own checkpoint of GPU memory to do.
        arguments.function_def.resources.gpu_config.gpu_type = ""
    return arguments


def _object(name: str) -> Any:
    handle = api_pb2.FunctionHandleMetadata(
        function_name=name, function_type=api_pb2.Function.FUNCTION_TYPE_FUNCTION
    )
    return api_pb2.Object(object_id=f"fu-{name}", function_handle_metadata=handle)


def relocate(checkout: Checkout, *, port: int, volume: Path, home: Path) -> None:
    """Let the checkout use this port and these folders."""
    package = checkout.folder / "src" / "decideploy"
    _replace(checkout.folder / "modal_app.py", '"/weights"', repr(str(volume)))
    _replace(checkout.folder / "modal_app.py", '"/var/lib/decideploy"', repr(str(home)))
    _replace(package / "deploy" / "modal" / "server.py", "PORT: Final = 8000", f"PORT: Final = {port}")


def replace_serve(checkout: Checkout) -> None:
    """Put the stand-in into the place of ``decideploy serve``."""
    package = checkout.folder / "src" / "decideploy"
    shutil.copy(ROOT / "tests" / "serve" / "fake_server.py", package / "fake_server.py")
    shutil.copy(ROOT / "tests" / "deploy" / "fake_serve.py", package / "__main__.py")


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), "utf-8")


def mark_verified(volume: Path, *, model: str, revision: str) -> None:
    """Leave in the volume what the filling job leaves."""
    (volume / "hub" / "snapshot").mkdir(parents=True, exist_ok=True)
    record = volume / "verified" / f"{model.replace('/', '--')}@{revision}.json"
    record.parent.mkdir(exist_ok=True)
    values = {"model": model, "revision": revision, "folder": "hub/snapshot", "verified_by": "a test"}
    record.write_text(json.dumps(values | {"rules_run": 1, "size_bytes": 1}))


@contextmanager
def running(container: Container, behaviour: str, *, snapshot: bool = False) -> Iterator[Container]:
    """The container for as long as the context lasts; what it leaves behind is killed."""
    container.plane.forget("TaskResult", "ContainerCheckpoint", "VolumeCommit")
    container.start(behaviour, snapshot=snapshot)
    try:
        yield container
    finally:
        assert container.process is not None
        if container.process.poll() is None:
            container.process.kill()
            container.process.wait()
        if container.pid_file.exists() and not container.child_is_gone():
            os.kill(int(container.pid_file.read_text()), 9)


def catches_sigterm(pid: int) -> bool:
    """Whether the process has a handler of its own, from the mask that Linux tells."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)
