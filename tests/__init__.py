"""Tests. The only package file among them: see the architecture tests."""
