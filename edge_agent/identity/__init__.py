"""Who the device is: its key, made here and never sent; its certificate; enrolment and renewal.

``lichen agent enroll`` (:mod:`edge_agent.identity.enrolment`) and the child process that renews
(:mod:`edge_agent.identity.renewal_job`) are the only ones that import a crypto library; the daemon reads
times from
``identity.json`` (:mod:`edge_agent.identity.files`).
"""
