"""Every option from every source; every mistake as one line that names it."""

import ipaddress
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mist.config import (
    CLIENT_VARIABLES,
    CONFIG_FILE,
    OPTIONS,
    SCHEMES,
    Config,
    Listen,
    Option,
    load_config,
    parse_host,
    parse_origin,
)
from mist.config.public_url import PublicUrl
from mist.errors import ConfigError
from mist.history.retention import Rule
from mist.message import Limits
from mist.transports.forwarding import Proxies

SECRET = "correct-horse-battery"  # in every error test, so that a leak shows

# name: (text, value). Every option has a row; a test holds the table to that.
SAMPLES: dict[str, tuple[str, Any]] = {
    "listen": ("tcp://127.0.0.1:7", (Listen("tcp", "127.0.0.1", 7),)),
    "data": ("/var/lib/mist", Path("/var/lib/mist")),
    "tokens": ("memory://", "memory://"),
    "token_key_file": ("token.key", Path("token.key")),
    "history": ("sqlite:///history.db", "sqlite:///history.db"),
    "engine": ("memory://realm", "memory://realm"),
    "engine_replicas": ("1", 1),
    "jwt_jwks": ("https://id.example/jwks.json", ("https://id.example/jwks.json",)),
    "jwt_secret_file": ("jwt.txt", Path("jwt.txt")),
    "jwt_issuer": ("https://id.example/", ("https://id.example/",)),
    "jwt_audience": ("mist", ("mist",)),
    "jwt_claim": ("https://app.example/mist", "https://app.example/mist"),
    "auth_url": ("https://app.example/auth", "https://app.example/auth"),
    "auth_url_subscribe": ("https://app.example/may", "https://app.example/may"),
    "auth_url_secret_file": ("auth.txt", Path("auth.txt")),
    "jwt_max_age": ("1d", 86_400.0),
    "node": ("eu-1:1445", "eu-1:1445"),
    "advertise": ("https://eu-1.example/mist", "https://eu-1.example/mist"),
    "public_url": ("https://Example.com:443/mist/", PublicUrl("https://example.com", "/mist")),
    "checkpoint_bytes": ("1MiB", 1 << 20),
    "archive": ("archive", Path("archive")),
    "durability": ("process", "process"),
    "keep_age": ("30d", 2_592_000.0),
    "keep_bytes": ("2GiB", 2 << 30),
    "latest": ("order:*", ("order:*",)),
    "keep": ("room:*=100", (Rule("room:*", 100),)),
    "secret": (SECRET, SECRET),
    "secret_file": ("secret.txt", Path("secret.txt")),
    "insecure": ("true", True),
    "tls_cert": ("cert.pem", Path("cert.pem")),
    "tls_key": ("key.pem", Path("key.pem")),
    "log_format": ("json", "json"),
    "log_level": ("debug", "debug"),
    "outbox_bytes": ("64KiB", 65_536),
    "outbox_messages": ("1_000", 1_000),
    "slow_consumer": ("disconnect", "disconnect"),
    "allow_origin": ("https://App.example:443", ("https://app.example",)),
    "server_name": ("Mist.example", ("mist.example",)),
    "allow_query_token": ("true", True),
    "open_metrics": ("true", True),
    "token_policy": ("strict", "strict"),
    "presence": ("room:*", ("room:*",)),
    "events": ("true", True),
    "telemetry": ("true", True),
    "trusted_proxy": ("10.0.0.0/8", (ipaddress.ip_network("10.0.0.0/8"),)),
    "max_connections": ("10", 10),
    "max_connections_per_address": ("11", 11),
    "max_unauthenticated": ("12", 12),
    "max_subscriptions": ("13", 13),
    "max_token_subscriptions": ("14", 14),
    "max_matches": ("1_000", 1_000),
    "max_tags_per_token": ("15", 15),
    "max_data": ("1000", 1_000),
    "max_line": ("2MiB", 2_097_152),
    "max_frame": ("1 KiB", 1_024),
    "max_body": ("1MiB", 1 << 20),
    "max_stage": ("2GiB", 2 << 30),
    "max_header": ("4KiB", 4_096),
    "request_rate": ("7", 7),
    "token_rate": ("7", 7),
    "max_message_tags": ("16", 16),
    "max_subscription_tags": ("17", 17),
    "max_token_tags": ("18", 18),
    "bus_backlog_size": ("5", 5),
    "bus_backlog_total": ("6", 6),
    "bus_backlog_age": ("1h", 3_600.0),
    "handshake_seconds": ("500ms", 0.5),
    "auth_seconds": ("7.5", 7.5),
    "body_seconds": ("7.5", 7.5),
    "ping_seconds": ("20s", 20.0),
    "idle_seconds": ("2m", 120.0),
    "drain_seconds": ("0", 0.0),
    "config": ("mist.toml", None),
}

# What an option can't be given without. Flags, so that every source can be tried.
TLS = {"listen": ("tcps://127.0.0.1:7",)}
COMPANIONS: dict[str, dict[str, object]] = {
    "tls_cert": {**TLS, "tls_key": "key.pem"},
    "tls_key": {**TLS, "tls_cert": "cert.pem"},
    "public_url": {"insecure": True},
    "token_key_file": {"tokens": "memory://name"},
    "auth_url_secret_file": {"auth_url": "https://app.example/auth"},
    "jwt_issuer": {"jwt_jwks": ("jwks.json",)},
    "jwt_audience": {"jwt_jwks": ("jwks.json",)},
    "engine_replicas": {"engine": "redis://h", "token_key_file": "token.key"},
}

SETTINGS = [option for option in OPTIONS if option is not CONFIG_FILE]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.txt").write_text(f"{SECRET}\n")
    return tmp_path


def load(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    toml: str | None = None,
) -> Config:
    file = None
    if toml is not None:
        file = Path("mist.toml")
        file.write_bytes(toml.encode("utf-8", "surrogatepass"))
    return load_config(flags or {}, environ or {}, file)


def refusal(*args: Any, **kwargs: Any) -> str:
    """The one line that `load` refuses with."""
    with pytest.raises(ConfigError) as caught:
        load(*args, **kwargs)
    line = str(caught.value)
    assert line.isprintable(), line
    assert SECRET not in line
    return line


def named(option: Option) -> str:
    return option.name


# The table


def test_every_option_has_a_sample() -> None:
    assert set(SAMPLES) == {option.name for option in OPTIONS}


def test_every_field_but_the_derived_ones_is_an_option() -> None:
    fields = {field.name for field in attrs.fields(Config)}
    assert fields - {option.field for option in SETTINGS} == {"secret_bytes", "source_warnings"}


@pytest.mark.parametrize("option", OPTIONS, ids=named)
def test_an_option_can_be_shown_in_a_table(option: Option) -> None:
    assert option.flag == "--" + option.name.replace("_", "-")
    assert option.env == "MIST_" + option.name.upper()
    assert option.env not in CLIENT_VARIABLES
    assert option.is_switch == (option.metavar == "")
    for text in (option.help, option.default_text, option.kind.expected):
        assert text.isprintable()
    assert option.help
    assert option.help == option.help.rstrip(".")


@pytest.mark.parametrize("option", SETTINGS, ids=named)
def test_a_default_is_what_config_has_and_its_text_means_it(option: Option) -> None:
    assert getattr(Config(), option.field) == option.default
    if option.name in ("tokens", "history", "node", "allow_origin", "max_line"):
        return  # made out from other settings, and described in words
    if not option.default_text:
        assert option.default in (None, ())
        return
    values = tuple(map(option.kind.parse, option.default_text.split()))
    assert (values if option.repeatable else values[0]) == option.default


def test_defaults_are_those_of_the_protocol_pages() -> None:
    config = load()
    assert config == Config()
    assert [str(listen) for listen in config.listen] == [
        "tcp://127.0.0.1:1445",
        "ws://127.0.0.1:8888",
        "http://127.0.0.1:8080",
    ]
    assert config.limits == Limits()
    assert (config.outbox_bytes, config.outbox_messages) == (8_388_608, 100_000)
    assert config.secret_bytes is None
    assert config.warnings == ()
    assert config.tokens_url == "sqlite:///mist-data/tokens.db"
    assert config.history_url == "sqlite:///mist-data/history.db"


def test_the_history_is_beside_the_tokens_where_one_is_put_or_nowhere() -> None:
    assert load({"data": "/srv"}).history_url == "sqlite:////srv/history.db"
    assert load({"history": "sqlite:///h.db"}).history_url == "sqlite:///h.db"
    assert load({"history": "memory://"}).history_url == "memory://"
    assert load({"history": "none"}).history_url is None


# Sources


def toml_line(option: Option, text: str) -> str:
    if option.is_switch:
        return f"{option.name} = {text}"
    return f"{option.name} = {json.dumps([text] if option.repeatable else text)}"


@pytest.mark.parametrize("option", SETTINGS, ids=named)
def test_every_option_can_be_given_in_every_source(option: Option) -> None:
    text, value = SAMPLES[option.name]
    rest = COMPANIONS.get(option.name, {})
    flag: object = True if option.is_switch else (text,) if option.repeatable else text
    for config in (
        load({**rest, option.name: flag}),
        load(rest, {option.env: text}),
        load(rest, toml=toml_line(option, text)),
        load(rest, toml=toml_line(option, text).replace("_", "-", 1)),
    ):
        assert getattr(config, option.field) == value


@pytest.mark.parametrize("option", SETTINGS, ids=named)
def test_a_value_of_the_wrong_toml_type_is_refused(option: Option) -> None:
    wrong = '"yes"' if option.is_switch else "1979-05-27"
    line = refusal(toml=f"{option.name} = {wrong}")
    assert line.startswith(f"mist.toml: {option.name}: ")
    assert line.endswith(f"expected {option.kind.expected}")


@pytest.mark.parametrize("option", SETTINGS, ids=named)
def test_an_empty_value_is_never_taken_for_a_missing_one(option: Option) -> None:
    # `MIST_SECRET=$UNSET` must not open the server, and nothing else is worth a second rule.
    assert refusal(environ={option.env: ""}).startswith(f"{option.env}: ")
    if not option.is_switch:
        assert refusal({option.name: ""}).startswith(f"{option.flag}: ")


def test_flags_outrank_the_environment_and_that_the_file() -> None:
    toml = "outbox_bytes = 1\noutbox_messages = 1\nmax_connections = 1"
    environ = {"MIST_OUTBOX_BYTES": "2", "MIST_OUTBOX_MESSAGES": "2"}
    config = load({"outbox_bytes": "3"}, environ, toml)
    assert (config.outbox_bytes, config.outbox_messages, config.max_connections) == (3, 2, 1)
    assert config.max_subscriptions == 1_000_000


def test_a_flag_can_switch_off_what_the_environment_switched_on() -> None:
    assert not load({"allow_query_token": False}, {"MIST_ALLOW_QUERY_TOKEN": "1"}).allow_query_token


def test_flags_that_click_hands_over_unset_count_as_not_given() -> None:
    config = load({"listen": (), "allow_origin": [], "data": None, "insecure": None})
    assert config == Config()


def test_a_repeatable_option_replaces_what_lower_sources_and_defaults_hold() -> None:
    toml = 'listen = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]'
    assert len(load(toml=toml).listen) == 2
    config = load({"listen": ("ws://[::1]:3",)}, toml=toml)
    assert [str(listen) for listen in config.listen] == ["ws://[::1]:3"]


@pytest.mark.parametrize(
    "text", ["a.example,b.example", "a.example b.example", " a.example,\n b.example,"]
)
def test_a_list_in_a_text_is_separated_by_commas_or_spaces(text: str) -> None:
    expected = ("a.example", "b.example")
    assert load(environ={"MIST_SERVER_NAME": text}).server_names == expected
    assert load(toml=f"server_name = {json.dumps(text)}").server_names == expected


def test_a_flag_is_one_value_whatever_is_in_it() -> None:
    config = load({"listen": ("tcp+unix:///run/a,b",)})
    assert config.listen == (Listen("tcp+unix", path="/run/a,b"),)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("10", 10.0), ("10.5", 10.5), ('"10s"', 10.0), ('"2m"', 120.0), ('"1_000"', 1000.0)],
)
def test_a_duration_in_toml_is_a_number_or_a_text(value: str, expected: float) -> None:
    assert load(toml=f"drain_seconds = {value}").drain_seconds == expected


@pytest.mark.parametrize("text", ["1", "true", "yes", "on", "ON", "True"])
def test_a_switch_in_the_environment_is_on(text: str) -> None:
    assert load(environ={"MIST_INSECURE": text}).insecure


@pytest.mark.parametrize("text", ["0", "false", "no", "off", "Off"])
def test_a_switch_in_the_environment_is_off(text: str) -> None:
    assert not load(environ={"MIST_INSECURE": text}).insecure


def test_the_file_is_named_by_argument_then_flag_then_variable() -> None:
    for number, name in enumerate("abc", 1):
        Path(name).write_text(f"max_connections = {number}")
    flags, environ = {"config": "b"}, {"MIST_CONFIG": "c"}
    assert load_config(flags, environ, Path("a")).max_connections == 1
    assert load_config(flags, environ).max_connections == 2
    assert load_config({}, environ).max_connections == 3
    assert load_config({}, {}).max_connections == 20_000


def test_variables_of_others_are_left_alone() -> None:
    environ = {
        "PATH": "/bin",
        "MISTY": "1",
        "mist_outbox": "1",
        **dict.fromkeys(CLIENT_VARIABLES, "x"),
        "MIST_PURE": "1",
        # Kubernetes, beside Services named `mist` and `mist-web`
        "MIST_SERVICE_HOST": "10.0.0.1",
        "MIST_SERVICE_PORT": "1445",
        "MIST_SERVICE_PORT_LINE": "1445",
        "MIST_PORT": "tcp://10.0.0.1:1445",
        "MIST_PORT_1445_TCP": "tcp://10.0.0.1:1445",
        "MIST_PORT_1445_TCP_ADDR": "10.0.0.1",
        "MIST_WEB_SERVICE_HOST": "10.0.0.2",
        "MIST_WEB_PORT": "tcp://10.0.0.2:80",
    }
    assert load(environ=environ) == Config()


def test_max_line_follows_max_data_unless_given() -> None:
    assert load({"max_data": "2MiB"}).max_line == 2 * 1_048_576 + 65_536
    assert load({"max_data": "2MiB", "max_line": "3MiB"}).max_line == 3 * 1_048_576


def test_limits_are_those_configured() -> None:
    names = ("max_data", "max_line", "max_frame", "max_message_tags", "max_subscription_tags")
    flags = {name: SAMPLES[name][0] for name in (*names, "max_token_tags")}
    assert load(flags).limits == Limits(
        data=1_000,
        line=2_097_152,
        frame=1_024,
        message_tags=16,
        subscription_tags=17,
        token_tags=18,
    )


def test_the_token_registry_is_in_the_data_folder_unless_named() -> None:
    assert load().tokens_url == "sqlite:///mist-data/tokens.db"
    assert load({"data": "/var/mist"}).tokens_url == "sqlite:////var/mist/tokens.db"
    assert load({"tokens": "memory://"}).tokens_url == "memory://"


# Mistakes

FLAG_ERRORS = [
    ({"outbox_bytes": "8 parsecs"}, "--outbox-bytes: '8 parsecs': expected bytes from 1"),
    ({"outbox_bytes": "0"}, "--outbox-bytes: '0': expected"),
    ({"outbox_bytes": "-1"}, "--outbox-bytes: '-1': expected"),
    ({"outbox_bytes": "8MB"}, "--outbox-bytes: '8MB': expected"),
    ({"outbox_bytes": "1025GiB"}, "--outbox-bytes: '1025GiB': expected"),
    ({"outbox_bytes": ["1", "2"]}, "--outbox-bytes: given more than once"),
    ({"engine": f"mysql://u:{SECRET}@x"}, "--engine: '***@x': expected redis://"),
    (
        {"engine": f"redis+sentinl://u:{SECRET}@x/m?sentinel_password={SECRET}&realm=r"},
        "--engine: '***@x/m?sentinel_password=***&realm=r': expected redis://",
    ),
    ({"engine_replicas": "-1"}, "--engine-replicas: '-1': expected a whole number from 0"),
    ({"engine_replicas": "one"}, "--engine-replicas: 'one': expected a whole number from 0"),
    ({"engine_replicas": "1"}, "--engine-replicas: there is no Redis whose replicas"),
    (
        {"engine_replicas": "1", "engine": "memory://"},
        "--engine-replicas: there is no Redis whose replicas",
    ),
    (
        {"engine_replicas": "1", "engine": "postgresql://h", "token_key_file": "token.key"},
        "--engine-replicas: PostgreSQL waits for replicas by itself: set its synchronous_standby",
    ),
    ({"max_connections": "1.5"}, "--max-connections: '1.5': expected a whole number"),
    ({"max_connections": "٣"}, "--max-connections: '٣': expected"),
    ({"max_connections": 9**9999}, "--max-connections: '0x"),
    ({"max_frame": 124}, "--max-frame: '124': expected bytes from 125"),
    ({"ping_seconds": "nan"}, "--ping-seconds: 'nan': expected seconds"),
    ({"ping_seconds": "0"}, "--ping-seconds: '0': expected"),
    ({"drain_seconds": "9999h"}, "--drain-seconds: '9999h': expected"),
    ({"slow_consumer": "wait"}, "--slow-consumer: 'wait': expected drop or disconnect"),
    ({"tokens": "tokens.db"}, "--tokens: 'tokens.db': expected a URL"),
    ({"tokens": f"postgres://me:{SECRET}@db x"}, "--tokens: '***@db x': expected a URL"),
    ({"data": "a\0b"}, r"--data: 'a\x00b': expected a path"),
    (
        {"archive": "s3a://bucket/x"},
        "--archive: 's3a://bucket/x': s3a:// is not supported; expected a path, or file:///PATH",
    ),
    ({"config": "https://x/mist.toml"}, "--config: 'https://x/mist.toml': https:// is not"),
    ({"server_name": ("a b",)}, "--server-name: 'a b': that is not a host name; expected"),
    ({"trusted_proxy": ("10.0.0.1/8",)}, "--trusted-proxy: '10.0.0.1/8': the network's own"),
    ({"trusted_proxy": ("all",)}, "--trusted-proxy: 'all': expected an IP address"),
    ({"allow_origin": ("*",)}, "--allow-origin: '*': a wildcard would let in"),
    ({"listen": ("tcp://[::1]", "tcp:/x")}, "--listen: 'tcp:/x': its scheme is none of tcp, "),
    ({"listen": (f"tcp://me:{SECRET}@h:1",)}, "--listen: '***@h:1': a user or password"),
    ({"log_format": "x" * 500}, f"--log-format: '{'x' * 80}…': expected"),
    ({"log_format": "a\nb"}, r"--log-format: 'a\nb': expected console or json"),
    ({"outbox_byte": "1"}, "--outbox-byte: unknown option; did you mean --outbox-bytes?"),
    ({"a\nb": "1"}, r"--a\nb: unknown option; mist serve --help"),
]


@pytest.mark.parametrize(("flags", "line"), FLAG_ERRORS)
def test_a_bad_flag_is_one_line(flags: dict[str, object], line: str) -> None:
    assert refusal(flags).startswith(line)


ENVIRON_ERRORS = [
    ("MIST_OUTBOX_BYTES", "x", "MIST_OUTBOX_BYTES: 'x': expected bytes"),
    (
        "MIST_OUTBOX_BYTE",
        "1",
        "MIST_OUTBOX_BYTE: unknown variable; did you mean MIST_OUTBOX_BYTES?",
    ),
    ("MIST_ZZZ", "1", "MIST_ZZZ: unknown variable; mist serve --help lists all options"),
    ("MIST_PORT", "1445", "MIST_PORT: unknown variable"),
    ("MIST_INSECURE", "maybe", "MIST_INSECURE: 'maybe': expected one of 1, 0, true"),
    ("MIST_LISTEN", "tcp://127.0.0.1:1 x", "MIST_LISTEN: 'x': its scheme"),
    ("MIST_SECRET", f"{SECRET} {SECRET}", "MIST_SECRET: it holds a space or a control character"),
    ("MIST_SECRET", f"{SECRET}\n", "MIST_SECRET: it holds a space or a control character"),
    ("MIST_SECRET", f"{SECRET}\udcff", "MIST_SECRET: it is not UTF-8; expected 1 to 255 bytes"),
    ("MIST_SECRET", SECRET * 20, "MIST_SECRET: it has 420 bytes; expected 1 to 255 bytes"),
    ("MIST_SECRET", "", "MIST_SECRET: it is empty; expected"),
    ("MIST_SECRET_FILE", "none", "MIST_SECRET_FILE: 'none': can't be read: No such file"),
    ("MIST_CONFIG", "none.toml", "none.toml: can't be read: No such file or directory"),
    ("MIST_CONFIG", ".", ".: can't be read: Is a directory"),
    ("MIST_CONFIG", "a\0", r"MIST_CONFIG: 'a\x00': expected a path"),
    ("MIST_ARCHIVE", "s3a://b/x", "MIST_ARCHIVE: 's3a://b/x': s3a:// is not supported; expected"),
]


@pytest.mark.parametrize(("name", "text", "line"), ENVIRON_ERRORS)
def test_a_bad_variable_is_one_line(name: str, text: str, line: str) -> None:
    assert refusal(environ={name: text}).startswith(line)


TOML_ERRORS = [
    ("outbox_bytes = true", "mist.toml: outbox_bytes: true: expected bytes"),
    ("outbox_bytes = 1.5", "mist.toml: outbox_bytes: 1.5: expected bytes"),
    ("outbox-bytes = -1", "mist.toml: outbox-bytes: '-1': expected bytes"),
    ("outbox_bytes = [1]", "mist.toml: outbox_bytes: a list: expected bytes"),
    ("outbox_bytes = {a = 1}", "mist.toml: outbox_bytes: a table: expected bytes"),
    (f"outbox_bytes = 0x{'f' * 9000}", "mist.toml: outbox_bytes: '0xff"),
    (f"outbox_bytes = {'9' * 9000}", "mist.toml: "),
    ("drain_seconds = inf", "mist.toml: drain_seconds: 'inf': expected seconds"),
    ("insecure = 1", "mist.toml: insecure: 1: expected one of"),
    ("listen = [1]", "mist.toml: listen: 1: expected SCHEME://HOST:PORT"),
    ("listen = []", "mist.toml: listen: expected at least one listener"),
    ('server_name = ["a", ["b"]]', "mist.toml: server_name: a list: expected a host name"),
    ('data = "hdfs://n/x"', "mist.toml: data: 'hdfs://n/x': hdfs:// is not supported; expected"),
    ("secret = 12345", "mist.toml: secret: expected 1 to 255 bytes"),
    (f'secret = ["{SECRET}"]', "mist.toml: secret: expected 1 to 255 bytes"),
    ("outbox_byte = 1", "mist.toml: 'outbox_byte': unknown key; did you mean outbox_bytes?"),
    ("[server]\nlisten = 1", "mist.toml: 'server': unknown key; did you mean server_name?"),
    (r'"a\nb" = 1', r"mist.toml: 'a\nb': unknown key; mist serve --help"),
    ("max_data = 1\nmax-data = 2", "mist.toml: max-data: given already, as max_data"),
    ('config = "other.toml"', "mist.toml: config: a configuration file can't name another"),
    ("a = 1\nb =", "mist.toml: is not TOML: "),
    (f'a = 1\nsecret = "{SECRET}', "mist.toml: is not TOML: "),
    ("a = 1\nb = '\udcff'", "mist.toml: is not UTF-8 (at line 2)"),
    ("a = " + "[" * 5000, "mist.toml: "),
]


@pytest.mark.parametrize(("toml", "line"), TOML_ERRORS)
def test_a_bad_file_is_one_line(toml: str, line: str) -> None:
    assert refusal(toml=toml).startswith(line)


def test_a_file_that_is_not_toml_is_refused_with_the_line() -> None:
    assert "(at line 2, column 5)" in refusal(toml="a = 1\nb = ]")


def test_a_mistake_is_found_also_where_another_source_outranks_it() -> None:
    line = refusal({"outbox_bytes": "1"}, toml="outbox_bytes = 'x'")
    assert line.startswith("mist.toml: outbox_bytes: 'x': ")


CLASHES = [
    ({"idle_seconds": "25"}, {}, "--idle-seconds: idle_seconds 25 must be more than ping_seconds"),
    ({"ping_seconds": "61"}, {}, "--ping-seconds: idle_seconds 60 must be more than ping_seconds"),
    (
        {"ping_seconds": "9"},
        {"MIST_IDLE_SECONDS": "8"},
        "MIST_IDLE_SECONDS and --ping-seconds: idle_seconds 8 must be more",
    ),
    ({"max_line": "1MiB"}, {}, "--max-line: max_line 1048576 must be more than max_data 1048576"),
    (
        {"secret_file": "secret.txt"},
        {"MIST_SECRET": SECRET},
        "MIST_SECRET and --secret-file: both give the secret",
    ),
    ({"archive": "a", "history": "none"}, {}, "--archive and --history: an archive is made of"),
    ({"tls_cert": "c"}, {}, "--tls-cert: tls_cert and tls_key are given together"),
    ({"tls_key": "k", **TLS}, {}, "--tls-key: tls_cert and tls_key are given together"),
    (TLS, {}, "--listen: tcps://127.0.0.1:7 needs --tls-cert and --tls-key"),
    ({"tls_cert": "c", "tls_key": "k"}, {}, "--tls-cert and --tls-key: no listener uses TLS"),
    (
        {},
        {"MIST_LISTEN": "tcp://h:1 tcp://H:1"},
        "MIST_LISTEN: tcp://h:1 and tcp://h:1 are the same address",
    ),
    (
        {"listen": ("tcp://[::1]:1", "ws://[0::1]:1")},
        {},
        "--listen: tcp://[::1]:1 and ws://[::1]:1 are the same address",
    ),
    (
        {"listen": ("tcp+unix:///a", "ws+unix:///a")},
        {},
        "--listen: tcp+unix:///a and ws+unix:///a are the same address",
    ),
]


@pytest.mark.parametrize(("flags", "environ", "line"), CLASHES)
def test_settings_that_clash_are_one_line(
    flags: dict[str, object], environ: dict[str, str], line: str
) -> None:
    assert refusal(flags, environ).startswith(line)


def test_a_free_port_may_be_asked_for_twice() -> None:
    assert len(load({"listen": ("tcp://127.0.0.1:0",) * 2}).listen) == 2


def test_config_made_in_code_is_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"^idle_seconds and ping_seconds: "):
        Config(idle_seconds=1.0)
    with pytest.raises(ConfigError, match=r"^secret: the secret can't be used, it is empty"):
        Config(secret="")


# The secret, and who may listen where


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_one_line_end_of_the_secret_file_is_ignored(end: str) -> None:
    Path("secret.txt").write_bytes(f"{SECRET}{end}".encode())
    assert load({"secret_file": "secret.txt"}).secret_bytes == SECRET.encode()


SECRET_FILES = [
    (b"", "the secret can't be used, it is empty; expected"),
    (b"\n", "the secret can't be used, it is empty; expected"),
    (SECRET.encode() + b"\n\n", "the secret can't be used, it holds a space or a control"),
    (SECRET.encode() + b"\xff", "the secret is not UTF-8"),
    (SECRET.encode() * 300, "the secret can't be used, it has 4096 bytes; expected"),
]


@pytest.mark.parametrize(("raw", "line"), SECRET_FILES)
def test_a_file_without_a_usable_secret_is_refused(raw: bytes, line: str) -> None:
    Path("secret.txt").write_bytes(raw)
    line = f"mist.toml: secret_file: 'secret.txt': {line}"
    assert refusal(toml='secret_file = "secret.txt"').startswith(line)


def test_a_secret_is_never_shown() -> None:
    for config in (load({"secret": SECRET}), load({"secret_file": "secret.txt"})):
        assert config.secret_bytes == SECRET.encode()
        assert SECRET not in repr(config)
        assert SECRET not in " ".join(config.warnings)
    shared = {"tokens": f"postgres://mist:{SECRET}@db/mist", "token_key_file": "token.key"}
    assert SECRET not in repr(load(shared))


@pytest.mark.parametrize(
    ("engine", "tokens"),
    [
        ("redis://h", ""),
        ("redis://h", "redis://h:6379/0?realm=mist&timeout=1"),
        ("redis://user:password@h/0", "redis://other@H"),
        ("rediss://h/2?realm=r", "rediss://h/2?realm=r"),
        ("redis+sentinel://p@a,B:7/m/0", "redis+sentinel://b:7,a:26379/m?sentinel_password=p"),
        ("redis+cluster://a,b", "redis+cluster://b,a:6379/0"),
        ("postgresql://h/db", "postgresql://h:5432/db"),
        ("memory://a", "memory://"),
        ("memory://", "sqlite:///tokens.db"),
    ],
)
def test_nodes_keep_their_tokens_with_their_log(engine: str, tokens: str) -> None:
    flags: dict[str, object] = {"engine": engine, **({"tokens": tokens} if tokens else {})}
    if not engine.startswith("memory"):
        line = refusal(flags)
        option = "--tokens" if tokens else "--engine"
        assert line.startswith(f"{option}: servers that share their tokens need the same key: ")
        assert "--token-key-file FILE; mist token key FILE makes one" in line
        flags["token_key_file"] = "token.key"
    assert load(flags).tokens_url == (tokens or engine)


@pytest.mark.parametrize(
    "tokens",
    [
        "sqlite:///tokens.db",
        "memory://",
        "redis://other",
        "redis://h:6380",
        "redis://h/1",
        "redis://h?realm=other",
        "rediss://h",
        "redis+cluster://h",
        "redis+sentinel://h/m",
        "postgresql://h",
    ],
)
def test_tokens_apart_from_the_log_of_nodes_are_refused(tokens: str) -> None:
    flags = {"engine": f"redis://:{SECRET}@h", "tokens": tokens, "token_key_file": "token.key"}
    assert "nodes keep their tokens with their log" in refusal(flags)


@pytest.mark.parametrize("tokens", ["", "sqlite:///tokens.db", "memory://"])
def test_a_key_file_is_for_tokens_that_are_shared(tokens: str) -> None:
    flags = {"token_key_file": "token.key", **({"tokens": tokens} if tokens else {})}
    assert "only a token registry that servers share" in refusal(flags)
    assert not Config().shares_tokens


def test_tokens_may_be_shared_without_an_engine() -> None:
    config = load({"tokens": "redis://h", "token_key_file": "token.key"})
    assert config.shares_tokens
    assert config.history_url == "sqlite:///mist-data/history.db"


def test_only_a_secret_given_as_a_flag_warns() -> None:
    (warning,) = load({"secret": SECRET}).warnings
    assert warning.startswith("--secret: other users of this machine can see it")
    assert load(environ={"MIST_SECRET": SECRET}).warnings == ()
    assert load(toml=f'secret = "{SECRET}"').warnings == ()
    assert load({"secret": SECRET}, {"MIST_SECRET": "other"}).warnings == (warning,)


EXPOSED = ["tcp://0.0.0.0:1", "ws://[::]:1", "tcp://192.168.0.1", "ws://mist.example"]


@pytest.mark.parametrize("url", EXPOSED)
def test_beyond_loopback_a_secret_is_demanded(url: str) -> None:
    line = refusal({"listen": ("tcp://127.0.0.1:9", url)})
    assert line.startswith(f"--listen: {Listen.parse(url)} can be reached from other machines")
    for way_out in ("loopback", "--secret-file", "MIST_SECRET", "--insecure"):
        assert way_out in line


@pytest.mark.parametrize("url", EXPOSED)
def test_beyond_loopback_a_secret_or_insecure_is_enough(url: str) -> None:
    listen = {"listen": (url,)}
    assert load({**listen, "secret_file": "secret.txt"}).warnings == ()
    config = load({**listen, "insecure": True})
    assert config.exposed == config.listen
    assert config.warnings[0].startswith(f"anyone who reaches {Listen.parse(url)} may publish")


def test_messages_that_fit_no_outbox_are_warned_of() -> None:
    (warning,) = load({"outbox_bytes": "64KiB"}).warnings
    assert warning.startswith("outbox_bytes 65536 is less than max_data 1048576")


@pytest.mark.parametrize("network", ["0.0.0.0/0", "::/0", "8.0.0.0/5", "::ffff:0:0/96"])
def test_proxies_that_may_be_anybody_are_warned_of(network: str) -> None:
    proxies = ("10.0.0.0/8", "fc00::/7", "104.16.0.0/13", network)
    (warning,) = load({"trusted_proxy": proxies}).warnings
    assert "holds clients as well" in warning


@pytest.mark.parametrize(
    ("text", "meant"),
    [("::ffff:10.0.0.1", "10.0.0.1/32"), ("::ffff:10.0.0.0/104", "10.0.0.0/8")],
)
def test_a_proxy_as_a_dual_stack_socket_tells_it_is_trusted(text: str, meant: str) -> None:
    (network,) = load({"trusted_proxy": (text,)}).trusted_proxies
    assert network == ipaddress.ip_network(meant)
    assert Proxies([network]).trust("::ffff:10.0.0.1")


# Listeners

LISTENERS = [
    # given, canonical, is_local
    ("tcp://127.0.0.1:1445", "tcp://127.0.0.1:1445", True),
    ("tcp://127.0.0.1", "tcp://127.0.0.1:1445", True),
    ("tcps://127.9.9.9", "tcps://127.9.9.9:1445", True),
    ("ws://localhost", "ws://localhost:8888", True),
    ("WSS://LocalHost:443", "wss://localhost:443", True),
    ("tcp://[::1]:1445", "tcp://[::1]:1445", True),
    ("tcp://[0:0::0001]", "tcp://[::1]:1445", True),
    ("ws://[::1]:0", "ws://[::1]:0", True),
    ("tcp://127.0.0.1:00080", "tcp://127.0.0.1:80", True),
    ("tcp+unix:///run/mist.sock", "tcp+unix:///run/mist.sock", True),
    ("ws+unix:///run/a%20b%ff%3f", "ws+unix:///run/a%20b%FF%3F", True),
    ("ws+unix:///run/ä", "ws+unix:///run/%C3%A4", True),
    ("tcp://0.0.0.0:1", "tcp://0.0.0.0:1", False),
    ("tcp://[::]:1", "tcp://[::]:1", False),
    ("tcp://10.0.0.1:1", "tcp://10.0.0.1:1", False),
    ("tcp://Mist.example:65535", "tcp://mist.example:65535", False),
    ("tcp://my_host-1", "tcp://my_host-1:1445", False),
    # look local, and are not taken for it
    ("tcp://localhost.example:1", "tcp://localhost.example:1", False),
    ("tcp://127.0.0.1.example:1", "tcp://127.0.0.1.example:1", False),
    ("tcp://[::ffff:127.0.0.1]:1", "tcp://[::ffff:7f00:1]:1", False),
]


@pytest.mark.parametrize(("url", "canonical", "is_local"), LISTENERS)
def test_a_listener_is_read_from_its_url(url: str, canonical: str, is_local: bool) -> None:
    listen = Listen.parse(url)
    if "ffff" not in canonical:  # Python 3.13 spells mapped addresses another way
        assert str(listen) == canonical
    assert Listen.parse(str(listen)) == listen
    assert listen.is_local == is_local


def test_a_listener_says_what_serves_it() -> None:
    facts = {
        name: (listen.protocol, listen.tls, listen.is_unix, listen.port)
        for name in SCHEMES
        for listen in [Listen.parse(f"{name}:///s" if "unix" in name else f"{name}://h")]
    }
    assert facts == {
        "tcp": ("tcp", False, False, 1445),
        "tcps": ("tcp", True, False, 1445),
        "tcp+unix": ("tcp", False, True, 0),
        "ws": ("ws", False, False, 8888),
        "wss": ("ws", True, False, 8888),
        "ws+unix": ("ws", False, True, 0),
        "http": ("http", False, False, 8080),
        "https": ("http", True, False, 8080),
        "http+unix": ("http", False, True, 0),
        "nats": ("nats", False, False, 4222),
        "natss": ("nats", True, False, 4222),
        "nats+unix": ("nats", False, True, 0),
    }
    assert Listen.parse("tcp+unix:///a%20b").path == "/a b"


BAD_LISTENERS = [
    ("", "scheme"),
    ("127.0.0.1:1445", "scheme"),
    ("udp://127.0.0.1:1", "scheme"),
    ("wss+unix:///a", "scheme"),
    ("tcp:127.0.0.1:1", "scheme"),
    (" tcp://127.0.0.1:1", "scheme"),
    ("tcp://", "no host"),
    ("tcp://:1445", "no host"),
    ("tcp://*:1445", "not a host name"),
    ("tcp://a b:1", "not a host name"),
    ("tcp://a\n:1", "not a host name"),
    ("tcp://-a:1", "not a host name"),
    ("tcp://a..b:1", "not a host name"),
    ("tcp://a.:1", "not a host name"),
    ("tcp://" + "a." * 127 + "a", "not a host name"),
    ("tcp://bücher.example:1", "ASCII"),
    ("tcp://\u212a:1", "ASCII"),
    ("tcp://127.1:1", "IPv4"),
    ("tcp://1.2.3.256:1", "IPv4"),
    ("tcp://0x7f000001:1", "IPv4"),
    ("tcp://::1:1445", "brackets"),
    ("tcp://[::1", "HOST:PORT"),
    ("tcp://[::1]1445", "HOST:PORT"),
    ("tcp://[::1]:1:2", "HOST:PORT"),
    ("tcp://[::g]:1", "IPv6"),
    ("tcp://[localhost]:1", "IPv6"),
    ("tcp://[fe80::1%eth0]:1", "zone"),
    ("tcp://h:", "port"),
    ("tcp://h:x", "port"),
    ("tcp://h:-1", "port"),
    ("tcp://h:+1", "port"),
    ("tcp://h:\u0661", "port"),
    ("tcp://h:65536", "port"),
    ("tcp://u@h:1", "user"),
    ("tcp://u:p@h:1", "user"),
    ("ws://h:1/", "path"),
    ("ws://h:1/a", "path"),
    ("ws://h?a", "query"),
    ("ws://h#a", "fragment"),
    ("tcp+unix://", "absolute"),
    ("tcp+unix://a/b", "absolute"),
    ("tcp+unix:///", "socket"),
    ("tcp+unix:///a/", "socket"),
    ("tcp+unix:///a%00", "socket"),
    ("tcp+unix:///a\ud800", "socket"),
    ("tcp+unix:///a?b", "query"),
    ("tcp+unix:///" + "a" * 107, "107 bytes"),
]


@pytest.mark.parametrize(("url", "reason"), BAD_LISTENERS)
def test_a_bad_listener_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Listen.parse(url)


# Origins and hosts


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://app.example", "https://app.example"),
        ("HTTPS://App.Example:443", "https://app.example"),
        ("http://app.example:80", "http://app.example"),
        ("http://app.example:443", "http://app.example:443"),
        ("https://[0::1]:8443", "https://[::1]:8443"),
        ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
        ("capacitor://localhost", "capacitor://localhost"),
    ],
)
def test_an_origin_is_spelled_as_browsers_do(text: str, origin: str) -> None:
    assert parse_origin(text) == origin
    assert parse_origin(origin) == origin


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("*", "wildcard"),
        ("https://*.example", "wildcard"),
        ("null", "null"),
        ("NULL", "null"),
        ("app.example", "scheme"),
        ("://app.example", "scheme"),
        ("https://", "no host"),
        ("https://app.example/", "path"),
        ("https://u:p@app.example", "user"),
        ("https://app.example:x", "port"),
        ("https://app.\u212a", "ASCII"),
    ],
)
def test_what_is_no_exact_origin_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_origin(text)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Mist.Example", "mist.example"),
        ("[0::1]", "::1"),
        ("0::1", "::1"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_a_host_has_one_spelling(text: str, host: str) -> None:
    assert parse_host(text) == host


# Whatever is thrown at it

ANY_TEXT = st.text(st.characters(), max_size=30)
NAMES = st.sampled_from([option.name for option in OPTIONS])
LIKELY = st.sampled_from([text for text, _ in SAMPLES.values()])


def accepted_or_refused(
    flags: Mapping[str, object], environ: Mapping[str, str], toml: str | None
) -> None:
    try:
        config = load(flags, environ, toml)
    except ConfigError as error:
        shown = str(error)
    else:
        shown = "".join(config.warnings) + repr(config)
    assert shown.isprintable()


anything = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@anything
@given(st.dictionaries(NAMES.map(lambda name: f"MIST_{name.upper()}"), ANY_TEXT | LIKELY))
def test_no_value_in_the_environment_breaks_it(environ: dict[str, str]) -> None:
    accepted_or_refused({}, environ, None)


@anything
@given(st.dictionaries(ANY_TEXT.map(lambda name: f"MIST_{name}"), ANY_TEXT, max_size=3))
def test_no_variable_breaks_it(environ: dict[str, str]) -> None:
    accepted_or_refused({}, environ, None)


FLAG_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | LIKELY


@anything
@given(st.dictionaries(NAMES, FLAG_VALUES | st.lists(FLAG_VALUES, max_size=3).map(tuple)))
def test_no_flag_breaks_it(flags: dict[str, object]) -> None:
    accepted_or_refused(flags, {}, None)


TOML_VALUES = (
    st.sampled_from(
        ["1", "1.5", "true", "[]", "[1]", "{}", "nan", "1979-05-27", "07:32:00", "[{}]"]
    )
    | ANY_TEXT
    | LIKELY.map(json.dumps)
)


@anything
@given(st.lists(st.tuples(NAMES | ANY_TEXT, TOML_VALUES), max_size=4))
@example([("secret_file", '"."')])
def test_no_file_breaks_it(lines: list[tuple[str, str]]) -> None:
    accepted_or_refused({}, {}, "\n".join(f"{key} = {value}" for key, value in lines))


@given(
    ANY_TEXT | ANY_TEXT.map(lambda rest: f"tcp://{rest}") | st.from_regex(r"ws\+unix:///.{0,20}")
)
def test_a_listener_is_refused_or_comes_back_from_its_own_text(url: str) -> None:
    try:
        listen = Listen.parse(url)
    except ValueError as error:
        shown = str(error)
    else:
        shown = str(listen)
        assert Listen.parse(shown) == listen
    assert shown.isprintable()
