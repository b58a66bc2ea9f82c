"""``torchrun … -m dart_data.sft JOB``: one rank of a supervised fine-tuning."""

import sys

from dart_data.sft.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
