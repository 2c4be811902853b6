"""The HTTPS API for enrolment and renewal."""
