"""The device's identity: its key, made here and never sent; its certificate; enrolment and renewal.

Only ``lichen agent enroll`` (:mod:`edge_agent.identity.enrolment`) and the child process for renewal
(:mod:`edge_agent.identity.renewal_job`) import a crypto library; the daemon reads times from
``identity.json`` (:mod:`edge_agent.identity.files`).
"""
