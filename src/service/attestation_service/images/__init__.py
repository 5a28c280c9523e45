"""Images of Talos: where machines find what they boot (DELIVERY-AND-OPERATORS §6)."""
