"""Conversing with an identity provider: what the command line and the dashboard have in common.

discovery   what a provider says of itself; requests to it, bounded
answer      what a browser brings back, judged; refusals in words
pkce        only who began a login can finish it
claims      what a token says of itself, believed by nobody
errors      what can go wrong on the way
"""
