"""Write golden logs anew, after a decision was changed on purpose.

python -m tests.golden [SCENE …]
"""

from __future__ import annotations

import sys

from tests.golden.files import write
from tests.golden.stage import SCENES

for scene in sys.argv[1:] or SCENES:
    print(*write(scene))
