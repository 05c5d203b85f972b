"""Checks of loafc against PyTorch over everything that there is: its operators, and the calls of real models."""
