"""How the server behaves, beside what S3's documentation says: some 2,200 answers, down to codes and headers.

    python behaviour ENDPOINT ACCESS_KEY SECRET_KEY OTHER_KEY OTHER_SECRET [MODULE...]

The two keys are of two accounts and may do everything. Ends with 1 if an answer is another one.
"""

import importlib
import sys

import common

for name in sys.argv[6:] or ["listings", "objects", "multipart", "heads", "access", "settings", "kept", "forms"]:
    common.run(importlib.import_module(name).GROUPS)
print(f"{common.COUNTED} behaviours, {len(common.FAILED)} of them wrong")
sys.exit(1 if common.FAILED else 0)
