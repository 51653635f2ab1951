"""The store's rules as plain Python: one class of data, one method per operation."""
