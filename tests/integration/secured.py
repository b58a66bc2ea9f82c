"""A private Kafka and Cassandra that refuse clients without TLS, a password or a certificate, and check rights.

Their certificates are made by an authority of their own, for ``localhost`` only. Each kind of process has a login.
"""

import contextlib
import re
import secrets
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
from cassandra import OperationTimedOut
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, NoHostAvailable
from cassandra.connection import DefaultEndPoint
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from benchmarks.private_services import HOMES, READY_TIMEOUT_S, private_folder
from console.launch.access_rights import KINDS
from console.launch.services import local
from console.launch.services.daemon import Home, free_port
from console.launch.services.jvm import Cassandra, Kafka, Service, format_storage
from console.launch.services.lock import ignore_message
from console.runs.run_folder import write_toml
from dart_streams.bus import admin
from dart_streams.config import Bus, Config, KafkaLogin, Login, Services, Store, Tls
from dart_streams.connection.protocol_probes import speaks_cql
from dart_streams.java import SHARED_JARS
from dart_streams.store import create_schema
from tests.command_line import invoke

USER = "dart"
OWNER = ("ALL PERMISSIONS ON ALL KEYSPACES", "AUTHORIZE ON ALL KEYSPACES")
WAIT_S = 120.0
STORE_PASSWORD = "changeit"
"""Of the services' own key stores; it opens nothing else."""


class Certificates:
    """An authority, and what it has signed: a service's certificate for ``localhost``, and a client's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.authority("ca")
        self.sign("service", "subjectAltName=DNS:localhost")
        self.sign("client", "extendedKeyUsage=clientAuth")

    def authority(self, name: str) -> Path:
        """Make an authority and return its certificate."""
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", self.key(name), "-out", self.certificate(name)),
        )
        return self.certificate(name)

    def sign(self, name: str, extension: str, by: str = "ca") -> None:
        """Make a key and a certificate that ``by`` has signed."""
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text(f"{extension}\n")
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", self.key(name), "-out", request),
        )
        openssl(
            *("x509", "-req", "-in", request, "-days", "2", "-extfile", extensions, "-CAcreateserial"),
            *("-CA", self.certificate(by), "-CAkey", self.key(by), "-out", self.certificate(name)),
        )
        openssl(
            *("pkcs12", "-export", "-in", self.certificate(name), "-inkey", self.key(name), "-name", name),
            *("-out", self.store(name), "-passout", f"pass:{STORE_PASSWORD}"),
        )

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def store(self, name: str) -> Path:
        return self.folder / f"{name}.p12"


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=WAIT_S)


class Ports(NamedTuple):
    """Where the broker listens: ``sasl`` wants a password over TLS, ``mutual`` a certificate, ``clear`` nothing."""

    clear: int
    sasl: int
    mutual: int


class SecuredKafka(Kafka):
    """A broker with three listeners and an authorizer; its own words are spoken on the clear one, by its operator."""

    def __init__(self, ports: Ports, certificates: Certificates, passwords: dict[str, str]) -> None:
        super().__init__(Bus(servers=f"127.0.0.1:{ports.clear}"), Services())
        self.ports = ports
        self.certificates = certificates
        self.passwords = passwords

    def prepare(self, home: Home, java: Path, jars: Path) -> list[str]:
        # So that the folder is formatted once, here: passwords are given to a broker when that is done.
        home.data.mkdir(parents=True)
        (home.data / "meta.properties").touch()
        command = super().prepare(home, java, jars)
        shutil.rmtree(home.data)
        settings = home.folder / "server.properties"
        clear = settings.read_text()
        # The last word on a property counts.
        settings.write_text(clear + self.listeners(re.findall(r"CONTROLLER://[0-9.:]+", clear)[0]))
        scram = f"SCRAM-SHA-512=[name={USER},password={self.passwords['scram']}]"
        tool = command[: command.index("-cp") + 2]
        format_storage(home, tool, "--cluster-id=c2VjdXJlZC1zZWN1cmVk", "--add-scram", scram)
        return command

    def listeners(self, controller: str) -> str:
        names = {"CLEAR": self.ports.clear, "SASL": self.ports.sasl, "MUTUAL": self.ports.mutual}
        plain = self.passwords["plain"]
        jaas = "org.apache.kafka.common.security"
        return f"""
listeners={controller},{",".join(f"{n}://127.0.0.1:{p}" for n, p in names.items())}
advertised.listeners={",".join(f"{n}://localhost:{p}" for n, p in names.items())}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,CLEAR:PLAINTEXT,SASL:SASL_SSL,MUTUAL:SSL
inter.broker.listener.name=CLEAR
sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN
listener.name.sasl.scram-sha-512.sasl.jaas.config={jaas}.scram.ScramLoginModule required;
listener.name.sasl.plain.sasl.jaas.config={jaas}.plain.PlainLoginModule required user_{USER}="{plain}";
listener.name.mutual.ssl.client.auth=required
ssl.keystore.type=PKCS12
ssl.keystore.location=../../secrets/service.p12
ssl.keystore.password={STORE_PASSWORD}
ssl.key.password={STORE_PASSWORD}
ssl.truststore.type=PEM
ssl.truststore.location=../../secrets/ca.pem
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:{USER};User:CN=client
"""


class SecuredCassandra(Cassandra):
    """A node that speaks TLS only, and wants a password."""

    def __init__(self, port: int, certificates: Certificates) -> None:
        super().__init__(Store(port=port), Services())
        self.certificates = certificates

    def prepare(self, home: Home, java: Path, jars: Path) -> list[str]:
        command = super().prepare(home, java, jars)
        settings = home.folder / "cassandra.yaml"
        settings.write_text(settings.read_text() + self.encryption())
        # A password's hash takes a thousandth of its usual time.
        return [*command[:-3], "-Dcassandra.auth_bcrypt_gensalt_log2_rounds=4", *command[-3:]]

    def encryption(self) -> str:
        return f"""
authenticator: PasswordAuthenticator
authorizer: CassandraAuthorizer
role_manager: CassandraRoleManager
client_encryption_options:
  enabled: true
  optional: false
  require_client_auth: false
  store_type: PKCS12
  keystore: ../../secrets/service.p12
  keystore_password: {STORE_PASSWORD}
"""

    def answers(self, timeout_s: float = 2.0) -> bool:
        return speaks_cql("localhost", self.port, timeout_s, self.context())

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.certificates.certificate("ca"))

    def add_users(self, users: Mapping[str, str], *grants: str) -> None:
        """Give users passwords and rights, as a cluster's operator does."""
        deadline = time.monotonic() + WAIT_S
        login = PlainTextAuthProvider("cassandra", "cassandra")
        place = DefaultEndPoint("localhost", self.port)
        while True:
            try:
                with Cluster([place], ssl_context=self.context(), auth_provider=login, protocol_version=4) as cluster:
                    session = cluster.connect()
                    for name, password in users.items():
                        role = f"CREATE ROLE IF NOT EXISTS \"{name}\" WITH PASSWORD = '{password}' AND LOGIN = true"
                        session.execute(role)
                        for grant in grants:
                            session.execute(f'GRANT {grant} TO "{name}"')
                return
            except (NoHostAvailable, OperationTimedOut):
                # The first user is made a moment after the port opens.
                assert time.monotonic() < deadline
                time.sleep(0.2)


class Secured(NamedTuple):
    """Running services, and the settings of clients that they accept."""

    folder: Path
    ports: Ports
    database: SecuredCassandra
    certificates: Certificates
    passwords: dict[str, str]

    def secret(self, name: str) -> str:
        """Return where a password is, as a configuration says it."""
        return f"file:{self.folder / name}"

    def tls(self, **changes: str) -> Tls:
        return msgspec.structs.replace(Tls(enabled=True, ca_file=str(self.certificates.certificate("ca"))), **changes)

    def mutual(self) -> Tls:
        names = self.certificates
        return self.tls(certificate_file=str(names.certificate("client")), key_file=str(names.key("client")))

    def scram(self, **changes: object) -> Bus:
        """Return how the broker is reached over TLS with SCRAM."""
        login = KafkaLogin(user=USER, password=self.secret("scram"))
        bus = Bus(servers=f"localhost:{self.ports.sasl}", tls=self.tls(), login=login, wait_s=WAIT_S)
        return msgspec.structs.replace(bus, **changes)

    def plain(self) -> Bus:
        return self.scram(login=KafkaLogin(user=USER, password=self.secret("plain"), mechanism="PLAIN"))

    def by_certificate(self) -> Bus:
        return self.scram(servers=f"localhost:{self.ports.mutual}", tls=self.mutual(), login=KafkaLogin())

    def store(self, **changes: object) -> Store:
        """Return how the database is reached over TLS with a password."""
        login = Login(user=USER, password=self.secret("cql"))
        store = Store(hosts=("localhost",), port=self.database.port, tls=self.tls(), login=login, wait_s=WAIT_S)
        return msgspec.structs.replace(store, **changes)

    def bus_of(self, kind: str, prefix: str) -> Bus:
        """Return how a kind of process reaches the broker."""
        return self.scram(prefix=prefix, login=KafkaLogin(user=f"dart-{kind}", password=self.secret(f"dart-{kind}")))

    def store_of(self, kind: str, keyspace: str = "dart") -> Store:
        """Return how a kind of process reaches the database."""
        return self.store(keyspace=keyspace, login=Login(user=f"dart-{kind}", password=self.secret(f"dart-{kind}")))

    @property
    def operator(self) -> Bus:
        """How the broker's operator reaches it."""
        return Bus(servers=f"localhost:{self.ports.clear}", wait_s=WAIT_S)

    def give_rights(self, config: Config, path: Path) -> None:
        """Give each kind its rights on the topics of a deployment, as the broker's operator does."""
        write_toml(
            path, msgspec.structs.replace(config, bus=msgspec.structs.replace(self.operator, prefix=config.bus.prefix))
        )
        done = invoke("topics", "acls", "--apply", "--config", path)
        assert done.exit_code == 0, done.output

    def add_kinds(self) -> None:
        """Give each kind of process a login, and its rights on the tables of the keyspace ``dart``."""
        logins = {name: password for name, password in self.passwords.items() if name.startswith("dart-")}
        with admin.connect(self.operator) as client:
            scram = [UserScramCredentialUpsertion(name, ScramMechanism.SCRAM_SHA_512, logins[name]) for name in logins]
            assert client.alter_user_scram_credentials(scram) == dict.fromkeys(logins)
        self.database.add_users({USER: self.passwords["cql"]}, *OWNER)
        self.database.add_users(logins)
        create_schema(self.store())
        write_toml(self.folder / "operator.toml", Config(store=self.store()))
        done = invoke("store", "roles", "--apply", "--config", self.folder / "operator.toml")
        assert done.exit_code == 0, (done.output, done.exception)


@contextlib.contextmanager
def secured_services() -> Iterator[Secured]:
    """Yield a broker and a database of this process's own; they are removed at the end."""
    names = ("scram", "plain", "cql", *(f"dart-{kind}" for kind in KINDS))
    passwords = {name: f"{name}-{secrets.token_hex(12)}" for name in names}
    with private_folder(HOMES, "-secured") as state:
        folder = state / "secrets"
        certificates = Certificates(folder)
        for name, password in passwords.items():
            (folder / name).write_text(password + "\n")
        (folder / "wrong").write_text("not-the-password")
        certificates.authority("other")
        certificates.sign("stranger", "extendedKeyUsage=clientAuth", by="other")
        ports = Ports(free_port(), free_port(), free_port())
        database = SecuredCassandra(free_port(), certificates)
        both = (SecuredKafka(ports, certificates, passwords), database)
        homes = state / "services"

        def bring_up(service: Service) -> None:
            local.bring_up(service, Home(homes / service.name), READY_TIMEOUT_S, ignore_message, SHARED_JARS)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(bring_up, both))
        made = Secured(folder, ports, database, certificates, passwords)
        made.add_kinds()
        yield made
