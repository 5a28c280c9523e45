"""What every member of the platform shares: evidence, appraisal, machines, audit.

The folders carry the RATS roles of RFC 9334; imports point downward only (see ARCHITECTURE.md).
"""

__version__ = "0.1.0"
