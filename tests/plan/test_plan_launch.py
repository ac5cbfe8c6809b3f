import json
import re
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
from plan_facts import GIB, adapter, cpu_report, facts_26b, facts_small, gpu_report, known
from rich.console import Console

from decideploy.errors import CapacityError, ConfigError, Diagnostic, ProbeError
from decideploy.hardware import KernelTrial, SmokeTest, card_report
from decideploy.plan import Workload, plan, print_plan
from decideploy.plan.sizing import capture_sizes


def values(argv: tuple[str, ...], flag: str) -> list[str]:
    rest = argv[argv.index(flag) + 1 :]
    return list(takewhile(lambda word: not word.startswith("--"), rest))


def test_argv_serves_both_systems() -> None:
    launch = plan(facts_26b(), gpu_report(80 * GIB), workload=Workload(port=8111))
    assert launch.argv[:3] == ("vllm", "serve", "/models/m")
    assert values(launch.argv, "--lora-modules") == ["system1=/models/m/adapter_vllm"]
    assert values(launch.argv, "--lora-target-modules") == ["q_proj", "lm_head"]
    assert values(launch.argv, "--max-loras") == ["1"]
    assert values(launch.argv, "--logprobs-mode") == ["processed_logprobs"]
    assert values(launch.argv, "--served-model-name") == ["decide-26b"]
    assert values(launch.argv, "--port") == ["8111"]
    assert int(values(launch.argv, "--max-logprobs")[0]) >= 24
    assert int(values(launch.argv, "--shutdown-timeout")[0]) > 0
    assert "--enable-lora" in launch.argv
    assert "--fail-on-environ-validation" in launch.argv
    assert values(launch.argv, "--middleware") == ["decideploy.gateway.Gateway"]
    assert values(launch.argv, "--allowed-origins") == ["[]"]
    assert "--disable-uvicorn-access-log" in launch.argv
    assert launch.env["VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"] == "1"
    assert "--generation-config" not in launch.argv


def test_the_engine_numbers_gpus_as_the_probe_does() -> None:
    """Else the second of two different cards is another one for CUDA, which begins with the fastest."""
    assert plan(facts_26b(), gpu_report(80 * GIB)).env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    asked = plan(facts_26b(), gpu_report(80 * GIB), workload=Workload(gpu_index=0)).env
    assert asked["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    assert asked["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_environment_is_offline_and_names_the_plugin() -> None:
    env = plan(facts_small(), cpu_report(), workload=Workload(cache_root=Path("/cache"))).env
    assert env["VLLM_PLUGINS"] == "decideploy"
    assert env["HF_HUB_OFFLINE"] == env["VLLM_NO_USAGE_STATS"] == env["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert env["VLLM_CACHE_ROOT"] == "/cache/vllm"
    assert all(isinstance(value, str) for value in env.values())


@pytest.mark.parametrize(("rank", "told"), [(1, "8"), (8, "8"), (9, "16"), (17, "32"), (32, "32")])
def test_rank_is_the_smallest_that_fits(rank: int, told: str) -> None:
    launch = plan(facts_small(adapter=adapter(rank=rank)), cpu_report())
    assert values(launch.argv, "--max-lora-rank") == [told]


def test_rank_above_32_and_missing_adapter_are_refused() -> None:
    with pytest.raises(ConfigError, match="rank 33"):
        plan(facts_small(adapter=adapter(rank=33)), cpu_report())
    with pytest.raises(ConfigError, match="no System 1 adapter"):
        plan(facts_small(adapter=None), cpu_report())


def test_cpu_serves_text_only_with_whole_gib() -> None:
    launch = plan(facts_small(), cpu_report())
    assert launch.platform == "cpu"
    assert "--language-model-only" in launch.argv
    assert "--gpu-memory-utilization" not in launch.argv
    assert launch.env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    # Kernels that compile themselves at first use would need a compiler on the host.
    assert launch.env["TORCH_COMPILE_DISABLE"] == "1"
    assert launch.max_model_len == 4096


def test_images_are_all_that_is_served_beside_text() -> None:
    launch = plan(facts_26b(), gpu_report(80 * GIB), workload=Workload(max_images=3))
    (limits,) = values(launch.argv, "--limit-mm-per-prompt")
    assert json.loads(limits) == {"image": 3, "video": 0, "audio": 0}
    assert float(values(launch.argv, "--mm-processor-cache-gb")[0]) > 0
    assert "--language-model-only" not in launch.argv
    text = plan(facts_26b(), gpu_report(80 * GIB), workload=Workload(images=False))
    assert "--language-model-only" in text.argv
    assert "--limit-mm-per-prompt" not in text.argv
    assert text.memory.kv_cache_bytes > launch.memory.kv_cache_bytes


@pytest.mark.parametrize(("hosts", "told"), [((), ["none.invalid"]), (("a.example",), ["a.example"])])
def test_the_engines_own_routes_fetch_from_the_allowed_hosts_only(
    hosts: tuple[str, ...], told: list[str]
) -> None:
    for facts, hardware in ((facts_26b(), gpu_report(80 * GIB)), (facts_small(), cpu_report())):
        launch = plan(facts, hardware, workload=Workload(image_hosts=hosts))
        assert values(launch.argv, "--allowed-media-domains") == told
        assert launch.env["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"


def test_questions_over_one_state_find_it_in_the_cache() -> None:
    launch = plan(facts_small(), cpu_report())
    (blocks,) = map(int, values(launch.argv, "--block-size"))
    (interval,) = map(int, values(launch.argv, "--prefix-cache-retention-interval"))
    # Blocks of the two sorts of layers are joined in pairs; vLLM's CPU kernels take multiples of 32.
    assert (blocks % 32, interval % (2 * blocks)) == (0, 0)


def test_idle_connections_outlast_those_of_load_balancers() -> None:
    assert int(plan(facts_small(), cpu_report()).env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]) > 60


def test_cgroup_limit_counts_on_cpu() -> None:
    limited = cpu_report(64 * GIB, cgroup_limit_bytes=known(6 * GIB), cgroup_used_bytes=known(GIB))
    assert plan(facts_small(), limited).memory.available_bytes == 5 * GIB * 9 // 10


def test_nvfp4_on_cpu_is_refused() -> None:
    with pytest.raises(ProbeError, match="no CPU kernel"):
        plan(facts_26b(), cpu_report())


def test_unknown_values_are_refused_not_guessed() -> None:
    with pytest.raises(ProbeError, match="compute capability"):
        plan(facts_26b(), gpu_report(80 * GIB, capability=None))
    with pytest.raises(ProbeError, match="memory of GPU 0"):
        plan(facts_26b(), gpu_report(None))
    with pytest.raises(ProbeError, match="available memory"):
        plan(facts_small(), cpu_report(None))


def test_free_memory_lowers_utilization() -> None:
    full = plan(facts_26b(), gpu_report(80 * GIB))
    shared = plan(facts_26b(), gpu_report(80 * GIB, free_bytes=40 * GIB))
    assert values(full.argv, "--gpu-memory-utilization") == ["0.920"]
    assert float(values(shared.argv, "--gpu-memory-utilization")[0]) < 0.5


def test_unified_memory_takes_what_the_host_has() -> None:
    report = gpu_report(
        None,
        capability="12.1",
        available_bytes=60 * GIB,
        ram_total_bytes=known(120 * GIB),
    )
    launch = plan(facts_26b(), report)
    assert launch.memory.available_bytes <= 60 * GIB
    assert "unified memory" in launch.reasons["gpu_memory_utilization"]


def test_a_kernel_that_the_probe_found_wrong_is_not_planned() -> None:
    trial = KernelTrial(
        backend="humming",
        verdict="wrong",
        relative_error=0.5,
        bound=0.02,
        seconds=9,
        why="gives wrong numbers",
    )
    hardware = replace(gpu_report(80 * GIB), smoke_test=known(SmokeTest(gpu_index=0, trials=(trial,))))
    launch = plan(facts_26b(), hardware)
    assert launch.moe_backend == "marlin"
    assert "humming gives wrong numbers" in launch.reasons["moe_backend"]
    assert plan(facts_26b(), hardware, workload=Workload(moe_backend="marlin")).moe_backend == "marlin"
    with pytest.raises(ConfigError, match="humming gives wrong numbers"):
        plan(facts_26b(), hardware, workload=Workload(moe_backend="humming"))
    unpatched = replace(trial, backend="marlin")
    with pytest.raises(ProbeError, match="marlin gives wrong numbers"):
        plan(
            facts_26b(),
            replace(hardware, smoke_test=known(SmokeTest(gpu_index=0, trials=(unpatched,)))),
            workload=Workload(patched=False),
        )


@pytest.mark.parametrize(
    ("capability", "backend"),
    [("7.5", "marlin"), ("8.9", "marlin"), ("9.0", "humming"), ("10.0", "flashinfer_trtllm")],
)
def test_moe_backend_follows_compute_capability(capability: str, backend: str) -> None:
    launch = plan(facts_26b(), gpu_report(80 * GIB, capability=capability))
    assert launch.moe_backend == backend
    assert values(launch.argv, "--moe-backend") == [backend]
    assert ("--dtype" in launch.argv) == (capability == "7.5")


def test_attention_follows_the_installed_packages() -> None:
    without = known({"humming-kernels": "0.1.12", "nvidia-cutlass-dsl": None})
    launch = plan(facts_26b(), gpu_report(80 * GIB, packages=without))
    assert values(launch.argv, "--attention-backend") == ["TRITON_ATTN"]
    assert "nvidia-cutlass-dsl" in launch.reasons["attention_backend"]
    present = known({"humming-kernels": "0.1.12", "nvidia-cutlass-dsl": "4.7.1"})
    assert "--attention-backend" not in plan(facts_26b(), gpu_report(80 * GIB, packages=present)).argv


def test_bf16_model_leaves_the_expert_kernel_to_the_engine() -> None:
    launch = plan(facts_small(), gpu_report(24 * GIB))
    assert launch.moe_backend is None
    assert "--moe-backend" not in launch.argv


def test_tensor_parallel_takes_a_kernel_that_pads_the_columns() -> None:
    two = Workload(tensor_parallel_size=2)
    launch = plan(facts_26b(), gpu_report(100 * GIB, capability="12.0"), workload=two)
    assert launch.moe_backend == "marlin"
    assert "704 over 2 is 352" in launch.reasons["moe_backend"]
    assert values(launch.argv, "--tensor-parallel-size") == ["2"]
    assert plan(facts_26b(), gpu_report(80 * GIB, capability="10.0"), workload=two).moe_backend == (
        "flashinfer_trtllm"
    )


def test_a_kernel_that_is_known_bad_is_refused_with_one_that_works() -> None:
    asked = Workload(tensor_parallel_size=2, moe_backend="cutlass")
    with pytest.raises(ConfigError, match="42516") as caught:
        plan(facts_26b(), gpu_report(100 * GIB, capability="12.0"), workload=asked)
    assert "--moe-backend marlin" in caught.value.next_step
    told = plan(facts_26b(), gpu_report(100 * GIB, capability="12.0")).notes
    assert told[0].startswith("flashinfer_cutlass on 12.0")


def test_asked_length_is_kept_or_refused() -> None:
    launch = plan(facts_small(), cpu_report(), workload=Workload(max_model_len=1000))
    assert launch.max_model_len == 1000
    with pytest.raises(ConfigError, match="exceeds the model's 4096"):
        plan(facts_small(), cpu_report(), workload=Workload(max_model_len=5000))


def test_hidden_gpu_index_is_refused() -> None:
    with pytest.raises(ConfigError, match="GPU 3"):
        plan(facts_26b(), gpu_report(80 * GIB), workload=Workload(gpu_index=3))


def test_capture_sizes_cover_decode_and_prompts() -> None:
    sizes = capture_sizes(64, 1024)
    assert sizes == tuple(sorted(set(sizes)))
    assert {1, 8, 64, 512, 1024} <= set(sizes)
    assert max(sizes) == 1024
    assert max(b - a for a, b in pairwise(sizes)) <= 64
    assert capture_sizes(64, 50) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 50)


def test_plan_is_pure_and_json_ready() -> None:
    one, two = (plan(facts_26b(), gpu_report(80 * GIB)) for _ in range(2))
    assert one == two
    document = json.loads(json.dumps(one.to_dict()))
    assert document["schema_version"] == 1
    assert document["memory"]["used_bytes"] > 17 * GIB
    assert set(document["inputs_sha256"]) == {"hardware", "workload"}


def test_table_shows_every_reason_and_the_command() -> None:
    console = Console(width=250)
    launch = plan(facts_26b(), gpu_report(80 * GIB))
    with console.capture() as capture:
        print_plan(launch, console)
    text = capture.get()
    assert all(name in text for name in launch.reasons)
    assert "vllm serve /models/m" in text
    assert "VLLM_PLUGINS=decideploy" in text


def test_fp8_keys_and_values_halve_the_block_where_attention_reads_them() -> None:
    asked = Workload(kv_cache_dtype="fp8")
    half = plan(facts_26b(), gpu_report(80 * GIB), workload=asked)
    whole = plan(facts_26b(), gpu_report(80 * GIB))
    assert half.memory.kv_block_bytes * 2 == whole.memory.kv_block_bytes
    assert values(half.argv, "--kv-cache-dtype") == ["fp8"]
    assert values(half.argv, "--attention-backend") == ["TRITON_ATTN"]
    own = plan(facts_26b(), gpu_report(80 * GIB, capability="10.0"), workload=asked)
    assert "--attention-backend" not in own.argv
    with pytest.raises(ConfigError, match=r"compute capability 8\.6"):
        plan(facts_26b(), gpu_report(80 * GIB, capability="8.6"), workload=asked)


def test_an_asked_kv_cache_takes_the_place_of_the_share() -> None:
    launch = plan(facts_26b(), gpu_report(80 * GIB), workload=Workload(kv_cache_memory_bytes=8 * GIB))
    assert values(launch.argv, "--kv-cache-memory-bytes") == [str(8 * GIB)]
    assert "--gpu-memory-utilization" not in launch.argv
    assert launch.memory.kv_cache_bytes == 8 * GIB
    with pytest.raises(CapacityError):
        plan(facts_26b(), gpu_report(80 * GIB), workload=Workload(kv_cache_memory_bytes=80 * GIB))


def test_what_only_a_gpu_does_is_refused_on_cpu_all_at_once() -> None:
    asked = Workload(
        kv_cache_dtype="fp8", gpu_memory_utilization=0.5, moe_backend="marlin", tensor_parallel_size=2
    )
    with pytest.raises(ConfigError) as caught:
        plan(facts_small(), cpu_report(), workload=asked)
    told = "--kv-cache-dtype fp8, --gpu-memory-utilization, --moe-backend, --tensor-parallel-size"
    assert told in caught.value.what


def test_clients_that_think_are_told_on_cpu_too() -> None:
    launch = plan(facts_small(), cpu_report(), workload=Workload(thinking_share=0.5, think_tokens=512))
    assert any(note.startswith("32 of 64 clients think at once") for note in launch.notes)
    assert "either goal" in launch.reasons["max_num_batched_tokens"]


def test_workload_decides_sequences_steps_and_notes() -> None:
    launch = plan(
        facts_26b(),
        gpu_report(140 * GIB),
        workload=Workload(clients=20, goal="throughput", thinking_share=0.25, median_prompt_tokens=512),
    )
    assert launch.max_num_seqs == 24
    assert launch.max_num_batched_tokens == 8192
    assert "a step holds 16 decisions of 512 tokens" in launch.reasons["max_num_batched_tokens"]
    assert any(note.startswith("5 of 20 clients think") for note in launch.notes)


def test_a_draft_is_counted_and_named() -> None:
    asked = Workload(draft_model=Path("/models/draft"), draft_bytes=GIB, draft_tokens=3)
    launch = plan(facts_26b(), gpu_report(80 * GIB), workload=asked)
    without = plan(facts_26b(), gpu_report(80 * GIB))
    assert without.memory.kv_cache_bytes - launch.memory.kv_cache_bytes == GIB
    (config,) = values(launch.argv, "--speculative-config")
    assert json.loads(config) == {"model": "/models/draft", "num_speculative_tokens": 3}


def test_two_gpus_share_the_layers_and_the_heads() -> None:
    one = plan(facts_26b(), gpu_report(30 * GIB)).memory
    two = plan(
        facts_26b(), card_report("rtx5090"), workload=Workload(tensor_parallel_size=2, moe_backend="marlin")
    )
    experts = {term.name: term.size_bytes for term in two.memory.terms}["weights: experts"]
    assert experts * 2 == pytest.approx(facts_26b().weight_bytes["experts"], abs=2)
    assert two.memory.kv_block_bytes * 2 == one.kv_block_bytes
    assert "never measured" in two.notes[-1]


def test_more_gpus_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 GPUs are asked for, 1 can be used"):
        plan(
            facts_26b(), gpu_report(80 * GIB, free_bytes=80 * GIB), workload=Workload(tensor_parallel_size=2)
        )


@pytest.mark.parametrize("free", [None, 40 * GIB])
def test_an_asked_share_is_kept_or_refused(free: int | None) -> None:
    hardware = gpu_report(80 * GIB, free_bytes=free)
    kept = plan(facts_26b(), hardware, workload=Workload(gpu_memory_utilization=0.45))
    assert values(kept.argv, "--gpu-memory-utilization") == ["0.450"]
    with pytest.raises(ConfigError, match=r"1\.000 of 80\.0 GiB are asked for") as caught:
        plan(facts_26b(), hardware, workload=Workload(gpu_memory_utilization=1.0))
    (most,) = re.findall(r"ask for (\d\.\d+) or less", caught.value.next_step)
    plan(facts_26b(), hardware, workload=Workload(gpu_memory_utilization=float(most)))


@pytest.mark.parametrize(
    ("gpus", "fits"), [(2, True), (3, False), (4, True), (5, False), (8, True), (32, False)]
)
def test_heads_must_be_split_evenly(gpus: int, fits: bool) -> None:
    asked = Workload(tensor_parallel_size=gpus, moe_backend="marlin")
    if fits:
        assert plan(facts_26b(), card_report("h100"), workload=asked).moe_backend == "marlin"
        return
    with pytest.raises(ConfigError, match=f"cannot be split over {gpus} GPUs"):
        plan(facts_26b(), card_report("h100"), workload=asked)


def test_why_no_gpu_was_found_is_told_with_the_model_that_needs_one() -> None:
    lost = Diagnostic(code="gpu-lost", what="a GPU has fallen off the bus", next_step="reboot the host")
    with pytest.raises(ProbeError, match="no CPU kernel; a GPU has fallen off the bus"):
        plan(facts_26b(), replace(cpu_report(), conditions=(lost,)))
