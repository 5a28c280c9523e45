"""Measurements of the bars in DESIGN §4, with floors beside them: `./dev bench [NAME…] [--json]`."""
