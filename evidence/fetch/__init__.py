"""Files that nobody here made, out of packages."""
