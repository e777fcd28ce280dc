"""Networks: functions of a DataSpec that give a plain nn.Module from inputs (B, *shape) to logits (B, num_classes)."""
