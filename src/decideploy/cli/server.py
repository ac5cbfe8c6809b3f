"""Verbs about a server of this machine: probe, plan, serve, doctor."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from decideploy.cli.options import model_options, serve_options, workload_options
from decideploy.cli.output import AddVerb, print_json
from decideploy.cli.values import port
from decideploy.errors import ConfigError, Error

if TYPE_CHECKING:
    from decideploy.artifacts import ModelFacts, Verification
    from decideploy.gateway import ServerSettings
    from decideploy.hardware import HardwareReport
    from decideploy.plan import Workload


_WISHES = (
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "clients", "thinking_share", "goal"),
    *("think_tokens", "moe_backend", "tensor_parallel_size", "kv_cache_dtype", "kv_cache_memory_bytes"),
    *("gpu_memory_utilization", "draft_model"),
)


def add_verbs(verb: AddVerb) -> None:
    """Add the verbs of this module."""
    sub = verb("probe", _probe, "Report the hardware that is here, and which expert kernel is right on it")
    sub.add_argument(
        "--no-smoke-test", action="store_true", help="do not try the expert kernels (10 to 30 s on a GPU)"
    )

    sub = verb("plan", _plan, "Choose the FP4 path, memory settings and engine arguments")
    model_options(sub)
    sub.add_argument("--hardware", default="auto", help="auto, a card's name or a probe --json file")
    sub.add_argument(
        "--plot", type=Path, metavar="STEM", help="draw the memory as STEM.png and STEM.svg (extra: plot)"
    )
    workload_options(sub)

    sub = verb("serve", _serve, "Verify, plan, launch, self-test and serve; no MODEL serves the demo model")
    serve_options(sub)
    sub.add_argument("--dry-run", action="store_true", help="print the plan and the argv, start nothing")
    sub.add_argument("--check", action="store_true", help="ask one decision of each kind, then stop")

    sub = verb(
        "rolling-restart",
        _rolling_restart,
        "Renew the replicas of `serve --replicas` one at a time, with MODEL by that one, without downtime",
    )
    model_options(sub, optional=True)
    sub.add_argument("--golden", type=Path, metavar="FILE", help="recorded decisions that MODEL must repeat")
    sub.add_argument(
        "--port", type=port, default=8000, help="port that the replicas are reached at (default: 8000)"
    )

    sub = verb("doctor", _doctor, "List everything that would stop serve, with remedies")
    sub.add_argument("model", nargs="?", metavar="MODEL", help="also whether it can be had and fits")
    sub.add_argument("--revision", help="the commit of a hub id, 40 hexadecimal digits")
    sub.add_argument(
        "--port", type=port, default=8000, help="port that serve would listen on (default: 8000)"
    )


def _probe(options: argparse.Namespace, console: Console) -> int:
    from decideploy.hardware import print_report, probe

    report = _with_kernel_test(probe(), options)
    if options.json:
        print_json(report.to_dict())
    else:
        print_report(report, console)
    return 0


def _with_kernel_test(report: HardwareReport, options: argparse.Namespace) -> HardwareReport:
    """``report`` with the kernels tried anew that serve would try, or why none is."""
    from decideploy.hardware.smoke import not_tested

    if options.no_smoke_test:
        return not_tested(report, "--no-smoke-test")
    if not report.visible_gpus:
        return not_tested(report, "no GPU is visible")

    from decideploy.build import check_installed
    from decideploy.pins import home_folder
    from decideploy.plan import Workload
    from decideploy.serve.kernel_trials import with_kernel_test

    home = home_folder()
    try:
        workload = Workload(cache_root=home / "cache")
        return with_kernel_test(report, check_installed(), workload, home, again=True)
    except Error as error:
        # The hardware can be told all the same.
        return not_tested(report, error.what)


def _verified(options: argparse.Namespace) -> Verification:
    from decideploy.artifacts import resolve_model, verify

    model = resolve_model(options.model, revision=options.revision)
    return verify(model, adapter=options.adapter)


def _hardware(name: str) -> HardwareReport:
    from decideploy.hardware import load_hardware, probe

    return probe() if name == "auto" else load_hardware(name)


def _workload(options: argparse.Namespace) -> Workload:
    from decideploy.decide.images import ImagePolicy
    from decideploy.plan import Workload

    return Workload(
        **_asked(options, *_WISHES, shutdown_timeout_s="drain_timeout"),
        **_prompt_wishes(options),
        draft_bytes=_draft_bytes(options.draft_model) if options.draft_model else 0,
        images=options.max_images > 0,
        max_images=options.max_images,
        # Checked here, as the engine would be minutes later.
        image_hosts=ImagePolicy(allowed_hosts=tuple(options.allow_image_host)).allowed_hosts,
    )


def _prompt_wishes(options: argparse.Namespace) -> dict[str, Any]:
    if options.prompt_tokens is None:
        return {}
    median, longest = options.prompt_tokens
    return {"median_prompt_tokens": median, "prompt_tokens": longest}


def _draft_bytes(folder: Path) -> int:
    """Bytes of the draft model's weights; ConfigError when there are none."""
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if not size:
        raise ConfigError(
            "the draft model has no weights",
            where=f"--draft-model {folder}",
            next_step="name a folder with its config.json and *.safetensors",
        )
    return size


def _settings(options: argparse.Namespace) -> ServerSettings:
    from decideploy.gateway import ServerSettings

    limits = _asked(options, "api_key_file", "max_concurrency", "max_queue", "max_body_bytes")
    return ServerSettings(**limits, **_asked(options, request_timeout_s="request_timeout"))


def _asked(options: argparse.Namespace, *same: str, **named: str) -> dict[str, Any]:
    """What the command line gives, by the name of the setting; what it leaves out keeps its default."""
    flags = {**{name: name for name in same}, **named}
    found = {name: getattr(options, flag, None) for name, flag in flags.items()}
    return {name: value for name, value in found.items() if value is not None}


def _plan(options: argparse.Namespace, console: Console) -> int:
    from decideploy.pins import home_folder
    from decideploy.plan import corrections, draw_memory, plan, print_plan, starts_folder
    from decideploy.plotting import check_plotting, save_figure

    if options.plot:
        check_plotting()
    launch = plan(
        _facts(options),
        _hardware(options.hardware),
        workload=_workload(options),
        corrections=corrections(starts_folder(home_folder())) if options.calibrate else (),
    )
    if options.json:
        print_json(launch.to_dict())
    else:
        print_plan(launch, console)
    if options.plot:
        save_figure(draw_memory(launch), options.plot)
    return 0


def _facts(options: argparse.Namespace) -> ModelFacts:
    """What the files say; by sizes alone for a published id without a revision, or a lone config.json."""
    from decideploy.artifacts import sizes_of

    if options.revision is None and (sizes := sizes_of(options.model)):
        return sizes
    verification = _verified(options)
    verification.raise_for_issues()
    return verification.known_facts()


def _serve(options: argparse.Namespace, console: Console) -> int:
    from decideploy.serve import ServeOptions, serve, serve_replicas

    run = serve if options.replicas is None else serve_replicas
    run(
        ServeOptions(
            model=options.model,
            adapter=options.adapter,
            revision=options.revision,
            host=options.host,
            port=options.port,
            dry_run=options.dry_run,
            check=options.check,
            golden=options.golden,
            json=options.json,
            startup_timeout_s=options.startup_timeout,
            workload=_workload(options),
            settings=_settings(options),
            access_log=options.access_log,
            restart=_restart(options),
            max_restarts=options.max_restarts,
            no_smoke_test=options.no_smoke_test,
            strict_kernel=options.strict_kernel,
            calibrate=options.calibrate,
            replicas=options.replicas,
        ),
        console,
    )
    return 0


def _restart(options: argparse.Namespace) -> Literal["never", "on-failure"]:
    """As asked; else one engine's death ends serve, and that of a replica does not."""
    if options.restart is None:
        return "never" if options.replicas is None else "on-failure"
    return "never" if options.restart == "never" else "on-failure"


def _rolling_restart(options: argparse.Namespace, console: Console) -> int:
    from decideploy.pins import home_folder
    from decideploy.serve import RestartRequest, ask_for_restart

    told = Console(stderr=True) if options.json else console
    report = ask_for_restart(
        home_folder(),
        options.port,
        RestartRequest(
            model=_known_everywhere(options.model),
            revision=options.revision,
            adapter=options.adapter and options.adapter.absolute(),
            golden=options.golden and options.golden.absolute(),
        ),
        lambda step: told.print(step, markup=False, highlight=False, soft_wrap=True),
    )
    if options.json:
        print_json(report.model_dump())
    else:
        console.print(
            f"{report.replicas} replicas serve {report.model}, renewed in {report.seconds:g} s",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return 0


def _known_everywhere(model: str | None) -> str | None:
    """A folder by its absolute path, as the server runs elsewhere; a hub id as it is."""
    if model is None or not Path(model).expanduser().is_dir():
        return model
    return str(Path(model).expanduser().absolute())


def _doctor(options: argparse.Namespace, console: Console) -> int:
    from decideploy.serve import doctor, print_doctor

    report = doctor(model=options.model, revision=options.revision, port=options.port)
    if options.json:
        print_json(report.to_dict())
    else:
        print_doctor(report, console)
    return report.exit_code
