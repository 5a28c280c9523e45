"""Ask the service in this container whether it lives: GET /healthz on port 8080, or $HEALTH_PORT; exit status 0 or 1.

The address is this computer's own, so its certificate is not judged: it names another.
"""

import http.client
import os
import ssl
import sys

TIMEOUT_SECONDS = 4.0

port = int(os.environ.get("HEALTH_PORT", "8080"))
try:
    if os.environ.get("ITL_TLS_CERT_FILE"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=TIMEOUT_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    connection.request("GET", "/healthz")
    sys.exit(connection.getresponse().status != http.client.OK)
except OSError as e:
    sys.exit(f"no answer from 127.0.0.1:{port}: {e}")
