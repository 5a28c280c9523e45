"""An image for a role: one of your own, or a schematic of the Image Factory that any machine can boot."""

from __future__ import annotations

from attestation.api import ImageDetail, ImageRequest
from attestation.store import Tx
from attestation.talos.images import image_url, installer_image
from attestation_service.auth import OperatorDep
from attestation_service.entitlements import events
from attestation_service.images.factory import HTTPFactory
from attestation_service.resources import Res
from attestation_service.settings import Settings


async def issue(request: ImageRequest, *, res: Res, operator: OperatorDep) -> ImageDetail:
    """Say which image a role boots.

    With `ITL_ISO_URL` it is that one. Else the Image Factory is sent a schematic that any machine can boot, and its id
    is compared with the one computed here.

    Raises:
        SchematicInvalid: An extension that no schematic has.
        ClusterUnknown: Clusters are declared, and this is none of them.
        RequestInvalid: There is no such image, or the version names no release.
        FactoryUnavailable, FactoryAnswerInvalid, SchematicMismatch: The factory does not do what it should.
    """
    at = res.clock.now()

    def version_of(tx: Tx) -> str | None:
        tx.clusters.demand_known(request.cluster_id)
        return tx.clusters.talos_version(request.cluster_id)

    version = await res.store.read(version_of)
    detail = await _image(
        request, request.talos_version or version or res.settings.talos_version, res.settings
    )

    def work(tx: Tx) -> ImageDetail:
        told = f"{request.role} of cluster {request.cluster_id}: {detail.url}"
        tx.audit.append(operator.event("image", detail=told), at)
        events.image_issued(
            tx,
            at,
            role=request.role,
            cluster_id=request.cluster_id,
            iso_url=detail.url,
            schematic_id=detail.schematic_id,
        )
        return detail

    return await res.store.write(work)


async def _image(request: ImageRequest, version: str, settings: Settings) -> ImageDetail:
    if settings.iso_url:
        return ImageDetail(
            role=request.role,
            cluster_id=request.cluster_id,
            source="own",
            url=settings.iso_url,
            schematic_id=None,
            schematic=None,
            installer_image=settings.installer_image or None,
            talos_version=None,
        )
    from attestation.talos.schematic import of_machines  # few ask for an image, and it takes a YAML library

    schematic = of_machines(settings.service_url, (*settings.factory_extensions, *request.extensions))
    # Before anybody is asked: an image that there is not needs no schematic.
    url = image_url(
        settings.factory_url,
        schematic.id,
        version,
        request.kind,
        request.architecture,
        secureboot=request.secureboot,
    )
    installer = installer_image(settings.factory_url, schematic.id, version, secureboot=request.secureboot)
    schematic_id = await HTTPFactory(settings.factory_url, settings.factory_ca_file).create(schematic)
    return ImageDetail(
        role=request.role,
        cluster_id=request.cluster_id,
        source="factory",
        url=url,
        schematic_id=schematic_id,
        schematic=schematic.canonical().decode(),
        installer_image=installer,
        talos_version=version,
    )
