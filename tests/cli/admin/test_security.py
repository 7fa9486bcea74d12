"""SCRAM users of a new cluster, and mq-admin that logs in to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.cli.server.main import main as server
from tests.cli.admin.running import Admin
from tests.metaquorum.security.certificates import Authority
from tests.nodes import Node, elsewhere, free_port, wait_until

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
PASSWORD = "a password, with = and ,"

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="another cluster has other users")


def formatted(data_dir: Path, *scram: str, code: int = 0) -> str:
    options = [part for text in scram for part in ("--add-scram", text)]
    where = ["--data-dir", str(data_dir), "--cluster-id", CLUSTER_ID, "--node-id", "1"]
    done = CliRunner().invoke(server, ["format", *where, *options])
    assert done.exit_code == code, done.output
    return done.output


class Guarded:
    """A node that accepts only `alice`, who was added when the node was formatted."""

    def __init__(self, folder: Path) -> None:
        self.password = folder / "password"
        self.password.write_text(PASSWORD + "\n")
        self.authority = Authority(folder)
        node_folder = folder / "node"
        formatted(
            node_folder / "data",
            f"SCRAM-SHA-512=[name=admin,password-file={self.password},iterations=8192]",
        )
        store = self.authority.store("node")
        self.plain = f"127.0.0.1:{free_port()}"
        settings = {
            "listeners": f"SASL_SSL://127.0.0.1:{free_port()},PLAINTEXT://{self.plain}",
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.location": store,
        }
        self.node = Node(node_folder, settings)

    @property
    def options(self) -> list[object]:
        return [
            *("-b", self.node.bootstrap, "--username", "admin"),
            *("--password-file", self.password, "--tls-authorities", self.authority.path),
        ]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    made.node.start()
    yield made
    made.node.stop()


def test_the_first_user_logs_in_by_options(guarded: Guarded) -> None:
    admin = Admin()
    admin(*guarded.options, "topics", "create", "by-options")
    admin(*guarded.options, "produce", "by-options", stdin="hello\n")
    consumed = admin(*guarded.options, "consume", "by-options", "--from", "beginning")
    assert "hello" in consumed


def test_the_first_user_logs_in_by_the_environment(guarded: Guarded) -> None:
    admin = Admin(
        MQ_BOOTSTRAP=guarded.node.bootstrap,
        MQ_SECURITY_PROTOCOL="SASL_SSL",
        MQ_USERNAME="admin",
        MQ_PASSWORD=PASSWORD,
        MQ_TLS_AUTHORITIES=guarded.authority.path,
    )
    assert admin.json("cluster", "describe")["cluster_id"] == CLUSTER_ID


def test_the_first_user_logs_in_by_a_profile(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "metaquorum").mkdir()
    (tmp_path / "metaquorum" / "mq-admin.toml").write_text(
        f'default = "guarded"\n[profiles.guarded]\nbootstrap = "{guarded.node.bootstrap}"\n'
        f'username = "admin"\npassword-file = "{guarded.password}"\n'
        f'tls-authorities = "{guarded.authority.path}"\n'
    )
    admin = Admin(XDG_CONFIG_HOME=str(tmp_path))
    assert admin.json("cluster", "describe")["cluster_id"] == CLUSTER_ID
    elsewhere = Admin(XDG_CONFIG_HOME=str(tmp_path), MQ_PASSWORD="of another cluster")
    assert elsewhere.json("cluster", "describe")["cluster_id"] == CLUSTER_ID


def told(admin: Admin, words: str, *options: object) -> None:
    """Repeat a command until its error has `words`; on a busy machine it may be a timeout."""

    def says() -> bool:
        admin(*options, "--timeout", 1, "topics", "list", code=3)
        return words in admin.errors

    wait_until(says, what=words)


def test_who_is_not_known_is_told_so_in_a_sentence(guarded: Guarded, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("wr0ng")
    admin = Admin()
    admin(*guarded.options, "--password-file", wrong, "topics", "list", code=1)
    assert "SASL_AUTHENTICATION_FAILED" in admin.errors
    assert "wr0ng" not in admin.errors
    admin(*guarded.options, "--mechanism", "PLAIN", "topics", "list", code=1)
    assert "only: SCRAM-SHA-256, SCRAM-SHA-512" in admin.errors
    stranger = Authority(tmp_path, "stranger").path
    told(admin, "TLS handshake failed", *guarded.options, "--tls-authorities", stranger)
    assert "--tls-authorities, MQ_TLS_AUTHORITIES or a profile enables TLS" in admin.errors


def test_who_says_nothing_is_told_what_may_be_missing(guarded: Guarded) -> None:
    admin = Admin()
    at = ["-b", guarded.node.bootstrap]
    closed = "the broker closed the connection at the first request; it may expect TLS"
    told(admin, closed, *at)
    assert "--tls-authorities, MQ_TLS_AUTHORITIES or a profile enables TLS" in admin.errors
    tls = ["--tls-authorities", guarded.authority.path]
    told(admin, "it may require SASL", *at, *tls)
    assert "set the user name and password with --username and" in admin.errors
    no_tls = "TLS handshake failed: the broker does not seem to use TLS on this port"
    told(admin, no_tls, "-b", guarded.plain, *tls)
    assert "--tls-authorities, MQ_TLS_AUTHORITIES or a profile enables TLS" in admin.errors


def test_a_host_that_is_named_after_a_protocol_gets_no_advice_about_it() -> None:
    for host in ("TLS.invalid", "SASL.invalid"):
        admin = Admin()
        admin("-b", f"{host}:1", "topics", "list", code=3)
        assert f"no broker could be reached: {host}:1: " in admin.errors
        assert "--bootstrap, MQ_BOOTSTRAP or a profile" in admin.errors
        assert "--tls-authorities" not in admin.errors
        assert "--username" not in admin.errors


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--username", "a"), "SASL needs a password"),
        (("--security-protocol", "SASL_SSL"), "SASL needs a user name"),
        (("--security-protocol", "SSL", "--username", "a"), "contradicts the other"),
        (("--security-protocol", "KERBEROS"), "must be one of PLAINTEXT"),
        (("--username", "a", "--mechanism", "GSSAPI"), "the mechanism must be one of"),
        (("--username", "a", "--password-file", "/nowhere"), "cannot read /nowhere"),
        (("--tls-authorities", "/nowhere"), "/nowhere cannot be read"),
        (("--tls-key", "/nowhere"), "needs tls-certificate"),
    ],
)
def test_what_does_not_fit_together_is_refused(options: tuple[str, ...], complaint: str) -> None:
    admin = Admin()
    admin("-b", "127.0.0.1:1", *options, "topics", "list", code=2)
    assert complaint in admin.errors


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("alice:secret", "takes MECHANISM="),
        ("MD5=[name=alice,password=secret]", "the mechanism must be one of"),
        ("SCRAM-SHA-256=[password=secret]", "needs a name"),
        ("SCRAM-SHA-256=[name=alice]", "needs one of password"),
        ("SCRAM-SHA-256=[name=alice,password=secret,iterations=1]", "Too few iterations"),
        ("SCRAM-SHA-256=[name=alice,password=secret,role=secret]", "the brackets take KEY=VALUE"),
        ("SCRAM-SHA-256=[name=alice,password-file=/nowhere]", "/nowhere cannot be read"),
        ("SCRAM-SHA-256=[name=alice,saltedpassword=c2VjcmV0]", "needs salt"),
    ],
)
def test_users_that_make_no_sense_are_refused(text: str, complaint: str, tmp_path: Path) -> None:
    output = formatted(tmp_path / "data", text, code=2)
    assert complaint in output
    assert "secret" not in output
    assert not (tmp_path / "data" / "meta.properties").exists()
