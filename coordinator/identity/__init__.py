"""Membership of a fleet: a private certificate authority, one-time invites, enrolment, the access list.

Nothing here is imported unless the coordinator has an authority (``lichen coordinator init``).
"""
