"""The dashboard's words for routes of extensions are the extensions' own: it imports nothing of them."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

import pytest

from attestation.api.base import Wire
from attestation.api.operation import ClientMethod
from attestation_extensions.commands import kms_api, secrets_api, webhooks_api
from attestation_extensions.disk_kms import wire as kms_wire
from attestation_extensions.secret_vault import records as vault_records
from attestation_extensions.secret_vault import wire as vault_wire
from attestation_extensions.webhooks import records as webhook_records
from attestation_extensions.webhooks import wire as webhook_wire
from attestation_web.extensions import kms, vault, webhooks
from attestation_web.pages import secrets

OURS: tuple[tuple[Any, Any, ModuleType], ...] = (
    (webhooks.Webhooks, webhooks_api.Webhooks, webhook_wire),
    (vault.Vault, secrets_api.Vault, vault_wire),
    (kms.KMS, kms_api.KMS, kms_wire),
)
WRITTEN_HERE = {"CreateWebhook", "KMSHoldRequest", "KMSReleaseRequest", "UpdateWebhook"}
"""What the dashboard sends; it may leave something out."""


def _operations(declared: type) -> dict[str, ClientMethod[Any, Any]]:
    return {name: each for name, each in vars(declared).items() if isinstance(each, ClientMethod)}


def _spelled(annotation: Any) -> str:
    """Return a type by its name, without the module that a model of one side stands in."""
    return re.sub(r"\b[a-z_]+\.", "", str(annotation)).replace("<class '", "").replace("'>", "")


@pytest.mark.parametrize(("ours", "theirs", "wire"), OURS, ids=["webhooks", "secret_vault", "disk_kms"])
def test_each_route_is_the_extension_s(ours: type, theirs: type, wire: ModuleType) -> None:
    """Method, path and what is asked with are the same; so is what is answered, member by member."""
    known = _operations(theirs)
    assert _operations(ours)
    for name, each in _operations(ours).items():
        assert (each.operation_id, each.method, each.path) == (
            known[name].operation_id,
            known[name].method,
            known[name].path,
        )
        assert list(each.signature.parameters) == list(known[name].signature.parameters), name
        assert getattr(each.answer, "__name__", None) == getattr(known[name].answer, "__name__", None)


@pytest.mark.parametrize(
    ("ours", "wire"),
    [(webhooks, webhook_wire), (vault, vault_wire), (kms, kms_wire)],
    ids=["webhooks", "secret_vault", "disk_kms"],
)
def test_each_model_has_the_members_of_the_extension_s(ours: ModuleType, wire: ModuleType) -> None:
    """What comes is read whole; what is sent is of members that are known there."""
    models = {
        name: model
        for name, model in vars(ours).items()
        if inspect.isclass(model) and issubclass(model, Wire) and model.__module__ == ours.__name__
    }
    assert models
    for name, model in models.items():
        theirs = getattr(wire, name).model_fields
        if name in WRITTEN_HERE:
            assert model.model_fields.keys() <= theirs.keys(), name
            continue
        mine = {n: (_spelled(f.annotation), f.is_required()) for n, f in model.model_fields.items()}
        assert mine == {n: (_spelled(f.annotation), f.is_required()) for n, f in theirs.items()}, name
        assert model.SHOWN_ONCE == getattr(wire, name).SHOWN_ONCE, name
    assert webhooks.State == webhook_records.State
    assert secrets.PAGE_ROWS == vault_records.MOST_LISTED
