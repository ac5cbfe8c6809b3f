"""Several replicas of one model on one machine, with HAProxy as their front on the public port."""

from decideploy.serve.replicas.control import RestartReport, RestartRequest, ask_for_restart
from decideploy.serve.replicas.haproxy import Front, front_config
from decideploy.serve.replicas.share import Share, shares
from decideploy.serve.replicas.stages import ReplicasResult, serve_replicas

__all__ = [
    "Front",
    "ReplicasResult",
    "RestartReport",
    "RestartRequest",
    "Share",
    "ask_for_restart",
    "front_config",
    "serve_replicas",
    "shares",
]
