"""Engines that hold a coordinator's tables: SQLite files, or schemas of a PostgreSQL database."""
