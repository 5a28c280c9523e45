"""Extensions of the attestation service; one folder each, found by entry point like anybody's."""
