"""What runs, records, draws and tells."""
