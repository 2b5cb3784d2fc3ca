"""`python -m agentflow` is the command `agentflow`."""

from agentflow.cli import main

if __name__ == "__main__":
    main()
