import json
import os
import subprocess
import sys
from typing import Any

import pytest
from plan_facts import GIB, cpu_report, facts_26b, facts_small, gpu_report

from decideploy.plan import LaunchPlan, Workload, plan

PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
args = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])
validate_parsed_serve_args(args)
names = ["model_tag", "enable_lora", "max_lora_rank", "lora_target_modules", "logprobs_mode", "max_logprobs",
    "max_model_len", "shutdown_timeout", "fail_on_environ_validation", "served_model_name", "moe_backend",
    "cudagraph_capture_sizes", "language_model_only", "port", "limit_mm_per_prompt", "mm_processor_cache_gb",
    "allowed_media_domains", "middleware", "allowed_origins"]
told = {name: getattr(args, name) for name in names}
told["lora_modules"] = {module.name: module.path for module in args.lora_modules}
print("PARSED " + json.dumps(told))
"""


def parse(launch: LaunchPlan) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PARSE, *launch.argv[2:]],
        env={**os.environ, **launch.env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("PARSED "))
    return json.loads(line.removeprefix("PARSED "))


@pytest.mark.integration
def test_cpu_argv_is_what_vllm_reads() -> None:
    told = parse(plan(facts_small(), cpu_report(), workload=Workload(port=8123)))
    assert told["model_tag"] == "/models/m"
    assert told["lora_modules"] == {"system1": "/models/m/adapter_vllm"}
    assert told["lora_target_modules"] == ["q_proj", "lm_head"]
    assert told["logprobs_mode"] == "processed_logprobs"
    assert (told["max_lora_rank"], told["max_logprobs"], told["port"]) == (32, 24, 8123)
    assert told["shutdown_timeout"] == 30
    assert told["middleware"] == ["decideploy.gateway.Gateway"]
    assert told["allowed_origins"] == []
    assert told["enable_lora"] is told["fail_on_environ_validation"] is told["language_model_only"] is True


@pytest.mark.integration
def test_cuda_argv_is_what_vllm_reads() -> None:
    launch = plan(facts_26b(), gpu_report(80 * GIB))
    told = parse(launch)
    assert told["moe_backend"] == "humming"
    assert told["cudagraph_capture_sizes"] == list(launch.capture_sizes)
    assert told["max_model_len"] == launch.max_model_len
    assert told["served_model_name"] == ["decide-26b"]
    assert told["limit_mm_per_prompt"] == {"image": 4, "video": 0, "audio": 0}
    assert told["mm_processor_cache_gb"] == 1
    assert told["allowed_media_domains"] == ["none.invalid"]
    assert told["language_model_only"] is False
