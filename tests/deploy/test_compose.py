"""deploy/compose.yaml: what it names is there, and what it sets is understood."""

import ipaddress
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from mist.config import load_config
from tests.deploy.test_container import variables

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_every_file_that_is_mounted_is_there_and_every_volume_declared() -> None:
    for service in SERVICES.values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).is_file(), source
            else:
                assert source in COMPOSE["volumes"]
        assert {*service.get("secrets", ())} <= {*COMPOSE["secrets"]}
        assert {*service["networks"]} <= {*COMPOSE["networks"]}
    build = SERVICES["mist"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_the_server_understands_its_variables(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a-secret-of-tests")
    given = SERVICES["mist"]["environment"]
    assert given["MIST_SECRET_FILE"] == "/run/secrets/mist"
    environ = {
        **{name: value for name, value in variables().items() if name.startswith("MIST_")},
        **{name: re.sub(r"\$\{SITE:-(.*)\}", r"\1", value) for name, value in given.items()},
        "MIST_SECRET_FILE": str(secret),
    }
    config = load_config({}, environ)
    # What comes through Caddy comes from this network, whose addresses are clients' otherwise.
    (subnet,) = COMPOSE["networks"]["inner"]["ipam"]["config"]
    assert config.trusted_proxies == (ipaddress.ip_network(subnet["subnet"]),)
    assert config.warnings == ()


def test_only_caddy_is_reached_from_elsewhere() -> None:
    for name, service in SERVICES.items():
        if name != "caddy":
            assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert SERVICES["mist"]["read_only"] is True
    assert SERVICES["mist"]["cap_drop"] == ["ALL"]


def test_caddy_understands_its_file(tmp_path: Path) -> None:
    file = tmp_path / "Caddyfile"
    text = (DEPLOY / "compose" / "Caddyfile").read_text()
    assert "reverse_proxy mist:8080" in text
    caddy = shutil.which("caddy")
    assert caddy is not None, "Debian: apt-get install caddy"
    # Debian's is 2.6, which has no `stream_close_delay`.
    file.write_text(re.sub(r"\n\s*stream_close_delay.*", "", text).replace("{$SITE}", "localhost"))
    command = [caddy, "validate", "--adapter", "caddyfile", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_prometheus_asks_for_metrics_with_the_secret() -> None:
    found = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    (job,) = found["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["mist:8080"]}]
    assert job["authorization"] == {"credentials_file": "/run/secrets/mist"}
    assert "mist" in SERVICES["prometheus"]["secrets"]


def test_prometheus_has_alerts_and_each_is_explained() -> None:
    found = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    mounts = [mount.split(":")[:2] for mount in SERVICES["prometheus"]["volumes"]]
    (path,) = found["rule_files"]
    assert ["./compose/alerts.yml", path] in mounts
    (group,) = yaml.safe_load((DEPLOY / "compose" / "alerts.yml").read_text())["groups"]
    alerts = [rule["alert"] for rule in group["rules"]]
    page = (DEPLOY.parent / "docs" / "monitoring.md").read_text()
    assert re.findall(r"^\| `(Mist\w+)` \|", page, re.MULTILINE) == alerts
    (job,) = found["scrape_configs"]
    assert {*re.findall(r'job="(\w+)"', str(group))} == {job["job_name"]}
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        # Else it is told as 0.16675000000000034.
        for value in re.findall(r"{{ *\$value(.*?)}}", rule["annotations"]["summary"]):
            assert value.startswith(" | humanize"), rule["alert"]
