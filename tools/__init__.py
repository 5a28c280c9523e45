"""What `./dev` runs and nobody ships."""
