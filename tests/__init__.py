"""Tests of mist; the folders mirror the package."""
