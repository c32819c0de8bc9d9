"""Small models inside the package, and how they are made."""
