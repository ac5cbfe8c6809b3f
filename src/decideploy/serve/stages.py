"""``serve``: check the build, verify, probe, plan, launch, await the proof, ready. What fails raises."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from filelock import FileLock
from rich.console import Console

from decideploy.decide import DecideRequest, DecideResponse, print_decision
from decideploy.errors import ConfigError, EngineError, Error, ProbeError, raise_together
from decideploy.gateway import SETTINGS_VARIABLE, ServerSettings
from decideploy.gateway.keys import read_keys
from decideploy.hardware import HardwareReport, probe
from decideploy.hardware.smoke import not_tested
from decideploy.pins import home_folder
from decideploy.plan import (
    LaunchPlan,
    Observed,
    Reconciliation,
    StartRecord,
    Workload,
    append_record,
    corrections,
    make_record,
    plan,
    print_plan,
    print_reconciliation,
    reconcile,
    starts_folder,
)
from decideploy.plan.reconcile import KERNEL_DIFFERS
from decideploy.serve.engine_log import unwritable
from decideploy.serve.golden import Golden, golden_of
from decideploy.serve.http_client import Client
from decideploy.serve.kernel_trials import with_kernel_test
from decideploy.serve.launch import EngineProcess, check_port, check_port_number, reachable_host
from decideploy.serve.notify import ServiceManager, Watch, works
from decideploy.serve.preflight import check_libraries, check_state_folder, collected
from decideploy.serve.questions import one_of_each_kind
from decideploy.serve.selftest import Check, SelfTestReport, print_selftest
from decideploy.serve.supervise import supervise

if TYPE_CHECKING:
    from decideploy.artifacts import ModelFacts
    from decideploy.build import InstalledBuild

SCHEMA_VERSION = 1
_DRAIN_MARGIN_S = 10.0
_SELFTEST_S = 600.0
_STDERR_FD = 2
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """What ``serve`` is asked for.

    ``model`` is a folder or a hub id, None for the demo model. ``dry_run`` stops after the plan; ``check``
    asks one decision of each kind and stops. ``golden`` are recorded decisions for the self-test, default
    the model's own, where it has some. ``state_dir`` holds logs, compile caches and the demo model;
    default DECIDEPLOY_HOME, else ``decideploy`` in the user's cache folder. ``workload`` is the rest of the
    plan's wishes; its host and port are replaced by these, and its ``shutdown_timeout_s`` is the drain's.
    ``settings`` are those of the gateway, ``access_log`` the file that it writes, None for standard error
    (with ``check`` a file beside the engine's log).
    With ``restart`` "on-failure" an engine that dies after it was ready is started again, at most
    ``max_restarts`` times in a row. ``no_smoke_test`` takes the expert kernel untested. ``strict_kernel``
    ends the start when the engine takes another expert kernel than the planned one; ``calibrate`` plans with
    what earlier starts measured. ``replicas`` is how many engines serve behind one port, "auto" one a GPU;
    it is ``serve_replicas`` that serves them, with ``restart`` and ``max_restarts`` for each.
    """

    model: str | None = None
    adapter: Path | None = None
    revision: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    dry_run: bool = False
    check: bool = False
    golden: Path | None = None
    json: bool = False
    startup_timeout_s: float = 1200.0
    state_dir: Path | None = None
    workload: Workload = field(default_factory=Workload)
    settings: ServerSettings = field(default_factory=ServerSettings)
    access_log: Path | None = None
    restart: Literal["never", "on-failure"] = "never"
    max_restarts: int = 3
    no_smoke_test: bool = False
    strict_kernel: bool = False
    calibrate: bool = False
    replicas: int | Literal["auto"] | None = None


class Served(Protocol):
    """What is told of a server: a :class:`ServeResult`, or that of several replicas."""

    @property
    def base_url(self) -> str | None:
        """Where it answers."""
        ...

    @property
    def decisions(self) -> tuple[tuple[DecideRequest, DecideResponse], ...]:
        """What a check asked, and the answers."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The document of ``--json``."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeResult:
    """What the stages gave; the later fields are None after a dry run."""

    plan: LaunchPlan
    base_url: str | None = None
    ready_s: float | None = None
    reconciliation: Reconciliation | None = None
    selftest: SelfTestReport | None = None
    decisions: tuple[tuple[DecideRequest, DecideResponse], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values with ``schema_version``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "plan": self.plan.to_dict(),
            "base_url": self.base_url,
            "ready_s": self.ready_s,
            "reconciliation": self.reconciliation.to_dict() if self.reconciliation else None,
            "selftest": self.selftest.to_dict() if self.selftest else None,
            "decisions": decision_documents(self.decisions),
        }


def decision_documents(decisions: Sequence[tuple[DecideRequest, DecideResponse]]) -> list[dict[str, Any]]:
    """Answers as JSON-ready values."""
    return [
        {"kind": request.kind, **response.model_dump(mode="json", exclude_none=True)}
        for request, response in decisions
    ]


def serve(options: ServeOptions, console: Console | None = None) -> ServeResult:
    """Serve until SIGINT or SIGTERM, then drain and return. Raises the failing stage's error.

    With ``dry_run`` returns after the plan, with ``check`` after one decision of each kind.
    """
    console = stage_console(options, console)
    state_dir = state_folder(options.state_dir)
    keys = preflight(options, state_dir, console)
    build = check_build(options, console)
    model = served_folder(options, state_dir, console)
    facts = verified_facts(model, options, console)
    golden = golden_file(model, options, console)
    hardware = probed(build, console)
    hardware = tested_kernels(facts, hardware, build, options, state_dir=state_dir, console=console)
    launch = planned(facts, hardware, options, state_dir, console)
    if options.dry_run:
        return _finish_dry_run(launch, options, console)
    manager = ServiceManager()
    watch = Watch(manager, functools.partial(works, f"http://{reachable_host(options.host)}:{options.port}"))
    with (
        stop_on_sigterm(manager),
        settings_file(options, golden, state_dir) as settings,
        watch.running(),
    ):
        engines = functools.partial(make_engine, launch, options, state_dir, settings)

        record = functools.partial(record_start, state_dir=state_dir, start_record=settings.start_record)

        def bring_up(engine: EngineProcess) -> ServeResult:
            with watch.starting():
                engine.start()
                return prove_start(engine, launch, options, record, console)

        def tell_ready(result: ServeResult) -> None:
            announce(result, keys, options, console)
            manager.ready(f"ready at {result.base_url}")

        if options.check:
            with engines() as engine:
                return _finish_check(bring_up(engine), keys, options, console)
        result = supervise(
            engines,
            bring_up,
            tell_ready,
            options,
            console,
        )
    console.print("stopped")
    return result


def state_folder(state_dir: Path | None, environ: Mapping[str, str] | None = None) -> Path:
    """The folder for logs, caches and the demo model."""
    return home_folder(environ) if state_dir is None else state_dir.absolute()


def demo_model(state_dir: Path) -> Path:
    """The demo model's folder, written on first use; ConfigError when it cannot be.

    Other processes see it whole or not at all.
    """
    from decideploy.demo import demo_model_name  # noqa: PLC0415

    folder = state_dir / demo_model_name()
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                _write_demo_model(folder)
    except OSError as error:
        raise unwritable(folder, error) from error
    return folder


def _write_demo_model(folder: Path) -> None:
    from decideploy.demo import write_demo_model  # noqa: PLC0415

    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix="demo-model-"))
    try:
        write_demo_model(partial / "model")
        (partial / "model").rename(folder)
    finally:
        shutil.rmtree(partial)


def stage_console(options: ServeOptions, console: Console | None) -> Console:
    """Standard output belongs to the document when JSON is asked for."""
    return Console(stderr=True) if options.json else console or Console()


def tell(console: Console, stage: str, text: str, *, style: str = "green") -> None:
    """Print one line of a stage."""
    console.print(f"[{style}]{stage:<10}[/]", end="")
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def preflight(
    options: ServeOptions,
    state_dir: Path,
    console: Console,
    *,
    more: Sequence[Callable[[], object]] = (),
) -> tuple[str, ...]:
    """The API keys, once all that is cheap to find out is found to be well; else every fault at once.

    ``more`` are further checks, which raise.
    """
    from decideploy.artifacts import check_access  # noqa: PLC0415

    faults: list[Error] = []
    keys: tuple[str, ...] = ()
    for check in more:
        with collected(faults):
            check()
    with collected(faults):
        _check_port(options)
    with collected(faults):
        keys = check_keys(options, console)
    with collected(faults):
        check_state_folder(state_dir)
    with collected(faults):
        if options.model is not None:
            check_access(options.model, revision=options.revision)
    raise_together(faults)
    return keys


def _check_port(options: ServeOptions) -> None:
    """A dry run may plan for a port that is in use: it starts nothing."""
    if options.dry_run:
        check_port_number(options.port)
    else:
        check_port(options.host, options.port)


def check_keys(options: ServeOptions, console: Console) -> tuple[str, ...]:
    """The API keys, read before the load as the server will read them after it."""
    keys = read_keys(options.settings.api_key_file)
    if not keys and options.host not in _LOOPBACK:
        text = f"none: whoever reaches {options.host}:{options.port} may ask (docs/operate.md)"
        tell(console, "keys", text, style="yellow")
    return keys


def check_build(options: ServeOptions, console: Console) -> InstalledBuild | None:
    """The installed build. A dry run goes on without one: it starts nothing."""
    from decideploy.build import check_installed  # noqa: PLC0415

    try:
        build = check_installed()
        check_libraries(build.recipe)
    except Error as error:
        if not options.dry_run:
            raise
        tell(console, "build", f"{error.what} (would stop serve)", style="yellow")
        return None
    tell(console, "build", f"vllm {build.version}, every file as built")
    return build


def served_folder(options: ServeOptions, state_dir: Path, console: Console) -> Path:
    """The folder of the model: given, fetched, or that of the demo model."""
    from decideploy.artifacts import resolve_model  # noqa: PLC0415

    if options.model is None:
        folder = demo_model(state_dir)
        tell(console, "model", f"{folder} (the demo model: random weights)")
        return folder
    folder = resolve_model(options.model, revision=options.revision)
    tell(console, "model", str(folder))
    return folder


def verified_facts(model: Path, options: ServeOptions, console: Console) -> ModelFacts:
    """What the model's files say; VerificationError with every fault of them."""
    from decideploy.artifacts import verify  # noqa: PLC0415

    verification = verify(model, adapter=options.adapter)
    verification.raise_for_issues()
    facts = verification.known_facts()
    for issue in verification.issues:
        tell(console, "verify", str(issue.to_diagnostic()), style="yellow")
    quantized = facts.quant_algo or facts.dtype
    tell(console, "verify", f"{facts.architecture}, {facts.num_layers} layers, experts {quantized}")
    return facts


def probed(build: InstalledBuild | None, console: Console) -> HardwareReport:
    """The hardware as the installed build can use it."""
    report = probe()
    for condition in report.conditions:
        tell(console, "probe", str(condition), style="yellow")
    names = [str(gpu.name.value) for gpu in report.visible_gpus] or [f"{report.host.cores.value} CPU cores"]
    tell(console, "probe", ", ".join(names))
    return usable_hardware(report, build.recipe if build else None)


def usable_hardware(report: HardwareReport, recipe: str | None) -> HardwareReport:
    """``report`` less what the build of ``recipe`` cannot use; ProbeError when it needs what is not here."""
    if recipe == "cpu":
        return replace(report, gpus=())
    if recipe == "cuda" and report.platform != "cuda":
        raise ProbeError(
            "the CUDA build is installed, and no GPU is visible",
            where=report.driver_version.source,
            next_step="make a GPU visible (`decideploy probe`), or install the CPU build",
        )
    return report


def tested_kernels(
    facts: ModelFacts,
    hardware: HardwareReport,
    build: InstalledBuild | None,
    options: ServeOptions,
    *,
    state_dir: Path,
    console: Console,
) -> HardwareReport:
    """The hardware with its expert kernels tried by numbers, where the model needs one on a GPU."""
    if not build or facts.quant_algo != "NVFP4" or hardware.platform != "cuda" or options.dry_run:
        return hardware
    if options.no_smoke_test:
        tell(console, "kernel", "not tested: --no-smoke-test", style="yellow")
        return not_tested(hardware, "--no-smoke-test")
    tested = with_kernel_test(hardware, build, _wishes(options, state_dir), state_dir)
    for condition in tested.conditions[len(hardware.conditions) :]:
        tell(console, "kernel", str(condition), style="yellow")
    if (test := tested.smoke_test.value) and test.kernel:
        tell(console, "kernel", str(test.trials[-1]))
    return tested


def _wishes(options: ServeOptions, state_dir: Path) -> Workload:
    return replace(
        options.workload,
        host=options.host,
        port=options.port,
        cache_root=options.workload.cache_root or state_dir / "cache",
    )


def planned(
    facts: ModelFacts, hardware: HardwareReport, options: ServeOptions, state_dir: Path, console: Console
) -> LaunchPlan:
    """The plan of one engine."""
    measured = corrections(starts_folder(state_dir)) if options.calibrate else ()
    launch = plan(facts, hardware, workload=_wishes(options, state_dir), corrections=measured)
    memory = launch.memory
    for note in launch.notes:
        tell(console, "plan", note, style="yellow")
    tell(
        console,
        "plan",
        f"{launch.platform}, experts {launch.moe_backend or 'auto'}, max_model_len {launch.max_model_len}, "
        f"KV {memory.kv_cache_bytes / 1024**3:.2f} GiB, "
        f"in all {(memory.used_bytes + memory.kv_cache_bytes) / 1024**3:.2f} GiB",
    )
    return launch


def _finish_dry_run(launch: LaunchPlan, options: ServeOptions, console: Console) -> ServeResult:
    result = ServeResult(plan=launch)
    if options.json:
        print_document(result)
    else:
        print_plan(launch, console)
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsFile:
    """Where the gateway finds its settings, the descriptor of its access log, which it inherits, and where it
    reads how the start compares with the plan.
    """

    path: Path
    log_fd: int
    start_record: Path


@contextmanager
def settings_file(options: ServeOptions, golden: Path | None, state_dir: Path) -> Iterator[SettingsFile]:
    """The gateway's settings as a file, for as long as engines read it."""
    path = state_dir / "run" / f"settings-{options.port}.json"
    start_record = state_dir / "run" / f"start-{options.port}.json"
    with ExitStack() as stack:
        log_fd = _access_log_fd(options, state_dir)
        stack.callback(os.close, log_fd)
        settings = options.settings.model_copy(
            update={
                "drain_timeout_s": float(options.workload.shutdown_timeout_s),
                "access_log": log_fd,
                "golden": golden,
                "start_record": start_record,
            }
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(settings.model_dump_json(indent=2), encoding="utf-8")
            start_record.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(path, error) from error
        yield SettingsFile(path=path, log_fd=log_fd, start_record=start_record)


def _access_log_fd(options: ServeOptions, state_dir: Path) -> int:
    """The descriptor of the access log; a check keeps its few lines out of the table that it prints."""
    if options.access_log is not None:
        return _open_log(options.access_log)
    if options.check:
        return _open_log(state_dir / "logs" / f"access-{options.port}.jsonl")
    return os.dup(_STDERR_FD)


def _open_log(path: Path) -> int:
    """Opened before the load, so that a path that cannot be written stops here."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise ConfigError(
            f"the access log cannot be written: {error.strerror}",
            where=f"--access-log {path}",
            next_step="name a file in a writable folder",
        ) from error


def make_engine(
    launch: LaunchPlan, options: ServeOptions, state_dir: Path, settings: SettingsFile
) -> EngineProcess:
    """The engine of a plan, not yet started."""
    return EngineProcess(
        launch.argv,
        env={**launch.env, SETTINGS_VARIABLE: str(settings.path)},
        keep_fds=(settings.log_fd,),
        host=options.host,
        port=options.port,
        log_path=state_dir / "logs" / f"engine-{options.port}.log",
        drain_s=options.workload.shutdown_timeout_s + _DRAIN_MARGIN_S,
    )


def golden_file(model: Path, options: ServeOptions, console: Console) -> Path | None:
    """The file of golden decisions, read once before the load: a fault of it must not cost the minutes."""
    path = golden_of(model, options.golden)
    if path is None:
        tell(console, "golden", "no recorded decisions: the self-test compares with none", style="yellow")
        return None
    count = len(Golden.read(path).decisions)
    tell(console, "golden", f"{count} decisions in {path}")
    return path


def prove_start(
    engine: EngineProcess,
    launch: LaunchPlan,
    options: ServeOptions,
    record: Callable[[StartRecord], None],
    console: Console,
) -> ServeResult:
    """Await the proof of a started engine: loaded, as planned, and its self-test passed."""
    tell(console, "launch", f"loading; log: {engine.log.path}")
    ready_s = engine.wait_ready(options.startup_timeout_s)
    tell(console, "launch", f"answered after {ready_s:.1f} s")
    observed = replace(engine.log.facts, startup_s=ready_s)
    reconciliation = _reconcile(observed, launch, console)
    record(make_record(launch, observed, reconciliation))
    _check_kernel(reconciliation, options)
    proof = read_proof(engine.wait_proven(_SELFTEST_S), engine.base_url)
    if proof.failures:
        print_selftest(proof, console)
    proof.raise_for_failures()
    tell(console, "self-test", proof.summary)
    return ServeResult(
        plan=launch, base_url=engine.base_url, ready_s=ready_s, reconciliation=reconciliation, selftest=proof
    )


def read_proof(document: Mapping[str, Any], base_url: str) -> SelfTestReport:
    """The self-test's report in the body of ``/ready``; EngineError when the test did not come to an end."""
    if not document.get("selftest"):
        raise EngineError(
            "; ".join(document.get("reasons", ())) or "the server tells of no self-test",
            where=f"{base_url}/ready",
            next_step="the engine's log has the cause",
        )
    told = document["selftest"]
    checks = tuple(Check(**check) for check in told["checks"])
    others = {entry.name: told[entry.name] for entry in fields(SelfTestReport) if entry.name in told}
    return SelfTestReport(**{**others, "url": base_url, "checks": checks})


def _reconcile(observed: Observed, launch: LaunchPlan, console: Console) -> Reconciliation:
    """Compare the start with its plan, and say so."""
    found = reconcile(launch, observed)
    print_reconciliation(found, console)
    for difference in found.differences:
        style = "bold red" if difference.code == KERNEL_DIFFERS else "yellow"
        tell(console, "launch", str(difference), style=style)
    return found


def record_start(record: StartRecord, *, state_dir: Path, start_record: Path) -> None:
    """Keep the start for later plans, and lay it where the running server reads it."""
    try:
        append_record(record, starts_folder(state_dir))
        partial = start_record.with_suffix(".partial")
        partial.write_text(record.model_dump_json(), encoding="utf-8")
        partial.replace(start_record)
    except OSError as error:
        raise unwritable(start_record, error) from error


def _check_kernel(found: Reconciliation, options: ServeOptions) -> None:
    if options.strict_kernel and found.kernel_differs:
        told = next(difference for difference in found.differences if difference.code == KERNEL_DIFFERS)
        raise EngineError(
            told.what, where=told.where, next_step=f"{told.next_step}, or serve without --strict-kernel"
        )


def _finish_check(
    result: ServeResult, keys: tuple[str, ...], options: ServeOptions, console: Console
) -> ServeResult:
    assert result.base_url is not None
    checked = replace(result, decisions=ask_each_kind(result.base_url, keys))
    show_check(checked, options, console)
    return checked


def ask_each_kind(base_url: str, keys: tuple[str, ...]) -> tuple[tuple[DecideRequest, DecideResponse], ...]:
    """One decision of each kind, by the server at ``base_url``."""
    with Client(base_url, api_key=keys[0] if keys else None) as client:
        return tuple((request, client.decide(request)) for request in one_of_each_kind())


def show_check(checked: Served, options: ServeOptions, console: Console) -> None:
    """Print what was asked and answered."""
    if options.json:
        print_document(checked)
        return
    for request, response in checked.decisions:
        console.print(f"{request.kind}: {request.question}", markup=False)
        print_decision(response, console)


def announce(result: Served, keys: tuple[str, ...], options: ServeOptions, console: Console) -> None:
    """Tell that the server is ready, and how to ask it."""
    if options.json:
        print_document(result)
    tell(console, "ready", f"{result.base_url}")
    command = example_command(str(result.base_url), with_key=bool(keys))
    console.print(command, markup=False, highlight=False, soft_wrap=True)


def example_command(base_url: str, *, with_key: bool = False) -> str:
    """A curl command that asks ``/v1/decide``, as a shell reads it; the key is the reader's $API_KEY."""
    request = one_of_each_kind()[0]
    body = {"kind": request.kind, "state": request.state, "question": request.question}
    words = ["curl", "-s", f"{base_url}/v1/decide", "-H", "Content-Type: application/json"]
    key = ' -H "Authorization: Bearer $API_KEY"' if with_key else ""
    return f"{shlex.join(words)}{key} {shlex.join(['-d', json.dumps(body)])}"


@contextmanager
def stop_on_sigterm(manager: ServiceManager) -> Iterator[None]:
    """SIGTERM stops as Ctrl-C does, so that every stage leaves through the same door; ``manager`` is told."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        manager.stopping()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def print_document(result: Served) -> None:
    """Print the document of ``--json``, in one line."""
    print(json.dumps(result.to_dict(), ensure_ascii=False, default=str), flush=True)
