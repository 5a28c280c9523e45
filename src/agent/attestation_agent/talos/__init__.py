"""The agent on Talos: what is ordered is done by machined, on its socket, and nothing of it lies on a disk in clear."""
