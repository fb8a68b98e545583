"""What is computed from measurements and cannot be measured here."""
