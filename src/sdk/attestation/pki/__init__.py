"""Certificates of ours, without a key at hand or a database: profiles, requests, what is signed, lists, answers."""
