"""The node protocol as a model that spin explores exhaustively."""
