"""Values of the stages of the request pipeline, for the modules of this package and its users.

They stand in `agentflow.definition.stage_schemas`, because the engine folds them as well.
"""

from agentflow.definition.stage_schemas import *  # noqa: F403 - one list of names, in its module
from agentflow.definition.stage_schemas import __all__ as __all__
