"""The HTTP service and the page in the browser: projects of examples, learned and asked.

Needs the extra ``[serve]``. docs/serve.md says what is promised.
"""
