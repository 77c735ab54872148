"""The dashboard and what starts it: every expression parses and reads metrics that a real engine shows."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "quire.json").read_text())
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())


def panels() -> list[dict]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> dict[str, str]:
    """Where it stands -> PromQL with Grafana's variables filled in."""
    found = {f"{panel['title']} {t['refId']}": t["expr"] for panel in panels() for t in panel["targets"]}
    found |= {one["name"]: one["expr"] for one in DASHBOARD["annotations"]["list"]}
    return {at: text.replace("$__rate_interval", "5m").replace("$instance", ".*") for at, text in found.items()}


def recorded() -> set[str]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "recording.yml").read_text())["groups"]
    return {rule["record"] for group in groups for rule in group["rules"]}


def test_every_expression_reads_what_a_real_engine_shows_or_a_rule_records(page):
    wrong = {}
    for at, expression in expressions().items():
        missing = [name for name in page.missing(expression) if name not in recorded()]
        if missing:
            wrong[at] = missing
    assert wrong == {}


@pytest.mark.integration
def test_every_expression_parses(tmp_path):
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is missing: run `bash tests/tools.sh`"
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions().values())]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_no_variable_is_left_that_grafana_does_not_know():
    known = {one["name"] for one in DASHBOARD["templating"]["list"]}
    for at, text in expressions().items():
        assert "$" not in text, at
    assert known == {"datasource", "instance"}


def test_panels_have_a_title_a_meaning_and_a_place_of_their_own():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["title"]
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_what_the_compose_file_mounts_exists_and_is_where_it_is_looked_for():
    folder = DEPLOY / "docker"
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            if volume.startswith("${"):
                continue  # named by whoever starts it
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (folder / source).resolve().exists(), source
    provider = yaml.safe_load((DEPLOY / "grafana" / "provisioning" / "dashboards" / "quire.yaml").read_text())
    dashboards = provider["providers"][0]["options"]["path"]
    mounted = [volume.split(":")[1] for volume in COMPOSE["services"]["grafana"]["volumes"]]
    assert f"{dashboards}/quire.json" in mounted
    source = yaml.safe_load((DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yaml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    assert "prometheus" in COMPOSE["services"]


def test_prometheus_scrapes_the_name_and_port_of_either_engine_of_the_compose_file():
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    for engine in ("quire-cpu", "quire-gpu"):
        service = COMPOSE["services"][engine]
        (name,) = service["networks"]["default"]["aliases"]
        port = service["ports"][0].rpartition(":")[2]
        assert scraped["static_configs"][0]["targets"] == [f"{name}:{port}"]
