"""Templates that come with the product, as files."""
