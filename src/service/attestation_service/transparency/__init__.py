"""The audit log as others can check it: checkpoints that we sign, and what witnesses and time stampers say of them.

signing.py      the log's two keys, and those it had before
walk.py         whether tree and entries are the same log
checkpoints.py  when to sign, and when never
others.py       what those have in common whom we ask
witnesses.py    those who cosign
timestamps.py   RFC 3161
"""

from attestation_service.transparency.checkpoints import Log, Newest, countersigners
from attestation_service.transparency.signing import LogSigner, load_log_signer
from attestation_service.transparency.walk import Page, Walk, page

__all__ = ["Log", "LogSigner", "Newest", "Page", "Walk", "countersigners", "load_log_signer", "page"]
