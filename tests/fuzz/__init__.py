"""One fuzz target per parser: whatever arrives, only the documented error leaves."""
