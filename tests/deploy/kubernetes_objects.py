"""Kubernetes objects of the files in ``deploy/``, and what they hold."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"

Object = dict[str, Any]


def read(text: str) -> dict[tuple[str, str], Object]:
    """Objects by kind and name."""
    found = [document for document in yaml.safe_load_all(text) if document]
    objects = {(one["kind"], one["metadata"]["name"]): one for one in found}
    assert len(objects) == len(found), "one object is there twice"
    return objects


def shipped(name: str) -> Object:
    """The one object of a file below deploy/kubernetes."""
    document: Object = yaml.safe_load((KUBERNETES / name).read_text("utf-8"))
    return document


def pod_specs(objects: dict[tuple[str, str], Object]) -> Iterator[Object]:
    """The specification of each Pod that an object makes."""
    for one in objects.values():
        if one["kind"] in ("Deployment", "Job"):
            yield one["spec"]["template"]["spec"]


def containers(pod: Object) -> list[Object]:
    """Every container, those that come first included."""
    return [*pod.get("initContainers", ()), *pod.get("containers", ())]
