"""The certificate authorities: made once, opened by every worker, watched; they issue in two durable units.

`places` says where keys are, `creation` makes them, `keyring` opens and tries them, `issuance` plans and signs,
`authority` is what the application owns, `rotation` what operators do to keys.
"""

from attestation_service.authority.authority import Authority, bundle_of, maker_of, open_authority
from attestation_service.authority.issuance import Issued, Wanted

__all__ = ["Authority", "Issued", "Wanted", "bundle_of", "maker_of", "open_authority"]
