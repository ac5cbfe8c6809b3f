"""What deploy/kubernetes and deploy/prometheus say agrees with the program that they run."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_objects import ALERTS, KUBERNETES, ROOT, containers, shipped
from prometheus_client import CollectorRegistry

from decideploy import __version__
from decideploy.artifacts import sizes_of
from decideploy.cli.parser import make_parser
from decideploy.deploy.modal.config import ModalConfig
from decideploy.deploy.stopping import stop_timeout_s
from decideploy.deploy.units import STATE_FOLDER, Service
from decideploy.deploy.units import container as units
from decideploy.gateway import GatewayMetrics, ServerSettings, refusals
from decideploy.gateway.probes import LIVE_PATH, READY_PATH
from decideploy.hardware import card_report, known_cards
from decideploy.plan import Workload, plan

GIB = 1024**3
DEPLOYMENT = shipped("base/deployment.yaml")
POD = DEPLOYMENT["spec"]["template"]["spec"]
SERVE = POD["containers"][0]
FILES = sorted(path for path in KUBERNETES.glob("[bcow]*/**/*.yaml") if "chart" not in path.parts)


def serve_options(container: dict[str, Any]) -> Any:
    return make_parser().parse_args(container["args"])


def test_every_command_line_is_one_that_the_program_takes() -> None:
    parsed = []
    for path in FILES:
        document = yaml.safe_load(path.read_text("utf-8"))
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        for container in containers(pod):
            if "args" in container:
                parsed.append(make_parser().parse_args(container["args"]))
    assert len(parsed) == 5


def test_the_job_fetches_as_the_hub_s_own_program_does() -> None:
    fetch = shipped("weights/job.yaml")["spec"]["template"]["spec"]["initContainers"][1]
    program, verb, *arguments = fetch["command"]
    assert program == "hf"
    command = [sys.executable, "-m", "huggingface_hub.cli.hf", verb, "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    options = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    assert options == {"--revision", "--local-dir"}
    assert [option for option in options if f" {option} " not in told] == []
    assert "autotrust/GEV-26B-Decide-NVFP4" in (KUBERNETES / "weights/kustomization.yaml").read_text("utf-8")


def test_the_weights_fit_the_claim() -> None:
    facts = sizes_of("autotrust/GEV-26B-Decide-NVFP4")
    assert facts
    claim = shipped("weights/claim.yaml")["spec"]["resources"]["requests"]["storage"]
    assert int(claim.removesuffix("Gi")) * GIB > 1.2 * plan_bytes(facts)


def plan_bytes(facts: Any) -> int:
    launch = plan(facts, card_report("h100"), workload=Workload())
    terms = launch.memory.terms
    return sum(term.size_bytes for term in terms if term.name.startswith("weights"))


@pytest.mark.parametrize("name", ["base/deployment.yaml", "overlays/cpu-demo/demo.yaml"])
def test_a_stop_is_given_longer_than_it_may_take(name: str) -> None:
    drain_s = serve_options(shipped_pod(name)["containers"][0]).drain_timeout
    sleep, pause = SERVE["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep"
    assert POD["terminationGracePeriodSeconds"] >= int(pause) + stop_timeout_s(drain_s)
    assert drain_s == ServerSettings().drain_timeout_s


def test_a_start_is_given_as_long_as_it_may_take() -> None:
    service = Service(
        kind="systemd",
        recipe="cuda",
        arguments=(),
        host="",
        port=0,
        drain_s=0,
        startup_timeout_s=serve_options(SERVE).startup_timeout,
        restart="never",
        max_restarts=0,
    )
    probe = SERVE["startupProbe"]
    waits_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert service.start_timeout_s
    assert waits_s >= service.start_timeout_s
    assert DEPLOYMENT["spec"]["progressDeadlineSeconds"] > waits_s


def test_probes_ask_what_the_gateway_answers() -> None:
    asked = {name: SERVE[name]["httpGet"]["path"] for name in SERVE if name.endswith("Probe")}
    assert asked == {"startupProbe": LIVE_PATH, "readinessProbe": READY_PATH, "livenessProbe": LIVE_PATH}
    assert {SERVE[name]["httpGet"]["port"] for name in asked} == {"http"}


def test_ports_are_the_one_that_the_server_listens_on() -> None:
    options = serve_options(SERVE)
    assert options.host == "0.0.0.0"
    ports = {port["name"]: port["containerPort"] for port in SERVE["ports"]}
    assert ports == {"http": options.port} == {"http": units.PORT}
    assert serve_options(shipped_pod("overlays/cpu-demo/demo.yaml")["containers"][0]).port == options.port
    (service,) = shipped("base/service.yaml")["spec"]["ports"]
    assert (service["port"], service["targetPort"]) == (options.port, "http")
    assert shipped("components/gateway/pool.yaml")["spec"]["targetPorts"] == [{"number": options.port}]
    assert (
        shipped("components/monitoring/podmonitor.yaml")["spec"]["podMetricsEndpoints"][0]["port"] == "http"
    )
    for name in ("base", "components/monitoring", "components/gateway"):
        (rule,) = shipped(f"{name}/network.yaml")["spec"]["ingress"]
        assert rule["ports"] == [{"port": "http"}]


def shipped_pod(name: str) -> dict[str, Any]:
    pod: dict[str, Any] = shipped(name)["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("name", ["base/deployment.yaml", "weights/job.yaml"])
def test_pods_run_as_the_image_is_made_for(name: str) -> None:
    pod = shipped_pod(name)
    image = (ROOT / "build" / "Containerfile").read_text("utf-8")
    uid, gid = re.findall(r"^USER (\d+):(\d+)$", image, re.MULTILINE)[0]
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert [context[key] for key in ("runAsUser", "runAsGroup", "fsGroup")] == [int(uid), int(gid), int(gid)]
    assert f"{uid}:{gid}" == units.USER
    targets = re.findall(r"^FROM \S+ AS (\w+)$", image, re.MULTILINE)
    for container in containers(pod):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["image"].removeprefix("decideploy:") in targets
        written = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "state"}
        assert written == {str(STATE_FOLDER)}
        temporary = re.search(r"TMPDIR=(\S+)", image)
        assert temporary
        assert temporary[1] in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_what_containers_share_is_as_elsewhere() -> None:
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": f"{units.SHM_BYTES // GIB}Gi"}
    (keys,) = [mount["mountPath"] for mount in SERVE["volumeMounts"] if mount["name"] == "api-keys"]
    assert keys == units.SECRETS
    assert serve_options(SERVE).api_key_file == Path(f"{units.SECRETS}/api-keys")
    assert SERVE["env"] == [{"name": "HF_HUB_OFFLINE", "value": "1"}]
    defaults = {name: ModalConfig.model_fields[name].default for name in ("memory_bytes", "cpu_cores")}
    asked = SERVE["resources"]["requests"]
    assert asked["memory"] == f"{defaults['memory_bytes'] // GIB}Gi"
    assert float(asked["cpu"]) == defaults["cpu_cores"]


def test_replicas_are_added_before_one_is_full() -> None:
    scaled = shipped("components/keda/scaledobject.yaml")["spec"]
    (trigger,) = scaled["triggers"]
    defaults = {key: field.default for key, field in ModalConfig.model_fields.items()}
    options = serve_options(SERVE)
    assert int(trigger["metadata"]["threshold"]) == defaults["target_concurrency"] < options.max_concurrency
    assert options.max_concurrency == defaults["max_concurrency"]
    behavior = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == defaults["scaledown_window_s"]
    assert "decideploy_queue_depth" in trigger["metadata"]["query"]
    assert scaled["minReplicaCount"] == DEPLOYMENT["spec"]["replicas"]


@pytest.mark.parametrize("card", ["h100", "l40s"])
def test_selected_cards_are_of_the_table_and_hold_the_model(card: str) -> None:
    affinity = shipped_pod(f"overlays/{card}/card.yaml")["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    labels = {
        rule["key"].removeprefix("nvidia.com/gpu."): rule["values"][0] for rule in term["matchExpressions"]
    }
    capability = f"{labels['compute.major']}.{labels['compute.minor']}"
    selected = {
        name
        for name, known in known_cards().items()
        if known.compute_capability == capability and known.memory_bytes // 1024**2 > int(labels["memory"])
    }
    assert card in selected
    facts = sizes_of("autotrust/GEV-26B-Decide-NVFP4")
    assert facts
    for name in selected:
        plan(facts, card_report(name), workload=Workload())
    values = yaml.safe_load((KUBERNETES / "chart" / f"values-{card}.yaml").read_text("utf-8"))
    assert values == {"gpu": {"computeCapability": capability, "memoryAbove": int(labels["memory"])}}


def test_routes_are_those_of_decisions() -> None:
    (rule,) = shipped("components/gateway/route.yaml")["spec"]["rules"]
    paths = {match["path"]["value"] for match in rule["matches"]}
    assert all(refusals.dialect(path) != "other" for path in paths)
    text = (ROOT / "docs" / "operate.md").read_text("utf-8")
    assert all(f"`{path}`" in text for path in paths)
    assert int(rule["timeouts"]["request"].removesuffix("s")) > ServerSettings().request_timeout_s


def exported() -> dict[str, tuple[str, ...]]:
    registry = CollectorRegistry()
    metrics = vars(GatewayMetrics(registry)).values()
    found = {name: metric for metric in metrics for name in registry._collector_to_names[metric]}
    labels = {name: tuple(getattr(metric, "_labelnames", ())) for name, metric in found.items()}
    return labels | {"decideploy_kernel_mismatch": ("planned", "observed")}


def expressions() -> list[str]:
    groups = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    query = shipped("components/keda/scaledobject.yaml")["spec"]["triggers"][0]["metadata"]["query"]
    return [query, *(rule["expr"] for group in groups for rule in group["rules"])]


def test_alerts_and_scaling_ask_for_metrics_labels_and_outcomes_that_exist() -> None:
    names = exported()
    outcomes = {one.outcome for one in vars(refusals).values() if isinstance(one, refusals.Refusal)}
    outcomes |= {"ok", "client_error", "server_error"}
    dialects = {refusals.dialect(path) for path in ("/v1/decide", "/v1/systemone", "/v1/decisions", "/v1/x")}
    for expression in expressions():
        for name, selector in re.findall(r"(decideploy_\w+)(?:\{([^}]*)\})?", expression):
            assert name in names, expression
            asked = dict(re.findall(r'(\w+)=~?"([^"]*)"', selector))
            assert set(asked) <= {"job", *names[name]}, expression
            if name == "decideploy_requests_total" and "outcome" in asked:
                assert set(asked["outcome"].split("|")) <= outcomes
            assert set(asked.get("dialect", "decide").split("|")) <= dialects


def test_alerts_count_as_errors_what_the_dashboard_does() -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "decideploy.json").read_text("utf-8"))
    shown = re.findall(r'outcome=~"([\w|]+)"', json.dumps(dashboard).replace('\\"', '"'))
    assert shown
    assert [re.search(r'outcome=~"([\w|]+)"', one)[1] for one in expressions() if "outcome=~" in one] == shown  # type: ignore[index]


def test_every_alert_says_what_to_do_and_is_documented() -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
    tests = (ALERTS.parent / "alerts.test.yaml").read_text("utf-8")
    for rule in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"][0]["rules"]:
        assert set(rule["annotations"]) == {"summary", "remedy"}
        assert f"`{rule['alert']}`" in text
        assert tests.count(rule["alert"]) >= 2


def test_the_chart_is_of_this_version_and_reads_files_that_are_there() -> None:
    chart = yaml.safe_load((KUBERNETES / "chart" / "Chart.yaml").read_text("utf-8"))
    assert chart["version"] == chart["appVersion"] == __version__
    used = set()
    for template in (KUBERNETES / "chart" / "templates").iterdir():
        used |= set(re.findall(r'"((?:base|components)/[\w/]+\.yaml)"', template.read_text("utf-8")))
    assert used >= {"base/deployment.yaml", "components/keda/scaledobject.yaml"}
    assert [name for name in used if not (KUBERNETES / name).is_file()] == []
    values = yaml.safe_load((KUBERNETES / "chart" / "values.yaml").read_text("utf-8"))
    make_parser().parse_args([*SERVE["args"], *values["arguments"]])
    assert values["image"] == SERVE["image"]
    assert values["replicas"] == DEPLOYMENT["spec"]["replicas"]
