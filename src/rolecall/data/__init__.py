"""Reads rows of files and public data sets, and checks them."""
