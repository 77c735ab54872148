"""Recording and alert rules: valid, proven by promtool's own tests, and about metrics that exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES = (FOLDER / "recording.yml", FOLDER / "alerts.yml", FOLDER / "vllm_alerts.yml")


OLD_GAUGES = (
    "gpu_cache_usage_perc",
    "cpu_cache_usage_perc",
    "avg_prompt_throughput_toks_per_s",
    "avg_generation_throughput_toks_per_s",
)


def promtool(*arguments: object) -> str:
    path = shutil.which("promtool")
    assert path is not None, "promtool is missing: run `bash tests/tools.sh`"
    done = subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


def rules() -> list[dict[str, str]]:
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.integration
def test_rules_and_configuration_are_valid():
    assert "FAILED" not in promtool("check", "rules", *RULES)
    promtool("check", "config", FOLDER / "prometheus.yml")


@pytest.mark.integration
def test_rules_do_what_their_tests_say():
    tests = sorted((FOLDER / "tests").glob("*.yml"))
    assert tests
    promtool("test", "rules", *tests)


def test_every_alert_has_a_case_that_fires():
    fired = set()
    for path in (FOLDER / "tests").glob("*.yml"):
        for test in yaml.safe_load(path.read_text())["tests"]:
            fired |= {case["alertname"] for case in test.get("alert_rule_test", ()) if case["exp_alerts"]}
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert alerts - fired == set()


def test_every_alert_says_what_happens_and_how_urgent_it_is():
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
            assert all(rule["annotations"][word] for word in ("summary", "description")), rule["alert"]


def test_every_rule_reads_metrics_labels_and_bounds_that_a_real_engine_shows(page):
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    wrong = {}
    for rule in rules():
        missing = [name for name in page.missing(rule["expr"]) if name not in recorded | {"up"}]
        if missing:
            wrong[rule.get("alert") or rule["record"]] = missing
    assert wrong == {}


def test_metrics_named_in_descriptions_exist(page):
    for rule in rules():
        for name in re.findall(r"\bquire_\w+", rule.get("annotations", {}).get("description", "")):
            assert name in page.kinds, name


@pytest.mark.parametrize(
    ("expression", "missing"),
    [
        ("rate(quire_requests_total[5m])", []),
        ("rate(quire_nothing_total[5m])", ["quire_nothing_total"]),
        ('quire_inter_token_latency_seconds_bucket{le="0.1"}', []),
        ('quire_inter_token_latency_seconds_bucket{le="0.11"}', ["quire_inter_token_latency_seconds_bucket{le=0.11}"]),
        ('sum by (colour) (quire_requests_total{colour="red"})', ["quire_requests_total{colour=red}"]),
        ("quire_requests_total_bucket", ["quire_requests_total_bucket"]),
    ],
)
def test_the_check_itself_finds_what_is_wrong(page, expression, missing):
    assert page.missing(expression) == missing


def test_vllms_names_that_gateways_and_dashboards_read_are_there(page):
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "lora_requests_info")
    for name in (*gauges, "cache_config_info", *OLD_GAUGES):
        assert page.kinds[f"vllm:{name}"] == "gauge", name
    for name in ("prompt_tokens", "generation_tokens", "request_success", "num_preemptions", "prefix_cache_hits"):
        assert page.kinds[f"vllm:{name}_total"] == "counter", name
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_queue_time"):
        assert page.kinds[f"vllm:{name}_seconds"] == "histogram", name
    assert page.kinds["vllm:time_per_output_token_seconds"] == "histogram"
    assert {"block_size", "num_gpu_blocks", "model_name", "engine"} <= set(page.labels["vllm:cache_config_info"])
    assert page.labels["vllm:num_requests_running"]["engine"] == {"0"}
