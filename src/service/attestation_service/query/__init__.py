"""Ask the fleet: a query language over logical tables."""
