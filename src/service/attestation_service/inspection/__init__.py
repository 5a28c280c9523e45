"""`attestation-service --check`: would a start serve? Everything is looked at, and nothing is touched.

No database is migrated, no key or folder is made, no file is written or locked. Each part of the table says what it
found, why that matters, and what to do. What one part stumbles over is that part's finding; the others go on.

finding.py   what is said
case.py      what the parts look at
storage.py   database, folders, disk
keys.py      the service's key, those of the audit log, those of the CA
files.py     role configurations, secrets, who vouches for TPMs
outside.py   TLS, operators, clock, port
beyond.py    what only `doctor` looks at
"""

from attestation_service.inspection.case import Listen
from attestation_service.inspection.finding import Finding, Level, as_json, as_text
from attestation_service.inspection.table import BEYOND, PARTS, inspect

__all__ = ["BEYOND", "PARTS", "Finding", "Level", "Listen", "as_json", "as_text", "inspect"]
