"""`concf` with a checkpoint after every epoch and a timeout of 10 s, for tests that kill its processes or stop them."""

from functools import partial

from concf import models as train
from concf.cli.app import main
from concf.runtime import process_group

if __name__ == "__main__":
    train.train = partial(train.train, checkpoint_seconds=0)  # type: ignore[assignment]
    process_group.joined = partial(process_group.joined, 10)  # type: ignore[assignment]
    main()
