"""The decision service over a running vLLM: every part of it, from the files that the engine serves."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from starlette.datastructures import State

from decideploy.artifacts.digest import model_digest
from decideploy.build import InstalledBuild
from decideploy.decide import (
    Calibration,
    DecideService,
    DecisionHead,
    Engine,
    PromptEncoder,
    PromptWriter,
)
from decideploy.decide.calibration import FILE_NAME, GOLD_FILE_NAME
from decideploy.decide.head import FILE_NAME as HEAD_FILE
from decideploy.decide.images import ImageLoader
from decideploy.decide.schema import (
    BuildInfo,
    CalibrationName,
    DraftInfo,
    EngineInfo,
    KernelInfo,
    KernelTestInfo,
    KernelTrialInfo,
)
from decideploy.decide.thinking import Thinker, find_marks
from decideploy.errors import ConfigError
from decideploy.gateway import shared_metrics
from decideploy.gateway.settings import read_settings
from decideploy.gateway.start import read_start
from decideploy.hardware import Reading, SmokeTest
from decideploy.serve.engine_settings import check_engine, find_adapter, image_policy


def make_service(engine_client: Any, state: State, args: Namespace, build: BuildInfo) -> DecideService:
    """The service over ``engine_client``: encoder, head and calibrations from the files that it serves."""
    model = model_folder(args.model)
    check_engine(engine_client.vllm_config)
    adapter = find_adapter(state.openai_serving_models.lora_requests)
    head = DecisionHead.read(Path(adapter.lora_path) / HEAD_FILE)
    calibrations = read_calibrations(model)
    encoder = PromptEncoder.from_model(model)
    encoder.check_labels(head)

    # After the checks: a fault of the files is told without the engine's own modules.
    from decideploy.serve import vllm_engine  # noqa: PLC0415

    engine = vllm_engine.VllmEngine(engine_client, adapter)
    writer = PromptWriter(
        encoder=encoder,
        max_model_len=engine_client.vllm_config.model_config.max_model_len,
        image_tokens=vllm_engine.image_tokens(engine_client),
    )
    return DecideService(
        engine=engine,
        writer=writer,
        head=head,
        calibrations=calibrations,
        thinker=make_thinker(engine, writer, head, engine_client.get_tokenizer()),
        images=make_loader(engine_client.vllm_config.model_config, vllm_engine.max_images(engine_client)),
        model=state.openai_serving_models.base_model_paths[0].name,
        model_sha256=model_digest(model, adapter=Path(adapter.lora_path)),
        engine_info=engine_info(engine_client.vllm_config),
        kernel=lambda: kernel_info(read_settings().start_record),
        observers=(shared_metrics(),),
        build=build,
    )


def make_loader(model_config: Any, max_count: int) -> ImageLoader | None:
    """Loads as many images as the engine takes; None where it takes none."""
    return ImageLoader(image_policy(model_config, max_count)) if max_count else None


def engine_info(vllm_config: Any) -> EngineInfo:
    """What ``/v1/decide/info`` tells of vLLM's settings."""
    drafting = vllm_config.speculative_config
    return EngineInfo(
        max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
        draft=drafting
        and DraftInfo(method=drafting.method, num_speculative_tokens=drafting.num_speculative_tokens),
    )


def kernel_info(start_record: Path | None) -> KernelInfo | None:
    """What ``/v1/decide/info`` tells of the expert kernel; None before ``serve`` has recorded the start."""
    record = read_start(start_record)
    if record is None:
        return None
    return KernelInfo(
        planned=record.planned_kernel,
        observed=record.observed_kernel,
        mismatch=record.kernel_differs,
        test=_kernel_test(record.kernel_test),
    )


def _kernel_test(reading: Reading[SmokeTest]) -> KernelTestInfo:
    test = reading.value
    return KernelTestInfo(
        source=reading.source,
        kernel=test.kernel if test else None,
        trials=tuple(
            KernelTrialInfo(
                backend=trial.backend,
                verdict=trial.verdict,
                relative_error=trial.relative_error,
                bound=trial.bound,
                why=trial.why,
            )
            for trial in (test.trials if test else ())
        ),
    )


def read_calibrations(model: Path) -> dict[CalibrationName, Calibration]:
    """The model's calibrations by name; the gold one only where there is a file of it."""
    calibrations: dict[CalibrationName, Calibration] = {"default": Calibration.read(model / FILE_NAME)}
    if (model / GOLD_FILE_NAME).exists():
        calibrations["gold"] = Calibration.read(model / GOLD_FILE_NAME)
    return calibrations


def make_thinker(engine: Engine, writer: PromptWriter, head: DecisionHead, tokenizer: Any) -> Thinker | None:
    """System 2 over ``engine``; None when the ``tokenizer`` has no thought channel or no chat template."""
    marks = find_marks(writer.encoder)
    if marks is None or tokenizer.chat_template is None:
        return None
    from decideploy.serve.chat_template import ServedTemplate  # noqa: PLC0415

    template = ServedTemplate(tokenizer)
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
    return BuildInfo(
        version=installed.version,
        recipe=installed.recipe,
        files_sha256=installed.files_sha256,
        patches=installed.patches,
    )
