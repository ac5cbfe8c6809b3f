"""The hardware report: frozen values, each with how it was learnt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table

from decideploy.errors import ConfigError, Diagnostic
from decideploy.texts import parse_json

SCHEMA_VERSION = 3
_MOST_COLUMNS = 120
GIB = 1024**3

T = TypeVar("T")
Count = Annotated[int, Field(ge=0, lt=2**63)]
Size = Annotated[int, Field(gt=0, lt=2**63)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading(Generic[T]):
    """One value and how it was learnt; ``value`` is None when it could not be read, never a guess."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    value: T | None
    source: str

    @property
    def known(self) -> bool:
        """Whether the value was read."""
        return self.value is not None


def unknown(source: str) -> Reading[Any]:
    """A value that could not be read; ``source`` says why."""
    return Reading(value=None, source=source)


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A process that holds GPU memory; ``name`` and ``size_bytes`` are None where they cannot be read."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    pid: Count
    name: str | None = None
    size_bytes: Count | None = None

    def __str__(self) -> str:
        size = "unknown size" if self.size_bytes is None else f"{self.size_bytes / GIB:.2f} GiB"
        return f"{self.pid} ({self.name or 'unknown name'}, {size})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU, or one MIG slice of it, which has the index of its GPU.

    ``compute_capability`` is "major.minor"; ``holders`` are the processes that hold its memory now; ``mig``
    is "off", "on" or "slice"; ``ecc`` is whether errors of the memory are corrected; ``pcie`` is the link as
    it is and as the card has it at most; ``nvlinks`` counts links that are up. ``visible`` is False when the
    engine cannot take it: hidden by CUDA_VISIBLE_DEVICES, or cut into slices.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    index: Count
    name: Reading[str]
    compute_capability: Reading[str]
    total_bytes: Reading[Size]
    free_bytes: Reading[Count]
    uuid: Reading[str]
    holders: Reading[tuple[Holder, ...]]
    mig: Reading[str]
    ecc: Reading[bool]
    power_limit_w: Reading[Size]
    power_default_w: Reading[Size]
    pcie: Reading[str]
    nvlinks: Reading[Count]
    visible: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """The machine around the GPUs.

    ``disk_free_bytes`` is where models are kept; ``ulimits`` are the soft limits of open files and locked
    bytes, -1 for none; ``container`` is "none" or what kind of container this is. ``cpu_flags`` maps avx2,
    avx512f, amx and bf16 to whether the CPU has them; ``cache_roots`` maps each folder the engine writes to
    whether it can be written; ``packages`` maps kernel packages to their installed version, None when absent.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    cores: Reading[Size]
    ram_total_bytes: Reading[Size]
    ram_available_bytes: Reading[Count]
    cgroup_limit_bytes: Reading[Count]
    cgroup_used_bytes: Reading[Count]
    shm_bytes: Reading[Count]
    disk_free_bytes: Reading[Count]
    ulimits: Reading[Mapping[str, int]]
    container: Reading[str]
    cpu_flags: Reading[Mapping[str, bool]]
    cache_roots: Reading[Mapping[str, bool]]
    packages: Reading[Mapping[str, str | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTrial:
    """One expert kernel against dequantised arithmetic.

    ``verdict`` is "right", "wrong", or "failed" where it gave no numbers; ``why`` is set unless it is right.
    ``relative_error`` is None where there are no finite numbers; more than ``bound`` is wrong. ``kernel`` is
    the engine's name of what ran, "" where nothing did.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    backend: str
    verdict: Literal["right", "wrong", "failed"]
    relative_error: Amount | None
    bound: Amount
    seconds: Amount
    kernel: str = ""
    why: str = ""

    def __str__(self) -> str:
        if self.verdict == "right":
            return f"{self.backend}: right, {self.relative_error:.4f} of {self.bound} in {self.seconds:.1f} s"
        return f"{self.backend}: {self.verdict} in {self.seconds:.1f} s, it {self.why}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeTest:
    """The expert kernels that were tried on a GPU, in order; the last is the first that was right, if any."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    gpu_index: Count
    trials: tuple[KernelTrial, ...]

    @property
    def kernel(self) -> str | None:
        """The first kernel that gave the right numbers."""
        return next((trial.backend for trial in self.trials if trial.verdict == "right"), None)

    @property
    def ran(self) -> bool:
        """Whether any kernel gave numbers."""
        return any(trial.verdict != "failed" for trial in self.trials)

    @property
    def refused(self) -> Mapping[str, str]:
        """Why each kernel that was tried and is not right is not to be used.

        None where not one gave numbers: then it may be the test that cannot run here.
        """
        if not self.ran:
            return {}
        return {trial.backend: trial.why for trial in self.trials if trial.verdict != "right"}


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareReport:
    """What ``probe`` found. ``conditions`` are named faults, each with its remedy."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    host: Host
    driver_version: Reading[str]
    cuda_version: Reading[str]
    gpus: tuple[Gpu, ...] = ()
    smoke_test: Reading[SmokeTest] = Reading(value=None, source="not run")
    conditions: tuple[Diagnostic, ...] = field(default=())

    @property
    def visible_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the engine would see."""
        return tuple(gpu for gpu in self.gpus if gpu.visible)

    @property
    def platform(self) -> str:
        """ "cuda" when the engine would see a GPU, else "cpu"."""
        return "cuda" if self.visible_gpus else "cpu"

    def refused_kernels(self, gpu: Gpu) -> Mapping[str, str]:
        """Why each expert kernel that the numeric test on ``gpu`` refused is not to be used."""
        test = self.smoke_test.value
        return test.refused if test is not None and test.gpu_index == gpu.index else {}

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready values with ``schema_version``."""
        return {"schema_version": SCHEMA_VERSION, "platform": self.platform, **asdict(self)}


def load_report(path: Path) -> HardwareReport:
    """Read a report that ``probe --json`` wrote; ConfigError names the file and the key at fault."""
    document = _read_json(path)
    found = document.get("schema_version")
    if found != SCHEMA_VERSION:
        raise ConfigError(
            f"hardware report has schema_version {found!r}, expected {SCHEMA_VERSION}",
            where=f"{path}: schema_version",
            next_step="write it again with `decideploy probe --json`",
        )
    # The one value that is derived: which GPUs are visible decides it.
    values = {key: value for key, value in document.items() if key not in ("schema_version", "platform")}
    try:
        # From JSON, because strict checks of Python values take no mapping for a dataclass.
        report = TypeAdapter(HardwareReport).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        faults = {".".join(map(str, fault["loc"])): fault["msg"] for fault in error.errors()}
        raise _malformed(path, faults) from error
    if faults := dict(_contradictions(report)):
        raise _malformed(path, faults)
    return report


def _malformed(path: Path, faults: Mapping[str, str]) -> ConfigError:
    told = "; ".join(f"{key}: {message}" for key, message in faults.items())
    return ConfigError(
        f"hardware report is malformed: {told}",
        where=", ".join(f"{path}: {key}" for key in faults),
        next_step="write it again with `decideploy probe --json`",
    )


def _contradictions(report: HardwareReport) -> Iterator[tuple[str, str]]:
    """Keys of values that exceed the whole of which they are a part."""
    host = report.host
    pairs = [("host.ram_available_bytes", host.ram_available_bytes, host.ram_total_bytes)]
    pairs += [(f"gpus.{n}.free_bytes", gpu.free_bytes, gpu.total_bytes) for n, gpu in enumerate(report.gpus)]
    for key, part, whole in pairs:
        if part.value is not None and whole.value is not None and part.value > whole.value:
            yield f"{key}.value", f"{part.value} is more than the total of {whole.value}"


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        document = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read hardware report: {error}",
            where=str(path),
            next_step="name a known card or a file written by `decideploy probe --json`",
        ) from error
    if not isinstance(document, dict):
        raise ConfigError(
            "hardware report is not a JSON object",
            where=str(path),
            next_step="name a known card or a file written by `decideploy probe --json`",
        )
    return document


def print_report(report: HardwareReport, console: Console | None = None) -> None:
    """Print the report as a table, the conditions after it."""
    console = console or Console()
    title = f"Hardware ({report.platform})"
    table = Table("what", "value", "learnt from", title=title, width=min(console.width, _MOST_COLUMNS))
    for row in _rows(report):
        table.add_row(*row)
    console.print(table)
    for condition in report.conditions:
        console.print(str(condition), style="yellow", markup=False, highlight=False)


def _rows(report: HardwareReport) -> list[tuple[str, str, str]]:
    rows = [_row("driver", report.driver_version), _row("CUDA of the driver", report.cuda_version)]
    for gpu in report.gpus:
        label = f"GPU {gpu.index}" if gpu.visible else f"GPU {gpu.index} (hidden)"
        rows += [
            _row(label, gpu.name),
            _row(f"{label} compute capability", gpu.compute_capability),
            _bytes_row(f"{label} memory", gpu.total_bytes),
            _bytes_row(f"{label} free", gpu.free_bytes),
            _row(f"{label} held by", gpu.holders),
            _row(f"{label} MIG", gpu.mig),
            _row(f"{label} ECC", gpu.ecc),
            _row(f"{label} power limit, W", gpu.power_limit_w),
            _row(f"{label} PCIe", gpu.pcie),
            _row(f"{label} NVLinks up", gpu.nvlinks),
        ]
    host = report.host
    return [
        *rows,
        *_smoke_rows(report.smoke_test),
        _row("cores", host.cores),
        _bytes_row("RAM", host.ram_total_bytes),
        _bytes_row("RAM available", host.ram_available_bytes),
        _bytes_row("cgroup limit", host.cgroup_limit_bytes),
        _bytes_row("/dev/shm", host.shm_bytes),
        _bytes_row("disk free for models", host.disk_free_bytes),
        _row("soft limits", host.ulimits),
        _row("container", host.container),
        _row("CPU flags", host.cpu_flags),
        _row("cache folders", host.cache_roots),
        _row("kernel packages", host.packages),
    ]


def _smoke_rows(reading: Reading[SmokeTest]) -> list[tuple[str, str, str]]:
    test = reading.value
    if test is None:
        return [("expert kernel", "unknown", reading.source)]
    label = f"GPU {test.gpu_index} expert kernel"
    tried = [(f"{label} tried", str(trial), reading.source) for trial in test.trials]
    return [(label, test.kernel or "none was found right", reading.source), *tried]


def _row(label: str, reading: Reading[Any]) -> tuple[str, str, str]:
    return label, _text(reading.value), reading.source


def _bytes_row(label: str, reading: Reading[int]) -> tuple[str, str, str]:
    text = "unknown" if reading.value is None else f"{reading.value / GIB:.2f} GiB"
    return label, text, reading.source


def _text(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(entry)}" for key, entry in value.items())
    if isinstance(value, bool):
        return _plain(value)
    if isinstance(value, tuple):
        return ", ".join(str(entry) for entry in value) or "none"
    return str(value)


def _plain(entry: object) -> str:
    if isinstance(entry, bool):
        return "yes" if entry else "no"
    return "absent" if entry is None else str(entry)
