import os

# Whether Triton interprets is decided when a kernel is defined, so these tests need a process of
# their own: `tests/kernels/test_interpreter.py` starts it.
collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
