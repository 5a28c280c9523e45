"""ServiceAccounts and reviews: TokenRequest, TokenReview, SubjectAccessReview and its kin."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from attestation_testing.kubernetes.access import Attributes, User
from attestation_testing.kubernetes.authority import TokenSigner, instant
from attestation_testing.kubernetes.cluster import Cluster
from attestation_testing.kubernetes.objects import text
from attestation_testing.kubernetes.requests import Target
from attestation_testing.kubernetes.resources import NODE_CLAIMS
from attestation_testing.kubernetes.status import Object, bad_request, invalid, not_found, unprocessable

_SHORTEST: Final = 600
_NODE: Final = "authentication.kubernetes.io/node-"
_POD: Final = "authentication.kubernetes.io/pod-"


class Accounts:
    """Answers the reviews of *cluster*, and gives out tokens of its ServiceAccounts.

    Args:
        cluster: Where ServiceAccounts and Pods are.
        signer: Signs tokens; its issuer is the audience of the API itself.
    """

    def __init__(self, cluster: Cluster, signer: TokenSigner) -> None:
        self._cluster = cluster
        self.signer = signer
        access, identity = "authorization.k8s.io", "authentication.k8s.io"
        cluster.reviews |= {
            ("", "serviceaccounts", "token"): self._request,
            (identity, "tokenreviews", ""): self._token_review,
            (identity, "selfsubjectreviews", ""): self._self_review,
            (access, "subjectaccessreviews", ""): self._access_review,
            (access, "localsubjectaccessreviews", ""): self._access_review,
            (access, "selfsubjectaccessreviews", ""): self._self_access_review,
        }
        cluster.documents |= {
            "/openid/v1/jwks": signer.jwks,
            "/.well-known/openid-configuration": self._discovery,
        }

    def _discovery(self) -> Object:
        return {
            "issuer": self.signer.issuer,
            "jwks_uri": f"{self.signer.issuer}/openid/v1/jwks",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }

    # Tokens

    def issue(
        self,
        namespace: str,
        name: str,
        *,
        audiences: tuple[str, ...] = (),
        seconds: int = 3600,
        pod: str | None = None,
        node: str | None = None,
    ) -> str:
        """Return a token of a ServiceAccount; it, the Pod and its Node are made where there are none."""
        self._ensure("namespaces", "", namespace)
        account = self._ensure("serviceaccounts", namespace, name)
        bound = None
        if pod is not None:
            if node is not None:
                self._ensure("nodes", "", node)
            found = self._ensure("pods", namespace, pod, {"nodeName": node} if node is not None else {})
            bound = {"kind": "Pod", "name": pod, "uid": found["metadata"]["uid"]}
        return self._sign(account, audiences or (self.signer.issuer,), seconds, bound)

    def _ensure(self, plural: str, namespace: str, name: str, spec: Object | None = None) -> Object:
        found = self._cluster.store.get(("", plural), namespace, name)
        raw = {"metadata": {"name": name}, **({"spec": spec} if spec else {})}
        return found or self._cluster.make("", plural, raw, namespace=namespace)

    def _node_of(self, namespace: str, pod: str) -> Object | None:
        """Return what a token that is bound to a Pod says of its Node; one that is not there has no UID."""
        found = self._cluster.store.get(("", "pods"), namespace, pod)
        name = ((found or {}).get("spec") or {}).get("nodeName")
        if not name or self._cluster.minor < NODE_CLAIMS:
            return None
        node = self._cluster.store.get(("", "nodes"), "", name)
        return {"name": name, **({"uid": node["metadata"]["uid"]} if node else {})}

    def _sign(self, account: Object, audiences: tuple[str, ...], seconds: int, bound: Object | None) -> str:
        metadata, at = account["metadata"], instant(self._cluster.now())
        namespace, name = metadata["namespace"], metadata["name"]
        said: Object = {"namespace": namespace, "serviceaccount": {"name": name, "uid": metadata["uid"]}}
        if bound is not None:
            said[str(bound["kind"]).lower()] = {"name": bound["name"], "uid": bound["uid"]}
            if bound["kind"] == "Pod" and (node := self._node_of(namespace, bound["name"])):
                said["node"] = node
        return self.signer.sign(
            {
                "aud": list(audiences),
                "exp": at + seconds,
                "iat": at,
                "iss": self.signer.issuer,
                "kubernetes.io": said,
                "nbf": at,
                "sub": f"system:serviceaccount:{namespace}:{name}",
            }
        )

    def _request(self, target: Target, value: Object, _user: User) -> Object:
        account = self._cluster.store.get(("", "serviceaccounts"), target.namespace, target.name)
        if account is None:
            raise not_found("", "serviceaccounts", target.name)
        spec = value.get("spec") or {}
        seconds = int(spec.get("expirationSeconds") or 3600)
        if seconds < _SHORTEST:
            error = invalid(
                "spec.expirationSeconds", str(seconds), "may not specify a duration less than 10 minutes"
            )
            raise unprocessable("authentication.k8s.io", "TokenRequest", "", [error])
        bound = spec.get("boundObjectRef")
        if bound is not None:
            plural = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}.get(str(bound.get("kind")))
            if plural is None:
                raise bad_request(f"cannot bind token for serviceaccount {target.name!r} to object type")
            found = self._cluster.store.get(
                ("", plural), "" if plural == "nodes" else target.namespace, str(bound.get("name"))
            )
            if found is None:
                raise not_found("", plural, str(bound.get("name")))
            bound = {"kind": bound["kind"], "name": bound["name"], "uid": found["metadata"]["uid"]}
        audiences = tuple(spec.get("audiences") or (self.signer.issuer,))
        token = self._sign(account, audiences, seconds, bound)
        until = text(datetime.fromtimestamp(instant(self._cluster.now()) + seconds, UTC))
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": target.name, "namespace": target.namespace},
            "spec": {"audiences": list(audiences), "expirationSeconds": seconds, "boundObjectRef": bound},
            "status": {"token": token, "expirationTimestamp": until},
        }

    def _claims(self, token: str) -> tuple[dict[str, Any], User] | None:
        """Return what a token says that holds now, and whose it is."""
        claims = self.signer.read(token)
        if claims is None or claims.get("iss") != self.signer.issuer:
            return None
        at, said = instant(self._cluster.now()), claims.get("kubernetes.io") or {}
        if not claims.get("nbf", 0) <= at < claims.get("exp", 0):
            return None
        namespace = str(said.get("namespace"))
        extra: dict[str, tuple[str, ...]] = {}
        for kind, plural in (
            ("serviceaccount", "serviceaccounts"),
            ("pod", "pods"),
            ("secret", "secrets"),
            ("node", "nodes"),
        ):
            ref = said.get(kind)
            if ref is None:
                continue
            if kind == "node" and "pod" in said:
                # The Pod says where it is; the Node itself may be gone.
                extra |= {f"{_NODE}{name}": (str(ref[name]),) for name in ("name", "uid") if name in ref}
                continue
            found = self._cluster.store.get(
                ("", plural), "" if kind == "node" else namespace, str(ref.get("name"))
            )
            if found is None or found["metadata"]["uid"] != ref.get("uid"):
                return None
            if kind == "pod":
                extra = {f"{_POD}name": (str(ref["name"]),), f"{_POD}uid": (str(ref["uid"]),)}
        account = said.get("serviceaccount") or {}
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        return claims, User(
            str(claims.get("sub")), groups, str(account.get("uid", "")), extra
        ).authenticated()

    def user(self, token: str) -> User | None:
        """Return whose token this is where it is for the API itself."""
        found = self._claims(token)
        if found is None or self.signer.issuer not in found[0].get("aud", ()):
            return None
        return found[1]

    def _token_review(self, _target: Target, value: Object, _user: User) -> Object:
        spec = value.get("spec") or {}
        found = self._claims(str(spec.get("token") or ""))
        wanted = spec.get("audiences") or [self.signer.issuer]
        status: Object = {"user": {}}
        if found is not None and (both := [each for each in wanted if each in found[0].get("aud", ())]):
            status = {"authenticated": True, "user": found[1].as_object(), "audiences": both}
        else:
            status["error"] = "[invalid bearer token, token audiences or signature are not those wanted]"
        return {**value, "status": status}

    def _self_review(self, _target: Target, value: Object, user: User) -> Object:
        return {**value, "status": {"userInfo": user.as_object()}}

    # Access

    def _decide(self, spec: Object, user: User) -> Object:
        if path := spec.get("nonResourceAttributes"):
            what = Attributes(verb=str(path.get("verb", "")), path=str(path.get("path", "")))
        else:
            asked = spec.get("resourceAttributes") or {}
            names = ("verb", "group", "resource", "subresource", "namespace", "name")
            what = Attributes(**{each: str(asked.get(each) or "") for each in names})
        return {"allowed": self._cluster.access.allows(user, what)}

    def _access_review(self, target: Target, value: Object, _user: User) -> Object:
        spec = value.get("spec") or {}
        if not spec.get("user") and not spec.get("groups"):
            error = invalid("spec.user", '""', "at least one of user or group must be specified")
            raise unprocessable("authorization.k8s.io", target.resource.kind, "", [error])
        user = User(str(spec.get("user") or ""), tuple(spec.get("groups") or ()))
        return {**value, "status": self._decide(spec, user)}

    def _self_access_review(self, _target: Target, value: Object, user: User) -> Object:
        return {**value, "status": self._decide(value.get("spec") or {}, user)}
