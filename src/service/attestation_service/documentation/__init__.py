"""The API as a page: what /openapi.json says, for people."""
