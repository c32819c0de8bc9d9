"""A kitchen in text, in which two cooks make soup."""
