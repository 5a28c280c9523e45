"""docs/kubernetes/hsm-kinds.md says what the kinds of HSM issuers are."""

from __future__ import annotations

import re

from ruamel.yaml import YAML

from attestation_operator.crds.hsm import HardwareSecurityModule, HsmIssuer
from attestation_operator.crds.leaves import HsmCertificate
from tests.docs.pages import text
from tools.kinds_page import MARK, reference

PAGE = text("docs/kubernetes/hsm-kinds.md")


def test_the_reference_is_that_of_the_models() -> None:
    """Who changes a model writes it anew: `python -m tools.kinds_page`."""
    _, mark, behind = PAGE.partition(MARK)
    assert mark
    assert behind == reference("hsm-kinds.md")


def test_the_examples_are_objects_of_these_kinds() -> None:
    """Whoever copies them has what the controller reads."""
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    module, issuer = YAML(typ="safe", pure=True).load_all(example)
    HardwareSecurityModule.model_validate({"spec": module["spec"]}, by_alias=True, by_name=False)
    HsmIssuer.model_validate({"spec": issuer["spec"]}, by_alias=True, by_name=False)
    assert issuer["spec"]["hsmRef"]["name"] == module["metadata"]["name"]
    assert issuer["metadata"]["namespace"] in module["spec"]["allowedNamespaces"]


def test_the_example_of_a_leaf_is_one() -> None:
    """Whoever copies it from the page of the controller has what the controller reads, and an issuer that is there."""
    _, _, behind = text("docs/kubernetes/hsm.md").partition("## Leaf keys on the token")
    lines = behind.split("\n\n| member")[0].splitlines()
    example = "\n".join(line[4:] for line in lines if line.startswith("    "))
    [leaf] = YAML(typ="safe", pure=True).load_all(example)
    HsmCertificate.model_validate({"spec": leaf["spec"]}, by_alias=True, by_name=False)
    module, issuer = YAML(typ="safe", pure=True).load_all(
        re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
    )
    assert leaf["spec"]["hsmRef"]["name"] == module["metadata"]["name"]
    assert leaf["spec"]["issuerRef"]["name"] == issuer["metadata"]["name"]
    assert leaf["metadata"]["namespace"] in module["spec"]["allowedNamespaces"]
    [domain] = issuer["spec"]["policy"]["names"]["dnsDomains"]
    assert all(each.endswith(f".{domain}") for each in leaf["spec"]["dnsNames"])
