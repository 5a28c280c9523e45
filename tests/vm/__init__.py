"""A virtual machine with real firmware and a software TPM boots what the project makes: `./dev test --vm`."""
