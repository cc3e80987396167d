"""`fkd-bench load`: what a coordinator costs with clients that compute nothing, and Flower on the same work.

settings.py is what it is told, model.py what is exchanged, method.py the method that both halves share, clients.py the
no-op clients; own_run.py runs our programs and flower_run.py Flower's, through programs.py (processes), usage.py (what
they use) and proxy.py (bytes on the wire); limits.py is what the machine needs for the same bytes; figures.py says what
was measured, command.py prints it.
"""
