"""Rules by which machines are approved without a person (DELIVERY-AND-OPERATORS §21, W12)."""
