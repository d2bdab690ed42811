"""`python -m txmq` is the `txmq` command."""

from txmq.ops.cli.app import main

if __name__ == "__main__":
    main()
