"""`rolecall worth`: compares a trained team with what could take its place."""
