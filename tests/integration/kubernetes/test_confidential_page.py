"""docs/kubernetes/confidential.md: what it tells to copy does what it says."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from functools import partial
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from ruamel.yaml import YAML

from attestation.wire import b64decode, b64encode
from attestation_cli.main import cli
from tests.contract.kubernetes import done
from tests.docs.pages import text
from tests.fixtures.controllers import until
from tests.fixtures.kube import FakeKube, fake, rest
from tests.fixtures.runs import NODES, SPACE
from tests.integration.runs.worlds import World, world

__all__ = ["fake"]

LABEL = "node-restriction.kubernetes.io/itl-attested"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def _pod(**spec: Any) -> dict[str, Any]:
    containers = [{"name": "one", "image": "none"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod"},
        "spec": {"containers": containers, **spec},
    }


def test_pods_of_a_namespace_go_to_attested_nodes(fake: FakeKube) -> None:
    """The policy of the page refuses a pod without the selector, with another value, and with a node of its choice."""
    page = text("docs/kubernetes/confidential.md")
    [block] = [
        each for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "ValidatingAdmission" in each
    ]
    policy, binding = YAML(typ="safe").load_all(block)
    [selector] = re.findall(r"^nodeSelector:\n  (\S+): (\w+)$", page, re.MULTILINE)
    assert selector[0] == LABEL
    with rest(fake) as admin:
        for name, labels in (("guarded", {"confidential": "true"}), ("others", {})):
            done(admin.post("/api/v1/namespaces", json={"metadata": {"name": name, "labels": labels}}), 201)
        done(admin.post(f"{ADMISSION}/validatingadmissionpolicies", json=policy), 201)
        done(admin.post(f"{ADMISSION}/validatingadmissionpolicybindings", json=binding), 201)
        pods = "/api/v1/namespaces/guarded/pods"
        refused: tuple[dict[str, Any], ...] = (
            {},
            {"nodeSelector": {}},
            {"nodeSelector": {LABEL: "failed"}},
            {"nodeSelector": {LABEL: "verified"}, "nodeName": "worker-1"},
        )
        for spec in refused:
            assert admin.post(pods, json=_pod(**spec)).status_code == 422, spec
        done(admin.post(pods, json=_pod(nodeSelector=dict([selector]))), 201)
        done(admin.post("/api/v1/namespaces/others/pods", json=_pod()), 201)


def test_a_verified_run_labels_its_node(fake: FakeKube, tmp_path: Path) -> None:
    """The label of the page, with the value that its workload asks for."""
    page = text("docs/kubernetes/confidential.md")
    [(label, value)] = re.findall(r"^nodeSelector:\n  (\S+): (\w+)$", page, re.MULTILINE)
    with world(fake, tmp_path, node_action="label", node_action_namespaces=SPACE) as here:
        answered(here)
        labels = here.estate.get(f"{NODES}/{here.node.name}")["metadata"]["labels"]
    assert labels[label] == value


def answered(here: World, **spec: Any) -> dict[str, Any]:
    """Create a run, answer it honestly, and return it as it ended."""
    run = here.run(**spec)
    until(partial(here.is_running, run))
    here.node.answered(run["metadata"]["uid"])
    return here.ended(run)


def test_a_key_is_released_by_what_the_page_says(fake: FakeKube, tmp_path: Path) -> None:
    """Steps 1 to 4, by the words of the page; an answer to another value, or under another policy, releases none."""
    with world(fake, tmp_path) as here:
        pinned = tmp_path / "service.jwks"
        pinned.write_bytes(here.service.client().get("/api/v1/service-keys").content)

        def releases(run: dict[str, Any], value: str, policy_id: str) -> bool:
            token = tmp_path / "result.jwt"
            token.write_text(here.estate.result(run)["spec"]["attestationResult"])
            random = b64decode(run["status"]["challenge"]["random"], "random")
            parts = (b"itl-run-challenge/v1", random, run["metadata"]["uid"].encode(), value.encode())
            lengths = ((len(each).to_bytes(4, "big"), each) for each in parts)
            nonce = b64encode(hashlib.sha256(b"".join(part for pair in lengths for part in pair)).digest())
            words = ["result", "verify", str(token), "--keys", str(pinned), "--nonce", nonce]
            done = CliRunner().invoke(cli, ["-o", "json", *words])
            if done.exit_code != 0:
                return False
            said = json.loads(done.output)
            return bool(
                said["machine_id"] == here.node.machine.machine_id
                and all(policy_id in each["policies"] for each in said["submods"].values())
                and all(each["status"] == "affirming" for each in said["submods"].values())
            )

        value = secrets.token_hex(16)
        run = answered(here, nonce=value)
        policy_id = run["status"]["policyID"]
        assert releases(run, value, policy_id)
        assert not releases(run, secrets.token_hex(16), policy_id)
        assert not releases(run, value, "ni:///sha-384;another")
        # One that was recorded earlier answers no new value.
        assert not releases(run | {"metadata": run["metadata"] | {"uid": "another"}}, value, policy_id)
