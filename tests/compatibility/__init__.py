"""What earlier versions wrote and printed is still read, and still looks the same."""
