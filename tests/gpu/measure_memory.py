"""What the engine measures before it sizes its KV cache, for arguments of `vllm serve`: one line of JSON.

The engine's core alone, in this process, which ends there: no graphs for real, no server.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor
from vllm.v1.worker.gpu_worker import Worker

measure = Worker.determine_available_memory


def tell(worker: Worker) -> None:
    """Write what ``worker`` measured, in bytes, and end."""
    available = measure(worker)
    found = {
        "total_bytes": worker.init_snapshot.total_memory,
        "requested_bytes": worker.requested_memory,
        "weights_bytes": int(worker.model_runner.model_memory_usage),
        "consumed_bytes": worker.total_consumed,
        "peak_and_graphs_bytes": worker.peak_activation_memory,
        "graphs_estimate_bytes": worker.cudagraph_memory_estimate,
        "kv_cache_bytes": available,
        "kernel": kernel(worker.model_runner.get_model()),
        "tensors_bytes": tensors(worker.model_runner.get_model()),
    }
    Path(sys.argv[1]).write_text(json.dumps(found))
    os._exit(0)


def kernel(model) -> str | None:
    methods = {getattr(module, "quant_method", None) for module in model.modules()}
    return next((method.nvfp4_backend.value for method in methods if hasattr(method, "nvfp4_backend")), None)


def tensors(model) -> dict[str, int]:
    """Bytes of the tensors that modules hold, by module and name; each storage once."""
    sizes, seen = Counter(), set()
    for module in model.modules():
        for name, value in (vars(module) | module._parameters | module._buffers).items():
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if not hasattr(tensor, "untyped_storage") or tensor.device.type != "cuda":
                    continue
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in seen:
                    seen.add(storage.data_ptr())
                    sizes[f"{type(module).__name__}.{name}"] += storage.nbytes()
    return dict(sizes.most_common(40)) | {"all": sum(sizes.values())}


if __name__ == "__main__":
    Worker.determine_available_memory = tell
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[2:])
    arguments.model = arguments.model_tag
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    EngineCore(config, Executor.get_class(config), log_stats=False)
