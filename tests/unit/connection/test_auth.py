"""What each client is given for TLS and login, and what is rejected before any client is built."""

import ssl
from pathlib import Path

import msgspec
import pytest
import tomli_w

from console.launch.supervisor import after_death
from dart_streams.config import Bus, Config, KafkaLogin, Login, Store, Tls, load, parse
from dart_streams.connection import auth, protocol_probes
from dart_streams.connection.protocol_probes import KAFKA, Endpoint
from dart_streams.errors import AccessRefused, ConfigError, ServiceUnavailable, UserError

SECRET = "unlike-anything-else-7f3a"
ENDPOINT = Endpoint("Kafka", "bus", "kafka.example", 9093, KAFKA)


def test_by_default_nobody_logs_in_and_in_the_clear_on_loopback_alone():
    assert auth.kafka_arguments(Bus(servers="a:1, b:2")) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "PLAINTEXT",
    }
    assert auth.cassandra_arguments(Store()) == {}
    login = {"user": "a", "password": "env:A"}
    assert parse({"store": {"login": login}}).store.login.user == "a"
    assert parse({"bus": {"servers": "localhost:1", "login": {**login, "mechanism": "PLAIN"}}}).bus.login.user == "a"
    assert parse({"bus": {"servers": "k:1", "login": login}}).bus.login.mechanism == "SCRAM-SHA-512"


def test_a_login_and_tls_are_given_to_every_client(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("THE_PASSWORD", SECRET)
    monkeypatch.setenv("THE_USER", "dart")
    login = KafkaLogin(user="env:THE_USER", password="env:THE_PASSWORD")
    bus = Bus(servers="kafka.example:9093", tls=Tls(enabled=True), login=login)
    settings = auth.kafka_arguments(bus)
    assert settings["security_protocol"] == "SASL_SSL"
    assert settings["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (settings["sasl_plain_username"], settings["sasl_plain_password"]) == ("dart", SECRET)
    assert settings["ssl_context"].verify_mode == ssl.CERT_REQUIRED
    assert settings["ssl_context"].check_hostname
    assert settings["ssl_context"].minimum_version == ssl.TLSVersion.TLSv1_2
    assert auth.kafka_arguments(msgspec.structs.replace(bus, tls=Tls()))["security_protocol"] == "SASL_PLAINTEXT"
    assert auth.kafka_arguments(msgspec.structs.replace(bus, login=KafkaLogin()))["security_protocol"] == "SSL"
    store = Store(hosts=("db",), tls=Tls(enabled=True), login=Login(user="dart", password="env:THE_PASSWORD"))
    arguments = auth.cassandra_arguments(store)
    assert (arguments["auth_provider"].username, arguments["auth_provider"].password) == ("dart", SECRET)
    assert arguments["ssl_context"].check_hostname


def test_a_password_is_read_from_a_file_without_the_end_of_its_line(tmp_path: Path):
    (tmp_path / "p").write_text(f"{SECRET}\n")
    assert auth.read_secret(f"file:{tmp_path / 'p'}", "bus.login.password") == SECRET


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (
            "env:NOT_SET_ANYWHERE",
            "bus.login.password is env:NOT_SET_ANYWHERE, and that environment variable is not set",
        ),
        ("file:/no/such/file", "bus.login.password: there is no file /no/such/file"),
        ("file:{empty}", "that file is empty"),
        ("file:{folder}", "can't be read"),
    ],
)
def test_a_password_that_is_not_where_it_should_be_is_named_by_its_key(tmp_path: Path, reference: str, text: str):
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match=text):
        auth.read_secret(reference.format(empty=tmp_path / "empty", folder=tmp_path), "bus.login.password")


@pytest.mark.parametrize("key", ["ca_file", "certificate_file", "key_file"])
def test_a_file_that_is_missing_or_is_no_certificate_is_named_by_its_key(tmp_path: Path, key: str):
    for name in ("a", "b"):
        (tmp_path / name).write_text("no certificate")
    files = {"certificate_file": str(tmp_path / "a"), "key_file": str(tmp_path / "b"), key: str(tmp_path / "gone")}
    with pytest.raises(ConfigError, match=rf"bus\.tls\.{key}: there is no file .*gone"):
        auth.tls_context(Tls(enabled=True, **files), "bus.tls")
    files[key] = str(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"bus\.tls.*(no certificates in PEM|no certificate and its key)"):
        auth.tls_context(Tls(enabled=True, **files), "bus.tls")


def test_an_empty_file_of_authorities_is_not_the_system_s(tmp_path: Path):
    (tmp_path / "ca").write_text("")
    with pytest.raises(ConfigError, match=r"bus\.tls\.ca_file: .* has no certificates in PEM"):
        auth.tls_context(Tls(enabled=True, ca_file=str(tmp_path / "ca")), "bus.tls")


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        ({"bus": {"login": {"user": "a", "password": SECRET}}}, "must say where the password is, not be it"),
        (
            {"store": {"tls": {"enabled": True, "certificate_file": "a", "key_file": "b", "key_password": SECRET}}},
            "not be",
        ),
        ({"bus": {"login": {"user": "a"}}}, "user and password go together"),
        ({"store": {"login": {"password": "env:A"}}}, "user and password go together"),
        ({"bus": {"tls": {"ca_file": "a"}}}, "TLS is off: set enabled = true"),
        ({"bus": {"tls": {"enabled": True, "key_file": "a"}}}, "go together"),
        ({"store": {"hosts": ["db"], "login": {"user": "a", "password": "env:A"}}}, "in the clear"),
        (
            {"bus": {"servers": "k:1", "login": {"user": "a", "password": "env:A", "mechanism": "PLAIN"}}},
            "in the clear",
        ),
    ],
)
def test_what_would_be_unsafe_or_ignored_is_refused(tables: dict[str, object], text: str):
    with pytest.raises(ConfigError, match=text) as refused:
        parse(tables)
    assert SECRET not in str(refused.value)


def test_files_are_relative_to_the_configuration_that_names_them(tmp_path: Path):
    tls = {"enabled": True, "ca_file": "ca.pem"}
    tables = {"bus": {"tls": tls, "login": {"user": "file:a", "password": "file:../p"}}, "store": {"tls": tls}}
    (tmp_path / "c.toml").write_text(tomli_w.dumps(tables))
    config = load(tmp_path / "c.toml")
    assert config.bus.tls.ca_file == config.store.tls.ca_file == str(tmp_path / "ca.pem")
    assert config.bus.login.password == f"file:{tmp_path}/../p"
    assert (config.bus.login.user, config.store.tls.key_file) == (f"file:{tmp_path}/a", "")
    again = tmp_path / "again.toml"
    again.write_text(tomli_w.dumps({"bus": {"tls": msgspec.to_builtins(config.bus.tls)}}))
    assert load(again).bus.tls == config.bus.tls


def test_a_secret_is_in_no_text_of_the_configuration(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("THE_PASSWORD", SECRET)
    config = parse({"bus": {"login": {"user": "a", "password": "env:THE_PASSWORD"}}})
    assert auth.kafka_arguments(config.bus)["sasl_plain_password"] == SECRET
    assert SECRET not in repr(config) + str(msgspec.to_builtins(config))
    assert isinstance(config, Config)


@pytest.mark.parametrize(
    ("reason", "shows", "text"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", False, "requires a client certificate"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", False, "requires a client certificate"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", True, "rejects the client certificate"),
        ("TLSV1_ALERT_UNKNOWN_CA", True, "rejects the client certificate"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", False, "no version or cipher of TLS in common"),
        ("UNEXPECTED_EOF_WHILE_READING", False, None),
    ],
)
def test_an_alert_of_a_service_differs_from_a_lost_connection(reason: str, shows: bool, text: str | None):
    error = ssl.SSLError(1, "x")
    error.reason = reason
    found = protocol_probes.describe(error, ENDPOINT, shows)
    assert (found is None) if text is None else (text in (found or ""))


@pytest.mark.parametrize(("code", "text"), [(62, "not made for the name"), (64, "not made for"), (10, "not valid now")])
def test_faults_of_a_certificate_are_distinguished(code: int, text: str):
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_code, error.verify_message = code, "certificate has expired"
    assert text in (protocol_probes.describe(error, ENDPOINT, False) or "")


def test_a_worker_that_is_refused_is_not_started_again():
    codes = [UserError.exit_code, ServiceUnavailable.exit_code, AccessRefused.exit_code]
    assert codes == [2, 3, 5]
    assert [after_death(0, 1.0, code)[1] is None for code in codes] == [True, False, True]
