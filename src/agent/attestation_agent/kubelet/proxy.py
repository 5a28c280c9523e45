"""nginx on loopback that speaks for kubelet with a key of the TPM.

kubelet reads key files, so a key that cannot leave the TPM needs somebody who signs for it: nginx, whose OpenSSL has
the key through the provider `tpm2`. kubelet speaks to it over TLS on 127.0.0.1, it speaks to the API server as this
node.

On a node, 127.0.0.1 is shared with each process and with each Pod on the host's network. So nginx lets nobody in who
does not show the certificate in `local.pem`: made for this purpose, in memory, mode 0600, of use on this node alone.
Its one key is that of both ends: whoever can read it is root here.
"""

# Algorithms for: node-proxy
from __future__ import annotations

import ipaddress
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attestation_agent.exits import UsageError
from attestation_agent.kubelet.kept import BUNDLE
from attestation_agent.kubelet.kubeconfig import Cluster, written
from attestation_agent.kubelet.settings import Listen

LOCAL: Final = "local.pem"
NGINX: Final = "nginx.conf"
OPENSSL: Final = "openssl.cnf"
AUTHORITIES: Final = "api-server-ca.pem"
PID: Final = "nginx.pid"
LOCAL_LIFETIME: Final = timedelta(days=3650)
"""It is made anew with each start of the node: kubelet reads some files once, and must not outlive this one."""
IN_CLUSTER_NAME: Final = "kubernetes.default.svc"
"""A name that each API server's certificate has; nginx compares names only, never addresses."""

_PATH = re.compile(r"/[A-Za-z0-9._/-]{1,200}\Z")

OPENSSL_CONF: Final = """\
openssl_conf = openssl_init
[openssl_init]
providers = provider_section
alg_section = algorithm_section
[algorithm_section]
default_properties = ?provider=tpm2,tpm2.digest!=yes,tpm2.cipher!=yes,tpm2.rand!=yes
[provider_section]
default = default_section
tpm2 = tpm2_section
[default_section]
activate = 1
[tpm2_section]
activate = 1
"""
"""What of OpenSSL's work goes to the TPM: what needs the key, and nothing else (docs/operate/agent-certificates.md)."""

_NGINX = """\
# Written by `attestation-agent kubelet proxy`; changes are lost.
# One worker: workers inherit one open connection to the TPM, and two would take each other's answers.
worker_processes 1;
pid {directory}/{pid};
error_log stderr warn;
env TPM2OPENSSL_TCTI;
# After a renewal it is restarted, not reloaded: after a reload two workers would share the TPM's key handles.
events {{
    worker_connections 4096;
}}
http {{
    access_log off;
    server_tokens off;
{temporary}    map $http_upgrade $itl_connection {{
        default upgrade;
        "" "";
    }}
    upstream kubernetes {{
        server {upstream};
        keepalive 32;
    }}
    server {{
        listen {listen} ssl;
        ssl_certificate {directory}/{local};
        ssl_certificate_key {directory}/{local};
        ssl_client_certificate {directory}/{local};
        ssl_verify_client on;
        ssl_protocols TLSv1.3;
        ssl_ecdh_curve X25519;
        ssl_session_tickets off;
        client_max_body_size 0;
        location / {{
            proxy_pass https://kubernetes;
            proxy_http_version 1.1;
            proxy_set_header Host {host};
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $itl_connection;
            # The certificate alone says who speaks.
            proxy_set_header Authorization "";
            proxy_ssl_certificate {directory}/{bundle};
            proxy_ssl_certificate_key {directory}/{bundle};
            proxy_ssl_trusted_certificate {directory}/{authorities};
            proxy_ssl_verify on;
            proxy_ssl_verify_depth 5;
            proxy_ssl_name {name};
            proxy_ssl_server_name on;
            proxy_ssl_protocols TLSv1.2 TLSv1.3;
            proxy_ssl_conf_command Groups X25519;
            # A session that is resumed would be the old certificate's.
            proxy_ssl_session_reuse off;
            # A watch is an answer that does not end: each piece goes on as it comes.
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_read_timeout 1h;
            proxy_send_timeout 1h;
            # Nothing is sent twice: it may have been done.
            proxy_next_upstream off;
        }}
    }}
}}
"""
_TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def nginx_conf(directory: Path, cluster: Cluster, listen: Listen) -> str:
    """Return the configuration of nginx.

    Args:
        directory: Where `node.pem` and the other files are.
        cluster: The API server.
        listen: Where.

    Raises:
        UsageError: nginx cannot reach this API server.
    """
    if not _PATH.match(str(directory)):
        raise UsageError(
            f"{directory}: a path of letters, digits and . _ - only can stand in nginx's configuration"
        )
    parsed = urlsplit(cluster.server)
    if cluster.proxy_url is not None:
        raise UsageError("proxy-url: nginx reaches no API server through a proxy; use kubelet bootstrap")
    if parsed.path not in ("", "/"):
        raise UsageError(
            "server: with a path, the API server cannot stand behind nginx; use kubelet bootstrap"
        )
    upstream = parsed.netloc if parsed.port else f"{parsed.netloc}:443"
    return _NGINX.format(
        directory=directory,
        pid=PID,
        local=LOCAL,
        bundle=BUNDLE,
        authorities=AUTHORITIES,
        temporary="".join(f"    {kind}_temp_path {directory}/temp_{kind};\n" for kind in _TEMPORARY),
        upstream=upstream,
        host=parsed.netloc,
        listen=listen.text,
        name=cluster.tls_server_name or (IN_CLUSTER_NAME if _is_address(cluster.host) else cluster.host),
    )


def kubeconfig(directory: Path, local_pem: bytes, listen: Listen) -> bytes:
    """Return the kubeconfig that points kubelet at the proxy."""
    certificate = local_pem[local_pem.index(b"-----BEGIN CERTIFICATE-----") :]
    local = str(directory / LOCAL)
    return written(
        Cluster(server=f"https://{listen.text}", ca_pem=certificate),
        {"client-certificate": local, "client-key": local},
    )


def make_local(listen: Listen, at: datetime) -> bytes:
    """Return key and certificate by which kubelet and the proxy know each other, PEM.

    Ed25519, which no TPM has: keys of other kinds the provider tpm2 takes into the TPM, even those in software
    (tpm2-openssl 1.1.1).
    """
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubelet proxy of this node")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - timedelta(days=1))
        .not_valid_after(at + LOCAL_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(listen.address))]),
            critical=False,
        )
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .sign(key, None)
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)


def is_local_good(pem: bytes, listen: Listen, at: datetime) -> bool:
    """True where *pem* serves for *listen* for a year to come."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = serialization.load_pem_private_key(pem, password=None)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return False
    return (
        certificate.public_key() == key.public_key()
        and ipaddress.ip_address(listen.address) in names.get_values_for_type(x509.IPAddress)
        and certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc - timedelta(days=365)
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
