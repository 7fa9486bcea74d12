"""Data directories and command outputs of earlier versions stay compatible."""
