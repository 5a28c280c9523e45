"""Base configurations of roles and patches of machines: imported, shown without secrets, activated, rolled back."""
