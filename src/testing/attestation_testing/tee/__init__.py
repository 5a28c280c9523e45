"""Confidential hardware in software, for tests and demonstrations: TEST ONLY is in the name of every anchor.

A production start refuses these anchors, and nothing that they sign is believed by any other.
"""
