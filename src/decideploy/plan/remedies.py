"""What makes a plan fit that does not: each way is tried by the planner itself before it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from decideploy.errors import CapacityError, Error
from decideploy.hardware import HardwareReport, Reading, card_report, known_cards
from decideploy.hardware.kernels import is_unified_memory
from decideploy.plan.memory import GIB
from decideploy.plan.workload import Workload

# Plans, or raises.
Planner: TypeAlias = Callable[[HardwareReport, Workload], object]

_MOST_NAMED: Final = 3
_SHARES: Final = (0.92, 0.95)
_STEPS: Final = (2_048, 1_024, 512)
_FEWEST_THOUGHT_TOKENS: Final = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """An option as one writes it, what it costs, and the settings that it stands for."""

    option: str
    cost: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.option} ({self.cost})"


# The same option, from the mildest value to the strongest.
Ladder: TypeAlias = tuple[Change, ...]


def remedies(plan: Planner, hardware: HardwareReport, workload: Workload) -> str:
    """Each option that is enough, those that cost least first, or several that are together; and hardware.

    What does not make it fit is never named. ``plan`` must not ask for remedies itself.
    """
    trial = _Trial(plan=plan, hardware=hardware, workload=workload)
    found = [*trial.options(), *trial.other_hardware()]
    return "; or ".join(found) or "no option makes it fit and no known card does: serve a smaller model"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """One plan that does not fit, and changes to it."""

    plan: Planner
    hardware: HardwareReport
    workload: Workload

    def options(self) -> Iterator[str]:
        """Up to three, each enough: first those that serve every request, alone or together, then others."""
        keeping = tuple(filter(None, _keeping(self.hardware, self.workload)))
        cutting = tuple(filter(None, _cutting(self.workload)))
        found = self._single(keeping) or self._together(keeping)
        found += self._single(cutting)
        yield from (found or self._together((*keeping, *cutting)))[:_MOST_NAMED]

    def _single(self, ladders: tuple[Ladder, ...]) -> list[str]:
        return [str(change) for ladder in ladders if (change := self._mildest(ladder, ()))]

    def other_hardware(self) -> Iterator[str]:
        """What is held on this GPU, or more of the host's memory, or the smallest known card."""
        if self.hardware.platform == "cpu":
            yield from self._more_host_memory()
            return
        gpu = self.hardware.visible_gpus[0]
        held = (gpu.total_bytes.value or 0) - (gpu.free_bytes.value or gpu.total_bytes.value or 0)
        emptied = tuple(replace(one, free_bytes=one.total_bytes) for one in self.hardware.gpus)
        shared = is_unified_memory(gpu.compute_capability.value)
        if held > 0 and not shared and self._fits(hardware=replace(self.hardware, gpus=emptied)):
            yield f"end what else holds {held / GIB:.1f} GiB of the GPU"
        anywhere = replace(self.workload, gpu_index=None)
        larger = {
            card.memory_bytes: name
            for name, card in known_cards().items()
            if card.memory_bytes > (gpu.total_bytes.value or 0)
            and self._fits(hardware=card_report(name), workload=anywhere)
        }
        if larger:
            yield f"a larger card, such as {larger[min(larger)]}"

    def _more_host_memory(self) -> Iterator[str]:
        host = self.hardware.host
        for more in (1, 2, 4, 8, 16, 32, 64):
            grown = {
                name: Reading(value=reading.value + more * GIB, source=reading.source)
                for name in ("ram_available_bytes", "cgroup_limit_bytes")
                if (reading := getattr(host, name)).value is not None
            }
            if self._fits(hardware=replace(self.hardware, host=replace(host, **grown))):
                yield f"a host with {more} GiB more of free memory"
                return

    def _together(self, ladders: tuple[Ladder, ...]) -> list[str]:
        """As few and as mild as are enough together, cheap ones first; none where all are not enough."""
        taken: list[Ladder] = []
        for ladder in ladders:
            # What is not to be had here, as fp8 on some cards, must not spoil the rest.
            if self._outcome([*(one[-1] for one in taken), ladder[-1]]) is not None:
                taken.append(ladder)
            if self._outcome([one[-1] for one in taken]):
                break
        else:
            return []
        for ladder in tuple(taken):
            others = [one for one in taken if one is not ladder]
            if self._outcome([one[-1] for one in others]):
                taken = others
        changes: list[Change] = []
        for number, ladder in enumerate(taken):
            rest = tuple(one[-1] for one in taken[number + 1 :])
            mildest = self._mildest(ladder, (*changes, *rest))
            changes.append(mildest or ladder[-1])
        return [" with ".join(map(str, changes))]

    def _mildest(self, ladder: Ladder, others: tuple[Change, ...]) -> Change | None:
        return next((one for one in ladder if self._outcome([*others, one])), None)

    def _outcome(self, changes: list[Change]) -> bool | None:
        """Whether it fits with ``changes``; None where they are not to be had."""
        settings = {name: value for change in changes for name, value in change.settings.items()}
        return self._fits(workload=replace(self.workload, **settings))

    def _fits(
        self, *, hardware: HardwareReport | None = None, workload: Workload | None = None
    ) -> bool | None:
        try:
            self.plan(hardware or self.hardware, workload or self.workload)
        except CapacityError:
            return False
        except Error:
            return None
        return True


def _keeping(hardware: HardwareReport, workload: Workload) -> Iterator[Ladder]:
    """Options with which every request is still served, those that cost least first."""
    yield _forced(workload)
    yield tuple(_larger_share(workload))
    yield tuple(_smaller_steps(workload))
    yield tuple(_fewer_sequences(workload))
    yield _half_kv(workload)
    yield tuple(_more_gpus(hardware, workload))


def _cutting(workload: Workload) -> Iterator[Ladder]:
    """Options that refuse or cut some requests."""
    yield tuple(_shorter(workload))
    yield tuple(_fewer_images(workload))
    yield tuple(_shorter_thoughts(workload))
    yield tuple(_shorter_prompts(workload))


def _forced(workload: Workload) -> Ladder:
    if workload.kv_cache_memory_bytes is None:
        return ()
    cost = "then it takes what is left"
    settings = {"kv_cache_memory_bytes": None}
    return (Change(option="leave out --kv-cache-memory-bytes", cost=cost, settings=settings),)


def _shorter(workload: Workload) -> Iterator[Change]:
    for length in _halves(workload.max_model_len or 0, least=512):
        yield Change(
            option=f"--max-model-len {length}",
            cost="longer requests are refused",
            settings={"max_model_len": length},
        )


def _larger_share(workload: Workload) -> Iterator[Change]:
    for share in _SHARES:
        if share > workload.share:
            yield Change(
                option=f"--gpu-memory-utilization {share}",
                cost="nothing else may use the GPU",
                settings={"gpu_memory_utilization": share},
            )


def _smaller_steps(workload: Workload) -> Iterator[Change]:
    for tokens in _STEPS:
        # The plan's own choice is small enough already.
        if tokens < (workload.max_num_batched_tokens or 0):
            yield Change(
                option=f"--max-num-batched-tokens {tokens}",
                cost="fewer decisions a step",
                settings={"max_num_batched_tokens": tokens},
            )


def _fewer_sequences(workload: Workload) -> Iterator[Change]:
    for sequences in _halves(workload.sequences, least=1):
        yield Change(
            option=f"--max-num-seqs {sequences}",
            cost="more requests wait",
            settings={"max_num_seqs": sequences},
        )


def _half_kv(workload: Workload) -> Ladder:
    if workload.kv_cache_dtype == "fp8":
        return ()
    cost = "answers change a little"
    return (Change(option="--kv-cache-dtype fp8", cost=cost, settings={"kv_cache_dtype": "fp8"}),)


def _fewer_images(workload: Workload) -> Iterator[Change]:
    for count in _halves(workload.max_images if workload.images else 0, least=0):
        yield Change(
            option=f"--max-images {count}",
            cost="fewer images a request" if count else "text only",
            settings={"max_images": count, "images": count > 0},
        )


def _shorter_thoughts(workload: Workload) -> Iterator[Change]:
    for tokens in _halves(workload.longest_thought_tokens, least=_FEWEST_THOUGHT_TOKENS):
        yield Change(
            option=f"--think-tokens {tokens}",
            cost="longer thoughts may be cut",
            settings={"think_tokens": tokens},
        )


def _shorter_prompts(workload: Workload) -> Iterator[Change]:
    median = workload.median_prompt_tokens
    for tokens in _halves(workload.longest_prompt_tokens, least=median):
        yield Change(
            option=f"--prompt-tokens {median},{tokens}",
            cost="longer prompts are refused",
            settings={"prompt_tokens": tokens},
        )


def _more_gpus(hardware: HardwareReport, workload: Workload) -> Iterator[Change]:
    for count in (2, 4, 8):
        if workload.tensor_parallel_size < count <= len(hardware.visible_gpus):
            yield Change(
                option=f"--tensor-parallel-size {count}",
                cost="never measured",
                settings={"tensor_parallel_size": count},
            )


def _halves(value: int, *, least: int) -> Iterator[int]:
    """A half, a quarter and so on of ``value``, not below ``least``."""
    half = value // 2
    while value and half >= least:
        yield half
        if not half:
            return
        half //= 2
