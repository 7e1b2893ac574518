"""The dashboard and the alerts speak of metrics that exist, of labels that they have, in expressions that parse."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import generate_operations
import pytest
from prometheus_client.core import Metric

from duologue.gateway.tally import MOVES
from duologue.session import inheriting
from duologue.session.meters import ADOPTIONS, HAND_OVERS, REBUILD_OUTCOMES

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "duologue.json"
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
PROMTOOL = shutil.which("promtool")

NAME = re.compile(r"\bduologue_[a-z_]+")
SELECTOR = re.compile(r"\b(duologue_[a-z_]+|up)\{([^}]*)\}")
MATCHER = re.compile(r'^\s*([a-z_]+)\s*(=~|!~|!=|=)\s*"[^"]*"\s*$')
GROUPING = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
CALL = re.compile(r"\b([a-z_]+)\s*(?:by\s*\([^)]*\)\s*)?\(")
RANGE = re.compile(r"\[(\$__rate_interval|\d+[smh])\]")
FUNCTIONS = {"sum", "max", "count", "rate", "increase", "changes", "histogram_quantile", "vector", "by"}
KEYWORDS = {"or", "unless", "by", "without", "offset"}
OF_THE_TARGET = {"instance", "job", "le"}


def shown() -> dict[str, Metric]:
    """Series name -> its family."""
    found: dict[str, Metric] = {}
    for family in generate_operations.families():
        if family.type == "counter":
            found[f"{family.name}_total"] = family
        elif family.type == "histogram":
            found |= {f"{family.name}_{part}": family for part in ("bucket", "sum", "count")}
        else:
            found[family.name] = family
    return found


SHOWN = shown()


def labels_of(name: str) -> set[str]:
    """The labels that a metric is declared with; of what a collector yields, those that it may yield."""
    from duologue.runtime import metrics

    for metric in vars(metrics).values():
        if getattr(metric, "_name", None) == SHOWN[name].name:
            return set(metric._labelnames)
    if name.startswith("duologue_bus_"):
        return {"peer", "reason"}
    return {"script", "kind", "number"}


def panels() -> Iterator[dict[str, Any]]:
    yield from json.loads(DASHBOARD.read_text())["panels"]


def dashboard_expressions() -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in panels() for target in panel.get("targets", ())]


def alerts() -> list[dict[str, Any]]:
    yaml: Any = importlib.import_module("yaml")
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


EXPRESSIONS = [*dashboard_expressions(), *((alert["alert"], alert["expr"]) for alert in alerts())]


def test_there_is_something_to_look_at() -> None:
    assert len(dashboard_expressions()) > 60
    assert len(alerts()) > 10
    assert all(SHOWN)


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_every_metric_exists(where: str, expression: str) -> None:
    names = NAME.findall(expression)
    assert names or "up" in expression
    assert [name for name in names if name not in SHOWN] == []


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_every_label_exists(where: str, expression: str) -> None:
    known = OF_THE_TARGET.union(*(labels_of(name) for name in NAME.findall(expression)))
    for name, matchers in SELECTOR.findall(expression):
        for matcher in filter(None, matchers.split(",")):
            found = MATCHER.match(matcher)
            assert found is not None, matcher
            assert found[1] in (OF_THE_TARGET if name == "up" else labels_of(name) | OF_THE_TARGET), matcher
    for grouping in GROUPING.findall(expression):
        assert {label.strip() for label in grouping.split(",")} <= known, grouping


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_every_expression_is_plausible(where: str, expression: str) -> None:
    bare = re.sub(r'"[^"]*"', '""', expression)
    for opening, closing in ("()", "[]", "{}"):
        assert bare.count(opening) == bare.count(closing)
    for call in CALL.findall(bare):
        assert call in FUNCTIONS | KEYWORDS, call
    ranged = re.sub(r"offset \d+[smh]", "", bare)
    for name, family in ((name, SHOWN[name]) for name in NAME.findall(ranged)):
        rises = re.findall(rf"\b(?:rate|increase|changes)\({name}(?:\{{[^}}]*\}})?(\[[^\]]*\])\)", ranged)
        assert all(RANGE.fullmatch(window) for window in rises)
        if family.type in ("counter", "histogram") and "unless" not in ranged:
            assert len(rises) == ranged.count(name), f"{name} only ever rises: it needs a rate"
    for quantile in re.findall(r"histogram_quantile\(([^,]*), (.*?\))\)", bare):
        assert 0 < float(quantile[0]) < 1
        assert "_bucket" in quantile[1] and "by (le" in quantile[1]


def test_no_panel_overlaps_another_and_each_has_the_datasource() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in _rows(place)}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "prometheus"
            assert all(target["datasource"]["uid"] == "prometheus" for target in panel["targets"])
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    provisioned = (ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text()
    assert "uid: prometheus" in provisioned


def _rows(place: dict[str, int]) -> range:
    return range(place["y"], place["y"] + place["h"])


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_every_alert_says_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["alert"].startswith("Duologue")
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert alert["annotations"]["summary"].endswith((".", "!"))
    assert len(alert["annotations"]["action"]) > 60


@pytest.mark.parametrize(
    ("name", "label", "known"),
    [
        ("duologue_session_adoptions_total", "outcome", ADOPTIONS),
        ("duologue_session_hand_overs_total", "outcome", HAND_OVERS),
        ("duologue_session_rebuilds_total", "outcome", REBUILD_OUTCOMES),
        ("duologue_gateway_moves_total", "result", MOVES),
    ],
)
def test_what_alerts_ask_for_is_shown_at_0_from_the_start(name: str, label: str, known: Sequence[str]) -> None:
    """A series that begins with 1 has not risen: Prometheus would miss the first one, and a misspelt one always."""
    of_these = [alert["expr"] for alert in alerts() if name in alert["expr"]]
    asked = {
        value for expr in of_these for one in re.findall(rf'{label}=~?"([^"]*)"', expr) for value in one.split("|")
    }
    assert asked
    assert asked <= set(known)


def test_every_outcome_of_an_adoption_is_among_those_that_are_shown() -> None:
    said = set(re.findall(r'CannotInherit\([^)]*?"(\w+)"', inspect.getsource(inheriting)))
    said |= set(re.findall(r'\boutcomes?(?: = |\[)"(\w+)"', inspect.getsource(inheriting)))
    assert len(said) > 6
    assert said <= set(ADOPTIONS)


def test_panels_that_alerts_name_exist() -> None:
    titles = " ".join(panel["title"] for panel in panels())
    for alert in alerts():
        for named in re.findall(r'panel "([^"]+)"|"([A-Z][^"]+)"', alert["annotations"]["action"]):
            name = "".join(named)
            assert name in titles or name == "compute", name


def test_prometheus_reads_the_rules() -> None:
    assert "rule_files:\n  - rules.yml" in (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    compose = (ROOT / "docker-compose.yml").read_text()
    assert "./deploy/prometheus:/etc/prometheus:ro" in compose
    assert "./deploy/grafana/dashboards:/var/lib/grafana/dashboards:ro" in compose


@pytest.mark.parametrize(
    ("path", "reached"),
    [
        *((path, True) for path in ("/v1/realtime", "/v1/duplex", "/v1/models", "/health", "/readyz")),
        *((path, False) for path in ("/metrics", "/drain", "/%64rain", "/%6detrics", "/", "/docs")),
    ],
)
def test_strangers_reach_what_is_listed_and_nothing_else(path: str, reached: bool) -> None:
    balancer = (ROOT / "deploy/haproxy.cfg").read_text()
    frontend = balancer.partition("frontend realtime")[2].partition("\nbackend")[0]
    rule = re.search(r"http-request deny deny_status 404 unless \{ path -m beg (\S+) \} \|\| \{ path (.+) \}", frontend)
    assert rule is not None
    assert (path.startswith(rule[1]) or path in rule[2].split()) is reached


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_accepts_the_rules() -> None:
    assert PROMTOOL is not None
    answer = subprocess.run([PROMTOOL, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    sys.stdout.write(answer.stdout)
