"""Tests of the operations on files."""
