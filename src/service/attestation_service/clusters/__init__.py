"""Clusters: what operators declare of them, and what is in them."""
