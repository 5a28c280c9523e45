"""Who the operator is: logging in at an identity provider, and keeping the login.

    profiles.py    ~/.itl/config.toml: which service, which provider
    discovery.py   what a provider says of itself; the only code that talks to it
    tokens.py      token answers, refresh, revocation
    interactive.py + loopback.py + pkce.py · device.py · password.py    the three ways in
    cache.py       ~/.itl/attestation-cache/: logins kept between commands; keychain.py: their secrets elsewhere
    current.py     the token that a command sends

What a command with a valid login needs (`profiles`, `cache`, `current`, `claims`) imports no pydantic.
"""
