"""``torchrun … -m trainer.sft JOB``: one rank of a supervised fine-tuning."""

import sys

from trainer.sft.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
