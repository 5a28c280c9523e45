"""The votes of dual control: seen by everybody who may read, withdrawn by whoever cast them (D&O §12)."""
