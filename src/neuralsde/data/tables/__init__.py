"""Tables in files: cells, columns, stamps, and what becomes of them."""
