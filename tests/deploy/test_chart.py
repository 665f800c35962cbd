"""deploy/chart, rendered by Helm's own code; the extra `deploy` has it."""

import tomllib
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from mist.config import OPTIONS, load_config
from tests.deploy.test_container import all_of, variables

CHART = Path(__file__).parents[2] / "deploy" / "chart"
PROJECT = tomllib.loads((CHART.parents[1] / "pyproject.toml").read_text())["project"]
ENGINE = {"replicas": 3, "engine": True}


def rendered(**values: Any) -> dict[str, dict[str, Any]]:
    """What the chart makes, by kind and name."""
    texts = helm.Chart.load(CHART).render(values=values, name="mist")
    found = [
        each
        for name, text in texts.items()
        if name.endswith(".yaml")
        for each in yaml.safe_load_all(text)
        if each
    ]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


def pod_of(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = objects["StatefulSet/mist"]["spec"]["template"]["spec"]
    return spec


def test_helm_finds_no_mistake() -> None:
    found = helm.lint(CHART, strict=True)
    assert found["errors"] == []
    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]


def test_its_version_is_that_of_the_server() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == PROJECT["version"]


def test_a_server_of_its_own_has_one_replica() -> None:
    objects = rendered()
    assert objects["StatefulSet/mist"]["spec"]["replicas"] == 1
    assert {*objects} == {
        *("StatefulSet/mist", "Service/mist", "Service/mist-nodes", "ConfigMap/mist")
    }
    with pytest.raises(helm.HelmRenderError, match="more than one needs an engine"):
        rendered(replicas=2)


def test_nodes_have_the_engine_and_the_key_of_the_tokens() -> None:
    objects = rendered(**ENGINE)
    (container,) = pod_of(objects)["containers"]
    environ = {each["name"]: each for each in container["env"]}
    assert environ["MIST_ENGINE"]["valueFrom"]["secretKeyRef"] == {"name": "mist", "key": "engine"}
    assert environ["MIST_TOKEN_KEY_FILE"]["value"] == "/run/secrets/mist/token-key"
    assert objects["PodDisruptionBudget/mist"]["spec"]["maxUnavailable"] == 1
    assert {*environ} <= {option.env for option in OPTIONS}


def test_it_runs_as_the_image_does() -> None:
    pod = pod_of(rendered())
    (container,) = pod["containers"]
    user, group = map(int, all_of("USER", of=1)[0].split(":"))
    context = pod["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (user, group, group)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert variables()["MIST_DATA"] in [each["mountPath"] for each in container["volumeMounts"]]
    ports = [str(each["containerPort"]) for each in container["ports"]]
    assert all_of("EXPOSE", of=1) == [" ".join(ports)]


def test_settings_are_those_of_the_server(tmp_path: Path) -> None:
    settings = {
        "keep_age": "3d",
        "max_connections": 1_000_000,
        "open_metrics": True,
        "keep": ["a&b<c>=100"],
        "allow_origin": ["https://a.example", "https://b.example"],
    }
    file, secret = tmp_path / "mist.toml", tmp_path / "secret"
    file.write_text(rendered(settings=settings)["ConfigMap/mist"]["data"]["mist.toml"])
    secret.write_text("a-secret-of-tests")
    config = load_config({"config": str(file), "secret_file": str(secret)}, {})
    assert config.keep_age == 3 * 86_400
    assert (config.max_connections, config.open_metrics) == (1_000_000, True)
    assert [each.pattern for each in config.keep] == ["a&b<c>"]
    assert config.allow_origin == ("https://a.example", "https://b.example")
    file.write_text(rendered()["ConfigMap/mist"]["data"]["mist.toml"])
    load_config({"config": str(file)}, {})


@pytest.mark.parametrize("listen", [["http://0.0.0.0:8080", "nats://0.0.0.0"], "http://0.0.0.0"])
def test_settings_count_for_more_than_variables_of_the_image(
    tmp_path: Path, listen: list[str] | str
) -> None:
    settings = {"listen": listen, "log_format": "console"}
    objects = rendered(settings=settings)
    (container,) = pod_of(objects)["containers"]
    environ = {each["name"]: each.get("value") for each in container["env"]}
    file = tmp_path / "mist.toml"
    file.write_text(objects["ConfigMap/mist"]["data"]["mist.toml"])
    image = {"MIST_SECRET": "x" * 32, **variables()}
    passed = {name: value for name, value in environ.items() if name in image}
    found = load_config({"config": file}, {**image, **passed})
    wanted = load_config({"config": file}, {"MIST_SECRET": "x" * 32})
    assert (found.listen, found.log_format) == (wanted.listen, "console")


def test_other_settings_start_the_pods_again() -> None:
    def stamp(**settings: object) -> object:
        template = rendered(settings=settings)["StatefulSet/mist"]["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/settings"]

    assert stamp(keep_age="3d") != stamp(keep_age="4d")


@pytest.mark.parametrize("values", [{"replica": 2}, {"settings": {"Keep-Age": "1d"}}])
def test_a_mistyped_value_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmValuesError):
        rendered(**values)


def test_an_ingress_leads_to_http() -> None:
    ingress = {"enabled": True, "host": "m.example", "tlsSecretName": "tls"}
    spec = rendered(ingress=ingress)["Ingress/mist"]["spec"]
    assert spec["tls"] == [{"hosts": ["m.example"], "secretName": "tls"}]
    (path,) = spec["rules"][0]["http"]["paths"]
    assert path["backend"]["service"] == {"name": "mist", "port": {"name": "http"}}
