"""The checks of ``lichen agent doctor``, one module a subject."""
