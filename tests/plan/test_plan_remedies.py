"""Remedies: what is named makes it fit, and is an option of both verbs."""

import argparse
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_facts import GIB, cpu_report, facts_26b, facts_small, gpu_report, known

from decideploy.cli.options import serve_options, workload_options
from decideploy.cli.server import _workload
from decideploy.errors import CapacityError
from decideploy.hardware import HardwareReport, card_report
from decideploy.plan import Workload, plan


def refusal(hardware: HardwareReport, **asked: object) -> CapacityError:
    with pytest.raises(CapacityError) as caught:
        plan(facts_26b(), hardware, workload=Workload(**asked))
    return caught.value


def as_options(remedy: str, verb: object = workload_options) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    verb(parser)
    bare = re.sub(r"\([^)]*\)", "", remedy).replace(" with ", " ")
    return parser.parse_args(bare.split())


def remedies_of(error: CapacityError) -> list[str]:
    return [part for part in error.next_step.split("; or ") if part.startswith("--")]


@given(
    size=st.integers(19 * GIB, 27 * GIB),
    capability=st.sampled_from(["8.6", "8.9", "9.0"]),
    images=st.integers(0, 4),
    clients=st.sampled_from([8, 64, 256]),
    longest=st.none() | st.sampled_from([512, 8192, 65_536]),
    thinking=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=25, deadline=None)
def test_every_remedy_is_read_by_the_command_line_and_makes_it_fit(  # noqa: PLR0917
    size: int, capability: str, images: int, clients: int, longest: int | None, thinking: float
) -> None:
    hardware = gpu_report(size, capability=capability)
    asked = Workload(
        max_images=images,
        images=images > 0,
        clients=clients,
        prompt_tokens=longest,
        thinking_share=thinking,
    )
    try:
        plan(facts_26b(), hardware, workload=asked)
    except CapacityError as error:
        for remedy in remedies_of(error):
            options = as_options(remedy)
            given = {word[2:].replace("-", "_") for word in remedy.split() if word.startswith("--")}
            wanted = _workload(options)
            changes = {name: getattr(wanted, name) for name in given if name != "max_images"}
            if "max_images" in given:
                changes |= {"max_images": wanted.max_images, "images": wanted.images}
            plan(facts_26b(), hardware, workload=replace(asked, **changes))
            as_options(remedy, serve_options)


LONG = {"prompt_tokens": 16_384, "images": False}
TENTH = GIB // 10


def test_eight_bit_keys_are_named_where_they_are_enough_and_read() -> None:
    ada, ampere = (refusal(gpu_report(218 * TENTH, capability=c), **LONG).next_step for c in ("8.9", "8.6"))
    assert "--kv-cache-dtype fp8" in ada
    assert "fp8" not in ampere


def test_the_cheapest_is_named_first() -> None:
    told = refusal(gpu_report(220 * TENTH, capability="8.9"), **LONG).next_step
    names = re.findall(r"--[a-z-]+", told)
    assert names == ["--gpu-memory-utilization", "--max-num-seqs", "--kv-cache-dtype"]


def test_what_serves_every_request_only_together_comes_before_what_refuses_some() -> None:
    error = refusal(gpu_report(210 * TENTH, capability="8.9"), **LONG)
    first, second, *_ = error.next_step.split("; or ")
    assert " with " in first
    assert "--prompt-tokens" not in first
    assert second.startswith("--prompt-tokens")


def test_where_nothing_else_is_enough_several_that_refuse_some_are_named_together() -> None:
    told = refusal(gpu_report(21 * GIB, capability="8.6"), prompt_tokens=16_384).next_step
    assert "--max-images 0" in told.partition("; or ")[0]
    assert " with " in told


def test_prompts_are_shortened_to_the_longest_that_fit() -> None:
    error = refusal(gpu_report(24 * GIB, capability="8.6"), prompt_tokens=200_000)
    (told,) = re.findall(r"--prompt-tokens 256,(\d+)", error.next_step)
    plan(facts_26b(), gpu_report(24 * GIB, capability="8.6"), workload=Workload(prompt_tokens=int(told)))
    with pytest.raises(CapacityError):
        plan(
            facts_26b(),
            gpu_report(24 * GIB, capability="8.6"),
            workload=Workload(prompt_tokens=2 * int(told)),
        )


def test_a_card_is_named_that_holds_the_same_workload() -> None:
    for asked in ({}, {"prompt_tokens": 131_072}, {"max_num_seqs": 4096}):
        error = refusal(card_report("t4"), **asked)
        (name,) = re.findall(r"a larger card, such as ([a-z0-9-]+)", error.next_step)
        plan(facts_26b(), card_report(name), workload=Workload(**asked))


def test_memory_that_others_hold_is_named() -> None:
    told = refusal(gpu_report(48 * GIB, capability="8.9", free_bytes=10 * GIB)).next_step
    assert "end what else holds 38.0 GiB of the GPU" in told


def test_a_second_gpu_is_named_where_there_is_one() -> None:
    one = gpu_report(20 * GIB, capability="8.9", free_bytes=20 * GIB)
    two = replace(one, gpus=(*one.gpus, replace(one.gpus[0], index=1, uuid=known("GPU-1"))))
    assert "--tensor-parallel-size 2" in refusal(two, images=False).next_step
    assert "--tensor-parallel-size" not in refusal(one, images=False).next_step


def test_what_nothing_helps_says_so() -> None:
    huge = facts_26b(weight_bytes={**facts_26b().weight_bytes, "experts": 10_000 * GIB})
    with pytest.raises(CapacityError) as caught:
        plan(huge, gpu_report(80 * GIB))
    assert caught.value.next_step == "no option makes it fit and no known card does: serve a smaller model"


def test_on_cpu_a_host_with_more_memory_is_named() -> None:
    with pytest.raises(CapacityError) as caught:
        plan(facts_small(), cpu_report(2 * GIB))
    (more,) = re.findall(r"a host with (\d+) GiB more of free memory", caught.value.next_step)
    plan(facts_small(), cpu_report((2 + int(more)) * GIB))


def test_an_asked_length_is_lowered_to_one_that_fits() -> None:
    error = refusal(gpu_report(24 * GIB, capability="8.9"), max_model_len=262_144)
    assert any(remedy.startswith("--max-model-len 65536") for remedy in remedies_of(error))


def test_too_many_sequences_are_lowered() -> None:
    error = refusal(gpu_report(24 * GIB, capability="8.9"), max_num_seqs=8192)
    assert remedies_of(error)[0].startswith("--max-num-seqs")
