"""Checks of our files and tools by another hand."""
