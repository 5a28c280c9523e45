"""Three hours of Talos' clock against `/config`, for each pending answer and for URLs with a token."""

from __future__ import annotations

import pytest
from ruamel import yaml

from attestation.machines import Role
from attestation.talos.lint import lint
from attestation.talos.versions import generation_of
from attestation_service.border import console
from attestation_service.delivery.routes import partial_documents
from attestation_testing.talos.downloader import Answer, Ask, Hardware, Outcome, Request, download
from attestation_testing.talos.factory import serving
from tests.unit.service.conftest import CANARY, Service, Starter
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio

URL = "https://attest.example.test/api/v1/config?mac=${mac}&uuid=${uuid}&serial=${serial}"
HARDWARE = Hardware(uuid="40dcbd19-3b10-444e-bfff-aaee44a51fda", serial="0OCZJ19N65", mac="52:2f:fd:df:fc:c0")


def over(service: Service) -> Ask:
    """Return what carries Talos' requests to *service*; no Accept header, as its downloader sends none."""

    async def ask(request: Request) -> Answer:
        answer = await service.http.request(
            request.method, request.url, headers={"Accept": "", **request.headers}, content=request.form
        )
        assert answer.headers["cache-control"] == "no-store"
        if answer.status_code not in (200, 204):
            assert answer.headers["content-type"].startswith("text/plain")
            assert len(answer.content) <= 32
        return Answer(status=answer.status_code, body=answer.content)

    return ask


@pytest.mark.threat("T16")
@pytest.mark.parametrize(
    ("setting", "outcome", "attempts", "console"),
    [
        ("partial", Outcome.CONFIGURED, 1, "apiVersion: v1alpha1\nkind: Exten"),
        ("empty", Outcome.MAINTENANCE, 1, ""),
        ("retry", Outcome.TIMEOUT, 14, "attest to get a configuration"),
    ],
)
async def test_mac_uuid_and_serial_release_nothing_in_three_hours(
    start: Starter, setting: str, outcome: Outcome, attempts: int, console: str
) -> None:
    """Also of a machine that is attested, known by just these, and due its configuration."""
    service = await start(pending_answer=setting)
    node = SoftwareNode()
    await service.introduce(node, hw_mac=HARDWARE.mac, hw_uuid=HARDWARE.uuid, hw_serial=HARDWARE.serial)
    await service.act(node, "approve", {"role": "worker-app"})
    assert (await service.attest(node))["action"] == "apply-config"
    found = await download(URL, HARDWARE, over(service), service.clock)
    assert (found.outcome, len(found.attempts)) == (outcome, attempts)
    assert {attempt.console for attempt in found.attempts} == {console}
    assert CANARY not in found.body.decode()
    assert b"v1alpha1\nmachine" not in found.body


@pytest.mark.parametrize(
    ("act", "statuses", "last"),
    [
        # Waits for an operator, then for a proof: the pending answer, in the words of its state.
        (None, {503}, "attest again"),
        # Withdrawn, and later expired.
        ("revoke", {410}, "token consumed"),
    ],
)
async def test_a_token_url_for_three_hours(
    start: Starter, act: str | None, statuses: set[int], last: str
) -> None:
    """Talos can prove nothing: what it sees is why there is nothing for it, and at last that the token has ended."""
    service = await start(pending_answer="retry", config_token_ttl_seconds=86_400)
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    if act is None:
        service.clock.advance(3600)  # beyond the lease of what it proved
    else:
        await service.act(node, act)
    url = f"https://attest.example.test/api/v1/config/{token}?uuid="
    found = await download(url, HARDWARE, over(service), service.clock)
    assert found.outcome is Outcome.TIMEOUT
    assert {attempt.status for attempt in found.attempts} == statuses
    assert found.attempts[-1].console.startswith(last)
    assert CANARY not in found.body.decode()


async def test_an_image_of_the_factory_walks_the_same_way(start: Starter) -> None:
    """What the service has the factory put into an image is a URL that Talos fills in, and that is answered."""
    with serving() as factory:
        service = await start(
            factory_url=factory.url, factory_extensions=(), talos_version="v1.13.9", pending_answer="retry"
        )
        made = (await service.operator("POST", "/images", {"role": "worker-app"})).json()
    schematic = yaml.YAML(typ="safe", pure=True).load(factory.schematics[made["schematic_id"]])
    (argument,) = schematic["customization"]["extraKernelArgs"]
    assert argument == f"talos.config={URL}"
    found = await download(argument.removeprefix("talos.config="), HARDWARE, over(service), service.clock)
    assert (found.outcome, len(found.attempts)) == (Outcome.TIMEOUT, 14)
    assert {attempt.url.partition("?")[2] for attempt in found.attempts} == {
        "mac=52%3A2f%3Afd%3Adf%3Afc%3Ac0&serial=0OCZJ19N65&uuid=40dcbd19-3b10-444e-bfff-aaee44a51fda"
    }


async def test_errors_fit_on_a_console_whoever_finds_them(service: Service) -> None:
    """Also those that no handler of `/config` has seen; in JSON for whoever asks for that."""
    for path, status, words in (
        ("/api/v1/config/" + "x" * 43, 404, "config token unknown"),
        ("/api/v1/config/" + "x" * 4096, 404, "config token unknown"),
        ("/api/v1/config/a/b", 404, "route unknown"),
    ):
        answer = await over(service)(Request(method="GET", url=path))
        assert (answer.status, answer.body.decode()) == (status, words)
        problem = await service.get(path, headers={"Accept": "application/json"})
        assert problem.headers["content-type"] == "application/problem+json"


def test_words_are_cut_where_a_console_cuts_them() -> None:
    """Whatever an error is called one day."""
    assert console.text("0123456789" * 4, 503).body == b"01234567890123456789012345678901"


async def test_an_attested_machine_reads_what_it_should_have_sent(service: Service) -> None:
    """406 in words, and the media type where HTTP has it; the token is not spent."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    answer = await service.fetch(token, None)
    assert (answer.status_code, answer.text) == (406, "encrypted delivery required")
    assert answer.headers["accept"] == "application/vnd.itl.config.encrypted+json"
    assert (await service.fetch(token)).status_code == 200


@pytest.mark.parametrize("version", ["v1.9.5", "v1.13.9", "v1.14.0"])
def test_partial_documents_are_valid_for_each_version(version: str) -> None:
    """By the three schemas, whatever the service is called; and there is no v1alpha1 document in them."""
    documents = partial_documents('https://attest.example.test/"quoted"\\')
    assert not lint(documents.encode(), generation_of(version), Role.WORKER_APP)
    assert lint(documents.replace("name:", "nane:").encode(), generation_of(version), Role.WORKER_APP)
    assert "version: v1alpha1" not in documents
