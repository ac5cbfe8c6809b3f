"""vLLM endpoint plugin: the decide routes inside ``vllm serve``.

vLLM loads it when ``VLLM_PLUGINS`` names ``decideploy``. vLLM only logs an error raised while a plugin is
imported or constructed, and then serves without it; so nothing is imported or checked before
``attach_router``, whose errors stop the server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decideploy.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace

    from fastapi import FastAPI
    from starlette.datastructures import State

    from decideploy.build import InstalledBuild
    from decideploy.decide import Calibration, DecideService, DecisionHead, Engine, PromptWriter
    from decideploy.decide.images import ImageLoader
    from decideploy.decide.schema import BuildInfo, CalibrationName, EngineInfo
    from decideploy.decide.thinking import ChatTemplate, Thinker


def installed_build() -> InstalledBuild:
    """The build that is running; IntegrityError when its files are not those of a lock."""
    from decideploy.build import check_installed  # noqa: PLC0415

    return check_installed()


class DecidePlugin:
    """``check_build`` proves which engine build is running, and raises when it is none of ours."""

    name = "decideploy"
    required_tasks = ("generate",)

    def __init__(self, check_build: Callable[[], InstalledBuild] = installed_build) -> None:
        self._check_build = check_build
        self._build: InstalledBuild | None = None

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes to ``app``; IntegrityError when the engine build is not the locked one."""
        self._build = self._check_build()

        from decideploy.api import attach  # noqa: PLC0415

        attach(app)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Put the service into ``state.decideploy``; any fault in the model's files stops the start."""
        if self._build is None:
            raise ConfigError("the plugin was not attached before its state was initialised")
        state.decideploy = make_service(engine_client, state, args, build_info(self._build))


def make_service(engine_client: Any, state: State, args: Namespace, build: BuildInfo) -> DecideService:
    """The service over ``engine_client``: encoder, head and calibrations from the files that it serves."""
    from decideploy.artifacts.digest import model_digest  # noqa: PLC0415
    from decideploy.decide import DecideService, DecisionHead, PromptEncoder, PromptWriter  # noqa: PLC0415
    from decideploy.decide.head import FILE_NAME as HEAD_FILE  # noqa: PLC0415
    from decideploy.gateway import shared_metrics  # noqa: PLC0415
    from decideploy.serve.engine_settings import check_engine, find_adapter  # noqa: PLC0415

    model = model_folder(args.model)
    check_engine(engine_client.vllm_config)
    adapter = find_adapter(state.openai_serving_models.lora_requests)
    head = DecisionHead.read(Path(adapter.lora_path) / HEAD_FILE)
    calibrations = read_calibrations(model)
    encoder = PromptEncoder.from_model(model)
    encoder.check_labels(head)

    from decideploy.serve.vllm_engine import VllmEngine, chat_template, image_tokens  # noqa: PLC0415

    engine = VllmEngine(engine_client, adapter)
    writer = PromptWriter(
        encoder=encoder,
        max_model_len=engine_client.vllm_config.model_config.max_model_len,
        image_tokens=image_tokens(engine_client),
    )
    return DecideService(
        engine=engine,
        writer=writer,
        head=head,
        calibrations=calibrations,
        thinker=make_thinker(engine, writer, head, chat_template(engine_client)),
        images=make_loader(engine_client),
        model=state.openai_serving_models.base_model_paths[0].name,
        model_sha256=model_digest(model, adapter=Path(adapter.lora_path)),
        engine_info=engine_info(engine_client.vllm_config),
        observers=(shared_metrics(),),
        build=build,
    )


def make_loader(engine_client: Any) -> ImageLoader | None:
    """Loads as many images as the engine takes; None where it takes none."""
    from decideploy.decide.images import ImageLoader  # noqa: PLC0415
    from decideploy.serve.engine_settings import image_policy  # noqa: PLC0415
    from decideploy.serve.vllm_engine import max_images  # noqa: PLC0415

    count = max_images(engine_client)
    return ImageLoader(image_policy(engine_client.vllm_config.model_config, count)) if count else None


def engine_info(vllm_config: Any) -> EngineInfo:
    """What ``/v1/decide/info`` tells of vLLM's settings."""
    from decideploy.decide.schema import DraftInfo, EngineInfo  # noqa: PLC0415

    drafting = vllm_config.speculative_config
    return EngineInfo(
        max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
        draft=drafting
        and DraftInfo(method=drafting.method, num_speculative_tokens=drafting.num_speculative_tokens),
    )


def read_calibrations(model: Path) -> dict[CalibrationName, Calibration]:
    """The model's calibrations by name; the gold one only where there is a file of it."""
    from decideploy.decide import Calibration  # noqa: PLC0415
    from decideploy.decide.calibration import FILE_NAME, GOLD_FILE_NAME  # noqa: PLC0415

    calibrations: dict[CalibrationName, Calibration] = {"default": Calibration.read(model / FILE_NAME)}
    if (model / GOLD_FILE_NAME).exists():
        calibrations["gold"] = Calibration.read(model / GOLD_FILE_NAME)
    return calibrations


def make_thinker(
    engine: Engine, writer: PromptWriter, head: DecisionHead, template: ChatTemplate
) -> Thinker | None:
    """System 2 over ``engine``; None when the tokenizer has no thought channel."""
    from decideploy.decide.thinking import Thinker, find_marks  # noqa: PLC0415

    marks = find_marks(writer.encoder)
    if marks is None:
        return None
    return Thinker(engine=engine, writer=writer, head=head, chat_template=template, marks=marks)


def model_folder(model: str) -> Path:
    """``model`` as the folder that it must be; ConfigError otherwise."""
    folder = Path(model)
    if not folder.is_dir():
        raise ConfigError(
            f"the model {model!r} is not a local folder",
            where="vllm serve MODEL",
            next_step="start with `decideploy serve`, which downloads a pinned revision first",
        )
    return folder


def build_info(installed: InstalledBuild) -> BuildInfo:
    """``installed`` as ``/v1/decide/info`` tells it."""
    from decideploy.decide.schema import BuildInfo  # noqa: PLC0415

    return BuildInfo(
        version=installed.version,
        recipe=installed.recipe,
        files_sha256=installed.files_sha256,
        patches=installed.patches,
    )
