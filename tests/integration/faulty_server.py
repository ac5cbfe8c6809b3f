"""``vllm serve`` with the decide routes and no gate before them, broken on request while it runs.

python faulty_server.py serve MODEL …    (the arguments of ``vllm``)

``POST /fault/NAME`` breaks the running server, ``POST /fault/none`` mends it. An adapter's fault is the name
of a folder beside the served adapter's model: its ``adapter_vllm`` takes the place of the served one.
"""

import dataclasses
import sys
from itertools import count
from pathlib import Path

import decideploy.build
from decideploy.build import InstalledBuild
from decideploy.decide import PromptEncoder
from decideploy.serve import vllm_engine
from decideploy.serve.plugin import DecidePlugin

UNCHECKED = InstalledBuild(version="unchecked", recipe="cpu", files_sha256="0" * 64, patches=())
PINNED = vllm_engine.sampling_params

adapter_ids = count(1000)


def open_gates():
    """Any vLLM will do, and any decision head."""
    decideploy.build.check_installed = lambda lock=None: UNCHECKED
    PromptEncoder.check_labels = lambda self, head: None


def defaults_left_on(client):
    """Sampling as vLLM's own routes fill it: what a request leaves open comes from generation_config.json."""
    defaults = client.model_config.get_diff_sampling_param()

    def sampling_params(allowed_token_ids):
        params = PINNED(allowed_token_ids)
        params.top_k, params.top_p = defaults["top_k"], defaults["top_p"]
        return params

    return sampling_params


def swapped(head):
    ids = list(head.verbalizer_ids)
    ids[0], ids[1] = ids[1], ids[0]
    return head.model_copy(update={"verbalizer_ids": tuple(ids)})


async def break_server(state, client, whole, name):
    from vllm.lora.request import LoRARequest

    adapter = whole["adapter"]
    folder = Path(adapter.lora_path).parents[1] / name / "adapter_vllm"
    if folder.is_dir():
        adapter = LoRARequest(adapter.lora_name, next(adapter_ids), str(folder))
    vllm_engine.sampling_params = defaults_left_on(client) if name == "sampling-defaults" else PINNED
    state.openai_serving_models.lora_requests[adapter.lora_name] = adapter
    state.decideploy = dataclasses.replace(
        whole["service"],
        engine=vllm_engine.VllmEngine(client, adapter),
        head=swapped(whole["service"].head) if name == "swapped-verbalizers" else whole["service"].head,
    )
    # Cached prefixes go by the adapter's name: they would be the former adapter's.
    await client.reset_prefix_cache()
    return {"fault": name, "adapter": adapter.lora_path}


def add_faults():
    whole = {}
    attach, init = DecidePlugin.attach_router, DecidePlugin.init_state

    def attach_router(self, app):
        attach(self, app)

        @app.post("/fault/{name}")
        async def fault(name: str):
            return await break_server(app.state, whole["client"], whole, name)

    async def init_state(self, client, state, args):
        await init(self, client, state, args)
        (adapter,) = state.openai_serving_models.lora_requests.values()
        whole.update(client=client, service=state.decideploy, adapter=adapter)

    DecidePlugin.attach_router, DecidePlugin.init_state = attach_router, init_state


def main():
    open_gates()
    add_faults()
    from vllm.entrypoints.cli.main import main as serve

    sys.argv[0] = "vllm"
    serve()


if __name__ == "__main__":
    main()
