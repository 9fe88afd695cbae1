"""Rented machines of AWS EC2."""
