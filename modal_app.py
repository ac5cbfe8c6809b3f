"""decideploy on Modal: the objects only; what they do is in ``decideploy.deploy.modal``.

    modal run modal_app.py       fill the weights volume on a CPU and verify it
    modal deploy modal_app.py    serve from it

Settings are in deploy/modal.toml and nowhere else; docs/modal.md explains them.
"""

import os
import signal
from pathlib import Path

import modal
from modal.config import config as client_config

from decideploy.deploy.modal import (
    CONFIG_FILE,
    ServedModel,
    check_control_plane,
    fill,
    load_config,
    lock_filename,
    serve_command,
    staged_wheel,
    uv_version,
    verified_model,
)
from decideploy.deploy.modal.server import PORT
from decideploy.deploy.modal.staging import PYTHON, requirement_file
from decideploy.pins import data_root

ROOT = data_root()
CONFIG = load_config(ROOT)

WEIGHTS = Path("/weights")
HOME = Path("/var/lib/decideploy")
INSTALLED = Path("/opt/decideploy")
# What the editable installation and `decideploy build` need, and nothing that changes without need.
CHECKOUT = ("src", "build", "patches")
CHECKOUT_FILES = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", str(CONFIG_FILE))

# Only what has no part in the graph of objects may depend on where this runs.
WHEEL = ROOT / ".cache" / "dist" / lock_filename()
if modal.is_local():
    check_control_plane(client_config["server_url"])
    WHEEL = staged_wheel(ROOT)


def build_image() -> modal.Image:
    """The locked requirements, then the patched wheel, then this package: the last changes most often."""
    install = "/.uv/uv pip install --python $(command -v python) --no-deps"
    wheel = INSTALLED / "wheels" / lock_filename()
    image = (
        modal.Image.from_registry(CONFIG.base_image, add_python=PYTHON)
        .entrypoint([])
        .uv_pip_install(
            requirements=[str(ROOT / "build" / "locks" / "bootstrap.txt"), str(requirement_file(ROOT))],
            extra_options="--require-hashes",
            uv_version=uv_version(ROOT),
        )
        .add_local_file(WHEEL, str(wheel), copy=True)
        .run_commands(f"{install} --compile-bytecode {wheel}")
    )
    for name in CHECKOUT:
        image = image.add_local_dir(ROOT / name, str(INSTALLED / name), copy=True, ignore=["**/__pycache__"])
    for name in CHECKOUT_FILES:
        image = image.add_local_file(ROOT / name, str(INSTALLED / name), copy=True)
    return image.run_commands(f"{install} --no-build-isolation --editable {INSTALLED}").env(
        {"DECIDEPLOY_HOME": str(HOME), "HF_HOME": str(WEIGHTS / "hub"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    )


app = modal.App(CONFIG.app_name, image=build_image())
weights = modal.Volume.from_name(CONFIG.weights_volume, create_if_missing=True)
# The plan puts vLLM's, Inductor's, Triton's and FlashInfer's caches into folders of DECIDEPLOY_HOME/cache.
caches = modal.Volume.from_name(CONFIG.cache_volume, create_if_missing=True)
hub_secrets = (
    [modal.Secret.from_name(CONFIG.hub_secret, required_keys=["HF_TOKEN"])] if CONFIG.hub_secret else []
)


@app.function(
    volumes={str(WEIGHTS): weights},
    secrets=hub_secrets,
    cpu=4.0,
    memory=16 * 1024,
    timeout=CONFIG.fill_timeout_s,
    max_containers=1,
)
def fill_weights() -> str:
    """Download the pinned revision, verify every weight, record it in the volume."""
    verified = fill(CONFIG, WEIGHTS)
    weights.commit()
    return f"{verified.model} at {verified.revision}: {verified.size_bytes / 1024**3:.1f} GiB, verified"


@app.local_entrypoint()
def main() -> None:
    """Fill and verify; a fault ends the command with a status other than 0, before any GPU was asked for."""
    print(fill_weights.remote())


@app.server(
    port=PORT,
    gpu=list(CONFIG.gpu_requests),
    cpu=CONFIG.cpu_cores,
    memory=CONFIG.memory_bytes // 1024**2,
    volumes={str(WEIGHTS): weights.read_only(), str(HOME / "cache"): caches},
    min_containers=CONFIG.min_containers,
    max_containers=CONFIG.max_containers,
    target_concurrency=CONFIG.target_concurrency,
    max_concurrency=CONFIG.max_concurrency,
    scaledown_window=CONFIG.scaledown_window_s,
    startup_timeout=CONFIG.startup_timeout_s,
    exit_grace_period=CONFIG.exit_grace_period_s,
    routing_region=CONFIG.routing_region,
    compute_region=list(CONFIG.compute_regions) or None,
    unauthenticated=False,
    enable_memory_snapshot=CONFIG.gpu_snapshot,
    experimental_options={"enable_gpu_snapshot": True} if CONFIG.gpu_snapshot else None,
)
class Decideploy:
    """One replica: ``decideploy serve`` on one GPU."""

    @modal.enter(snap=CONFIG.gpu_snapshot)
    def start(self) -> None:
        """Return once the self-test passed: that also warms every kernel that decisions use."""
        model = verified_model(CONFIG, WEIGHTS)
        self.served = ServedModel(
            serve_command(CONFIG, model),
            ready_timeout_s=CONFIG.ready_timeout_s,
            # The weights volume, where the filling job has its HF_HOME, cannot be written here.
            env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(HOME / "hub")},
            # The container waits for SIGTERM only; its exit method then reports the death as a failure.
            on_death=lambda: os.kill(os.getpid(), signal.SIGTERM),
        )
        document = self.served.start()
        print(f"ready after {document['ready_s']:.0f} s", flush=True)

    if CONFIG.gpu_snapshot:

        @modal.enter(snap=False)
        def prove(self) -> None:
            """A restored GPU may answer wrongly or not at all: prove it again before it gets traffic."""
            try:
                self.served.prove()
            except BaseException:
                self.served.stop()
                raise
            print("restored and proven again", flush=True)

    @modal.exit()
    def stop(self) -> None:
        """Wait until every request in flight is answered; Modal calls this at once on SIGTERM."""
        self.served.stop()
