"""What the Verifier judges by: endorsements, advisories, logs, policies, challenges."""
