"""The overlays and the chart as kubectl and helm render them; the alert rules as promtool runs them."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_objects import ALERTS, KUBERNETES, Object, containers, pod_specs, read

pytestmark = pytest.mark.system

OVERLAYS = ("h100", "l40s", "cpu-demo")
EVERYTHING = "autoscaling.enabled=true,monitoring.enabled=true,gateway.enabled=true,weights.image=weights:1"
# Of controllers that a cluster may have: kubernetes-validate has no schema of them.
EXTENSIONS = {"ScaledObject", "PodMonitor", "PrometheusRule", "InferencePool", "HTTPRoute"}


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not on PATH: docs/kubernetes.md says how to get it ({package})"
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def kustomized(folder: Path) -> dict[tuple[str, str], Object]:
    return read(run(tool("kubectl", "kubectl 1.27 or newer"), "kustomize", str(folder)))


def helm(*arguments: str) -> str:
    return run(tool("helm", "helm 3 or 4"), *arguments)


def charted(*arguments: str) -> dict[tuple[str, str], Object]:
    return read(helm("template", "decideploy", str(KUBERNETES / "chart"), *arguments))


def with_components(folder: Path, names: Sequence[str]) -> dict[tuple[str, str], Object]:
    """The h100 overlay with components, as an operator's own folder beside the shipped ones."""
    shutil.copytree(KUBERNETES, folder / "kubernetes", ignore=shutil.ignore_patterns("chart"))
    own = {
        "resources": ["../kubernetes/overlays/h100"],
        "components": [f"../kubernetes/components/{name}" for name in names],
    }
    (folder / "own").mkdir()
    (folder / "own" / "kustomization.yaml").write_text(yaml.safe_dump(own))
    return kustomized(folder / "own")


def check(objects: dict[tuple[str, str], Object]) -> None:
    """Every object is of its schema, and every Pod names what it has."""
    import kubernetes_validate

    for one in objects.values():
        if one["kind"] not in EXTENSIONS:
            kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    for pod in pod_specs(objects):
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounted = {mount["name"] for one in containers(pod) for mount in one["volumeMounts"]}
        assert mounted == volumes
        for one in containers(pod):
            ports = {port["name"] for port in one.get("ports", ())}
            probes = {one[key]["httpGet"]["port"] for key in one if key.endswith("Probe")}
            assert probes <= ports


def bare(objects: dict[tuple[str, str], Object]) -> dict[tuple[str, str], Any]:
    """Without labels of who made it, without lists that hold nothing, with volumes by name."""
    for pod in pod_specs(objects):
        pod["volumes"].sort(key=lambda volume: volume["name"])
    return {key: pruned({**one, "metadata": {"name": key[1]}}) for key, one in objects.items()}


def pruned(value: Any) -> Any:
    if isinstance(value, dict):
        found = {key: pruned(inner) for key, inner in value.items()}
        # An empty rule means something in a policy.
        return {key: inner for key, inner in found.items() if inner != [] or key == "egress"}
    return [pruned(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlay_and_chart_give_the_same_valid_objects(name: str) -> None:
    overlay = kustomized(KUBERNETES / "overlays" / name)
    check(overlay)
    chart = charted("--values", str(KUBERNETES / "chart" / f"values-{name}.yaml"))
    check(chart)
    assert bare(chart) == bare(overlay)


def test_the_demo_needs_no_gpu_and_no_weights() -> None:
    text = run(tool("kubectl", "kubectl"), "kustomize", str(KUBERNETES / "overlays" / "cpu-demo"))
    assert [word for word in ("nvidia.com", "/model", "decideploy-weights", "verify") if word in text] == []


def test_components_and_values_give_the_same_valid_objects(tmp_path: Path) -> None:
    components = with_components(tmp_path, ["keda", "monitoring", "gateway", "weights-image"])
    check(components)
    assert "replicas" not in components["Deployment", "decideploy"]["spec"]
    values = str(KUBERNETES / "chart" / "values-h100.yaml")
    chart = charted("--values", values, "--set", EVERYTHING.replace("weights:1", "decideploy-weights"))
    rule = chart.pop(("PrometheusRule", "decideploy"))
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text("utf-8"))
    check(chart)
    assert bare(chart) == bare(components)


def test_weights_of_a_revision_have_a_claim_of_their_own(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES / "weights", tmp_path / "weights")
    (tmp_path / "next").mkdir()
    own = {
        "resources": ["../weights"],
        "nameSuffix": "-next",
        "configMapGenerator": [
            {"name": "decideploy-model", "behavior": "merge", "literals": [f"revision={'a' * 40}"]}
        ],
    }
    (tmp_path / "next" / "kustomization.yaml").write_text(yaml.safe_dump(own))
    objects = kustomized(tmp_path / "next")
    check(objects)
    (pod,) = pod_specs(objects)
    assert pod["volumes"][-1]["persistentVolumeClaim"]["claimName"] == "decideploy-weights-next"
    (name,) = [name for kind, name in objects if kind == "ConfigMap"]
    named = {one["valueFrom"]["configMapKeyRef"]["name"] for one in pod["initContainers"][0]["env"][:2]}
    assert named == {name}


def test_the_chart_is_linted_and_packed_with_what_it_links(tmp_path: Path) -> None:
    chart = str(KUBERNETES / "chart")
    helm("lint", "--strict", chart)
    helm("package", chart, "--destination", str(tmp_path))
    (archive,) = tmp_path.glob("*.tgz")
    assert read(helm("template", "decideploy", str(archive), "--set", EVERYTHING)) == charted(
        "--set", EVERYTHING
    )


@pytest.mark.parametrize("value", ["replica=3", "gpu.computeCapability=h100", "gpu.memoryAbove=-1"])
def test_a_value_that_means_nothing_is_refused(value: str) -> None:
    chart = str(KUBERNETES / "chart")
    command = [tool("helm", "helm"), "template", "decideploy", chart, "--set", value]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert value.partition("=")[0].rpartition(".")[2] in done.stderr


def test_scaling_without_metrics_is_refused() -> None:
    chart = str(KUBERNETES / "chart")
    command = [tool("helm", "helm"), "template", "decideploy", chart, "--set", "autoscaling.enabled=true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "monitoring.enabled" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts.test.yaml")]
)
def test_promtool_passes_the_alert_rules(arguments: tuple[str, ...]) -> None:
    command = [tool("promtool", "Debian: prometheus"), *arguments]
    done = subprocess.run(command, cwd=ALERTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
