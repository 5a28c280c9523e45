"""The service's keys, what it signs with them, and which algorithms may be used."""
