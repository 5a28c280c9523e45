"""How routes are declared, and what they take and give."""
