"""Configurations of Talos machines: patched and completed for one of them, judged by schema, shown without secrets.

DELIVERY-AND-OPERATORS §2. A configuration is a stream of YAML documents: one `v1alpha1` document without `kind`, and
documents that name theirs. Which of them says what changed between versions (`versions`).
"""
