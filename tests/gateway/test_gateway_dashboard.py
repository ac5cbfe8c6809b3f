import json
import re
from pathlib import Path

from gateway_harness import App, served
from prometheus_client import CollectorRegistry

from decideploy.gateway import GatewayMetrics

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "decideploy.json"
DOCUMENT = Path(__file__).parents[2] / "docs" / "operate.md"


def exported() -> dict[str, tuple[str, ...]]:
    """Name of each sample that is exported → the labels of its metric."""
    registry = CollectorRegistry()
    metrics = vars(GatewayMetrics(registry)).values()
    return {
        sample: tuple(metric._labelnames)
        for metric in metrics
        for sample in registry._collector_to_names[metric]
    }


def expressions() -> list[str]:
    document = json.loads(DASHBOARD.read_text("utf-8"))
    asked = [
        variable["definition"] for variable in document["templating"]["list"] if "definition" in variable
    ]
    return asked + [target["expr"] for panel in document["panels"] for target in panel["targets"]]


def test_the_dashboard_asks_for_metrics_and_labels_that_exist() -> None:
    names = exported()
    own_labels = {"job", "instance", "le"}
    asked = set()
    for expression in expressions():
        for name, selector in re.findall(r"(decideploy_\w+)(?:\{([^}]*)\})?", expression):
            assert name in names, expression
            labels = set(re.findall(r"(\w+)=~?\"", selector))
            assert labels <= own_labels | set(names[name]), expression
            asked.add(name)
        for grouped in re.findall(r"by \(([^)]*)\)", expression):
            metric = re.search(r"decideploy_\w+", expression)
            assert metric
            assert set(grouped.split(", ")) <= own_labels | set(names[metric[0]]), expression
    assert asked >= {name for name in names if name.endswith("_total")}
    assert asked >= {"decideploy_ready", "decideploy_inflight", "decideploy_queue_depth"}


def test_every_metric_setting_and_log_field_is_documented() -> None:
    from decideploy.gateway import ServerSettings

    text = DOCUMENT.read_text("utf-8")
    base = {re.sub(r"_(created|bucket|sum|count)$", "", name) for name in exported()}
    names = {name for name in base if name.endswith("_total") or f"{name}_total" not in base}
    assert [name for name in sorted(names) if f"`{name}" not in text] == []
    assert [name for name in ServerSettings.model_fields if f"`{name}`" not in text] == ["schema_version"]


def test_log_fields_are_documented() -> None:
    import asyncio

    async def story() -> set[str]:
        async with served(App()) as server:
            trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
            await server.ask("/v1/decide", headers=trace)
            return set(server.lines()[0])

    text = DOCUMENT.read_text("utf-8")
    assert [name for name in asyncio.run(story()) if f"`{name}`" not in text] == []
