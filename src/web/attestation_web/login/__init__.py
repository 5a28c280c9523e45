"""Who is here: OpenID Connect, and sessions that stay on the server."""
