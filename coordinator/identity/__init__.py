"""Who may belong to a fleet: a private authority, one-time invites, enrolment, the broker's access list.

Nothing here is imported unless the coordinator has an authority (``lichen coordinator init``).
"""
