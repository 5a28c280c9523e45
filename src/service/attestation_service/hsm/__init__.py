"""CA keys in hardware of Kubernetes clusters: the durable log of what they sign, and what evidence gave them."""
