"""The files of otel/ fit each other and the product. Form only: no container is started here."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from agentflow.definition.loader import load_file
from agentflow.server.metrics import Metrics, _Measured
from agentflow.telemetry import conventions as c
from agentflow.telemetry.instruments import OBSERVED, Instruments, Tally
from agentflow.telemetry.settings import DEFAULT_ENDPOINT

OTEL = Path(__file__).parents[3] / "otel"
SERVICE_KEYS = {"image", "ports", "restart", "profiles", "command", "volumes", "depends_on", "environment"}


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((OTEL / "compose.yaml").read_text())


@pytest.fixture(scope="module")
def collector():
    return yaml.safe_load((OTEL / "collector.yaml").read_text())


@pytest.fixture(scope="module")
def dashboard():
    return json.loads((OTEL / "grafana/dashboards/agentflow.json").read_text())


def test_every_file_is_what_its_name_says():
    for path in OTEL.rglob("*"):
        if path.suffix in (".yaml", ".yml"):
            assert isinstance(yaml.safe_load(path.read_text()), dict), path
        elif path.suffix == ".json":
            assert isinstance(json.loads(path.read_text()), dict), path
        else:
            assert path.is_dir() or path.name == "README.md", path


def test_the_compose_file_has_the_form_of_one(compose):
    assert set(compose) == {"name", "services", "volumes"}
    for name, service in compose["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert re.fullmatch(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+", service["image"]), "images are pinned"
        for port in service["ports"]:
            assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), "open to this machine only"
        for other in service.get("depends_on", ()):
            assert other in compose["services"]
            assert set(compose["services"][other].get("profiles", [])) <= set(service.get("profiles", []))
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (OTEL / source).exists() if source.startswith(".") else source in compose["volumes"], (
                volume
            )


def test_jaeger_v2_alone_is_enough_for_traces(compose):
    plain = [name for name, service in compose["services"].items() if "profiles" not in service]
    assert plain == ["jaeger"]
    jaeger = compose["services"]["jaeger"]
    assert jaeger["image"].startswith("jaegertracing/jaeger:2.")
    port = DEFAULT_ENDPOINT.rpartition(":")[2]
    assert f"127.0.0.1:{port}:{port}" in jaeger["ports"]


def test_no_port_is_taken_twice(compose):
    ports = [port.split(":")[1] for service in compose["services"].values() for port in service["ports"]]
    assert len(ports) == len(set(ports))


def test_the_pipelines_of_the_collector_name_what_there_is(collector):
    ends = (
        {*collector["receivers"], *collector["connectors"]},
        {*collector["exporters"], *collector["connectors"]},
    )
    for pipeline in collector["service"]["pipelines"].values():
        assert set(pipeline["receivers"]) <= ends[0]
        assert set(pipeline["exporters"]) <= ends[1]
        assert set(pipeline["processors"]) <= set(collector["processors"])
        assert pipeline["processors"][0] == "memory_limiter"
    pipelines = collector["service"]["pipelines"]
    assert "spanmetrics" in pipelines["traces"]["exporters"]
    assert "spanmetrics" in pipelines["metrics"]["receivers"]


def test_the_collector_counts_by_names_and_never_by_ids(collector):
    dimensions = {entry["name"] for entry in collector["connectors"]["spanmetrics"]["dimensions"]}
    known = {value for value in vars(c).values() if isinstance(value, str)}
    assert dimensions <= known
    assert not dimensions & {
        c.WORKFLOW_ID,
        c.CONVERSATION,
        c.TOOL_CALL,
        c.ACTIVATION,
        c.RESPONSE_ID,
        c.OFFSET,
    }


def test_services_find_each_other(compose, collector):
    services = compose["services"]
    assert collector["exporters"]["otlp/jaeger"]["endpoint"] == "jaeger:4317"
    shown = collector["exporters"]["prometheus"]["endpoint"].rpartition(":")[2]
    prometheus = yaml.safe_load((OTEL / "prometheus.yml").read_text())
    assert prometheus["scrape_configs"][0]["static_configs"] == [{"targets": [f"collector:{shown}"]}]
    sources = yaml.safe_load((OTEL / "grafana/provisioning/datasources/datasources.yaml").read_text())
    for source in sources["datasources"]:
        host, port = source["url"].removeprefix("http://").split(":")
        assert any(p.endswith(f":{port}") for p in services[host]["ports"])
    provider = yaml.safe_load((OTEL / "grafana/provisioning/dashboards/dashboards.yaml").read_text())
    folder = provider["providers"][0]["options"]["path"]
    assert any(volume.split(":")[1] == folder for volume in services["grafana"]["volumes"])


def test_the_dashboard_asks_for_metrics_that_there_are(dashboard, collector):
    units = {"s": "_seconds", "1": ""}
    made = set()
    for name in (c.RUN_DURATION, c.TOOL_DURATION, c.OPERATION_DURATION, c.COMMIT_DURATION):
        made |= {f"{flat(name)}{units['s']}_{part}" for part in ("bucket", "count", "sum")}
    made |= {f"{flat(c.TOKEN_USAGE)}_{part}" for part in ("bucket", "count", "sum")}
    made |= {flat(c.MAILBOX_DEPTH)}
    made |= {f"{flat(n)}_total" for n in (c.EVENTS, c.DEAD_LETTERS, c.SPANS_REFUSED, c.EXPORT_FAILURES)}
    space = collector["connectors"]["spanmetrics"]["namespace"]
    made |= {f"{space}_calls_total", f"{space}_duration_seconds_bucket"}
    labels = {flat(value) for value in vars(c).values() if isinstance(value, str)}
    labels |= {"le", "span_name", "agentflow_actor_type", "agentflow_reason"}
    asked = set()
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == "prometheus"
        for target in panel["targets"]:
            text = re.sub(r'"[^"]*"', '""', target["expr"])
            for word in re.findall(r"[a-z_]*_[a-z_]+", text.replace("$__rate_interval", "")):
                if word != "histogram_quantile":
                    assert word in made | labels, word
                    asked |= {word} & made
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert label in labels
    assert len(asked) > 10


def flat(name: str) -> str:
    return name.replace(".", "_")


def test_the_page_of_the_daemon_has_what_the_dashboard_asks_for(dashboard):
    """All but what the Collector counts from spans; and the page of operations names what there is."""
    tally = Tally()
    made = Instruments(tally.histogram, tally.counter)
    for part in vars(made).values():
        (part.record if hasattr(part, "record") else part.add)(1)
    for name in OBSERVED:
        tally.observe(name, None, lambda: {"": 1})
    page = Metrics()
    page._registry.register(_Measured(tally))
    families = {f.name for f in text_string_to_metric_families(asyncio.run(page.render({}))[0].decode())}
    known = families | {f"{name}_total" for name in families}
    queries = re.sub(r"by \([^)]*\)", "", json.dumps(dashboard))
    wanted = set(re.findall(r"\b((?:agentflow|gen_ai)_[a-z_]+?)(?:_(?:bucket|count|sum))?[{\[)]", queries))
    assert len(wanted & known) > 8
    assert wanted <= known
    page_of_help = (OTEL.parent / "agentflow/docs/operations.md").read_text()
    metrics = page_of_help.partition("`GET /metrics` is")[2].partition("\n## ")[0]
    named = set(re.findall(r"`((?:agentflow|gen_ai)_[a-z_]+)`", metrics))
    assert len(named) > 15
    assert named <= known


def test_the_scrape_configuration_of_the_readme_is_one():
    (block,) = re.findall(r"```yaml\n(.*?)```", (OTEL / "README.md").read_text(), re.DOTALL)
    for text in (block, block.replace("# authorization", "authorization")):
        (job,) = yaml.safe_load(text)["scrape_configs"]
        assert job["static_configs"] == [{"targets": ["127.0.0.1:8700"]}]


def test_panels_do_not_lie_on_each_other(dashboard):
    cells = [
        (x, y)
        for panel in dashboard["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_workflow_of_the_readme_is_one():
    assert load_file(OTEL / "hello.yaml").workflow.name == "hello"


def test_the_readme_names_ports_files_and_metrics_that_there_are(compose):
    text = (OTEL / "README.md").read_text()
    ports = {port.split(":")[1] for service in compose["services"].values() for port in service["ports"]}
    assert set(re.findall(r"localhost:(\d+)", text)) <= ports
    for path in re.findall(r"otel/[\w./-]+\w", text):
        assert (OTEL.parent / path).exists(), path
    known = {value for value in vars(c).values() if isinstance(value, str)}
    for name in re.findall(r"`((?:agentflow|gen_ai)\.[\w.]+)`", text):
        assert name in known, name
    assert "No container was started" in text
