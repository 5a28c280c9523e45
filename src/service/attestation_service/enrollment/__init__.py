"""Certificates of machines: challenge, request and renewal, enrolment (ITL-REFERENCE §§3, 16)."""
