"""What there is: health, versions, groups, resources; all paths that name no resource."""

from __future__ import annotations

from attestation_testing.kubernetes.access import Attributes
from attestation_testing.kubernetes.host import Host
from attestation_testing.kubernetes.requests import NOTHING, Answer, Request
from attestation_testing.kubernetes.status import Object, unknown_path
from attestation_testing.kubernetes.store import encode


class Discovery:
    """Answers for *cluster* at paths that name no resource."""

    def __init__(self, cluster: Host) -> None:
        self._cluster = cluster

    def answer(self, request: Request) -> Answer:
        """Answer, or refuse an unknown path."""
        path = "/" + request.path.strip("/")
        self._cluster.access.check(request.user, Attributes(verb=request.method.lower(), path=path))
        if path in ("/healthz", "/livez", "/readyz"):
            return Answer(200, b"ok", "text/plain")
        if path in self._cluster.documents:
            return Answer(200, encode(self._cluster.documents[path]()))
        if path == "/version":
            return Answer(
                200,
                encode(
                    {
                        "major": "1",
                        "minor": str(self._cluster.minor),
                        "gitVersion": f"v1.{self._cluster.minor}.0-fake",
                        "platform": "python",
                    }
                ),
            )
        if path == "/api":
            return Answer(200, encode({"kind": "APIVersions", "versions": ["v1"]}))
        if path == "/apis":
            groups = [
                self._group(each) for each in sorted({key[0] for key in self._cluster.resources}) if each
            ]
            return Answer(200, encode({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        parts = path.strip("/").split("/")
        if path == "/api/v1":
            return Answer(200, encode(self._group_version("", "v1")))
        if parts[0] == "apis" and any(key[0] == parts[1] for key in self._cluster.resources):
            if len(parts) == 2:  # apis, group
                return Answer(200, encode({"kind": "APIGroup", "apiVersion": "v1", **self._group(parts[1])}))
            if len(parts) == 3:  # apis, group, version
                return Answer(200, encode(self._group_version(parts[1], parts[2])))
        if parts[0] in ("api", "apis"):
            return NOTHING
        raise unknown_path()

    def _group(self, group: str) -> Object:
        names: list[str] = []
        for (of, _), resource in self._cluster.resources.items():
            if of == group:
                names += [each.name for each in resource.versions if each.name not in names]
        versions = [{"groupVersion": f"{group}/{name}", "version": name} for name in names]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _group_version(self, group: str, version: str) -> Object:
        found: list[Object] = []
        for (of, plural), resource in sorted(self._cluster.resources.items()):
            if of != group or resource.version(version) is None:
                continue
            entry: Object = {
                "name": plural,
                "singularName": resource.singular,
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": sorted(resource.verbs),
            }
            if resource.short_names:
                entry["shortNames"] = list(resource.short_names)
            found.append(entry)
            found += [
                {
                    "name": f"{plural}/{each}",
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    "kind": resource.kind,
                    "verbs": ["create"] if each == "token" else ["get", "patch", "update"],
                }
                for each in sorted(resource.subresources)
            ]
        if not found:
            raise unknown_path()
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": found,
        }
