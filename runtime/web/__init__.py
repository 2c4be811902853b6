"""What every page shares: files of a package, security headers, templates, events, a bounded server.

Only parts that serve pages import it: starlette, jinja2 and uvicorn are in no daemon without a page.
"""
