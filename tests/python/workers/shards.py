"""fully_shard (FSDP2) of any version of PyTorch."""

try:
    from torch.distributed.fsdp import fully_shard  # noqa: F401
except ImportError:  # before 2.6
    from torch.distributed._composable.fsdp import fully_shard  # noqa: F401
