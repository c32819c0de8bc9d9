"""Small models inside the package; `rolecall_lab.tiny` builds them."""
