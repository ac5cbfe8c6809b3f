"""``serve --replicas``: the stages of ``serve``, each once for the model and once for every replica."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from rich.console import Console

from decideploy.decide import DecideRequest, DecideResponse
from decideploy.errors import ConfigError, Error, raise_together
from decideploy.plan import LaunchPlan, print_plan
from decideploy.serve import stages
from decideploy.serve.launch import EngineProcess, check_port, check_port_number, reachable_host
from decideploy.serve.notify import ServiceManager, Watch, works
from decideploy.serve.preflight import collected
from decideploy.serve.replicas.control import RestartReport, RestartRequest, controlled, run_folder
from decideploy.serve.replicas.fleet import Fleet, Tell
from decideploy.serve.replicas.front import FrontProcess, find_haproxy
from decideploy.serve.replicas.haproxy import Front, front_config
from decideploy.serve.replicas.replica import Replica, Revision
from decideploy.serve.replicas.share import Share, shares
from decideploy.serve.stages import ServeOptions, ServeResult, SettingsFile

if TYPE_CHECKING:
    from decideploy.build import InstalledBuild

SCHEMA_VERSION: Final = 1
_LOOPBACK: Final = "127.0.0.1"
# HAProxy's own figures, then the replicas.
_STATS, _FIRST = 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicasResult:
    """What the stages gave; after a dry run there are plans alone."""

    plans: tuple[LaunchPlan, ...]
    front: Front
    base_url: str | None = None
    ready_s: float | None = None
    replicas: tuple[ServeResult, ...] = ()
    decisions: tuple[tuple[DecideRequest, DecideResponse], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values with ``schema_version``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "base_url": self.base_url,
            "ready_s": self.ready_s,
            "plans": [plan.to_dict() for plan in self.plans],
            "haproxy": front_config(self.front),
            "replicas": [result.to_dict() for result in self.replicas],
            "decisions": stages.decision_documents(self.decisions),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ground:
    """What stays the same for every model that this server is given."""

    options: ServeOptions
    state_dir: Path
    console: Console
    build: InstalledBuild | None
    shares: tuple[Share, ...]

    @property
    def each(self) -> tuple[ServeOptions, ...]:
        """The options of each replica."""
        return tuple(
            replace(
                self.options,
                host=_LOOPBACK,
                port=self.options.port + _FIRST + index,
                workload=replace(self.options.workload, gpu_index=share.gpu_index),
            )
            for index, share in enumerate(self.shares)
        )

    @property
    def front(self) -> Front:
        """What HAProxy stands in front of."""
        settings = self.options.settings
        return Front(
            host=self.options.host,
            port=self.options.port,
            stats_port=self.options.port + _STATS,
            replicas=tuple((one.host, one.port) for one in self.each),
            requests=len(self.shares) * (settings.max_concurrency + settings.max_queue),
            request_timeout_s=settings.request_timeout_s,
            body_timeout_s=settings.body_timeout_s,
        )


def serve_replicas(options: ServeOptions, console: Console | None = None) -> ReplicasResult:
    """Serve by ``options.replicas`` engines behind HAProxy until SIGINT or SIGTERM, then drain and return.

    Raises the failing stage's error. With ``dry_run`` returns after the plans, with ``check`` after one
    decision of each kind.
    """
    console = stages.stage_console(options, console)
    state_dir = stages.state_folder(options.state_dir)
    program = _Program(required=not options.dry_run)
    keys = stages.preflight(
        options, state_dir, console, more=(program.find, functools.partial(_check_options, options))
    )
    ground = _ground(options, state_dir, console)
    _check_ports(ground)
    revision = _prepare(ground, options)
    if options.dry_run:
        return _finish_dry_run(ground, revision, program)
    assert program.path is not None
    folder = run_folder(state_dir, options.port)
    front = FrontProcess(program.path, ground.front, folder, state_dir / "logs" / f"front-{options.port}.log")
    front.check()
    stages.tell(console, "front", f"HAProxy accepts its configuration: {folder / 'haproxy.cfg'}")
    return _run(ground, revision, front, keys)


class _Program:
    """HAProxy, which a dry run can do without: it starts nothing."""

    def __init__(self, *, required: bool) -> None:
        self.path: Path | None = None
        self.missing = ""
        self._required = required

    def find(self) -> None:
        """Look for it; ConfigError where it is required and is not there."""
        try:
            self.path = find_haproxy()
        except ConfigError as error:
            if self._required:
                raise
            self.missing = error.what


def _check_options(options: ServeOptions) -> None:
    if options.workload.tensor_parallel_size > 1:
        raise ConfigError(
            "a replica is one engine on one GPU",
            where="--replicas, --tensor-parallel-size",
            next_step="leave one of the two out: the model fits one GPU, and replicas serve more from two",
        )


def _ground(options: ServeOptions, state_dir: Path, console: Console) -> _Ground:
    build = stages.check_build(options, console)
    assert options.replicas is not None
    parts = shares(stages.probed(build, console), options.replicas, cores=tuple(os.sched_getaffinity(0)))
    for index, share in enumerate(parts):
        stages.tell(console, "replica", f"{index}: {share.label}, port {options.port + _FIRST + index}")
    return _Ground(options=options, state_dir=state_dir, console=console, build=build, shares=parts)


def _check_ports(ground: _Ground) -> None:
    """The ports behind the public one; every fault at once."""
    faults: list[Error] = []
    for port in (ground.front.stats_port, *(one.port for one in ground.each)):
        with collected(faults):
            if ground.options.dry_run:
                check_port_number(port)
            else:
                check_port(_LOOPBACK, port)
    raise_together(faults)


def _prepare(ground: _Ground, options: ServeOptions) -> Revision:
    """The model of ``options``, verified once and planned for each replica; nothing is started."""
    console, state_dir = ground.console, ground.state_dir
    model = stages.served_folder(options, state_dir, console)
    facts = stages.verified_facts(model, options, console)
    golden = stages.golden_file(model, options, console)
    launches = []
    for index, (share, one) in enumerate(zip(ground.shares, ground.each, strict=True)):
        told = _tagged(console, index)
        hardware = stages.tested_kernels(
            facts, share.hardware, ground.build, one, state_dir=state_dir, console=told
        )
        launch = stages.planned(facts, hardware, one, state_dir, told)
        launches.append(replace(launch, env={**launch.env, **share.env}))
    return Revision(model=model, launches=tuple(launches), golden=golden)


def _finish_dry_run(ground: _Ground, revision: Revision, program: _Program) -> ReplicasResult:
    result = ReplicasResult(plans=revision.launches, front=ground.front)
    if program.missing:
        stages.tell(ground.console, "front", f"{program.missing} (would stop serve)", style="yellow")
    if ground.options.json:
        stages.print_document(result)
        return result
    for launch in revision.launches:
        print_plan(launch, ground.console)
    ground.console.print(front_config(ground.front), markup=False, highlight=False, soft_wrap=True)
    return result


def _run(ground: _Ground, revision: Revision, front: FrontProcess, keys: tuple[str, ...]) -> ReplicasResult:
    options, console = ground.options, ground.console
    fleet = Fleet(_replicas(ground), front, options, console)
    manager = ServiceManager()
    url = f"http://{reachable_host(options.host)}:{options.port}"
    watch = Watch(manager, lambda: fleet.starts_something or works(url))
    with stages.stop_on_sigterm(manager), watch.running():
        try:
            begin = time.monotonic()
            with watch.starting():
                replicas = fleet.start(revision)
            result = ReplicasResult(
                plans=revision.launches,
                front=ground.front,
                base_url=url,
                ready_s=time.monotonic() - begin,
                replicas=replicas,
            )
            if options.check:
                checked = replace(result, decisions=stages.ask_each_kind(url, keys))
                stages.show_check(checked, options, console)
                return checked
            with controlled(
                run_folder(ground.state_dir, options.port), functools.partial(_renew, ground, fleet)
            ):
                _tend(fleet, lambda: _announce(result, ground, manager, keys), console)
        finally:
            fleet.close()
    console.print("stopped")
    return result


def _tend(fleet: Fleet, announce: Callable[[], None], console: Console) -> None:
    try:
        announce()
        fleet.tend()
    except KeyboardInterrupt:
        console.print("stopping: requests in flight may finish")


def _announce(
    result: ReplicasResult, ground: _Ground, manager: ServiceManager, keys: tuple[str, ...]
) -> None:
    stages.announce(result, keys, ground.options, ground.console)
    manager.ready(f"ready at {result.base_url}: {len(result.replicas)} replicas")


def _renew(ground: _Ground, fleet: Fleet, request: RestartRequest, tell: Tell) -> RestartReport:
    """What ``decideploy rolling-restart`` asks for."""
    begin = time.monotonic()

    def step(text: str) -> None:
        ground.console.print(text, markup=False, highlight=False, soft_wrap=True)
        tell(text)

    revision = fleet.revision
    if request.model is not None:
        revision = _prepare_update(ground, request)
        step(f"{revision.model} is verified and planned")
    assert revision is not None
    fleet.renew(revision, step)
    return RestartReport(
        model=str(revision.model), replicas=len(fleet.replicas), seconds=round(time.monotonic() - begin, 1)
    )


def _prepare_update(ground: _Ground, request: RestartRequest) -> Revision:
    """The model of ``request``, while the old one serves; its faults change nothing."""
    from decideploy.artifacts import check_access  # noqa: PLC0415

    assert request.model is not None
    check_access(request.model, revision=request.revision)
    return _prepare(
        ground,
        replace(
            ground.options,
            model=request.model,
            revision=request.revision,
            adapter=request.adapter,
            golden=request.golden,
        ),
    )


def _replicas(ground: _Ground) -> tuple[Replica, ...]:
    return tuple(_replica(ground, index, options) for index, options in enumerate(ground.each))


def _replica(ground: _Ground, index: int, options: ServeOptions) -> Replica:
    console = _tagged(ground.console, index)
    # Where the engine that runs now lays how its start compares with the plan.
    running: list[SettingsFile] = []

    @contextmanager
    def engines(revision: Revision) -> Iterator[EngineProcess]:
        with stages.settings_file(options, revision.golden, ground.state_dir) as settings:
            running[:] = [settings]
            launch = revision.launches[index]
            with stages.make_engine(launch, options, ground.state_dir, settings) as engine:
                yield engine

    def prove(engine: EngineProcess, revision: Revision) -> ServeResult:
        record = functools.partial(
            stages.record_start, state_dir=ground.state_dir, start_record=running[0].start_record
        )
        return stages.prove_start(engine, revision.launches[index], options, record, console)

    return Replica(index, engines, prove, options)


def _tagged(console: Console, index: int) -> Console:
    """``console`` with the replica's number before each line: several replicas tell at once."""
    return Console(file=cast(TextIO, _Tagged(console, f"[{index}] ")), width=console.width)


class _Tagged:
    """A text stream that hands whole lines on, with ``tag`` before each."""

    def __init__(self, console: Console, tag: str) -> None:
        self._console, self._tag = console, tag
        self._pending = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._pending = (self._pending + text).split("\n")
            self._hand_on(lines)
        return len(text)

    def _hand_on(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._console.print(f"{self._tag}{line}", markup=False, highlight=False, soft_wrap=True)

    def flush(self) -> None:
        """Whole lines are out; a part of one waits for its end."""
